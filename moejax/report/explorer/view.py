"""What is seen of a state: numbers, panels, optimum and practical range, and what every law says."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from moejax.fit.prediction import RunRange, range_of
from moejax.float64 import float64
from moejax.laws import PUBLISHED
from moejax.laws.design import FIELDS, Design
from moejax.laws.predict import Prediction, predict
from moejax.report.explorer.available import Available, AvailableLaw
from moejax.report.explorer.curves import WITHIN, curves, design_of
from moejax.report.explorer.state import KNOBS, STRUCTURE, ExplorerState
from moejax.report.figures import leverage
from moejax.report.figures.panels import ACTIVE, EXPANSION, FLOPS, LOSS, Axis, Field, Panel, Series
from moejax.report.figures.style import BLUE, INK, ORANGE

POINTS, BUDGETS, CELLS = 81, 41, (41, 33)
DECADES = 3
"""Powers of ten of compute that are drawn on either side of the budget."""
MOVES = 1e-9
"""Nats below which a law does not read a knob."""
VALLEY = 0.35
"""Nats above the least that a slice shows: walls would hide the valley."""
AT_END = 1e-6
NEAR = 0.15
"""Share of the budget within which runs belong to its slice."""

AXES = {
    "params_active": ACTIVE,
    "expansion": EXPANSION,
    "expert_expansion": Axis("expert_expansion", "experts per active one, E", "log"),
    "active_experts": Axis("active_experts", "active experts, G", "log"),
    "shared_share": Axis("shared_share", "shared share, S"),
    "granularity": Axis("granularity", "granularity, G", "log"),
}
UNIQUE = Axis("unique_tokens", "unique tokens", "quantity")
MIXTURE, BESIDE = "this structure", "dense, equal active"


@dataclass(frozen=True, kw_only=True)
class Range:
    """One knob, the others held."""

    name: str
    now: float
    best: float
    low: float
    high: float
    gain: float
    """Nats that its best saves."""
    ends: tuple[bool, bool]
    """Whether low and high are where the search ends, not where the loss has risen."""

    @property
    def endless(self) -> bool:
        """Whether the best is where the search ends, and so no optimum of the law."""
        ends = KNOBS[self.name]
        at_least = ends.coordinate.least and math.isclose(self.best, ends.low, abs_tol=AT_END)
        at_low, at_high = (math.isclose(self.best, end, rel_tol=AT_END) for end in (self.low, self.high))
        return not at_least and ((at_low and self.ends[0]) or (at_high and self.ends[1]))


@dataclass(frozen=True, kw_only=True)
class View:
    """A page's data."""

    state: ExplorerState
    available_law: AvailableLaw
    prediction: Prediction
    """What `moejax predict` says by the chosen law."""
    range: RunRange | None
    """The range of such a run, by a fit of one's own; None for published constants."""
    design: Design
    dense: float
    """Loss of the dense model of equal active parameters and FLOPs."""
    unrepeated: float
    """Loss of the same if all its tokens were different."""
    effective: float | None
    """Parameters of the dense model that the law takes for the same, where it has such a number."""
    ranges: Sequence[Range]
    """How far every knob that the law reads may be turned, active parameters first."""
    dense_best: float
    """Active parameters of the best dense model of the budget."""
    panels: Mapping[str, Panel | Field]
    """By what they show."""
    leverage: float
    every: Mapping[str, Mapping[str, float]]
    """What every published law says, by law and set."""

    @property
    def prices_repeats(self) -> bool:
        """Whether to the law a repeated token is not a new one."""
        return "unique_tokens" in self.available_law.law.inputs

    @property
    def command(self) -> str:
        """The command that gives the same numbers in a terminal."""
        law, _, constants = self.state.law.partition(":")
        if self.available_law.published is None:
            words = ["moejax predict", f"--law {self.available_law.file}"]
        else:
            words = ["moejax predict", f"--law {law}", f"--constants {constants}"]
        read = [*self.available_law.law.inputs, *(["params_embedding"] if self.state.embedding_share else [])]
        return " ".join(
            words + [f"--{n.replace('_', '-')} {getattr(self.design, n):.12g}" for n in FIELDS if n in read]
        )


