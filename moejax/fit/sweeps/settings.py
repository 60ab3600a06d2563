"""Find sweeps over training settings in a table, and reduce each to its best run or to its optimum.

The best run of a sweep (``best_by``) is on the sweep's grid. Its loss is biased low, because it is the minimum of
several noisy losses. Near the optimum the loss is a quadratic in the logarithms of the settings; the quadratic's
minimum (``smooth_best_by``) uses all runs near the best run.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float

from moejax import run_table
from moejax.errors import UserError
from moejax.fit.tables.column_names import our_name
from moejax.run_table import COLUMNS, DataFrame, Series
from moejax.wording import argument, listed, some

SETTINGS = (
    *("learning_rate", "batch_tokens", "weight_decay", "schedule", "warmup_tokens", "decay_tokens"),
    "sequence_length",
)
"""Settings that are tuned for a model and its tokens, under moejax's names (``our_name``)."""
MEASURED = tuple(COLUMNS)[list(COLUMNS).index("loss") :]
"""Columns of a run table that are measured in training, and therefore differ between any two runs."""
NO_SIZES = (*SETTINGS, *MEASURED, "seed")
"""Columns that do not identify a run's model."""
TUNED_SHARE = 0.5
"""Share of groups with equal inputs in which a setting must vary to count as swept."""


def swept(frame: DataFrame, inputs: Sequence[str]) -> list[str]:
    """Return the names of the settings columns that vary among rows with equal inputs."""
    columns = [str(c) for c in frame.columns if our_name(str(c)) in SETTINGS and str(c) not in inputs]
    repeated = frame[frame.duplicated(list(inputs), keep=False)] if inputs else frame[:0]
    if not columns or not len(repeated):
        return []
    levels = repeated.groupby(list(inputs), sort=False)[columns].nunique(dropna=False)
    varying = [name for name in columns if (levels[name] > 1).mean() >= TUNED_SHARE]
    # A setting under two names (the file's and moejax's) is listed once, under the file's name.
    theirs = {our_name(name): name for name in reversed(varying) if name not in SETTINGS}
    return [name for name in varying if name not in theirs]


def sweep_note(frame: DataFrame, inputs: Sequence[str], settings: Sequence[str], option: str = "") -> str:
    """Return a note that rows are sweeps over settings, with the argument that keeps each sweep's best run.

    Args:
      option: option to suggest instead of ``--best-by``, such as ``--config.analysis.best_by=``.
    """
    names = ",".join(settings)
    groups = frame.groupby(list(inputs), sort=False).ngroups
    extra = int(frame.duplicated(list(inputs)).sum())
    return (
        f"{extra} of {len(frame)} rows have the sizes of an earlier row but a different {listed(settings, 'or')}. They "
        f"look like a sweep, and each counts as a run. To keep only the best run of each of the {groups} groups, pass "
        f"{option + names if option else argument('best_by', names)}."
    )


def check_settings(frame: DataFrame, inputs: Sequence[str], loss: str, settings: Sequence[str], named: str) -> None:
    """Check that a table can have sweeps over settings.

    Raises:
      UserError: a setting is not a column of the table, is an input of the law, or is the fitted column.
    """
    columns = [str(column) for column in frame.columns]
    for name in settings:
        if name not in columns:
            raise UserError(
                f"{named} has no column {name} for {argument('best_by')}; the columns are {', '.join(columns)}."
            )
        if name in inputs or name == loss:
            raise UserError(
                f"{argument('best_by')} names {name}, which {'is fitted' if name == loss else 'the law reads'}. Give a "
                f"setting that was tuned at equal {', '.join(inputs) or 'sizes'}, such as learning_rate."
            )


