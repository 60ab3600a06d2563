"""The law of effective parameters: an MoE model counts as a dense model of N_act·G^gamma parameters."""

from __future__ import annotations

from typing import Any, ClassVar

from moejax.laws.claim import Claim, Partial, Variables
from moejax.laws.dense.chinchilla import Chinchilla, dense_at_one, optimal_split, training_flops
from moejax.laws.design import Design, Scalar
from moejax.laws.law import LOSS, LawEntry, Published, coefficient, from_law, law


@law
class EffectiveParams:
    """L(N_act, G, D) = E + A / (N_act · G^gamma)^alpha + B / D^beta, with G = N_total / N_act.

    Book chapter "MoE Scaling Laws" (chapter 002), "The Mathematical Form of an MoE Scaling Law". N_act is
    ``params_active``, N_total is ``params_total``, D is ``tokens``, and G is ``expansion``. At G = 1 it
    equals the dense law of ``chinchilla.py``. It has one more coefficient than that law, and its optimum has a closed
    form.
    """

    inputs: ClassVar[tuple[str, ...]] = ("params_active", "params_total", "tokens")
    outputs: ClassVar = LOSS

    irreducible: Scalar = coefficient("irreducible loss, nats per token", symbol="E")
    params_scale: Scalar = coefficient(
        "scale of the parameter term", symbol="A", dimension={"params": "params_exponent"}
    )
    params_exponent: Scalar = coefficient("exponent of effective parameters", symbol="alpha")
    expansion_exponent: Scalar = coefficient(
        "exponent of G: 0 if only active parameters count, 1 if all do", symbol="gamma"
    )
    tokens_scale: Scalar = coefficient("scale of the data term", symbol="B", dimension={"tokens": "tokens_exponent"})
    tokens_exponent: Scalar = coefficient("exponent of tokens", symbol="beta")

    def dense_equivalent(self, design: Design) -> Any:
        """Return the parameters of the dense model with the same loss: N_act · G^gamma."""
        return design.params_active * design.expansion**self.expansion_exponent

    def __call__(self, design: Design) -> Any:
        # Combine the exponents of G: computing G^gamma first would overflow if a fit makes gamma large and alpha small.
        exponent = self.params_exponent * self.expansion_exponent
        return (
            self.irreducible
            + self.params_scale * design.params_active**-self.params_exponent * design.expansion**-exponent
            + self.tokens_scale * design.tokens**-self.tokens_exponent
        )


CHAPTER_002 = EffectiveParams(
    irreducible=1.69,
    params_scale=406.4,
    params_exponent=0.34,
    expansion_exponent=0.35,
    tokens_scale=410.7,
    tokens_exponent=0.28,
)
"""Constants of the chapter, which calls them "illustrative": Hoffmann's, rounded, with gamma = 0.35."""

PUBLISHED = {
    "chapter-002": Published(
        law=CHAPTER_002,
        source="chapter 002, 'Plain Python: Predicting Loss for a Candidate MoE', lines 4-8",
        provenance="verified",
        remark="Illustrative, not fitted: Hoffmann's constants, rounded, with gamma = 0.35. The chapter's printed "
        "losses do not follow from them.",
    ),
}


def dense_slice(law: EffectiveParams, expansion: Scalar) -> Chinchilla:
    """Return the law at a fixed G: a dense law with A·G^(-gamma·alpha) in place of A."""
    scale = law.params_scale * expansion ** -(law.expansion_exponent * law.params_exponent)
    return from_law(Chinchilla, law, params_scale=scale)


def compute_optimal(law: EffectiveParams, flops: Scalar, expansion: Scalar) -> Claim:
    """Return the claim for the ``params_active`` and ``tokens`` that minimize the loss at given 6·N_act·D and G.

    N_act* is Hoffmann's optimum times G^(-gamma·alpha/(alpha+beta)); D* is Hoffmann's optimum divided by this factor.
    The chapter ("The compute-optimal point with G held fixed") prints -gamma·beta/(alpha+beta) instead, which is not
    stationary: G multiplies A by G^(-gamma·alpha), and A enters N* with the power 1/(alpha+beta).
    """
    return Claim(
        statement="N_act* = k (C/6)^(beta/(alpha+beta)) G^(-gamma alpha/(alpha+beta)), D* = C/(6 N_act*)",
        source="chapter 002, 'The compute-optimal point with G held fixed', with the exponent of G corrected",
        value=optimal_split(dense_slice(law, expansion), flops),
        objective=Partial(_loss, law, expansion),
        held=Partial(training_flops),
    )


def _loss(law: EffectiveParams, expansion: Scalar, variables: Variables) -> Any:
    active = variables["params_active"]
    return law(Design(params_active=active, params_total=active * expansion, tokens=variables["tokens"]))


ENTRIES = (
    LawEntry(
        name="effective_params",
        law=EffectiveParams,
        aliases=("chapter_002",),
        published=PUBLISHED,
        decides=dense_at_one("expansion", compute_optimal, dense_slice),
        claims={"compute_optimal": lambda: compute_optimal(CHAPTER_002, 3.4e24, 18.1)},
    ),
)
