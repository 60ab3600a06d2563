"""Predicted against measured: from a table of predictions, as ``moejax compare --out`` writes it, and of any fitted law
through its runs, over each input too.

Zhao et al. (2025), Figure 5; Abnar et al. (2025), Figure 6.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from moejax.interval import in_percent
from moejax.laws.design import FIELDS
from moejax.laws.law import LOSS, with_unit
from moejax.report.figures.figure import Figure, FigureInputs, column
from moejax.report.figures.panels import ACTIVE, FLOPS, TOKENS, TOTAL, Axis, Panel, Series, draw
from moejax.report.figures.style import BLUE, MUTED, ORANGE, PAPER, grid

ROLES = (("fitted", BLUE, "points"), ("held out", ORANGE, "stars"))


def by_law(inputs: FigureInputs) -> Figure:
    """Draw Zhao's Figure 5: a panel per law with held-out runs as stars and areas proportional to the tokens."""
    laws = list(dict.fromkeys(inputs.table["law"]))
    panels = [_panel(inputs.table[inputs.table["law"] == law], str(law), ("fitted", "held out")) for law in laws]
    drawing, rows = draw(panels, columns=3, height=2.8)
    return Figure(
        "Predicted against measured, by law",
        "A point on the line is predicted exactly; stars were kept from the fit that predicts them. Areas ∝ tokens."
        + inputs.whose,
        drawing,
        rows,
    )


def fitted_here(inputs: FigureInputs) -> Figure:
    """Draw ``by_law`` for laws without published constants."""
    figure = by_law(inputs)
    roles = inputs.table[inputs.table["law"] == inputs.table["law"].iloc[0]]["role"]
    fitted, held_out = (int((roles == role).sum()) for role, *_ in ROLES)
    again = f" Stars are {held_out} of them, predicted by fits without them." if held_out else ""
    return replace(
        figure,
        title="Laws without published constants, fitted here",
        caption=f"No constants are published; these fits are of {fitted} runs.{again} A point on the line is predicted "
        f"exactly.{inputs.whose}",
    )


def fitted_and_held_out(inputs: FigureInputs) -> Figure:
    """Draw Abnar's Figure 6: fitted and held-out runs side by side, for the first law of the table."""
    law = inputs.table["law"].iloc[0]
    own = inputs.table[inputs.table["law"] == law]
    panels = [_panel(own, f"{law}: {role}", (role,)) for role, *_ in ROLES]
    drawing, rows = draw(panels, columns=2, height=3.3)
    return Figure(
        "Fitted and held out",
        "Left: runs that set the coefficients. Right: runs that did not, predicted by a fit without them. The line is "
        "equality." + inputs.whose,
        drawing,
        rows,
    )


MOST = 30
"""Held-out runs that get a line."""


def held_out_runs(inputs: FigureInputs) -> Figure:
    """Draw the prediction of each run that was not fitted, with its range and the measurement."""
    table = inputs.table.copy()
    table["away"] = np.abs(column(table, "half_ranges"))
    shown = table.sort_values("away", ascending=False, na_position="last").head(MOST)[::-1]
    measured, predicted, low, high = (column(shown, name) for name in ("measured", "predicted", "low", "high"))
    several = shown["split"].nunique() > 1
    names = [
        f"{run} ({split})" if several else str(run) for run, split in zip(shown["run"], shown["split"], strict=True)
    ]
    lines, inside = np.arange(len(shown)), column(shown, "half_ranges")
    drawing, (axes,) = grid(1, 1, height_inches=1.1 + 0.2 * len(names))
    axes.hlines(lines, low, high, color=BLUE, linewidth=4, alpha=0.35, label="range")
    axes.plot(predicted, lines, "|", color=BLUE, markersize=9, label="predicted")
    for label, kept, colour in (
        ("measured, in its range", np.abs(inside) <= 1, BLUE),
        ("measured, outside", np.abs(inside) > 1, ORANGE),
        ("measured, without a range", ~np.isfinite(inside), MUTED),
    ):
        if kept.any():
            axes.plot(measured[kept], lines[kept], "o", color=colour, markeredgecolor=PAPER, label=label)
    axes.set_yticks(lines, names)
    axes.set_xlabel(with_unit(str(table["output"].iloc[0])))
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    drawing.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    within, ranged, level = (table["away"] <= 1).sum(), np.isfinite(table["away"]).sum(), table["level"].iloc[0]
    share = f"{within} of {ranged} runs lie in their {in_percent(level)} ranges"
    some = f" The {len(shown)} farthest of {len(table)} are drawn." if len(shown) < len(table) else ""
    columns = ["split", "run", "measured", "predicted", "low", "high", "half_ranges"]
    return Figure(
        "Runs that were not fitted",
        f"{share}, each predicted by a fit without it; farthest first.{some}{inputs.whose}",
        drawing,
        shown[::-1][columns].to_dict("records"),
    )


