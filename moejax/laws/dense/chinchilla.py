"""The dense law of Hoffmann et al. (2022): loss from parameters and tokens, and the optimal split of a FLOP budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import jax.numpy as jnp

from moejax.laws.claim import Claim, Partial, Variables, law_at
from moejax.laws.decision import SPLIT, DecisionRule, growth, optimum
from moejax.laws.dense.loss_compute import LossCompute, flops_for_loss, least_flops
from moejax.laws.design import Design, Scalar
from moejax.laws.law import LOSS, Law, LawEntry, Published, coefficient, law


@law
class Chinchilla:
    """L(N, D) = E + A / N^alpha + B / D^beta.

    Hoffmann et al., "Training Compute-Optimal Large Language Models" (2022), Eq. 2 and Eq. 10.

    N is ``params_active`` (for a dense model, all parameters, embeddings included), D is ``tokens``, L is in nats
    per token.
    """

    inputs: ClassVar[tuple[str, ...]] = ("params_active", "tokens")
    outputs: ClassVar = LOSS

    irreducible: Scalar = coefficient("irreducible loss, nats per token", symbol="E")
    params_scale: Scalar = coefficient(
        "scale of the parameter term", symbol="A", dimension={"params": "params_exponent"}
    )
    params_exponent: Scalar = coefficient("exponent of parameters", symbol="alpha")
    tokens_scale: Scalar = coefficient("scale of the data term", symbol="B", dimension={"tokens": "tokens_exponent"})
    tokens_exponent: Scalar = coefficient("exponent of tokens", symbol="beta")

    def __call__(self, design: Design) -> Any:
        return (
            self.irreducible
            + self.params_scale * design.params_active**-self.params_exponent
            + self.tokens_scale * design.tokens**-self.tokens_exponent
        )


HOFFMANN_2022 = Chinchilla(
    irreducible=1.6934, params_scale=406.4, params_exponent=0.3392, tokens_scale=410.7, tokens_exponent=0.2849
)
"""Approach 3, Eq. 10, with the digits of the published source file: nats per token on MassiveText."""


PUBLISHED = {
    "hoffmann-2022": Published(
        law=HOFFMANN_2022,
        source="Hoffmann et al. 2022, Eq. 10 (Approach 3), with the digits of the published source file",
        provenance="read",
        data="MassiveText, one epoch",
        fitted={"params_active": (70e6, 16e9), "tokens": (5e9, 500e9)},
        dense=True,
        remark="The fit had not converged; besiroglu-2024 is a converged fit to the same data.",
    ),
    "besiroglu-2024": Published(
        law=Chinchilla(
            irreducible=1.8172,
            params_scale=482.01,
            params_exponent=0.3478,
            tokens_scale=2085.43,
            tokens_exponent=0.3658,
        ),
        source="Besiroglu et al. 2024: 240 of Hoffmann's runs, read off its Figure 4",
        provenance="verified",
        data="MassiveText, one epoch",
        fitted={"params_active": (57e6, 16.2e9), "tokens": (0.82e9, 318e9)},
        dense=True,
    ),
    "epoch-optimum": Published(
        law=Chinchilla(
            irreducible=1.817218,
            params_scale=477.826,
            params_exponent=0.347310,
            tokens_scale=2143.417,
            tokens_exponent=0.367172,
        ),
        source="minimum of besiroglu-2024's objective on its data, with more digits than in that paper",
        provenance="verified",
        data="MassiveText, one epoch",
        fitted={"params_active": (57e6, 16.2e9), "tokens": (0.82e9, 318e9)},
        dense=True,
    ),
    "krajewski-2024-dense": Published(
        law=Chinchilla(
            irreducible=0.47, params_scale=16.3, params_exponent=0.126, tokens_scale=26.7, tokens_exponent=0.127
        ),
        source="Krajewski et al. 2024, Table 1, dense",
        provenance="read",
        data="C4",
        dense=True,
        remark="Parameters are counted without embeddings; the fine-grained law has the same irreducible loss.",
    ),
}


FLOPS_PER_PARAM_AND_TOKEN = 6.0
"""Training FLOPs per active parameter and token: forward and backward, without attention scores."""


def optimal_split(law: Chinchilla, flops: Scalar) -> dict[str, Any]:
    """Return the ``params_active`` and ``tokens`` that minimize the loss at 6·N·D = ``flops`` (Hoffmann et al., Eq. 4).

    N* = k·(C/6)^(beta/(alpha+beta)) and D* = (C/6)/N*, with k = (alpha·A / (beta·B))^(1/(alpha+beta)).
    """
    power = 1 / (law.params_exponent + law.tokens_exponent)
    ratio = law.params_exponent * law.params_scale / (law.tokens_exponent * law.tokens_scale)
    budget = flops / FLOPS_PER_PARAM_AND_TOKEN
    params = ratio**power * budget ** (law.tokens_exponent * power)
    return {"params_active": params, "tokens": budget / params}


def optimal_params(law: Chinchilla, tokens: Scalar) -> Any:
    """Return the ``params_active`` that ``optimal_split`` gives together with these tokens, without overflow."""
    ratio = law.params_exponent * law.params_scale / (law.tokens_exponent * law.tokens_scale)
    return jnp.exp((jnp.log(ratio) + law.tokens_exponent * jnp.log(tokens)) / law.params_exponent)


def frontier(law: Chinchilla) -> LossCompute:
    """Return the loss of the best split as a function of ``flops``: a power law with exponent
    -alpha·beta/(alpha+beta)."""
    excess = replace(law, irreducible=0.0)
    return LossCompute(
        scale=excess(Design(**optimal_split(excess, 1.0))),
        exponent=-law.params_exponent * law.tokens_exponent / (law.params_exponent + law.tokens_exponent),
        irreducible=law.irreducible,
    )


def compute_optimal(law: Chinchilla, flops: Scalar) -> Claim:
    """Return the claim that ``optimal_split`` is optimal."""
    return Claim(
        statement="N* = k (C/6)^(beta/(alpha+beta)), D* = C/(6 N*), k = (alpha A / (beta B))^(1/(alpha+beta))",
        source="Hoffmann et al. 2022, Eq. 4",
        value=optimal_split(law, flops),
        objective=Partial(law_at, law, {}),
        held=Partial(training_flops),
    )


def training_flops(variables: Variables) -> dict[str, Any]:
    """Return the training FLOPs, 6·N·D."""
    return {"flops": FLOPS_PER_PARAM_AND_TOKEN * variables["params_active"] * variables["tokens"]}


def dense_at_one(
    experts: str, claim: Callable[..., Claim], slice_at: Callable[[Any, Any], Chinchilla]
) -> tuple[DecisionRule, ...]:
    """Return the decisions of a law that has Chinchilla's form at every value of ``experts`` and is a dense law at 1.

    Args:
      experts: name of the held quantity, such as ``expansion``.
      claim: ``claim(law, flops, experts)``, the claim of the optimal split at that value.
      slice_at: returns the law at one value.
    """

    def leverage(law: Law, flops: float, **given: float) -> dict[str, Any]:
        """Return the FLOPs of the dense model divided by ``flops`` of the MoE model, at equal loss and optimal
        splits."""
        loss = frontier(slice_at(law, given[experts]))(Design(flops=flops))
        return {"efficiency_leverage": flops_for_loss(frontier(slice_at(law, 1.0)), loss) / flops}

    def unreached(law: Law, **given: float) -> str:
        return "under the fitted law no dense model reaches the loss of the MoE model"

    return (
        optimum(claim, given=("flops", experts), gives=SPLIT),
        DecisionRule(("flops", experts), {"efficiency_leverage": "EL"}, leverage, reason=unreached),
        growth(
            lambda law, flops, **given: optimal_split(slice_at(law, given[experts]), flops), given=("flops", experts)
        ),
        least_flops(lambda law, **given: frontier(slice_at(law, given[experts])), given=(experts,)),
    )


ENTRIES = (
    LawEntry(
        name="chinchilla",
        law=Chinchilla,
        aliases=("hoffmann", "besiroglu"),
        published=PUBLISHED,
        decides=(
            growth(optimal_split),
            optimum(compute_optimal, given=("flops",), gives={**SPLIT, "params_active": "N*"}),
            least_flops(frontier),
        ),
        claims={"compute_optimal": lambda: compute_optimal(HOFFMANN_2022, 1e24)},
    ),
)
