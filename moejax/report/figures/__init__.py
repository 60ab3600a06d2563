"""Figures, one a file: findings in, a Picture out. Nothing is fitted here."""

from matplotlib import rc_context

from moejax.report.figures import (
    expert_loads,
    isoflop_slice,
    loss_vs_tokens,
    predicted_vs_actual,
    training_curves,
)
from moejax.report.figures.picture import Picture
from moejax.report.figures.style import RC, Draw
from moejax.report.findings import Findings

FIGURES: dict[str, Draw] = {
    "training_curves": training_curves.draw,
    "loss_vs_tokens": loss_vs_tokens.draw,
    "predicted_vs_actual": predicted_vs_actual.draw,
    "isoflop_slice": isoflop_slice.draw,
    "expert_loads": expert_loads.draw,
}
"""Every figure by its name, in the order of the page."""


def draw_all(found: Findings) -> dict[str, Picture]:
    """Every figure that has something to show, by its name."""
    with rc_context(RC):
        drawn = {name: draw(found) for name, draw in FIGURES.items()}
    return {name: picture for name, picture in drawn.items() if picture is not None}
