"""The law of Abnar et al. (2025): loss from total parameters, tokens and the share of inactive experts."""

from __future__ import annotations

from typing import Any, ClassVar

from moejax.laws.design import Design
from moejax.laws.law import LOSS, coefficient, law
from moejax.laws.published import Published


@law
class Sparsity:
    """L(N, D, S) = a/N^alpha + b/D^beta + c/(1-S)^lambda + d/((1-S)^delta·N^gamma) + e.

    Abnar et al., "Parameters vs FLOPs: Scaling Laws for Optimal Sparsity for Mixture-of-Experts Language Models"
    (2025), Eq. 6.

    N is ``params_total``, embeddings included; D is ``tokens``; S is ``sparsity``, the experts that do not serve a
    token as a share of all. L is in nats per token. Inputs must have S < 1. Optima need a reading of N_a(N, S), which
    the paper does not give; ``active_params.py`` has three. They are found numerically (``sparsity_optima.py``), and an
    optimum at the cap says so: cap the sparsity, the law has no joint optimum.
    """

    inputs: ClassVar[tuple[str, ...]] = ("params_total", "tokens", "num_experts", "top_k")
    outputs: ClassVar = LOSS

    params_scale: Any = coefficient("scale of the parameter term", symbol="a", dimension={"params": "params_exponent"})
    params_exponent: Any = coefficient("exponent of total parameters", symbol="alpha")
    tokens_scale: Any = coefficient("scale of the data term", symbol="b", dimension={"tokens": "tokens_exponent"})
    tokens_exponent: Any = coefficient("exponent of tokens", symbol="beta")
    sparsity_scale: Any = coefficient("scale of the sparsity term", symbol="c")
    sparsity_exponent: Any = coefficient("exponent of the active share", symbol="lambda", sign="any")
    coupling_scale: Any = coefficient(
        "scale of the coupling", symbol="d", dimension={"params": "coupling_params_exponent"}
    )
    coupling_exponent: Any = coefficient("exponent of the active share in the coupling", symbol="delta", sign="any")
    coupling_params_exponent: Any = coefficient("exponent of total parameters in the coupling", symbol="gamma")
    irreducible: Any = coefficient("loss that nothing removes, nats per token", symbol="e")

    def __call__(self, design: Design) -> Any:
        active = 1 - design.sparsity
        return (
            self.params_scale * design.params_total**-self.params_exponent
            + self.tokens_scale * design.tokens**-self.tokens_exponent
            + self.sparsity_scale * active**-self.sparsity_exponent
            + self.coupling_scale
            * active**-self.coupling_exponent
            * design.params_total**-self.coupling_params_exponent
            + self.irreducible
        )


ABNAR_2025 = Sparsity(
    params_scale=16612.50,
    params_exponent=0.5962,
    tokens_scale=5455.67,
    tokens_exponent=0.3954,
    sparsity_scale=0.4598,
    sparsity_exponent=-0.1666,
    coupling_scale=17.26,
    coupling_exponent=0.1603,
    coupling_params_exponent=0.1595,
    irreducible=0.94,
)
"""Table 3."""

PUBLISHED = {
    "abnar-2025": Published(
        law=ABNAR_2025,
        source="Abnar et al. 2025, Table 3",
        mark="read",
        data="a subset of RedPajama",
        fitted={"flops": (3e19, 1e21), "sparsity": (0.0, 0.95)},
        remark="Runs at S = 0.98 were held out; R² there was 68 %. The ranges of N and D are not stated, only that of "
        "the training FLOPs.",
    ),
}
