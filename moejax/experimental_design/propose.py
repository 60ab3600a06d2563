"""Propose the runs that answer a question, given a table of runs: fit, take the posterior, choose runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from moejax.errors import UserError
from moejax.experimental_design.candidates import Candidates
from moejax.experimental_design.experiment_plan import ExperimentPlan, RunBudget, choose_runs, weights
from moejax.experimental_design.laplace_posterior import LaplacePosterior, Undefined, laplace_posterior
from moejax.experimental_design.posterior_modes import Noise, PosteriorModes, distance
from moejax.fit.fit_result import FitResult
from moejax.fit.runs import Runs
from moejax.fit.search.fit_law import fit_law
from moejax.fit.uncertainty.covariance import VarianceComponents, uncertainty, variance_components
from moejax.fit.uncertainty.derivatives import Functional
from moejax.fit.uncertainty.estimands import above_0, coefficient_estimands
from moejax.laws import PUBLISHED
from moejax.laws.dense.chinchilla import FLOPS_PER_PARAM_AND_TOKEN
from moejax.laws.design import Design


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """The runs to train next, and the evidence for them."""

    plan: ExperimentPlan
    candidates: Candidates
    posteriors: Mapping[str, LaplacePosterior]
    """Posteriors by law, or by mode of a law: the second is called NAME (mode 2)."""
    noise: float
    """Standard deviation of log loss between runs of one design."""
    shared: float | None
    """Share of its variance that the runs of a group have in common; None if unknown, and then 0 is assumed."""
    fits: Mapping[str, FitResult] = field(default_factory=dict)
    """Fits by law; none for a law that was given."""
    assumed: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Values from published constants for coefficients that the runs do not determine, by law."""
    by_modes: tuple[str, ...] = ()
    """Laws that were not fitted: the runs were planned for every mode of their posterior."""
    noises: Mapping[str, Noise] = field(default_factory=dict)
    """Noise of the modes, by law of ``by_modes``."""
    standard_errors: Mapping[str, Float[np.ndarray, " answers"]] = field(default_factory=dict)
    """Standard errors of the answers' logarithms as in ``moejax fit``, by fitted law; NaN if unknown."""
    instead: tuple[str, ...] = ()
    """Coefficients that the runs were planned for, because the fitted law has no answer to the question."""


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
    """Propose the runs that minimise the uncertainty of answers.

    Args:
      laws: classes by name.
      answers: functionals with positive values by law, in the same order for all laws.
      around: laws to linearise around instead of a fit, by name, such as if there are too few runs for a fit.
      noise: standard deviation of log loss; default: the smallest residual noise of the fits. The intraclass
        correlation is from the same fit.
      modes: True to plan for every mode of a law's posterior, not around its best fit alone. This is always done for a
        law with more coefficients than runs.
      asked: designs whose losses are the answers, if any. Noise then grows with the distance from them; otherwise it
        grows with the ratio of the largest FLOPs to a run's FLOPs.
      options: options of ``fit_law``.

    Raises:
      UserError: as in ``fit_law`` and ``choose_runs``.
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
        raise UserError("How far runs scatter is not known without a fit; give --noise, such as 0.003.")
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
        """Return the runs and the weights of the candidates if noise is not even and normal."""
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
    chosen = choose_runs(list(posteriors.values()), candidates.flops, budget)
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
            name: _standard_errors(fit, runs, wanted[name]) for name, fit in fits.items() if name not in assumed
        },
        instead=instead,
    )


def _standard_errors(fit: FitResult, runs: Runs, answers: Sequence[Functional]) -> Float[np.ndarray, " answers"]:
    known = replace(fit, uncertainty=uncertainty(fit, runs))
    return known.spread(lambda law: [jnp.log(answer(law)) for answer in answers]).errors


def _apart(
    runs: Runs, candidates: Candidates, asked: Design | None
) -> tuple[Float[np.ndarray, " runs"], Float[np.ndarray, " candidates"]] | None:
    """Return the distance of runs and candidates from the asked designs, in e-folds; None if unknown."""
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
    """Return the first published values of the coefficients that the runs do not determine.

    At a fit without these coefficients no further run would seem informative about them; at published values runs are.
    """
    for sets in PUBLISHED.values():
        for one in sets.values():
            if type(one.law) is type(fit.law):
                return {name: float(getattr(one.law, name)) for name in fit.unidentified}
    return {}
