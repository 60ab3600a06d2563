"""Draw Zhao et al. (2025), Figures 8, 10 and 13: coefficients of the marginal laws against the fixed factors.

Curves show the joint law's coefficients, and open markers show them at the settings of Table 6. Points are fits to
groups of a table's runs, which ``moejax fit --recipe zhao`` writes to ``marginal_coefficients.csv``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from moejax.float64 import float64
from moejax.laws.design import Design
from moejax.laws.law import Law
from moejax.laws.mixtures.fewer_factors import at_structure
from moejax.laws.mixtures.five_factor import FiveFactor
from moejax.laws.mixtures.marginal import margin_of_active, margin_of_shared
from moejax.papers.documents import ZHAO
from moejax.papers.zhao.margins import COLUMNS, INPUTS, WITH_GAMMA
from moejax.papers.zhao.recipe import marginal_table
from moejax.papers.zhao.table_6 import Run, table_6
from moejax.report.figures.figure import Figure, FigureInputs, column, ordered, structured
from moejax.report.figures.panels import TOKENS, TOTAL, Axis, Panel, Series, figure
from moejax.report.figures.style import SERIES, colored, ramp
from moejax.report.plots import FromRuns
from moejax.result import size

N = replace(TOTAL, column="params_total_nonembedding")
EXPERTS = Axis("active_experts", "active experts G")
SETTINGS = "settings of Table 6, by the law"
OWN = "fits to groups of runs"
POINTS = 61
READS = ("equation", "symbol", "value", *COLUMNS.values())
MARGINS = FromRuns(reads=INPUTS, table=lambda runs, _, law: marginal_table(runs, law))
NEAR = 0.02
"""Relative tolerance within which a table's value equals a setting."""


@dataclass(frozen=True)
class MarginalCurve:
    """A marginal law: its equation, its derivation from the joint law, and its settings in Table 6."""

    equation: str
    of_law: Callable[[FiveFactor, Design], Law]
    experts: float
    shared: float | None
    """Shared share; None if S varies."""
    settings: Sequence[Run]

    def value(self, law: FiveFactor, symbol: str, total: ArrayLike, tokens: ArrayLike) -> np.ndarray:
        """Return a coefficient at sizes and tokens. N_a is a fifth of N; only Eq. 10 depends on it."""
        total, tokens = np.broadcast_arrays(np.asarray(total, float), np.asarray(tokens, float))
        with float64():
            made = self.of_law(
                law,
                Design(
                    params_total=total,
                    params_active=total / 5,
                    tokens=tokens,
                    **structured(np.full(total.shape, self.experts), self.shared or 0.0),
                ),
            )
            return np.broadcast_to(np.asarray(_coefficient(made, symbol), float), total.shape)


@ZHAO.experiment("8", columns=READS, from_runs=MARGINS, shows="coefficients of Eq. 5 by sizes and tokens")
def active(inputs: FigureInputs) -> Figure:
    """Draw Figure 8."""
    runs = [run for run in table_6() if 204 <= run.index < 268 and run.total > 300e6]
    margin = MarginalCurve(WITH_GAMMA, margin_of_active, 20.0, 0.2, runs)
    iota, slope = Axis("iota_nats_per_token", "ι of Eq. 5, nats/token"), Axis("h_per_parameter", "h of Eq. 5", "log")
    panels = [
        _over(inputs, margin, "iota", iota, "total", "tokens"),
        _over(inputs, margin, "iota", iota, "tokens", "total"),
        _over(inputs, margin, "h", slope, "total", "tokens"),
    ]
    return _figure(
        inputs,
        panels,
        "Coefficients of Eq. 5 against N and D",
        "G = 20, S = 0.2. ι falls as a power of N and of D; h is inversely proportional to N and does not depend on D. "
        "Inferred: fits here fix γ at the joint law's α, like the paper from Eq. 7 on; five N_a do not determine both.",
    )


@ZHAO.experiment("10", columns=READS, from_runs=MARGINS, shows="coefficients of Eq. 7 by active experts")
def experts(inputs: FigureInputs) -> Figure:
    """Draw Figure 10."""
    runs = [run for run in table_6() if run.shared in (0.0, 0.2)]
    axes = (
        ("a", Axis("a", "a of Eq. 7")),
        ("c", Axis("c", "c of Eq. 7")),
        ("h", Axis("h", "h of Eq. 7")),
    )
    shares = ordered([run.shared for run in runs])
    panels = []
    for symbol, axis in axes:
        series: list[Series] = []
        for share, color in colored(shares):
            places = np.array(ordered([run.experts for run in runs if run.shared == share]))
            line = np.geomspace(places.min(), places.max(), POINTS)
            series += _pair(
                f"S = {share:g}",
                (line, _at(inputs.law, symbol, line, share)),
                (places, _at(inputs.law, symbol, places, share)),
                color,
            )
            series += _own(inputs, "Eq. 7", symbol, "active_experts", {"shared_share": share}, color)
        panels.append(Panel(x=EXPERTS, y=axis, series=series))
    return _figure(
        inputs,
        panels,
        "Coefficients of Eq. 7 against G",
        "a, c and h have the form e·G + f/G with a minimum at the same G, and h has no constant. The paper does not "
        "state what was fixed; inferred: fits here fix α, b, β and ε at the joint law's values.",
    )


