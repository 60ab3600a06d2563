"""Propose the runs that answer a question, given a table of runs: fit laws, compute posteriors, choose runs.

This module converts questions about a law to estimands, and tables of runs or architectures to candidates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from moejax.architecture import Architecture
from moejax.config import dump
from moejax.design.coordinates import Shapes
from moejax.design.decide import DENSE, MIXTURE, customary_model
from moejax.errors import UserError
from moejax.experimental_design.candidates import (
    MOST_VOCABULARY,
    Candidates,
    customary_vocabulary,
    like,
    of_table,
)
from moejax.experimental_design.experiment_plan import ExperimentPlan, RunBudget, choose_runs, weights
from moejax.experimental_design.laplace_posterior import LaplacePosterior, Undefined, laplace_posterior
from moejax.experimental_design.posterior_modes import Noise, PosteriorModes, distance
from moejax.fit.fit_result import FitResult
from moejax.fit.runs import Runs
from moejax.fit.search.fit_law import fit_law
from moejax.fit.tables.read_runs import ReadRuns, read_runs
from moejax.fit.uncertainty.covariance import VarianceComponents, uncertainty, variance_components
from moejax.fit.uncertainty.derivatives import Functional
from moejax.fit.uncertainty.estimands import (
    Estimand,
    NoDecision,
    above_0,
    coefficient_estimands,
    decision_estimands,
    find,
    given_to_each,
    prediction_estimand,
)
from moejax.fit.uncertainty.extrapolation import flops_convention
from moejax.laws import PUBLISHED
from moejax.laws.accounting import design_of
from moejax.laws.catalogue import CATALOGUE
from moejax.laws.dense.chinchilla import FLOPS_PER_PARAM_AND_TOKEN
from moejax.laws.design import Design, design_from, known
from moejax.laws.law import without_effect
from moejax.result import Result, Shown, imported
from moejax.say import say
from moejax.stored import foreign_json
from moejax.wording import argument, listed, told


@dataclass(frozen=True, kw_only=True, repr=False)
class Proposal(Shown):
    """The runs to train next, and the evidence for them."""

    plan: ExperimentPlan
    candidates: Candidates
    posteriors: Mapping[str, LaplacePosterior]
    """Posteriors by law, or by mode of a law: the second mode is called NAME (mode 2)."""
    noise: float
    """Standard deviation of log loss between runs of one design."""
    shared: float | None
    """Share of the noise variance that is common to the runs of a group; None if unknown (0 is assumed)."""
    fits: Mapping[str, FitResult] = field(default_factory=dict)
    """Fits by law; laws given by ``around`` and laws planned by modes have none."""
    assumed: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Published values, by law, of coefficients that the runs do not determine."""
    by_modes: tuple[str, ...] = ()
    """Laws without a fit, for which all modes of the posterior were used."""
    noises: Mapping[str, Noise] = field(default_factory=dict)
    """Noise of the modes, by law of ``by_modes``."""
    standard_errors: Mapping[str, Float[np.ndarray, " answers"]] = field(default_factory=dict)
    """Standard errors of the answers' logarithms by fitted law, as ``moejax fit`` computes them; NaN if unknown."""
    covariances: Mapping[str, str] = field(default_factory=dict)
    """Method of ``standard_errors`` by fitted law (``moejax.fit.uncertainty.uncertainty.COVARIANCES``)."""
    instead: tuple[str, ...] = ()
    """Coefficients for which the runs were planned instead, because the fitted law has no answer to the question."""
    titles: tuple[str, ...] = ()
    """Titles of the questions, in the order of the answers."""
    inputs: tuple[str, ...] = ()
    """Inputs of the laws."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Column names of the table, keyed by moejax's names, if the two differ."""

    def summary(self) -> Result:
        """Return the current uncertainty of the answers, the runs to train, and the expected uncertainty after them."""
        return imported("experimental_design.summary").summary(self)


