"""Efficiency leverage, Tian et al. (2025): compute of a dense model / compute of an MoE model with equal loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import jax.numpy as jnp

from moejax.laws.claim import Claim, Partial, Variables
from moejax.laws.decision import optimum
from moejax.laws.dense.loss_compute import LossCompute, flops_for_loss
from moejax.laws.design import Design, Scalar
from moejax.laws.law import LawEntry, Published, coefficient, law
from moejax.laws.mixtures.routed import saturate


@law
class Leverage:
    """EL(A, G, C) = Â^(a + d·log10 C + gamma·(log2 G)² + beta·log2 G),
    with 1/Â = 1/(A + 1/(1/A_start - 1/A_max)) + 1/A_max.

    Tian et al., "Towards Greater Leverage: Scaling Laws for Efficient Mixture-of-Experts Language Models" (2025), Eqs.
    1 and 4.

    EL is ``efficiency_leverage``: compute of a dense model divided by the compute of an MoE model with equal loss. A is
    ``activation_ratio``, Â is A after saturation; G is ``granularity``, C is ``flops``.

    The document has two definitions of A, with E routed experts, E_a active routed experts and E_s shared experts. This
    law uses (E_a + E_s)/(E + E_s), as in Section 2 and Table 3. The labels of the data behind Table 6 (3.1 %, 0.8 %)
    are E_a/E. With one shared expert, E_a/E gives leverages 3 to 19 % larger; to use it, omit the shared experts from
    the design.

    The bases of the logarithms are not printed. The document states EL > 7 at A = 3.1 %, G = 12 and C = 1e22, a best G
    near 12, and EL = 1 for a dense model. Of all pairs among 2, e and 10, only log10 for C with log2 for G agrees with
    this. The text calls d positive; it is negative in Table 6, which makes leverage grow with compute.
    ``leverage_between`` computes EL from two loss-compute curves (Algorithm 1).
    """

    inputs: ClassVar[tuple[str, ...]] = (
        "num_experts",
        "top_k",
        "num_shared_experts",
        "model_dim",
        "expert_hidden",
        "flops",
    )
    outputs: ClassVar[Mapping[str, str]] = {"efficiency_leverage": "FLOPs of the dense model / FLOPs of the MoE model"}

    base_exponent: Scalar = coefficient(
        "exponent at G = 1 and C = 1", symbol="a", sign="any", shift={"flops": "flops_slope"}, log_base=10.0
    )
    flops_slope: Scalar = coefficient("change of the exponent per decade of compute", symbol="d", sign="-")
    granularity_square: Scalar = coefficient("curvature in log2 G", symbol="gamma")
    granularity_slope: Scalar = coefficient("slope in log2 G", symbol="beta", sign="-")
    ratio_start: Scalar = coefficient("effective ratio at an activation ratio of 0", symbol="A_start")
    ratio_maximum: Scalar = coefficient("effective ratio at an infinite activation ratio", symbol="A_max")

    def __call__(self, design: Design) -> Any:
        finer = jnp.log2(design.granularity)
        exponent = (
            self.base_exponent
            + self.flops_slope * jnp.log10(design.flops)
            + self.granularity_square * finer**2
            + self.granularity_slope * finer
        )
        ratio = saturate(design.activation_ratio, self.ratio_start, self.ratio_maximum, 0)
        return {"efficiency_leverage": ratio**exponent}


def leverage_between(mixture: LossCompute, dense: LossCompute, flops: Scalar) -> Any:
    """Return the leverage at an MoE model's compute from two loss-compute curves; NaN if it is undefined.

    Appendix K, Algorithm 1: the FLOPs at which the dense curve reaches the MoE model's loss, divided by the MoE model's
    FLOPs. It is undefined if the MoE model's loss is below the limit of the dense curve.
    """
    return flops_for_loss(dense, mixture(Design(flops=flops))) / flops


def optimal_granularity(law: Leverage, activation_ratio: Scalar, flops: Scalar) -> Claim:
    """Return the claim for the granularity with the greatest leverage, which depends neither on C nor on A < 1."""
    return Claim(
        statement="G* = 2^(-beta / (2 gamma))",
        source="from Tian et al. 2025, Eq. 4",
        value={"granularity": 2 ** (-law.granularity_slope / (2 * law.granularity_square))},
        objective=Partial(_inverse, law, activation_ratio, flops),
        objective_name="inverse_efficiency_leverage",
    )


def _inverse(law: Leverage, activation_ratio: Scalar, flops: Scalar, variables: Variables) -> Any:
    design = Design(
        num_experts=1.0,
        top_k=activation_ratio,
        num_shared_experts=0.0,
        model_dim=variables["granularity"],
        expert_hidden=2.0,
        flops=flops,
    )
    return 1 / law(design)["efficiency_leverage"]


PUBLISHED = {
    "tian-2025": Published(
        law=Leverage(
            base_exponent=1.23,
            flops_slope=-7.61e-2,
            granularity_square=1.67e-2,
            granularity_slope=-1.17e-1,
            ratio_start=1.63e-2,
            ratio_maximum=5.28e16,
        ),
        source="Tian et al. 2025, Table 6",
        provenance="verified",
        fitted={"flops": (3e18, 3e20), "activation_ratio": (3 / 257, 1.0), "granularity": (2.0, 16.0)},
        remark="A counts shared experts, as in Table 3; the data behind Table 6 are labeled with E_a/E. MoE-mini has "
        "A = 3.4 % and a leverage of 6.98 by Table 3, but 3.1 % (12/384) and above 7 by E_a/E.",
    ),
}


ENTRIES = (
    LawEntry(
        name="leverage",
        law=Leverage,
        aliases=("tian",),
        published=PUBLISHED,
        # The best granularity depends on neither the activation ratio nor the FLOPs, so these values are arbitrary.
        decides=(optimum(lambda law: optimal_granularity(law, 0.1, 1e20), gives={"granularity": "G*"}),),
        claims={"optimal_granularity": lambda: optimal_granularity(PUBLISHED["tian-2025"].law, 0.031, 1e22)},
    ),
)
