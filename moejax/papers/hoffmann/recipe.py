"""Fit IsoFLOP parabolas: the best size and tokens at every budget, and power laws of compute through these optima.

In Approach 2 of Hoffmann et al. (2022), a parabola in log size is fitted to the losses of each budget's runs, and its
vertex is the best size. Each kind of model (experts, experts per token) has its own parabolas.

All parabolas are fitted together, so that unequal FLOPs within a budget do not bias a vertex. The loss of a run with
fewer FLOPs than its budget is too high and is corrected. At the best size, the loss has the same slope in log FLOPs as
the lowest loss (the envelope theorem). The budgets' lowest losses therefore give the slope, and one linear regression
gives all parabolas.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.polynomial import polynomial

from moejax.errors import UserError
from moejax.fit.runs import SAME, WIDEST, Runs, budgets
from moejax.fit.sweeps.budget_losses import LEAST_SIZES, MIXTURES, NEAR_LOSS
from moejax.interval import in_percent
from moejax.laws.dense.chinchilla import FLOPS_PER_PARAM_AND_TOKEN
from moejax.laws.design import known
from moejax.papers.isoflop_optima import (
    LEAST_BUDGETS,
    SHOWN,
    IsoflopOptimum,
    Parabola,
    Trend,
    reach_of,
    trends_of,
    vertex,
)
from moejax.quantities import format
from moejax.result import Column, Result, Table
from moejax.wording import some

GROWTH = 0.5
"""Exponent of the best size in FLOPs, used to convert a run's size to the FLOPs of its budget. Within a budget, an
error in the exponent has little effect."""
ROUNDS = 5
"""Number of iterations that move each parabola's center to its vertex."""
DEGREE = 2
"""Maximum degree of the polynomial in log FLOPs that is fitted to the budgets' lowest losses."""


@dataclass(frozen=True, kw_only=True)
class JointParabolas:
    """The parabolas of one kind of model, one per budget."""

    curves: tuple[Parabola, ...]
    residual: float
    """Weighted sum of squared residuals of all parabolas."""
    degrees_of_freedom: int
    """Runs minus coefficients."""
    slope_is_known: bool
    """False if fewer than two budgets have a vertex; unequal FLOPs in a budget are ignored then."""