@ZHAO.experiment("13", columns=READS, from_runs=MARGINS, shows="coefficients of Eq. 10 by sizes and tokens")
def shared(inputs: FigureInputs) -> Figure:
    """Draw Figure 13."""
    runs = [run for run in table_6() if 81 <= run.index < 174 or 370 <= run.index < 394]
    margin = MarginalCurve("Eq. 10", margin_of_shared, 10.0, None, runs)
    panels = [
        _over(inputs, margin, "m", Axis("m_nats_per_token", "m of Eq. 10"), "total", "tokens"),
        _over(inputs, margin, "n", Axis("n_nats_per_token", "n of Eq. 10"), "total", "tokens"),
        _over(inputs, margin, "psi", Axis("psi_nats_per_token", "ψ of Eq. 10, nats/token"), "total", "tokens"),
    ]
    return _figure(
        inputs,
        panels,
        "Coefficients of Eq. 10 against N and D",
        "G = 10, N_a = N/5. m and n do not depend on D and keep their ratio, so S* is constant; ψ falls with N and D. "
        "According to the paper, m grows with N and N_a, and n falls; by its own Eq. 11 both shrink towards 0 along "
        "N_a = N/5, and m grows only with N_a at fixed N.",
    )


def _at(law: FiveFactor, symbol: str, experts: np.ndarray, share: float) -> np.ndarray:
    with float64():
        return np.asarray(_coefficient(at_structure(law, experts, share), symbol), float)


def _coefficient(law: Any, symbol: str) -> Any:
    return next(getattr(law, f.name) for f in fields(law) if f.metadata["symbol"] == symbol)


LETTERS = {"total": ("N", "params_total_nonembedding", N), "tokens": ("D", "tokens", TOKENS)}


def _over(inputs: FigureInputs, margin: MarginalCurve, symbol: str, y: Axis, vary: str, by: str) -> Panel:
    """Return a panel of one coefficient against N or D, with a color per value of the other quantity."""
    letter, held, _ = LETTERS[by]
    structure = {"active_experts": margin.experts}
    structure |= {} if margin.shared is None else {"shared_share": margin.shared}
    series: list[Series] = []
    groups = ordered([getattr(run, by) for run in margin.settings])
    colors = ramp(len(groups)) if by == "tokens" else SERIES
    for value, color in zip(groups, colors, strict=False):
        places = np.array(ordered([getattr(run, vary) for run in margin.settings if getattr(run, by) == value]))
        line = np.geomspace(places.min(), places.max(), POINTS)
        curves = [margin.value(inputs.law, symbol, **{vary: at, by: value}) for at in (line, places)]
        series += _pair(f"{letter} = {size(value, 3)}", (line, curves[0]), (places, curves[1]), color)
        series += _own(inputs, margin.equation, symbol, LETTERS[vary][1], {held: value, **structure}, color)
    return Panel(x=LETTERS[vary][2], y=y, series=series)


def _pair(
    label: str, line: tuple[np.ndarray, np.ndarray], places: tuple[np.ndarray, np.ndarray], color: str
) -> Iterable[Series]:
    yield Series(label=label, x=line[0], y=line[1], color=color)
    yield Series(label=SETTINGS, x=places[0], y=places[1], mark="open", color=color, in_legend=False)


def _own(
    inputs: FigureInputs, equation: str, symbol: str, vary: str, held: dict[str, float], color: str
) -> Iterable[Series]:
    if inputs.table is None:
        return
    table = inputs.table[(inputs.table["equation"] == equation) & (inputs.table["symbol"] == symbol)]
    for name, value in held.items():
        table = table[np.isclose(column(table, name), value, rtol=NEAR, atol=1e-9)]
    if len(table):
        yield Series(
            label=OWN,
            x=column(table, vary),
            y=column(table, "value"),
            mark="points",
            color=color,
            in_legend=False,
        )


def _figure(inputs: FigureInputs, panels: Sequence[Panel], title: str, caption: str) -> Figure:
    own = sum(np.size(s.x) for panel in panels for s in panel.series if s.label == OWN)
    said = f"{caption} Curves: {inputs.name}. Open markers: {SETTINGS}; the paper's losses are not public."
    if own:
        said += " Filled: fits to a table's groups of runs."
    elif inputs.table is not None:
        said += " No group of the table's runs determines these coefficients at the curves' settings."
    return figure(title, said, panels, columns=3, height=2.7)
