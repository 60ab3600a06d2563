"""What a set of further runs would leave uncertain: the expected variance of an answer, averaged over laws.

Every run adds to a few sums (information of each law, how far each pair of laws disagrees on it), and the variance is a
function of these sums. Under one law this is c-optimality (V-optimality for several answers at once). Of several laws,
each in turn is taken to be true: its own variance, and the squared distance to every other law's answer, weighed by
the probability that the runs will still leave to that law. The evidence against it is the residual sum of squares that
remains after it was fitted again, as in T-optimality; it is a minimum over linear functions of the numbers of runs, so
concave.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from moejax.experimental_design.laplace_posterior import LaplacePosterior

PosteriorArrays = dict[str, Any]
"""Arrays of all laws, as ``posterior_arrays`` makes them: what is compiled against."""
Sums = dict[str, Any]
"""``inverse``: per law, of the information; ``residual_squares`` and ``cross_term``: per pair, of squares and of
slopes."""


def posterior_arrays(posteriors: Sequence[LaplacePosterior]) -> PosteriorArrays:
    """The posteriors as arrays; a pair is (the law that is true, the law that is fitted to it)."""
    laws = [
        {
            "precision": b.precision,
            "slopes": b.slopes,
            "answers": b.answers,
            "asked": b.answer_slopes,
            "weight": b.weight,
        }
        for b in posteriors
    ]
    pairs = {}
    for i, true in enumerate(posteriors):
        for j, other in enumerate(posteriors):
            if i != j:
                old = (true.fitted - other.fitted) / other.noise
                old = old * (np.linalg.norm(other.run_slopes, axis=1) > 0)
                pairs[f"{i} {j}"] = {
                    "residual_squares": old @ old,
                    "cross_term": old @ other.run_slopes,
                    "apart": (true.predicted - other.predicted) / other.noise,
                }
    return {"laws": laws, "pairs": pairs}


def sums(known: PosteriorArrays, counts: Any) -> Sums:
    """Over the runs so far and ``counts`` of every candidate, which need not be whole."""
    laws = known["laws"]
    inverse = [jnp.linalg.inv(law["precision"] + (law["slopes"].T * counts) @ law["slopes"]) for law in laws]
    squares, cross = {}, {}
    for pair, one in known["pairs"].items():
        other = laws[int(pair.split()[1])]
        squares[pair] = one["residual_squares"] + counts @ one["apart"] ** 2
        cross[pair] = one["cross_term"] + (counts * one["apart"]) @ other["slopes"]
    return {"inverse": inverse, "residual_squares": squares, "cross_term": cross}


def with_run(known: PosteriorArrays, so_far: Sums, candidate: Any, times: Any) -> Sums:
    """The sums with a candidate ``times`` more (-1: once less), by Sherman and Morrison's formula."""
    laws, inverse = known["laws"], []
    for law, before in zip(laws, so_far["inverse"], strict=True):
        slope = law["slopes"][candidate]
        moved = before @ slope
        inverse.append(before - times * jnp.outer(moved, moved) / (1 + times * slope @ moved))
    squares, cross = {}, {}
    for pair, one in known["pairs"].items():
        other, apart = laws[int(pair.split()[1])], one["apart"][candidate]
        squares[pair] = so_far["residual_squares"][pair] + times * apart**2
        cross[pair] = so_far["cross_term"][pair] + times * apart * other["slopes"][candidate]
    return {"inverse": inverse, "residual_squares": squares, "cross_term": cross}


def variances(known: PosteriorArrays, after: Sums, before: Sums) -> Float[jax.Array, " answers"]:
    """Expected variance of every answer's logarithm; ``before`` are the sums of the runs so far."""
    laws = known["laws"]
    total = 0.0
    for i, law in enumerate(laws):
        own = jnp.einsum("af,fg,ag->a", law["asked"], after["inverse"][i], law["asked"])
        shares, far = [jnp.asarray(law["weight"], float)], [jnp.zeros_like(own)]
        for j, other in enumerate(laws):
            if i != j:
                evidence = _refitted_residual(after, i, j) - _refitted_residual(before, i, j)
                shares.append(other["weight"] * jnp.exp(-0.5 * jnp.maximum(evidence, 0.0)))
                far.append((other["answers"] - law["answers"]) ** 2)
        left = jnp.stack(shares) / sum(shares)
        total = total + law["weight"] * (own + left @ jnp.stack(far))
    return jnp.asarray(total)


def _refitted_residual(sums_so_far: Sums, true: int, other: int) -> Any:
    """Sum of squares that is left when the other law is fitted again to what the true one gives."""
    pair = f"{true} {other}"
    return (
        sums_so_far["residual_squares"][pair]
        - sums_so_far["cross_term"][pair] @ sums_so_far["inverse"][other] @ sums_so_far["cross_term"][pair]
    )


def share_left(known: PosteriorArrays, after: Sums, before: Sums) -> Any:
    """Variance that is left as a share of that before, averaged over the answers: what is minimised."""
    return jnp.mean(variances(known, after, before) / variances(known, before, before))
