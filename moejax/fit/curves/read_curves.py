"""Read loss curves from CSV, Parquet and JSON-lines files, trackers, and the ``metrics.jsonl`` of training runs.

A curve is the measured losses of one training run and the learning rate of every update. Learning rates are logged at
some steps only. Between two of them the rate is linear, or one jump at the later step if it is flat on both sides.
"""

from __future__ import annotations

import fnmatch
import hashlib
import math
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from moejax import run_table
from moejax.errors import UserError
from moejax.fit.runs import Runs, runs_from
from moejax.fit.tables.select import mapped, select
from moejax.laws.curves.schedule_sums import Points, sums_of_curve
from moejax.laws.design import Design
from moejax.run_sources import source as run_source
from moejax.storage import is_remote, open_storage, reaching
from moejax.wording import counted, did_you_mean, listed, shown, some, told

METRICS = "metrics.jsonl"
"""Log file in the directory of a training run."""
NOT_FINITE = ("nan", "inf", "-inf")
"""Values of the loss in the log at a step whose update was skipped."""
TRUNK = "trunk"
NAMES = {
    "step": ("step", "steps", "iteration", "iter", "global_step", "_step", "update"),
    "tokens": ("tokens", "tokens_seen", "num_tokens"),
    "lr": ("lr", "learning_rate", "train/lr", "train/learning_rate"),
    "loss": ("loss", "train_loss", "training_loss", "train/loss"),
    "run": ("run", "name", "curve", "run_name", "model"),
}
"""Names of our columns in tables of curves."""
MOST_POINTS = 256
"""Maximum number of points of a curve in a fit; longer curves are averaged over this many blocks."""
BLOCKS = 8
"""Number of blocks of a curve that count as one draw each, since neighbouring residuals are correlated."""
LARGEST_RATE = 1e6
"""Upper limit of a learning rate. Sums of powers of larger rates would overflow float64."""
LARGEST_LOSS = 1e6
"""Upper limit of a loss (or perplexity). Squares of larger losses would overflow float64."""
LONGEST = 5_000_000
"""Updates of the longest curve, since a learning rate is stored for each."""
VIRTUAL_STEPS = 20_000
"""Number of equal steps for curves of tables with tokens but no steps."""


