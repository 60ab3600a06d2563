"""Read loss curves from CSV, Parquet and JSON-lines files, trackers, and the ``metrics.jsonl`` of training runs.

A curve holds the measured losses of one training run and the learning rate of every update. Learning rates are logged
at some steps only and interpolated linearly. If the rate is constant before one logged step and after the next, it
jumps at the next.
"""

from __future__ import annotations

import fnmatch
import hashlib
import math
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from moejax import run_table
from moejax.errors import UserError
from moejax.fit.runs import Runs, runs_from
from moejax.fit.tables.expression import mapped, select
from moejax.laws.curves.schedule_sums import Points, sums_of_curve
from moejax.laws.design import Design
from moejax.run_sources import source as run_source
from moejax.run_sources.column_mapping import column_mapping
from moejax.run_table import DataFrame, Series
from moejax.storage import is_remote, open_storage, reaching
from moejax.wording import argument, counted, did_you_mean, listed, shown, some, told

METRICS = "metrics.jsonl"
"""Log file in the directory of a training run."""
NOT_FINITE = ("nan", "inf", "-inf")
"""Loss values in the log at steps whose update was skipped."""
TRUNK = "trunk"
NAMES = {
    "step": ("step", "steps", "iteration", "iter", "global_step", "_step", "update"),
    "tokens": ("tokens", "tokens_seen", "num_tokens"),
    "lr": ("lr", "learning_rate", "train/lr", "train/learning_rate"),
    "loss": ("loss", "train_loss", "training_loss", "train/loss"),
    "run": ("run", "name", "curve", "run_name", "model"),
}
"""Accepted names of each column in tables of curves."""
MOST_POINTS = 256
"""Maximum number of points of a curve in a fit; more points are averaged over this many blocks."""
BLOCKS = 8
"""Number of blocks of a curve that count as one draw each, since neighboring residuals are correlated."""
LARGEST_RATE = 1e6
"""Upper limit of a learning rate. Sums of powers of larger rates would overflow float64."""
LARGEST_LOSS = 1e6
"""Upper limit of a loss (or perplexity). Squares of larger losses would overflow float64."""
LONGEST = 5_000_000
"""Maximum number of updates of a curve, since a learning rate is stored for each."""
VIRTUAL_STEPS = 20_000
"""Number of equal steps of a curve whose table has tokens but no steps."""


@dataclass(frozen=True, kw_only=True)
class LossCurve:
    """The losses and the learning-rate schedule of one training run."""

    name: str
    rates: Float[np.ndarray, " updates"]
    """Learning rate of every update up to the last measured step."""
    steps: Int[np.ndarray, " points"]
    """Number of updates before each measurement, ascending."""
    loss: Float[np.ndarray, " points"]
    """Losses in nats per token."""
    tokens_per_step: float = float("nan")
    """Tokens per step; NaN if unknown."""
    is_cut: bool = False
    """True if steps are equal blocks of tokens because the tokens per step are unknown."""

    @property
    def data_hash(self) -> str:
        """Hash of the measurements and the schedule; equal for the same curve under any name."""
        content = b"".join(np.ascontiguousarray(part).tobytes() for part in (self.rates, self.steps, self.loss))
        return hashlib.sha256(content).hexdigest()[:16]

    @property
    def peak(self) -> float:
        """Highest learning rate."""
        return float(self.rates.max())

    @property
    def falls(self) -> bool:
        """True if the learning rate ever decreases."""
        return bool((np.diff(self.rates) < -1e-9 * self.peak).any())

    @property
    def warmup_steps(self) -> int:
        """Number of updates after which the learning rate first stops rising."""
        stops = np.flatnonzero(np.diff(self.rates) <= 1e-9 * self.peak)
        return int(stops[0]) + 1 if len(stops) else len(self.rates)


