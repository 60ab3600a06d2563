"""List the downstream tasks that papers evaluate, and extract one score from the results of a task.

Tasks, shots and categories are plain data. This module does not import the harness.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from moejax.config import unknown
from moejax.errors import UserError


@dataclass(frozen=True, kw_only=True)
class EvaluationTask:
    """A downstream task, which may belong to a paper's suite."""

    name: str
    """Name of the task in tables, as printed in the paper."""
    category: str = ""
    task: str = ""
    """Name in lm-evaluation-harness, or ``validation_choices``; empty if the task is not run."""
    metric: str = ""
    """Name of the metric in the harness, with its filter. If empty, ``score_of`` chooses a metric."""
    num_fewshot: int | None = None
    """Number of few-shot examples; None for the task's default."""
    left_out: str = ""
    """Reason why the task is not run, as a sentence."""


@dataclass(frozen=True, kw_only=True)
class Suite:
    """All tasks of a paper."""

    tasks: tuple[EvaluationTask, ...]
    source: str
    remark: str

    @property
    def run_here(self) -> tuple[EvaluationTask, ...]:
        """Return the tasks that moejax can run."""
        return tuple(one for one in self.tasks if one.task)

    def shots(self) -> dict[int | None, list[str]]:
        """Return the names of the harness tasks, keyed by number of shots."""
        by_shots: dict[int | None, list[str]] = {}
        for one in self.run_here:
            by_shots.setdefault(one.num_fewshot, []).append(one.task)
        return by_shots

    def scores(self, results: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
        """Convert the harness's results to scores in percent, keyed by the paper's task names.

        Raises:
          UserError: a task's score is not among the results.
        """
        scores = {}
        for one in self.run_here:
            own = results.get(one.task, {})
            if not isinstance(own.get(one.metric), int | float):
                known = ", ".join(name for name in own if "," in name and "stderr" not in name) or "none"
                raise UserError(
                    f"Task {one.task} has no score {one.metric}, which the suite uses for {one.name}; its scores "
                    f"are {known}. Install a release of lm-evaluation-harness that has this score, such as 0.4.13."
                )
            scores[one.name] = 100 * float(own[one.metric])
        return scores

    def averages(self, scores: Mapping[str, float]) -> dict[str, tuple[float, int, int]]:
        """Return, for each category and for ``overall``, the mean score, the number of scored tasks, and the number of
        tasks.
        """
        names: dict[str, list[str]] = {}
        for one in self.tasks:
            names.setdefault(one.category, []).append(one.name)
        names["overall"] = [one.name for one in self.tasks]
        known = {category: [scores[name] for name in own if name in scores] for category, own in names.items()}
        return {
            category: (statistics.mean(own) if own else float("nan"), len(own), len(names[category]))
            for category, own in known.items()
        }


def suite_of(name: str) -> Suite:
    """Return a suite by its name.

    Raises:
      UserError: there is no suite with this name.
    """
    if name not in SUITES:
        raise UserError(unknown(f"Suite {name!r}", name, list(SUITES)))
    return SUITES[name]


_ABSENT = "lm-evaluation-harness 0.4.13 does not contain this task; you can add a task file."
_SANDBOX = "This task runs code that the model writes, but moejax eval has no sandbox."


def _tasks(category: str, *rows: tuple[Any, ...]) -> tuple[EvaluationTask, ...]:
    """Build tasks from rows with name, task, metric and shots, or with name and the reason for omitting the task."""
    return tuple(
        EvaluationTask(name=row[0], category=category, left_out=row[1])
        if len(row) == 2
        else EvaluationTask(name=row[0], category=category, task=row[1], metric=row[2], num_fewshot=row[3])
        for row in rows
    )


SUITES: dict[str, Suite] = {
    "tian-2025": Suite(
        tasks=(
            *_tasks(
                "General/Reasoning",
                ("ARC-challenge", "arc_challenge", "acc_norm,none", 25),
                ("ARC-easy", "arc_easy", "acc_norm,none", 25),
                ("AGIEval", "agieval", "acc,none", 0),
                ("OpenBookQA", "openbookqa", "acc_norm,none", 0),
                ("BBH", "bbh", "exact_match,get-answer", 3),
                ("ProntoQA", _ABSENT),
                ("Multi-LogiEval", _ABSENT),
                ("HellaSwag", "hellaswag", "acc_norm,none", 10),
                ("PIQA", "piqa", "acc_norm,none", 0),
            ),
            *_tasks(
                "Professional",
                ("MMLU", "mmlu", "acc,none", 5),
                ("MMLU-Pro", "mmlu_pro", "exact_match,custom-extract", 5),
                ("CMMLU", "cmmlu", "acc,none", 5),
                ("C-Eval", "ceval-valid", "acc,none", 5),
                ("CommonsenseQA", "commonsense_qa", "acc,none", 7),
                ("GPQA", "gpqa_main_n_shot", "acc,none", 5),
            ),
            *_tasks(
                "Language",
                (
                    "RACE-middle",
                    "The harness has only the high-school part of RACE; a task file can add the other part.",
                ),
                ("RACE-high", "race", "acc,none", 0),
            ),
            *_tasks(
                "Code",
                *((name, _SANDBOX) for name in ("HumanEval", "HumanEval-cn", "HumanEval-Plus", "HumanEval-FIM")),
                *((name, _SANDBOX) for name in ("MBPP", "MBPP-Plus", "LiveCodeBench", "CruxEval")),
            ),
            *_tasks(
                "Math",
                ("GSM8K", "gsm8k", "exact_match,flexible-extract", 5),
                ("MATH", "hendrycks_math", "exact_match,none", 4),
                ("CMATH", _ABSENT),
                ("MGSM-zh", "mgsm_direct_zh", "exact_match,flexible-extract", 8),
                ("CN-Middle School 24", _ABSENT),
                ("Minerva-Math", "This is a prompt for MATH; the document does not state how the tasks differ."),
                ("MathBench", _ABSENT),
                ("Gaokao2023-Math-En", _ABSENT),
                ("GAOKAO-Math24", _ABSENT),
            ),
        ),
        source="Tian et al. 2025, Tables 2 and 7 and Appendix H",
        remark="Shots and metrics are inferred, because the document does not state them: they follow the Open LLM "
        "Leaderboard if it has the task, else the task's own settings or its paper. A category's average is the "
        "mean of its tasks, and the overall average is the mean of all 34 tasks, which gives the printed 44.0 and "
        "45.5.",
    ),
    "abnar-2025": Suite(
        tasks=(
            *_tasks(
                "Common Sense Reasoning",
                ("PIQA", "piqa", "acc_norm,none", 0),
                ("CommonSenseQA", "commonsense_qa", "acc,none", 0),
                ("OpenBookQA", "openbookqa", "acc_norm,none", 10),
                ("COPA", "copa", "acc,none", 0),
            ),
            *_tasks(
                "Language Understanding",
                ("LAMBADA", "lambada_openai", "acc,none", 0),
                ("HellaSwag", "hellaswag", "acc_norm,none", 10),
                ("Winograd", "wsc273", "acc,none", 0),
                ("Winogrande", "winogrande", "acc,none", 5),
            ),
            *_tasks(
                "Reading Comprehension",
                ("SQuAD", "squad_completion", "contains,none", 0),
                ("CoQA", "coqa", "em,none", 0),
                ("BoolQ", "boolq", "acc,none", 0),
            ),
            *_tasks(
                "World Knowledge",
                ("TruthfulQA", "truthfulqa_mc1", "acc,none", 0),
                ("ARC-Easy", "arc_easy", "acc_norm,none", 3),
                ("ARC-Challenge", "arc_challenge", "acc_norm,none", 3),
            ),
        ),
        source="Abnar et al. 2025, Section 4 and Appendix D.3",
        remark="Shots and metrics are inferred, because the document does not state them. Shots follow "
        "llm-foundry's gauntlet 0.3, the source of the document's tasks. HellaSwag uses the larger of the gauntlet's "
        "two numbers, and TruthfulQA uses the harness's number. Winograd and SQuAD have no shots, because the harness "
        "has no training documents for them.",
    ),
}
"""Suites by name."""


SHARES = ("acc_norm", "acc", "exact_match", "em", "contains")
"""The harness's metrics that are shares of documents, in order of preference if a task names no metric."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """A model's score in a task."""

    metric: str
    """Name of the metric in the harness, with its filter."""
    score: float
    """Score in percent if the metric is a share of documents, else the harness's value."""
    deviation: float | None
    """Standard error of the score, if known."""
    error: float | None
    """100 % minus the score if it is a share; the score itself if lower is better; else None."""


def score_of(results: Mapping[str, Any], better: Mapping[str, bool], task: str, metric: str = "") -> Score:
    """Return a task's score by ``metric``, or else by its first metric that is a share, or else by its first metric.

    Args:
      results: results of the harness for the task, ``{"acc,none": 0.3, "acc_stderr,none": 0.01}``.
      better: whether higher is better, keyed by the name of the metric without its filter.

    Raises:
      UserError: the task does not have this metric, or has no metric.
    """
    known = [name for name, value in results.items() if _is_metric(name) and _is_number(value)]
    shares = [name for share in SHARES for name in known if name.partition(",")[0] == share]
    chosen = metric if metric else next(iter([*shares, *known]), "")
    if chosen not in known:
        raise UserError(
            f"Task {task} has no score {metric or 'that is a number'}; its scores are {', '.join(known) or 'none'}. "
            "Remove the task, or name another metric in its task file."
        )
    name, _, filtered = chosen.partition(",")
    value, error = float(results[chosen]), results.get(f"{name}_stderr,{filtered}")
    scale = 100.0 if name in SHARES else 1.0
    lacks = 100.0 - 100.0 * value if name in SHARES else value if better.get(name) is False else None
    return Score(
        metric=chosen,
        score=scale * value,
        deviation=scale * float(error) if _is_number(error) else None,
        error=lacks,
    )


def _is_metric(name: str) -> bool:
    return "," in name and not name.partition(",")[0].endswith("_stderr")


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value
