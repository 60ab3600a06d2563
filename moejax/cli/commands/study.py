"""Run a study from its config to a report, estimate its cost, or show its progress."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from moejax.cli.options import Command, argument, option, out
from moejax.cli.progress import progress_display
from moejax.cli.shared import Share, StudyOptions, Workers
from moejax.errors import UserError
from moejax.json_text import json_text
from moejax.quantities import ASSUMED_MFU
from moejax.ranges import NotNegative, whole
from moejax.say import say
from moejax.wording import command, counted, some

EXAMPLE = """\
  moejax study --config=configs/studies/quickstart.py --out runs/quickstart
  moejax study --config=configs/studies/quickstart.py --config.analysis.decision_flops=1e15 --out runs/quickstart
  moejax study --resume --out runs/quickstart        # resumes the study in the folder
  moejax study --config=configs/studies/zhao.py:G --dry-run --chip h800 --mfu 0.4 --price 2
  moejax study status runs/quickstart                # done, running, failed and why, time left, device-hours
  moejax study gather gs://bucket/zhao --out runs/zhao   # the run table of launched jobs"""
BEFORE = "before any training"


@dataclass(frozen=True, kw_only=True)
class StudyCommand(StudyOptions, name="study"):
    """Train several models, fit laws to their runs, compute optima, and write a report. The same command resumes an
    interrupted study.
    """

    out: Path | None = out("output folder (default: runs/NAME)")
    workers: Workers | None = option(None, "number of concurrent training runs (default: one per core)", metavar="N")
    vmap: Annotated[int, whole(1, 4_096)] = option(
        1, "train up to N models that differ only in seed, learning rate or weight decay in one process", metavar="N"
    )
    dry_run: bool = option(False, "print runs, FLOPs, memory, time and cost; train nothing", group=BEFORE)
    chip: str = option("h100", "chip of the estimate: h800, v5p, …", metavar="NAME", group=BEFORE)
    mfu: Share = option(ASSUMED_MFU, "assumed share of the chip's peak FLOP/s", metavar="SHARE", group=BEFORE)
    price: NotNegative | None = option(
        None, "price of one chip for an hour, in any currency", metavar="COST", group=BEFORE
    )

    def run(self) -> int:
        return self._estimate() if self.dry_run else self._conclude()

    def _conclude(self) -> int:
        from moejax.papers.recipes import STUDY_RECIPES, write_tian
        from moejax.papers.tian.recipe import Followed
        from moejax.report import render
        from moejax.report.conclusions import brief
        from moejax.report.findings import read
        from moejax.report.page import as_data, write_report
        from moejax.storage import open_storage
        from moejax.study import analysis
        from moejax.study.downstream import ask_checkpoints, asked_tasks, check_tasks
        from moejax.study.outcomes import try_outcomes
        from moejax.study.run import check_owner, conclude, read_study, train_study
        from moejax.study.stages import known_stages, later

        study, place = self.load_study()
        folder = Path(place)
        study.check()
        study.check_data()
        check_owner(study, folder)
        known = known_stages(study, open_storage(folder))
        outcomes = try_outcomes(known, lambda one: self.check_exportable(one.models))
        self.check_exportable(known.models)
        asked = asked_tasks(study)
        if asked:
            check_tasks(known, folder)
        parts = 4 if asked else 3

        runs = sum(len(training.recipe.budgets_tokens) for training in known.trainings())
        for warning in (*analysis.warnings(outcomes.expected), *([outcomes.said] if outcomes.tried else [])):
            say(f"moejax: {warning}")
        what = f"{counted(len(known.models), 'model')}, {counted(runs, 'run')}"
        say(f"1/{parts}  training {what}, into {folder}. {later(known)}".rstrip(". "))
        with progress_display() as update:
            train_study(
                study,
                folder,
                workers=self.workers,
                vmap=self.vmap,
                update=update,
                log=lambda text: say(f"moejax: {text}"),
            )
        if asked:
            say(f"2/{parts}  evaluating every checkpoint on {counted(len(asked), 'task')}")
            with progress_display() as update:
                new = ask_checkpoints(read_study(folder), folder, update)
            say(f"{counted(new, 'score')} added")
        say(f"{parts - 1}/{parts}  fitting laws, resampling, checking the optimum")
        with progress_display() as update:
            concluded = conclude(folder, update, STUDY_RECIPES)
        say(f"{parts}/{parts}  writing the report")
        report = write_report(concluded)
        if isinstance(followed := concluded.analysed.recipe, Followed):
            write_tian(folder / study.analysis.recipe, followed.recipe, followed.read, followed.runs)
        if self.json:
            print(json_text(as_data(concluded)))
        else:
            render.show(brief(read(concluded)))
            say(f"report: {report.resolve()}", file=sys.stdout)
        failed = [check for check in concluded.sanity_checks if check.holds is False]
        for check in failed:
            say(f"moejax: do not trust this sweep. It should show that {check.fact}, but: {check.found}.")
        return 1 if failed else 0

    def _estimate(self) -> int:
        from moejax.laws.chips import find
        from moejax.report import render
        from moejax.report.studies import downstream_in_words, study_estimate
        from moejax.study import analysis
        from moejax.study.estimate import estimate
        from moejax.study.outcomes import try_outcomes
        from moejax.study.stages import later

        study, _ = self.load_study()
        study.check()
        self.check_exportable(study.models)
        outcomes = try_outcomes(study, lambda one: self.check_exportable(one.models))
        study = outcomes.expected
        cost = estimate(study, find(self.chip), mfu=self.mfu, price=self.price)
        render.show(study_estimate(study, cost), as_json=self.json)
        downstream = [downstream_in_words(cost.downstream)] if cost.downstream else []
        for text in (*analysis.warnings(study), *filter(None, [outcomes.said]), *downstream):
            say(f"moejax: {text}")
        if study.unknown_stages:
            before = study.stages[[stage.name for stage in study.stages].index(study.unknown_stages[0]) - 1]
            say(
                f"moejax: {later(study)} The estimate does not include them; to include them, add the expected "
                f"winner to the settings of {before.name}, as expected=NAME."
            )
        return 0


