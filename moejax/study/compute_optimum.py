"""Find the best model for a budget with a fitted law, and check the closed-form optimum by autodiff and search."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from moejax.fit.uncertainty.bootstrap import Bootstrap
from moejax.float64 import float64
from moejax.interval import UNKNOWN, Interval
from moejax.laws import DECISIONS, LAWS
from moejax.laws.claim import Checked, Claim, check
from moejax.laws.decision import DecisionRule
from moejax.laws.law import Law
from moejax.quantities import format

ClaimOf = Callable[[Any], Claim]
"""A function that returns a law's claim about its optimum at one budget."""


@dataclass(frozen=True, kw_only=True)
class ComputeOptimum:
    """Compute-optimal parameters and tokens under one law, with the result of the check."""

    law: str
    expansion: float
    """Ratio of total to active parameters of the models; 1 for dense models, or if the law does not use the ratio."""
    flops: float
    statement: str
    checked: Checked
    intervals: dict[str, Interval]
    """Confidence intervals of ``params_active``, ``tokens`` and the loss at the optimum, from bootstrap resamples."""
    few: str = ""
    """Clause stating that the models are too few for intervals; empty if they suffice."""
    prices: dict[str, float] = field(default_factory=dict)
    """Shadow prices: change of the minimal loss, in nats per token, if ``flops`` or ``expansion`` increases by a factor
    of e. Everything else is kept optimal. Only an expansion above 1 has a price.
    """
    extrapolation: float
    """Ratio of the budget to the largest fitted run's compute, counted as 6 · active parameters · tokens."""


def claims(law_name: str, flops: float, expansions: list[float]) -> list[tuple[float, ClaimOf]]:
    """Return expansions and a law's closed-form optima at them; empty if the law does not split a budget.

    A law with an expansion gets two optima: at the largest expansion, and at 1, the dense baseline.
    """
    rule = _split_rule(law_name)
    if rule is None:
        return []
    asked = (max(expansions), 1.0) if "expansion" in rule.given else (1.0,)
    return [(expansion, functools.partial(_optimum, rule, flops=flops, expansion=expansion)) for expansion in asked]


def _split_rule(law_name: str) -> DecisionRule | None:
    """Return the rule with which a law splits a budget in closed form, for any model or at a given expansion."""
    for rule in DECISIONS.get(LAWS[law_name], ()):
        if rule.claim is not None and rule.given in (("flops",), ("flops", "expansion")):
            return rule
    return None


def _optimum(rule: DecisionRule, law: Law, *, flops: float | jax.Array, expansion: float | jax.Array) -> Claim:
    assert rule.claim is not None
    return rule.claim(law, **{name: {"flops": flops, "expansion": expansion}[name] for name in rule.given})


def decide(
    law_name: str, law: Law, resampled: Bootstrap, expansion: float, claim_of: ClaimOf, flops: float, largest: float
) -> ComputeOptimum:
    """Check one optimum of a fitted law, and compute its intervals, which are unknown if there are too few models."""

    def answer(one: Law) -> dict[str, Any]:
        claim = claim_of(one)
        return {**claim.value, "loss": claim.objective(claim.value)}

    claim, few = claim_of(law), resampled.few
    return ComputeOptimum(
        law=law_name,
        expansion=expansion,
        flops=flops,
        statement=claim.statement,
        checked=check(claim),
        intervals=dict.fromkeys(answer(law), UNKNOWN) if few else resampled.interval(answer),
        few=few,
        prices=prices(law_name, law, flops, expansion),
        extrapolation=flops / largest,
    )


def family(decision: ComputeOptimum) -> str:
    """Describe the models that a decision concerns: dense, an expansion (total / active parameters), or any."""
    rule = _split_rule(decision.law)
    if rule is None or "expansion" not in rule.given:
        return "any expansion"
    return "dense" if decision.expansion == 1 else f"expansion {format(decision.expansion, 3)}"


def prices(law_name: str, law: Law, flops: float, expansion: float) -> dict[str, float]:
    """Return the shadow prices of the budget and the expansion, computed by ``jax.grad`` through the closed form."""
    rule = _split_rule(law_name)
    if rule is None:
        return {}

    def least_loss(logs: dict[str, Any]) -> Any:
        claim = _optimum(rule, law, flops=jnp.exp(logs["flops"]), expansion=jnp.exp(logs["expansion"]))
        return claim.objective(claim.value)

    with float64():
        at = {"flops": jnp.log(jnp.asarray(flops, float)), "expansion": jnp.log(jnp.asarray(expansion, float))}
        slopes = {name: float(value) for name, value in jax.grad(least_loss)(at).items()}
    return {name: value for name, value in slopes.items() if name == "flops" or expansion > 1}
