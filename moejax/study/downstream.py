"""Evaluate a study's checkpoints on downstream tasks after training, and write a table of scores.

``downstream/MODEL/TOKENS.TASK.json`` has the score of one checkpoint on one task, with everything that determines the
score: the task, its shots and files, and the run. A score is computed again only if one of these has changed.
``scores.parquet`` has a row per model, budget and task, with the run's loss and sizes, and the fitted error.
"""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moejax import run_table
from moejax.data.corpus import open_corpus, read_summary
from moejax.data.rows import counted as counted_targets
from moejax.errors import UserError
from moejax.evaluation import validation_choices
from moejax.evaluation.language_model import LanguageModel
from moejax.evaluation.load_model import DEFAULT_LENGTH, LoadedModel, fingerprint, load_model
from moejax.evaluation.suites import EvaluationTask, score_of, suite_of
from moejax.folder import check_as_written, only_writer
from moejax.json_text import fields
from moejax.model.runtime import Runtime
from moejax.say import ProgressCallback
from moejax.storage import open_storage
from moejax.stored import Damaged, as_read, read_json, write_json
from moejax.study.score_links import ScoreLink, score_links, with_fitted
from moejax.study.status import run_statuses
from moejax.study.study import Study
from moejax.train.directory.manifest import finished_steps
from moejax.train.directory.metrics import branch_name
from moejax.train.training import Training
from moejax.wording import counted, install_command, some

FOLDER, TABLE = "downstream", "scores.parquet"
"""Names in a study's folder."""
OF_THE_RUN = (
    *("model", "group", "tokens", "flops", "loss", "bits_per_byte", "params_active", "params_total"),
    *("num_experts", "top_k", "sparsity"),
)
"""Columns of the run table that are copied to a score's row if present."""


@dataclass(frozen=True, kw_only=True)
class AskedCheckpoint:
    """The checkpoint of one model at one budget."""

    training: Training
    row: Mapping[str, Any]
    study: Path

    @property
    def name(self) -> str:
        """Name of the model and its budget."""
        return f"{self.training.name} at {self.row['tokens']:,} tokens"

    @property
    def folder(self) -> Path:
        """Folder of the weights."""
        recipe = self.training.recipe
        # A budget ends on a step, and its row has the tokens at that step.
        ends = {recipe.tokens(recipe.steps(budget)): budget for budget in recipe.budgets_tokens}
        return self.study / "models" / self.training.name / "checkpoints" / branch_name(ends[self.row["tokens"]])


@dataclass(frozen=True, kw_only=True)
class AskedScore:
    """The score of one checkpoint on one task."""

    checkpoint: AskedCheckpoint
    task: EvaluationTask
    decides: Mapping[str, Any]
    """Everything that determines the score."""

    @property
    def file(self) -> Path:
        """File of the score."""
        name = re.sub(r"[^\w.-]", "-", self.task.task)
        if name != self.task.task:
            # The hash distinguishes tasks that differ only in characters not allowed in file names.
            name += f"-{hashlib.sha256(self.task.task.encode()).hexdigest()[:8]}"
        one = self.checkpoint
        return one.study / FOLDER / one.training.name / f"{one.row['tokens']}.{name}.json"

    def stored(self) -> dict[str, Any] | None:
        """Return the content of the file, with the keys ``asked`` and ``results``; None if there is no file, or if its
        score was computed with other settings.

        Task files that are absent on this machine count as unchanged.

        Raises:
          Damaged: the file was changed after it was written.
        """
        if not self.file.is_file():
            return None
        kept = read_json(self.file, {"asked": dict, "results": dict}, remedy="remove it to evaluate the task again")
        before = kept["asked"] if self.decides["files"] is not None else {**kept["asked"], "files": None}
        return kept if before == self.decides else None


@dataclass(frozen=True, kw_only=True)
class DownstreamScores:
    """Scores of a study's checkpoints, and their fitted relation to the loss."""

    scores: run_table.DataFrame
    """Table with a row per model, budget and task."""
    links: list[ScoreLink]
    missing: int
    """Number of requested scores that are missing."""

    def to_json(self) -> dict[str, Any]:
        """Return the results as plain data, keyed by field."""
        return {**fields(self), "scores": run_table.records(self.scores)}


