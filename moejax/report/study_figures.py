"""The figures of a study's report, by name: findings in, Figures out."""

from collections.abc import Callable

from matplotlib import rc_context

from moejax.fit.column_names import with_derived
from moejax.report import sources
from moejax.report.figures import (
    annealed_losses,
    expert_loads,
    isoflop_slice,
    loss_vs_compute,
    loss_vs_tokens,
    predicted_vs_actual,
    routing_health,
    running,
    training_curves,
)
from moejax.report.figures.figure import Figure
from moejax.report.figures.inputs import FigureInputs
from moejax.report.figures.scores_vs_loss import scores_vs_loss
from moejax.report.figures.style import RC, Draw
from moejax.report.findings import Findings


def _of_runs(draw: Callable[[FigureInputs], Figure | None], *columns: str) -> Draw:
    """A figure of the run table, if the table has the columns."""

    def drawn(found: Findings) -> Figure | None:
        table = with_derived(found.runs)
        return draw(FigureInputs(table=table)) if all(column in table for column in columns) else None

    return drawn


def _restarts(found: Findings) -> Figure | None:
    """When trainings were worked on, if any was not done in one attempt."""
    try:
        table = sources.attempts_table(found.concluded.folder)
    except ValueError:
        return None
    smooth = set(table["outcome"]) == {"done"} and table["model"].is_unique
    return None if smooth else running.restarts(FigureInputs(table=table))


def _annealed(found: Findings) -> Figure | None:
    """Predicted annealed losses beside measured ones, if the study asks for any."""
    annealed = found.concluded.annealed
    return annealed_losses.draw(annealed) if annealed is not None and annealed.models else None


def _scores(found: Findings) -> Figure | None:
    """Errors of tasks against the loss, if the study asks its checkpoints any."""
    downstream = found.concluded.downstream
    if downstream is None or "error" not in downstream.scores:
        return None
    table = downstream.scores[downstream.scores["error"].notna()]
    return scores_vs_loss(table, "Errors in tasks") if len(table) else None


FIGURES: dict[str, Draw] = {
    "loss_vs_compute": _of_runs(loss_vs_compute.runs, "loss", "flops"),
    "training_curves": training_curves.draw,
    "loss_vs_tokens": loss_vs_tokens.draw,
    "predicted_vs_actual": predicted_vs_actual.draw,
    "isoflop_slice": isoflop_slice.draw,
    "routing_health": _of_runs(routing_health.health),
    "expert_loads": expert_loads.draw,
    "restarts": _restarts,
    "annealed_losses": _annealed,
    "scores_vs_loss": _scores,
}
"""Every figure of a report by its name."""


def draw_all(found: Findings) -> dict[str, Figure]:
    """Every figure that has something to show, by its name."""
    with rc_context(RC):
        drawn = {name: draw(found) for name, draw in FIGURES.items()}
    return {name: figure for name, figure in drawn.items() if figure is not None}
