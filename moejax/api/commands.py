"""Functions of ``import moejax as mj`` that combine several packages. Each corresponds to a command and works on Python
objects.

Their results have ``summary()``, ``to_frame()`` and ``to_latex()``, and a notebook displays them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from moejax.api.checked import checked
from moejax.api.read_table import RunTable, read_table, runs_of
from moejax.architecture import Architecture
from moejax.config import build
from moejax.design.constraint import Constraint, bounded, held
from moejax.design.decide import DesignResult, of_shapes
from moejax.design.decide import decide as decide_on
from moejax.design.measures import CostAssumptions, checked_convention
from moejax.design.problem import of_sizes
from moejax.errors import UserError
from moejax.experimental_design.experiment_plan import RunBudget
from moejax.experimental_design.propose import (
    Proposal,
    candidates_like,
    candidates_of,
    inputs_of,
    propose_for,
    recipe_of,
)
from moejax.fit.answers import Answers
from moejax.fit.fit_result import FitResult, load_of_runs
from moejax.fit.search.objective import Penalty
from moejax.fit.selection.comparison import Comparison, of_the_loss
from moejax.fit.selection.comparison import compare as compare_laws
from moejax.fit.selection.decisions import LawDecisions
from moejax.fit.selection.holdout import folds as splits_by_folds
from moejax.fit.selection.holdout import split_by
from moejax.fit.sweeps.budget_losses import MIXTURES, SIZES
from moejax.fit.tables.column_names import is_formula, law_of_formula
from moejax.fit.tables.read_runs import ReadRuns
from moejax.fit.uncertainty.bootstrap import bootstrap as resampled_fits
from moejax.fit.uncertainty.estimands import decision_estimands
from moejax.fit.uncertainty.estimates import beyond_each, estimate, with_expansion_of_runs
from moejax.fit.uncertainty.extrapolation import where_decided
from moejax.laws import LAWS, called, law_name
from moejax.laws.catalogue import find as published_model
from moejax.laws.chips import find, flops_per_hour
from moejax.laws.formula_law import FormulaLaw
from moejax.laws.predict import Ranged, published
from moejax.plan import process
from moejax.plan.design_that_fits import design_that_fits
from moejax.plan.plan import Plan
from moejax.plan.topology import parse
from moejax.quantities import ASSUMED_MFU
from moejax.ranges import Copies, FormulaLength, Level, NotNegative, PositiveShare, Quantity, Reach, RunCount, VocabSize
from moejax.report.leverage import LeverageTable, leverage_of_tables, leverage_under_formula, leverage_under_law
from moejax.report.trainings import trained
from moejax.result import Result
from moejax.say import say
from moejax.train.loop import train as train_in
from moejax.train.training import Recipe, Training, choose_hyperparameters

Family = RunTable | Mapping[str, float]
"""A table of runs or, with a law, fixed quantities or a published model's name."""


@checked
def compare(
    runs: RunTable,
    laws: str | type | Sequence[str | type] = (),
    *,
    hold_out: str | Sequence[str] = "tokens",
    folds: Copies = 0,
    fixed: Mapping[str, float] | None = None,
    penalty: Penalty | None = None,
    seed: int = 0,
    **reading: Any,
) -> Comparison:
    """Fit laws to the same runs and test them on the same held-out runs, like ``moejax compare``.

    Args:
      runs: the result of ``moejax.read_runs``, or a file or DataFrame to read.
      laws: names, formulas such as ``"loss = E + A/N^alpha"``, or classes; by default every loss law that the
        columns allow.
      hold_out: one or several rules that select held-out runs: ``tokens`` selects the runs with the most tokens,
        ``tokens:1e10`` runs with at least 1e10 tokens, and ``model=large`` one model.
      folds: number of additional cross-validation folds; 0 for none.
      fixed: coefficients to hold fixed, in every law that has them.
      penalty: penalty of the residuals (``moejax.fit.search.objective``); by default a Huber loss.
      seed: seed of the searches and of the folds.
      reading: options of ``moejax.read_runs``.

    Raises:
      UserError: a law is unknown, a rule holds out no run, or no law can be fitted to these runs.

    Example:
      >>> compared = mj.compare("runs.csv", ["chinchilla", "effective_params"], hold_out="tokens")
      >>> compared.verdict
    """
    asked = [laws] if isinstance(laws, str | type) else list(laws)
    read = read_table(runs, (), reading)
    every: dict[str, Any] = {} if asked else of_the_loss(LAWS)
    for law in asked:
        if isinstance(law, type):
            every[called(law)] = law
        elif is_formula(law):
            every[law] = law_of_formula(law, read.frame, mapping=read.read_from)
        else:
            every[law_name(law)] = LAWS[law_name(law)]
    splits = [split_by(read, rule) for rule in ([hold_out] if isinstance(hold_out, str) else hold_out)]
    splits += splits_by_folds(read.runs, folds, seed=seed) if folds else []
    compared = compare_laws(every, read.runs, splits, penalty=penalty, fixed=fixed, seed=seed)
    return dataclasses.replace(compared, read=read)


