"""The law of fine-grained experts, Krajewski et al. (2024): loss from total parameters, tokens and granularity."""

from __future__ import annotations

from typing import Any, ClassVar

from moejax.laws.claim import Claim, Partial, Variables
from moejax.laws.decision import SPLIT, optimum
from moejax.laws.dense.chinchilla import Chinchilla, optimal_split, training_flops
from moejax.laws.design import Design, Scalar
from moejax.laws.law import LOSS, LawEntry, Published, coefficient, from_law, law


@law
class Granularity:
    """L(N, D, G) = c + (g/G^gamma + a)/N^alpha + b/D^beta.

    Krajewski et al., "Scaling Laws for Fine-Grained Mixture of Experts" (2024), Eq. 9.

    N is ``params_total_nonembedding`` (Section 6.1: d²·(8E+4) per block, E = 64), not the active parameters, although
    other documents state active parameters. G = 4·``model_dim``/``expert_hidden`` is the width of a dense feed-forward
    divided by an expert's width, twice the ``granularity`` of a Design. D is ``tokens``, L is in nats per token.

    At a fixed granularity, the law has Chinchilla's form. Finer experts always lower the loss, because the cost of
    routing is not counted.
    """

    inputs: ClassVar[tuple[str, ...]] = ("params_total", "tokens", "model_dim", "expert_hidden")
    outputs: ClassVar = LOSS

    irreducible: Scalar = coefficient("irreducible loss, nats per token", symbol="c")
    granularity_scale: Scalar = coefficient(
        "loss increase due to coarse experts", symbol="g", dimension={"params": "params_exponent"}
    )
    granularity_exponent: Scalar = coefficient("exponent of granularity", symbol="gamma")
    params_scale: Scalar = coefficient(
        "scale of the parameter term", symbol="a", dimension={"params": "params_exponent"}
    )
    params_exponent: Scalar = coefficient("exponent of parameters", symbol="alpha")
    tokens_scale: Scalar = coefficient("scale of the data term", symbol="b", dimension={"tokens": "tokens_exponent"})
    tokens_exponent: Scalar = coefficient("exponent of tokens", symbol="beta")

    def __call__(self, design: Design) -> Any:
        granularity = 2 * design.granularity
        scale = self.granularity_scale * granularity**-self.granularity_exponent + self.params_scale
        return (
            self.irreducible
            + scale * design.params_total_nonembedding**-self.params_exponent
            + self.tokens_scale * design.tokens**-self.tokens_exponent
        )


def compute_optimal(law: Granularity, flops: Scalar, granularity: Scalar, expansion: Scalar) -> Claim:
    """Return the claim for the ``params_active`` and ``tokens`` that minimize the loss at given 6·N_act·D, G and
    N/N_act.

    The cost of routing (the paper's Eq. 10) is not included, so finer experts are always better and G has no optimum.
    """
    scale = law.granularity_scale * granularity**-law.granularity_exponent + law.params_scale
    dense = from_law(Chinchilla, law, params_scale=scale * expansion**-law.params_exponent)
    return Claim(
        statement="Hoffmann's split with A = (g G^-gamma + a) (N/N_act)^-alpha",
        source="from Krajewski et al. 2024, Eq. 9",
        value=optimal_split(dense, flops),
        objective=Partial(_loss, law, granularity, expansion),
        held=Partial(training_flops),
    )


def _loss(law: Granularity, granularity: Scalar, expansion: Scalar, variables: Variables) -> Any:
    total = variables["params_active"] * expansion
    return law(Design(params_total=total, tokens=variables["tokens"], model_dim=granularity, expert_hidden=4.0))


_RUNS = {
    "params_total_nonembedding": (129e6, 3.7e9),
    "tokens": (16e9, 130e9),
    "granularity": (0.5, 8),
}

PUBLISHED = {
    "krajewski-2024": Published(
        law=Granularity(
            irreducible=0.472,
            granularity_scale=2.0760,
            granularity_exponent=0.5843,
            params_scale=18.0712,
            params_exponent=0.1146,
            tokens_scale=30.8082,
            tokens_exponent=0.1465,
        ),
        source="Krajewski et al. 2024, Table 1, with the digits of the authors' configuration",
        provenance="verified",
        data="C4",
        fitted=_RUNS,
        remark="Reproduces the losses of Table 2 within 0.003 with N = N_act·(8·64+4)/12. E was 64 in every run. The "
        "range of G is in a Design's granularity, half the document's 1 to 16.",
    ),
    "krajewski-2024-rounded": Published(
        law=Granularity(
            irreducible=0.47,
            granularity_scale=2.1,
            granularity_exponent=0.58,
            params_scale=18.1,
            params_exponent=0.115,
            tokens_scale=30.8,
            tokens_exponent=0.147,
        ),
        source="Krajewski et al. 2024, Table 1",
        provenance="read",
        data="C4",
        fitted=_RUNS,
        remark="Rounding the exponents lowers every loss by about 0.02 nats.",
    ),
}


def _sizes(law: Granularity, flops: Scalar, granularity: Scalar, expansion: Scalar) -> Claim:
    # The paper's G is twice a Design's granularity.
    return compute_optimal(law, flops, 2 * granularity, expansion)


ENTRIES = (
    LawEntry(
        name="granularity",
        law=Granularity,
        aliases=("krajewski",),
        published=PUBLISHED,
        decides=(optimum(_sizes, given=("flops", "granularity", "expansion"), gives=SPLIT),),
        claims={"compute_optimal": lambda: compute_optimal(PUBLISHED["krajewski-2024"].law, 1e22, 16.0, 43.0)},
    ),
)
