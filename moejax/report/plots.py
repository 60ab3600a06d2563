"""Every named figure as a table: what it shows, which law and which table it draws, and who draws it."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib import rc_context

from moejax.errors import UserError
from moejax.fit.derived_columns import with_derived
from moejax.laws.door import published
from moejax.report import made_up
from moejax.report.figures import (
    abnar_flops,
    abnar_optima,
    abnar_surfaces,
    chapter_002,
    evidence,
    fitted_runs,
    law_curves,
    loss_vs_compute,
    plan_bars,
    predictions,
    resources,
    running,
    tian_budgets,
    tian_isoflop,
    tian_leverage,
    zhao_compute,
    zhao_marginals,
)
from moejax.report.figures.picture import Picture
from moejax.report.figures.style import RC
from moejax.report.figures.subject import Subject
from moejax.run_table import DataFrame
from moejax.wording import some


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A figure that can be asked for by name."""

    source: str
    """The document and figure that it follows; ``ours`` if none."""
    shows: str
    """In a few words."""
    draw: Callable[[Subject], Picture]
    law: str = ""
    """Name of the law whose curves it draws: published constants, unless a fit of the same law is given."""
    columns: tuple[str, ...] = ()
    """Columns of the table that it reads."""
    example: Callable[[], DataFrame] | None = None
    """What stands for a table that it cannot do without; None if it draws without one."""

    @property
    def needs_table(self) -> bool:
        """Whether there is nothing to draw without a table."""
        return self.example is not None


def _zhao(number: str, draw: Callable[[Subject], Picture], columns: tuple[str, ...] = (), *, shows: str) -> Plot:
    return Plot(source=f"Zhao et al. 2025, Figure {number}", draw=draw, law="five_factor", columns=columns, shows=shows)


def _abnar(number: str, draw: Callable[[Subject], Picture], columns: tuple[str, ...] = (), *, shows: str) -> Plot:
    return Plot(source=f"Abnar et al. 2025, Figure {number}", draw=draw, law="sparsity", columns=columns, shows=shows)


def _tian(number: str, draw: Callable[[Subject], Picture], law: str = "", **options: Any) -> Plot:
    return Plot(source=f"Tian et al. 2025, Figure {number}", draw=draw, law=law, **options)


_ZHAO = ("params_active", "params_total", "tokens", "active_experts", "shared_share", "loss")
_ISOFLOP = ("flops", "sparsity", "params_total", "params_active")
_PREDICTIONS = ("law", "role", "measured_nats_per_token", "predicted_nats_per_token")
_LEVERAGES = ("role", "measured_efficiency_leverage", "predicted_efficiency_leverage")