def best_by(
    frame: DataFrame, inputs: Sequence[str], loss: str, settings: Sequence[str], named: str
) -> tuple[DataFrame, tuple[str, ...]]:
    """Return the lowest-loss row of each set of rows that differ only in settings, and notes on the dropped rows.

    Seeds (column ``seed``) are replicates, each with its own best row, unless ``seed`` is in ``settings``.

    Raises:
      UserError: no column distinguishes models, or no row has a loss.
    """
    alike = _alike(frame, inputs, settings)
    if not alike:
        raise UserError(
            f"{named} has no column that distinguishes models, but {argument('best_by')} keeps the best run of each "
            f"model; add a column, such as params_active."
        )
    losses = run_table.numbers(frame[loss], where=named)
    ranked = frame.assign(**{loss: losses})[np.isfinite(losses)]
    if not len(ranked):
        raise UserError(
            f"{named} has no {loss} in any row, so {argument('best_by')} cannot choose the best; fill the column."
        )
    kept = np.sort(ranked.groupby(alike, sort=False, dropna=False)[loss].idxmin().to_numpy())
    best = frame.loc[kept]
    note = (
        f"Dropped: {len(frame) - len(best)} of {len(frame)} rows, which are not the best over {listed(settings)} at "
        f"equal {', '.join(alike)}; {len(best)} are kept."
    )
    if "seed" in settings:
        note += f" The best of several seeds is biased low: leave seed out of {argument('best_by')}."
    return best, (note, *_ends_notes(best_settings(frame, best, inputs, settings)))


def _alike(frame: DataFrame, inputs: Sequence[str], settings: Sequence[str]) -> list[str]:
    """Return the columns whose values are equal within a sweep."""
    return [*inputs, *(["seed"] if "seed" in frame.columns and "seed" not in settings else [])]


def tried_settings(frame: DataFrame, best: DataFrame, inputs: Sequence[str], settings: Sequence[str]) -> Series:
    """Return the number of different settings that were tried in the sweep of each best row; 1 if it has no sweep.

    Args:
      best: rows of ``frame`` kept by ``best_by`` or ``smooth_best_by``.
    """
    alike = _alike(frame, inputs, settings)
    different = frame.groupby([*alike, *settings], sort=False, dropna=False).ngroup()
    return different.groupby([frame[name] for name in alike], sort=False, dropna=False).transform("nunique")[best.index]


def resolution(frame: DataFrame, best: DataFrame, inputs: Sequence[str], settings: Sequence[str], target: str) -> Any:
    """Return the standard deviation of a setting's logarithm due to the grid, for each best row.

    The true optimum is assumed to be uniform within one grid step around the best tried value. The result is therefore
    the step's width divided by √12. It is 0 if only one value was tried.

    Args:
      best: rows of ``frame`` kept by ``best_by``.
      target: column of a setting, possibly in another unit.
    """
    values = run_table.numbers(frame[target]).to_numpy(np.float64)
    logs = np.log(np.where(values > 0, values, np.nan))
    kept, widths = frame.index.isin(best.index), np.zeros(len(frame))
    for rows in frame.groupby(_alike(frame, inputs, settings), sort=False, dropna=False).indices.values():
        tried = np.unique(logs[rows][np.isfinite(logs[rows])])
        for row in rows[kept[rows] & np.isfinite(logs[rows])] if len(tried) > 1 else ():
            at = int(np.searchsorted(tried, logs[row]))
            widths[row] = np.diff(tried)[max(at - 1, 0) : at + 1].mean()
    return pd.Series(widths / np.sqrt(12), index=frame.index)[kept]


@dataclass(frozen=True, kw_only=True)
class BestSetting:
    """The best tried value of one setting in one sweep."""

    row: Any
    """Index label of the sweep's best run."""
    setting: str
    best: Any
    tried: int
    """Number of different values in the sweep."""
    low: float | None
    """Smallest tried value; None if values have no order, as for names and seeds."""
    high: float | None

    @property
    def end(self) -> str:
        """``smallest`` or ``largest`` if the best value is at that end of several tried values; else empty."""
        if self.tried < 2 or self.best not in (self.low, self.high):
            return ""
        return "smallest" if self.best == self.low else "largest"


