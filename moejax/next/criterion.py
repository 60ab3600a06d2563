"""What a set of further runs would leave uncertain: the expected variance of an answer, averaged over laws.

Every run adds to a few sums (information of each law, how far each pair of laws disagrees on it), and the variance is a
function of these sums. Under one law this is c-optimality (V-optimality for several answers at once). Of several laws,
each in turn is taken to be true: its own variance, and the squared distance to every other law's answer, weighed by
the probability that the runs will still leave to that law. The evidence against it is the misfit that remains after
it was fitted again, as in T-optimality; it is a minimum over linear functions of the numbers of runs, so concave.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from moejax.next.belief import Belief

Known = dict[str, Any]
"""Arrays of all laws, as ``known`` makes them: what is compiled against."""
Sums = dict[str, Any]
"""``inverse``: per law, of the information; ``misfit`` and ``pull``: per pair, of squares and of slopes."""


def known(beliefs: Sequence[Belief]) -> Known:
    """The beliefs as arrays; a pair is (the law that is true, the law that is fitted to it)."""
    laws = [
        {
            "precision": b.precision,
            "slopes": b.slopes,
            "answers": b.answers,
            "asked": b.answer_slopes,
            "weight": b.weight,
        }
        for b in beliefs
    ]
    pairs = {}
    for i, true in enumerate(beliefs):
        for j, other in enumerate(beliefs):
            if i != j:
                old = (true.fitted - other.fitted) / other.noise
                old = old * (np.linalg.norm(other.old_slopes, axis=1) > 0)
                pairs[f"{i} {j}"] = {
                    "misfit": old @ old,
                    "pull": old @ other.old_slopes,
                    "apart": (true.foretold - other.foretold) / other.noise,
                }
    return {"laws": laws, "pairs": pairs}


def sums(known: Known, counts: Any) -> Sums:
    """Over the runs so far and ``counts`` of every candidate, which need not be whole."""
    laws = known["laws"]
    inverse = [jnp.linalg.inv(law["precision"] + (law["slopes"].T * counts) @ law["slopes"]) for law in laws]
    misfit, pull = {}, {}
    for pair, one in known["pairs"].items():
        other = laws[int(pair.split()[1])]
        misfit[pair] = one["misfit"] + counts @ one["apart"] ** 2
        pull[pair] = one["pull"] + (counts * one["apart"]) @ other["slopes"]
    return {"inverse": inverse, "misfit": misfit, "pull": pull}


def with_run(known: Known, found: Sums, candidate: Any, times: Any) -> Sums:
    """The sums with a candidate ``times`` more (-1: once less), by Sherman and Morrison's formula."""
    laws, inverse = known["laws"], []
    for law, before in zip(laws, found["inverse"], strict=True):
        slope = law["slopes"][candidate]
        moved = before @ slope
        inverse.append(before - times * jnp.outer(moved, moved) / (1 + times * slope @ moved))
    misfit, pull = {}, {}
    for pair, one in known["pairs"].items():
        other, apart = laws[int(pair.split()[1])], one["apart"][candidate]
        misfit[pair] = found["misfit"][pair] + times * apart**2
        pull[pair] = found["pull"][pair] + times * apart * other["slopes"][candidate]
    return {"inverse": inverse, "misfit": misfit, "pull": pull}


def variances(known: Known, found: Sums, before: Sums) -> Float[jax.Array, " answers"]:
    """Expected variance of every answer's logarithm; ``before`` are the sums of the runs so far."""
    laws = known["laws"]
    total = 0.0
    for i, law in enumerate(laws):
        own = jnp.einsum("af,fg,ag->a", law["asked"], found["inverse"][i], law["asked"])
        shares, far = [jnp.asarray(law["weight"], float)], [jnp.zeros_like(own)]
        for j, other in enumerate(laws):
            if i != j:
                evidence = _misfit(found, i, j) - _misfit(before, i, j)
                shares.append(other["weight"] * jnp.exp(-0.5 * jnp.maximum(evidence, 0.0)))
                far.append((other["answers"] - law["answers"]) ** 2)
        left = jnp.stack(shares) / sum(shares)
        total = total + law["weight"] * (own + left @ jnp.stack(far))
    return jnp.asarray(total)


def _misfit(found: Sums, true: int, other: int) -> Any:
    """Sum of squares that is left when the other law is fitted again to what the true one gives."""
    pair = f"{true} {other}"
    return found["misfit"][pair] - found["pull"][pair] @ found["inverse"][other] @ found["pull"][pair]


def share_left(known: Known, found: Sums, before: Sums) -> Any:
    """Variance that is left as a share of that before, averaged over the answers: what is minimised."""
    return jnp.mean(variances(known, found, before) / variances(known, before, before))