def propose_for(
    targets: Sequence[tuple[str, Mapping[str, float]]],
    laws: Mapping[str, Any],
    read: ReadRuns,
    candidates: Candidates,
    budget: RunBudget,
    *,
    fixed: Mapping[str, float] | None = None,
    **options: Any,
) -> Proposal:
    """Propose the runs that minimize the uncertainty of named answers, given a table of runs.

    Args:
      targets: answers with their given quantities. An answer is ``loss``, a published model, a decision such as
        ``N*``, or a coefficient.
      laws: law classes by name.
      options: options of ``propose``.

    Raises:
      UserError: like ``propose``; also if a law lacks an answer or the answer does not depend on the fitted output.
    """
    fixed = dict(fixed or {})
    asked: dict[str, list[Estimand]] = {name: [] for name in laws}
    for what, given in targets:
        decides = len(laws) > 1 and given and not _is_prediction(what, laws.values())
        each = given_to_each(laws, given) if decides else {key: dict(given) for key in laws}
        for name, law in laws.items():
            asked[name].append(_target(what, each[name], law, tuple(fixed)))
    _check_output(asked, laws, read.runs.output)
    answers = next(iter(asked.values()))
    functionals = {name: [one.functional for one in estimands] for name, estimands in asked.items()}
    proposal = propose(
        laws, read.runs, candidates, functionals, budget, fixed=fixed, asked=_designs_of(answers), **options
    )
    titles = proposal.instead or tuple(one.title for one in answers)
    return replace(proposal, titles=titles, inputs=inputs_of(laws), columns=_column_names(read))


