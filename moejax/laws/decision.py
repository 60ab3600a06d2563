"""Define decisions that follow from a law: optimal sizes for a budget, the compute for a loss, or a leverage.

Once its inputs are fixed, a decision depends only on the law's coefficients. So it can be resampled, profiled and
differentiated like a coefficient. Symbols follow the law's paper.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from moejax.laws.claim import Claim
from moejax.laws.design import Design, Scalar


@dataclass(frozen=True)
class DecisionRule:
    """A decision of a law as a function of input quantities."""

    given: tuple[str, ...]
    """Names of the input quantities: fields or ratios of a Design. ``flops`` are 6 · active parameters · tokens;
    ``loss`` is in nats per token."""
    gives: Mapping[str, str]
    """Names of the results, with their symbols."""
    decide: Callable[..., Mapping[str, Any]]
    """``decide(law, **given)``: results by name."""
    claim: Callable[..., Claim] | None = None
    """``claim(law, **given)``: the claim behind the results, if any."""
    ends: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Bounds of the search, keyed by result name; a result at a bound is not an optimum of the law."""
    reason: Callable[..., str] | None = None
    """``reason(law, **given)``: why the law has no answer."""

    assumes: str = ""
    """Assumption about quantities that are not given, as a clause; empty if there is none."""

    def why_none(self, law: Callable[[Design], Any], given: Mapping[str, float]) -> str:
        """Return the reason why a law has no answer for the given quantities, as the end of a sentence."""
        said = self.reason(law, **{name: given[name] for name in self.given}) if self.reason is not None else ""
        return said or "the formula gives no finite value with these coefficients"

    def at_an_end(self, name: str, value: float) -> str:
        """Return a sentence about the bound that the decision has reached; empty inside the bounds."""
        if name not in self.ends:
            return ""
        low, high = self.ends[name]
        if value <= low * (1 + AT_AN_END):
            side, end = "lower", low
        elif value >= high * (1 - AT_AN_END):
            side, end = "upper", high
        else:
            return ""
        return f"{name} is at its {side} bound, {end:g}: the law has no optimum between {low:g} and {high:g}"


AT_AN_END = 1e-6
"""Relative distance from a bound within which an answer is at the bound."""


def optimum(
    claim: Callable[..., Claim],
    *,
    given: tuple[str, ...] = (),
    gives: Mapping[str, str],
    ends: Mapping[str, tuple[float, float]] | None = None,
) -> DecisionRule:
    """Return the rule for the optimum of a claim.

    Args:
      claim: ``claim(law, **given)``.
      ends: bounds of the search for some of the claim's variables.
      gives: symbols keyed by the claim's variables, and by ``loss`` to return the loss too. Names of results have the
        prefix ``optimal_``.
    """

    def decide(law: Callable[[Design], Any], **quantities: float) -> dict[str, Any]:
        made = claim(law, **quantities)
        loss = {"loss": made.objective(made.value)} if "loss" in gives else {}
        return {f"optimal_{name}": value for name, value in {**made.value, **loss}.items() if name in gives}

    return DecisionRule(
        given,
        {f"optimal_{name}": symbol for name, symbol in gives.items()},
        decide,
        claim,
        {f"optimal_{name}": between for name, between in (ends or {}).items()},
    )


def growth(split: Callable[..., Mapping[str, Any]], *, given: tuple[str, ...] = ()) -> DecisionRule:
    """Return the rule for the exponent a* of N* ∝ C^a*, for a law whose best size is a power of the budget.

    For Hoffmann's law a* = beta/(alpha+beta), and D* ∝ C^(1-a*).

    Args:
      split: ``split(law, flops, **given)``: the best ``params_active`` and ``tokens`` for a budget.
    """

    def decide(law: Callable[[Design], Any], **quantities: float) -> dict[str, Any]:
        held = {name: value for name, value in quantities.items() if name != "flops"}

        def log_size(log_flops: Scalar) -> Any:
            return jnp.log(split(law, jnp.exp(log_flops), **held)["params_active"])

        return {"optimal_params_exponent": jax.grad(log_size)(LOG_FLOPS)}

    return DecisionRule(given, {"optimal_params_exponent": "a*"}, decide)


LOG_FLOPS = 50.0
"""Logarithm of the budget (5e21 FLOPs) at which a power law's slope is computed; every budget gives the same slope."""

SPLIT: Mapping[str, str] = {"params_active": "N_act*", "tokens": "D*", "loss": "L*"}
"""Symbols of the best split of a budget into active parameters and tokens."""