PLOTS: dict[str, Plot] = {
    "zhao-1": _zhao("1", zhao_marginals.size_and_tokens, _ZHAO, shows="loss by sizes and tokens"),
    "zhao-2": _zhao("2", zhao_marginals.active, _ZHAO, shows="loss by active parameters"),
    "zhao-3": _zhao("3", zhao_marginals.experts, _ZHAO, shows="loss by active experts"),
    "zhao-4": _zhao("4", zhao_marginals.shared, _ZHAO, shows="loss by shared share"),
    "zhao-5": Plot(
        source="Zhao et al. 2025, Figure 5",
        draw=predictions.by_law,
        columns=_PREDICTIONS,
        example=made_up.predictions,
        shows="predicted and measured loss, a panel a law",
    ),
    "zhao-11": _zhao("11", zhao_marginals.experts_without_shared, _ZHAO, shows="loss by active experts, none shared"),
    "zhao-14": _zhao("14", zhao_marginals.shared_by_size, shows="what the shared share changes, by size"),
    "zhao-15": _zhao("15", zhao_marginals.larger_models, _ZHAO, shows="the larger models of the validation"),
    "zhao-16": _zhao("16", zhao_compute.best_loss, shows="least loss by compute"),
    "abnar-1": _abnar("1", abnar_surfaces.surface, _ISOFLOP, shows="IsoFLOP surface at 1e20 FLOPs"),
    "abnar-2": _abnar("2", abnar_surfaces.slices, shows="its slices"),
    "abnar-3": _abnar("3", abnar_optima.by_sparsity, shows="optimal sizes and loss by sparsity"),
    "abnar-4": _abnar("4", abnar_optima.best_sparsity_by_size, shows="best sparsity by size and budget"),
    "abnar-6": Plot(
        source="Abnar et al. 2025, Figure 6",
        draw=predictions.fitted_and_held_out,
        columns=_PREDICTIONS,
        example=made_up.predictions,
        shows="predicted and measured loss, fitted and held out",
    ),
    "abnar-7": Plot(
        source="Abnar et al. 2025, Figure 7", draw=abnar_flops.estimator, shows="FLOPs by Eq. 9 over 6·N_a"
    ),
    "abnar-8": _abnar("8", abnar_surfaces.surfaces, _ISOFLOP, shows="IsoFLOP surfaces at five budgets"),
    "abnar-9": _abnar("9", abnar_surfaces.slices_by_budget, shows="their slices"),
    "abnar-11": _abnar("11", abnar_optima.loss_by_sparsity, shows="least loss by sparsity and by budget"),
    "abnar-12": _abnar("12", abnar_optima.sizes_by_budget, shows="optimal sizes by budget"),
    "tian-1b": _tian("1b", tian_leverage.landscape, "leverage", shows="landscape of efficiency leverage"),
    "tian-2": _tian(
        "2",
        tian_budgets.all_four,
        "hyperparameters",
        columns=("flops", "learning_rate", "batch_tokens"),
        shows="learning rate, batch and allocation by compute",
    ),
    "tian-3": _tian(
        "3",
        tian_isoflop.all_three,
        columns=("flops", "activation_ratio", "granularity", "shared_share", "loss"),
        example=made_up.architectures,
        shows="loss by activation, granularity and sharing",
    ),
    "tian-4": _tian(
        "4", tian_leverage.one_by_one, "leverage", shows="leverage by activation ratio, granularity and compute"
    ),
    "tian-5": _tian(
        "5",
        tian_leverage.validation,
        columns=_LEVERAGES,
        example=made_up.leverages,
        shows="predicted and measured leverage",
    ),
    "tian-7": _tian(
        "7",
        tian_budgets.hyperparameters,
        "hyperparameters",
        columns=("flops", "learning_rate", "batch_tokens"),
        shows="best learning rate and batch by compute",
    ),
    "tian-8": _tian(
        "8",
        tian_budgets.near_optimal,
        "hyperparameters",
        columns=("activation_ratio", "flops", "learning_rate", "batch_tokens", "loss"),
        example=made_up.hyperparameters,
        shows="near-optimal learning rates and batches",
    ),
    "tian-9": _tian("9", tian_budgets.allocation, shows="optimal size and tokens by compute"),
    "tian-10": _tian(
        "10",
        tian_isoflop.activation,
        "leverage",
        columns=("flops", "activation_ratio", "loss"),
        example=made_up.architectures,
        shows="loss by activation ratio",
    ),
    "tian-11": _tian(
        "11",
        tian_isoflop.granularity,
        "leverage",
        columns=("flops", "granularity", "loss"),
        example=made_up.architectures,
        shows="loss by granularity",
    ),
    "tian-12": _tian(
        "12",
        tian_isoflop.weak_balance,
        columns=("flops", "granularity", "balance_weight", "loss"),
        example=made_up.balances,
        shows="loss by granularity, weak balance loss",
    ),
    "tian-13": _tian(
        "13",
        tian_isoflop.shared,
        columns=("flops", "shared_share", "loss"),
        example=made_up.architectures,
        shows="loss by shared share",
    ),
    "tian-16": _tian(
        "16",
        tian_isoflop.heads,
        columns=("params_total", "num_heads", "loss"),
        example=made_up.heads,
        shows="loss by attention heads",
    ),
    "tian-17": _tian(
        "17",
        tian_leverage.residuals,
        columns=_LEVERAGES,
        example=made_up.leverages,
        shows="residuals of the leverage law",
    ),
    "chapter-002": Plot(
        source="chapter 002, Listing 2",
        draw=chapter_002.frontier,
        law="effective_params",
        shows="least loss by expansion and compute",
    ),
    "li-ratio": Plot(
        source="ICLR 2026 explainer, Eqs. 18 to 26",
        draw=resources.compute,
        law="resources",
        shows="compute ratio and token multiplier",
    ),
    "li-shape": Plot(
        source="ICLR 2026 explainer, Figure 7 and Eq. 27", draw=resources.shapes, law="resources", shows="shape ratios"
    ),
    "kaplan": Plot(source="ours", draw=law_curves.kaplan, law="kaplan", shows="loss by parameters and tokens"),
    "chinchilla": Plot(
        source="ours", draw=law_curves.chinchilla, law="chinchilla", shows="loss by parameters and tokens"
    ),
    "loss-compute": Plot(source="ours", draw=law_curves.loss_compute, law="loss_compute", shows="loss by compute"),
    "data-constrained": Plot(
        source="ours", draw=law_curves.data_constrained, law="data_constrained", shows="loss by epochs"
    ),
    "granularity": Plot(source="ours", draw=law_curves.granularity, law="granularity", shows="loss by granularity"),
    "expert-count": Plot(
        source="ours", draw=law_curves.expert_count, law="expert_count", shows="loss by number of experts"
    ),
    "routed": Plot(source="ours", draw=law_curves.routed, law="routed", shows="loss by number of experts"),
    "fitted-here": Plot(
        source="ours",
        draw=predictions.fitted_here,
        columns=_PREDICTIONS,
        example=made_up.predictions,
        shows="laws without published constants, predicted and measured loss",
    ),
    "runs": Plot(
        source="ours",
        draw=loss_vs_compute.runs,
        columns=("loss", "flops"),
        example=made_up.runs,
        shows="loss by FLOPs, with the frontier",
    ),
    "fit": Plot(
        source="ours",
        draw=fitted_runs.through_runs,
        columns=("law", "output", "measured", "predicted"),
        example=made_up.fitted,
        shows="any fitted law through its runs, and over each input",
    ),
    "profile": Plot(
        source="ours",
        draw=evidence.profiles,
        columns=("answer", "value", "rise", "limit"),
        example=made_up.profiles,
        shows="how sharply runs set each answer",
    ),
    "influence": Plot(
        source="ours",
        draw=evidence.influence,
        columns=("run", "answer", "answer_value", "if_removed"),
        example=made_up.influences,
        shows="runs that decide an answer",
    ),
    "starts": Plot(
        source="ours",
        draw=evidence.starts,
        columns=("objective",),
        example=made_up.ends,
        shows="where starts of the search ended",
    ),
    "expert-loads": Plot(
        source="ours",
        draw=running.loads,
        columns=("layer", "expert", "tokens", "load"),
        example=made_up.loads,
        shows="load of every expert over tokens",
    ),
    "restarts": Plot(
        source="ours",
        draw=running.restarts,
        columns=("model", "start_seconds", "end_seconds", "outcome"),
        example=made_up.attempts,
        shows="sessions of trainings over time",
    ),
    "plan": Plot(
        source="ours",
        draw=plan_bars.bars,
        columns=("plan", "quantity", "part", "value"),
        example=made_up.plans,
        shows="memory and seconds of plans",
    ),
}
"""Every figure by name: the paper's first author and the paper's number, or what it shows."""