def best_settings(
    frame: DataFrame, best: DataFrame, inputs: Sequence[str], settings: Sequence[str]
) -> list[BestSetting]:
    """Return the best value of every setting in every sweep, in the order of the settings and of the rows of ``best``.

    Args:
      best: rows of ``frame`` kept by ``best_by``.
    """
    alike = [frame[name] for name in _alike(frame, inputs, settings)]
    found = []
    for name in settings:
        numbers: Series = pd.to_numeric(frame[name], errors="coerce")
        # Seeds have no order.
        ordered = our_name(name) != "seed" and not numbers.isna().any()
        values = numbers if ordered else frame[name]
        groups = values.groupby(alike, sort=False, dropna=False)
        tried = groups.transform("nunique")
        low, high = (groups.transform("min"), groups.transform("max")) if ordered else (None, None)
        found += [
            BestSetting(
                row=row,
                setting=name,
                best=float(values[row]) if ordered else values[row],
                tried=int(tried[row]),
                low=None if low is None else float(low[row]),
                high=None if high is None else float(high[row]),
            )
            for row in best.index
        ]
    return found


def _ends_notes(sweeps: Sequence[BestSetting]) -> tuple[str, ...]:
    """Return notes on sweeps whose best value is their smallest or largest. Of two values, one always is."""
    notes = []
    for name in dict.fromkeys(one.setting for one in sweeps):
        wide = [one for one in sweeps if one.setting == name and one.tried > 2]
        for end, beyond in (("smallest", "smaller"), ("largest", "larger")):
            if at := [one for one in wide if one.end == end]:
                values = some([f"{value:.4g}" for value in sorted({one.best for one in at})])
                where = "" if len(wide) == 1 else f" in {len(at)} of {len(wide)} sweeps"
                notes.append(f"The best {name}, {values}, is the {end} tried{where}; try {beyond} values.")
    two = [
        TwoValues(setting=one.setting, better=one.best, other=one.low + one.high - one.best)
        for one in sweeps
        if one.tried == 2 and one.low is not None and one.high is not None
    ]
    return (*notes, *([two_values_note(two)] if two else []))


@dataclass(frozen=True, kw_only=True)
class TwoValues:
    """A sweep of two values, which cannot bracket an optimum."""

    setting: str
    better: float
    other: float

    @property
    def third(self) -> float:
        """Value beyond the better one, as far from it as the other one; in logarithms if both are positive."""
        if min(self.better, self.other) > 0:
            return self.better * (self.better / self.other)
        return 2 * self.better - self.other


def two_values_note(sweeps: Sequence[TwoValues]) -> str:
    """Return a note with the third values that would bracket the optima of sweeps of two values."""
    counts = [f"{name} in {count}" for name, count in Counter(one.setting for one in sweeps).items()]
    thirds = [f"{name} = {third:.3g}" for name, third in sorted({(one.setting, one.third) for one in sweeps})]
    return (
        f"Sweeps of only two values cannot bracket an optimum: {some(counts)} groups. Train a third value beyond the "
        f"better one: {some(list(dict.fromkeys(thirds)))}."
    )


NEAREST_VALUES = 3
"""Number of grid values on each side of the best run whose runs enter the quadratic."""
NEAR_LOSS = (0.01, 0.02, 0.04, 0.08)
"""Relative excess over the lowest loss up to which settings are near the optimum.

A quadratic does not describe settings farther away or diverged runs. The next larger value is used if the settings that
remain do not outnumber the coefficients of the quadratic, because the grid is coarse or noise exceeds the effect of a
grid step.
"""
FLATTEST = 1e-12
"""Rise over the tried settings, as a share of the loss, below which a quadratic counts as flat."""


def _monomials(x: Float[np.ndarray, "runs settings"]) -> Float[np.ndarray, "runs terms"]:
    """Return the columns 1, every setting, and every product of two settings."""
    pairs = zip(*np.triu_indices(x.shape[1]), strict=True)
    return np.column_stack([np.ones(len(x)), x, *(x[:, i] * x[:, j] for i, j in pairs)])


@dataclass(frozen=True, kw_only=True)
class _Quadratic:
    """A least-squares quadratic of the loss in the settings' logarithms, centered at the best settings."""

    coefficients: np.ndarray
    inverse: np.ndarray
    """Inverse of the normal matrix."""
    residual: float
    """Residual sum of squares."""
    degrees_of_freedom: int
    middle: np.ndarray
    low: np.ndarray
    high: np.ndarray
    """Lowest and highest tried settings, relative to ``middle``."""


