"""Draw Zhao et al. (2025), Figures 1 to 4, 11 and 14 to 16: loss against one factor, and against the budget.

The paper's losses are not public, but its 446 settings are (Table 6). Curves and open markers show the law; the markers
are at the settings of Table 6. A run table adds points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from moejax.float64 import float64
from moejax.laws.mixtures.five_factor import (
    loss_at_optimum,
    loss_compute_limit,
    optimal_active_at_compute,
    with_experts,
)
from moejax.papers.documents import ZHAO
from moejax.papers.zhao.records import EQUATION_33
from moejax.papers.zhao.table_6 import Run, table_6
from moejax.report.figures.figure import Figure, FigureInputs, column, evaluate, ordered, structured
from moejax.report.figures.panels import ACTIVE, FLOPS, LOSS, TOKENS, TOTAL, Axis, Panel, Series, curves, figure
from moejax.report.figures.style import BLUE, INK, ORANGE, colored
from moejax.result import size

EXPERTS = Axis("active_experts", "active experts G")
SHARED = Axis("shared_share", "shared share S")
SHARE = Axis("active_share", "active share N_a/N")
AXES = {
    "total": replace(TOTAL, column="params_total_nonembedding"),
    "active": replace(ACTIVE, column="params_active_nonembedding"),
    "tokens": TOKENS,
    "experts": EXPERTS,
    "shared": SHARED,
}
LOG_LOSS = replace(LOSS, scale="log")
SETTINGS = "settings of Table 6, loss by the law"
OWN = "runs of the table"
POINTS = 61
COLUMNS = {
    "active": "params_active",
    "total": "params_total",
    "tokens": "tokens",
    "experts": "active_experts",
    "shared": "shared_share",
}
LETTERS = {"active": "N_a", "total": "N", "tokens": "D", "experts": "G", "shared": "S"}
READS = (*COLUMNS.values(), "loss")
FEWEST = 3
"""Minimum number of settings of a curve."""


@dataclass(frozen=True)
class Slice:
    """A panel of Table 6's settings: one factor varies along a curve, another between curves."""

    title: str
    held: Mapping[str, float | tuple[float, ...]]
    """Fixed factors, each with its value or a tuple of possible values."""
    vary: str
    by: str
    most: float = np.inf
    """Upper limit of the varied factor."""
    loss: Axis = LOSS
    ends: tuple[float, float] | None = None
    """Range of the curves; by default from the first to the last setting."""

    @property
    def runs(self) -> list[Run]:
        """Settings of the panel."""
        return [
            run
            for run in table_6()
            if getattr(run, self.vary) <= self.most
            and all(getattr(run, name) in np.atleast_1d(values) for name, values in self.held.items())
        ]


@dataclass(frozen=True, eq=False)
class Experiment:
    """A figure of the loss against one factor, with the other factors fixed."""

    number: str
    shows: str
    title: str
    caption: str
    slices: tuple[Slice, ...]

    def __call__(self, inputs: FigureInputs) -> Figure:
        """Draw the panels, with the table's runs that match the settings."""
        return _picture(inputs, [_panel(inputs, slice_) for slice_ in self.slices], self.title, self.caption)


def _by_tokens(**held: float | tuple[float, ...]) -> tuple[Slice, ...]:
    """Return a panel of loss against G for each number of tokens, with a curve per size."""
    budgets = (10e9, 20e9, 50e9)
    return tuple(Slice(f"D = {size(d, 3)}", {"tokens": d, **held}, "experts", "total") for d in budgets)


