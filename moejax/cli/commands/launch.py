"""Submit a training run, or the unfinished runs of a study, to an engine. Without --submit, print the jobs (as data
with --json) and write nothing. The same command resubmits failed and interrupted runs; `moejax study status DIR` shows
the progress.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from moejax.cli.options import REQUIRED, option
from moejax.cli.progress import progress_display
from moejax.cli.shared import Share, StudyOptions, settings_of
from moejax.errors import UserError
from moejax.json_text import json_text
from moejax.quantities import ASSUMED_MFU
from moejax.ranges import NotNegative, whole
from moejax.say import say
from moejax.wording import command, counted, listed, some, told

if TYPE_CHECKING:
    from moejax.study.executor import Engine, Task
    from moejax.study.study import Study

MOST_SHOWN = 5
"""Maximum number of training runs whose expected time is printed."""
EXAMPLE = """\
  moejax launch slurm --config=FILE.py --config.recipe.data.source=/shared/web --out /shared/mine      # to look at
  moejax launch slurm --config=FILE.py --config.recipe.data.source=/shared/web --out /shared/mine --submit
  moejax launch slurm --config=configs/tiny.py --out /shared/one --chip cpu                     # a single run
  moejax launch slurm --resume --out /shared/mine --chips-per-node 4 --set partition=gpu --set account=me --submit
  moejax launch slurm --resume --out /shared/mine --setup 'module load cuda/12' --set partition=gpu --submit
  moejax launch slurm --config=configs/studies/zhao.py:tiny --out /shared/tiny --chip cpu --submit --wait
  moejax launch gke --config=FILE.py --chip v5p --out gs://bucket/mine --image REGISTRY/moejax:tpu --submit
  moejax launch gke --resume --out gs://bucket/mine --topology v5p:4x4x4 --image REGISTRY/moejax:tpu
  moejax launch sky --config=FILE.py --chip h100 --out s3://bucket/mine --image docker:REGISTRY/moejax:gpu --submit
  moejax launch sky --config=FILE.py --chip h100 --nodes 4 --out s3://bucket/mine --image docker:REGISTRY/moejax:gpu
  moejax study status gs://bucket/mine"""


def _variable(text: str) -> str:
    if re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", text):
        return text
    # The text may hold a secret, which no message repeats.
    raise UserError("name an environment variable, such as WANDB_API_KEY, without its value")


