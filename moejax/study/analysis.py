"""Analyze a study's run table: sanity checks, fitted laws with intervals, a held-out test, and decisions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import jax
import numpy as np

from moejax import run_table
from moejax.errors import UserError
from moejax.fit.fit_result import FitResult
from moejax.fit.runs import Runs, runs_from
from moejax.fit.search.fit_law import fit_law
from moejax.fit.selection import holdout
from moejax.fit.selection.metrics import predict
from moejax.fit.selection.model_selection import Compared, ModelSelection, choose
from moejax.fit.sweeps import settings as swept_settings
from moejax.fit.tables.read_runs import ReadRuns, read_runs
from moejax.fit.uncertainty.bootstrap import Bootstrap, bootstrap
from moejax.fit.uncertainty.covariance import with_uncertainty
from moejax.interval import Interval
from moejax.laws import LAWS
from moejax.laws.accounting import design_of
from moejax.laws.dense.chinchilla import FLOPS_PER_PARAM_AND_TOKEN
from moejax.laws.design import FIELDS, Design
from moejax.result import Result
from moejax.say import ProgressCallback
from moejax.study.compute_optimum import ComputeOptimum, claims, decide, family
from moejax.study.study import Analysis, Study
from moejax.wording import counted, told


@dataclass(frozen=True, kw_only=True)
class HeldOutCheck:
    """A law fitted without the held-out runs, and its errors on them."""

    split: str
    fitted_runs: int
    held_out_runs: int
    mae: float
    """Mean absolute error on the held-out runs, in nats per token."""
    max_relative_error: float
    naive_mae: float | None
    """Mean absolute error of a naive prediction: each model's loss at its largest fitted budget. None if no held-out
    model has a fitted run.
    """


@dataclass(frozen=True, kw_only=True)
class FittedLaw:
    """One law fitted to one table, with its diagnostics."""

    name: str
    fit: FitResult
    intervals: dict[str, Interval]
    """Confidence interval of every coefficient, from bootstrap resamples of architectures."""
    rows: list[int]
    """Fitted rows of the table, counted from 0."""
    predicted: list[float]
    """Predicted loss of every fitted run, in the order of ``rows``."""
    predicted_low: list[float]
    predicted_high: list[float]
    held_out: HeldOutCheck
    resamples: int

    @property
    def not_determined(self) -> list[str]:
        """Coefficients with an uninformative interval."""
        return [name for name, interval in self.intervals.items() if interval.uninformative]


class FollowedRecipe(Protocol):
    """A paper's procedure applied to a study's runs."""

    @property
    def result(self) -> Result:
        """Summary of the procedure's results."""
        ...

    def to_json(self) -> dict[str, Any]:
        """Return the results as plain data, keyed by name."""
        ...


Recipes = Mapping[str, Callable[[Path, Sequence[str], int], FollowedRecipe]]
"""Procedures of papers, keyed by name. Their arguments are a run table, the names of the models to use (all if empty),
and a seed.
"""


@dataclass(frozen=True, kw_only=True)
class Analysed:
    """All conclusions from a run table."""

    runs: int
    laws: list[FittedLaw]
    decisions: list[ComputeOptimum]
    selection: ModelSelection | None = None
    """The law selected for extrapolation, or the reason why no law is selected; None if no law was fitted."""
    limits: list[str]
    """Sentences about the limits of conclusions from a table of this size and range."""
    recipe: FollowedRecipe | None = None
    """The requested paper's procedure, applied to the runs."""