def _near(x: np.ndarray, losses: np.ndarray) -> tuple[Bool[np.ndarray, " runs"], np.ndarray]:
    """Return a mask of the runs near the best settings, both in grid values and in loss, and return the best settings.

    Runs that differ only in the seed are kept or dropped together by their mean loss, so that no seed is near by
    chance.
    """
    tried, number = np.unique(x, axis=0, return_inverse=True)
    number = number.ravel()
    means = np.bincount(number, losses) / np.bincount(number)
    best, least = int(np.argmin(means)), _monomials(x[:1]).shape[1]
    around = np.ones(len(tried), bool)
    for values in tried.T:
        ordered = np.unique(values)
        around &= np.abs(np.searchsorted(ordered, values) - np.searchsorted(ordered, values[best])) <= NEAREST_VALUES
    near = around
    for share in NEAR_LOSS:
        near = around & (means <= means[best] * (1 + share))
        if near.sum() > least:
            break
    return near[number], tried[best]


def _quadratic(x: np.ndarray, losses: np.ndarray) -> _Quadratic | str:
    """Return the quadratic through the runs near a group's best settings, or the reason why there is none."""
    near, middle = _near(x, losses)
    around, own = x[near] - middle, losses[near]
    terms = _monomials(around)
    if len(own) < terms.shape[1] or np.linalg.matrix_rank(terms) < terms.shape[1]:
        return "too few runs near the best"
    # Columns are scaled to equal size, so that the rank and the inverse do not depend on a setting's range.
    size = np.linalg.norm(terms, axis=0)
    coefficients, *_ = np.linalg.lstsq(terms / size, own, rcond=None)
    coefficients = coefficients / size
    inverse = np.linalg.inv((terms / size).T @ (terms / size)) / np.outer(size, size)
    return _Quadratic(
        coefficients=coefficients,
        inverse=inverse,
        residual=float(np.sum((own - terms @ coefficients) ** 2)),
        degrees_of_freedom=len(own) - terms.shape[1],
        middle=middle,
        low=around.min(axis=0),
        high=around.max(axis=0),
    )


def _optimum(quadratic: _Quadratic, noise: float, names: Sequence[str]) -> tuple[np.ndarray, np.ndarray] | str:
    """Return a quadratic's minimum and its standard errors, or the reason why it has no minimum.

    The minimum is an array of the settings' logarithms and the loss. ``noise`` is the variance of one run's loss.
    """
    coefficients, count = quadratic.coefficients, len(quadratic.middle)
    pairs = np.triu_indices(count)
    hessian = np.zeros((count, count))
    hessian[pairs] = coefficients[1 + count :]
    hessian += hessian.T
    width = quadratic.high - quadratic.low
    if np.linalg.eigvalsh(hessian * np.outer(width, width)).min() <= FLATTEST * abs(coefficients[0]):
        return "no minimum"
    at = -np.linalg.solve(hessian, coefficients[1 : 1 + count])
    for name, here, low, high in zip(names, at, quadratic.low, quadratic.high, strict=True):
        if not low <= here <= high:
            return f"{name} {'below' if here < low else 'above'} the tried values"
    # Derivatives with respect to the coefficients. Those of the settings follow from the implicit function theorem.
    monomials, unit = _monomials(at[None])[0], np.eye(count)
    slopes = np.column_stack(
        [np.zeros(count), unit, *(unit[i] * at[j] + unit[j] * at[i] for i, j in zip(*pairs, strict=True))]
    )
    jacobian = np.vstack([-np.linalg.solve(hessian, slopes), monomials])
    errors = np.sqrt(np.clip(np.diag(jacobian @ (noise * quadratic.inverse) @ jacobian.T), 0, None))
    return np.append(quadratic.middle + at, monomials @ coefficients), errors