@dataclass(frozen=True, kw_only=True)
class Curves:
    """Curves of one model, with notes on how they were read."""

    curves: tuple[LossCurve, ...]
    notes: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the curves."""
        return tuple(curve.name for curve in self.curves)

    @property
    def falls(self) -> bool:
        """True if the learning rate falls in any curve; otherwise the effect of annealing is not determined."""
        return any(curve.falls for curve in self.curves)

    def matching(self, patterns: Sequence[str]) -> tuple[str, ...]:
        """Return the names that match one of the patterns, such as ``cosine_*``.

        Raises:
          UserError: a pattern matches no name.
        """
        matched: set[str] = set()
        for pattern in patterns:
            # A name may itself contain brackets or stars.
            names = {name for name in self.names if name == pattern or fnmatch.fnmatchcase(name, pattern)}
            if not names:
                raise UserError(f"No curve is called {pattern!r}; {did_you_mean(pattern, self.names)}")
            matched |= names
        return tuple(name for name in self.names if name in matched)

    def only(self, names: Iterable[str]) -> Curves:
        """Return the curves with these names."""
        kept = set(names)
        return replace(self, curves=tuple(curve for curve in self.curves if curve.name in kept))

    def without(self, names: Iterable[str]) -> Curves:
        """Return the curves without these names."""
        left_out = set(names)
        return self.only(name for name in self.names if name not in left_out)


def read_curves(
    sources: Any,
    *,
    mapping: Mapping[str, str] | None = None,
    loss: str | None = None,
    only: Sequence[str] = (),
    warmup: int | None = None,
    where: Sequence[str] = (),
) -> Curves:
    """Read loss curves from files, directories of training runs or of a study, or a pandas DataFrame.

    A table has columns of steps (or tokens), learning rates and losses. If a table has several runs, a column names
    the run; otherwise the file name is the run's name. In a ``metrics.jsonl`` the trunk and each branch are separate
    curves, and the schedule of a branch begins with the trunk's schedule.

    Args:
      sources: one source or several; URLs of an object store (``s3://…``, ``gs://…``) are allowed.
      mapping: maps step, tokens, lr, loss or run to a column of the table, or to arithmetic on its columns. It takes
        precedence over the mapping that is saved next to a file (``moejax.run_sources.column_mapping``).
      loss: the column of losses, such as ``validation_loss``, if it is not one of ``NAMES``; rows without a loss are
        read for their learning rate only.
      where: conditions on the columns that a row must meet, as in ``read_runs``.
      only: patterns of curve names; by default, all curves.
      warmup: number of updates in which the learning rate rose from 0, if the log does not begin at the first update.

    Raises:
      UserError: a file or column is missing, or a column has invalid numbers; the message gives the position.

    Example:
      >>> mj.read_curves("curves.csv", mapping={"lr": "learning_rate"}, warmup=2000)
    """
    mapping = dict(mapping or {}) | ({} if loss is None else {"loss": loss})
    curves: list[LossCurve] = []
    notes: list[str] = []
    for source in sources if isinstance(sources, list | tuple) else [sources]:
        for name, place, table, file in _tables(source, notes):
            frame, columns = run_table.with_flat_cells(table), column_mapping(file, mapping)
            notes += columns.notes
            chosen, said = select(mapped(frame, columns, place), where, place)
            chosen.attrs = dict(frame.attrs)
            notes += said
            if where:
                chosen = chosen.reset_index(drop=True)
            rows = _rows_of_curves(name, place, chosen, notes, sparse=loss is not None)
            curves += [_curve(one, warmup, notes) for one in rows]
    names = [curve.name for curve in curves]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UserError(
            f"Two curves are called {twice[0]!r}; give them different names, or put them in different files."
        )
    _check_lengths(curves)
    read = Curves(curves=tuple(curves), notes=tuple(dict.fromkeys(notes)))
    return read.only(read.matching(only)) if only else read


def _check_lengths(curves: Sequence[LossCurve]) -> None:
    """Raise ``UserError`` if curves have steps of different sizes, since a law sums over updates."""
    for cut in (curve for curve in curves if curve.is_cut):
        for other in curves:
            if not np.isclose(cut.tokens_per_step, other.tokens_per_step, rtol=0.01):
                raise UserError(
                    f"{cut.name} has tokens but no steps, and the steps of {other.name} may have another size. A law "
                    f"needs steps of one size. Add steps with "
                    f"{argument('mapping', {'step': 'tokens/BATCH'})} (BATCH: tokens per step)."
                )


class _Source(NamedTuple):
    name: str
    place: str
    frame: DataFrame
    file: Path | None = None


def _tables(source: Any, notes: list[str]) -> list[_Source]:
    if not isinstance(source, str | Path):
        return [_Source("", "The table", source.reset_index(drop=True))]
    source = run_source.source(str(source))
    if tracker := _tracker(source, notes):
        return [_Source(name, f"{source}, run {name}", frame) for name, frame in tracker]
    if is_remote(source):
        return _stored_tables(str(source).rstrip("/"), notes)
    path = Path(source)
    logs = sorted(path.rglob(METRICS)) if path.is_dir() else [path]
    if not logs:
        raise UserError(f"{path} contains no {METRICS}; give the folder of a run or a study, or tables of curves.")
    return [
        _Source(
            log.parent.name if log.name == METRICS else log.name.partition(".")[0],
            str(log),
            run_table.read_as_it_is(log).reset_index(drop=True),
            log,
        )
        for log in logs
    ]


def _tracker(source: str | Path, notes: list[str]) -> list[tuple[str, DataFrame]]:
    """Return the runs of a tracker's directory or database with their metrics; empty for any other source."""
    path = Path(str(source).partition("#")[0])
    if not run_source.has_prefix(source):
        if is_remote(source):
            return []
        own = path.is_dir() and next(path.rglob(METRICS), None) is not None
        if own or not path.exists() or not run_source.kind_of(source):
            return []
    runs = run_source.histories(source)
    if not runs:
        raise UserError(
            f"{source} has no run with metrics logged by step; give another source, or log metrics with a step."
        )
    notes += [f"{source}, {note}" for _, frame in runs for note in frame.attrs.get("notes", ())]
    return runs


def _stored_tables(url: str, notes: list[str]) -> list[_Source]:
    """Read tables of curves from an object store, through a temporary directory."""
    storage = open_storage(url)
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder, url.rpartition("/")[2])
        with reaching(url):
            if storage.isfile(""):
                storage.get_file("", str(here))
            else:
                here.mkdir()
                for log in (path for path in map(str, storage.find("")) if Path(path).name == METRICS):
                    (here / log).parent.mkdir(parents=True, exist_ok=True)
                    storage.get_file(log, str(here / log))
        try:
            return [_Source(one.name, one.place.replace(str(here), url), one.frame) for one in _tables(here, notes)]
        except UserError as error:
            raise UserError(told(error).replace(str(here), url)) from error


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """The rows of one curve in a table, in order."""

    name: str
    place: str
    cells: DataFrame
    """Cells in the columns of ``NAMES``, indexed by the table's rows from 0."""
    measured: Bool[np.ndarray, " rows"]
    """True for rows whose loss is a point of the curve; all rows give the schedule."""