def asked_tasks(study: Study) -> list[EvaluationTask]:
    """Return the tasks on which every checkpoint is evaluated."""
    asked = study.downstream
    shots = None if asked.num_fewshot < 0 else asked.num_fewshot
    tasks = [EvaluationTask(task=name, name=name, num_fewshot=shots) for name in asked.tasks]
    if asked.suite:
        tasks += suite_of(asked.suite).run_here
    if doubled := [one.task for one in tasks if sum(one.task == other.task for other in tasks) > 1]:
        raise UserError(
            f"downstream.tasks has {doubled[0]}, which the suite {asked.suite} also contains; name every task once."
        )
    return tasks


def of_harness(task: EvaluationTask) -> bool:
    """Return whether a task belongs to lm-evaluation-harness."""
    return task.task != validation_choices.NAME


def has_harness() -> bool:
    """Return whether lm-evaluation-harness is installed."""
    return importlib.util.find_spec("lm_eval") is not None


def check_tasks(study: Study, folder: Path) -> None:
    """Raise ``UserError`` before training if a task without a score cannot be loaded, or if the score table was
    modified.
    """
    check_as_written(folder / TABLE)
    asked = asked_tasks(study)
    runs = sum(len(training.recipe.budgets_tokens) for training in study.trainings())
    left = {one.task.task for one in _missing(study, folder)}
    if len(_checkpoints(study, folder)) == runs and not study.unknown_stages:
        asked = [one for one in asked if one.task in left]
    if asked:
        _load(study, folder, asked)


def ask_checkpoints(study: Study, folder: Path, update: ProgressCallback) -> int:
    """Compute the missing scores of all checkpoints, write the table, and return the number of new scores.

    Raises:
      UserError: a task is not installed or cannot be loaded, or a checkpoint is missing (nothing is written in these
        cases); or a file is damaged.
    """
    check_as_written(folder / TABLE)
    asked, missing = asked_tasks(study), _missing(study, folder)
    wanted = {one.task.task for one in missing}
    tasks = _load(study, folder, [one for one in asked if one.task in wanted])
    by_checkpoint = [(one, list(scores)) for one, scores in itertools.groupby(missing, key=lambda one: one.checkpoint)]
    _check_there([one for one, _ in by_checkpoint])
    done = 0
    with only_writer(folder):
        for checkpoint, scores in by_checkpoint:
            update(done / len(missing), f"{checkpoint.name}: reading weights")
            loaded = load_model(checkpoint.folder)
            origin = {"fingerprint": fingerprint(loaded.weights), **loaded.origin}
            for one in scores:
                began, where = time.monotonic(), f"{checkpoint.name}, {one.task.name}"
                answers = tasks[one.task.task](loaded, _within(update, done, len(missing), where))
                one.file.parent.mkdir(parents=True, exist_ok=True)
                seconds = round(time.monotonic() - began, 2)
                write_json(one.file, {"asked": one.decides, "model": origin, **answers, "seconds": seconds})
                done += 1
        if asked:
            write_scores(study, folder)
    return done


def _check_there(wanted: Sequence[AskedCheckpoint]) -> None:
    names = [one.name for one in wanted if not one.folder.is_dir() or not finished_steps(one.folder)]
    if names:
        raise UserError(
            f"{len(names)} of {counted(len(wanted), 'checkpoint')} for the downstream tasks are missing in "
            f"{wanted[0].study}/models: {some(names)}. Copy them again from the machine that trained them, or leave "
            "downstream.tasks and downstream.suite empty."
        )


def _within(update: ProgressCallback, done: int, total: int, where: str) -> ProgressCallback:
    return lambda share, text: update((done + share) / total, f"{where}: {text}")


def write_scores(study: Study, folder: Path) -> Path | None:
    """Gather the scores of a study's folder into its table; return None if there are no scores."""
    groups = study.groups()
    rows = [
        {"study": study.name, **_row(one, stored), "group": groups[one.checkpoint.training.name]}
        for one in _scores(study, folder)
        if (stored := one.stored()) is not None
    ]
    return run_table.write(rows, folder / TABLE) if rows else None