@dataclass(frozen=True, kw_only=True)
class LossCurve:
    """The losses of one training run and its schedule."""

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
        found = set()
        for pattern in patterns:
            # A name may itself contain brackets or stars.
            met = {name for name in self.names if name == pattern or fnmatch.fnmatchcase(name, pattern)}
            if not met:
                raise UserError(f"No curve is called {pattern!r}; {did_you_mean(pattern, self.names)}")
            found |= met
        return tuple(name for name in self.names if name in found)

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

    A table has columns of steps (or tokens), learning rates and losses. A column names the run if the table has
    several; otherwise the file name is the run's name. In a ``metrics.jsonl`` the trunk and each branch are a curve,
    and the schedule of a branch begins with the trunk's.

    Args:
      sources: one or several; also in an object store (``s3://…``, ``gs://…``).
      mapping: our column (step, tokens, lr, loss, run) to a column of the table, or to arithmetic on its columns.
      loss: the column of losses, such as ``validation_loss``, if it is not one of ``NAMES``; rows without a loss give
        only the learning rate.
      where: conditions on the columns that a row must meet, as in ``read_runs``.
      only: patterns of names; all curves if not given.
      warmup: updates in which the learning rate rose from 0, if it is not logged from the beginning.

    Raises:
      UserError: a file or column is missing, or a column has invalid numbers; the message gives the position.
    """
    mapping = dict(mapping or {}) | ({} if loss is None else {"loss": loss})
    found: list[LossCurve] = []
    notes: list[str] = []
    for source in sources if isinstance(sources, list | tuple) else [sources]:
        for name, place, frame in _tables(source, notes):
            flat = run_table.with_flat_cells(frame)
            found += _curves_of(
                name, place, _chosen(flat, mapping, where, place, notes), warmup, notes, loss is not None
            )
    twice = [name for name in dict.fromkeys(c.name for c in found) if sum(c.name == name for c in found) > 1]
    if twice:
        raise UserError(f"Two curves are called {twice[0]!r}; give them other names, or put them in other files.")
    _check_lengths(found)
    read = Curves(curves=tuple(found), notes=tuple(dict.fromkeys(notes)))
    return read.only(read.matching(only)) if only else read


def _chosen(frame: Any, mapping: Mapping[str, str], where: Sequence[str], place: str, notes: list[str]) -> Any:
    """Return the rows that meet all conditions, with our columns."""
    chosen, said = select(mapped(frame, mapping, place), where, place)
    chosen.attrs = dict(frame.attrs)
    notes += said
    return chosen.reset_index(drop=True) if where else chosen


def _check_lengths(curves: Sequence[LossCurve]) -> None:
    """Raise ``UserError`` if curves were cut into different steps, since a law sums over updates."""
    for cut in (curve for curve in curves if curve.is_cut):
        for other in curves:
            if not np.isclose(cut.tokens_per_step, other.tokens_per_step, rtol=0.01):
                raise UserError(
                    f"{cut.name} has tokens and no steps, and {other.name} is not as long or has other steps: their "
                    f"rates cannot be summed alike. Add the steps: --map step=tokens/BATCH, the tokens of a batch."
                )


def _tables(source: Any, notes: list[str]) -> list[tuple[str, str, Any]]:
    """Return name, location and rows of each table of a source."""
    if not isinstance(source, str | Path):
        return [("", "The table", run_table.with_flat_cells(source).reset_index(drop=True))]
    source = run_source.source(str(source))
    if tracker := _tracker(source, notes):
        return [(name, f"{source}, run {name}", frame) for name, frame in tracker]
    if is_remote(source):
        return _stored_tables(str(source).rstrip("/"), notes)
    path = Path(source)
    if not path.is_dir():
        name = path.parent.name if path.name == METRICS else path.name.partition(".")[0]
        return [(name, str(path), run_table.read_as_it_is(path).reset_index(drop=True))]
    logs = sorted(path.rglob(METRICS))
    if not logs:
        raise UserError(f"{path} has no {METRICS} below it; name a training's folder, a study's, or tables of curves.")
    return [(log.parent.name, str(log), run_table.read_as_it_is(log).reset_index(drop=True)) for log in logs]


def _tracker(source: str | Path, notes: list[str]) -> list[tuple[str, Any]]:
    """Return the runs of a tracker's directory or database with their metrics by step; none for a run directory."""
    path = Path(str(source).partition("#")[0])
    if not run_source.has_prefix(source):
        if is_remote(source):
            return []
        own = path.is_dir() and next(path.rglob(METRICS), None) is not None
        if own or not path.exists() or not run_source.kind_of(source):
            return []
    found = run_source.histories(source)
    notes += [f"{source}, {note}" for _, frame in found for note in frame.attrs.get("notes", ())]
    if not found:
        raise UserError(f"{source} has no run with metrics by step.")
    return found


def _stored_tables(url: str, notes: list[str]) -> list[tuple[str, str, Any]]:
    """Return the tables of curves in an object store; they are copied to a temporary directory."""
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
            return [(name, place.replace(str(here), url), frame) for name, place, frame in _tables(here, notes)]
        except UserError as error:
            raise UserError(told(error).replace(str(here), url)) from error


def _curves_of(
    name: str, place: str, frame: Any, warmup: int | None, notes: list[str], sparse: bool
) -> list[LossCurve]:
    """Return the curves of a table; ``sparse`` if a row with a learning rate may have no loss."""
    frame, columns = frame.copy(), {}
    # A dot in a column name stands for a nested metric: train.loss.
    named = {str(column).replace(".", "/"): column for column in frame.columns}
    for ours, theirs in NAMES.items():
        columns[ours] = next((named[column] for column in theirs if column in named), None)
    if columns["lr"] is None:
        raise UserError(
            f"{place} has no column of learning rates (lr or learning_rate); its columns are "
            f"{listed([str(column) for column in frame.columns])}. A law of curves reads the schedule: add it, or name "
            f"it (--map lr=COLUMN)."
        )
    if columns["loss"] is None or (columns["step"] is None and columns["tokens"] is None):
        missing = "losses (loss)" if columns["loss"] is None else "steps (step, or tokens)"
        raise UserError(
            f"{place} has no column of {missing}; its columns are "
            f"{listed([str(column) for column in frame.columns])}. Name it (--map COLUMN_OF_OURS=COLUMN)."
        )
    if "phase" in frame.columns and "steps_done" in frame.columns:
        return _of_phases(name, place, frame, columns, warmup, notes)
    if not sparse and len(several := [named[one] for one in NAMES["loss"] if one in named]) > 1:
        notes.append(f"{place} has {listed(map(str, several))}: the curve is of {several[0]}; --loss names another.")
    missing = frame.attrs.get(run_source.NOT_FINITE, {} if sparse else None)

    def curve(called: str, where: str, rows: Any) -> LossCurve:
        rows, own = _points_of_the_curve(where, rows, columns, missing, notes)
        return _curve(called, where, rows, columns, warmup, notes, own=own)

    if (
        frame.attrs.get(run_source.NOT_FINITE) is not None
        or columns["run"] is None
        or columns["run"] == columns["loss"]
    ):
        return [curve(name or "curve", place, frame)]
    nameless = np.flatnonzero(frame[columns["run"]].isna())
    if len(nameless):
        raise UserError(
            f"{place}: {columns['run']} is empty in row {nameless[0] + 1} ({counted(len(nameless), 'such row')}); name "
            f"the run of every row."
        )
    parts = frame.groupby(columns["run"], sort=False)
    return [curve(str(run), f"{place}, run {run}", part) for run, part in parts]


def _points_of_the_curve(
    place: str, frame: Any, columns: Mapping[str, Any], missing: Mapping[str, int] | None, notes: list[str]
) -> tuple[Any, Any]:
    """Return the rows that belong to the curve, and the index of rows with a loss (None if every row needs one).

    Rows of other metrics, such as evaluations, have neither loss nor learning rate. A tracker logs each metric at its
    own steps, and evaluations named by ``--loss`` are fewer than steps. A loss without a learning rate gets the
    interpolated one of the logged schedule.

    Args:
      missing: number of non-finite values of each metric, if rows may have no loss.
    """
    rate, loss = (pd.notna(frame[columns[name]]) for name in ("lr", "loss"))
    steps = None if columns["step"] is None else _numbers(frame[columns["step"]])
    if missing is None or steps is None or not np.isfinite(steps).all():
        if empty := int((~rate & ~loss).sum()):
            notes.append(f"{place}: {counted(empty, 'row')} with neither loss nor rate left out.")
        return frame[rate | loss], None
    if diverged := missing.get(columns["loss"], 0):
        notes.append(f"{place}: {counted(diverged, 'step')} without a finite loss left out.")
    step = steps.astype(np.int64)
    known = rate.to_numpy() & (step > 0)
    if known.sum() < 2 or not loss.any():
        few = columns["loss"] if not loss.any() else columns["lr"]
        raise UserError(
            f"{place} has {counted(int(min(known.sum(), loss.sum())), 'step')} with {few}; a curve is losses, and a "
            f"schedule that was logged at two steps or more."
        )
    logged = _numbers(frame[columns["lr"]])
    schedule, first, last = _rates(place, step[known], logged[known], None, []), step[known][0], step[known][-1]
    within = (step >= first) & (step <= last)
    if outside := int((loss.to_numpy() & ~within).sum()):
        notes.append(
            f"{place}: {outside:,} of {int(loss.sum()):,} losses, before the first rate that was logged (step "
            f"{first:,}) or after the last ({last:,}), left out."
        )
    measured = step[loss.to_numpy() & within]
    apart, near = (np.median(np.diff(one)) if len(one) > 1 else np.inf for one in (step[known], measured))
    if apart > 4 * near and np.ptp(logged[known]) > 0:
        notes.append(
            f"{place} logs a rate every {apart:,.0f} steps and a loss every {near:,.0f}: the rate between is taken as "
            f"linear, or as one jump, which may be wrong. Log it as often."
        )
    filled = np.where(rate, logged, schedule[np.clip(step, 1, last) - 1])
    kept = frame.assign(**{columns["lr"]: filled})[within & (rate | loss)]
    return kept, kept.index[loss[kept.index]]


def _of_phases(
    name: str, place: str, frame: Any, columns: Mapping[str, Any], warmup: int | None, notes: list[str]
) -> list[LossCurve]:
    """Return the trunk of a training run and its branches, whose schedules begin with the trunk's."""
    trunk, curves = frame[frame["phase"] == TRUNK], []
    for phase, own in frame.groupby("phase", sort=False):
        before = trunk[trunk[columns["step"]] < own[columns["step"]].min()]
        whole = own if phase == TRUNK else pd.concat([before, own])
        called = f"{name}/{phase}"
        skipped = own[columns["loss"]].isin(NOT_FINITE)
        if skipped.any():
            notes.append(f"{place}, {phase}: {counted(int(skipped.sum()), 'step')} without a finite loss left out.")
        curve = _curve(called, f"{place}, {phase}", whole, columns, warmup, notes, own=own.index[~skipped])
        curves.append(curve)
    return curves


def _curve(
    name: str,
    place: str,
    frame: Any,
    columns: Mapping[str, Any],
    warmup: int | None,
    notes: list[str],
    own: Any = None,
) -> LossCurve:
    """Return one curve of rows in order; losses are read from the rows in ``own``, learning rates from all rows."""
    numbers: dict[str, Any] = {
        ours: _numbers(frame[column]) for ours, column in columns.items() if column is not None and ours != "run"
    }
    # A metric that is not measured at every step leaves its other rows empty.
    if own is not None and columns["loss"] not in NAMES["loss"]:
        own = own[pd.notna(frame.loc[own, columns["loss"]])]
    rows = frame.index.to_numpy() + 1
    mine = np.ones(len(frame), bool) if own is None else np.isin(frame.index, own)
    _check(place, rows, numbers, mine, {ours: frame[column] for ours, column in columns.items() if column is not None})
    step, tokens_per_step = _steps(place, rows, numbers, notes)
    later = step > 0
    if not later.all():
        notes.append(f"{place}: step 0 is before the first update, and is left out.")
    step, rates, losses, mine = step[later], numbers["lr"][later], numbers["loss"][later], mine[later]
    schedule = _rates(place, step, rates, warmup, notes)
    return LossCurve(
        name=name,
        rates=schedule,
        steps=step[mine],
        loss=losses[mine],
        tokens_per_step=tokens_per_step,
        is_cut="step" not in numbers,
    )


def _numbers(column: Any) -> Any:
    """Return the numbers of a column, NaN for other cells."""
    if column.dtype != object:
        return np.asarray(pd.to_numeric(column, errors="coerce"), np.float64)

    def number(cell: Any) -> float:
        try:
            return math.nan if isinstance(cell, bool) else float(cell)
        except (TypeError, ValueError, OverflowError):
            return math.nan

    return np.array([number(cell) for cell in column], np.float64)


def _check(place: str, rows: Any, numbers: Mapping[str, Any], mine: Any, cells: Mapping[str, Any]) -> None:
    axis = "step" if "step" in numbers else "tokens"
    # The error names the first row that breaks a rule.
    for name, broken, rule in (
        (axis, ~np.isfinite(numbers[axis]) | (numbers[axis] < 0), "not a number from 0 on"),
        (
            "lr",
            ~((numbers["lr"] >= 0) & (numbers["lr"] <= LARGEST_RATE)),
            f"not a learning rate from 0 to {LARGEST_RATE:g}",
        ),
        (
            "loss",
            mine & ~((numbers["loss"] > 0) & (numbers["loss"] <= LARGEST_LOSS)),
            f"not a loss above 0 and at most {LARGEST_LOSS:g}",
        ),
    ):
        if broken.any():
            first = int(np.flatnonzero(broken)[0])
            raise UserError(
                f"{place}: {name} is {_shown(cells[name].iloc[first])} in row {rows[first]}, {rule} "
                f"({counted(int(broken.sum()), 'such row')}); remove them, or cut the curve before."
            )
    back = np.flatnonzero(np.diff(numbers[axis]) <= 0)
    if len(back):
        at = int(back[0]) + 1
        raise UserError(
            f"{place}: {axis} {numbers[axis][at]:g} in row {rows[at]} comes after {numbers[axis][at - 1]:g}; a curve's "
            f"{axis}s ascend. If the table holds several runs, name them in a column run; else keep one row a step."
        )
    if int(mine.sum()) < 3:
        raise UserError(f"{place} has {counted(int(mine.sum()), 'point')}; give 3 or more.")
    if not numbers["lr"].max() > 0:
        raise UserError(f"{place}: every learning rate is 0; nothing was trained.")


def _shown(cell: Any) -> str:
    """Return the content of a cell for a message: text as written, a number with six digits."""
    if isinstance(cell, str):
        return shown(cell)
    try:
        return shown(cell) if isinstance(cell, bool) else "empty" if pd.isna(cell) else f"{float(cell):g}"
    except (TypeError, ValueError, OverflowError):
        return shown(cell)


def _steps(place: str, rows: Any, numbers: Mapping[str, Any], notes: list[str]) -> tuple[Any, float]:
    """Return integer steps, and the tokens per step if known."""
    if "step" in numbers:
        step = numbers["step"]
        if (step != np.round(step)).any():
            first = int(np.flatnonzero(step != np.round(step))[0])
            raise UserError(f"{place}: step is {step[first]:g} in row {rows[first]}; steps are whole numbers.")
        tokens = numbers["tokens"][-1] / step[-1] if "tokens" in numbers else float("nan")
    else:
        tokens = float(numbers["tokens"][-1]) / VIRTUAL_STEPS
        step = np.round(numbers["tokens"] / tokens)
        notes.append(
            f"{place} has tokens and no steps: its rates are summed over {VIRTUAL_STEPS:,} steps of {tokens:.4g} "
            f"tokens."
        )
    if step[-1] > LONGEST:
        raise UserError(f"{place}: step {step[-1]:g} is beyond {LONGEST:,}; give steps of larger batches.")
    return step.astype(np.int64), float(tokens)


def _rates(place: str, step: Any, logged: Any, warmup: int | None, notes: list[str]) -> Any:
    """Return the learning rate of every update, interpolated between the logged ones."""
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
                f"{place} logs no rate before step {int(step[0]):,}: it is taken as {logged[0]:.4g} from the start. "
                f"If it was warmed up, say in how many steps (--warmup)."
            )
    else:
        # A log that begins within the warm-up gives the rate there: it rose linearly to that value.
        rises = min(max(warmup, 1), first + 1)
        rates[:first] = logged[0] * np.minimum((every[:first] + 1) / rises, 1.0)
        if warmup > first + 1 and not (len(logged) > 1 and logged[1] > logged[0]):
            notes.append(
                f"{place} logs a rate that no longer rises at step {first + 1:,}, within the {warmup:,} steps of "
                f"--warmup: it is taken to rise until there."
            )
    return rates


