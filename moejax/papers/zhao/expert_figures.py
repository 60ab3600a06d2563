"""Draw Zhao et al. (2025), Figure 17: the experts of a layer when only G, S, N_a or N varies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from moejax.architecture import Architecture
from moejax.laws.mixtures.five_factor import routed_experts_factor
from moejax.papers.documents import ZHAO
from moejax.papers.zhao.shapes import SHAPES, millions, model
from moejax.report.figures.figure import Figure, FigureInputs
from moejax.report.figures.style import BLUE, FAINT, ORANGE, PAPER, grid

SHAPE = "2.40B"
"""Model of Table 1 that Appendix H varies."""
COLORS = {"shared": ORANGE, "routed, active": BLUE, "routed, idle": FAINT}


@ZHAO.experiment("17", law="", shows="experts of a layer where G, S, N_a or N varies")
def factors(inputs: FigureInputs) -> Figure:
    """Draw Figure 17, to scale."""
    width = SHAPES[SHAPE][3]
    panels: dict[str, Sequence[tuple[str, Architecture]]] = {
        "G varies: experts are cut finer, S and widths stay": [
            (f"G = {g}", _model(33 * g // 5 - g // 5, g, g // 5, 5 * width // g)) for g in (5, 10, 20)
        ],
        "S varies at G = 10: routed experts become shared": [
            (f"S = {shared / 10:g}", _model(66 - shared, 10, shared, width // 2)) for shared in (0, 2, 4)
        ],
        "N_a varies at G = 20, S = 0.2: experts widen u times and become fewer (Eq. 35)": [
            (
                f"u = {u}",
                _model(round(128 * routed_experts_factor(u, 20, 0.2, 128)), 20, 4, u * 224),
            )
            for u in (1, 2, 4)
        ],
        "N varies: more routed experts of one width": [
            (f"N = {millions(one)[0]:.0f}M", one) for one in (_model(count, 5, 1, width) for count in (16, 32, 64))
        ],
    }
    drawing, every = grid(len(panels), 1, height_inches=1.1)
    rows: list[dict[str, Any]] = []
    for (title, variants), axes in zip(panels.items(), every, strict=True):
        axes.set_title(title)
        widths = [_bar(axes, row, model) for row, (_, model) in enumerate(variants)]
        for name, color in COLORS.items():
            axes.barh([0], [0.0], color=color, label=name)
        axes.set(xlim=(0, 1.002 * max(widths)), ylim=(len(variants) - 0.5, -0.5), yticks=range(len(variants)))
        axes.set_yticklabels([f"{name}: {m.num_experts} + {m.num_shared_experts}" for name, m in variants])
        axes.grid(False)
        rows += [_row(title, name, model) for name, model in variants]
    drawing.supylabel("routed + shared experts", fontsize=8.5)
    drawing.supxlabel("widths of a layer's experts side by side, hidden units", fontsize=8.5)
    drawing.legend(*every[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(COLORS))
    return Figure(
        "What varies with G, S, N_a and N",
        "Experts of one layer of Table 1's 2.40B model. In the first three panels, the total width and therefore N are "
        "constant; colored widths add up to N_a, which only the third panel changes. The fourth panel adds idle "
        "experts. Inferred: the paper's figure has no numbers; these are from Tables 1 and 6 and Appendix H.",
        drawing,
        rows,
    )


def _model(routed: int, active: int, shared: int, width: int) -> Architecture:
    return model(SHAPE, experts=routed, top_k=active - shared, shared=shared, expert_hidden=width)


def _bar(axes: Any, row: int, model: Architecture) -> float:
    """Draw a model's experts as blocks in a row, starting with shared experts, and return their total width."""
    counts = (model.num_shared_experts, model.top_k, model.num_experts - model.top_k)
    left = 0.0
    for count, color in zip(counts, COLORS.values(), strict=True):
        starts = left + model.expert_hidden * np.arange(count)
        axes.barh(
            np.full(count, row),
            model.expert_hidden,
            left=starts,
            height=0.72,
            color=color,
            edgecolor=PAPER,
            linewidth=0.4,
        )
        left += count * model.expert_hidden
    return left


def _row(title: str, name: str, model: Architecture) -> dict[str, Any]:
    total, active = millions(model)
    return {
        "panel": title,
        "variant": name,
        "num_experts": model.num_experts,
        "num_shared_experts": model.num_shared_experts,
        "top_k": model.top_k,
        "expert_hidden": model.expert_hidden,
        "params_total_millions": float(total),
        "params_active_millions": float(active),
    }
