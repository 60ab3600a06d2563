"""Draw Abnar et al. (2025), Figures 5 and 10: error in downstream tasks against pretraining loss, by sparsity.

The paper prints no scores. A row of the table is the score of a study's checkpoint in a task (``scores.parquet``).
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pandas as pd

from moejax.evaluation.suites import suite_of
from moejax.laws.design import Design
from moejax.laws.mixtures.sparsity import ABNAR_2025
from moejax.papers.documents import ABNAR
from moejax.report.figures.figure import Figure, FigureInputs
from moejax.report.figures.scores_vs_loss import scores_vs_loss
from moejax.report.synthetic import rng
from moejax.run_table import DataFrame

COLUMNS = ("model", "tokens", "task", "loss", "sparsity", "error")


def sparse_scores() -> pd.DataFrame:
    """Return errors in the tasks of Abnar et al., D.3, for models of four sparsities.

    The error is a sigmoid of the loss of their Eq. 6. It is the same at every sparsity except in reading comprehension,
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


@ABNAR.experiment("5", law="", columns=COLUMNS, example=sparse_scores, shows="errors by category of tasks and by loss")
def by_category(inputs: FigureInputs) -> Figure:
    """Draw Figure 5: the mean error of every category of tasks, or of all tasks if the table has no categories."""
    table = _known(inputs)
    category = table["category"].fillna("") if "category" in table else ""
    table = table.assign(task=category).replace({"task": {"": "all tasks"}})
    run = ["task", "model", "tokens", "sparsity", "loss"]
    means = [name for name in ("error", "fitted_error") if name in table]
    table = table.groupby(run, as_index=False, sort=False)[means].mean()
    said = f" Means over the tasks of a category.{inputs.whose}"
    return scores_vs_loss(table, "Errors by category of tasks", said)


@ABNAR.experiment("10", law="", columns=COLUMNS, example=sparse_scores, shows="errors in tasks by loss")
def by_task(inputs: FigureInputs) -> Figure:
    """Draw Figure 10: every task."""
    return scores_vs_loss(_known(inputs), "Errors in tasks", inputs.whose)


def _known(inputs: FigureInputs) -> DataFrame:
    return inputs.table[inputs.table["error"].notna()]
