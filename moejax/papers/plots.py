"""Register the figures of the five documents, and with them every named figure."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from moejax.fit.runs import Runs
from moejax.papers import synthetic
from moejax.papers.abnar.figures import downstream as abnar_downstream
from moejax.papers.abnar.figures import flops as abnar_flops
from moejax.papers.abnar.figures import optima as abnar_optima
from moejax.papers.abnar.figures import surfaces as abnar_surfaces
from moejax.papers.abnar.figures import thought as abnar_thought
from moejax.papers.chapter_002 import expansion_frontier
from moejax.papers.chapter_002 import figures as chapter_002
from moejax.papers.li import figures as li
from moejax.papers.tian import recipe as recipe_tian
from moejax.papers.tian.figures import budgets as tian_budgets
from moejax.papers.tian.figures import isoflop as tian_isoflop
from moejax.papers.tian.figures import leverage as tian_leverage
from moejax.papers.tian.figures import training as tian_training
from moejax.papers.zhao import margins as zhao_margins
from moejax.papers.zhao import recipe as recipe_zhao
from moejax.papers.zhao.figures import coefficients as zhao_coefficients
from moejax.papers.zhao.figures import compute as zhao_compute
from moejax.papers.zhao.figures import marginals as zhao_marginals
from moejax.papers.zhao.figures import steps as zhao_steps
from moejax.papers.zhao.figures import variation as zhao_variation
from moejax.report.figures import predictions
from moejax.report.figures.figure import Figure, FigureInputs
from moejax.report.plots import PLOTS, PREDICTIONS, FromRuns, Plot, by_name


def _of(
    paper: str,
    section: str,
    source: str,
    part: str,
    draw: Callable[[FigureInputs], Figure],
    where: str = "",
    **options: Any,
) -> Plot:
    """Return a figure of a document, by its number, or by a word and ``where`` it is described."""
    source = f"{source}, {where or f'Figure {part}'}"
    return Plot(name=f"{paper}-{part}", section=section, source=source, draw=draw, **options)


_zhao = partial(_of, "zhao", "Zhao et al. (2025): five factors", "Zhao et al. 2025", law="five_factor")
_abnar = partial(_of, "abnar", "Abnar et al. (2025): sparsity", "Abnar et al. 2025", law="sparsity")
_tian = partial(_of, "tian", "Tian et al. (2025): efficiency leverage", "Tian et al. 2025")
_chapter = partial(_of, "chapter-002", "Chapter 002: effective parameters", "chapter 002")
_li = partial(_of, "li", "ICLR 2026 explainer: resources", "ICLR 2026 explainer", law="resources")


def _step(number: str, draw: Callable[[FigureInputs], Figure], equation: str) -> Plot:
    return _zhao(
        number,
        draw,
        law="",
        columns=PREDICTIONS.columns,
        from_runs=FromRuns(
            reads=recipe_zhao.NESTED[equation].inputs,
            table=lambda runs, split, _: recipe_zhao.step(equation, runs, split),
        ),
        example=synthetic.steps,
        shows=f"predicted and measured loss under {equation}",
    )


_thought = partial(_abnar, law="", columns=abnar_thought.COLUMNS, example=synthetic.lengths_of_thought)

_ZHAO = ("params_active", "params_total", "tokens", "active_experts", "shared_share", "loss")
_COEFFICIENTS = ("equation", "symbol", "value", *zhao_margins.COLUMNS.values())
_MARGINS = FromRuns(reads=zhao_margins.INPUTS, table=lambda runs, _, law: recipe_zhao.marginal_table(runs, law))
_ISOFLOP = ("flops", "sparsity", "params_total", "params_active")
_LEVERAGES = ("role", "measured_efficiency_leverage", "predicted_efficiency_leverage")


def _of_tian(table: Callable[[Runs], Any], *reads: str) -> FromRuns:
    return FromRuns(
        reads=(*recipe_tian.INPUTS, *reads), table=lambda runs, *_: table(runs), count=recipe_tian.in_model_scale
    )


_ALGORITHM_1 = _of_tian(recipe_tian.leverage_table)
_CURVES = _of_tian(recipe_tian.curve_table)
_SIZES = _of_tian(recipe_tian.size_table, "tokens")
_SCORES = ("model", "tokens", "task", "score")

PAPERS = by_name(
    _zhao("1", zhao_marginals.size_and_tokens, columns=_ZHAO, shows="loss by sizes and tokens"),
    _zhao("2", zhao_marginals.active, columns=_ZHAO, shows="loss by active parameters"),
    _zhao("3", zhao_marginals.experts, columns=_ZHAO, shows="loss by active experts"),
    _zhao("4", zhao_marginals.shared, columns=_ZHAO, shows="loss by shared share"),
    _zhao(
        "5",
        zhao_steps.compared,
        law="",
        columns=PREDICTIONS.columns,
        from_runs=FromRuns(reads=zhao_margins.INPUTS, table=lambda runs, split, _: recipe_zhao.compared(runs, split)),
        example=synthetic.predictions,
        shows="predicted and measured loss, a panel a law",
    ),
    _step("6", zhao_steps.two_factor, "Eq. 4"),
    _step("7", zhao_steps.three_factor, "Eq. 7"),
    _zhao(
        "8",
        zhao_coefficients.active,
        columns=_COEFFICIENTS,
        from_runs=_MARGINS,
        shows="coefficients of Eq. 5 by sizes and tokens",
    ),
    _step("9", zhao_steps.four_factor, "Eq. 9"),
    _zhao(
        "10",
        zhao_coefficients.experts,
        columns=_COEFFICIENTS,
        from_runs=_MARGINS,
        shows="coefficients of Eq. 7 by active experts",
    ),
    _zhao("11", zhao_marginals.experts_without_shared, columns=_ZHAO, shows="loss by active experts, none shared"),
    _step("12", zhao_steps.five_factor, "Eq. 11"),
    _zhao(
        "13",
        zhao_coefficients.shared,
        columns=_COEFFICIENTS,
        from_runs=_MARGINS,
        shows="coefficients of Eq. 10 by sizes and tokens",
    ),
    _zhao("14", zhao_marginals.shared_by_size, shows="what the shared share changes, by size"),
    _zhao("15", zhao_marginals.larger_models, columns=_ZHAO, shows="the larger models of the validation"),
    _zhao("16", zhao_compute.best_loss, shows="least loss by compute"),
    _zhao("17", zhao_variation.factors, law="", shows="experts of a layer where G, S, N_a or N varies"),
    _abnar("1", abnar_surfaces.surface, columns=_ISOFLOP, shows="IsoFLOP surface at 1e20 FLOPs"),
    _abnar("2", abnar_surfaces.slices, shows="its slices"),
    _abnar("3", abnar_optima.by_sparsity, shows="optimal sizes and loss by sparsity"),
    _abnar("4", abnar_optima.best_sparsity_by_size, shows="best sparsity by size and budget"),
    _abnar(
        "5",
        abnar_downstream.by_category,
        law="",
        columns=abnar_downstream.COLUMNS,
        example=synthetic.sparse_scores,
        shows="errors by category of tasks and by loss",
    ),
    _abnar(
        "6",
        predictions.fitted_and_held_out,
        law="",
        columns=PREDICTIONS.columns,
        example=synthetic.predictions,
        shows="predicted and measured loss, fitted and held out",
    ),
    _abnar("7", abnar_flops.estimator, law="", shows="FLOPs by Eq. 9 over 6·N_a"),
    _abnar("8", abnar_surfaces.surfaces, columns=_ISOFLOP, shows="IsoFLOP surfaces at five budgets"),
    _abnar("9", abnar_surfaces.slices_by_budget, shows="their slices"),
    _abnar(
        "10",
        abnar_downstream.by_task,
        law="",
        columns=abnar_downstream.COLUMNS,
        example=synthetic.sparse_scores,
        shows="errors in tasks by loss",
    ),
    _abnar("11", abnar_optima.loss_by_sparsity, shows="least loss by sparsity and by budget"),
    _abnar("12", abnar_optima.sizes_by_budget, shows="optimal sizes by budget"),
    _thought("13", abnar_thought.lengths, shows="lengths of given and of generated answers"),
    _thought("14", abnar_thought.by_length, shows="score by length of answers"),
    _thought("15", abnar_thought.slopes, shows="what a word of an answer is worth, by size"),
    _tian(
        "1a",
        tian_leverage.definition,
        columns=("activation", "granularity", "scale", "exponent", "irreducible", "least_flops", "most_flops"),
        from_runs=_CURVES,
        example=synthetic.loss_curves,
        shows="what efficiency leverage is",
    ),
    _tian("1b", tian_leverage.landscape, law="leverage", shows="landscape of efficiency leverage"),
    _tian(
        "2",
        tian_budgets.all_four,
        law="hyperparameters",
        columns=("flops", "learning_rate", "batch_tokens"),
        shows="learning rate, batch and allocation by compute",
    ),
    _tian(
        "3",
        tian_isoflop.all_three,
        columns=("flops", "activation_ratio", "granularity", "shared_share", "loss"),
        example=synthetic.architectures,
        shows="loss by activation, granularity and sharing",
    ),
    _tian(
        "4",
        tian_leverage.one_by_one,
        law="leverage",
        columns=("activation_ratio", "granularity", "flops", "measured_efficiency_leverage"),
        from_runs=_ALGORITHM_1,
        shows="leverage by activation ratio, granularity and compute",
    ),
    _tian(
        "5",
        tian_leverage.validation,
        columns=_LEVERAGES,
        from_runs=_ALGORITHM_1,
        example=synthetic.leverages,
        shows="predicted and measured leverage",
    ),
    _tian(
        "6",
        tian_training.over_training,
        columns=_SCORES,
        example=synthetic.scores,
        shows="loss and benchmarks over training",
    ),
    _tian(
        "7",
        tian_budgets.hyperparameters,
        law="hyperparameters",
        columns=("flops", "learning_rate", "batch_tokens"),
        shows="best learning rate and batch by compute",
    ),
    _tian(
        "8",
        tian_budgets.near_optimal,
        law="hyperparameters",
        columns=("activation_ratio", "flops", "learning_rate", "batch_tokens", "loss"),
        example=synthetic.hyperparameters,
        shows="near-optimal learning rates and batches",
    ),
    _tian(
        "9",
        tian_budgets.allocation,
        columns=("part", "flops", "flops_per_token", "tokens"),
        from_runs=_SIZES,
        shows="optimal size and tokens by compute",
    ),
    _tian(
        "10",
        tian_isoflop.activation,
        law="leverage",
        columns=("flops", "activation_ratio", "loss"),
        example=synthetic.architectures,
        shows="loss by activation ratio",
    ),
    _tian(
        "11",
        tian_isoflop.granularity,
        law="leverage",
        columns=("flops", "granularity", "loss"),
        example=synthetic.architectures,
        shows="loss by granularity",
    ),
    _tian(
        "12",
        tian_isoflop.weak_balance,
        columns=("flops", "granularity", "balance_weight", "loss"),
        example=synthetic.balances,
        shows="loss by granularity, weak balance loss",
    ),
    _tian(
        "13",
        tian_isoflop.shared,
        columns=("flops", "shared_share", "loss"),
        example=synthetic.architectures,
        shows="loss by shared share",
    ),
    _tian(
        "14",
        tian_isoflop.layers_and_attention,
        columns=("flops", "num_dense_layers", "attention_share", "loss"),
        example=synthetic.layers,
        shows="loss by dense layers and attention's share",
    ),
    _tian(
        "15",
        tian_training.by_category,
        columns=_SCORES,
        example=synthetic.scores,
        shows="benchmarks over training, by category",
    ),
    _tian(
        "16",
        tian_isoflop.heads,
        columns=("params_total", "num_heads", "loss"),
        example=synthetic.heads,
        shows="loss by attention heads",
    ),
    _tian(
        "17",
        tian_leverage.residuals,
        columns=_LEVERAGES,
        from_runs=_ALGORITHM_1,
        example=synthetic.leverages,
        shows="residuals of the leverage law",
    ),
    _chapter(
        "widget", chapter_002.widget, "the widget and its presets", law="effective_params", shows="loss by compute"
    ),
    _chapter(
        "grid",
        chapter_002.grid,
        "Listing 2",
        law="effective_params",
        shows="loss of a grid of models",
    ),
    _chapter(
        "runs",
        chapter_002.of_runs,
        "Listing 2, of runs",
        columns=expansion_frontier.COLUMNS,
        from_runs=FromRuns(reads=expansion_frontier.INPUTS, table=expansion_frontier.frontier_table),
        example=synthetic.expansions,
        shows="frontier of a run table",
    ),
    _chapter(
        "domains",
        chapter_002.domains,
        "Engineering Reality, 3",
        columns=("domain", "role", "tokens", "measured", "predicted", "data_term"),
        example=synthetic.domains,
        shows="beta of each domain",
    ),
    _li(
        "1a",
        li.compute,
        "Figure 1a and Eqs. 18 to 26",
        columns=li.RATE_COLUMNS,
        shows="compute and loss by activation rate",
    ),
    _li("7", li.shapes, "Figure 7 and Eq. 27", columns=li.SHAPE_COLUMNS, shows="shape ratios, and loss by them"),
)
"""Figures of the documents by name: the paper's first author and the paper's number."""

ALL = {**PAPERS, **PLOTS}
"""All figures by name."""
