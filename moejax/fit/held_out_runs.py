"""Runs that were not fitted, one by one: what the law predicts of each, in which range it should fall, and how many do.

Every split's fit gives its own ranges (``prediction.predict_runs``), so none rests on the run that it is for. The share
of runs within their ranges is what tests them: the ranges know the scatter of the fitted runs and nothing of how a form
fails beyond them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
import scipy.special

from moejax.fit.holdout import HeldOut, pooled
from moejax.fit.holdout import to_json as errors_of
from moejax.fit.prediction import predict_runs
from moejax.interval import in_percent
from moejax.json_text import finite
from moejax.laws.chained_law import ChainedLaw
from moejax.run_table import DataFrame
from moejax.wording import counted

COLUMNS = ("split", "row", "run", "measured", "predicted", "low", "high", "half_ranges", "reason")
"""Columns of a table of held-out runs. ``half_ranges`` is how far the measured number lies from the predicted one, in
halves of the range of log loss and with its sign: beyond 1 it lies outside. ``reason`` says why a run has no range."""
ROUNDING = 1e-12
"""Half a range of log loss that is narrower is no measure of how far a run lies away."""
CHANCE = 0.01
"""Below this probability, so few runs in their ranges are not luck."""


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """How many runs lie within their ranges."""

    inside: int
    ranged: int
    """Runs that have a range."""
    level: float
    """The share that should lie within."""
    groups: int
    """Groups of those runs; runs of one group are alike, and count as one where luck is weighed."""

    @property
    def too_few(self) -> bool:
        """Whether so few lie within that luck does not explain it, if groups are independent of each other."""
        if not self.ranged:
            return False
        share = self.inside / self.ranged
        return bool(scipy.special.bdtr(round(share * self.groups), self.groups, self.level) < CHANCE)

    @property
    def sentence(self) -> str:
        """In words."""
        if not self.ranged:
            return "No run that was not fitted has a range."
        of = f"{self.inside} of {counted(self.ranged, 'run')} that were not fitted"
        said = f"{of} ({self.inside / self.ranged:.0%}) lie in their {in_percent(self.level)} ranges"
        if not self.too_few:
            return f"{said}."
        return f"{said}: the ranges are too narrow out there, and so are those of other runs as far away."


def held_out_runs(
    splits: Iterable[HeldOut],
    rows: Sequence[int] | np.ndarray,
    level: float = 0.9,
    *,
    covariance: str = "sandwich",
    by: str = "group",
) -> DataFrame:
    """Every held-out run of one split or more, with its range at ``level``: a table with ``COLUMNS``, output, level and
    group.

    Args:
      rows: the row in the file of every run that the splits are of.
      covariance: as of ``predict_runs``, for the coefficients of each split's fit.

    Raises:
      UserError: ``level`` is not between 0 and 1.
    """
    parts = []
    for split in splits:
        tested = split.runs
        # The covariance of a chain is in its fit: that of two fits to runs of their own.
        fitted = None if isinstance(split.fit.law, ChainedLaw) else split.fitted
        found = predict_runs(
            split.fit, fitted, None, tested.design, level, covariance=covariance, by=by, weight=tested.weight
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            # No range is narrower than the rounding of a number: runs by formula are met to the last digit.
            half = np.maximum((np.log(found.high) - np.log(found.low)) / 2, ROUNDING)
            away = np.log(tested.loss / split.predicted) / np.where(np.isfinite(half), half, np.nan)
        endless = np.where(np.isinf(half), "the range has no end", "")
        parts.append(
            pd.DataFrame(
                {
                    "split": split.name,
                    "row": np.asarray(rows)[split.held_out],
                    "run": tested.names
                    if tested.labels
                    else [f"row {row}" for row in np.asarray(rows)[split.held_out]],
                    "measured": tested.loss,
                    "predicted": split.predicted,
                    "low": found.low,
                    "high": found.high,
                    "half_ranges": away,
                    "reason": [why or other for why, other in zip(found.unknown, endless, strict=True)],
                    "output": split.fit.output,
                    "level": level,
                    "group": tested.group,
                }
            )
        )
    return pd.concat(parts, ignore_index=True)


def found(splits: Sequence[HeldOut], predicted: DataFrame) -> dict[str, Any]:
    """The errors of every split, of all together if there are several, and the runs, as plain data of a fit."""
    together = {"held_out_together": finite(pooled(splits))} if len(splits) > 1 else {}
    return {"held_out": errors_of(splits), **together, "held_out_runs": to_json(predicted)}


def coverage(table: DataFrame) -> Coverage:
    """How many runs of such a table lie within their ranges."""
    level = float(table["level"].iloc[0])
    ranged = table[np.isfinite(table["half_ranges"].to_numpy(np.float64))]
    inside = int((ranged["half_ranges"].abs() <= 1).sum())
    return Coverage(inside=inside, ranged=len(ranged), level=level, groups=ranged["group"].nunique())


def to_json(table: DataFrame) -> dict[str, Any]:
    """The table and its coverage as plain data; what is not finite is null."""
    tested = coverage(table)
    return {
        "output": str(table["output"].iloc[0]),
        **asdict(tested),
        "too_few": tested.too_few,
        "said": tested.sentence,
        "runs": finite(table[list(COLUMNS)].to_dict("records")),
    }


def from_json(found: Mapping[str, Any]) -> DataFrame:
    """The table that ``to_json`` was given, without groups."""
    table = pd.DataFrame(found["runs"], columns=list(COLUMNS))
    numbers = ["measured", "predicted", "low", "high", "half_ranges"]
    table = table.assign(**{name: table[name].astype(np.float64) for name in numbers})
    return table.assign(output=str(found["output"]), level=float(found["level"]))


def farthest(runs: Sequence[Mapping[str, Any]], most: int) -> list[Mapping[str, Any]]:
    """The runs that lie farthest from what was predicted of them, in halves of their ranges; those without last."""
    return sorted(runs, key=lambda one: -abs(one["half_ranges"] or 0.0))[:most]