def conclude_downstream(study: Study, folder: Path) -> DownstreamScores | None:
    """Return the existing scores, and write the fitted errors to their table. Return None if no scores are requested or
    present.
    """
    if not asked_tasks(study) or not (folder / TABLE).is_file():
        return None
    scores = run_table.read(folder / TABLE)
    known = scores[scores["error"].notna()] if "error" in scores else scores[:0]
    links = score_links(known, study.downstream.links, seed=study.analysis.seed) if len(known) else []
    scores = with_fitted(scores, links)
    run_table.write(scores, folder / TABLE)
    return DownstreamScores(scores=scores, links=links, missing=len(_missing(study, folder)))


def _checkpoints(study: Study, folder: Path) -> list[AskedCheckpoint]:
    """Return the checkpoints of all finished runs, smallest model first."""
    trainings = {training.name: training for training in study.trainings()}
    if not (folder / "models").is_dir():
        return []
    rows = [row for one in run_statuses(open_storage(folder), list(trainings.values())) for row in one.rows]
    rows.sort(key=lambda row: (row["params_active"], row["params_total"], row["model"], row["tokens"]))
    return [AskedCheckpoint(training=trainings[row["model"]], row=row, study=folder) for row in rows]


def _scores(study: Study, folder: Path) -> list[AskedScore]:
    asked = asked_tasks(study)
    return [
        AskedScore(checkpoint=checkpoint, task=task, decides=_decides(study, checkpoint, task))
        for checkpoint in (_checkpoints(study, folder) if asked else [])
        for task in asked
    ]


def _missing(study: Study, folder: Path) -> list[AskedScore]:
    """Return the requested scores not yet computed with these settings."""
    return [one for one in _scores(study, folder) if one.stored() is None]


def _decides(study: Study, checkpoint: AskedCheckpoint, asked: EvaluationTask) -> dict[str, Any]:
    settings = study.downstream
    harness = of_harness(asked)
    return as_read(
        {
            "task": asked.task,
            "num_fewshot": asked.num_fewshot if harness else None,
            "limit": settings.limit,
            "max_new_tokens": settings.max_new_tokens if harness else 0,
            "dtype": settings.dtype,
            "files": _files(settings.task_path, asked.task) if harness else _text(checkpoint.study),
            "run": checkpoint.row["fingerprint"],
            "loss": checkpoint.row["loss"],
        }
    )


def _text(folder: Path) -> str | None:
    try:
        return read_summary(folder / "data").sha256
    except Damaged:
        return None


