"""What the five-factor law says is best: active experts, shared share, active share, and all of it at fixed compute."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from moejax.laws.chinchilla import FLOPS_PER_PARAM_AND_TOKEN, Chinchilla, frontier
from moejax.laws.claim import Claim, Variables, in_float64
from moejax.laws.design import Design
from moejax.laws.five_factor import FiveFactor
from moejax.laws.interval import argmin_between
from moejax.laws.loss_compute import LossCompute

Partial = jax.tree_util.Partial


def with_experts(active_experts: Any, shared_share: Any, **fields: Any) -> Design:
    """A design with G and S given as numbers, whole or not; counts are without embeddings."""
    shared = active_experts * shared_share
    return Design(top_k=active_experts - shared, num_shared_experts=shared, **fields)


def best_active_experts(law: FiveFactor) -> Any:
    """sqrt(f / e)."""
    return (law.experts_inverse / law.experts_slope) ** 0.5


def best_shared_share(law: FiveFactor) -> Any:
    """-n / (2 m)."""
    return -law.shared_slope / (2 * law.shared_square)


def optimal_active_experts(law: FiveFactor, design: Design) -> Claim:
    """G of least loss; the rest of ``design``, S included, stays as it is."""
    return Claim(
        statement="G* = sqrt(f / e)",
        source="Zhao et al. 2025, Eq. 12 (Eq. 20)",
        value={"active_experts": best_active_experts(law)},
        objective=Partial(_at_structure, law, design, {"shared_share": design.shared_share}),
    )


def optimal_shared_share(law: FiveFactor, design: Design) -> Claim:
    """S of least loss; the rest of ``design``, G included, stays as it is."""
    return Claim(
        statement="S* = -n / (2 m)",
        source="Zhao et al. 2025, Eq. 13 (Eq. 22)",
        value={"shared_share": best_shared_share(law)},
        objective=Partial(_at_structure, law, design, {"active_experts": design.active_experts}),
    )


def optimal_active_share(law: FiveFactor, params_total: Any, active_experts: Any, shared_share: Any) -> Claim:
    """N_a/N of least loss at one N, G and S (counts without embeddings); tokens cancel.

    The optimum of the form, whatever it costs: more active parameters are taken to be free.
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
    law: FiveFactor, flops: Any, params_total: Any, active_experts: Any, shared_share: Any
) -> Claim:
    """N_a and D of least loss with N_a·D = ``flops``, at one N, G and S.

    Zhao et al. (2025), Appendix G, which writes C = D·N_a, without the factor 6. Eq. 31 has no closed solution; its
    root is found in log N_a, where the loss is convex. Active parameters are not kept below N.
    """

    active = _root_of_equation_31(law, flops, params_total, active_experts, shared_share)
    return Claim(
        statement="b beta N_a^(beta-1) / C^beta = alpha (const k + c) N_a^(-alpha-1) - const h / N",
        source="Zhao et al. 2025, Eq. 31",
        value=_spend(active, flops),
        objective=Partial(_at_compute, law, params_total, active_experts, shared_share),
        held=Partial(_spent),
    )


@jax.jit
def _root_of_equation_31(law: FiveFactor, flops: Any, params_total: Any, active_experts: Any, shared_share: Any) -> Any:
    def loss(log_active: Any) -> Any:
        variables = _spend(jnp.exp(log_active), flops)
        return _at_compute(law, params_total, active_experts, shared_share, variables)

    return jnp.exp(argmin_between(loss, 0.0, jnp.log(1e25)))


def loss_at_optimum(law: FiveFactor, params_active: Any, params_total: Any, structure: Any) -> Any:
    """L*(C) of Eq. 32, where ``params_active`` solves Eq. 31 for C."""
    alpha, beta = law.params_exponent, law.tokens_exponent
    return (
        _floor(law, params_total, structure)
        + (structure * law.active_coupling + law.active_scale) * (alpha + beta) / beta * params_active**-alpha
        + structure * law.share_coupling * (beta - 1) / (params_total * beta) * params_active
    )


def loss_compute_limit(law: FiveFactor, params_total: Any, structure: Any) -> LossCompute:
    """L*(C) as h goes to 0: C_0 + K·C^(-alpha·beta/(alpha+beta)), Eq. 33.

    The document presents Eq. 33 as L*(C) at N = 1T. It is this limit, not a fit, and lies below the exact loss of
    ``loss_at_optimum``: by 0.002 nats at C = 1e20 and by 0.039 at 1e26.
    """
    split = Chinchilla(
        irreducible=0.0,
        params_scale=structure * law.active_coupling + law.active_scale,
        params_exponent=law.params_exponent,
        tokens_scale=law.tokens_scale,
        tokens_exponent=law.tokens_exponent,
    )
    # Zhao et al. count C = N_a·D, without the factor 6.
    at_six = frontier(split)
    return replace(
        at_six,
        scale=at_six.scale * FLOPS_PER_PARAM_AND_TOKEN**at_six.exponent,
        irreducible=_floor(law, params_total, structure),
    )


def _floor(law: FiveFactor, params_total: Any, structure: Any) -> Any:
    return (structure + law.total_scale) * params_total**-law.params_exponent + law.irreducible


def _spend(active: Any, flops: Any) -> dict[str, Any]:
    return {"params_active": active, "tokens": flops / active}


def _spent(variables: Variables) -> dict[str, Any]:
    return {"flops": variables["params_active"] * variables["tokens"]}


def _at_structure(law: FiveFactor, design: Design, fixed: Variables, variables: Variables) -> Any:
    sizes = {name: getattr(design, name) for name in ("params_total", "params_active", "params_embedding", "tokens")}
    return law(with_experts(**fixed, **variables, **sizes))


def _at_share(law: FiveFactor, total: Any, active_experts: Any, shared_share: Any, variables: Variables) -> Any:
    active = variables["active_share"] * total
    return law(with_experts(active_experts, shared_share, params_total=total, params_active=active, tokens=1e12))


def _at_compute(law: FiveFactor, total: Any, active_experts: Any, shared_share: Any, variables: Variables) -> Any:
    return law(with_experts(active_experts, shared_share, params_total=total, **variables))
