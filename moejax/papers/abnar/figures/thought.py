"""Draw Abnar et al. (2025), Figures 13 to 15: scores by the length of answers, which few-shot examples control.

The paper prints no scores. A row of the table is the score of a model in a task whose examples have answers of about
``given_words`` words; ``answer_words`` is the mean length of its answers.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from moejax.papers.documents import ABNAR
from moejax.report.figures.figure import Figure, FigureInputs, column
from moejax.report.figures.panels import ACTIVE, Axis, Panel, Series, figure
from moejax.report.figures.style import BLUE, ORANGE, coloured
from moejax.report.synthetic import rng
from moejax.run_table import DataFrame

COLUMNS = ("model", "params_active", "num_experts", "given_words", "answer_words", "score")
GIVEN = Axis("given_words", "words of answers in front")
ANSWERED = Axis("answer_words", "words of generated answers")
SCORE = Axis("score_percent", "score, %")
SLOPE = Axis("score_percent_per_word", "score per generated word, %")


def lengths_of_thought() -> pd.DataFrame:
    """Return accuracies in a task with few-shot answers of varied length, for five dense models and a mixture."""
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
    "13", law="", columns=COLUMNS, example=lengths_of_thought, shows="lengths of given and of generated answers"
)
def lengths(inputs: FigureInputs) -> Figure:
    """Draw Figure 13b: the length of generated answers against that of the example answers."""
    series = [
        Series(label=model, x=column(own, "given_words"), y=column(own, "answer_words"), mark="points", colour=colour)
        for model, own, colour in _models(inputs)
    ]
    table = _known(inputs)
    rho = float(np.corrcoef(column(table, "given_words"), column(table, "answer_words"))[0, 1])
    panel = Panel(x=GIVEN, y=ANSWERED, series=series, corner=f"correlation {rho:.2f}")
    return figure(
        "Lengths of answers",
        "Answers of a model against those in front, means over a task's documents. The paper's left panel, lengths "
        f"of rewritten answers one by one, is of its own data.{inputs.whose}",
        [panel],
        columns=1,
        height=3.2,
    )


@ABNAR.experiment("14", law="", columns=COLUMNS, example=lengths_of_thought, shows="score by length of answers")
def by_length(inputs: FigureInputs) -> Figure:
    """Draw Figure 14: the score against the length of answers, with a least-squares line per model."""
    series = []
    for model, own, colour in _models(inputs):
        x, y = column(own, "answer_words"), column(own, "score")
        series.append(Series(label=model, x=x, y=y, mark="points", colour=colour))
        if len(own) > 1:
            ends = np.array([x.min(), x.max()])
            line = np.polynomial.Polynomial.fit(x, y, 1)(ends)
            series.append(Series(label=f"{model}, line", x=ends, y=line, colour=colour, in_legend=False))
    return figure(
        "Score by length of answers",
        f"Lines are least squares, one a model.{inputs.whose}",
        [Panel(x=ANSWERED, y=SCORE, series=series)],
        columns=1,
        height=3.4,
    )


@ABNAR.experiment(
    "15", law="", columns=COLUMNS, example=lengths_of_thought, shows="what a word of an answer is worth, by size"
)
def slopes(inputs: FigureInputs) -> Figure:
    """Draw Figure 15: the slopes of these lines against active parameters, for dense models and mixtures."""
    fitted = [
        (float(own["params_active"].iloc[0]), _slope(own), bool(own["num_experts"].iloc[0] > 0))
        for _, own, _ in _models(inputs)
        if len(own) > 1
    ]
    series = [
        Series(
            label=name,
            x=[size for size, _, mixture in fitted if mixture == which],
            y=[slope for _, slope, mixture in fitted if mixture == which],
            mark=mark,
            colour=colour,
        )
        for name, which, mark, colour in (("dense", False, "joined", BLUE), ("mixtures", True, "squares", ORANGE))
        if any(mixture == which for *_, mixture in fitted)
    ]
    return figure(
        "What a word of an answer is worth",
        f"Slopes of the least-squares lines of the score over the length of answers.{inputs.whose}",
        [Panel(x=ACTIVE, y=SLOPE, series=series)],
        columns=1,
        height=3.2,
    )


def _slope(own: DataFrame) -> float:
    x, y = column(own, "answer_words"), column(own, "score")
    return float(np.polynomial.Polynomial.fit(x, y, 1).convert().coef[-1])


def _known(inputs: FigureInputs) -> DataFrame:
    return inputs.table[inputs.table["answer_words"].notna() & inputs.table["given_words"].notna()]


def _models(inputs: FigureInputs) -> list[tuple[str, DataFrame, str]]:
    """Return rows and colour of every model, the smallest first."""
    table = _known(inputs).sort_values("params_active", kind="stable")
    names = list(dict.fromkeys(table["model"]))
    return [(str(name), table[table["model"] == name], colour) for name, colour in coloured(names)]
