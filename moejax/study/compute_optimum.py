"""The best model for a budget, by a fitted law: its closed form, and what autodiff and a search say of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from moejax.fit.bootstrap import Bootstrap
from moejax.interval import Interval
from moejax.laws import chinchilla, effective_params
from moejax.laws.claim import Checked, Claim, check

ClaimOf = Callable[[Any], Claim]
"""From a law to the claim about its optimum, at one budget."""


@dataclass(frozen=True, kw_only=True)
class ComputeOptimum:
    """Compute-optimal parameters and tokens under one law, confirmed or not."""

    law: str
    expansion: float
    """Total over active parameters of the family that is decided about; 1 is dense."""
    flops: float
    statement: str
    checked: Checked
    intervals: dict[str, Interval]
    """Intervals of ``params_active``, ``tokens`` and the loss there, over bootstrap resamples."""
    prices: dict[str, float] = field(default_factory=dict)
    """What a limit is worth: change of the least loss, in nats per token, per e-fold of ``flops``, and of ``expansion``
    where it is above 1, everything else at its best."""
    extrapolation: float
    """Budget over the largest of the runs that were fitted, both counted as 6 · active parameters · tokens."""


def claims(law_name: str, flops: float, expansions: list[float]) -> list[tuple[float, ClaimOf]]:
    """The optima that have a closed form for a law, by expansion; none for a law without an allocation."""
    return CLAIMS.get(law_name, lambda flops, expansions: [])(flops, expansions)


def decide(
    law_name: str, law: Any, resampled: Bootstrap, expansion: float, claim_of: ClaimOf, flops: float, largest: float
) -> ComputeOptimum:
    """Check one optimum of a fitted law, and take its interval from the resampled laws."""

    def answer(one: Any) -> dict[str, Any]:
        claim = claim_of(one)
        return {**claim.value, "loss": claim.objective(claim.value)}

    claim = claim_of(law)
    return ComputeOptimum(
        law=law_name,
        expansion=expansion,
        flops=flops,
        statement=claim.statement,
        checked=check(claim),
        intervals=resampled.interval(answer),
        prices=prices(law_name, law, flops, expansion),
        extrapolation=flops / largest,
    )


def family(decision: ComputeOptimum) -> str:
    """Which models a decision is about: dense, or the ratio of their total to their active parameters."""
    return "dense" if decision.expansion == 1 else f"total/active = {decision.expansion:.2f}"


def prices(law_name: str, law: Any, flops: float, expansion: float) -> dict[str, float]:
    """Shadow prices of the budget and of the total parameters, by ``jax.grad`` through the closed form."""
    if law_name not in BEST:
        return {}

    def least_loss(logs: dict[str, Any]) -> Any:
        claim = BEST[law_name](law, jnp.exp(logs["flops"]), jnp.exp(logs["expansion"]))
        return claim.objective(claim.value)

    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        at = {"flops": jnp.log(jnp.asarray(flops, float)), "expansion": jnp.log(jnp.asarray(expansion, float))}
        slopes = {name: float(value) for name, value in jax.grad(least_loss)(at).items()}
    return {name: value for name, value in slopes.items() if name == "flops" or expansion > 1}


BEST: dict[str, Callable[[Any, Any, Any], Claim]] = {
    "chinchilla": lambda law, flops, expansion: chinchilla.compute_optimal(law, flops),
    "effective_params": effective_params.compute_optimal,
}
"""The optimum of a law at a budget and an expansion, by the law's name."""


def _dense(flops: float, expansions: list[float]) -> list[tuple[float, ClaimOf]]:
    return [(1.0, lambda law: BEST["chinchilla"](law, flops, 1.0))]


def _effective(flops: float, expansions: list[float]) -> list[tuple[float, ClaimOf]]:
    # The dense column comes along as the falsifier: a mixture is good news only relative to it.
    return [
        (expansion, lambda law, expansion=expansion: BEST["effective_params"](law, flops, expansion))
        for expansion in (max(expansions), 1.0)
    ]


CLAIMS: dict[str, Callable[[float, list[float]], list[tuple[float, ClaimOf]]]] = {
    "chinchilla": _dense,
    "effective_params": _effective,
}
