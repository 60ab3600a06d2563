"""The best model for a budget, by a fitted law: its closed form, and what autodiff and a search say of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from moejax.fit.bootstrap import Bootstrap, Interval
from moejax.laws import chinchilla, effective_params
from moejax.laws.claim import Checked, Claim, check

ClaimOf = Callable[[Any], Claim]
"""From a law to the claim about its optimum, at one budget."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Compute-optimal parameters and tokens under one law, confirmed or not."""

    law: str
    expansion: float
    """Total over active parameters of the family that is decided about; 1 is dense."""
    flops: float
    statement: str
    checked: Checked
    intervals: dict[str, Interval]
    """Of ``params_active`` and ``tokens``, and of the loss there, over bootstrap resamples."""
    extrapolation: float
    """Budget over the largest of the runs that were fitted, both counted as 6 · active parameters · tokens."""


def claims(law_name: str, flops: float, expansions: list[float]) -> list[tuple[float, ClaimOf]]:
    """The optima that have a closed form for a law, by expansion; none for a law without an allocation."""
    return CLAIMS.get(law_name, lambda flops, expansions: [])(flops, expansions)


def decide(
    law_name: str, law: Any, resampled: Bootstrap, expansion: float, claim_of: ClaimOf, flops: float, largest: float
) -> Decision:
    """Check one optimum of a fitted law, and take its interval from the resampled laws."""

    def answer(one: Any) -> dict[str, Any]:
        claim = claim_of(one)
        return {**claim.value, "loss": claim.objective(claim.value)}

    claim = claim_of(law)
    return Decision(
        law=law_name,
        expansion=expansion,
        flops=flops,
        statement=claim.statement,
        checked=check(claim),
        intervals=resampled.interval(answer),
        extrapolation=flops / largest,
    )


def _dense(flops: float, expansions: list[float]) -> list[tuple[float, ClaimOf]]:
    return [(1.0, lambda law: chinchilla.compute_optimal(law, flops))]


def _effective(flops: float, expansions: list[float]) -> list[tuple[float, ClaimOf]]:
    # The dense column comes along as the falsifier: a mixture is good news only relative to it.
    return [
        (expansion, lambda law, expansion=expansion: effective_params.compute_optimal(law, flops, expansion))
        for expansion in (max(expansions), 1.0)
    ]


CLAIMS: dict[str, Callable[[float, list[float]], list[tuple[float, ClaimOf]]]] = {
    "chinchilla": _dense,
    "effective_params": _effective,
}
