"""Draw Abnar et al. (2025), Figures 5, 10 and 13 to 15: task scores against pretraining loss and answer length.

The paper prints no scores. In Figures 5 and 10, a table row is the score of a study's checkpoint in a task
(``scores.parquet``). In Figures 13 to 15, a row is a model's score in a task whose few-shot answers have about
``given_words`` words; ``answer_words`` is the mean length of the model's answers.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pandas as pd

from moejax.evaluation.suites import suite_of
from moejax.laws.design import Design
from moejax.laws.mixtures.sparsity import ABNAR_2025
from moejax.papers.documents import ABNAR
from moejax.report.figures.figure import Figure, FigureInputs, column
from moejax.report.figures.panels import ACTIVE, Axis, Panel, Series, figure
from moejax.report.figures.runs import scores_vs_loss
from moejax.report.figures.style import BLUE, ORANGE, colored
from moejax.report.synthetic import rng
from moejax.run_table import DataFrame

SCORES = ("model", "tokens", "task", "loss", "sparsity", "error")


def sparse_scores() -> pd.DataFrame:
    """Return synthetic errors in the tasks of Abnar et al., D.3, for models of four sparsities.

    The error is a sigmoid of the loss by their Eq. 6. It is the same at every sparsity except in reading comprehension,
    where sparser models have larger errors.
    """
    random, rows = rng(), []
    tasks = suite_of("abnar-2025").tasks
    for sparsity, flops, active in product((0.0, 0.5, 0.9, 0.95), (3e19, 1e20, 3e20, 1e21), (2e8, 4e8, 8e8)):
        total, tokens = active / (1 - sparsity), flops / (6 * active)
        design = Design(params_total=total, tokens=tokens, num_experts=1 / (1 - sparsity), top_k=1.0)
        loss = float(ABNAR_2025(design))
        run = {"model": f"S{100 * sparsity:g}-{active / 1e6:g}M", "tokens": tokens, "loss": loss, "sparsity": sparsity}
        for number, one in enumerate(tasks):
            transfer = 0.024 if one.category == "Reading Comprehension" else 0.0
            ceiling, middle = 65 + 2.5 * number, 2.2 + 0.03 * number
            fitted, moved = (
                ceiling / (1 + np.exp(-2.5 * (loss - part * np.log(1 - sparsity) - middle))) for part in (0, transfer)
            )
            error = float(moved + random.normal(0.0, 0.5))
            named = {"task": one.name, "category": one.category, "metric": one.metric}
            rows.append({**run, **named, "error": error, "fitted_error": float(fitted)})
    return pd.DataFrame(rows)


@ABNAR.experiment("5", law="", columns=SCORES, example=sparse_scores, shows="errors by category of tasks and by loss")
def by_category(inputs: FigureInputs) -> Figure:
    """Draw Figure 5: the mean error of each task category, or of all tasks if the table has no categories."""
    table = inputs.table.dropna(subset="error")
    category = table["category"].fillna("") if "category" in table else ""
    table = table.assign(task=category).replace({"task": {"": "all tasks"}})
    run = ["task", "model", "tokens", "sparsity", "loss"]
    means = [name for name in ("error", "fitted_error") if name in table]
    table = table.groupby(run, as_index=False, sort=False)[means].mean()
    said = f" Means over the tasks of a category.{inputs.whose}"
    return scores_vs_loss(table, "Errors by category of tasks", said)


@ABNAR.experiment("10", law="", columns=SCORES, example=sparse_scores, shows="errors in tasks by loss")
def by_task(inputs: FigureInputs) -> Figure:
    """Draw Figure 10: every task."""
    return scores_vs_loss(inputs.table.dropna(subset="error"), "Errors in tasks", inputs.whose)


ANSWERS = ("model", "params_active", "num_experts", "given_words", "answer_words", "score")
GIVEN = Axis("given_words", "words of few-shot answers")
ANSWERED = Axis("answer_words", "words of generated answers")
SCORE = Axis("score_percent", "score, %")
SLOPE = Axis("score_percent_per_word", "score per generated word, %")


def lengths_of_thought() -> pd.DataFrame:
    """Return synthetic accuracies in a task with few-shot answers of varied length, for five dense models and an MoE
    model."""
    random, rows = rng(), []
    sizes = {"0.5B": 0.46e9, "1.8B": 1.8e9, "2.7B of 14B": 2.7e9, "4B": 4e9, "7B": 7.7e9, "14B": 14.2e9}
    for model, active in sizes.items():
        mixture = " of " in model
        slope = 0.11 * (active / 1e9) ** 0.75 * (1.5 if mixture else 1.0)
        for words in (5, 10, 20, 30, 50, 70, 100):
            answered = 4 + 0.75 * words + random.normal(0.0, 2.0)
            score = np.clip(2.0 * (active / 1e9) ** 0.8 + slope * answered + random.normal(0.0, 0.8), 0.0, 100.0)
            one = {"task": f"answers of {words} words", "given_words": words, "answer_words": answered}
            shape = {"params_active": active, "num_experts": 60 if mixture else 0}
            rows.append({"model": model, **shape, **one, "score": float(score)})
    return pd.DataFrame(rows)


@ABNAR.experiment(
    "13", law="", columns=ANSWERS, example=lengths_of_thought, shows="lengths of given and of generated answers"
)
def lengths(inputs: FigureInputs) -> Figure:
    """Draw Figure 13b: the length of generated answers against the length of few-shot answers."""
    series = [
        Series(label=model, x=column(own, "given_words"), y=column(own, "answer_words"), mark="points", color=color)
        for model, own, color in _models(inputs)
    ]
    table = _known(inputs)
    rho = float(np.corrcoef(column(table, "given_words"), column(table, "answer_words"))[0, 1])
    panel = Panel(x=GIVEN, y=ANSWERED, series=series, corner=f"correlation {rho:.2f}")
    return figure(
        "Lengths of answers",
        "Length of a model's answers against the length of the few-shot answers, means over a task's documents. The "
        f"paper's left panel, single lengths of rewritten answers, needs its own data.{inputs.whose}",
        [panel],
        columns=1,
        height=3.2,
    )


@ABNAR.experiment("14", law="", columns=ANSWERS, example=lengths_of_thought, shows="score by length of answers")
def by_length(inputs: FigureInputs) -> Figure:
    """Draw Figure 14: the score against the length of answers, with a least-squares line per model."""
    series = []
    for model, own, color in _models(inputs):
        x, y = column(own, "answer_words"), column(own, "score")
        series.append(Series(label=model, x=x, y=y, mark="points", color=color))
        if len(own) > 1:
            ends = np.array([x.min(), x.max()])
            series.append(Series(label=f"{model}, line", x=ends, y=_line(own)(ends), color=color, in_legend=False))
    return figure(
        "Score by length of answers",
        f"Lines are least-squares fits, one per model.{inputs.whose}",
        [Panel(x=ANSWERED, y=SCORE, series=series)],
        columns=1,
        height=3.4,
    )


@ABNAR.experiment(
    "15", law="", columns=ANSWERS, example=lengths_of_thought, shows="score per word of an answer, by size"
)
def slopes(inputs: FigureInputs) -> Figure:
    """Draw Figure 15: the slopes of Figure 14's lines against active parameters, for dense and MoE models."""
    series = []
    several = [own for _, own, _ in _models(inputs) if len(own) > 1]
    for name, mixtures, mark, color in (("dense", False, "joined", BLUE), ("mixtures", True, "squares", ORANGE)):
        kind = [own for own in several if (own["num_experts"].iloc[0] > 0) == mixtures]
        if kind:
            x, y = (
                [float(own["params_active"].iloc[0]) for own in kind],
                [float(_line(own).convert().coef[-1]) for own in kind],
            )
            series.append(Series(label=name, x=x, y=y, mark=mark, color=color))
    return figure(
        "What a word of an answer is worth",
        f"Slopes of the least-squares lines of score against answer length.{inputs.whose}",
        [Panel(x=ACTIVE, y=SLOPE, series=series)],
        columns=1,
        height=3.2,
    )


def _line(own: DataFrame) -> np.polynomial.Polynomial:
    """Return the least-squares line of score against answer length."""
    return np.polynomial.Polynomial.fit(column(own, "answer_words"), column(own, "score"), 1)


def _known(inputs: FigureInputs) -> DataFrame:
    return inputs.table.dropna(subset=["answer_words", "given_words"])


def _models(inputs: FigureInputs) -> list[tuple[str, DataFrame, str]]:
    """Return name, rows and color of every model, in order of size."""
    table = _known(inputs).sort_values("params_active", kind="stable")
    names = list(dict.fromkeys(table["model"]))
    return [(str(name), table[table["model"] == name], color) for name, color in colored(names)]