def chosen(words: Sequence[str]) -> list[str]:
    """Names of figures from names and papers: ``zhao`` is all of Zhao's, ``all`` is all.

    Raises:
      UserError: a word is neither, with the nearest names.
    """
    found: dict[str, None] = {}
    for word in words:
        asked = word.lower().replace("_", "-").replace(" ", "-")
        own = [name for name in PLOTS if asked in ("all", name) or name.startswith(f"{asked}-")]
        if not own:
            near = difflib.get_close_matches(asked, PLOTS, n=3, cutoff=0.4) or list(PLOTS)
            raise UserError(f"There is no figure '{word}'; did you mean {' or '.join(near[:3])}? --list names all.")
        found |= dict.fromkeys(own)
    return list(found)


def subject_of(name: str, *, law: Any = None, law_name: str = "", table: DataFrame = None) -> Subject:
    """What a figure is asked to show: its law's published constants, unless another law of the class is given.

    Raises:
      UserError: the law is another one than the figure draws, or the table is missing or lacks columns.
    """
    plot = PLOTS[name]
    words = ""
    if plot.law:
        known = published(plot.law)
        if law is not None and type(law) is not type(known.law):
            raise UserError(
                f"{name} draws a law of the form {type(known.law).__name__} and was given {type(law).__name__}; leave "
                f"the fit out to draw the published constants."
            )
        law, words = (known.law, known.source) if law is None else (law, law_name or "the fitted law")
    if table is not None:
        table = with_derived(table)
    missing = [column for column in plot.columns if table is not None and column not in table]
    if plot.needs_table and (table is None or missing):
        what = f"has no column {some(missing, most=6)}" if missing else "is not there"
        raise UserError(
            f"{name} ({plot.source}) is drawn from a table with {', '.join(plot.columns)}, and the table {what}; give "
            f"one with --runs, or --made-up to see the figure with made-up data."
        )
    return Subject(law=law if plot.law else None, name=words, table=None if missing else table)


def example_of(name: str) -> Subject:
    """What the gallery shows: published constants, and a made-up table where the figure cannot do without one."""
    plot = PLOTS[name]
    table = plot.example() if plot.example is not None else None
    subject = subject_of(name, table=table)
    return Subject(law=subject.law, name=subject.name, table=subject.table, made_up=table is not None)


def draw(name: str, subject: Subject) -> Picture:
    """The figure, in the style of all."""
    with rc_context(RC):
        return PLOTS[name].draw(subject)
