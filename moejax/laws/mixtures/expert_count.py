"""The joint law of dense and sparse models, Ludziejewski et al. (2025): exponents that depend on the expert count."""

from __future__ import annotations

from typing import Any, ClassVar

import jax.numpy as jnp

from moejax.laws.claim import Claim, Partial, in_float64, law_at
from moejax.laws.dense.chinchilla import Chinchilla, dense_at_one, optimal_split, training_flops
from moejax.laws.design import Design, Scalar
from moejax.laws.law import LOSS, LawEntry, Published, coefficient, from_law, law
from moejax.laws.mixtures.routed import saturate


@law
class ExpertCount:
    """L = a·Ê^delta·N^(alpha + gamma·ln Ê) + b·Ê^omega·D^(beta + zeta·ln Ê) + c,
    with 1/Ê = 1/(E - 1 + 1/(1/E_start - 1/E_max)) + 1/E_max.

    Ludziejewski et al., "Joint MoE Scaling Laws: Mixture of Experts Can Be Memory Efficient" (2025), Eq. 6 and Table 3.

    N is ``params_active``, embeddings included; D is ``tokens``; E is ``expert_expansion`` (the document routes to one
    expert, so E is the number of experts; 1 is a dense model), and Ê is the saturated expert count. L is in nats per
    token. Two widely read copies of the formula flip signs; these signs reproduce the document's Tables 1 and 4. At a
    fixed expert count, the law has Chinchilla's form, with scales and exponents that depend on the count.
    """

    inputs: ClassVar[tuple[str, ...]] = ("params_active", "tokens", "num_experts", "top_k")
    outputs: ClassVar = LOSS

    params_scale: Scalar = coefficient(
        "scale of the parameter term", symbol="a", dimension={"params": "-params_exponent"}
    )
    params_exponent: Scalar = coefficient("exponent of parameters at Ê = 1", symbol="alpha", sign="-")
    params_experts: Scalar = coefficient(
        "exponent of experts in the parameter term", symbol="delta", sign="any", shift={"params": "params_coupling"}
    )
    params_coupling: Scalar = coefficient("change of the exponent of parameters with ln Ê", symbol="gamma", sign="any")
    tokens_scale: Scalar = coefficient("scale of the data term", symbol="b", dimension={"tokens": "-tokens_exponent"})
    tokens_exponent: Scalar = coefficient("exponent of tokens at Ê = 1", symbol="beta", sign="-")
    tokens_experts: Scalar = coefficient(
        "exponent of experts in the data term", symbol="omega", sign="any", shift={"tokens": "tokens_coupling"}
    )
    tokens_coupling: Scalar = coefficient("change of the exponent of tokens with ln Ê", symbol="zeta", sign="any")
    experts_start: Scalar = coefficient("effective count of one expert", symbol="E_start")
    experts_maximum: Scalar = coefficient("effective count of infinitely many experts", symbol="E_max")
    irreducible: Scalar = coefficient("irreducible loss, nats per token", symbol="c")

    def at_experts(self, expert_expansion: Scalar) -> Chinchilla:
        """Return the law at a fixed expert count, which has Chinchilla's form (Table 4: m, mu, n, nu)."""
        experts = saturate(expert_expansion, self.experts_start, self.experts_maximum, 1)
        return from_law(
            Chinchilla,
            self,
            params_scale=self.params_scale * experts**self.params_experts,
            params_exponent=-(self.params_exponent + self.params_coupling * jnp.log(experts)),
            tokens_scale=self.tokens_scale * experts**self.tokens_experts,
            tokens_exponent=-(self.tokens_exponent + self.tokens_coupling * jnp.log(experts)),
        )

    def __call__(self, design: Design) -> Any:
        return self.at_experts(design.expert_expansion)(design)


@in_float64
def compute_optimal(law: ExpertCount, flops: Scalar, expert_expansion: Scalar) -> Claim:
    """Return the claim for the ``params_active`` and ``tokens`` that minimize the loss at given 6·N_act·D and expert
    count."""
    return Claim(
        statement="Hoffmann's split with the scales and exponents of one expert count",
        source="Ludziejewski et al. 2025, Table 1",
        value=optimal_split(law.at_experts(expert_expansion), flops),
        objective=Partial(law_at, law, {"num_experts": expert_expansion, "top_k": 1.0}),
        held=Partial(training_flops),
    )


PUBLISHED = {
    "ludziejewski-2025": Published(
        law=ExpertCount(
            params_scale=35.91,
            params_exponent=-0.1889,
            params_experts=-0.2285,
            params_coupling=0.0098,
            tokens_scale=35.98,
            tokens_exponent=-0.1775,
            tokens_experts=0.5529,
            tokens_coupling=-0.0259,
            experts_start=2.0732,
            experts_maximum=290.4521,
            irreducible=1.3637,
        ),
        source="Ludziejewski et al. 2025, Table 3",
        provenance="verified",
        data="FineWeb-Edu",
        fitted={"params_active": (79e6, 2.72e9), "tokens": (0.5e9, 80e9), "expert_expansion": (1, 32)},
        remark="Reproduces the document's Tables 1 and 4.",
    ),
}


ENTRIES = (
    LawEntry(
        name="expert_count",
        law=ExpertCount,
        aliases=("ludziejewski",),
        published=PUBLISHED,
        decides=dense_at_one("expert_expansion", compute_optimal, ExpertCount.at_experts),
        claims={"compute_optimal": lambda: compute_optimal(PUBLISHED["ludziejewski-2025"].law, 1e22, 32.0)},
    ),
)