@checked
def decide(
    fit: FitResult | Comparison | str | Path,
    runs: RunTable | None = None,
    *,
    bootstrap: Copies = 0,
    level: Level = 0.9,
    seed: int | None = None,
    **given: NotNegative,
) -> Answers | LawDecisions:
    """Return the decisions of a fitted law with intervals, like ``moejax fit --decide``.

    Args:
      fit: the result of ``moejax.fit``, or the file that its ``save`` or ``moejax fit --out`` wrote; or the result of
        ``moejax.compare``, whose trusted or tied laws decide at the same quantities.
      runs: the fitted runs, which are resampled: the result of ``moejax.read_runs``, or a file or DataFrame, which is
        read with the options of the fit.
      bootstrap: number of resamples of the runs for the intervals. With 0, use the bootstrap that is stored with the
        fit or, if there is none, standard errors.
      level: coverage of the intervals.
      seed: seed of the resamples; by default the fit's.
      given: quantities that the decision depends on, such as ``flops=1e22`` or ``flops=1e22, expansion=16``.

    Raises:
      UserError: the law makes no decision from these quantities, or there are no runs to resample.

    Example:
      >>> mj.decide(fit, "runs.csv", flops=1e22, bootstrap=200).to_frame()
      >>> mj.decide(mj.compare("runs.csv", hold_out="flops"), flops=1e22, expansion=16)
    """
    if isinstance(fit, Comparison):
        if bootstrap or runs is not None or seed is not None:
            raise UserError("A comparison has its own runs and no bootstrap; leave runs, bootstrap and seed out.")
        return fit.decide(level, **given)
    if bootstrap and runs is None:
        raise UserError("bootstrap resamples the fitted runs; pass them as runs.")
    fit = fit if isinstance(fit, FitResult) else load_of_runs(fit)
    estimands = decision_estimands(type(fit.law), given)
    own = None if runs is None else runs_of(fit, runs)
    resampled = resampled_fits(fit, own, bootstrap, seed=seed) if bootstrap and own is not None else None
    decided = estimate(fit, estimands, resampled=resampled, level=level)
    decided = decided if own is None else with_expansion_of_runs(decided, own)
    fitted = fit.fitted if own is None else where_decided(own)
    return Answers(decisions=decided, beyond=beyond_each(decided, fitted), warnings=fit.warnings)


@checked
def leverage(
    a: Family,
    b: Family,
    *,
    law: str | FitResult | None = None,
    flops: float | Sequence[float] = (),
    fixed: Mapping[str, float] | None = None,
    level: Level = 0.9,
    seed: int = 0,
    **reading: Any,
) -> LeverageTable:
    """Return the efficiency leverage: the ratio of B's to A's FLOPs at equal loss, like ``moejax leverage``.

    Args:
      a: without ``law``, a table of runs: the result of ``moejax.read_runs``, a file or a DataFrame. With ``law``, the
        family's fixed quantities, such as ``{"expansion": 16}``, or a published model's name.
      b: what ``a`` is compared with, in the same form.
      law: name of a loss law, or a fit of one; only a fit gives intervals.
      flops: A's budgets; by default those of its runs.
      fixed: ``irreducible`` or ``exponent`` of both tables' loss-compute curves, to hold fixed.
      level: coverage of the intervals.
      seed: seed of the searches.
      reading: options of ``moejax.read_runs``, such as ``where`` and ``mapping``.

    Raises:
      UserError: a table cannot be read, ``flops`` is missing although ``law`` is given, or the law predicts no loss.

    Example:
      >>> mj.leverage({"expansion": 16}, {"expansion": 1}, law="effective_params", flops=1e24)
      >>> mj.leverage("moe.csv", "dense.csv", flops=[1e20, 1e21])
    """
    budgets = [float(flops)] if isinstance(flops, int | float) else [float(one) for one in flops]
    if law is None:
        reading = {"also_told_apart_by": (*SIZES, *MIXTURES)} | reading
        ours, others = (read_table(one, ("flops",), reading).runs for one in (a, b))
        return leverage_of_tables(ours, others, budgets or None, fixed=fixed or {}, level=level, seed=seed)
    if reading or fixed:
        given = next(iter(reading), "fixed")
        raise UserError(f"{given} applies to tables of runs; leave it out if a law is given.")
    if not budgets:
        raise UserError("With a law, flops is required; give a budget, such as flops=1e24.")
    known = published(law) if isinstance(law, str) else law
    if isinstance(known, FitResult) and isinstance(known.law, FormulaLaw):
        return leverage_under_formula(known, (_held(a) or {}, _held(b) or {}), budgets, level)
    names, held = (_family(a), _family(b)), (_held(a), _held(b))
    name = called(type(known.law))
    return leverage_under_law(name, known.law, known, names, held, budgets, level=level)