def analyse(
    table: Path,
    analysis: Analysis,
    update: ProgressCallback = lambda share, text: None,
    recipes: Recipes = MappingProxyType({}),
) -> Analysed:
    """Fit the laws of ``analysis`` to a run table, compute their decisions, and apply the recipe that it names."""
    fitted, compared, decisions, left_out, reach = [], [], [], [], {}
    frame = run_table.read(table)
    stages = 3 * len(analysis.laws)
    for number, name in enumerate(analysis.laws):

        def stage(part: int, text: str, number: int = number) -> None:
            update((3 * number + part) / stages, text)

        try:
            law, one, reach, decided = _analyse_law(name, table, frame, analysis, stage)
        except ValueError as error:
            left_out.append(f"{name} was not fitted: {told(error)}")
            continue
        fitted.append(law)
        compared.append(one)
        decisions += decided
    followed = None
    if analysis.recipe:
        update(1.0, f"following {analysis.recipe}")
        try:
            followed = recipes[analysis.recipe](table, analysis.recipe_models, analysis.seed)
        except ValueError as error:
            left_out.append(f"The recipe {analysis.recipe} was not followed: {told(error)}")
    update(1.0, "fitted")
    caveats = [*limits(frame, fitted, decisions), *left_out]
    selection = choose(compared, reach) if compared else None
    return Analysed(
        runs=len(frame), laws=fitted, decisions=decisions, selection=selection, limits=caveats, recipe=followed
    )


def warnings(study: Study) -> list[str]:
    """Return warnings, before training, about parts of the analysis that the runs will not support. The list is empty
    if a stage's models are not known yet.
    """
    models, designs, fitted = [], [], set()
    if study.unknown_stages:
        return []
    for training in study.trainings():
        for budget in training.recipe.budgets_tokens:
            one = (training.architecture, budget, training.seed)
            if study.analysis.best_by and one in fitted:
                continue
            fitted.add(one)
            models.append(training.name)
            designs.append(design_of(training.architecture, budget, training.recipe.data.sequence_length))
    known = {name: np.asarray([getattr(design, name) for design in designs], np.float64) for name in FIELDS}
    runs = runs_from(Design(**known), np.ones(len(designs)))
    try:
        left = int(np.sum(~_split(runs, models, study.analysis).held_out))
    except UserError as error:
        return [f"{told(error)} No law will be fitted (analysis.hold_out)."] if study.analysis.laws else []
    return [
        f"Without the held-out runs, {left} of {len(runs)} runs remain for the {coefficients} coefficients of "
        f"{name}, so it will not be fitted. Give more models or budgets_tokens, hold out other runs "
        f"(analysis.hold_out_models), or name a smaller law in analysis.laws."
        for name in study.analysis.laws
        if left < (coefficients := len(fields(LAWS[name])))
    ]


def tuning(frame: run_table.DataFrame, analysis: Analysis) -> tuple[str, ...]:
    """Return notes on the sweep from which the fitted runs were selected; empty if the study sweeps no settings."""
    sizes = _sizes(frame)
    if analysis.best_by:
        dropped, *ends = swept_settings.best_by(frame, sizes, "loss", analysis.best_by, RUN_TABLE)[1]
        return (dropped, *ends) if analysis.laws else tuple(ends)
    if not analysis.laws:
        return ()
    settings = swept_settings.swept(frame, sizes)
    return (swept_settings.sweep_note(frame, sizes, settings, "--config.analysis.best_by="),) if settings else ()


RUN_TABLE = "The run table"
"""Name of a study's run table in messages."""


def _sizes(frame: run_table.DataFrame) -> list[str]:
    """Return the columns that distinguish models and budgets."""
    return [name for name in FIELDS if name in frame and frame[name].notna().all()]


def best_settings(frame: run_table.DataFrame, settings: Sequence[str]) -> list[dict[str, Any]]:
    """Return the best value of each swept setting for each architecture, budget and seed, as a row of the run table
    with the keys ``setting``, ``best``, ``tried``, ``low``, ``high`` and ``end`` of ``BestSetting``, and ``minimum``,
    ``minimum_loss`` and ``no_minimum`` of the quadratic through the runs near the best (``swept_settings.minima``).
    """
    if not settings:
        return []
    sizes = _sizes(frame)
    best = swept_settings.best_by(frame, sizes, "loss", settings, RUN_TABLE)[0].sort_values(sizes, kind="stable")
    try:
        minima = swept_settings.minima(frame, sizes, "loss", settings, RUN_TABLE)
    except UserError:
        minima = {}  # Settings such as a schedule have no logarithm.
    rows = []
    for one in swept_settings.best_settings(frame, best, sizes, settings):
        minimum = minima.get(one.row, "no logarithm")
        known = {} if isinstance(minimum, str) else {"minimum": minimum[one.setting], "minimum_loss": minimum["loss"]}
        rows.append(
            {
                **best.loc[one.row].to_dict(),
                **{name: getattr(one, name) for name in ("setting", "best", "tried", "low", "high", "end")},
                "minimum": None,
                "minimum_loss": None,
                **known,
                "no_minimum": minimum if isinstance(minimum, str) else "",
            }
        )
    return rows


