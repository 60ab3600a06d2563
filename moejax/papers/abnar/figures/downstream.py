"""Draw Abnar et al. (2025), Figures 5 and 10: error in downstream tasks against pretraining loss, by sparsity.

The paper prints no scores. A row of the table is the score of a study's checkpoint in a task (``scores.parquet``).
"""

from __future__ import annotations

from moejax.report.figures.figure import Figure, FigureInputs
from moejax.report.figures.scores_vs_loss import scores_vs_loss
from moejax.run_table import DataFrame

COLUMNS = ("model", "tokens", "task", "loss", "sparsity", "error")


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


def by_task(inputs: FigureInputs) -> Figure:
    """Draw Figure 10: every task."""
    return scores_vs_loss(_known(inputs), "Errors in tasks", inputs.whose)


def _known(inputs: FigureInputs) -> DataFrame:
    return inputs.table[inputs.table["error"].notna()]