def _files(folder: str, task: str) -> str | None:
    """Return the SHA-256 of a folder of task files if it contains the task, so that a changed task is evaluated again.

    The result is empty if the folder does not define the task, and None if the folder is not on this machine.
    """
    if not folder:
        return ""
    if not Path(folder).is_dir():
        return None
    files = sorted(path for path in Path(folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    line = re.compile(rf"^(task|group|tag):\s*['\"]?{re.escape(task)}['\"]?\s*$", re.MULTILINE)
    if not any(line.search(path.read_text("utf-8", "replace")) for path in files if path.suffix in (".yaml", ".yml")):
        return ""
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(folder)}\n".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


Ask = Callable[[LoadedModel, ProgressCallback], dict[str, Any]]
"""Function ``ask(model, update)`` that evaluates one task and returns the results to store."""


def _load(study: Study, folder: Path, asked: Sequence[EvaluationTask]) -> dict[str, Ask]:
    """Return functions that evaluate the tasks, keyed by task."""
    harness = [one.task for one in asked if of_harness(one)]
    if harness and not has_harness():
        raise UserError(
            f"The study's downstream tasks {some(harness)} need lm-evaluation-harness, which is not installed. Run "
            f"{install_command('eval')}, or leave downstream.tasks and downstream.suite empty "
            f"({validation_choices.NAME} needs no harness)."
        )
    tokenizer = study.recipe.data.tokenizer or ""
    if harness and tokenizer.partition(":")[0] == "ids":
        raise UserError(
            f"recipe.data.tokenizer is {tokenizer}, which cannot encode text, so the tasks {some(harness)} cannot "
            f"be evaluated. Name the tokenizer.json, or use only the task {validation_choices.NAME}."
        )
    return {one.task: _ask_harness(study, one) if of_harness(one) else _ask_choices(study, folder) for one in asked}


def _ask_choices(study: Study, folder: Path) -> Ask:
    """Return a function that evaluates next-token choices on the study's held-out text."""
    made: list[validation_choices.Document] = []

    def ask(loaded: LoadedModel, update: ProgressCallback) -> dict[str, Any]:
        if not made:
            rows = open_corpus(study.recipe.data, folder / "data").validation().rows
            made.extend(
                validation_choices.documents(rows["tokens"], counted_targets(rows), limit=study.downstream.limit)
            )
        length = study.recipe.data.sequence_length
        results = validation_choices.results(
            _language_model(study, loaded, length).log_likelihoods,
            made,
            lambda done, total: update(done / total, f"{done:,} of {total:,} likelihoods"),
        )
        return {"results": dict(results), "documents": len(made), "better": {"acc": True}}

    return ask


def _ask_harness(study: Study, asked: EvaluationTask) -> Ask:
    # The import takes seconds, and only studies with harness tasks need it.
    from moejax.evaluation.harness import (
        HarnessModel,
        answer_lengths,
        evaluate,
        load_tasks,
        versions,
    )

    settings = study.downstream
    manager, tasks = load_tasks(
        [asked.task],
        Path(settings.task_path) if settings.task_path else None,
        [validation_choices.NAME],
        "--config.downstream.task_path",
    )

    def ask(loaded: LoadedModel, update: ProgressCallback) -> dict[str, Any]:
        if loaded.tokenizer is None:
            raise UserError(
                f"The tokenizer of {study.name} is no longer in its folder, so the task {asked.task} cannot be "
                f"evaluated. Restore the data/ folder of {study.name}, or remove {asked.task} from downstream."
            )
        model = HarnessModel(
            _language_model(study, loaded, loaded.sequence_length or DEFAULT_LENGTH),
            loaded.tokenizer,
            first_token=loaded.first_token,
            max_new_tokens=settings.max_new_tokens or None,
            seed=study.analysis.seed,
            update=update,
        )
        answered = evaluate(model, manager, tasks, limit=settings.limit or None, num_fewshot=asked.num_fewshot)
        results = as_read(answered["results"].get(asked.task, {}), default=str)
        better = as_read(answered.get("higher_is_better", {}).get(asked.task, {}), default=str)
        score_of(results, better, asked.task, asked.metric)
        sizes = [one["effective"] for one in answered.get("n-samples", {}).values()]
        config = answered.get("configs", {}).get(asked.task, {})
        return {
            "results": results,
            "better": better,
            "documents": sum(sizes),
            "num_fewshot": answered.get("n-shot", {}).get(asked.task),
            "task_version": answered.get("versions", {}).get(asked.task),
            "metadata": as_read(config.get("metadata") or {}, default=str),
            "answers": answer_lengths(length for every in model.answers.values() for length in every),
            "versions": versions(),
        }

    return ask


def _language_model(study: Study, loaded: LoadedModel, longest: int) -> LanguageModel:
    settings = study.downstream
    model = LanguageModel(
        loaded.weights, Runtime(compute_dtype=settings.dtype), longest=longest, batch_tokens=settings.batch_tokens
    )
    model.check()
    return model


def _row(asked: AskedScore, stored: Mapping[str, Any]) -> dict[str, Any]:
    task, run = asked.task, asked.checkpoint.row
    score = score_of(stored["results"], stored.get("better", {}), task.task, task.metric)
    answers = stored.get("answers") or {}
    own = {name: run[name] for name in OF_THE_RUN if name in run}
    # A dense model has no idle expert.
    own["sparsity"] = own.get("sparsity") or 0.0
    return {
        **own,
        "task": task.name,
        "category": task.category,
        "metric": score.metric,
        "num_fewshot": stored.get("num_fewshot", 0 if task.num_fewshot is None else task.num_fewshot),
        "documents": stored.get("documents"),
        "score": score.score,
        "score_deviation": score.deviation,
        "error": score.error,
        "given_words": (stored.get("metadata") or {}).get("given_words"),
        "answer_words": answers.get("words"),
        "answer_tokens": answers.get("tokens"),
    }
