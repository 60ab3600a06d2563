"""Evaluate tasks of lm-evaluation-harness on a model, and show the results as tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moejax.data.tokenizer import Tokenizer
from moejax.evaluation.harness import HarnessModel, answer_lengths, evaluate, load_tasks, versions
from moejax.evaluation.language_model import LanguageModel
from moejax.evaluation.load_model import DEFAULT_LENGTH, LoadedModel, fingerprint, load_with_tokenizer
from moejax.evaluation.suites import Suite
from moejax.model.runtime import Runtime
from moejax.result import Column, Result, Table
from moejax.say import ProgressCallback
from moejax.stored import as_read

DEFAULT_DTYPE = "float32"


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """Settings of ``moejax eval``."""

    tasks: str
    suite: str | None
    task_path: str | None
    num_fewshot: int | None
    limit: int | None
    max_length: int | None
    max_new_tokens: int | None
    batch_tokens: int
    dtype: str | None
    tokenizer: str | None
    seed: int
    samples: bool


def run_tasks(
    path: Path, shots: Mapping[int | None, list[str]], settings: EvaluationSettings, update: ProgressCallback
) -> dict[str, Any]:
    """Evaluate tasks and return the results as plain data, keyed as in ``evaluate``.

    ``shots`` maps a number of shots to names of tasks.
    """
    folder = Path(settings.task_path) if settings.task_path else None
    update(0.0, "reading task files")
    loaded = {number: load_tasks(names, folder) for number, names in shots.items()}
    update(0.0, "reading weights")
    given, tokenizer = load_with_tokenizer(path, settings.tokenizer)
    model = LanguageModel(
        given.weights,
        Runtime(compute_dtype=settings.dtype or DEFAULT_DTYPE),
        longest=settings.max_length or given.sequence_length or DEFAULT_LENGTH,
        batch_tokens=settings.batch_tokens,
    )
    asked = HarnessModel(
        model,
        tokenizer,
        first_token=given.first_token,
        max_new_tokens=settings.max_new_tokens,
        seed=settings.seed,
        update=update,
    )
    results: dict[str, dict[str, Any]] = {}
    for number, (manager, tasks) in loaded.items():
        own = evaluate(asked, manager, tasks, limit=settings.limit, num_fewshot=number, log_samples=settings.samples)
        for name, part in own.items():
            results.setdefault(name, {}).update(part)
    answers = {task: answer_lengths(lengths) for task, lengths in asked.answers.items()}
    return {
        **_about(settings, path, given, tokenizer, asked),
        "versions": versions(),
        **_plain(results),
        **({"answers": answers} if answers else {}),
    }


def _about(
    settings: EvaluationSettings, path: Path, given: LoadedModel, tokenizer: Tokenizer, asked: HarnessModel
) -> dict[str, Any]:
    return {
        "model": {"path": str(path), **given.origin, "fingerprint": fingerprint(given.weights)},
        "tokenizer": {
            "name": Path(tokenizer.name).name,
            "sha256": tokenizer.sha256,
            "opening": list(tokenizer.opening),
            "empty_context": asked.prefix_token_id,
            "end_of_document": asked.eot_token_id,
        },
        "settings": {
            "tasks": settings.tasks,
            "suite": settings.suite,
            "limit": settings.limit,
            "num_fewshot": settings.num_fewshot,
            "max_length": asked.max_length,
            "max_new_tokens": settings.max_new_tokens,
            "dtype": settings.dtype or DEFAULT_DTYPE,
            "seed": settings.seed,
        },
    }


def suite_scores(name: str, suite: Suite, results: Mapping[str, Any]) -> dict[str, Any]:
    """Return the suite's scores, their averages by category, and the reasons for omitted tasks."""
    scores = suite.scores(results)
    rows = [
        {"task": one.name, "category": one.category, "score": scores[one.name], "of": one.task}
        for one in suite.run_here
    ]
    averages = [
        {"category": category, "score": None if mean != mean else mean, "tasks": measured, "of_tasks": every}
        for category, (mean, measured, every) in suite.averages(scores).items()
    ]
    left_out = {one.name: one.left_out for one in suite.tasks if one.left_out}
    said = {"source": suite.source, "remark": suite.remark}
    return {"name": name, **said, "scores": rows, "averages": averages, "left_out": left_out}


def _plain(results: dict[str, Any]) -> dict[str, Any]:
    """Convert results to JSON-compatible data. Functions and other objects in a task's configuration become names."""
    renamed = {"versions": "task_versions", "n-shot": "num_fewshot", "n-samples": "documents"}
    named = {renamed.get(name, name): value for name, value in results.items()}
    return as_read(named, default=lambda value: getattr(value, "__name__", None) or str(value))


def summary(results: dict[str, Any], path: Path) -> Result:
    """Return tables of every metric of every task, of generated answers, and of a suite's averages."""
    rows = []
    for task, values in results["results"].items():
        documents = results["documents"].get(task, {}).get("effective")
        for name, value in values.items():
            metric, comma, filtered = name.partition(",")
            if not comma or metric.endswith("_stderr") or not isinstance(value, int | float):
                continue
            error = values.get(f"{metric}_stderr,{filtered}")
            written = f"{value:.4f}" + (f" ± {error:.4f}" if isinstance(error, float) else "")
            shown = metric if filtered == "none" else f"{metric} ({filtered})"
            rows.append([task, shown, written, "" if documents is None else documents])
    columns = (Column("task"), Column("metric", words=True), Column("value"), Column("documents", ","))
    tables = [Table(f"{path}, {results['model']['fingerprint']}", columns, rows)]
    return Result(tables=[*tables, *_answers(results), *_averages(results.get("suite"))], data=results)


def _answers(results: Mapping[str, Any]) -> list[Table]:
    rows = [[task, one["number"], one["words"], one["tokens"]] for task, one in results.get("answers", {}).items()]
    columns = (Column("task"), Column("answers", ","), Column("words, mean", ".1f"), Column("tokens, mean", ".1f"))
    return [Table("Generated answers", columns, rows)] if rows else []


def _averages(suite: Mapping[str, Any] | None) -> list[Table]:
    """Return averages by category, with the reasons for missing tasks."""
    if suite is None:
        return []
    reasons: dict[str, list[str]] = {}
    for name, reason in suite["left_out"].items():
        reasons.setdefault(reason, []).append(name)
    rows = [[one["category"], one["score"], f"{one['tasks']} of {one['of_tasks']}"] for one in suite["averages"]]
    columns = (Column("category"), Column("mean score, %", ".1f"), Column("tasks", words=True))
    notes = [*(f"left out: {', '.join(names)}. {reason}" for reason, names in reasons.items()), suite["remark"]]
    return [Table(f"Averages of {suite['name']}: {suite['source']}", columns, rows, notes)]