def joint_parabolas(
    runs: Runs,
    size: Float[np.ndarray, " runs"],
    budget: Int[np.ndarray, " runs"],
    flops: Float[np.ndarray, " budgets"],
    held: dict[str, float],
) -> JointParabolas:
    """Fit a parabola in log size at every budget, each with at least three sizes.

    Args:
      budget: budget of every run, as an index of ``flops``.
      flops: FLOPs of each budget, at which its parabola is computed.
      held: quantities that are equal in all runs, by name.
    """
    count, logs, spent = len(flops), np.log(size), np.log(flops)
    more = np.log(runs.design.flops) - spent[budget]
    moved = logs - GROWTH * more
    rows = [np.flatnonzero(budget == one) for one in range(count)]
    least, most = (np.array([of(logs[here]) for here in rows]) for of in (np.min, np.max))
    own = np.eye(count)[budget]

    def solve(center: np.ndarray, inside: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the design matrix, the inverse normal matrix, and coefficients with a row per power of size."""
        away = (moved - center[budget])[:, None]
        level = own + more[:, None] * _slopes(spent, inside)[budget]
        matrix = np.hstack([level, own * away, own * away**2])
        inverse = np.linalg.pinv(matrix.T @ (runs.weight[:, None] * matrix), hermitian=True)
        return matrix, inverse, (inverse @ matrix.T @ (runs.weight * runs.loss)).reshape(3, count)

    center, inside = np.array([logs[here[np.argmin(runs.loss[here])]] for here in rows]), np.ones(count, bool)
    for _ in range(ROUNDS):
        _, slope, curvature = solve(center, inside)[2]
        vertex = center - slope / np.where(curvature > 0, 2 * curvature, np.nan)
        inside = (least < vertex) & (vertex < most)
        center = np.where(inside, vertex, center)
    matrix, inverse, coefficients = solve(center, inside)
    covariances = inverse.reshape(3, count, 3, count)
    return JointParabolas(
        curves=tuple(
            Parabola(
                held=held,
                middle=float(center[one]),
                coefficients=coefficients[:, one],
                inverse=covariances[:, one, :, one],
                logs=(float(least[one] - center[one]), float(most[one] - center[one])),
            )
            for one in range(count)
        ),
        residual=float(runs.weight @ (runs.loss - matrix @ coefficients.ravel()) ** 2),
        degrees_of_freedom=len(runs) - 3 * count,
        slope_is_known=bool(inside.sum() > 1),
    )


def _slopes(spent: Float[np.ndarray, " budgets"], inside: Bool[np.ndarray, " budgets"]) -> np.ndarray:
    """Return the matrix that maps the budgets' lowest losses to slopes in log FLOPs; 0 if the slopes are unknown."""
    slopes = np.zeros((len(spent), len(spent)))
    degree = min(DEGREE, int(inside.sum()) - 1)
    if degree > 0:
        x = spent - spent.mean()
        through = np.linalg.pinv(polynomial.polyvander(x[inside], degree))
        slopes[:, inside] = polynomial.polyvander(x, degree - 1) @ (np.arange(1, degree + 1)[:, None] * through[1:])
    return slopes


INPUTS = ("flops", "tokens")
UNEQUAL = 0.01
"""Relative difference between a run's FLOPs and its budget above which a vertex moves noticeably."""
SIZE, TOKENS = "params_active", "tokens"


@dataclass(frozen=True, kw_only=True)
class BestSplit:
    """The vertex of one budget's parabola: the best size, and the corresponding tokens."""

    runs: int
    size: IsoflopOptimum
    tokens: IsoflopOptimum

    @property
    def why(self) -> str:
        """Reason why the best size or its interval is missing; empty if both exist."""
        size = self.size
        if size.value is not None and not size.determined:
            return "the runs do not determine it"
        return size.why


@dataclass(frozen=True, kw_only=True)
class IsoflopRecipe:
    """IsoFLOP parabolas of a table."""

    splits: tuple[BestSplit, ...]
    trends: tuple[Trend, ...]
    """Best size and tokens as powers of the budget, for every kind of model with enough vertices."""
    left_out: tuple[str, ...]
    warnings: tuple[str, ...]
    """Reasons why errors of vertices may exceed their intervals."""
    size_is_known: bool
    """True if the table has active parameters; otherwise sizes are FLOPs / (6 · tokens)."""
    noise_is_known: bool
    level: float

    def tables(self) -> list[Table]:
        """Return tables of the vertices and of the power laws through them."""
        kinds = sorted({name for one in self.splits for name in one.size.held})
        interval = f"{in_percent(self.level)} interval"
        columns = (
            Column("budget", ".3g"),
            *(Column(name, "g") for name in kinds),
            Column("runs"),
            *(Column(name, format) for name in ("N*", "low", "high", "D*")),
            Column("D*/N*", ".3g"),
            Column("L*", ".4f"),
            Column("remark", words=True),
        )
        rows = []
        for one in self.splits:
            size, tokens = one.size, one.tokens.value
            held = [size.held.get(name) for name in kinds]
            low, high = (end if np.isfinite(end) else None for end in (size.low, size.high))
            ratio = tokens / size.value if size.value and tokens else None
            rows.append([size.flops, *held, one.runs, size.value, low, high, tokens, ratio, size.loss, one.why])
        notes = [f"low and high: {interval} of N*, where the parabola's slope does not differ from 0 (Fieller)."]
        if not self.noise_is_known:
            notes = ["Every parabola passes through its three runs, so no vertex has an interval."]
        if not self.size_is_known:
            notes.append("Sizes are FLOPs / (6 · tokens): the table has no params_active.")
        notes += [f"! {sentence}" for sentence in self.warnings]
        notes += [f"Left out: {sentence}" for sentence in self.left_out]
        laws = []
        for one in self.trends:
            kind = ", ".join(f"{name} = {value:g}" for name, value in one.held.items())
            laws.append([one.what, kind or None, one.budgets, one.scale, one.exponent, one.low, one.high])
        law_columns = (
            Column("optimum"),
            Column("of", words=True),
            Column("budgets"),
            Column("scale", ".4g"),
            *(Column(name, ".4f") for name in ("exponent", "low", "high")),
        )
        fewest = f"A power law needs {LEAST_BUDGETS} budgets with a vertex, and no kind of model has as many."
        return [
            Table("IsoFLOP parabolas: the best size at each budget", columns, rows, notes, key="vertices"),
            Table(
                "Power laws of compute, scale·C^exponent, through the vertices",
                law_columns if laws else (),
                laws,
                [f"low and high: {interval} of the exponent, by Student's t." if laws else fewest],
                key="power-laws",
            ),
        ]

    def summary(self) -> Result:
        """Return the tables as a result."""
        return Result(
            title="IsoFLOP parabolas (Hoffmann et al. 2022, Approach 2)", tables=self.tables(), data=self.to_json()
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain data; unknown values are null."""
        return {
            "recipe": "isoflop",
            "level": self.level,
            "vertices": [
                {"runs": one.runs, **one.size.to_json(), "size": one.size.value, "tokens": one.tokens.value}
                for one in self.splits
            ],
            "power_laws": [one.to_json() for one in self.trends],
            "left_out": list(self.left_out),
            "warnings": list(self.warnings),
        }


def isoflop(runs: Runs, *, level: float = 0.9) -> IsoflopRecipe:
    """Fit a parabola to every budget of every kind of model, and power laws to their vertices.

    Raises:
      UserError: no budget has three sizes of one kind of model.
    """
    runs = runs.where(runs.weight > 0)
    design = known(runs.design)
    size = design.get(SIZE)
    if size is None:
        size = design["flops"] / (FLOPS_PER_PARAM_AND_TOKEN * design[TOKENS])
    number, flops = budgets(design["flops"])
    kinds = [name for name in MIXTURES if name in design and np.ptp(design[name]) > 0]
    fits, left_out, far = [], [], set()
    kind = np.column_stack([design[name] for name in kinds]) if kinds else np.zeros((len(runs), 1))
    for one in np.unique(kind, axis=0):
        held = dict(zip(kinds, map(float, one), strict=False))
        swept: list[tuple[float, np.ndarray]] = []
        for budget, spent in enumerate(flops):
            here = np.flatnonzero((number == budget) & (kind == one).all(axis=1))
            if (sizes := len(np.unique(size[here]))) >= LEAST_SIZES:
                near = here[_near(size[here], runs.loss[here])]
                swept.append((float(spent), near))
                if runs.loss[near].max() > (1 + NEAR_LOSS) * runs.loss[near].min():
                    far.add(f"{spent:.3g}")
            elif here.size:
                at = "".join(f", {name} = {value:g}" for name, value in held.items())
                left_out.append(f"{spent:.3g} FLOPs{at}: {sizes} of the {LEAST_SIZES} sizes needed for a parabola.")
        if swept:
            spents, every = zip(*swept, strict=True)
            rows, of = np.concatenate(every), np.repeat(np.arange(len(every)), [len(here) for here in every])
            fits.append((swept, joint_parabolas(runs.where(rows), size[rows], of, np.array(spents), held)))
    if not fits:
        raise UserError(
            f"A parabola needs {LEAST_SIZES} sizes of one kind of model at one budget, and no budget has as many; "
            "train more sizes at equal FLOPs, or name the column of budgets (--map flops=COLUMN). "
            f"{' '.join(left_out[:3])}"
        )
    reach = reach_of(sum(fit.residual for _, fit in fits), sum(fit.degrees_of_freedom for _, fit in fits), level)
    splits = []
    for swept, fit in fits:
        for (spent, here), curve in zip(swept, fit.curves, strict=True):
            best = vertex(spent, curve, reach)
            tokens = _tokens_at(best, size[here], design[TOKENS][here])
            splits.append(BestSplit(runs=len(here), size=best, tokens=tokens))
    trends = [
        *trends_of("N*", [one.size for one in splits], level),
        *trends_of("D*", [one.tokens for one in splits], level),
    ]
    return IsoflopRecipe(
        splits=tuple(splits),
        trends=tuple(trends),
        left_out=tuple(left_out),
        warnings=_warnings(design["flops"], [fit for _, fit in fits], sorted(far, key=float)),
        size_is_known=SIZE in design,
        noise_is_known=bool(np.isfinite(reach)),
        level=level,
    )


def _warnings(flops: np.ndarray, fits: Sequence[JointParabolas], far: Sequence[str]) -> tuple[str, ...]:
    """Return warnings about budgets that may belong together, uncorrected FLOPs, and parabolas over wide ranges."""
    warnings = []
    if close := [f"{one:.3g}" for one in _close_budgets(flops)]:
        warnings.append(
            f"The budgets {some(close, most=SHOWN)} FLOPs may be fewer budgets: they are less than 25 % apart, or "
            "their FLOPs form one chain. If the table has a column of nominal budgets, name it (--map flops=COLUMN); "
            "differences from the nominal budget are then ignored."
        )
    number, means = budgets(flops)
    unequal = np.abs(np.log(flops / means[number])).max() > UNEQUAL
    if unequal and not all(fit.slope_is_known for fit in fits):
        warnings.append(
            "FLOPs differ within a budget, and their effect on the loss is unknown: its estimate needs two budgets "
            "with a vertex for one kind of model."
        )
    if far:
        warnings.append(
            f"At {some(far, most=SHOWN)} FLOPs the parabola needs runs more than {100 * NEAR_LOSS:g} % above the "
            "lowest loss, where the loss is not a parabola in log size: train sizes closer to N*."
        )
    return tuple(warnings)


def _close_budgets(flops: Float[np.ndarray, " runs"]) -> Float[np.ndarray, " budgets"]:
    """Return budgets that may belong together: less than 25 % apart, or cut from one chain of FLOPs."""
    number, means = budgets(flops)
    least, most = (np.array([of(flops[number == one]) for one in range(len(means))]) for of in (np.min, np.max))
    close = (means[1:] < WIDEST * means[:-1]) | (least[1:] <= SAME * most[:-1])
    return means[np.append(close, False) | np.append(False, close)]


def _near(size: np.ndarray, loss: np.ndarray) -> np.ndarray:
    """Return the indices of a budget's runs near its lowest loss, with at least four sizes if there are as many."""
    _, number = np.unique(size, return_inverse=True)
    lowest = np.sort([loss[number == one].min() for one in range(number.max() + 1)])
    return np.flatnonzero(loss <= max((1 + NEAR_LOSS) * lowest[0], lowest[: LEAST_SIZES + 1][-1]))


def _tokens_at(best: IsoflopOptimum, size: np.ndarray, tokens: np.ndarray) -> IsoflopOptimum:
    """Return the tokens at the best size, from a log-log line through the budget's runs."""
    if best.value is None:
        return best
    line = np.polyfit(np.log(size), np.log(tokens), 1)

    def at(size_of_it: float) -> float:
        return float(np.exp(np.polyval(line, np.log(size_of_it))))

    low, high = sorted((at(best.low), at(best.high))) if best.determined else (np.nan, np.nan)
    return dataclasses.replace(best, value=at(best.value), low=low, high=high)
