"""Define the runs that a law is fitted to: designs, losses and groups."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from moejax.errors import UserError
from moejax.laws.design import FIELDS, Design, design_from, known
from moejax.wording import counted, some

VARY_WITHIN_A_GROUP = frozenset(
    {
        *("tokens", "flops", "loss", "step", "steps", "train_steps", "training_steps", "num_steps", "n_steps"),
        *("global_step", "iter", "iters", "iteration", "iterations", "update", "updates", "epoch", "epochs"),
        *("sample", "samples", "samples_seen", "n_samples", "examples", "examples_seen"),
    }
)
"""Columns that give the length of training.

Rows that differ only in these columns have one architecture and are resampled together, because they may be checkpoints
of one training run.
"""


SIZES = frozenset({"params_total", "params_active", "model_dim", "num_layers"})
"""Fields of a design that give a model's size."""


def varies_within_a_group(name: str) -> bool:
    """Return whether a column or a design field gives a training run's length or result."""
    return name.lower() in VARY_WITHIN_A_GROUP


def gives_a_size(design: Design) -> bool:
    """Return whether a design has a field that identifies models of the same size.

    A column of a formula may be a size under any name, such as ``width``. A column with two values counts as a switch.
    """
    own = {name: values for name, values in known(design).items() if not varies_within_a_group(name)}
    return any(name in SIZES or (name not in FIELDS and len(np.unique(own[name])) > 2) for name in own)


@dataclass(frozen=True, kw_only=True)
class Runs:
    """Trained runs; every array has one entry per run."""

    design: Design
    """All known fields, as float64 arrays."""
    loss: Float[np.ndarray, " runs"]
    """Losses in nats per token."""
    weight: Float[np.ndarray, " runs"]
    """Weight of each run; 0 excludes it from the fit."""
    group: Int[np.ndarray, " runs"]
    """Group number of each run."""
    output: str = "loss"
    """The law output that ``loss`` holds."""
    labels: tuple[str, ...] = ()
    """Names of the runs, if the table has them; see ``names``."""
    models: tuple[str, ...] = ()
    """Name of every run's model, if the table has one; several runs may share a model."""
    resolution: Float[np.ndarray, " runs"] | None = None
    """Standard deviation of log ``loss`` due to the spacing of the grid, if ``loss`` is the best value of a sweep.

    See ``sweeps.settings.resolution``.
    """

    def __len__(self) -> int:
        return len(self.loss)

    @property
    def names(self) -> tuple[str, ...]:
        """Name of every run: its label, or its number counted from 1."""
        return self.labels or tuple(f"run {i + 1}" for i in range(len(self)))

    def called(self, kept: Bool[np.ndarray, " runs"]) -> str:
        """Return a name for several runs: ``dense-50M, 4 rows`` if they share their model, else the first names."""
        models = {self.models[i] for i in np.flatnonzero(kept)} if self.models else set()
        if len(models) == 1:
            return f"{models.pop()}, {counted(int(kept.sum()), 'row')}"
        return some(np.asarray(self.names)[kept].tolist(), most=3)

    @property
    def coarseness(self) -> float:
        """Root mean square of ``resolution`` over the runs with positive weight; 0 without a grid."""
        if self.resolution is None:
            return 0.0
        return float(np.sqrt(np.average(self.resolution**2, weights=self.weight)))

    @property
    def data_hash(self) -> str:
        """Hash of the numbers, independent of their file."""
        digest = hashlib.sha256()
        for name, values in known(self.design).items():
            digest.update(name.encode() + np.asarray(values, "<f8").tobytes())
        digest.update(self.loss.astype("<f8").tobytes() + self.weight.astype("<f8").tobytes())
        return digest.hexdigest()[:16]

    def where(self, kept: Bool[np.ndarray, " runs"] | Int[np.ndarray, " kept"]) -> Runs:
        """Return the runs selected by a mask or by indices."""
        design = design_from({name: values[kept] for name, values in known(self.design).items()})
        return replace(
            self,
            design=design,
            loss=self.loss[kept],
            weight=self.weight[kept],
            group=self.group[kept],
            labels=tuple(np.asarray(self.names)[kept].tolist()),
            models=tuple(np.asarray(self.models)[kept].tolist()) if self.models else (),
            resolution=None if self.resolution is None else self.resolution[kept],
        )

    def only(self, kept: Bool[np.ndarray, " runs"]) -> Runs:
        """Return all runs, with weight 0 if not kept, so that one compiled program serves every subset."""
        return replace(self, weight=np.where(kept, self.weight, 0.0))


SHARES = ("error", "accuracy")
"""Outputs that are shares of answers, unless they are in percent."""


