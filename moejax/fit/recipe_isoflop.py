"""Fit IsoFLOP parabolas: the best size and tokens at every budget, and power laws of compute through them.

Approach 2 of Hoffmann et al. (2022): at each budget a parabola in log size is fitted to the losses of its runs; its
vertex is the best size there. Each kind of model (experts, experts per token) has its own parabolas.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from moejax.errors import UserError
from moejax.fit.budget_losses import MIXTURES
from moejax.fit.isoflop_analysis import LEAST_BUDGETS, Trend, trends_of
from moejax.fit.isoflop_curves import LEAST_SIZES, IsoflopOptimum, parabola, reach_of, vertex
from moejax.fit.runs import Runs, budgets
from moejax.interval import in_percent
from moejax.laws.chinchilla import FLOPS_PER_PARAM_AND_TOKEN
from moejax.laws.design import known
from moejax.quantities import format
from moejax.result import Column, Result, Table

INPUTS = ("flops", "tokens")
SIZE, TOKENS = "params_active", "tokens"


@dataclass(frozen=True, kw_only=True)
class BestSplit:
    """The vertex of one budget's parabola: the best size, and its tokens at this budget."""

    runs: int
    size: IsoflopOptimum
    tokens: IsoflopOptimum

    @property
    def why(self) -> str:
        """Reason why there is no best size or no interval; empty if there are both."""
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
        notes = [f"low and high: {interval} of N*, where the parabola's slope cannot be told from 0 (Fieller)."]
        if not self.noise_is_known:
            notes = ["Every parabola passes through its three runs, so that no vertex has an interval."]
        if not self.size_is_known:
            notes.append("Sizes are FLOPs / (6 · tokens): the table has no params_active.")
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
        fewest = f"No kind of model has {LEAST_BUDGETS} budgets with a vertex, which a power law needs."
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
    curves, left_out = [], []
    kind = np.column_stack([design[name] for name in kinds]) if kinds else np.zeros((len(runs), 1))
    for one in np.unique(kind, axis=0):
        held = dict(zip(kinds, map(float, one), strict=False))
        for budget, spent in enumerate(flops):
            here = (number == budget) & (kind == one).all(axis=1)
            if (sizes := len(np.unique(size[here]))) >= LEAST_SIZES:
                curves.append((float(spent), here, parabola(runs.where(here), size[here], held)))
            elif here.any():
                at = "".join(f", {name} = {value:g}" for name, value in held.items())
                left_out.append(f"{spent:.3g} FLOPs{at}: {sizes} of the {LEAST_SIZES} sizes that a parabola needs.")
    if not curves:
        raise UserError(
            f"No budget has {LEAST_SIZES} sizes of one kind of model, which a parabola needs; train more sizes at "
            f"equal FLOPs, or name the column of the budgets (--map flops=COLUMN). {' '.join(left_out[:3])}"
        )
    reach = reach_of([curve for *_, curve in curves], level)
    splits = []
    for spent, here, curve in curves:
        best = vertex(spent, curve, reach)
        tokens = _tokens_at(best, size[here], design[TOKENS][here])
        splits.append(BestSplit(runs=int(here.sum()), size=best, tokens=tokens))
    trends = [
        *trends_of("N*", [one.size for one in splits], level),
        *trends_of("D*", [one.tokens for one in splits], level),
    ]
    return IsoflopRecipe(
        splits=tuple(splits),
        trends=tuple(trends),
        left_out=tuple(left_out),
        size_is_known=SIZE in design,
        noise_is_known=bool(np.isfinite(reach)),
        level=level,
    )


def _tokens_at(best: IsoflopOptimum, size: np.ndarray, tokens: np.ndarray) -> IsoflopOptimum:
    """Return the tokens at the best size, by a line through the budget's runs in logarithms."""
    if best.value is None:
        return best
    line = np.polyfit(np.log(size), np.log(tokens), 1)

    def at(size_of_it: float) -> float:
        return float(np.exp(np.polyval(line, np.log(size_of_it))))

    low, high = sorted((at(best.low), at(best.high))) if best.determined else (np.nan, np.nan)
    return dataclasses.replace(best, value=at(best.value), low=low, high=high)