speedup = leverage
"""The earlier name of ``leverage``."""


def _family(one: Family) -> str:
    held = _held(one)
    return str(one) if held is None else ",".join(f"{name}={value:g}" for name, value in held.items())


def _held(one: Family) -> Mapping[str, float] | None:
    if not isinstance(one, str | Mapping):
        raise UserError(
            "With a law, give a family as its fixed quantities, such as {'expansion': 16}, or as a published model's "
            "name; leave law out to compare tables."
        )
    return None if isinstance(one, str) else one


@checked
def next_runs(
    runs: RunTable,
    law: str | type | Sequence[str],
    targets: Mapping[str, Mapping[str, float]] | Sequence[str | tuple[str, Mapping[str, float]]],
    *,
    flops: Quantity | None = None,
    chip_hours: Quantity | None = None,
    chip: str = "h100",
    mfu: PositiveShare = ASSUMED_MFU,
    most: RunCount = 10,
    largest: Quantity | None = None,
    repeats: RunCount = 1,
    candidates: str | Path | pd.DataFrame | None = None,
    like: Architecture | str | None = None,
    reach: Reach = 4.0,
    sequence_length: FormulaLength | None = None,
    vocab_size: VocabSize | None = None,
    noise: PositiveShare | None = None,
    around: str | None = None,
    fixed: Mapping[str, float] | None = None,
    modes: bool = False,
    seed: int = 0,
    reading: Mapping[str, Any] | None = None,
    **options: Any,
) -> Proposal:
    """Propose the next runs: those that reduce the uncertainty of a law's answers most, like ``moejax next``.

    Args:
      runs: the result of ``moejax.read_runs``, or a file or DataFrame to read.
      law: a law's name, a formula such as ``"loss = E + A/N^alpha"``, or a law's class; or several names, and the runs
        then also distinguish the laws.
      targets: answers whose uncertainty the runs should reduce, each with its given quantities: a loss ``{"loss":
        {"params_active": 7e9}}``, the loss of a published model ``{"deepseek-v3.1": {"tokens": 14.8e12}}``, a decision
        ``{"N*": {"flops": 1e25}}``, or names of coefficients. A list of pairs ``[("N*", {"flops": 1e24}), ("N*",
        {"flops": 1e25})]`` may repeat a name.
      flops: FLOPs of all new runs together.
      chip_hours: chip-hours of all new runs together, instead of ``flops``: hours on ``chip`` at the MFU ``mfu``. As in
        the MFU of a training log, masked attention scores are not counted.
      chip: chip of ``chip_hours``, such as ``h100`` or ``v5p``.
      mfu: assumed share of the chip's peak FLOP/s.
      most: maximum number of new runs.
      largest: maximum FLOPs of one run.
      repeats: maximum number of times that one run is proposed.
      candidates: a file or DataFrame of possible runs, read with the ``mapping`` of the table; instead of ``like``,
        ``reach``, ``sequence_length`` and ``vocab_size``.
      like: architecture, or name of a published model, whose proportions the runs keep; by default those of the table.
      reach: maximum ratio of a run's parameters or tokens to the largest in the table; tokens per active parameter,
        total / active parameters and experts are within a factor of √``reach`` of the table's range.
      sequence_length: tokens of a sequence; by default the table's, or 4096.
      vocab_size: vocabulary size of the runs; by default that of ``like`` or of the table's architectures, or the
        largest customary one that is at most half of the table's smallest model.
      noise: standard deviation of log loss between runs; by default estimated from the fit's residuals.
      around: name of published constants of the law to plan around, instead of a fit.
      fixed: coefficients to hold fixed.
      modes: True to consider every mode (local maximum) of the law's posterior, not only the fitted one.
      seed: seed of the candidates and of the search.
      reading: options of ``moejax.read_runs``.
      options: options of ``fit_law``.

    Raises:
      UserError: the law or target is unknown, there are too few runs, or the budget is too small.

    Example:
      >>> mj.next_runs("runs.csv", "chinchilla", {"N*": {"flops": 1e24}}, flops=1e21, vocab_size=50_304)
      >>> mj.next_runs("runs.csv", "chinchilla", {"N*": {"flops": 1e24}}, flops=1e21, candidates="mine.csv")
    """
    if (flops is None) == (chip_hours is None):
        raise UserError("Give the budget of the new runs by flops or by chip_hours.")
    budget = (chip_hours or 0.0) * flops_per_hour(find(chip).flops_per_second, mfu) if flops is None else flops
    read, laws = _read_for_laws(runs, law, dict(reading or {}))
    if around is not None and len(laws) > 1:
        raise UserError("`around` names constants of a single law; give one law.")
    most_flops = min(budget, largest or budget)
    if candidates is None:
        possible = candidates_like(
            read,
            inputs_of(laws),
            recipe_of(read, Recipe(budgets_tokens=()), sequence_length),
            most_flops=most_flops,
            causal=flops is None,
            architecture=published_model(like).architecture if isinstance(like, str) else like,
            sequence_length=sequence_length,
            vocab_size=vocab_size,
            reach=reach,
            seed=seed,
        )
    else:
        if like is not None or vocab_size is not None:
            raise UserError("`candidates` lists the possible runs; leave out `like` and `vocab_size`.")
        checks = {name: read.reading.get(name, False) for name in ("drop_invalid", "trust_units")}
        mapping = read.reading.get("mapping", {})
        possible = candidates_of(candidates, inputs_of(laws), mapping, most_flops, **checks)
    return propose_for(
        [*targets.items()] if isinstance(targets, Mapping) else [(t, {}) if isinstance(t, str) else t for t in targets],
        laws,
        read,
        possible,
        RunBudget(flops=budget, runs=most, repeats=repeats, causal=flops is None),
        around={} if around is None else {name: published(name, around).law for name in laws},
        noise=noise,
        fixed=fixed,
        modes=modes,
        seed=seed,
        **options,
    )


