"""The law of Wang et al. (2024) for dense and sparse models: Chinchilla's, with experts in the parameter term."""

from __future__ import annotations

from typing import Any, ClassVar

import jax.numpy as jnp

from moejax.laws.claim import Claim, Partial, law_at
from moejax.laws.dense.chinchilla import Chinchilla, dense_at_one, optimal_split, training_flops
from moejax.laws.design import Design, Scalar
from moejax.laws.law import LOSS, LawEntry, coefficient, from_law, law


@law
class DenseToMoe:
    """L(N, D, E) = A/(N^alpha·E^gamma) + B/D^beta + sigma.

    Wang et al., "Scaling Laws Across Model Architectures" (2024), as quoted by other documents. They quote no
    constants, only the exponents of compute-optimal size: C^0.590 for MoE models and C^0.507 for dense models.

    N is ``params_active_nonembedding``, E ``num_experts`` (1 for a dense model), D ``tokens``; L is in nats per token.
    At a fixed E, the law has Chinchilla's form.
    """

    inputs: ClassVar[tuple[str, ...]] = ("params_active", "tokens", "num_experts")
    outputs: ClassVar = LOSS

    params_scale: Scalar = coefficient(
        "scale of the parameter term", symbol="A", dimension={"params": "params_exponent"}
    )
    params_exponent: Scalar = coefficient("exponent of parameters", symbol="alpha")
    experts_exponent: Scalar = coefficient("exponent of experts", symbol="gamma")
    tokens_scale: Scalar = coefficient("scale of the data term", symbol="B", dimension={"tokens": "tokens_exponent"})
    tokens_exponent: Scalar = coefficient("exponent of tokens", symbol="beta")
    irreducible: Scalar = coefficient("irreducible loss, nats per token", symbol="sigma")

    def at_experts(self, num_experts: Scalar) -> Chinchilla:
        """Return the law at a fixed expert count."""
        return from_law(Chinchilla, self, params_scale=self.params_scale * num_experts**-self.experts_exponent)

    def __call__(self, design: Design) -> Any:
        experts = jnp.where(design.num_experts > 0, design.num_experts, 1)
        return self.at_experts(experts)(Design(params_active=design.params_active_nonembedding, tokens=design.tokens))


def compute_optimal(law: DenseToMoe, flops: Scalar, num_experts: Scalar) -> Claim:
    """Return the claim for the ``params_active`` and ``tokens`` that minimize the loss at given 6·N·D and expert
    count."""
    return Claim(
        statement="Hoffmann's split with A E^-gamma for A",
        source="from the form of Wang et al. 2024",
        value=optimal_split(law.at_experts(num_experts), flops),
        objective=Partial(law_at, law, {"num_experts": num_experts}),
        held=Partial(training_flops),
    )


ENTRIES = (
    LawEntry(
        name="dense_to_moe",
        law=DenseToMoe,
        aliases=("wang",),
        decides=dense_at_one("num_experts", compute_optimal, DenseToMoe.at_experts),
    ),
)
