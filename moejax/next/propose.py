"""From a table of runs and a question to the runs that answer it: fit, believe, plan."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp

from moejax.fit.answers import coefficient_answers
from moejax.fit.fit_law import fit_law
from moejax.fit.fit_result import FitResult
from moejax.fit.optimum import Decision
from moejax.fit.runs import Runs
from moejax.next.belief import Belief, Undefined, believe
from moejax.next.candidates import Candidates
from moejax.next.plan import Plan, plan, scatter, weights
from moejax.next.relax import Budget


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """What to train next, and what it was decided from."""

    plan: Plan
    candidates: Candidates
    beliefs: Mapping[str, Belief]
    """By law."""
    noise: float
    """Standard deviation of log loss between runs of one design."""
    fits: Mapping[str, FitResult] = field(default_factory=dict)
    """By law; none for a law that was taken as it is."""
    instead: tuple[str, ...] = ()
    """The coefficients that the runs were planned for, because the fitted law has no answer to what was asked."""


def propose(
    laws: Mapping[str, Any],
    runs: Runs,
    candidates: Candidates,
    answers: Mapping[str, Sequence[Decision]],
    budget: Budget,
    *,
    around: Mapping[str, Any] | None = None,
    noise: float | None = None,
    fixed: Mapping[str, float] | None = None,
    **options: Any,
) -> Proposal:
    """The runs that make answers most certain.

    Args:
      laws: classes by name.
      answers: by law, what is asked of it, in the same order for all: positive numbers.
      around: by name, laws to be linear around instead of a fit, as where the runs are too few for one.
      noise: standard deviation of log loss; if not given, what the fit that leaves least leaves.
      options: of ``fit_law``.

    Raises:
      ValueError: as ``fit_law`` and ``plan``.
    """
    around, fixed = dict(around or {}), dict(fixed or {})
    fits = {name: fit_law(law, runs, fixed=fixed, **options) for name, law in laws.items() if name not in around}
    if noise is None:
        if not fits:
            raise ValueError("How far runs scatter is not known without a fit; give --noise, such as 0.003.")
        noise = min(scatter(fit) for fit in fits.values())
    shares = dict.fromkeys(laws, 1 / len(laws))
    if len(fits) == len(laws):
        shares = dict(zip(fits, weights(list(fits.values())), strict=True))

    def believed(asked: Mapping[str, Sequence[Decision]]) -> dict[str, Belief]:
        return {
            name: believe(
                fits[name].law if name in fits else around[name],
                runs,
                candidates.design,
                asked[name],
                noise=noise,
                weight=shares[name],
                fixed=fixed,
                output=next(iter(law.outputs)),
            )
            for name, law in laws.items()
        }

    instead: tuple[str, ...] = ()
    try:
        beliefs = believed(answers)
    except Undefined:
        if len(laws) > 1:
            raise
        # No answer to make certain yet: what every coefficient is comes first.
        ((name, law),) = laws.items()
        coefficients = coefficient_answers(law, tuple(fixed))
        instead = tuple(one.name for one in coefficients)
        beliefs = believed({name: [functools.partial(_size, one.of) for one in coefficients]})
    found = plan(list(beliefs.values()), candidates.flops, budget)
    return Proposal(plan=found, candidates=candidates, beliefs=beliefs, noise=noise, fits=fits, instead=instead)


def _size(answer: Decision, law: Any) -> Any:
    return jnp.abs(answer(law))
