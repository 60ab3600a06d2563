"""The joint law of Zhao et al. (2025): loss from total and active parameters, tokens, active experts and shared
share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from moejax.laws.claim import Claim, Partial, Variables, in_float64
from moejax.laws.decision import SPLIT, DecisionRule, optimum
from moejax.laws.dense.chinchilla import FLOPS_PER_PARAM_AND_TOKEN, Chinchilla, frontier
from moejax.laws.dense.loss_compute import LossCompute
from moejax.laws.design import Design, Scalar
from moejax.laws.law import LOSS, LawEntry, Published, coefficient, from_law, law
from moejax.laws.search import argmin_between


@law
class FiveFactor:
    """L = (e·G + f/G + m·S² + n·S)·(N^-alpha + k·N_a^-alpha + h·N_a/N) + a/N^alpha + b/D^beta + c/N_a^alpha + epsilon.

    Zhao et al., "Towards a Comprehensive Scaling Law of Mixture-of-Experts" (2025), Eq. 11 (Eq. 1, Eq. 15).

    N is ``params_total_nonembedding``, N_a ``params_active_nonembedding``, D ``tokens``, G ``active_experts`` (routed
    and shared) and S ``shared_share``. Its Eqs. 2 and 3 count the parameters of attention and experts, without router,
    norms and embeddings. L is in nats per token. The appendices print epsilon as s.

    This file also has the optima (Eqs. 12 to 14 and Appendix G), Algorithm 1, the ranges of Table 3 and the scaling at
    constant total parameters (Appendix H). Their parameter counts exclude embeddings.
    """

    inputs: ClassVar[tuple[str, ...]] = ("params_total", "params_active", "tokens", "top_k", "num_shared_experts")
    outputs: ClassVar = LOSS

    experts_slope: Scalar = coefficient(
        "cost of more active experts", symbol="e", dimension={"params": "params_exponent"}
    )
    experts_inverse: Scalar = coefficient(
        "cost of fewer active experts", symbol="f", dimension={"params": "params_exponent"}
    )
    shared_square: Scalar = coefficient(
        "curvature in the shared share", symbol="m", dimension={"params": "params_exponent"}
    )
    shared_slope: Scalar = coefficient(
        "slope in the shared share", symbol="n", sign="-", dimension={"params": "params_exponent"}
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

    def structure(self, design: Design) -> Any:
        """Return e·G + f/G + m·S² + n·S, the factor that depends on the number and kind of experts."""
        experts, shared = design.active_experts, design.shared_share
        return (
            self.experts_slope * experts
            + self.experts_inverse / experts
            + self.shared_square * shared**2
            + self.shared_slope * shared
        )

    def coupling(self, design: Design) -> Any:
        """Return N^-alpha + k·N_a^-alpha + h·N_a/N, the weight of ``structure`` at a model size."""
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
        provenance="verified",
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


def with_experts(active_experts: Scalar, shared_share: Scalar, **fields: Scalar | None) -> Design:
    """Return a design with real-valued G and S; counts exclude embeddings."""
    shared = active_experts * shared_share
    return Design(top_k=active_experts - shared, num_shared_experts=shared, **fields)


def best_active_experts(law: FiveFactor) -> Any:
    """Return sqrt(f / e)."""
    return (law.experts_inverse / law.experts_slope) ** 0.5


def best_shared_share(law: FiveFactor) -> Any:
    """Return -n / (2 m)."""
    return -law.shared_slope / (2 * law.shared_square)


def optimal_active_experts(law: FiveFactor, design: Design) -> Claim:
    """Return the claim for the G that minimizes the loss; the rest of ``design``, including S, is fixed."""
    return Claim(
        statement="G* = sqrt(f / e)",
        source="Zhao et al. 2025, Eq. 12 (Eq. 20)",
        value={"active_experts": best_active_experts(law)},
        objective=Partial(_at_structure, law, design, {"shared_share": design.shared_share}),
    )


def optimal_shared_share(law: FiveFactor, design: Design) -> Claim:
    """Return the claim for the S that minimizes the loss; the rest of ``design``, including G, is fixed."""
    return Claim(
        statement="S* = -n / (2 m)",
        source="Zhao et al. 2025, Eq. 13 (Eq. 22)",
        value={"shared_share": best_shared_share(law)},
        objective=Partial(_at_structure, law, design, {"active_experts": design.active_experts}),
    )


def optimal_active_share(law: FiveFactor, params_total: Scalar, active_experts: Scalar, shared_share: Scalar) -> Claim:
    """Return the claim for the N_a/N that minimizes the loss at fixed N, G and S (counts without embeddings).

    The optimum does not depend on tokens, and it ignores the cost of active parameters.
    """
    structure = law.structure(with_experts(active_experts, shared_share))
    alpha = law.params_exponent
    ratio = alpha * (law.active_coupling * structure + law.active_scale)
    share = (ratio / (law.share_coupling * params_total**alpha * structure)) ** (1 / (alpha + 1))
    return Claim(
        statement="N_a/N = (alpha (k const + c) / (h N^alpha const))^(1/(alpha+1)), const = e G + f/G + m S^2 + n S",
        source="Zhao et al. 2025, Eq. 14 (Eq. 29)",
        value={"active_share": share},
        objective=Partial(_at_share, law, params_total, active_experts, shared_share),
    )


@in_float64
def optimal_active_at_compute(
    law: FiveFactor, flops: Scalar, params_total: Scalar, active_experts: Scalar, shared_share: Scalar
) -> Claim:
    """Return the claim for the N_a and D that minimize the loss with N_a·D = ``flops``, at fixed N, G and S.

    Zhao et al. (2025), Appendix G, which defines C = D·N_a, without the factor 6. Eq. 31 has no closed-form solution;
    its root is computed by a search over log N_a, in which the loss is convex. Active parameters may exceed N.
    """

    active = _root_of_equation_31(law, flops, params_total, active_experts, shared_share)
    return Claim(
        statement="b beta N_a^(beta-1) / C^beta = alpha (const k + c) N_a^(-alpha-1) - const h / N",
        source="Zhao et al. 2025, Eq. 31",
        value=_spend(active, flops),
        objective=Partial(_at_compute, law, params_total, active_experts, shared_share),
        held=Partial(_spent),
    )


SMALLEST, LARGEST = 1.0, 1e25
"""Bounds of the search for active parameters."""


@jax.jit
def _root_of_equation_31(
    law: FiveFactor, flops: Scalar, params_total: Scalar, active_experts: Scalar, shared_share: Scalar
) -> Any:
    def loss(log_active: Scalar) -> Any:
        variables = _spend(jnp.exp(log_active), flops)
        return _at_compute(law, params_total, active_experts, shared_share, variables)

    return jnp.exp(argmin_between(loss, jnp.log(SMALLEST), jnp.log(LARGEST)))


def loss_at_optimum(law: FiveFactor, params_active: Scalar, params_total: Scalar, structure: Scalar) -> Any:
    """Return L*(C) of Eq. 32, where ``params_active`` solves Eq. 31 for C."""
    alpha, beta = law.params_exponent, law.tokens_exponent
    return (
        _floor(law, params_total, structure)
        + (structure * law.active_coupling + law.active_scale) * (alpha + beta) / beta * params_active**-alpha
        + structure * law.share_coupling * (beta - 1) / (params_total * beta) * params_active
    )


def loss_compute_limit(law: FiveFactor, params_total: Scalar, structure: Scalar) -> LossCompute:
    """Return L*(C) as h goes to 0: C_0 + K·C^(-alpha·beta/(alpha+beta)), Eq. 33.

    The paper presents Eq. 33 as L*(C) at N = 1T. It is this limit, not a fit. It is below the exact ``loss_at_optimum``
    by 0.002 nats at C = 1e20 and by 0.039 at 1e26.
    """
    scale = structure * law.active_coupling + law.active_scale
    split = from_law(Chinchilla, law, irreducible=0.0, params_scale=scale)
    # Zhao et al. count C = N_a·D, without the factor 6.
    at_six = frontier(split)
    return replace(
        at_six,
        scale=at_six.scale * FLOPS_PER_PARAM_AND_TOKEN**at_six.exponent,
        irreducible=_floor(law, params_total, structure),
    )


def _floor(law: FiveFactor, params_total: Scalar, structure: Scalar) -> Any:
    return (structure + law.total_scale) * params_total**-law.params_exponent + law.irreducible


def _spend(active: Scalar, flops: Scalar) -> dict[str, Any]:
    return {"params_active": active, "tokens": flops / active}


def _spent(variables: Variables) -> dict[str, Any]:
    return {"flops": variables["params_active"] * variables["tokens"]}


def _at_structure(law: FiveFactor, design: Design, fixed: Variables, variables: Variables) -> Any:
    varied = with_experts(**fixed, **variables)
    return law(replace(design, top_k=varied.top_k, num_shared_experts=varied.num_shared_experts))


def _at_share(
    law: FiveFactor, total: Scalar, active_experts: Scalar, shared_share: Scalar, variables: Variables
) -> Any:
    active = variables["active_share"] * total
    return law(with_experts(active_experts, shared_share, params_total=total, params_active=active, tokens=1e12))


def _at_compute(
    law: FiveFactor, total: Scalar, active_experts: Scalar, shared_share: Scalar, variables: Variables
) -> Any:
    return law(with_experts(active_experts, shared_share, params_total=total, **variables))


def efficient_active_share(
    law: FiveFactor,
    params_total: Scalar,
    active_experts: Scalar,
    shared_share: Scalar,
    *,
    least_gain: float,
    step: float = 0.01,
) -> Any:
    """Return the N_a/N after the first ``step`` that lowers the loss by less than ``least_gain`` nats; NaN if there is
    none.

    This is Algorithm 1 (Appendix F) as printed. It starts at N_a/N = ``step``.
    """
    shares = step * jnp.arange(1.0, round(1 / step) + 1)

    def loss(share: Scalar) -> Any:
        return _at_share(law, params_total, active_experts, shared_share, {"active_share": share})

    stops = -jnp.diff(jax.vmap(loss)(shares)) < least_gain
    return jnp.where(stops.any(), shares[1:][jnp.argmax(stops)], jnp.nan)


def active_experts_range(law: FiveFactor, design: Design, *, tolerance: float) -> tuple[Any, Any]:
    """Return the range of G whose loss is within ``tolerance`` nats of the minimum, at the sizes of ``design`` (Table
    3).

    The bounds solve e·G + f/G = 2·sqrt(e·f) + tolerance/coupling, which is quadratic in G.
    """
    slack = tolerance / law.coupling(design) / (2 * law.experts_slope)
    middle = best_active_experts(law) + slack
    half = (middle**2 - law.experts_inverse / law.experts_slope) ** 0.5
    return middle - half, middle + half


def shared_share_range(law: FiveFactor, design: Design, *, tolerance: float) -> tuple[Any, Any]:
    """Return the range of S whose loss is within ``tolerance`` nats of the minimum, at the sizes of ``design`` (Table
    3)."""
    half = (tolerance / law.coupling(design) / law.shared_square) ** 0.5
    return best_shared_share(law) - half, best_shared_share(law) + half


def routed_experts_factor(widening: Scalar, active_experts: Scalar, shared_share: Scalar, num_experts: Scalar) -> Any:
    """Return the factor v on the number of routed experts if every expert becomes u = ``widening`` times as wide.

    Appendix H, Eq. 35: v = ((1-u)·S·G + n_e) / (u·n_e) keeps the total parameters, so that only N_a varies.
    """
    shared = active_experts * shared_share
    return ((1 - widening) * shared + num_experts) / (widening * num_experts)


def _best_structure(law: FiveFactor) -> dict[str, Any]:
    return {"active_experts": best_active_experts(law), "shared_share": best_shared_share(law)}


def _decided_structure(law: FiveFactor) -> dict[str, Any]:
    return {f"optimal_{name}": value for name, value in _best_structure(law).items()}


def _active_share_at_best(law: FiveFactor, params_total: Scalar) -> Claim:
    return optimal_active_share(law, params_total, **_best_structure(law))


def _active_at_best(law: FiveFactor, flops: Scalar, params_total: Scalar) -> Claim:
    # The paper defines C = N_a·D, without the factor 6.
    return optimal_active_at_compute(law, flops / FLOPS_PER_PARAM_AND_TOKEN, params_total, **_best_structure(law))


_MIXTURE = with_experts(7, 0.31, params_total=1e12, params_active=32e9, tokens=15e12)

ENTRIES = (
    LawEntry(
        name="five_factor",
        law=FiveFactor,
        aliases=("zhao",),
        published=PUBLISHED,
        decides=(
            DecisionRule((), {"optimal_active_experts": "G*", "optimal_shared_share": "S*"}, _decided_structure),
            optimum(_active_share_at_best, given=("params_total",), gives={"active_share": "r_a*"}),
            optimum(
                _active_at_best,
                given=("flops", "params_total"),
                gives={**SPLIT, "params_active": "N_a*"},
                ends={"params_active": (SMALLEST, LARGEST)},
            ),
        ),
        claims={
            "optimal_active_experts": lambda: optimal_active_experts(ZHAO_2025, _MIXTURE),
            "optimal_shared_share": lambda: optimal_shared_share(ZHAO_2025, _MIXTURE),
            "optimal_active_share": lambda: optimal_active_share(ZHAO_2025, 671e9, 7.0, 0.31),
            "optimal_active_at_compute": lambda: optimal_active_at_compute(ZHAO_2025, 1e24, 1e12, 7.0, 0.31),
        },
    ),
)
