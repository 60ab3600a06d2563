"""Loss during training from two areas under the learning-rate schedule, Tissue et al. (2024)."""

from __future__ import annotations

from typing import Any, ClassVar

import jax.numpy as jnp

from moejax.laws.design import Design, Scalar
from moejax.laws.law import LOSS, LawEntry, coefficient, law


@law
class Momentum:
    """L(t) = L_0 + A·S_1(t)^-alpha - B·sum_k (eta_(k-1) - eta_k)·(1 - exp(-n_k(t)/tau)).

    Tissue et al., "Scaling Law with Learning Rate Annealing" (2024), Eq. 1. The paper's S_2 sums rate drops with a
    momentum lambda = exp(-1/tau), and its C is B·(1 - lambda).

    S_1 is ``rate_sum``, eta_(k-1) - eta_k is ``drop``, and n_k is ``drop_steps``, the number of updates since this
    drop. L is in nats per token. The paper sets lambda to about 0.999; here tau is fitted.
    """

    inputs: ClassVar[tuple[str, ...]] = ("rate_sum", "drop", "drop_steps")
    outputs: ClassVar = LOSS

    irreducible: Scalar = coefficient("loss after unlimited training, nats per token", symbol="L_0")
    sum_scale: Scalar = coefficient("scale of the power of S_1", symbol="A", dimension={"rate_sum": "sum_exponent"})
    sum_exponent: Scalar = coefficient("exponent of the sum of rates", symbol="alpha")
    drop_scale: Scalar = coefficient("loss reduction per unit of rate drop", symbol="B", dimension={"drop": "-1"})
    memory_steps: Scalar = coefficient(
        "updates after which a drop has 1 - 1/e of its effect",
        symbol="tau",
        dimension={"drop_steps": "1"},
        is_scale=False,
    )

    def __call__(self, design: Design) -> Any:
        read = design.columns
        fallen = jnp.sum(read["drop"] * -jnp.expm1(-read["drop_steps"] / self.memory_steps), axis=-1)
        return self.irreducible + self.sum_scale * read["rate_sum"] ** -self.sum_exponent - self.drop_scale * fallen


ENTRIES = (LawEntry(name="momentum", law=Momentum, aliases=("tissue",)),)