_SMALL = {"active": (48e6, 99e6, 181e6), "total": (247e6, 496e6, 907e6)}
_TABLE_1 = (247e6, 496e6, 907e6, 2404e6)
_FINE = {"experts": 20, "shared": 0.2, "total": 2404e6}
_LEAST = "The lowest loss is at the same G for all sizes and tokens: G* = sqrt(f/e)."
EXPERIMENTS = (
    Experiment(
        "1",
        "loss by sizes and tokens",
        "Loss against total parameters and tokens",
        "Against total parameters at fixed N_a, the law is a power law. Against tokens, the curves of all sizes are "
        "parallel: N and D do not interact.",
        (
            Slice(
                "N_a = 476M, G = 10, S = 0.2",
                {"active": 476e6, "experts": 10, "shared": 0.2},
                "total",
                "tokens",
                loss=LOG_LOSS,
            ),
            Slice(
                "Table 1, G = 5, S = 0.2",
                {"experts": 5, "shared": 0.2, "total": _TABLE_1},
                "tokens",
                "total",
                loss=LOG_LOSS,
            ),
        ),
    ),
    Experiment(
        "2",
        "loss by active parameters",
        "Loss against active parameters",
        "G = 20, S = 0.2, N fixed: more active parameters help until the experts become few and wide; beyond the "
        "minimum the loss rises again.",
        (
            Slice("N = 2.4B, small N_a/N", _FINE, "active", "tokens", most=0.4 * 2404e6, loss=LOG_LOSS),
            Slice("N = 2.4B, all N_a/N", _FINE, "active", "tokens", ends=(0.04 * 2404e6, 2404e6)),
        ),
    ),
    Experiment(
        "3",
        "loss by active experts",
        "Loss against active experts",
        f"S = 0.2. {_LEAST}",
        _by_tokens(shared=0.2, **_SMALL),
    ),
    Experiment(
        "4",
        "loss by shared share",
        "Loss against the share of shared experts",
        "G = 10. The loss falls from S = 0, is flat around S* = -n/(2m), and rises again.",
        tuple(
            Slice(
                f"N {size(total, 3)}, N_a {size(active, 3)}",
                {"total": total, "active": active, "experts": 10},
                "shared",
                "tokens",
            )
            for total, active in ((1209e6, 240e6), (2404e6, 476e6), (3964e6, 793e6))
        ),
    ),
    Experiment(
        "11",
        "loss by active experts, none shared",
        "Loss against active experts",
        f"S = 0, N_a = 30M. {_LEAST}",
        _by_tokens(shared=0, experts=(1, 2, 3, 4, 8, 16), active=30e6),
    ),
    Experiment(
        "15",
        "the larger models of the validation",
        "The marginal laws at larger sizes",
        "The settings that the paper held out from the fit: curves should have the shapes of smaller models.",
        (
            Slice("3.96B, N_a 453M, S 0.5", {"validation": True, "active": 453e6, "shared": 0.5}, "experts", "tokens"),
            Slice("3.96B, N_a 793M, G 10", {"validation": True, "active": 793e6, "experts": 10}, "shared", "tokens"),
            Slice("7.26B, G 10, S 0.2", {"validation": True, "total": 7255e6, "experts": 10}, "active", "tokens"),
        ),
    ),
)
for _experiment in EXPERIMENTS:
    ZHAO.experiment(_experiment.number, columns=READS, shows=_experiment.shows)(_experiment)


@ZHAO.experiment("14", shows="effect of the shared share, by size")
def shared_by_size(inputs: FigureInputs) -> Figure:
    """Draw Figure 14: the effect of S, above its minimum, by model size at 50B tokens."""
    pairs = ((48e6, 247e6), (99e6, 496e6), (181e6, 907e6), (240e6, 1209e6), (476e6, 2404e6), (793e6, 3964e6))
    shares = np.linspace(0.0, 0.7, POINTS)
    losses = {
        total: _law(inputs, active=active, total=total, tokens=50e9, experts=10.0, shared=shares)
        for active, total in pairs
    }
    above = curves(
        losses, lambda total: f"N = {size(total, 3)}", shares, lambda total: 1e3 * (losses[total] - losses[total].min())
    )
    gain = Series(
        label="gain over S = 0",
        x=[*losses],
        y=[1e3 * (loss[0] - loss.min()) for loss in losses.values()],
        mark="joined",
        color=INK,
        in_legend=False,
    )
    panels = [
        Panel(x=SHARED, y=Axis("loss_above_best_millinats", "loss above best S, millinats"), series=above),
        Panel(x=AXES["total"], y=Axis("gain_millinats", "gain over S = 0, millinats"), series=[gain]),
    ]
    return _picture(
        inputs,
        panels,
        "Gain from the shared share, by size",
        "G = 10, 50B tokens, N_a/N = 0.2. The paper calls the effect of S clearer in larger models; by its "
        "coefficients, the gain from S shrinks slowly with size.",
    )


def _law(inputs: FigureInputs, **factors: ArrayLike) -> np.ndarray:
    sizes = {COLUMNS[name]: factors[name] for name in ("active", "total", "tokens")}
    return evaluate(inputs.law, **structured(np.asarray(factors["experts"], float), factors["shared"], **sizes))


def _panel(inputs: FigureInputs, slice_: Slice) -> Panel:
    """Return a panel with a curve per value of ``by``, Table 6's settings, and the table's matching runs."""
    series, runs = [], slice_.runs
    values = ordered([getattr(run, slice_.by) for run in runs])
    settings = {value: [run for run in runs if getattr(run, slice_.by) == value] for value in values}
    groups = {value: own for value, own in settings.items() if len(own) >= FEWEST}
    for (value, own), color in colored(groups.items()):
        at = {name: np.array([getattr(run, name) for run in own]) for name in COLUMNS}
        places = at[slice_.vary]
        low, high = slice_.ends or (places.min(), places.max())
        line = np.geomspace(low, high, POINTS) if low > 0 else np.linspace(low, high, POINTS)
        factors = {name: getattr(own[0], name) for name in COLUMNS}
        curve = Series(
            label=f"{LETTERS[slice_.by]} = {size(value, 3)}",
            x=line,
            y=_law(inputs, **{**factors, slice_.vary: line}),
            color=color,
            mark="dashed" if slice_.vary == "tokens" else "line",
        )
        circles = Series(
            label=SETTINGS,
            x=places,
            y=_law(inputs, **at),
            mark="open",
            color=color,
            tokens=at["tokens"],
            in_legend=False,
        )
        series += [curve, circles, *_own(inputs, own[0], slice_, color)]
    return Panel(x=AXES[slice_.vary], y=slice_.loss, series=series, title=slice_.title)