def _read_for_laws(
    runs: RunTable, law: str | type | Sequence[str], reading: Mapping[str, Any]
) -> tuple[ReadRuns, dict[str, Any]]:
    """Return the runs and the laws by name; a formula names columns of the table."""
    if isinstance(law, str) and is_formula(law):
        read = read_table(runs, law, reading)
        return read, {law: law_of_formula(law, read.frame, mapping=read.read_from)}
    if isinstance(law, type):
        return read_table(runs, law, reading), {called(law): law}
    laws = {name: LAWS[name] for name in map(law_name, [law] if isinstance(law, str) else law)}
    return read_table(runs, inputs_of(laws), reading), laws


@checked
def design(
    law: Any,
    *,
    hold: Mapping[str, float | int] | None = None,
    range: Mapping[str, tuple[float, float]] | None = None,
    like: Architecture | str | None = None,
    convention: str | None = None,
    shape: bool = False,
    topology: str | None = None,
    days: float | None = None,
    mfu: PositiveShare = ASSUMED_MFU,
    within: float = 0.001,
    level: float = 0.9,
    **at_most: float | int,
) -> DesignResult:
    """Return the design with the lowest loss under a law and constraints, with prices, flat region, and the model to
    build.

    Args:
      law: a law's name or alias (its first published constants), a published set, a law with coefficients, or a
        ``FitResult``.
      hold: fixed values, such as ``{"expansion": 16}``.
      range: smallest and largest values, such as ``{"tokens": (1e11, 1e13)}``.
      like: architecture, or name of a published model, that gives the proportions that the law does not read.
      convention: convention for a model's FLOPs, a key of ``moejax.laws.conventions.FLOPS`` such as
        ``6-params-active``; by default that of a fit's runs if it is known, else ``exact``.
      shape: True to search over shapes with exact counts, instead of over sizes first.
      topology: chips to train on, such as ``h100:8x8``, in whose memory the model must fit by the estimates of
        ``moejax plan``. The result's ``on_topology`` has the mesh, remat policy and microbatches.
      days: maximum days of training on ``topology``.
      mfu: assumed share of the chips' peak FLOP/s, which the model must reach on ``topology``.
      within: increase of the loss in nats per token that defines the flat region.
      level: coverage of the intervals, which are computed only for a fit.
      at_most: upper bounds by name, such as ``flops=1e24`` or ``params_total=1e12``.

    Raises:
      UserError: the law or constraint is unknown, nothing constrains the design, or the constraints contradict each
        other.

    Example:
      >>> designed = mj.design("zhao", flops=1e24, params_total=1e12)
      >>> designed.to_frame()
      >>> mj.plan(designed.training(), "h100:8x8")
      >>> mj.design("zhao", flops=1e24, topology="h100:64x8").on_topology
    """
    known = published(law) if isinstance(law, str) else law
    ranged = known if isinstance(known, Ranged) else None
    constraints = [Constraint(name=name, high=float(value)) for name, value in at_most.items()]
    constraints += [*held(hold or {}), *bounded(range or {})]
    chips = None if topology is None else parse(topology)
    if days is not None:
        if chips is None:
            raise UserError("`days` needs `topology`, such as topology='h100:8x8'; or give chip_hours.")
        constraints.append(Constraint(name="chip_hours", high=days * 24 * chips.chips))
    if not constraints and topology is None:
        raise UserError("Nothing constrains the design; give a budget, such as flops=1e24.")
    # A published set and a fit contain a law.
    bare: Any = getattr(known, "law", known)
    like = published_model(like).architecture if isinstance(like, str) else like
    assumptions = CostAssumptions(convention=checked_convention(convention, known), mfu=mfu)
    if chips is not None:
        assumptions = dataclasses.replace(assumptions, chip_flops=chips.known_chip.flops_per_second)

    def designed(*more: Constraint) -> DesignResult:
        problem = of_sizes(bare, (*constraints, *more), assumptions=assumptions)
        if shape:
            problem = of_shapes(problem, like)
        return decide_on(problem, like=like, within=within, known=ranged, level=level)

    return designed() if chips is None else design_that_fits(designed, chips)