def runs_from(
    design: Design,
    loss: Any,
    *,
    weight: Any = None,
    group: Iterable[Any] | None = None,
    output: str = "loss",
) -> Runs:
    """Return runs from arrays, or from numbers shared by all runs.

    Args:
      design: fields with one entry per run, or numbers.
      loss: losses in nats per token.
      weight: weights; by default, 1 for every run.
      group: group labels; by default, runs that differ only in the length of training (tokens, FLOPs, steps) are one
        group. If no field gives a size, only runs with equal fields form a group.
      output: the law output that ``loss`` holds.

    Raises:
      UserError: there is no run, or the length of a field differs from that of ``loss``.
    """
    loss = np.atleast_1d(np.asarray(loss, np.float64))
    if not len(loss):
        raise UserError("There are no runs; a fit needs at least one run more than the law has coefficients.")
    given = {}
    for name, values in known(design).items():
        values = np.asarray(values, np.float64)
        if values.ndim and len(values) != len(loss):
            raise UserError(f"{name} has {len(values)} entries and loss has {len(loss)}; give one per run.")
        # A column may hold several numbers per run, such as the drops of a schedule.
        given[name] = np.broadcast_to(values, (len(loss), *values.shape[1:])).copy()
    if group is None:
        sized = gives_a_size(design)
        shape = [v for name, v in given.items() if not (sized and varies_within_a_group(name)) and v.ndim == 1]
        labels = list(zip(*shape, strict=True)) if shape else list(range(len(loss)))
    else:
        labels = list(group)
    numbers = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    return Runs(
        design=design_from(given),
        loss=loss,
        weight=np.ones_like(loss) if weight is None else np.asarray(weight, np.float64),
        group=np.asarray([numbers[label] for label in labels], np.int64),
        output=output,
    )


def sums_by_group(values: np.ndarray, group: Int[np.ndarray, " runs"]) -> Any:
    """Return the sum of numbers (or of matrix rows) over the runs of each group, in order of the group numbers.

    A matrix of runs by groups would not fit in memory for large tables.
    """
    present, place = np.unique(group, return_inverse=True)
    sums = np.zeros((len(present), *values.shape[1:]))
    np.add.at(sums, place, values)
    return sums


SAME = 1.1
"""Largest ratio of successive FLOPs within a budget."""
WIDEST = 1.25
"""Largest ratio of maximum to minimum FLOPs within a budget."""


def budgets(flops: Float[np.ndarray, " runs"]) -> tuple[Int[np.ndarray, " runs"], Float[np.ndarray, " budgets"]]:
    """Return the budget number of each run, from the smallest, and the geometric mean FLOPs of each budget.

    In ascending order of FLOPs, a budget ends if the next run's FLOPs are more than 10 % larger. A budget that spans
    more than 25 % is cut, because FLOPs that increase in small steps are not a single budget.
    """
    logs = np.log(flops)
    levels = np.unique(logs)
    parts = np.split(levels, 1 + np.flatnonzero(np.diff(levels) > np.log(SAME)))
    firsts = [part[0] for chain in parts for part in _narrow(chain)]
    number = np.searchsorted(firsts, logs, side="right") - 1
    means = sums_by_group(logs, number) / np.bincount(number)
    return number.astype(np.int64), np.exp(means)


def _narrow(levels: Float[np.ndarray, " levels"]) -> list[Float[np.ndarray, " part"]]:
    """Cut sorted logarithms into the fewest parts no wider than ``WIDEST``, with the least scatter within parts."""
    centered = levels - levels.mean()
    sums, squares = (np.concatenate([[0.0], np.cumsum(centered**power)]) for power in (1, 2))
    cost, first = np.zeros(len(levels) + 1), np.zeros(len(levels) + 1, np.int64)
    for end in range(1, len(levels) + 1):
        starts = np.arange(np.searchsorted(levels, levels[end - 1] - np.log(WIDEST)), end)
        scatter = squares[end] - squares[starts] - (sums[end] - sums[starts]) ** 2 / (end - starts)
        # The scatter is less than 1 per level, so it never outweighs an additional part.
        costs = cost[starts] + len(levels) + scatter
        cost[end], first[end] = costs.min(), starts[np.argmin(costs)]
    cuts, end = [], len(levels)
    while end := int(first[end]):
        cuts.append(end)
    return np.split(levels, cuts[::-1])


RESAMPLED: dict[str, Callable[[Runs], np.ndarray]] = {
    "group": lambda runs: runs.group,
    "run": lambda runs: np.arange(len(runs)),
}
"""Units of resampling, as functions that return a label per run."""


def draws_of(runs: Runs, by: str) -> int:
    """Return the number of groups, or of runs, with a weight above 0."""
    return len(np.unique(RESAMPLED[by](runs)[runs.weight > 0]))
