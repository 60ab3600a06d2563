"""Draw the cost of a plan: bars of memory per chip, or of seconds per step, by part."""

from __future__ import annotations

import numpy as np
from matplotlib.patches import Patch

from moejax.report.figures.figure import Figure, FigureInputs
from moejax.report.figures.style import INK, MUTED, PAPER, RED, SERIES, grid

UNITS = {
    "bytes": (1e9, "memory per chip, GB"),
    "seconds": (1e-3, "time per step, ms"),
    "flops": (1e12, "TFLOPs per chip"),
}


def bars(inputs: FigureInputs) -> Figure:
    """Draw a panel per quantity with a bar per plan, stacked by part. Limits are lines."""
    table = inputs.table
    quantities = list(dict.fromkeys(table["quantity"]))
    plans = list(dict.fromkeys(table["plan"]))
    parts = list(dict.fromkeys(table["part"]))
    colours = dict(zip(parts, [*SERIES, MUTED, INK, *SERIES], strict=False))
    lines = sum(1 + str(plan).count("\n") for plan in plans)
    drawing, panels = grid(len(quantities), 2, height_inches=1.4 + 0.36 * lines, sharey=True)
    for quantity, axes in zip(quantities, panels, strict=True):
        own = table[table["quantity"] == quantity]
        unit, words = UNITS.get(str(quantity), (1.0, str(quantity)))
        left = np.zeros(len(plans))
        for part in parts:
            width = np.array(
                [own[(own["plan"] == plan) & (own["part"] == part)]["value"].sum() / unit for plan in plans]
            )
            if width.any():
                axes.barh(plans, width, left=left, color=colours[part], edgecolor=PAPER, linewidth=0.6, height=0.6)
                left += width
        for total, plan in zip(left, range(len(plans)), strict=True):
            axes.annotate(
                f"{total:.3g}", (total, plan), (3, 0), textcoords="offset points", va="center", fontsize=7.5, color=INK
            )
        limit = own["limit"].dropna().unique() if "limit" in own else []
        for value in limit:
            axes.axvline(value / unit, color=RED, linewidth=1.2, linestyle="--")
        axes.set_xlim(0, 1.16 * max([left.max(), *(value / unit for value in limit)]))
        axes.set_xlabel(words)
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)
    panels[0].invert_yaxis()
    handles = [Patch(color=colours[part], label=str(part)) for part in parts]
    drawing.legend(handles=handles, loc="outside lower center", ncols=min(len(parts), 5), handlelength=1.0)
    return Figure(
        "Plans, part by part",
        "What each plan needs on one chip; the dashed line is what the chip has." + inputs.whose,
        drawing,
        table.to_dict("records"),
    )