def view(state: ExplorerState, available: Available) -> View:
    """Everything that is shown.

    Raises:
      UserError: the design is none that the law can be asked about.
    """
    available_law = available.laws[state.law]
    with jax.enable_x64(True):
        point = design_of(state.values)
    design = Design(**{n: float(value) for n in FIELDS if (value := getattr(point, n)) is not None})
    prediction = predict(available_law.published or available_law.fit or available_law.law, design)
    grids = _grids(state)
    found = curves(available_law.law, state.values, grids)
    ranges = [_range(state, name, found) for name in STRUCTURE if _reads(found, name)]
    ratio = float(design.activation_ratio)
    every, leverage = _every(design, available)
    return View(
        state=state,
        available_law=available_law,
        prediction=prediction,
        range=None if available_law.fit is None else range_of(available_law.fit, design),
        design=design,
        dense=float(found["dense"]),
        unrepeated=float(found["unrepeated"]),
        effective=prediction.params_effective,
        ranges=ranges,
        dense_best=float(found["optima"]["dense"]["best"]),
        panels=_panels(state, available, grids, found, [r.name for r in ranges], ratio),
        leverage=leverage,
        every=every,
    )


def _grids(state: ExplorerState) -> dict[str, np.ndarray]:
    """Ends at whole decades, so that axes stay while a knob is turned."""
    middle = math.floor(math.log10(state.flops) + 0.5)
    lines = {name: KNOBS[name].line(POINTS) for name in STRUCTURE}
    sizes = _decades(state.params_active)
    few, many = _decades(state.tokens)
    few = min(few, 10 ** math.floor(math.log10(state.unique_tokens))) if math.isfinite(state.unique_tokens) else few
    most = max(64.0, 10 ** math.ceil(math.log10(state.expansion)))
    return {
        **lines,
        "params_active": np.geomspace(*sizes, POINTS),
        "expansion": np.geomspace(1.0, most, POINTS),
        "expert_expansion": np.geomspace(1.0, max(most, state.expert_expansion), POINTS),
        "unique_tokens": np.geomspace(few, many, POINTS),
        "flops": np.geomspace(10.0 ** (middle - DECADES), 10.0 ** (middle + DECADES), BUDGETS),
        "cells_active": np.geomspace(*sizes, CELLS[0]),
        "cells_expansion": np.geomspace(1.0, most, CELLS[1]),
    }


def _decades(value: float) -> tuple[float, float]:
    """Two decades down and up from the one nearest to a value."""
    middle = math.floor(math.log10(value) + 0.5)
    return 10.0 ** (middle - 2), 10.0 ** (middle + 2)


def _reads(found: Mapping[str, Any], name: str) -> bool:
    along = found["slices"][name]["mixture"]
    return bool(np.ptp(along) > MOVES) or name == "params_active"


def _range(state: ExplorerState, name: str, found: Mapping[str, Any]) -> Range:
    optimum, knob = found["optima"][name], KNOBS[name]
    low, high = knob.low, knob.high
    if name == "params_active":
        low, high = knob.coordinate.low, knob.coordinate.high
    close = [
        math.isclose(optimum[end], at, rel_tol=AT_END, abs_tol=AT_END) for end, at in (("low", low), ("high", high))
    ]
    return Range(
        name=name,
        now=getattr(state, name),
        best=float(optimum["best"]),
        low=float(optimum["low"]),
        high=float(optimum["high"]),
        gain=float(found["loss"] - optimum["least"]),
        ends=(close[0], close[1]),
    )


def _panels(
    state: ExplorerState,
    available: Available,
    grids: Mapping[str, np.ndarray],
    found: Mapping[str, Any],
    read: Sequence[str],
    ratio: float,
) -> dict[str, Panel | Field]:
    loss, budget = float(found["loss"]), grids["flops"]
    here = Series(label="here", x=[state.flops], y=[loss], mark="points", colour=INK)
    runs = _runs(available, "flops", state)
    compute = [*_both(budget, found["budgets"]), here, *runs]
    frontier = [*_both(budget, found["frontier"]), here, *runs]
    panels: dict[str, Panel | Field] = {
        "compute": Panel(x=FLOPS, y=LOSS, series=compute, title="This size at every budget"),
        "frontier": Panel(x=FLOPS, y=LOSS, series=frontier, title="The best size at every budget"),
    }
    for name in read:
        panels[name] = _slice(state, available, name, grids[name], found)
    if "unique_tokens" in available.laws[state.law].law.inputs:
        unique = [*_both(grids["unique_tokens"], found["slices"]["unique_tokens"])]
        at = Series(label="here", x=[state.tokens / state.epochs], y=[loss], mark="points", colour=INK)
        panels["unique_tokens"] = Panel(x=UNIQUE, y=LOSS, series=[*unique, at], title="Along unique tokens")
    cells = np.asarray(found["cells"])
    floor = float(np.nanmin(cells))
    steps = np.array([0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2])
    at = Series(label="here", x=[state.params_active], y=[state.expansion], mark="points", colour=ORANGE)
    panels["sizes"] = Field(
        x=ACTIVE,
        y=EXPANSION,
        z=LOSS,
        xs=grids["cells_active"],
        ys=grids["cells_expansion"],
        zs=np.where(cells < floor + VALLEY, cells, np.nan),
        title="Every size at this budget",
        marks=[at],
        contours=floor + steps,
    )
    star = Series(label="here", x=[state.granularity], y=[ratio], mark="points", colour=ORANGE)
    landscape = leverage.field(available.leverage.law, state.flops, [star])
    panels["leverage"] = replace(landscape, title="Efficiency leverage at this budget")
    return panels


