"""The marginal laws of Zhao et al. (2025): one factor varies, all others are fixed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from moejax.laws.claim import Claim, Partial, Variables, law_at
from moejax.laws.decision import optimum
from moejax.laws.design import Design, Scalar
from moejax.laws.law import LOSS, LawEntry, coefficient, from_law, law
from moejax.laws.mixtures.fewer_factors import TwoFactor, at_structure
from moejax.laws.mixtures.five_factor import FiveFactor


@law
class MarginalActive:
    """L(N_a) = c/N_a^gamma + h·N_a + iota.

    Zhao et al. (2025), Eq. 5, with N_a = ``params_active_nonembedding``. No constants are published.
    """

    inputs: ClassVar[tuple[str, ...]] = ("params_active",)
    outputs: ClassVar = LOSS

    active_scale: Scalar = coefficient("scale of the active term", symbol="c", dimension={"params": "active_exponent"})
    active_exponent: Scalar = coefficient("exponent of active parameters", symbol="gamma")
    active_slope: Scalar = coefficient("cost of too many active parameters", symbol="h", dimension={"params": "-1"})
    offset: Scalar = coefficient("loss due to the fixed factors, nats per token", symbol="iota")

    def __call__(self, design: Design) -> Any:
        active = design.params_active_nonembedding
        return self.active_scale * active**-self.active_exponent + self.active_slope * active + self.offset


@law
class MarginalExperts:
    """L(G) = e·G + f/G + tau.

    Zhao et al. (2025), Eq. 8, with G = ``active_experts``. No constants are published.
    """

    inputs: ClassVar[tuple[str, ...]] = ("top_k", "num_shared_experts")
    outputs: ClassVar = LOSS

    experts_slope: Scalar = coefficient("cost of more active experts", symbol="e")
    experts_inverse: Scalar = coefficient("cost of fewer active experts", symbol="f")
    offset: Scalar = coefficient("loss due to the fixed factors, nats per token", symbol="tau")

    def __call__(self, design: Design) -> Any:
        experts = design.active_experts
        return self.experts_slope * experts + self.experts_inverse / experts + self.offset


@law
class MarginalShared:
    """L(S) = m·S² + n·S + psi.

    Zhao et al. (2025), Eq. 10, with S = ``shared_share``. No constants are published.
    """

    inputs: ClassVar[tuple[str, ...]] = ("top_k", "num_shared_experts")
    outputs: ClassVar = LOSS

    shared_square: Scalar = coefficient("curvature in the shared share", symbol="m")
    shared_slope: Scalar = coefficient("slope in the shared share", symbol="n", sign="-")
    offset: Scalar = coefficient("loss due to the fixed factors, nats per token", symbol="psi")

    def __call__(self, design: Design) -> Any:
        shared = design.shared_share
        return self.shared_square * shared**2 + self.shared_slope * shared + self.offset


def optimal_active(law: MarginalActive) -> Claim:
    """Return the claim for the active parameters that minimize the loss."""
    power = 1 / (law.active_exponent + 1)
    return Claim(
        statement="N_a* = (c gamma / h)^(1/(gamma+1))",
        source="from Zhao et al. 2025, Eq. 5",
        value={"params_active": (law.active_scale * law.active_exponent / law.active_slope) ** power},
        objective=Partial(law_at, law, {}),
    )


def optimal_experts(law: MarginalExperts) -> Claim:
    """Return the claim for the number of active experts that minimizes the loss."""
    return Claim(
        statement="G* = sqrt(f / e)",
        source="from Zhao et al. 2025, Eq. 8",
        value={"active_experts": (law.experts_inverse / law.experts_slope) ** 0.5},
        objective=Partial(_at_experts, law),
    )


def optimal_shared(law: MarginalShared) -> Claim:
    """Return the claim for the share of shared experts that minimizes the loss."""
    return Claim(
        statement="S* = -n / (2 m)",
        source="from Zhao et al. 2025, Eq. 10",
        value={"shared_share": -law.shared_slope / (2 * law.shared_square)},
        objective=Partial(_at_shared, law),
    )


def margin_of_active(law: FiveFactor, design: Design) -> MarginalActive:
    """Return the law of N_a (Eq. 5) that the joint law implies at a design; the design's own N_a has no effect."""
    three = at_structure(law, design.active_experts, design.shared_share)
    sizes = from_law(TwoFactor, three)
    return MarginalActive(
        active_scale=three.active_scale,
        active_exponent=three.params_exponent,
        active_slope=three.share_slope / design.params_total_nonembedding,
        offset=sizes(design),
    )


def margin_of_shared(law: FiveFactor, design: Design) -> MarginalShared:
    """Return the law of S (Eq. 10) that the joint law implies at a design; the design's own S has no effect."""
    coupling = law.coupling(design)
    square, slope = law.shared_square * coupling, law.shared_slope * coupling
    none = replace(design, top_k=design.active_experts, num_shared_experts=0.0)
    return MarginalShared(shared_square=square, shared_slope=slope, offset=law(none))


def _at_experts(law: MarginalExperts, variables: Variables) -> Any:
    return law(Design(top_k=variables["active_experts"], num_shared_experts=0.0))


def _at_shared(law: MarginalShared, variables: Variables) -> Any:
    share = variables["shared_share"]
    return law(Design(top_k=1 - share, num_shared_experts=share))


ENTRIES = (
    LawEntry(
        name="marginal_active",
        law=MarginalActive,
        decides=(optimum(optimal_active, gives={"params_active": "N_a*"}),),
    ),
    LawEntry(
        name="marginal_experts",
        law=MarginalExperts,
        decides=(optimum(optimal_experts, gives={"active_experts": "G*"}),),
    ),
    LawEntry(
        name="marginal_shared",
        law=MarginalShared,
        decides=(optimum(optimal_shared, gives={"shared_share": "S*"}),),
    ),
)