def _analyse_law(
    name: str, table: Path, frame: run_table.DataFrame, analysis: Analysis, stage: Callable[[int, str], None]
) -> tuple[FittedLaw, Compared, dict[str, float], list[ComputeOptimum]]:
    """Fit one law to the table, test it on the held-out runs, and compute its decisions. The third value is the
    ``reach_of`` of the held-out runs.
    """
    # The units need no check, because the table comes from training runs or from an import that checked them.
    read = read_runs(table, LAWS[name], best_by=analysis.best_by, trust_units=True)
    stage(0, f"fitting {name} to {len(read.runs)} runs")
    fit = with_uncertainty(fit_law(LAWS[name], read.runs, seed=analysis.seed), read.runs)
    # Do this before the slow resamples, because it fails if the other runs do not determine the law.
    stage(1, f"{name}: predicting the held-out runs from the other runs")
    split = _split(read.runs, list(read.frame["model"]), analysis)
    tested = holdout.hold_out(LAWS[name], read.runs, [split], seed=analysis.seed)[0]
    stage(2, f"{name}: {analysis.resamples} bootstrap resamples")
    resampled = bootstrap(fit, read.runs, analysis.resamples, seed=analysis.seed)
    # Figures of the report, and commands that read the saved fit, then have the same intervals.
    fit = replace(fit, resamples=resampled.kept())
    fitted = _fitted(name, fit, resampled, read, _held_out(read.runs, split, tested), analysis)
    budget = analysis.decision_flops
    largest = float((FLOPS_PER_PARAM_AND_TOKEN * frame["params_active"] * frame["tokens"]).max())
    expansions = [float(v) for v in frame["expansion"]] if "expansion" in frame else [1.0]
    decided = [
        decide(name, fit.law, resampled, expansion, claim_of, budget, largest)
        for expansion, claim_of in claims(name, budget, expansions)
    ]
    return fitted, Compared(name=name, fit=fit, held_out=(tested,)), holdout.reach_of(read.runs, [split]), decided


def counted_runs(frame: run_table.DataFrame) -> str:
    """Return the numbers of runs and of their models: ``56 runs of 14 models``; ``56 runs`` if each is a model."""
    models = frame["model"].nunique()
    return counted(len(frame), "run") + (f" of {counted(models, 'model')}" if models < len(frame) else "")


def limits(frame: run_table.DataFrame, fitted: list[FittedLaw], decisions: list[ComputeOptimum]) -> list[str]:
    """Return sentences about the limits of these runs, derived from their range and from the intervals."""
    sizes = {"params_active": "active parameters", "tokens": "tokens"}
    span = [
        f"{float(frame[name].max() / frame[name].min()):.1f} in {words}"
        for name, words in sizes.items()
        if name in frame
    ]
    seeds = ", with one seed" if "seed" in frame and frame["seed"].nunique() == 1 else ""
    models, groups = (frame[name].nunique() for name in ("model", "group"))
    shared = f" in {counted(groups, 'group')} with the same architecture or trunk" if groups < models else ""
    caveats = [
        f"{counted_runs(frame)}{shared} span a factor of {' and '.join(span)}{seeds}; "
        "published laws use hundreds of runs over factors of at least 100."
    ]
    if groups == 1:
        caveats.append("All runs belong to one group of models, so all resamples are equal and intervals are unknown.")
    for law in fitted:
        if law.not_determined:
            names = ", ".join(law.not_determined)
            caveats.append(f"{law.name}: these runs do not determine {names} to within a factor of 10.")
        caveats += [f"{law.name}: {warning}" for warning in law.fit.warnings]
    for decision in decisions:
        open_ones = [name for name, interval in decision.intervals.items() if interval.uninformative]
        if open_ones and not decision.few:
            caveats.append(
                f"{decision.law}, {family(decision)}: the optimum's {' and '.join(open_ones)} at "
                f"{decision.flops:.3g} FLOPs are not determined by these runs."
            )
        if decision.extrapolation > 1:
            caveats.append(
                f"{decision.law}, {family(decision)}: the budget is {decision.extrapolation:.0f} "
                f"times the largest trained budget, so the decision is an extrapolation."
            )
    return caveats