def standard_error_column(name: str) -> str:
    """Return the name of the column with the standard error of a loss or of a setting's logarithm."""
    return f"{name}_standard_error"


def smooth_best_by(
    frame: DataFrame, inputs: Sequence[str], loss: str, settings: Sequence[str], named: str
) -> tuple[Any, tuple[str, ...]]:
    """Return one row per model, at the minimum of a quadratic through the runs near the model's best run, and notes.

    The row is the best run's row, with the loss and settings of the minimum and columns for their standard errors
    (``standard_error_column``; in logarithms for settings). The noise is pooled over the residuals of all quadratics.
    Seeds belong to one sweep. Models whose quadratic has no minimum within the tried values are left out, with a note.

    Args:
      inputs: columns that distinguish models.
      settings: swept columns, all positive.

    Raises:
      UserError: a setting has values without a logarithm, no model remains, or no group has enough runs for the noise.
    """
    x = {name: _above_0(frame, name, named) for name in settings}
    fitted = _quadratics(frame, inputs, loss, x, named)
    refused = Counter(quadratic for _, quadratic in fitted if isinstance(quadratic, str))
    noise = _noise([quadratic for _, quadratic in fitted])
    if math.isnan(noise):
        terms = _monomials(np.zeros((1, len(settings)))).shape[1]
        raise UserError(
            f"{named}: {argument('smooth')} fits {terms} coefficients to the runs near each sweep's best run, but no "
            f"sweep over {listed(settings)} at equal {', '.join(inputs)} has more than {terms} such runs "
            f"({_reasons(refused)}); leave {argument('smooth')} out to keep the best run of each sweep."
        )
    minima: list[tuple[int, np.ndarray, np.ndarray]] = []
    for rows, quadratic in fitted:
        if isinstance(quadratic, str):
            continue
        optimum = _optimum(quadratic, noise, settings)
        if isinstance(optimum, str):
            refused[optimum] += 1
        else:
            minima.append((rows[0], *optimum))
    if not minima:
        raise UserError(
            f"{named}: no sweep over {listed(settings)} has a minimum within the tried values ({_reasons(refused)}); "
            f"leave {argument('smooth')} out to keep the best run of each sweep."
        )
    minima.sort(key=lambda one: one[0])
    rows, values, errors = (np.array(part) for part in zip(*minima, strict=True))
    table = frame.iloc[rows].copy()
    table[loss], table[standard_error_column(loss)] = values[:, -1], errors[:, -1]
    for index, name in enumerate(settings):
        for column, factor in _proportional(frame, x[name], {*inputs, loss}).items():
            table[column] = np.exp(values[:, index]) * factor
            table[standard_error_column(column)] = errors[:, index]
    return table, _notes(table, len(frame), loss, settings, inputs, math.sqrt(noise), refused)


def _quadratics(
    frame: DataFrame, inputs: Sequence[str], loss: str, settings: Mapping[str, np.ndarray], named: str
) -> list[tuple[np.ndarray, _Quadratic | str]]:
    """Return the rows of every sweep with a loss, the best first, and the quadratic or the reason why there is none."""
    logs = np.log(np.column_stack(list(settings.values())))
    losses = run_table.numbers(frame[loss], where=named).to_numpy(np.float64)
    groups = frame.groupby(list(inputs), sort=False, dropna=False).indices.values()
    sweeps = [rows[np.isfinite(losses[rows])] for rows in groups]
    return [
        (rows[np.argsort(losses[rows], kind="stable")], _quadratic(logs[rows], losses[rows]))
        for rows in sweeps
        if len(rows)
    ]


def _noise(quadratics: Sequence[_Quadratic | str]) -> float:
    """Return the variance of a run's loss, pooled over the residuals; NaN without residual degrees of freedom."""
    known = [quadratic for quadratic in quadratics if not isinstance(quadratic, str)]
    spare = sum(quadratic.degrees_of_freedom for quadratic in known)
    return sum(quadratic.residual for quadratic in known) / spare if spare else math.nan