def _rows_of_curves(name: str, place: str, frame: DataFrame, notes: list[str], *, sparse: bool) -> list[_Rows]:
    """Return the rows of each curve of a table. If ``sparse``, a row with a learning rate may have no loss."""
    # A dot in a column name stands for a nested metric: train.loss.
    named = {str(column).replace(".", "/"): column for column in frame.columns}
    every = {ours: [named[one] for one in theirs if one in named] for ours, theirs in NAMES.items()}
    columns = {ours: theirs[0] for ours, theirs in every.items() if theirs}
    known = f"its columns are {listed([str(column) for column in frame.columns])}"
    if "lr" not in columns:
        raise UserError(
            f"{place} has no column of learning rates (lr or learning_rate); {known}. Loss-curve laws need the "
            f"schedule; add such a column, or name it with {argument('mapping', {'lr': 'COLUMN'})}."
        )
    if "loss" not in columns or not {"step", "tokens"} & {*columns}:
        missing = "steps (step, or tokens)" if "loss" in columns else "losses (loss)"
        named = argument("mapping", {"NAME": "COLUMN"})
        raise UserError(f"{place} has no column for {missing}; {known}. Give {named}.")
    cells = pd.DataFrame({ours: frame[column] for ours, column in columns.items()})
    if {"phase", "steps_done"} <= {*frame.columns}:
        return _phases(name, place, cells, frame["phase"], notes, sparse)
    if not sparse and len(every["loss"]) > 1:
        notes.append(
            f"{place} has {listed(map(str, every['loss']))}; the curve is read from {columns['loss']}. Choose another "
            f"column with {argument('loss')}."
        )
    tracked = frame.attrs.get(run_source.NOT_FINITE)
    parts = [(name or "curve", place, cells)]
    if tracked is None and "run" in cells:
        if (nameless := cells["run"].isna().to_numpy()).any():
            raise UserError(
                f"{place}: {columns['run']} is empty in row {np.argmax(nameless) + 1} "
                f"({counted(int(nameless.sum()), 'such row')}); every row needs the name of its run."
            )
        parts = [(str(run), f"{place}, run {run}", part) for run, part in cells.groupby("run", sort=False)]
    if tracked is None and not sparse:
        return [_full_rows(*part, notes) for part in parts]
    diverged = (tracked or {}).get(columns["loss"], 0)
    return [_sparse_rows(*part, columns, diverged, notes) for part in parts]


