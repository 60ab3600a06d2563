"""What a law decides: optimal sizes for a budget, the cost of a loss, a leverage, as functions of the law alone.

Once the quantities that it needs are given, a decision is a function of the law, so that it is resampled, profiled and
differentiated like a coefficient. Symbols are those of the law's own paper.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from moejax.laws.claim import Claim


@dataclass(frozen=True)
class DecisionRule:
    """What a law decides where some quantities are given."""

    given: tuple[str, ...]
    """Names of a Design's fields or ratios; ``flops`` are 6 · active parameters · tokens, ``loss`` nats per token."""
    gives: Mapping[str, str]
    """Names of what is decided, with their symbols."""
    decide: Callable[..., Mapping[str, Any]]
    """``decide(law, **given)``: what is decided, by name."""
    claim: Callable[..., Claim] | None = None
    """``claim(law, **given)``: the claim that the rule takes its numbers from, if it is one."""


def optimum(claim: Callable[..., Claim], *, given: tuple[str, ...] = (), gives: Mapping[str, str]) -> DecisionRule:
    """The optimum of a claim.

    Args:
      claim: ``claim(law, **given)``.
      gives: symbols of the claim's variables, and of the ``loss`` there if that is decided too; each is named with
        ``optimal_`` before it.
    """

    def decide(law: Any, **quantities: float) -> dict[str, Any]:
        made = claim(law, **quantities)
        loss = {"loss": made.objective(made.value)} if "loss" in gives else {}
        return {f"optimal_{name}": value for name, value in {**made.value, **loss}.items() if name in gives}

    return DecisionRule(given, {f"optimal_{name}": symbol for name, symbol in gives.items()}, decide, claim)


SPLIT: Mapping[str, str] = {"params_active": "N_act*", "tokens": "D*", "loss": "L*"}
"""Symbols of the best split of a budget into active parameters and tokens."""
