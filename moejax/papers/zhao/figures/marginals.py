"""Draw Zhao et al. (2025), Figures 1 to 4, 11, 14 and 15: the loss against one factor, with the others fixed.

The paper's losses are not public, but its 446 settings are (Table 6). Curves are from the law, and open circles are the
law at the settings of Table 6. A run table adds its points.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from moejax.papers.documents import ZHAO
from moejax.papers.zhao.table_6 import Run, table_6
from moejax.report.figures.figure import Figure, FigureInputs, column, evaluate, ordered, structured
from moejax.report.figures.panels import ACTIVE, LOSS, TOKENS, TOTAL, Axis, Panel, Series, figure
from moejax.report.figures.style import INK, coloured
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
READS = ("params_active", "params_total", "tokens", "active_experts", "shared_share", "loss")
FEWEST = 3
"""Minimum number of settings of a curve."""


@dataclass(frozen=True)
class Slice:
    """A panel of settings of Table 6 that vary in one factor along a curve, and in another between curves."""

    title: str
    where: Callable[[Run], bool]
    vary: str
    by: str
    most: float = np.inf
    """Upper limit of the varied factor."""
    loss: Axis = LOSS
    ends: tuple[float, float] | None = None
    """Ends of the curves; default: the first and last setting."""

    @property
    def runs(self) -> list[Run]:
        """Settings of the panel."""
        return [run for run in table_6() if self.where(run) and getattr(run, self.vary) <= self.most]


@dataclass(frozen=True)
class Experiment:
    """Panels of the loss against one factor, with the others fixed."""

    title: str
    caption: str
    slices: tuple[Slice, ...]

    def __call__(self, inputs: FigureInputs) -> Figure:
        """Draw the panels, with the runs of a table that have the settings."""
        return _picture(inputs, [_panel(inputs, one) for one in self.slices], self.title, self.caption)


def _by_tokens(where: Callable[[Run], bool]) -> tuple[Slice, ...]:
    return tuple(
        Slice(f"D = {size(tokens, 3)}", lambda r, d=tokens: where(r) and r.tokens == d, "experts", "total")
        for tokens in (10e9, 20e9, 50e9)
    )


_SMALL = ((48e6, 247e6), (99e6, 496e6), (181e6, 907e6))
_LEAST = "The lowest loss is at the same G for all sizes and tokens: G* = sqrt(f/e)."
EXPERIMENTS = {
    ("1", "loss by sizes and tokens"): Experiment(
        "Loss against total parameters and tokens",
        "Along total parameters the law is a power law at fixed N_a; along tokens the curves of all sizes are "
        "parallel: N and D do not interact.",
        (
            Slice(
                "N_a = 476M, G = 10, S = 0.2",
                lambda r: (r.active, r.experts, r.shared) == (476e6, 10, 0.2),
                "total",
                "tokens",
                loss=LOG_LOSS,
            ),
            Slice(
                "Table 1, G = 5, S = 0.2",
                lambda r: (r.experts, r.shared) == (5, 0.2) and r.total in (247e6, 496e6, 907e6, 2404e6),
                "tokens",
                "total",
                loss=LOG_LOSS,
            ),
        ),
    ),
    ("2", "loss by active parameters"): Experiment(
        "Loss against active parameters",
        "G = 20, S = 0.2, N held: more active parameters help until the experts become few and wide; beyond the "
        "minimum the loss rises again.",
        (
            Slice(
                "N = 2.4B, small N_a/N",
                lambda r: (r.experts, r.shared, r.total) == (20, 0.2, 2404e6),
                "active",
                "tokens",
                most=0.4 * 2404e6,
                loss=LOG_LOSS,
            ),
            Slice(
                "N = 2.4B, all N_a/N",
                lambda r: (r.experts, r.shared, r.total) == (20, 0.2, 2404e6),
                "active",
                "tokens",
                ends=(0.04 * 2404e6, 2404e6),
            ),
        ),
    ),
    ("3", "loss by active experts"): Experiment(
        "Loss against active experts",
        f"S = 0.2. {_LEAST}",
        _by_tokens(lambda r: r.shared == 0.2 and (r.active, r.total) in _SMALL),
    ),
    ("4", "loss by shared share"): Experiment(
        "Loss against the share of shared experts",
        "G = 10. The loss falls from S = 0, is flat around S* = -n/(2m), and rises again.",
        tuple(
            Slice(
                f"N {size(total, 3)}, N_a {size(active, 3)}",
                lambda r, n=total, own=active: (r.total, r.active, r.experts) == (n, own, 10),
                "shared",
                "tokens",
            )
            for total, active in ((1209e6, 240e6), (2404e6, 476e6), (3964e6, 793e6))
        ),
    ),
    ("11", "loss by active experts, none shared"): Experiment(
        "Loss against active experts",
        f"S = 0, N_a = 30M. {_LEAST}",
        _by_tokens(lambda r: r.shared == 0 and r.experts in (1, 2, 3, 4, 8, 16) and r.active == 30e6),
    ),
    ("15", "the larger models of the validation"): Experiment(
        "The marginal laws at larger sizes",
        "The settings that the paper kept from the fit: the shapes of smaller models must return.",
        (
            Slice(
                "3.96B, N_a 453M, S 0.5",
                lambda r: r.validation and (r.active, r.shared) == (453e6, 0.5),
                "experts",
                "tokens",
            ),
            Slice(
                "3.96B, N_a 793M, G 10",
                lambda r: r.validation and (r.active, r.experts) == (793e6, 10),
                "shared",
                "tokens",
            ),
            Slice(
                "7.26B, G 10, S 0.2",
                lambda r: r.validation and (r.total, r.experts) == (7255e6, 10),
                "active",
                "tokens",
            ),
        ),
    ),
}
"""Figures by number, with what they show."""
for (_number, _shows), _experiment in EXPERIMENTS.items():
    ZHAO.experiment(_number, columns=READS, shows=_shows)(_experiment)


@ZHAO.experiment("14", shows="what the shared share changes, by size")
def shared_by_size(inputs: FigureInputs) -> Figure:
    """Draw Figure 14: the effect of S, above its minimum, by model size at 50B tokens."""
    pairs = ((48e6, 247e6), (99e6, 496e6), (181e6, 907e6), (240e6, 1209e6), (476e6, 2404e6), (793e6, 3964e6))
    shares = np.linspace(0.0, 0.7, POINTS)
    losses, series = [], []
    for (own, total), colour in coloured(pairs):
        loss = _law(inputs, own, total, 50e9, 10.0, shares)
        losses.append(loss)
        series.append(Series(label=f"N = {size(total, 3)}", x=shares, y=1e3 * (loss - loss.min()), colour=colour))
    panels = [
        Panel(x=SHARED, y=Axis("loss_above_best_millinats", "loss above best S, millinats"), series=series),
        Panel(
            x=AXES["total"],
            y=Axis("gain_millinats", "gain over S = 0, millinats"),
            series=[
                Series(
                    label="gain over S = 0",
                    x=[total for _, total in pairs],
                    y=[1e3 * (loss[0] - loss.min()) for loss in losses],
                    mark="joined",
                    colour=INK,
                    in_legend=False,
                )
            ],
        ),
    ]
    return _picture(
        inputs,
        panels,
        "What the shared share is worth, by size",
        "G = 10, 50B tokens, N_a/N = 0.2. The paper calls the effect of S clearer in larger models; by its "
        "coefficients what S is worth shrinks slowly with size.",
    )


def _law(inputs: FigureInputs, active: Any, total: Any, tokens: Any, experts: Any, shared: Any) -> np.ndarray:
    sizes = {"params_active": active, "params_total": total, "tokens": tokens}
    return evaluate(inputs.law, **structured(np.asarray(experts, float), shared, **sizes))


def _panel(inputs: FigureInputs, slice_: Slice) -> Panel:
    """Return a curve per value of ``by`` through the slice's settings, and the matching runs of the inputs' table."""
    series = []
    runs = slice_.runs
    settings = {
        value: [run for run in runs if getattr(run, slice_.by) == value]
        for value in ordered([getattr(run, slice_.by) for run in runs])
    }
    groups = {value: own for value, own in settings.items() if len(own) >= FEWEST}
    for (value, own), colour in coloured(groups.items()):
        places = np.array([getattr(run, slice_.vary) for run in own])
        low, high = slice_.ends or (places.min(), places.max())
        line = np.geomspace(low, high, POINTS) if low > 0 else np.linspace(low, high, POINTS)
        head = own[0]
        factors = {name: getattr(head, name) for name in ("active", "total", "tokens", "experts", "shared")}
        series.append(
            Series(
                label=_label(slice_.by, value),
                x=line,
                y=_law(inputs, **{**factors, slice_.vary: line}),
                colour=colour,
                mark="dashed" if slice_.vary == "tokens" else "line",
            )
        )
        arrays = {name: np.array([getattr(run, name) for run in own]) for name in factors}
        series.append(
            Series(
                label=SETTINGS,
                x=places,
                y=_law(inputs, **arrays),
                mark="open",
                colour=colour,
                tokens=arrays["tokens"],
                in_legend=False,
            )
        )
        series += _own(inputs, own, slice_, colour)
    return Panel(x=AXES[slice_.vary], y=slice_.loss, series=series, title=slice_.title)


def _own(inputs: FigureInputs, settings: Sequence[Run], slice_: Slice, colour: str) -> list[Series]:
    """Return the runs of the table that agree with the settings in all fixed factors, to within 2 %."""
    if not inputs.has(*COLUMNS.values(), "loss"):
        return []
    table, head, vary = inputs.table, settings[0], slice_.vary
    factors = {name: column(table, named) for name, named in COLUMNS.items()}
    if "params_embedding" in table:
        # The paper excludes embeddings from parameter counts.
        factors |= {name: factors[name] - column(table, "params_embedding") for name in ("active", "total")}
    held = [np.isclose(v, getattr(head, n), rtol=0.02, atol=1e-9) for n, v in factors.items() if n != vary]
    kept = np.logical_and.reduce(held) & (factors[vary] <= slice_.most)
    if not kept.any():
        return []
    return [
        Series(
            label=OWN,
            x=factors[vary][kept],
            y=column(table, "loss")[kept],
            mark="points",
            colour=colour,
            tokens=factors["tokens"][kept],
            in_legend=False,
        )
    ]


def _label(by: str, value: float) -> str:
    letters = {"active": "N_a", "total": "N", "tokens": "D", "experts": "G", "shared": "S"}
    return f"{letters[by]} = {size(value, 3)}"


def _picture(inputs: FigureInputs, panels: Sequence[Panel], title: str, caption: str) -> Figure:
    circles = any(series.label == SETTINGS for panel in panels for series in panel.series)
    own = any(series.label == OWN for panel in panels for series in panel.series)
    caption += f" Curves: {inputs.name}."
    caption += f" Open circles: {SETTINGS}, areas ∝ D; the paper's losses are not public." if circles else ""
    caption += " Filled: runs of the table." + inputs.whose if own else ""
    caption += " No run of the table has what the curves hold." if inputs.table is not None and not own else ""
    return figure(title, caption, panels, columns=len(panels), height=2.9 if len(panels) < 3 else 2.7)
