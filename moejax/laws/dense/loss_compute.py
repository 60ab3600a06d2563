"""Loss against training compute: a power law with its inverse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import jax.numpy as jnp

from moejax.laws.decision import DecisionRule
from moejax.laws.design import Design, Scalar
from moejax.laws.law import LOSS, Law, LawEntry, Published, coefficient, law


@law
class LossCompute:
    """L(C) = alpha·C^beta + b.

    Tian et al. (2025), Section 3 and Appendix K: the loss of one architecture along its compute-optimal runs. C is
    ``flops``, L is in nats per token; beta is negative. ``flops_for_loss`` is its inverse, NaN for a loss below b.
    """

    inputs: ClassVar[tuple[str, ...]] = ("flops",)
    outputs: ClassVar = LOSS

    scale: Scalar = coefficient("scale of the compute term", symbol="alpha", dimension={"flops": "-exponent"})
    exponent: Scalar = coefficient("exponent of compute, negative", symbol="beta", sign="-")
    irreducible: Scalar = coefficient("irreducible loss, nats per token", symbol="b")

    def __call__(self, design: Design) -> Any:
        return self.scale * design.flops**self.exponent + self.irreducible


def flops_for_loss(law: LossCompute, loss: Scalar) -> Any:
    """Return the training FLOPs at which the law reaches a loss; NaN for a loss that it never reaches."""
    excess = jnp.asarray(loss - law.irreducible)
    reachable = jnp.where(excess > 0, excess, 1.0)
    return jnp.where(excess > 0, (reachable / law.scale) ** (1 / law.exponent), jnp.nan)


FLOPS_PER_PETAFLOP_DAY = 1e15 * 24 * 60 * 60

PUBLISHED = {
    "kaplan-2020": Published(
        law=LossCompute(scale=(3.1e8 * FLOPS_PER_PETAFLOP_DAY) ** 0.050, exponent=-0.050, irreducible=0.0),
        source="Kaplan et al. 2020, Eq. 1.3: L(C_min) = (3.1e8 PF-days / C_min)^0.050",
        provenance="secondary",
        data="WebText2, 50,257 tokens of vocabulary",
        dense=True,
        remark="C_min is the compute at a batch size far below the critical one.",
    ),
}


def least_flops(frontier_of: Callable[..., LossCompute], *, given: tuple[str, ...] = ()) -> DecisionRule:
    """Return the rule for the minimum FLOPs that reach a loss, computed from the frontier ``frontier_of(law,
    **given)``."""

    def reason(law: Law, loss: float, **quantities: float) -> str:
        least = float(frontier_of(law, **quantities).irreducible)
        return f"under the fitted law the loss stays above {least:.4g} for any number of FLOPs" if loss <= least else ""

    return DecisionRule(
        ("loss", *given),
        {"optimal_flops": "C*"},
        lambda law, loss, **quantities: {"optimal_flops": flops_for_loss(frontier_of(law, **quantities), loss)},
        reason=reason,
    )


ENTRIES = (
    LawEntry(name="loss_compute", law=LossCompute, published=PUBLISHED, decides=(least_flops(lambda law: law),)),
)