def _both(x: np.ndarray, found: Mapping[str, Any]) -> list[Series]:
    """The dense curve, always beside."""
    return [
        Series(label=BESIDE, x=x, y=np.asarray(found["dense"]), colour=ORANGE, mark="dashed"),
        Series(label=MIXTURE, x=x, y=np.asarray(found["mixture"]), colour=BLUE),
    ]


def _slice(state: ExplorerState, available: Available, name: str, x: np.ndarray, found: Mapping[str, Any]) -> Panel:
    """The loss of the budget along one knob, its best and its practical range."""
    series, optimum = _both(x, found["slices"][name]), found["optima"][name]
    if name != "params_active":
        # Along a structure the dense model does not move: it is a level.
        series[0] = replace(series[0], y=np.full(len(x), float(found["dense"])))
    own = np.asarray(series[1].y)
    kept = (x >= optimum["low"]) & (x <= optimum["high"])
    if kept.sum() > 1:
        wide = Series(label=f"within {WITHIN:g} nats", x=x[kept], y=own[kept], colour=BLUE, width=6.0)
        series.append(wide)
    best, least = optimum["best"], float(optimum["least"])
    if x[0] <= best <= x[-1]:
        series.append(Series(label="best", x=[best], y=[least], mark="stars", colour=BLUE))
    if name == "params_active":
        best, dense = found["optima"]["dense"]["best"], float(found["optima"]["dense"]["least"])
        if x[0] <= best <= x[-1]:
            series.append(Series(label="best", x=[best], y=[dense], mark="stars", colour=ORANGE))
        series += _runs(available, name, state)
    series.append(Series(label="here", x=[getattr(state, name)], y=[float(found["loss"])], mark="points", colour=INK))
    ys = np.concatenate([np.ravel(s.y) for s in series])
    ys = ys[np.isfinite(ys)]
    top = min(float(ys.max()), max(float(ys.min()) + VALLEY, float(found["loss"]) + 0.02))
    margin = 0.06 * max(top - float(ys.min()), 1e-3)
    ylim = (float(ys.min()) - margin, top + margin)
    return Panel(x=AXES[name], y=LOSS, series=series, title=f"Along {KNOBS[name].words}", ylim=ylim)


def _runs(available: Available, column: str, state: ExplorerState) -> list[Series]:
    table = available.runs
    if table is None or column not in table or "loss" not in table:
        return []
    if column != "flops" and "flops" in table:
        table = table[np.isclose(table["flops"].to_numpy(float), state.flops, rtol=NEAR)]
    if not len(table):
        return []
    x, y = (table[name].to_numpy(dtype=float) for name in (column, "loss"))
    return [Series(label="your runs", x=x, y=y, mark="open", colour=INK)]


_PUBLISHED = {f"{law}:{name}": known.law for law, sets in PUBLISHED.items() for name, known in sets.items()}


def _every(design: Design, available: Available) -> tuple[dict[str, dict[str, float]], float]:
    asked = {
        key: law for key, law in _PUBLISHED.items() if all(getattr(design, name) is not None for name in law.inputs)
    }
    with float64():
        exact = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), (asked, available.leverage.law, design))
        said, leverage = jax.tree.map(float, _answers(*exact))
    return {key: dict(zip(asked[key].outputs, values, strict=True)) for key, values in said.items()}, leverage


@jax.jit
def _answers(laws: Mapping[str, Any], leverage: Any, design: Design) -> tuple[dict[str, tuple[Any, ...]], Any]:
    said = {}
    for key, law in laws.items():
        found = law(design)
        said[key] = tuple(found[name] for name in law.outputs) if isinstance(found, dict) else (found,)
    return said, leverage(design)["efficiency_leverage"]