@dataclass(frozen=True, kw_only=True)
class LaunchOptions(StudyOptions):
    """Options and submission code shared by all engines."""

    RECORDED_AS: ClassVar[str] = ""
    """Name of the engine in the study's record of launches; empty if the engine writes the record itself."""

    out: str | None = option(
        None,
        "output folder on storage that every machine mounts, or gs://… (default: runs/NAME)",
        metavar="DIR",
        output=True,
    )
    submit: bool = option(False, "submit the jobs, instead of printing them", excludes=("print",))
    print: bool = option(False, "print the jobs, and write nothing (the default)")
    chip: str | None = option(None, "chip of the jobs: h100, v5p, …; for Slurm also cpu", metavar="NAME")
    mfu: Share = option(ASSUMED_MFU, "expected share of the peak FLOP/s, for time limits", metavar="SHARE")
    price: NotNegative | None = option(None, "price of one chip for an hour, in any currency", metavar="COST")
    words: tuple[str, ...] = ()

    def engine(self, study: Study, out: str) -> tuple[Any, list[Task]]:
        """Return the engine, and all training runs with their resources."""
        raise NotImplementedError

    def run(self) -> None:
        """Print or submit the training runs."""
        from moejax.study import analysis
        from moejax.study.estimate import resources_text, settings_text
        from moejax.study.outcomes import try_outcomes
        from moejax.study.stages import later

        study, out = self.load_study()
        _refuse_control_characters([*self.words, out, study.name, *study.models])
        study.check()
        study = self._with_stages(study, out)
        self.check_exportable(study.models)
        if said := try_outcomes(study, lambda one: self.check_exportable(one.models)).said:
            _say(said)
        engine, tasks = self.engine(study, out)
        for warning in analysis.warnings(study):
            _say(warning)
        study.check_data()
        self._say_data(study, out)
        if self.submit:
            engine.check()
        tasks = self._not_done(study, out, tasks)
        if self.json:
            print(json_text([_as_data(task) for task in tasks]))
        elif not tasks:
            say(
                f"All runs of {study.name} are done or submitted: {command('moejax', 'study', 'status', out)}, "
                f"{command('moejax', 'study', 'gather', out)}.",
                file=sys.stdout,
            )
        if study.unknown_stages:
            again = (
                ""
                if self.submit and getattr(self, "wait", False)
                else " Run this command again when the previous training runs have ended."
            )
            _say(f"{later(study)}{again}")
        if not tasks:
            return
        for task in tasks[:MOST_SHOWN]:
            resources = resources_text(task.training, task.resources, self.mfu, self.price)
            _say(f"{task.name}: {resources}; {settings_text(task.training)}")
        if len(tasks) > MOST_SHOWN:
            _say(f"and {counted(len(tasks) - MOST_SHOWN, 'more training run')} (moejax study --dry-run lists all)")
        for chip in dict.fromkeys(filter(None, (task.resources.chip for task in tasks))):
            _say(
                f"Time limits that you did not give are estimates for {chip} at {self.mfu:.0%} MFU (--chip, --mfu). "
                f"{self._chosen}Set the mesh with --config.recipe.mesh.AXIS=N; `moejax plan --search` ranks meshes."
            )
        if self.submit:
            self._submit(study, out, engine, tasks)
            return
        if not self.json:
            print(engine.describe(tasks))
        say("", f"moejax: {counted(len(tasks), 'training run')}; nothing was submitted (--submit).")

    @property
    def _chosen(self) -> str:
        """A sentence about the number of chips, if the options do not give it."""
        names = [name for name in ("nodes", "topology") if hasattr(self, name)]
        if any(getattr(self, name) for name in names):
            return ""
        options = listed([f"--{name}" for name in names], "or")
        return f"Numbers of chips are the smallest with enough memory by estimate; set them with {options}. "

    def _with_stages(self, study: Study, out: str) -> Study:
        """Return the study with every stage that the results in its folder determine. Without ``--submit``, report an
        unreachable folder and return the study unchanged.
        """
        from moejax.storage import open_storage
        from moejax.study.run import check_owner
        from moejax.study.stages import known_stages

        if not study.stages:
            return study
        try:
            check_owner(study, out)
            return known_stages(study, open_storage(out))
        except UserError as error:
            if self.submit:
                raise
            _say(told(error))
            return study

    def _say_data(self, study: Study, out: str) -> None:
        """Report sources that are not on this machine, and a prepared corpus that the longest budget repeats."""
        from moejax.data.corpus import absent_parts, read_of_prepared, repetition_text
        from moejax.storage import is_remote
        from moejax.train.directory.identity import DATA

        recipe = max((one.recipe for one in study.trainings()), key=lambda recipe: max(recipe.budgets_tokens))
        folder = Path(out, DATA)
        absent = absent_parts(recipe.data, folder)
        # With --submit and a local folder, this machine opens the corpus, and a missing source is an error.
        if absent and (is_remote(out) or not self.submit):
            here = "" if is_remote(out) else ", and --submit reads it on this machine"
            _say(
                f"This machine does not have {some([part.source for part in absent])}, so the size of the data is "
                f"unknown. The jobs read the data at the same path{here}."
            )
        try:
            repeated = repetition_text(read_of_prepared(recipe.data, folder, max(recipe.budgets_tokens)))
        except UserError as error:
            if self.submit:
                raise
            repeated = told(error)
        if repeated:
            _say(repeated)

    def _submit(self, study: Study, out: str, engine: Engine, tasks: Sequence[Task]) -> None:
        from moejax.study.run import materialize_at
        from moejax.study.status import write_launch

        materialize_at(study, out, getattr(engine, "mount", None))
        ids = engine.submit(tasks)
        if self.RECORDED_AS:
            write_launch(out, self.RECORDED_AS, ids)
        _say(f"{counted(len(ids), 'training run')} submitted: {some(list(ids.values()))}")
        _say(f"their progress: {command('moejax', 'study', 'status', out)}")

    def _not_done(self, study: Study, out: str, tasks: Sequence[Task]) -> list[Task]:
        """Return the unfinished training runs; all runs if the folder is unreachable and nothing is submitted."""
        from moejax.storage import open_storage
        from moejax.study.run import check_owner
        from moejax.study.status import run_statuses

        try:
            storage = open_storage(out)
        except ValueError as error:
            if self.submit:
                raise
            _say(f"the state of the training runs is unknown, so all are printed: {told(error)}")
            return list(tasks)
        check_owner(study, out)
        statuses = {one.model: one for one in run_statuses(storage, study.trainings())}
        for one in statuses.values():
            if one.state != "done" and one.why:
                _say(f"{one.model} will be resumed: {one.why}")
        left = [task for task in tasks if statuses[task.name].state != "done"]
        return self.not_submitted(out, left, {name: one.state for name, one in statuses.items()})

    def not_submitted(self, out: str, tasks: list[Task], states: dict[str, str]) -> list[Task]:
        """Return the training runs that the engine does not already have."""
        return tasks


