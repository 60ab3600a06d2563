"""Predicted against measured from a table of predictions, as ``moejax compare --out`` writes it.

Zhao et al. (2025), Figure 5; Abnar et al. (2025), Figure 6.
"""

from __future__ import annotations

from dataclasses import replace

from moejax.laws.law import LOSS, with_unit
from moejax.report.figures.figure import Figure
from moejax.report.figures.inputs import FigureInputs, column
from moejax.report.figures.panels import Axis, Panel, Series, draw
from moejax.report.figures.style import BLUE, ORANGE

ROLES = (("fitted", BLUE, "points"), ("held out", ORANGE, "stars"))


def by_law(inputs: FigureInputs) -> Figure:
    """Zhao's Figure 5: a panel per law, runs kept from the fit as stars, areas proportional to the tokens."""
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
    """As ``by_law``, of laws that have no curves of their own: nobody has published constants of theirs."""
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
    """Abnar's Figure 6: the fitted runs and the held-out ones beside each other, for the first law of the table."""
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
