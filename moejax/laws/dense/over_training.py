"""The loss of over-trained models, Gadre et al. (2024): Chinchilla's law with one exponent."""

from __future__ import annotations

from typing import Any, ClassVar

from moejax.laws.claim import Claim, Partial, law_at
from moejax.laws.decision import SPLIT, optimum
from moejax.laws.dense import chinchilla
from moejax.laws.dense.chinchilla import FLOPS_PER_PARAM_AND_TOKEN, Chinchilla, training_flops
from moejax.laws.dense.loss_compute import LossCompute, least_flops
from moejax.laws.design import Design, Scalar
from moejax.laws.law import LOSS, LawEntry, Published, coefficient, law


@law
class OverTraining:
    """L(N, D) = E + (a·M^eta + b·M^-eta)·C^-eta, with M = D/N and C = 6·N·D.

    Gadre et al., "Language models scale reliably with over-training and on downstream tasks" (2024), Eq. 4.

    N is ``params_active`` (for a dense model, all parameters, embeddings included), D is ``tokens``, L is in nats per
    token. M is the tokens per parameter, and C the training FLOPs. The loss above E falls with the same power of C at
    every M, so over-training multiplies it by a factor independent of C. This is Chinchilla's law with alpha = beta =
    2·eta (``untied``), so it has one coefficient fewer.
    """

    inputs: ClassVar[tuple[str, ...]] = ("params_active", "tokens")
    outputs: ClassVar = LOSS

    irreducible: Scalar = coefficient("irreducible loss, nats per token", symbol="E")
    over_scale: Scalar = coefficient(
        "scale of the term that grows with tokens per parameter",
        symbol="a",
        dimension={"params": ("flops_exponent", "flops_exponent")},
    )
    under_scale: Scalar = coefficient(
        "scale of the term that falls with tokens per parameter",
        symbol="b",
        dimension={"tokens": ("flops_exponent", "flops_exponent")},
    )
    flops_exponent: Scalar = coefficient("exponent of compute at fixed tokens per parameter", symbol="eta")

    @property
    def untied(self) -> Chinchilla:
        """Return the equivalent law of parameters and tokens."""
        six = FLOPS_PER_PARAM_AND_TOKEN**-self.flops_exponent
        return Chinchilla(
            irreducible=self.irreducible,
            params_scale=self.over_scale * six,
            params_exponent=2 * self.flops_exponent,
            tokens_scale=self.under_scale * six,
            tokens_exponent=2 * self.flops_exponent,
        )

    def __call__(self, design: Design) -> Any:
        return self.untied(design)


def best_tokens_per_param(law: OverTraining) -> Any:
    """Return the tokens per parameter with minimum loss, (b/a)^(1/(2·eta)), which do not depend on the budget."""
    return (law.under_scale / law.over_scale) ** (1 / (2 * law.flops_exponent))


def compute_optimal(law: OverTraining, flops: Scalar) -> Claim:
    """Return the claim for a budget 6·N·D: N* = (C/(6·M*))^(1/2), D* = M*·N*."""
    ratio = best_tokens_per_param(law)
    params = (flops / (FLOPS_PER_PARAM_AND_TOKEN * ratio)) ** 0.5
    return Claim(
        statement="M* = (b/a)^(1/(2 eta)), N* = (C/(6 M*))^(1/2), D* = M* N*",
        source="Gadre et al. 2024, Section 3.2: from Eq. 4",
        value={"params_active": params, "tokens": ratio * params},
        objective=Partial(law_at, law, {}),
        held=Partial(training_flops),
    )


def frontier(law: OverTraining) -> LossCompute:
    """Return the loss of the best split as a function of ``flops``."""
    return chinchilla.frontier(law.untied)


def _gadre(data: str, law: OverTraining, missed: str) -> Published:
    return Published(
        law=law,
        source="Gadre et al. 2024, Eq. 4, fitted with the released code to the released runs",
        provenance="verified",
        data=f"models trained on {data}, one epoch; loss on C4's validation set",
        fitted={"params_active": (10.6e6, 412e6), "tokens": (211e6, 8.24e9)},
        dense=True,
        remark=f"Five runs of up to 2e19 FLOPs and four coefficients. {missed}",
    )


PUBLISHED = {
    "gadre-2024-c4": _gadre(
        "C4",
        OverTraining(irreducible=1.508261, over_scale=141.27726, under_scale=189.51552, flops_exponent=0.12123612),
        "It misses the loss of a 6.9B model on 138B tokens by 4.3 %; its best tokens per parameter are 3.4.",
    ),
    "gadre-2024-redpajama": _gadre(
        "RedPajama",
        OverTraining(irreducible=1.836648, over_scale=212.23612, under_scale=366.6872, flops_exponent=0.13642535),
        "It misses the loss of a 6.9B model on 138B tokens by 0.73 %, and of a 1.4B model on 921B by 0.71 %.",
    ),
    "gadre-2024-refinedweb": _gadre(
        "RefinedWeb",
        OverTraining(irreducible=1.734462, over_scale=157.11628, under_scale=246.20669, flops_exponent=0.12719742),
        "It misses the loss of a 6.9B model on 138B tokens by 1.6 %.",
    ),
}


ENTRIES = (
    LawEntry(
        name="over_training",
        law=OverTraining,
        aliases=("gadre",),
        published=PUBLISHED,
        decides=(
            optimum(compute_optimal, given=("flops",), gives={**SPLIT, "params_active": "N*"}),
            least_flops(frontier),
        ),
        claims={"compute_optimal": lambda: compute_optimal(PUBLISHED["gadre-2024-c4"].law, 1e22)},
    ),
)