def plan(training: Training | Mapping[str, object], topology: str) -> Plan:
    """Compile a training step for chips that need not be present, like ``moejax plan``.

    Args:
      training: a ``Training``, or a dictionary with the settings of a config file.
      topology: chips and their arrangement, such as ``v5p:4x4x4``, ``h100:8x8`` (8 hosts of 8 GPUs) or ``cpu:8``.

    Raises:
      UserError: the topology is unknown, the training step cannot run on it, or its compiler is not installed.

    Example:
      >>> mj.plan(mj.design("zhao", flops=1e24).training(), "h100:8x8").fits
    """
    return process.plan(choose_hyperparameters(_training(training)).training, parse(topology))


def train(
    training: Training | Mapping[str, object],
    out: str | Path | None = None,
    *,
    data: str | Path | None = None,
    accept_changes: bool = False,
) -> Result:
    """Train a model to its token budgets, or resume the run, like ``moejax train``.

    Signals are not handled: on a scheduler that sends SIGTERM, run ``moejax train``, which saves a checkpoint first.

    Args:
      training: a ``Training``, or a dictionary with the settings of a config file.
      out: output folder; by default ``runs/NAME``.
      data: folder of the tokenized corpus, which several training runs can share; by default ``out/data``.
      accept_changes: True to resume even if settings that affect the loss differ from those of the stored run.

    Returns:
      The rows of the run table: ``to_frame()`` has the main columns, ``data`` has all of them.

    Raises:
      UserError: a setting is invalid, or the folder belongs to another run.

    Example:
      >>> mj.train(training, "runs/first").to_frame()
    """
    training = _training(training)
    chosen = choose_hyperparameters(training)
    folder = Path(out or f"runs/{training.name}")
    rows = train_in(
        chosen.training,
        folder,
        data_folder=Path(data) if data else None,
        accept_changes=accept_changes,
        log=say,
        on_accepted=lambda: say(*chosen.derivation) if chosen.derivation else None,
    )
    return dataclasses.replace(trained(rows, folder), data=rows)


def _training(given: Training | Mapping[str, object]) -> Training:
    return build(Training, given, "training")
