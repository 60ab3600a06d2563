"""The joint law of Zhao et al. (2025): total, active, tokens, active experts and share of shared experts."""

from __future__ import annotations

from typing import Any, ClassVar

from moejax.laws.design import Design
from moejax.laws.law import LOSS, coefficient, law
from moejax.laws.published import Published


@law
class FiveFactor:
    """L = (e·G + f/G + m·S² + n·S)·(N^-alpha + k·N_a^-alpha + h·N_a/N) + a/N^alpha + b/D^beta + c/N_a^alpha + epsilon.

    Zhao et al., "Towards a Comprehensive Scaling Law of Mixture-of-Experts" (2025), Eq. 11 (Eq. 1, Eq. 15).

    N is ``params_total_nonembedding``, N_a ``params_active_nonembedding``, D ``tokens``, G ``active_experts`` (routed
    and shared) and S ``shared_share``. Counts are those of its Eqs. 2 and 3: attention and experts, without router,
    norms and embeddings. L is in nats per token. The appendices print epsilon as s.

    ``five_factor_optima.py`` has the optima of Eqs. 12 to 14 and Appendix G, ``five_factor_practice.py`` Algorithm 1,
    the ranges of Table 3 and the constant-total scaling of Appendix H.
    """

    inputs: ClassVar[tuple[str, ...]] = ("params_total", "params_active", "tokens", "top_k", "num_shared_experts")
    outputs: ClassVar = LOSS

    experts_slope: Any = coefficient("cost of more active experts", symbol="e", dimension={"params": "params_exponent"})
    experts_inverse: Any = coefficient(
        "cost of fewer active experts", symbol="f", dimension={"params": "params_exponent"}
    )
    shared_square: Any = coefficient(
        "curvature in the shared share", symbol="m", dimension={"params": "params_exponent"}
    )
    shared_slope: Any = coefficient(
        "slope in the shared share", symbol="n", sign="-", dimension={"params": "params_exponent"}
    )
    active_coupling: Any = coefficient("weight of active parameters in the coupling", symbol="k")
    share_coupling: Any = coefficient(
        "weight of the active share in the coupling", symbol="h", dimension={"params": "-params_exponent"}
    )
    total_scale: Any = coefficient("scale of the total term", symbol="a", dimension={"params": "params_exponent"})
    params_exponent: Any = coefficient("exponent of parameters", symbol="alpha")
    tokens_scale: Any = coefficient("scale of the data term", symbol="b", dimension={"tokens": "tokens_exponent"})
    tokens_exponent: Any = coefficient("exponent of tokens", symbol="beta")
    active_scale: Any = coefficient("scale of the active term", symbol="c", dimension={"params": "params_exponent"})
    irreducible: Any = coefficient("loss that nothing removes, nats per token", symbol="epsilon")

    def structure(self, design: Design) -> Any:
        """e·G + f/G + m·S² + n·S: what the experts' number and kind cost."""
        experts, shared = design.active_experts, design.shared_share
        return (
            self.experts_slope * experts
            + self.experts_inverse / experts
            + self.shared_square * shared**2
            + self.shared_slope * shared
        )

    def coupling(self, design: Design) -> Any:
        """N^-alpha + k·N_a^-alpha + h·N_a/N: how much that matters at a size."""
        total, active = design.params_total_nonembedding, design.params_active_nonembedding
        return (
            total**-self.params_exponent
            + self.active_coupling * active**-self.params_exponent
            + self.share_coupling * active / total
        )

    def __call__(self, design: Design) -> Any:
        total, active = design.params_total_nonembedding, design.params_active_nonembedding
        return (
            self.structure(design) * self.coupling(design)
            + self.total_scale * total**-self.params_exponent
            + self.tokens_scale * design.tokens**-self.tokens_exponent
            + self.active_scale * active**-self.params_exponent
            + self.irreducible
        )


ZHAO_2025 = FiveFactor(
    experts_slope=0.1577,
    experts_inverse=7.2446,
    shared_square=5.1395,
    shared_slope=-3.2363,
    active_coupling=0.0013,
    share_coupling=0.0450,
    total_scale=38.0510,
    params_exponent=0.2383,
    tokens_scale=27129.0488,
    tokens_exponent=0.4694,
    active_scale=31.0958,
    irreducible=1.8182,
)
"""Table 2."""

PUBLISHED = {
    "zhao-2025": Published(
        law=ZHAO_2025,
        source="Zhao et al. 2025, Table 2",
        mark="verified",
        data="a subset of Dolma v1.7",
        fitted={
            "params_total_nonembedding": (133e6, 3.4e9),
            "params_active_nonembedding": (30e6, 2.2e9),
            "tokens": (10e9, 50e9),
            "active_experts": (1, 20),
            "shared_share": (0.0, 0.7),
        },
        remark="The paper gives a range of 0.0 to 0.7 for S; its own Table 6 has six runs at 0.8.",
    ),
}