def inputs_of(laws: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the inputs of several laws, without duplicates."""
    return tuple(dict.fromkeys(name for law in laws.values() for name in law.inputs))


def propose(
    laws: Mapping[str, Any],
    runs: Runs,
    candidates: Candidates,
    answers: Mapping[str, Sequence[Functional]],
    budget: RunBudget,
    *,
    around: Mapping[str, Any] | None = None,
    noise: float | None = None,
    fixed: Mapping[str, float] | None = None,
    modes: bool = False,
    asked: Design | None = None,
    **options: Any,
) -> Proposal:
    """Propose the runs that minimize the uncertainty of answers.

    Args:
      laws: law classes by name.
      answers: functionals with positive values, keyed by law, in the same order for all laws.
      around: laws, by name, to linearize at instead of a fit, for example if there are too few runs for a fit.
      noise: standard deviation of log loss; by default the smallest residual noise of the fits. The intraclass
        correlation is from the same fit.
      modes: True to plan for all modes of a law's posterior, not only for its best fit. This is always done for a law
        with more coefficients than runs.
      asked: designs whose losses are the answers, if any. The noise of modes may grow with the distance from these
        designs. Without ``asked``, it may grow with the ratio of the largest FLOPs to a run's FLOPs.
        options: options of ``fit_law``.

    Raises:
      UserError: like ``fit_law`` and ``choose_runs``.
    """
    around, fixed = dict(around or {}), dict(fixed or {})
    apart = _apart(runs, candidates, asked)
    kept, searches = int((runs.weight > 0).sum()), {}
    for name, law in laws.items():
        if name not in around and (modes or kept < len(coefficient_estimands(law, tuple(fixed)))):
            searches[name] = PosteriorModes(
                law,
                runs,
                candidates.design,
                apart=None if apart is None else apart[0],
                fixed=fixed,
                seed=options.get("seed", 0),
            )
    fits = {
        name: fit_law(law, runs, fixed=fixed, **options)
        for name, law in laws.items()
        if name not in around and name not in searches
    }
    at = {**around, **{name: fit.law for name, fit in fits.items()}}
    assumed = {name: published for name, fit in fits.items() if (published := _as_published(fit))}
    for name, values in assumed.items():
        at[name] = fit_law(laws[name], runs, fixed={**fixed, **values}, **options).law
    if noise is None and not fits and not searches:
        raise UserError(f"The noise is unknown without a fit; give {argument('noise')}, such as 0.003.")
    shares = dict.fromkeys(laws, 1 / len(laws))
    if len(fits) == len(laws):
        shares = dict(zip(fits, weights(list(fits.values())), strict=True))
    scatters = [variance_components(fit, runs) for fit in fits.values()]
    of, noises, run_weights = {name: name for name in laws}, dict[str, Noise](), dict[str, Any]()
    for name, search in searches.items():
        modes_of_law, left = search.modes(runs.weight > 0, noise)
        scatters.append(VarianceComponents(noise=left.level, shared=None))
        noises[name], run_weights[name] = left, search.weights(modes_of_law[0], runs.weight > 0, left)
        labels = [name, *(f"{name} (mode {number})" for number in range(2, len(modes_of_law) + 1))]
        of |= dict.fromkeys(labels, name)
        at |= {label: search.law(mode) for label, mode in zip(labels, modes_of_law, strict=True)}
        shares |= {label: mode.share / len(laws) for label, mode in zip(labels, modes_of_law, strict=True)}
    scatter = min(scatters, key=lambda one: one.noise, default=VarianceComponents(noise=0.0, shared=None))
    noise = scatter.noise if noise is None else noise

    def weighted(name: str) -> tuple[Runs, Any]:
        """Return the weighted runs, and the candidates' weights; these are None without noise that depends on
        distance."""
        if name not in noises:
            return runs, None
        far = None if apart is None else noises[name].weights(apart[1] - apart[0].min())
        return replace(runs, weight=runs.weight * run_weights[name]), far

    def posteriors_for(wanted: Mapping[str, Sequence[Functional]]) -> dict[str, LaplacePosterior]:
        known = {name: weighted(name) for name in laws}
        return {
            label: laplace_posterior(
                at[label],
                known[name][0],
                candidates.design,
                wanted[name],
                noise=noise,
                shared=scatter.shared or 0.0,
                weight=shares[label],
                fixed=fixed,
                output=runs.output,
                candidate_weights=known[name][1],
            )
            for label, name in of.items()
        }

    instead: tuple[str, ...] = ()
    wanted = answers
    try:
        posteriors = posteriors_for(wanted)
    except Undefined:
        if len(laws) > 1:
            raise
        # Without an answer to improve, the coefficients are determined first.
        ((name, law),) = laws.items()
        coefficients = above_0(law, coefficient_estimands(law, tuple(fixed)))
        instead = tuple(one.name for one in coefficients)
        wanted = {name: [one.functional for one in coefficients]}
        posteriors = posteriors_for(wanted)
    chosen = choose_runs(list(posteriors.values()), candidates.cost(budget.causal), budget)
    known = {name: uncertainty(fit, runs) for name, fit in fits.items() if name not in assumed}
    return Proposal(
        plan=chosen,
        candidates=candidates,
        posteriors=posteriors,
        noise=noise,
        shared=scatter.shared,
        fits=fits,
        assumed=assumed,
        by_modes=tuple(searches),
        noises=noises,
        standard_errors={
            name: _standard_errors(replace(fits[name], uncertainty=one), wanted[name]) for name, one in known.items()
        },
        covariances={name: one.covariance for name, one in known.items()},
        instead=instead,
    )


def _standard_errors(fit: FitResult, answers: Sequence[Functional]) -> Float[np.ndarray, " answers"]:
    return fit.spread(lambda law: [jnp.log(answer(law)) for answer in answers]).errors


def _apart(
    runs: Runs, candidates: Candidates, asked: Design | None
) -> tuple[Float[np.ndarray, " runs"], Float[np.ndarray, " candidates"]] | None:
    """Return the distances of runs and candidates from the requested designs, in e-folds; None if unknown."""
    if asked is not None:
        return distance(runs.design, asked), distance(candidates.design, asked)
    design = runs.design
    if design.flops is not None:
        spent = np.asarray(design.flops, float)
    elif design.params_active is not None and design.tokens is not None:
        spent = FLOPS_PER_PARAM_AND_TOKEN * np.asarray(design.params_active, float) * np.asarray(design.tokens, float)
    else:
        return None
    return np.log(spent.max() / spent), np.log(spent.max() / candidates.flops)


def _as_published(fit: FitResult) -> dict[str, float]:
    """Return the first published values of the coefficients that the runs do not determine, keyed by coefficient.

    At the fitted values of these coefficients, no further run would seem informative about them; at published values,
    runs are informative.
    """
    for sets in PUBLISHED.values():
        for one in sets.values():
            if type(one.law) is type(fit.law):
                return {name: float(getattr(one.law, name)) for name in fit.unidentified}
    return {}


def _is_prediction(what: str, laws: Iterable[type]) -> bool:
    return what.lower() in CATALOGUE or what == "loss" or any(what in law.outputs for law in laws)


def _target(what: str, given: Mapping[str, float], law: type, fixed: Sequence[str]) -> Estimand:
    """Return the estimand of ``WHAT:NAME=VALUE,…`` for a law."""
    if (model := CATALOGUE.get(what.lower())) is not None:
        if set(given) != {"tokens"}:
            raise UserError(
                f"Give the target {what} with its training tokens and nothing else, such as {what}:tokens=14.8T."
            )
        design = known(design_of(model.architecture, given["tokens"], 4096))
        return prediction_estimand(law, {name: float(value) for name, value in design.items()})
    if _is_prediction(what, [law]):
        return prediction_estimand(law, dict(given), what if what in law.outputs else None)
    alone = coefficient_estimands(law, tuple(fixed)) if not given else []
    try:
        decided = decision_estimands(law, dict(given))
    except NoDecision as error:
        sizes = ",".join(f"{name}=…" for name in law.inputs)
        raise NoDecision(
            f"{told(error)} For an optimum within other bounds, run moejax design and give its sizes as the target: "
            f"{next(iter(law.outputs))}:{sizes}."
        ) from error
    (estimand, *_) = find(what, [*alone, *decided], law)
    return above_0(law, [estimand])[0]


def _check_output(asked: Mapping[str, Sequence[Estimand]], laws: Mapping[str, type], output: str) -> None:
    """Raise ``UserError`` for targets that do not depend on the fitted output of a law."""
    for name, law in laws.items():
        if not (without := without_effect(law, output)):
            continue
        if wrong := [one.name for one in asked[name] if one.name in {*law.outputs, *without} - {output}]:
            raise UserError(
                f"The target {wrong[0]} does not depend on the fitted {output}; choose the column of an output that it "
                f"depends on with {argument('loss')}."
            )


def _designs_of(answers: Sequence[Estimand]) -> Design | None:
    """Return the designs of the requested losses, with their common fields; None if other answers are requested."""
    if any(one.rule is not None or not one.given for one in answers):
        return None
    names = [name for name in answers[0].given if all(name in one.given for one in answers)]
    return design_from({name: np.array([float(one.given[name]) for one in answers]) for name in names})


def recipe_of(read: ReadRuns, default: Any, sequence_length: int | None) -> dict[str, Any]:
    """Return the last run's recipe as a config dictionary; an automatic recipe if the table has no configs.

    Args:
      default: a recipe; settings equal to its settings are omitted from the result.
      sequence_length: replaces the last run's sequence length; a batch that it does not divide becomes ``auto``.
    """
    if "config" not in read.frame.columns:
        length = sequence_length or 4096
        return {"batch_tokens": "auto", "data": {"sequence_length": length}, "optimizer": {"learning_rate": "auto"}}
    where, remedy = "The column config of the table's last run", "leave the column out"
    config = foreign_json(str(read.frame["config"].iloc[-1]), where, shape={"recipe": dict}, remedy=remedy)
    recipe = _changed(config["recipe"], dump(default))
    if sequence_length is None:
        return recipe
    batch = recipe.get("batch_tokens", default.batch_tokens)
    if batch != "auto" and batch % sequence_length:
        recipe["batch_tokens"] = "auto"
    return {**recipe, "data": {**recipe.get("data", {}), "sequence_length": sequence_length}}


def _changed(settings: dict[str, Any], default: dict[str, Any]) -> dict[str, Any]:
    changed = {}
    for name, value in settings.items():
        if name == "budgets_tokens" or value == default.get(name):
            continue
        inner = isinstance(value, dict) and isinstance(default.get(name), dict)
        changed[name] = _changed(value, default[name]) if inner else value
    return changed


def candidates_of(
    table: Any,
    inputs: Sequence[str],
    mapping: Mapping[str, str],
    most_flops: float,
    *,
    drop_invalid: bool = False,
    trust_units: bool = False,
) -> Candidates:
    """Return the rows of a table with at most ``most_flops`` as candidates; ``read_runs`` reads the table.

    Args:
      table: a file or a DataFrame.

    Raises:
      UserError: every row has more FLOPs.
    """
    # Candidates have no loss yet.
    columns = {name: of for name, of in mapping.items() if name in (*inputs, "flops")} | {"loss": "1"}
    read = read_runs(table, inputs, mapping=columns, drop_invalid=drop_invalid, trust_units=trust_units)
    named = str(table) if isinstance(table, str | Path) else "The table of candidates"
    for note in read.notes:
        say(f"{named}: {note}")
    every = of_table(read.runs, read.runs.models or [f"row {row}" for row in read.rows])
    affordable = [i for i in range(len(every)) if every.flops[i] <= most_flops]
    if not affordable:
        raise UserError(
            f"{named}: every row has more than {most_flops:.3g} FLOPs (the smallest has {every.flops.min():.3g}); "
            f"raise the budget or {argument('largest')}, or add smaller runs."
        )
    return every.only(affordable)


def architectures_like(read: ReadRuns, inputs: Sequence[str], vocab_size: int | None = None) -> list[Architecture]:
    """Return architectures whose proportions candidates keep: the table's architectures, or published models.

    Published models get the table's numbers of active experts, a dense model if the table has dense runs, and a
    vocabulary that suits the table's smallest model (``customary_vocabulary``).

    Args:
      vocab_size: the vocabulary size that replaces that of the architectures, if given.
    """
    if "architecture" in read.frame.columns:
        every = map(_stored, dict.fromkeys(read.frame["architecture"]))
        # One dense model and one model of every kind of MoE suffice, because sizes are varied.
        return _with_vocabulary({(a.is_moe, a.num_shared_experts > 0, a.router): a for a in every}.values(), vocab_size)
    names = [customary_model(inputs)]
    design = read.runs.design
    if names == [MIXTURE] and (dense := _is_dense(design)) is not None and dense.any():
        names.append(DENSE)
    found = [CATALOGUE[name].architecture for name in names]
    choices, said = [argument("like")], ""
    if vocab_size is None:
        sizes = design.params_active if design.params_active is not None else design.params_total
        own = (
            found[0].vocab_size
            if sizes is None
            else customary_vocabulary(found[0], float(np.min(sizes[read.runs.weight > 0])))
        )
        rule = "" if sizes is None else f" (at most {MOST_VOCABULARY:.0%} of the table's smallest model)"
        said, vocab_size = f" and a vocabulary of {own:,} tokens{rule}", own
        choices.append(argument("vocab_size"))
    counted = ""
    if flops_convention(read.runs):
        counted = (
            " Their FLOPs are 6·N·D, like the table's. `moejax study` counts the FLOPs of every layer, so it prints "
            "other FLOPs for the same runs."
        )
    say(f"Candidates have the proportions of {listed(names)}{said}; choose others ({listed(choices, 'or')}).{counted}")
    return _with_vocabulary([*_with_experts_of(design, found[0], inputs), *found[1:]], vocab_size)


def _is_dense(design: Design) -> np.ndarray | None:
    """Return which rows are dense models; None if the table does not distinguish them."""
    if design.params_total is not None and design.params_active is not None:
        return np.isclose(design.params_total, design.params_active, rtol=1e-3)
    return None if design.num_experts is None else np.asarray(design.num_experts) <= 1


def _with_experts_of(design: Design, given: Architecture, inputs: Sequence[str]) -> list[Architecture]:
    """Return an architecture with the table's fewest and most active experts, of the same total active width.

    With more active experts than in the table, the table's expansions are unreachable with its numbers of experts.
    """
    dense = _is_dense(design)
    if not given.is_moe or dense is None or dense.all() or design.top_k is None:
        return [given]
    if any(c.name == "top_k" for c in Shapes(given, tuple(inputs)).coordinates):
        return [given]
    active = np.asarray(design.top_k)[~dense]
    width = given.top_k * given.expert_hidden
    return [
        given.replace(top_k=k, expert_hidden=max(1, round(width / k)), shared_hidden=given.shared_width)
        for k in dict.fromkeys((round(active.min()), round(active.max())))
    ]


def _stored(text: object) -> Architecture:
    where, remedy = "The column architecture of the table", "leave the column out"
    return foreign_json(str(text), where, shape=Architecture, remedy=remedy)


def candidates_like(
    read: ReadRuns,
    inputs: Sequence[str],
    recipe: Mapping[str, Any],
    *,
    most_flops: float,
    causal: bool = False,
    architecture: Architecture | None = None,
    sequence_length: int | None = None,
    vocab_size: int | None = None,
    reach: float = 4.0,
    seed: int = 0,
) -> Candidates:
    """Return trainable shapes with the proportions of an architecture, or of the table's architectures.

    Args:
      recipe: the recipe of the runs to train (``recipe_of``).
      causal: True if ``most_flops`` excludes masked attention scores.
      vocab_size: vocabulary size of the candidates; by default that of the architecture, or one that suits the table's
        smallest model.
      reach: maximum ratio of a candidate's parameters and tokens to the table's largest.
    """
    optimizer = recipe.get("optimizer", {})
    found = like(
        architectures_like(read, inputs, vocab_size)
        if architecture is None
        else _with_vocabulary([architecture], vocab_size),
        inputs,
        read.runs,
        most_flops=most_flops,
        causal=causal,
        sequence_length=sequence_length or recipe.get("data", {}).get("sequence_length", 4096),
        reach=reach,
        # A budget has at least two steps, and its warm-up ends before its decay starts.
        least_tokens=max(whole(recipe.get("batch_tokens")) * 2.0, whole(optimizer.get("warmup_tokens")) * 2.0),
        seed=seed,
    )
    names = _models_of(read)
    return replace(found, labels=tuple(names.get(one, "") for one in found.architectures))


def _with_vocabulary(architectures: Iterable[Architecture], vocab_size: int | None) -> list[Architecture]:
    return [one if vocab_size is None else replace(one, vocab_size=vocab_size) for one in architectures]


def _models_of(read: ReadRuns) -> dict[Architecture, str]:
    """Return the table's model names by architecture; empty if the table lacks names or architectures."""
    if not {"architecture", "model"} <= {*read.frame.columns}:
        return {}
    return {
        _stored(text): str(name) for text, name in zip(read.frame["architecture"], read.frame["model"], strict=True)
    }


def _column_names(read: ReadRuns) -> dict[str, str]:
    """Return the table's column names, keyed by moejax's names, if the two differ and the name is an identifier."""
    return {ours: theirs for ours, theirs in read.read_from.items() if theirs.isidentifier()}


def whole(value: int | str | None) -> int:
    """Return an integer setting, or 0 if the setting is chosen later, such as ``"auto"``."""
    return value if isinstance(value, int) else 0