def minima(
    frame: DataFrame, inputs: Sequence[str], loss: str, settings: Sequence[str], named: str
) -> dict[Any, dict[str, float] | str]:
    """Return the settings and the loss at the minimum of each sweep's quadratic (``smooth_best_by``), or the reason why
    there is none, keyed by the index labels of all runs of the sweep.

    Raises:
      UserError: a setting has values without a logarithm.
    """
    found: dict[Any, dict[str, float] | str] = {}
    for rows, quadratic in _quadratics(frame, inputs, loss, {n: _above_0(frame, n, named) for n in settings}, named):
        optimum = quadratic if isinstance(quadratic, str) else _optimum(quadratic, math.nan, settings)
        if not isinstance(optimum, str):
            *at, lowest = map(float, optimum[0])
            optimum = {**{name: math.exp(log) for name, log in zip(settings, at, strict=True)}, loss: lowest}
        found |= dict.fromkeys(frame.index[rows], optimum)
    return found


def _above_0(frame: DataFrame, name: str, named: str) -> np.ndarray:
    values = run_table.numbers(frame[name], where=named).to_numpy(np.float64)
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise UserError(
            f"{named}: {argument('smooth')} takes logarithms of {name}, but some values are not numbers above 0; leave "
            f"those rows out with {argument('where')}, or leave {name} out of {argument('best_by')}."
        )
    return values


def is_setting(frame: DataFrame, target: str, settings: Sequence[str], named: str) -> bool:
    """Return whether a column is one of the settings, in any unit."""
    if target in settings:
        return True
    numeric = [name for name in settings if frame[name].dtype.kind in "iuf" and (frame[name] > 0).all()]
    return any(target in _proportional(frame, _above_0(frame, name, named), set()) for name in numeric)


def _proportional(frame: DataFrame, values: np.ndarray, but: set[str]) -> dict[str, float]:
    """Return the factors of columns that are proportional to a setting, keyed by column, such as a batch size in
    sequences and in tokens."""
    factors = {}
    for column in map(str, frame.columns):
        if column in but or frame[column].dtype.kind not in "iuf":
            continue
        ratio = frame[column].to_numpy(np.float64) / values
        if ratio[0] != 0 and np.allclose(ratio, ratio[0], rtol=1e-9, atol=0):
            factors[column] = float(ratio[0])
    return factors


def _reasons(refused: Counter[str]) -> str:
    return some([f"{why}: {count}" for why, count in refused.most_common()])


def _notes(
    table: DataFrame,
    runs: int,
    loss: str,
    settings: Sequence[str],
    inputs: Sequence[str],
    noise: float,
    refused: Counter[str],
) -> tuple[str, ...]:
    def middle(name: str) -> str:
        return f"{float(table[standard_error_column(name)].median()):.2g}"

    said = [
        f"{runs} rows are {len(table)} sweeps over {listed(settings)} at equal {', '.join(inputs)}. Each sweep is "
        "replaced by the minimum of a quadratic in the settings' logarithms through the runs near its best run. "
        f"The {loss} of these runs scatters by {noise:.2g} around the quadratic. "
        f"Median standard error of {loss}: {middle(loss)}; of the logarithm of "
        f"{', of '.join(f'{name}: {middle(name)}' for name in settings)}. Standard errors are in columns such as "
        f"{standard_error_column(settings[0])}."
    ]
    if refused:
        said.append(
            f"Dropped: {sum(refused.values())} of {len(table) + sum(refused.values())} sweeps, which have no minimum "
            f"within the tried values ({_reasons(refused)})."
        )
    return tuple(said)


def precision(standard_errors: Float[np.ndarray, " runs"]) -> Float[np.ndarray, " runs"]:
    """Return weights with mean 1 for losses with unequal standard errors; a measured loss has a standard error of 0.

    A law has an error at every model that more runs do not reduce. The variance of this error is estimated as the
    median of the positive variances and added to each variance (a random effect, as in DerSimonian and Laird 1986).
    """
    variances = np.square(standard_errors)
    unsure = variances > 0
    weights = 1 / (variances + np.median(variances[unsure])) if unsure.any() else np.ones(len(variances))
    return weights / weights.mean()