def _own(inputs: FigureInputs, head: Run, slice_: Slice, color: str) -> list[Series]:
    """Return the table's runs whose fixed factors agree with the settings within 2 %."""
    if not inputs.has(*READS):
        return []
    table, vary = inputs.table, slice_.vary
    factors = {name: column(table, named) for name, named in COLUMNS.items()}
    if "params_embedding" in table:
        # The paper excludes embeddings from parameter counts.
        factors |= {name: factors[name] - column(table, "params_embedding") for name in ("active", "total")}
    held = [np.isclose(v, getattr(head, n), rtol=0.02, atol=1e-9) for n, v in factors.items() if n != vary]
    kept = np.logical_and.reduce(held) & (factors[vary] <= slice_.most)
    if not kept.any():
        return []
    x, y, tokens = factors[vary][kept], column(table, "loss")[kept], factors["tokens"][kept]
    return [Series(label=OWN, x=x, y=y, mark="points", color=color, tokens=tokens, in_legend=False)]


def _picture(inputs: FigureInputs, panels: Sequence[Panel], title: str, caption: str) -> Figure:
    circles = any(series.label == SETTINGS for panel in panels for series in panel.series)
    own = any(series.label == OWN for panel in panels for series in panel.series)
    caption += f" Curves: {inputs.name}."
    caption += f" Open markers: {SETTINGS}, areas ∝ D; the paper's losses are not public." if circles else ""
    caption += " Filled: runs of the table." + inputs.whose if own else ""
    caption += (
        " No run of the table has the fixed values of the curves." if inputs.table is not None and not own else ""
    )
    return figure(title, caption, panels, columns=len(panels), height=2.9 if len(panels) < 3 else 2.7)


TRILLION, EXPERTS_16, SHARED_16 = 1e12, 7.0, 0.31
BUDGETS = np.geomspace(1e20, 1e27, 15)


@ZHAO.experiment("16", shows="least loss by compute")
def best_loss(inputs: FigureInputs) -> Figure:
    """Draw Figure 16: L*(C) at N = 1T, G = 7, S = 0.31: exact, for h → 0, and by the printed Eq. 33.

    C is N_a·D, as in the paper.
    """
    law, given = inputs.law, (TRILLION, EXPERTS_16, SHARED_16)
    with float64():
        structure = law.structure(with_experts(EXPERTS_16, SHARED_16))
        limit = loss_compute_limit(law, TRILLION, structure)
        active = [optimal_active_at_compute(law, c, *given).value["params_active"] for c in BUDGETS]
        exact = np.array([float(loss_at_optimum(law, one, TRILLION, structure)) for one in active])
    without_h, printed = (evaluate(curve, flops=BUDGETS) for curve in (limit, EQUATION_33))
    compute = Axis("active_params_times_tokens", "C = N_a·D, no factor 6", FLOPS.scale)
    gaps = {"dotted": ("gap of the limit", without_h, INK), "joined": ("gap of Eq. 33", printed, ORANGE)}
    panels = [
        Panel(
            x=compute,
            y=LOSS,
            series=[
                Series(label="L*(C), Eqs. 31 and 32", x=BUDGETS, y=exact, color=BLUE),
                Series(label="its limit for h → 0", x=BUDGETS, y=without_h, mark="dotted", color=INK),
                Series(label="Eq. 33, 1.87 + 576·C^-0.158", x=BUDGETS, y=printed, mark="dashed", color=ORANGE),
            ],
        ),
        Panel(
            x=compute,
            y=Axis("gap_nats_per_token", "too low by, nats/token"),
            series=[
                Series(label=label, x=BUDGETS, y=exact - low, mark=mark, color=color, in_legend=False)
                for mark, (label, low, color) in gaps.items()
            ],
        ),
    ]
    return figure(
        "Lowest loss for a budget",
        f"N = 1T, G = 7, S = 0.31, by {inputs.name}. Eq. 33 is the limit in which a large active share costs nothing, "
        "with rounded numbers; the law's own minimum is above both, by more at larger budgets.",
        panels,
        columns=2,
        height=2.8,
    )
