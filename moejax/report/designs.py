"""Draw the figure of loss against compute of a design."""

from __future__ import annotations

from pathlib import Path

from moejax.design.decide import DesignResult
from moejax.errors import UserError
from moejax.fit.fit_result import FitResult
from moejax.fit.tables.read_runs import ReadRuns
from moejax.laws.law import Published
from moejax.report.figures import compute
from moejax.report.figures.figure import FigureInputs, write_figure
from moejax.report.fit_report import fitted_runs


def draw_compute(
    folder: Path, decision: DesignResult, known: FitResult | Published, read: ReadRuns | None, file: Path, level: float
) -> None:
    """Write the figure of loss against compute. It shows the design, the curve of its proportions and a fit's runs.
    Write nothing if the law does not predict the loss.

    Args:
      read: runs of the fit; by default those next to its ``file``.
    """
    optimum = decision.optimum
    if isinstance(known, FitResult) and read is None:
        read = fitted_runs(known, file)
    design, loss = (None, None) if read is None else (read.runs.design, read.runs.loss)
    law = known if isinstance(known, FitResult) else known.law
    try:
        table = compute.compute_table(
            law, design, loss, flops=optimum.values.get("flops"), level=level, chosen=decision.chosen
        )
    except UserError:
        return
    drawn = FigureInputs(table=table)
    write_figure(folder, "loss-vs-compute", lambda: compute.loss_vs_compute(drawn), ("png", "pdf"))