def _panel(table, title: str, roles: tuple[str, ...]) -> Panel:
    output = str(table["output"].iloc[0])
    loss = output in LOSS
    series, errors = [], []
    for role, colour, mark in ROLES:
        own = table[table["role"] == role]
        if role not in roles or not len(own):
            continue
        measured, predicted = column(own, "measured"), column(own, "predicted")
        tokens = column(own, "tokens") if "tokens" in own else None
        series.append(Series(label=role, x=measured, y=predicted, mark=mark, colour=colour, tokens=tokens))
        errors.append(f"{role} {abs(predicted - measured).mean():{'.4f' if loss else '.4g'}}")
    axes = [Axis(name, f"{name} {with_unit(output)}") for name in ("measured", "predicted")]
    note = "\n".join(["MAE, nats" if loss else "MAE", *errors])
    return Panel(x=axes[0], y=axes[1], series=series, title=title, diagonal=True, corner=note)


KNOWN = {axis.column: axis for axis in (ACTIVE, TOTAL, TOKENS, FLOPS)}
WIDE = 5.0
"""Ratio of the largest value to the smallest from which an axis is logarithmic."""


def through_runs(inputs: FigureInputs) -> Figure:
    """Draw predictions against measurements, and a panel for each input of the law that varies."""
    table = inputs.table
    measured, predicted = column(table, "measured"), column(table, "predicted")
    output = str(table["output"].iloc[0])
    words = with_unit(output)
    varying = [name for name in FIELDS if name in table and np.ptp(column(table, name)) > 0]
    equality = Series(label="runs", x=measured, y=predicted, mark="points", colour=BLUE, in_legend=False)
    error = float(np.sqrt(np.mean((predicted - measured) ** 2)))
    panels = [
        Panel(
            x=Axis("measured", f"measured {words}"),
            y=Axis("predicted", f"predicted {words}"),
            series=[equality],
            title="Predicted and measured",
            diagonal=True,
            corner=f"RMSE {error:.4g}",
        )
    ]
    for name in varying:
        x = column(table, name)
        order = np.argsort(x, kind="stable")
        series = [
            Series(label="measured", x=x[order], y=measured[order], mark="points", colour=BLUE),
            Series(label="predicted by the law", x=x[order], y=predicted[order], mark="open", colour=ORANGE),
        ]
        panels.append(Panel(x=_axis(name, x), y=Axis(output, words), series=series, title=f"Over {_words(name)}"))
    drawing, rows = draw(panels, columns=2, height=2.8)
    return Figure(
        f"{table['law'].iloc[0]} through its runs",
        f"{len(table)} runs. On the line a run is predicted exactly; a trend of the distance over an input says that "
        f"the law's form misses it.{inputs.whose}",
        drawing,
        rows,
    )


def _axis(name: str, values: np.ndarray) -> Axis:
    if name in KNOWN:
        return KNOWN[name]
    wide = values.min() > 0 and values.max() / values.min() > WIDE
    return Axis(name, _words(name), "log" if wide else "linear")


def _words(name: str) -> str:
    return KNOWN[name].words if name in KNOWN else name.replace("_", " ")