@dataclass(frozen=True, kw_only=True)
class GpuOptions(LaunchOptions):
    """Options of engines with machines of several GPUs."""

    chips_per_node: Annotated[int, whole(1, 1_024)] = option(8, "number of GPUs per node", metavar="N")
    nodes: Annotated[int, whole(1, 100_000)] | None = option(
        None, "nodes per training run (default: the fewest with enough memory)", metavar="N"
    )


@dataclass(frozen=True, kw_only=True)
class SlurmCommand(GpuOptions, name="launch slurm"):
    """Submit jobs to Slurm through submitit."""

    cores: Annotated[int, whole(1, 100_000)] | None = option(
        None, "cores per process (default: 1; with chips, 8)", metavar="N"
    )
    memory: Annotated[int, whole(1, 10**18)] | None = option(
        None, "memory per node (default: Slurm's)", metavar="BYTES"
    )
    minutes: Annotated[int, whole(1, 10_000_000)] | None = option(
        None, "time limit (default: twice the estimate)", metavar="N"
    )
    grace: Annotated[int, whole(0, 86_400)] = option(
        120, "seconds reserved to save a checkpoint before the time limit", metavar="SECONDS"
    )
    at_a_time: Annotated[int, whole(1, 100_000)] = option(256, "maximum number of concurrent jobs", metavar="N")
    set: tuple[str, ...] = option((), "additional sbatch option", metavar="KEY=VALUE")
    setup: tuple[str, ...] = option((), "line of bash to run before training, in every process", metavar="LINE")
    wait: bool = option(False, "wait until all jobs have ended, and write the run table", needs=("submit",))

    def engine(self, study: Study, out: str) -> tuple[Any, list[Task]]:
        from moejax.study.engines import slurm
        from moejax.study.slurm import SlurmOptions

        return slurm(settings_of(SlurmOptions, self), study, out)

    def _submit(self, study: Study, out: str, engine: Engine, tasks: Sequence[Task]) -> None:
        if not self.wait:
            super()._submit(study, out, engine, tasks)
            return
        from moejax.study.executor import Executor
        from moejax.study.run import train_study
        from moejax.study.stages import each_stage

        assert isinstance(engine, Executor)
        with progress_display() as update:
            table = train_study(study, Path(out), executor=engine, tasks=tasks, update=update, log=_say)
            # A study with stages is launched stage by stage.
            for known in each_stage(study, Path(out), _say) if study.unknown_stages else ():
                engine, tasks = self.engine(known, out)
                assert isinstance(engine, Executor)
                tasks = self._not_done(known, out, tasks)
                table = train_study(known, Path(out), executor=engine, tasks=tasks, update=update, log=_say)
        say(table, file=sys.stderr if self.json else sys.stdout)