def _fitted(
    name: str, fit: FitResult, resampled: Bootstrap, read: ReadRuns, held_out: HeldOutCheck, analysis: Analysis
) -> FittedLaw:
    every = resampled.evaluate(lambda law: jax.vmap(law)(read.runs.design))
    low, high = np.nanquantile(every, [0.05, 0.95], axis=0)
    return FittedLaw(
        name=name,
        fit=fit,
        intervals=resampled.coefficients(),
        rows=(read.rows - 1).tolist(),
        predicted=predict(fit.law, read.runs).tolist(),
        predicted_low=low.tolist(),
        predicted_high=high.tolist(),
        held_out=held_out,
        resamples=analysis.resamples,
    )


def _held_out(runs: Runs, split: holdout.Split, tested: holdout.HeldOut) -> HeldOutCheck:
    tokens, errors = np.asarray(runs.design.tokens), []
    for number in np.flatnonzero(split.held_out):
        seen = (runs.group == runs.group[number]) & ~split.held_out
        if seen.any():
            errors.append(abs(runs.loss[number] - runs.loss[seen][np.argmax(tokens[seen])]))
    return HeldOutCheck(
        split=split.name,
        fitted_runs=tested.fit.metrics.runs,
        held_out_runs=tested.metrics.runs,
        mae=tested.metrics.mae,
        max_relative_error=tested.metrics.max_relative_error,
        naive_mae=float(np.mean(errors)) if errors else None,
    )


def _split(runs: Runs, models: Sequence[str], analysis: Analysis) -> holdout.Split:
    if not analysis.hold_out_models:
        return holdout.largest(runs, analysis.hold_out)
    held_out = np.isin(np.asarray(models), analysis.hold_out_models)
    return holdout.split_of(runs, ", ".join(analysis.hold_out_models), held_out)


FALLING_SHARE = 0.9


@dataclass(frozen=True)
class SanityCheck:
    """An expected fact and the observation. ``holds`` is None if no run can decide whether the fact holds."""

    fact: str
    found: str
    holds: bool | None


def sanity_checks(rows: Sequence[Mapping[str, Any]]) -> list[SanityCheck]:
    """Check that every loss is below the unigram entropy, and that losses fall with tokens."""
    entropy = rows[0].get("unigram_entropy", float("nan"))
    worst = max(rows, key=lambda row: row["loss"])
    below = sum(row["loss"] < entropy for row in rows)
    pairs = [
        (first["loss"], second["loss"])
        for first, second in pairwise(rows)
        if first["model"] == second["model"]
        and first["tokens"] < second["tokens"]
        # Repeated text may be memorized, so that the loss on other text increases.
        and not second["tokens"] > second.get("unique_tokens", float("inf"))
    ]
    falling = sum(second < first for first, second in pairs)
    learnt = [
        SanityCheck(
            f"every validation loss is below the corpus' unigram entropy, {entropy:.4f} nats/token",
            f"{below} of {len(rows)}; highest: {worst['loss']:.4f}, {worst['model']} at {worst['tokens']:,.0f} tokens",
            below == len(rows),
        )
    ]
    falls = [
        SanityCheck(
            f"within a model, loss falls with tokens in at least {FALLING_SHARE:.0%} of neighboring pairs",
            f"{falling} of {len(pairs)}" if pairs else "no model has two budgets without repeated text",
            falling >= FALLING_SHARE * len(pairs) if pairs else None,
        )
    ]
    # A table that was trained elsewhere does not state the entropy of its text.
    return [*(learnt if entropy == entropy else []), *falls]
