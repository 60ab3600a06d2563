"""Compute-optimal model scale and tokens from training compute, Tian et al. (2025)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from moejax.laws.claim import Claim, Partial, Variables
from moejax.laws.dense.chinchilla import Chinchilla
from moejax.laws.design import Design, Scalar
from moejax.laws.law import LawEntry, Published, coefficient, law


@law
class Allocation:
    """M = k_M·C^p_M and D = k_D·C^p_D.

    Tian et al. (2025), Table 5 (Appendix E.2). M is ``flops_per_token``, the model scale: training FLOPs per token
    without embeddings (Appendix I: three times the forward pass). D is ``tokens``; C is ``flops``; M·D = C up to
    rounding.
    """

    inputs: ClassVar[tuple[str, ...]] = ("flops",)
    outputs: ClassVar[Mapping[str, str]] = {
        "flops_per_token": "training FLOPs per token, without embeddings",
        "tokens": "tokens",
    }

    model_scale: Scalar = coefficient(
        "model scale at one FLOP", symbol="k_M", dimension={"flops": "-model_exponent"}, output="flops_per_token"
    )
    model_exponent: Scalar = coefficient(
        "exponent of compute in the model scale", symbol="p_M", output="flops_per_token"
    )
    tokens_scale: Scalar = coefficient(
        "tokens at one FLOP", symbol="k_D", dimension={"flops": "-tokens_exponent"}, output="tokens"
    )
    tokens_exponent: Scalar = coefficient("exponent of compute in the tokens", symbol="p_D", output="tokens")

    def __call__(self, design: Design) -> Any:
        return {
            "flops_per_token": self.model_scale * design.flops**self.model_exponent,
            "tokens": self.tokens_scale * design.flops**self.tokens_exponent,
        }


def implied_loss(law: Allocation) -> Chinchilla:
    """Return a loss A·M^-alpha + B·D^-beta whose compute-optimal M is the law's, with alpha + beta = 1 and B = 1.

    An allocation determines only beta/(alpha+beta) and the ratio of the scales, so alpha + beta and the level of the
    loss are arbitrary. ``params_active`` of the result represents M.
    """
    beta = law.model_exponent
    alpha = 1 - beta
    return Chinchilla(
        irreducible=0.0,
        params_scale=law.model_scale * beta / alpha,
        params_exponent=alpha,
        tokens_scale=1.0,
        tokens_exponent=beta,
    )


def compute_optimal(law: Allocation, flops: Scalar) -> Claim:
    """Return the claim that M, with D = C/M, minimizes the loss of ``implied_loss``."""
    scale = law(Design(flops=flops))["flops_per_token"]
    return Claim(
        statement="M* = k_M C^p_M, D* = C / M*",
        source="Tian et al. 2025, Eq. 6 and Table 5",
        value={"flops_per_token": scale, "tokens": flops / scale},
        objective=Partial(_loss, implied_loss(law)),
        held=Partial(_flops),
    )


def _loss(loss: Chinchilla, variables: Variables) -> Any:
    return loss(Design(params_active=variables["flops_per_token"], tokens=variables["tokens"]))


def _flops(variables: Variables) -> dict[str, Any]:
    return {"flops": variables["flops_per_token"] * variables["tokens"]}


PUBLISHED = {
    "tian-2025-moe": Published(
        law=Allocation(model_scale=0.1915, model_exponent=0.5095, tokens_scale=5.2232, tokens_exponent=0.4905),
        source="Tian et al. 2025, Table 5, MoE",
        provenance="verified",
        fitted={"flops": (3e17, 3e20)},
        remark="64 experts, 4 active and 1 shared; M·D is 1.0002 C.",
    ),
    "tian-2025-dense": Published(
        law=Allocation(model_scale=0.0655, model_exponent=0.5422, tokens_scale=15.2582, tokens_exponent=0.4578),
        source="Tian et al. 2025, Table 5, dense",
        provenance="verified",
        fitted={"flops": (3e17, 3e20)},
        dense=True,
        remark="M·D is 0.9994 C.",
    ),
}


ENTRIES = (
    LawEntry(
        name="allocation",
        law=Allocation,
        published=PUBLISHED,
        claims={"compute_optimal": lambda: compute_optimal(PUBLISHED["tian-2025-moe"].law, 1e22)},
    ),
)