@dataclass(frozen=True, kw_only=True)
class GkeCommand(LaunchOptions, name="launch gke"):
    """Submit JobSets on TPU slices to Google Kubernetes Engine."""

    RECORDED_AS = "gke"

    topology: str | None = option(
        None, "slice of every training run (default: the smallest with enough memory)", metavar="CHIP:AxBxC"
    )
    volume: str | None = option(
        None, "persistent volume claim mounted at PATH, if --out is not gs://…", metavar="CLAIM:PATH"
    )
    namespace: str = option("default", "Kubernetes namespace", metavar="NAME")
    service_account: str | None = option(None, "Kubernetes service account with access to the bucket", metavar="NAME")
    queue: str | None = option(None, "Kueue local queue", metavar="NAME")
    spot: bool = option(False, "use spot machines")
    image: str = option(REQUIRED, "image with moejax (launch/tpu.Dockerfile)", metavar="NAME")
    secret: tuple[str, ...] = option(
        (), "an environment variable from the Kubernetes Secret moejax", metavar="NAME", read=_variable
    )

    def engine(self, study: Study, out: str) -> tuple[Any, list[Task]]:
        from moejax.study.engines import gke
        from moejax.study.gke import GkeOptions

        return gke(settings_of(GkeOptions, self), study, out)


@dataclass(frozen=True, kw_only=True)
class SkyCommand(GpuOptions, name="launch sky"):
    """Submit managed jobs to SkyPilot."""

    RECORDED_AS = "sky"
    topology: str | None = option(None, "TPU slice (default: the smallest with enough memory)", metavar="CHIP:AxBxC")
    infra: str | None = option(None, "cloud[/region[/zone]] (default: SkyPilot's choice)", metavar="CLOUD")
    again: bool = option(False, "also submit training runs whose SkyPilot jobs have not ended")
    on_demand: bool = option(False, "use on-demand machines instead of spot machines")
    image: str | None = option(None, "image with moejax (default: install this folder)", metavar="docker:NAME")
    secret: tuple[str, ...] = option(
        (), "an environment variable that jobs get from this machine", metavar="NAME", read=_variable
    )

    def engine(self, study: Study, out: str) -> tuple[Any, list[Task]]:
        from moejax.study.engines import sky
        from moejax.study.sky import SkyOptions

        return sky(settings_of(SkyOptions, self), study, out)

    def not_submitted(self, out: str, tasks: list[Task], states: dict[str, str]) -> list[Task]:
        from moejax.study.status import launched

        if not self.submit or self.again:
            return tasks
        # SkyPilot would accept the same job twice.
        before = launched(out, "sky")
        busy = [task for task in tasks if task.name in before and states[task.name] in ("waiting", "running")]
        if busy:
            names = some([task.name for task in busy])
            _say(f"not submitted, since SkyPilot already has these jobs: {names} (sky jobs queue; --again resubmits)")
        return [task for task in tasks if task not in busy]


def _say(text: object) -> None:
    say(f"moejax: {text}")


def _as_data(task: Task) -> dict[str, Any]:
    return {"model": task.name, "command": ["moejax", *task.words], "resources": asdict(task.resources)}


def _refuse_control_characters(texts: Sequence[str]) -> None:
    """Raise ``UserError`` for control characters. A line break would start a new line in a script or manifest, such as
    a further ``sbatch`` option.
    """
    for text in texts:
        if any(ord(letter) < 32 or ord(letter) == 127 for letter in text):
            raise UserError(f"{text!r} has a line break or another control character; remove it.")