@dataclass(frozen=True, kw_only=True)
class StudyStatusCommand(Command, name="study status"):
    """Show the progress of a study: finished, active and failed training runs, the time left, and device-hours."""

    folder: str = argument("folder of the study, or its object-store URL", metavar="DIR")
    price: NotNegative | None = option(None, "price of one chip for an hour, in any currency", metavar="COST")

    def run(self) -> None:
        from moejax.report import render
        from moejax.report.studies import study_status
        from moejax.storage import open_storage
        from moejax.study.run import read_study
        from moejax.study.status import run_statuses

        study = read_study(self.folder)
        statuses = run_statuses(open_storage(self.folder), study.trainings())
        render.show(study_status(study, self.folder, statuses, self.price), as_json=self.json)
        if damaged := [problem for one in statuses for problem in one.damaged]:
            raise UserError(f"{len(damaged)} files of {self.folder} are damaged. {some(damaged, most=3, between=' ')}")


@dataclass(frozen=True, kw_only=True)
class StudyGatherCommand(Command, name="study gather"):
    """Write the run table of a study's folder. For a folder in an object store, the rows are first downloaded to
    --out.
    """

    folder: str = argument("folder of the study, or its object-store URL", metavar="DIR")
    out: Path | None = out("local folder for rows and table, if DIR is in an object store")

    def run(self) -> None:
        from moejax.storage import is_remote, open_storage
        from moejax.study.downstream import write_scores
        from moejax.study.run import fetch, read_study, write_table
        from moejax.study.status import run_statuses

        study = read_study(self.folder)
        if is_remote(self.folder) and self.out is None:
            raise UserError(f"{self.folder} is not a local folder; give one for its rows with --out DIR.")
        if self.out is not None and self.out != Path(self.folder):
            fetch(self.folder, self.out)
        folder = self.out or Path(self.folder)
        path = write_table(study, folder)
        write_scores(study, folder)
        statuses = run_statuses(open_storage(folder), study.trainings())
        missing = [one.model for one in statuses if one.state != "done"]
        rows, runs = sum(len(one.rows) for one in statuses), sum(one.runs for one in statuses)
        if self.json:
            print(json_text({"table": str(path), "rows": rows, "runs": runs, "not_done": missing}))
        else:
            say(f"{rows} of {runs} runs: {path}", file=sys.stdout)
        for problem in (problem for one in statuses for problem in one.damaged):
            say(f"! {problem}")
        if missing:
            say(f"not done: {some(missing)}; see {command('moejax', 'study', 'status', self.folder)}")