def runs_of(curves: Curves, *, blocks: int = BLOCKS, most_points: int = MOST_POINTS, drops: bool | None = None) -> Runs:
    """Convert points of curves to runs of a law: its inputs, the loss, and blocks of a curve as groups.

    Points of the warm-up are left out, because the power law of the sum of rates does not describe it.

    Args:
      drops: True to include changes of the learning rate; default: if it falls in any curve. If it falls in none, the
        effect of a drop is not determined, and must not be estimated from the rises of the warm-up.
    """
    counts = curves.falls if drops is None else drops
    parts = [_points(curve, blocks, most_points, counts) for curve in curves.curves]
    if not parts:
        raise UserError("There are no curves; give some.")
    width = max(part[0]["drop"].shape[1] for part in parts)
    columns = {name: np.concatenate([_wide(part[0][name], width, name) for part in parts]) for name in parts[0][0]}
    group = [f"{curve.name}, {block}" for curve, part in zip(curves.curves, parts, strict=True) for block in part[3]]
    loss = np.concatenate([part[2] for part in parts])
    names = [curve.name for curve, part in zip(curves.curves, parts, strict=True) for _ in part[1]]
    steps = np.concatenate([part[1] for part in parts])
    labels = tuple(f"{name} at step {step}" for name, step in zip(names, steps, strict=True))
    return replace(runs_from(Design(columns=columns), loss, group=group), labels=labels, models=tuple(names))


