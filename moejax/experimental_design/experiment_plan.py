"""The whole answer: what to train next, in which order, and how certain the answer will then be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from moejax.errors import UserError
from moejax.experimental_design.criterion import PosteriorArrays, posterior_arrays, sums, variances
from moejax.experimental_design.exchange import exchange, in_order, left_after
from moejax.experimental_design.laplace_posterior import UNIDENTIFIED_SHARE, LaplacePosterior
from moejax.experimental_design.relax import RunBudget, relax
from moejax.fit.fit_result import FitResult
from moejax.float64 import float64


@dataclass(frozen=True, kw_only=True)
class ExperimentPlan:
    """Runs to train, those first that tell most per FLOP."""

    order: tuple[int, ...]
    """Numbers of candidates; a number comes again where a run is repeated."""
    left: Float[np.ndarray, " runs"]
    """Share of the answers' variance that is left after each of them."""
    before: Float[np.ndarray, " answers"]
    """Standard deviation of every answer's logarithm, of several laws with their disagreement."""
    after: Float[np.ndarray, " answers"]
    """Expected, with all runs."""
    bound: float
    """No runs of this budget leave a smaller share of the variance; 0 of several laws, where nothing bounds it."""
    unidentified: tuple[tuple[bool, ...], ...]
    """Per law, which answers the runs so far leave to the prior."""
    still_unidentified: tuple[tuple[bool, ...], ...]
    """The same with the new runs."""

    @property
    def efficiency(self) -> float:
        """The bound over what is left: 1 is the best there is."""
        return self.bound / float(self.left[-1]) if len(self.left) else 0.0


def choose_runs(
    posteriors: Sequence[LaplacePosterior], flops: Float[np.ndarray, " candidates"], budget: RunBudget
) -> ExperimentPlan:
    """The runs that leave least of the answers' variance.

    Args:
      flops: what every candidate costs.

    Raises:
      UserError: no candidate is within the budget.
    """
    if not (flops <= budget.flops).any():
        raise UserError(
            f"The cheapest candidate costs {flops.min():.3g} FLOPs and the budget is {budget.flops:.3g}; raise --flops."
        )
    arrays = posterior_arrays(posteriors)
    relaxed = relax(arrays, flops, budget)
    counts = exchange(arrays, flops, budget, relaxed.counts)
    order = in_order(arrays, counts, flops)
    before, afterwards = (deviations(arrays, c) for c in (np.zeros(len(flops)), counts))
    return ExperimentPlan(
        order=tuple(order),
        left=left_after(arrays, order),
        before=before,
        after=afterwards,
        bound=relaxed.bound if len(posteriors) == 1 else 0.0,
        unidentified=tuple(tuple(bool(x) for x in b.prior_share > UNIDENTIFIED_SHARE) for b in posteriors),
        still_unidentified=tuple(
            tuple(bool(x) for x in after.prior_share > UNIDENTIFIED_SHARE)
            for after in _with(posteriors, arrays, counts)
        ),
    )


def _with(
    posteriors: Sequence[LaplacePosterior], arrays: PosteriorArrays, counts: np.ndarray
) -> list[LaplacePosterior]:
    """The posteriors after further runs."""
    with float64():
        inverse = [np.asarray(one) for one in sums(arrays, np.asarray(counts, float))["inverse"]]
    return [replace(b, precision=np.linalg.inv(one)) for b, one in zip(posteriors, inverse, strict=True)]


def deviations(arrays: PosteriorArrays, counts: np.ndarray) -> Float[np.ndarray, " answers"]:
    """Expected standard deviation of every answer's logarithm after further runs."""
    with float64():
        before = sums(arrays, np.zeros(len(counts)))
        return np.sqrt(np.asarray(variances(arrays, sums(arrays, np.asarray(counts, float)), before)))


def weights(fits: Sequence[FitResult]) -> list[float]:
    """Akaike's weights of laws fitted to the same runs: exp(-AICc / 2), divided by the sum over these laws.

    Burnham and Anderson (2002), section 2.9. They take a law's AICc for its evidence, which counts a group's shared
    luck once (``information_criteria``); they are not probabilities that a law is true, as all may be wrong.
    """
    scores = np.asarray([fit.aicc for fit in fits])
    if not np.isfinite(scores).any():
        return [1 / len(fits)] * len(fits)
    shares = np.exp(-0.5 * (scores - scores[np.isfinite(scores)].min()))
    return (shares / shares.sum()).tolist()