def _phases(name: str, place: str, cells: DataFrame, phase: Series, notes: list[str], sparse: bool) -> list[_Rows]:
    """Return the rows of a training run's trunk and of its branches, whose schedules begin with the trunk's."""
    parts = []
    for called, own in cells.groupby(phase, sort=False):
        trunk = cells[phase == TRUNK]
        whole = own if called == TRUNK else pd.concat([trunk[trunk["step"] < own["step"].min()], own])
        skipped = own["loss"].isin(NOT_FINITE)
        if skipped.any():
            notes.append(f"{place}, {called}: left out {counted(int(skipped.sum()), 'step')} without a finite loss.")
        measured = own.index[~skipped & (own["loss"].notna() | (not sparse))]
        parts.append(
            _Rows(
                name=f"{name}/{called}",
                place=f"{place}, {called}",
                cells=whole,
                measured=whole.index.isin(measured),
            )
        )
    return parts


def _full_rows(name: str, place: str, cells: DataFrame, notes: list[str]) -> _Rows:
    """Return the rows with a loss or a learning rate; rows of other metrics, such as evaluations, have neither."""
    empty = cells["lr"].isna() & cells["loss"].isna()
    if empty.any():
        notes.append(f"{place}: left out {counted(int(empty.sum()), 'row')} with neither a loss nor a learning rate.")
    cells = cells[~empty]
    return _Rows(name=name, place=place, cells=cells, measured=np.ones(len(cells), bool))


def _sparse_rows(
    name: str, place: str, cells: DataFrame, columns: Mapping[str, Any], diverged: int, notes: list[str]
) -> _Rows:
    """Return the rows of metrics that a tracker logged at different steps.

    A loss without a learning rate gets the interpolated rate of the logged schedule.
    """
    steps = _numbers(cells["step"]) if "step" in cells else np.array([np.nan])
    if not np.isfinite(steps).all():
        return _full_rows(name, place, cells, notes)
    if diverged:
        notes.append(f"{place}: left out {counted(diverged, 'step')} without a finite loss.")
    rate, loss = (cells[column].notna().to_numpy() for column in ("lr", "loss"))
    step = steps.astype(np.int64)
    known = rate & (step > 0)
    if known.sum() < 2 or not loss.any():
        few = columns["lr" if loss.any() else "loss"]
        raise UserError(
            f"{place} has {counted(int(min(known.sum(), loss.sum())), 'step')} with {few}; a curve needs losses, and "
            f"learning rates logged at two steps or more."
        )
    logged = _numbers(cells["lr"])
    schedule, first, last = _rates(place, step[known], logged[known], None, []), step[known][0], step[known][-1]
    within = (step >= first) & (step <= last)
    if outside := int((loss & ~within).sum()):
        notes.append(
            f"{place}: left out {outside:,} of {int(loss.sum()):,} losses, which are before the first logged learning "
            f"rate (step {first:,}) or after the last (step {last:,})."
        )
    measured = step[loss & within]
    apart, near = (np.median(np.diff(one)) if len(one) > 1 else np.inf for one in (step[known], measured))
    if apart > 4 * near and np.ptp(logged[known]) > 0:
        notes.append(
            f"{place} logs a learning rate every {apart:,.0f} steps and a loss every {near:,.0f}. Rates in between are "
            f"interpolated, which may be wrong; log the rate as often as the loss."
        )
    kept = within & (rate | loss)
    filled = cells.assign(lr=np.where(rate, logged, schedule[np.clip(step, 1, last) - 1]))
    return _Rows(name=name, place=place, cells=filled[kept], measured=loss[kept])


def _curve(rows: _Rows, warmup: int | None, notes: list[str]) -> LossCurve:
    numbers = {column: _numbers(rows.cells[column]) for column in rows.cells if column != "run"}
    _check(rows, numbers)
    step, tokens_per_step = _steps(rows, numbers, notes)
    later = step > 0
    if not later.all():
        notes.append(f"{rows.place}: left out step 0, which is before the first update.")
    measured = later & rows.measured
    return LossCurve(
        name=rows.name,
        rates=_rates(rows.place, step[later], numbers["lr"][later], warmup, notes),
        steps=step[measured],
        loss=numbers["loss"][measured],
        tokens_per_step=tokens_per_step,
        is_cut="step" not in numbers,
    )


def _numbers(column: Series) -> Float[np.ndarray, " rows"]:
    """Return the numbers of a column, NaN for other cells."""
    if column.dtype != object:
        return np.asarray(pd.to_numeric(column, errors="coerce"), np.float64)

    def number(cell: Any) -> float:
        try:
            return math.nan if isinstance(cell, bool) else float(cell)
        except (TypeError, ValueError, OverflowError):
            return math.nan

    return np.array([number(cell) for cell in column], np.float64)