def _points(curve: LossCurve, blocks: int, most: int, drops: bool) -> tuple[Points, Any, Any, Any]:
    """Return the inputs of the law, steps, losses and the block of every point."""
    after = curve.steps >= curve.warmup_steps
    if not after.any():
        raise UserError(
            f"{curve.name} has no point after its warm-up of {curve.warmup_steps:,} steps; go on further, or say how "
            f"long it was warmed up (--warmup)."
        )
    steps, loss = curve.steps[after], curve.loss[after]
    if len(steps) > most:
        cuts = np.array_split(np.arange(len(steps)), most)
        steps = np.array([steps[cut[len(cut) // 2]] for cut in cuts])
        loss = np.array([loss[cut].mean() for cut in cuts])
    block = np.arange(len(steps)) * min(blocks, most_blocks(curve, most)) // len(steps)
    return columns_at(curve.rates, steps, drops), steps, loss, block


def most_blocks(curve: LossCurve, most_points: int = MOST_POINTS) -> int:
    """Return the maximum number of blocks of a curve: each has at least two points."""
    return max(min(int(np.sum(curve.steps >= curve.warmup_steps)), most_points) // 2, 1)


def columns_at(rates: Any, steps: Any, drops: bool = True) -> Points:
    """Return the inputs of laws of loss curves at given steps of a schedule."""
    points = sums_of_curve(rates, steps)
    return points if drops else {**points, "drop": np.zeros_like(points["drop"])}


_FILLING = {"drop": 0.0}


def _wide(values: Any, width: int, name: str) -> Any:
    """Pad a column to a number of drops, with drops of zero size."""
    if values.ndim == 1 or values.shape[1] == width:
        return values
    last = np.repeat(values[:, -1:], width - values.shape[1], axis=1)
    return np.concatenate([values, last * _FILLING.get(name, 1.0)], axis=1)


def constant_only(curves: Curves) -> str:
    """Return a sentence that no schedule of these curves determines the effect of annealing; empty if one does."""
    if curves.falls:
        return ""
    return (
        f"The learning rate falls in none of {some(list(curves.names), most=3)}: what a drop of it takes off the loss "
        f"is not determined, and no annealed loss has a range. Add a curve whose rate decays."
    )
