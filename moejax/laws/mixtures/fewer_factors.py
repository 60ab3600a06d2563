"""The nested laws of Zhao et al. (2025), with two, three and four of the five factors."""

from __future__ import annotations

from typing import Any, ClassVar

from moejax.laws.decision import DecisionRule
from moejax.laws.design import Design, Scalar
from moejax.laws.law import LOSS, LawEntry, coefficient, from_law, law
from moejax.laws.mixtures.five_factor import FiveFactor, best_active_experts, with_experts


@law
class TwoFactor:
    """L(N, D) = a/N^alpha + b/D^beta + epsilon.

    Zhao et al. (2025), Eq. 4: Chinchilla's form in total parameters, N = ``params_total_nonembedding`` and D =
    ``tokens``. No constants are published.
    """

    inputs: ClassVar[tuple[str, ...]] = ("params_total", "tokens")
    outputs: ClassVar = LOSS

    total_scale: Scalar = coefficient("scale of the total term", symbol="a", dimension={"params": "params_exponent"})
    params_exponent: Scalar = coefficient("exponent of parameters", symbol="alpha")
    tokens_scale: Scalar = coefficient("scale of the data term", symbol="b", dimension={"tokens": "tokens_exponent"})
    tokens_exponent: Scalar = coefficient("exponent of tokens", symbol="beta")
    irreducible: Scalar = coefficient("irreducible loss, nats per token", symbol="epsilon")

    def __call__(self, design: Design) -> Any:
        return (
            self.total_scale * design.params_total_nonembedding**-self.params_exponent
            + self.tokens_scale * design.tokens**-self.tokens_exponent
            + self.irreducible
        )


@law
class ThreeFactor:
    """L(N, D, N_a) = a/N^alpha + b/D^beta + c/N_a^alpha + h·N_a/N + epsilon.

    Zhao et al. (2025), Eq. 7, with N = ``params_total_nonembedding``, N_a = ``params_active_nonembedding`` and D =
    ``tokens``. No constants are published.
    """

    inputs: ClassVar[tuple[str, ...]] = ("params_total", "params_active", "tokens")
    outputs: ClassVar = LOSS

    total_scale: Scalar = coefficient("scale of the total term", symbol="a", dimension={"params": "params_exponent"})
    params_exponent: Scalar = coefficient("exponent of parameters", symbol="alpha")
    tokens_scale: Scalar = coefficient("scale of the data term", symbol="b", dimension={"tokens": "tokens_exponent"})
    tokens_exponent: Scalar = coefficient("exponent of tokens", symbol="beta")
    active_scale: Scalar = coefficient("scale of the active term", symbol="c", dimension={"params": "params_exponent"})
    share_slope: Scalar = coefficient("slope in the active share", symbol="h")
    irreducible: Scalar = coefficient("irreducible loss, nats per token", symbol="epsilon")

    def __call__(self, design: Design) -> Any:
        total, active = design.params_total_nonembedding, design.params_active_nonembedding
        return (
            self.total_scale * total**-self.params_exponent
            + self.tokens_scale * design.tokens**-self.tokens_exponent
            + self.active_scale * active**-self.params_exponent
            + self.share_slope * active / total
            + self.irreducible
        )


@law
class FourFactor:
    """L = (e·G + f/G)·(N^-alpha + k·N_a^-alpha + h·N_a/N) + a/N^alpha + b/D^beta + c/N_a^alpha + epsilon.

    Zhao et al. (2025), Eq. 9: the five-factor law without shared experts (m = n = 0). N is
    ``params_total_nonembedding``, N_a ``params_active_nonembedding``, D ``tokens``, G ``active_experts``. No constants
    are published.
    """

    inputs: ClassVar[tuple[str, ...]] = FiveFactor.inputs
    outputs: ClassVar = LOSS

    experts_slope: Scalar = coefficient(
        "cost of more active experts", symbol="e", dimension={"params": "params_exponent"}
    )
    experts_inverse: Scalar = coefficient(
        "cost of fewer active experts", symbol="f", dimension={"params": "params_exponent"}
    )
    active_coupling: Scalar = coefficient("weight of active parameters in the coupling", symbol="k")
    share_coupling: Scalar = coefficient(
        "weight of the active share in the coupling", symbol="h", dimension={"params": "-params_exponent"}
    )
    total_scale: Scalar = coefficient("scale of the total term", symbol="a", dimension={"params": "params_exponent"})
    params_exponent: Scalar = coefficient("exponent of parameters", symbol="alpha")
    tokens_scale: Scalar = coefficient("scale of the data term", symbol="b", dimension={"tokens": "tokens_exponent"})
    tokens_exponent: Scalar = coefficient("exponent of tokens", symbol="beta")
    active_scale: Scalar = coefficient("scale of the active term", symbol="c", dimension={"params": "params_exponent"})
    irreducible: Scalar = coefficient("irreducible loss, nats per token", symbol="epsilon")

    @property
    def as_five_factor(self) -> FiveFactor:
        """Return the equivalent five-factor law."""
        return from_law(FiveFactor, self, shared_square=0.0, shared_slope=0.0)

    def __call__(self, design: Design) -> Any:
        return self.as_five_factor(design)


def at_structure(law: FiveFactor, active_experts: Scalar, shared_share: Scalar) -> ThreeFactor:
    """Return the law of Eq. 7 that the joint law implies at fixed G and S, which affect only a, c and h."""
    structure = law.structure(with_experts(active_experts, shared_share))
    return from_law(
        ThreeFactor,
        law,
        total_scale=law.total_scale + structure,
        active_scale=law.active_scale + law.active_coupling * structure,
        share_slope=law.share_coupling * structure,
    )


def _best_experts(law: FourFactor) -> dict[str, Any]:
    return {"optimal_active_experts": best_active_experts(law.as_five_factor)}


ENTRIES = (
    LawEntry(
        name="four_factor",
        law=FourFactor,
        decides=(DecisionRule((), {"optimal_active_experts": "G*"}, _best_experts),),
    ),
    LawEntry(name="three_factor", law=ThreeFactor),
    LawEntry(name="two_factor", law=TwoFactor),
)
