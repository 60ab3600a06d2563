"""Weights of runs, from a column of weights or from the standard errors of predicted and smoothed losses."""

from __future__ import annotations

import numpy as np
import pandas as pd
from jaxtyping import Float

from moejax import run_table
from moejax.errors import UserError
from moejax.fit.sweeps.settings import precision, standard_error_column
from moejax.fit.tables.table import Rows, RunTable, rows_in_words
from moejax.run_table import DataFrame
from moejax.wording import argument

PREDICTED = "is_predicted"
"""Column that marks losses that were not measured."""
WIDEST = 1e6
"""Upper limit of a loss's standard error; squares of larger values might overflow."""


def weights_of(table: RunTable, *, smooth: bool) -> Float[np.ndarray, " rows"] | None:
    """Return weights from the given column, else from the precisions of predicted or smoothed losses, else None.
    Notes are added to the table.

    Raises:
      UserError: a predicted loss has no standard error, or all weights are 0.
    """
    predicted = _predicted(table.frame)
    weights = _from_column(table) if table.weight is not None else _from_errors(table, predicted, smooth)
    if predicted.any():
        by = "its standard error" if table.weight is None else f"the column {table.weight}"
        table.notes.append(
            f"{int(predicted.sum())} of {len(predicted)} losses were predicted, not measured (column {PREDICTED}). "
            f"Each is weighted by {by}. Errors on predicted losses do not test a law."
        )
    return weights


def _from_column(table: RunTable) -> Float[np.ndarray, " rows"]:
    weights = table.values(str(table.weight))
    kept = weights[weights > 0]
    if not len(kept):
        raise UserError(f"The weight {table.weight} is 0 in every row; give at least one row a weight above 0.")
    if out := len(weights) - len(kept):
        table.notes.append(f"{out} of {len(weights)} rows have a {table.weight} of 0 and are excluded.")
    if not (kept == 1).all():
        span = f"{kept.min():.4g} to {kept.max():.4g}" if np.ptp(kept) else f"{kept[0]:.4g}"
        table.notes.append(
            f"A row counts as the mean of {table.weight} runs ({span}); prediction intervals are for one run."
        )
    return weights


def _from_errors(table: RunTable, predicted: Rows, smooth: bool) -> Float[np.ndarray, " rows"] | None:
    column = standard_error_column(table.loss)
    if predicted.any():
        nothing = np.full(len(predicted), np.nan)
        errors = run_table.numbers(table.frame[column]).to_numpy(np.float64) if table.has(column) else nothing
        if not ((errors[predicted] > 0) & (errors[predicted] < WIDEST)).all():
            measured = argument("where", f"{PREDICTED} == 0")
            raise UserError(
                f"{table.named} has predicted losses (column {PREDICTED}) that need a standard error above 0 and below "
                f"{WIDEST:,.0f} in {column}. Leave these rows out ({measured}), or give weights "
                f"({argument('weight', 'COLUMN')})."
            )
        errors = np.where(predicted, errors, 0.0)
    elif smooth and table.has(column):
        errors = table.values(column)
    else:
        return None
    # Residuals of a fit are logarithmic, and the standard errors of settings already are.
    return precision(errors / table.values(table.loss) if table.output == "loss" else errors)


def _predicted(frame: DataFrame) -> Rows:
    """Return a mask of the rows with predicted losses, from a column of 0 and 1, or of false and true.

    Raises:
      UserError: a cell is empty or invalid.
    """
    nothing = np.zeros(len(frame), bool)
    if PREDICTED not in frame.columns:
        return nothing
    words = frame[PREDICTED].map(lambda flag: {"true": 1, "false": 0}.get(str(flag).strip().lower(), flag))
    flags = np.asarray(pd.to_numeric(words, errors="coerce"), np.float64)
    given = np.isfinite(flags)
    # In other tables a column of this name may hold predictions, which do not mark rows.
    if not np.isin(flags[given], (0.0, 1.0)).all():
        return nothing
    if not given.all():
        raise UserError(
            f"Column {PREDICTED} is {frame[PREDICTED].iloc[int(np.argmin(given))]!s} in "
            f"{rows_in_words(frame.index[~given])}; write 0 for a measured loss and 1 for a predicted one."
        )
    return flags == 1
