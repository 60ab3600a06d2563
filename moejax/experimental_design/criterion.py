"""Compute the remaining uncertainty after further runs: the expected variance of an answer, averaged over laws.

Every run adds to a few sums (information for each law, disagreement of each pair of laws). The variance is a function
of these sums. With one law, this is c-optimality (V-optimality for several answers). With several laws, each law in
turn is assumed to be true. Its variance is added to the squared distances to the other laws' answers, weighted by the
posterior weights of these laws after the runs. The evidence against a law is its residual sum of squares after a refit,
as in T-optimality. This sum is a minimum over linear functions of the numbers of runs, so it is concave.

The runs of a model share a random effect with ``ratio`` times the variance of the noise, an additional unknown per
model. After its elimination (Woodbury), the sums are still concave in the numbers of runs: for products of x and y,
sum(x·y) - v · sum(x) · sum(y) over a model's m runs, with v = ratio / (1 + m · ratio).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from moejax.experimental_design.laplace_posterior import LaplacePosterior
from moejax.float64 import float64

Array = jax.Array | np.ndarray
PosteriorArrays = dict[str, Any]
"""Arrays of all laws from ``posterior_arrays``; inputs of compiled functions."""
Sums = dict[str, Any]
"""Sums over runs, by name.

``inverse``: inverse information of each law. ``taken``: vector per law; one more run subtracts its outer product from
``inverse``. ``residual_squares`` and ``cross_term``: per pair of laws, sums of squared differences and of differences
times derivatives. Per model: ``runs``, its number of runs, and sums over its runs: ``slopes`` per law, ``apart`` per
pair.
"""


def posterior_arrays(
    posteriors: Sequence[LaplacePosterior], *, rivals: bool = True, region: bool = False
) -> PosteriorArrays:
    """Return the posteriors as arrays; a pair is (true law, law fitted to the true law's predictions).

    Args:
      rivals: True if the laws compete to predict one output, False if each law predicts its own output.
      region: True to minimize the sum of the answers' variances, False to minimize the mean ratio of each variance to
        its value before the runs.
    """
    first = posteriors[0]
    ratio, runs = first.shared / (1 - first.shared), np.sum(first.model_runs**2, axis=0)
    laws = [
        {
            "precision": b.precision,
            "slopes": b.slopes,
            "model_slopes": b.model_runs.T @ b.run_slopes,
            "answers": b.answers,
            "asked": b.answer_slopes,
            "weight": b.weight,
        }
        for b in posteriors
    ]
    pairs = {}
    for i, true in enumerate(posteriors):
        for j, other in enumerate(posteriors):
            if i != j and rivals:
                old = (true.fitted - other.fitted) * (np.linalg.norm(other.scores, axis=1) > 0)
                own = other.noise * np.sqrt(1 - other.shared)
                pairs[f"{i} {j}"] = {
                    "cross_term": old @ other.scores,
                    "apart": np.sqrt(other.candidate_weights) * (true.predicted - other.predicted) / own,
                    "model_apart": (other.model_runs**2).T @ old / own,
                }
    known = {"laws": laws, "pairs": pairs, "ratio": ratio, "model": first.model, "model_runs": runs}
    importance = np.ones(len(first.answers))
    if region:
        with float64():
            importance = np.asarray(_variances_before(known))
    return known | {"importance": importance / importance.mean()}


def sums(known: PosteriorArrays, counts: Array) -> Sums:
    """Return the sums over the runs so far and ``counts`` runs of every candidate; counts may be fractional."""
    laws, model, before = known["laws"], known["model"], known["model_runs"]

    def by_model(start: Array, values: Array) -> Array:
        return start + jax.ops.segment_sum(values, model, num_segments=len(before))

    runs = by_model(before, counts)
    slopes = [by_model(law["model_slopes"], counts[:, None] * law["slopes"]) for law in laws]
    apart = {pair: by_model(one["model_apart"], counts * one["apart"]) for pair, one in known["pairs"].items()}
    luck, lost = _luck(known, runs), _luck(known, before)
    inverse = []
    for law, now in zip(laws, slopes, strict=True):
        then = law["model_slopes"]
        own = law["precision"] + (law["slopes"].T * counts) @ law["slopes"]
        inverse.append(jnp.linalg.inv(own - (now.T * luck) @ now + (then.T * lost) @ then))
    squares, cross = {}, {}
    for pair, one in known["pairs"].items():
        other = int(pair.split()[1])
        now, then = apart[pair], one["model_apart"]
        squares[pair] = counts @ one["apart"] ** 2 - luck @ now**2 + lost @ then**2
        own = one["cross_term"] + (counts * one["apart"]) @ laws[other]["slopes"]
        cross[pair] = own - (luck * now) @ slopes[other] + (lost * then) @ laws[other]["model_slopes"]
    return {
        "inverse": inverse,
        "taken": [jnp.zeros(len(one)) for one in inverse],
        "residual_squares": squares,
        "cross_term": cross,
        "runs": runs,
        "slopes": slopes,
        "apart": apart,
    }


def _luck(known: PosteriorArrays, runs: Array) -> Array:
    """Return the remaining variance of a model's random effect after n runs, relative to the noise variance."""
    return known["ratio"] / (1 + known["ratio"] * runs)


def with_run(known: PosteriorArrays, so_far: Sums, candidate: int | Array) -> Sums:
    """Return the sums with one more run of a candidate, by the Sherman-Morrison formula.

    The information of a run is its difference from its expectation given the model's earlier runs and their shared
    random effect. Sums by model are unchanged, because the result is not used to add further runs.
    """
    laws, model = known["laws"], known["model"][candidate]
    luck = _luck(known, so_far["runs"][model])
    slopes = [law["slopes"][candidate] - luck * so_far["slopes"][i][model] for i, law in enumerate(laws)]
    taken = []
    for before, slope in zip(so_far["inverse"], slopes, strict=True):
        moved = before @ slope
        taken.append(moved / jnp.sqrt(1 + luck + slope @ moved))
    squares, cross = {}, {}
    for pair, one in known["pairs"].items():
        apart = one["apart"][candidate] - luck * so_far["apart"][pair][model]
        squares[pair] = so_far["residual_squares"][pair] + apart**2 / (1 + luck)
        cross[pair] = so_far["cross_term"][pair] + apart * slopes[int(pair.split()[1])] / (1 + luck)
    return {**so_far, "taken": taken, "residual_squares": squares, "cross_term": cross}


def _squared(so_far: Sums, law: int, vectors: Array) -> Array:
    """Return the quadratic forms of vectors with a law's inverse information.

    The rank-one update for one more run is subtracted here, so that no inverse is computed per candidate.
    """
    inverse = jnp.einsum("...f,fg,...g->...", vectors, so_far["inverse"][law], vectors)
    return inverse - (vectors @ so_far["taken"][law]) ** 2


def variances(known: PosteriorArrays, after: Sums, before: Sums) -> Float[jax.Array, " answers"]:
    """Return the expected variance of every answer's logarithm; ``before`` are the sums of the runs so far."""
    laws = known["laws"]
    total = 0.0
    for i, law in enumerate(laws):
        own = _squared(after, i, law["asked"])
        shares, far = [jnp.asarray(law["weight"], float)], [jnp.zeros_like(own)]
        for j, other in enumerate(laws):
            if f"{i} {j}" in known["pairs"]:
                evidence = _refitted_residual(after, i, j) - _refitted_residual(before, i, j)
                shares.append(other["weight"] * jnp.exp(-0.5 * jnp.maximum(evidence, 0.0)))
                far.append((other["answers"] - law["answers"]) ** 2)
        left = jnp.stack(shares) / sum(shares)
        total = total + law["weight"] * (own + left @ jnp.stack(far))
    return jnp.asarray(total)


@jax.jit
def _variances_before(known: PosteriorArrays) -> Array:
    before = sums(known, jnp.zeros(len(known["model"])))
    return variances(known, before, before)


def _refitted_residual(sums_so_far: Sums, true: int, other: int) -> Array:
    """Return the other law's residual sum of squares after a refit to the true law's predictions."""
    pair = f"{true} {other}"
    return sums_so_far["residual_squares"][pair] - _squared(sums_so_far, other, sums_so_far["cross_term"][pair])


def share_left(known: PosteriorArrays, after: Sums, before: Sums) -> Array:
    """Return the ratio of remaining to initial variance, averaged over the answers: the objective."""
    return jnp.mean(known["importance"] * variances(known, after, before) / variances(known, before, before))