def _check(rows: _Rows, numbers: Mapping[str, np.ndarray]) -> None:
    place, index = rows.place, rows.cells.index + 1
    axis = "step" if "step" in numbers else "tokens"
    at, rate, loss = (numbers[name] for name in (axis, "lr", "loss"))
    for name, valid, rule in (
        (axis, np.isfinite(at) & (at >= 0), "not a number of at least 0"),
        ("lr", (rate >= 0) & (rate <= LARGEST_RATE), f"not a learning rate from 0 to {LARGEST_RATE:g}"),
        (
            "loss",
            ~rows.measured | ((loss > 0) & (loss <= LARGEST_LOSS)),
            f"not a loss above 0 and at most {LARGEST_LOSS:g}",
        ),
    ):
        if not valid.all():
            first = int(np.argmin(valid))
            raise UserError(
                f"{place}: {name} is {_shown(rows.cells[name].iloc[first], numbers[name][first])} in row "
                f"{index[first]}, {rule} ({counted(int((~valid).sum()), 'such row')}); remove these rows, or cut the "
                f"curve before them."
            )
    if (back := np.diff(at) <= 0).any():
        later = int(np.argmax(back)) + 1
        raise UserError(
            f"{place}: {axis} {at[later]:g} in row {index[later]} comes after {at[later - 1]:g}, but {axis} must "
            f"ascend. If the table holds several runs, name them in a column run; otherwise keep one row per step."
        )
    if (points := int(rows.measured.sum())) < 3:
        raise UserError(
            f"{place} has {counted(points, 'point')}, but a curve needs at least 3; measure the loss more often, or "
            f"leave the curve out."
        )
    if not rate.max() > 0:
        raise UserError(
            f"{place}: every learning rate is 0, so nothing was trained; leave the curve out, or read another column "
            f"({argument('mapping', {'lr': 'COLUMN'})})."
        )


def _shown(cell: Any, number: float) -> str:
    """Return a cell for a message: a number with six digits, other content as written."""
    if np.isfinite(number) and not isinstance(cell, str):
        return f"{number:g}"
    return "empty" if pd.api.types.is_scalar(cell) and pd.isna(cell) else shown(cell)


def _steps(rows: _Rows, numbers: Mapping[str, np.ndarray], notes: list[str]) -> tuple[Int[np.ndarray, " rows"], float]:
    place = rows.place
    if "step" in numbers:
        step = numbers["step"]
        if (broken := step != np.round(step)).any():
            first = int(np.argmax(broken))
            raise UserError(
                f"{place}: step is {step[first]:g} in row {rows.cells.index[first] + 1}; steps are whole numbers."
            )
        tokens = numbers["tokens"][-1] / step[-1] if "tokens" in numbers else math.nan
    else:
        tokens = numbers["tokens"][-1] / VIRTUAL_STEPS
        step = np.round(numbers["tokens"] / tokens)
        notes.append(
            f"{place} has tokens but no steps; its learning rates are summed over {VIRTUAL_STEPS:,} steps of "
            f"{tokens:.4g} tokens."
        )
    if step[-1] > LONGEST:
        raise UserError(f"{place}: step {step[-1]:g} exceeds the limit of {LONGEST:,}; give steps of larger batches.")
    return step.astype(np.int64), float(tokens)


def _rates(place: str, step: np.ndarray, logged: np.ndarray, warmup: int | None, notes: list[str]) -> Any:
    """Return the learning rate of every update, interpolated between the logged rates."""
    at = step - 1
    every = np.arange(int(step[-1]))
    rates = np.interp(every, at, logged)
    same = np.isclose(np.diff(logged), 0.0, atol=1e-9 * logged.max())
    flat_before, flat_after = np.concatenate([[True], same[:-1]]), np.concatenate([same[1:], [True]])
    for i in np.flatnonzero(~same & flat_before & flat_after & (np.diff(at) > 1)):
        rates[at[i] : at[i + 1]] = logged[i]
    first = int(at[0])
    if first == 0:
        return rates
    if warmup is None and len(logged) > 1 and logged[1] > logged[0]:
        # The learning rate still rises where the log begins.
        rates[:first] = logged[0] * (every[:first] + 1) / (first + 1)
    elif warmup is None:
        rates[:first] = logged[0]
        if first > 2 * int(np.median(np.diff(at))):
            notes.append(
                f"{place} logs no rate before step {int(step[0]):,}; {logged[0]:.4g} is assumed from the start. "
                f"If the rate was warmed up, give the number of steps with {argument('warmup')}."
            )
    else:
        # If the log begins within the warm-up, the rate rose linearly to the first logged value.
        rises = min(max(warmup, 1), first + 1)
        rates[:first] = logged[0] * np.minimum((every[:first] + 1) / rises, 1.0)
        if warmup > first + 1 and not (len(logged) > 1 and logged[1] > logged[0]):
            notes.append(
                f"{place}: the logged rate no longer rises at step {first + 1:,}, within the {warmup:,} steps of "
                f"{argument('warmup')}; it is assumed to rise until that step."
            )
    return rates


