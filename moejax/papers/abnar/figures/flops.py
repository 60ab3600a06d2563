"""Draw Abnar et al. (2025), Figure 7: the accuracy of 6·N_a·D as a count of a mixture's FLOPs."""

from __future__ import annotations

from moejax.laws.conventions import FLOPS, PARAMS
from moejax.papers.abnar.records import shape_of
from moejax.papers.documents import ABNAR
from moejax.report.figures.figure import Figure, FigureInputs
from moejax.report.figures.panels import TOTAL, Axis, Panel, Series, figure
from moejax.report.figures.style import coloured

CONTEXT = 2048
WIDTHS = (512, 768, 1024, 1536, 2048, 3072, 4096)
SPARSITIES = (0.0, 0.5, 0.75, 0.9, 0.95, 0.98)


@ABNAR.experiment("7", law="", shows="FLOPs by Eq. 9 over 6·N_a")
def estimator(inputs: FigureInputs) -> Figure:
    """Draw the ratio of Eq. 9 to 6·N_a per token against total parameters."""
    series = []
    for sparsity, colour in coloured(SPARSITIES):
        shapes = [shape_of(width, sparsity) for width in WIDTHS]
        ratios = [
            FLOPS["abnar-eq9"].per_token(one, CONTEXT) / FLOPS["6-params-active"].per_token(one, CONTEXT)
            for one in shapes
        ]
        totals = [PARAMS["abnar"].total(one) for one in shapes]
        series.append(Series(label=f"S = {100 * sparsity:g} %", x=totals, y=ratios, mark="joined", colour=colour))
    ratio = Axis("estimator_ratio", "FLOPs by Eq. 9 over 6·N_a·D")
    return figure(
        "How good 6·N_a·D is",
        "Training FLOPs by Eq. 9 over 6 · active parameters · tokens, at a context of 2048, for models 64 wide per "
        "layer with experts of 4·d_model (the paper's shapes are not printed): the gap closes with size.",
        [Panel(x=TOTAL, y=ratio, series=series, level=1.0)],
        columns=1,
        height=3.1,
    )