def runs_of(curves: Curves, *, blocks: int = BLOCKS, most_points: int = MOST_POINTS, drops: bool | None = None) -> Runs:
    """Convert points of curves to runs with the inputs of loss-curve laws. Each block of a curve is a group.

    Warm-up points are left out, because the law (a power law in the cumulative learning rate) does not hold during
    warm-up.

    Args:
      blocks: maximum number of blocks per curve.
      most_points: maximum number of points per curve; more points are averaged.
      drops: whether the law's inputs include learning-rate drops; by default, True if the learning rate decays in at
        least one curve. If it decays in none, the inputs contain no drops, since the warm-up alone would then determine
        the coefficient of annealing.
    """
    if not curves.curves:
        raise UserError("There are no curves; give at least one.")
    counts = curves.falls if drops is None else drops
    parts, models, labels, groups, losses = [], [], [], [], []
    for curve in curves.curves:
        steps, loss = _points(curve, most_points)
        block = np.arange(len(steps)) * min(blocks, most_blocks(curve, most_points)) // len(steps)
        parts.append(columns_at(curve.rates, steps, counts))
        losses.append(loss)
        models += [curve.name] * len(steps)
        labels += [f"{curve.name} at step {step}" for step in steps]
        groups += [f"{curve.name}, {number}" for number in block]
    width = max(part["drop"].shape[1] for part in parts)
    columns = {name: np.concatenate([_wide(part[name], width, name) for part in parts]) for name in parts[0]}
    runs = runs_from(Design(columns=columns), np.concatenate(losses), group=groups)
    return replace(runs, labels=tuple(labels), models=tuple(models))


def _points(curve: LossCurve, most: int) -> tuple[Int[np.ndarray, " points"], Float[np.ndarray, " points"]]:
    """Return the steps and losses of a curve after its warm-up, averaged over blocks if there are too many."""
    after = curve.steps >= curve.warmup_steps
    if not after.any():
        raise UserError(
            f"{curve.name} has no point after its warm-up of {curve.warmup_steps:,} steps; train it longer, or give "
            f"the length of its warm-up ({argument('warmup')})."
        )
    steps, loss = curve.steps[after], curve.loss[after]
    if len(steps) <= most:
        return steps, loss
    cuts = np.array_split(np.arange(len(steps)), most)
    return np.array([steps[cut[len(cut) // 2]] for cut in cuts]), np.array([loss[cut].mean() for cut in cuts])


def most_blocks(curve: LossCurve, most_points: int = MOST_POINTS) -> int:
    """Return the maximum number of blocks of a curve, with at least two points per block."""
    return max(min(int(np.sum(curve.steps >= curve.warmup_steps)), most_points) // 2, 1)


def columns_at(rates: Any, steps: Any, drops: bool = True) -> Points:
    """Return the inputs of loss-curve laws at given steps of a schedule, keyed by column."""
    points = sums_of_curve(rates, steps)
    return points if drops else {**points, "drop": np.zeros_like(points["drop"])}


def _wide(values: np.ndarray, width: int, name: str) -> np.ndarray:
    """Pad a column to ``width`` drops, with drops of zero size."""
    if values.ndim == 1 or values.shape[1] == width:
        return values
    last = np.repeat(values[:, -1:], width - values.shape[1], axis=1)
    return np.concatenate([values, last * (name != "drop")], axis=1)


def constant_only(curves: Curves) -> str:
    """Return a warning if no schedule of these curves determines the effect of annealing, else an empty string."""
    if curves.falls:
        return ""
    return (
        f"The learning rate falls in none of {some(list(curves.names), most=3)}: the effect of annealing is not "
        f"determined, and annealed losses have no prediction interval. Add a curve whose learning rate decays."
    )
