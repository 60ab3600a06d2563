"""Compute-optimal size and sparsity under the law of Abnar et al. (2025), at 6·N_a·D = C.

Neither optimum has a closed form, and both need a reading of N_a(N, S) (``moejax.laws.active_params``). The joint
optimum of Eq. 2 is degenerate: with the published constants the loss falls in S until 1-S is about 1e-13, because
delta and gamma are nearly equal. So sparsity is capped, and an optimum at the cap says so.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from moejax.laws.chinchilla import FLOPS_PER_PARAM_AND_TOKEN
from moejax.laws.claim import Claim, Variables, in_float64
from moejax.laws.design import Design
from moejax.laws.interval import BISECTIONS, argmin_between
from moejax.laws.sparsity import Sparsity

Partial = jax.tree_util.Partial

SMALLEST, LARGEST = 1.0, 1e25
"""Bounds of the search for total parameters."""


@jax.jit
def best_params_total(law: Sparsity, flops: Any, sparsity: Any, reading: Any) -> Any:
    """N*(C, S): total parameters of least loss at one sparsity."""

    def loss(log_total: Any) -> Any:
        return _loss(law, flops, reading, {"params_total": jnp.exp(log_total), "active_experts_share": 1 - sparsity})

    return jnp.exp(argmin_between(loss, jnp.log(SMALLEST), jnp.log(LARGEST)))


@jax.jit
def best_sparsity(law: Sparsity, flops: Any, params_total: Any, reading: Any, *, cap: Any = 0.999) -> Any:
    """S*(C, N): sparsity of least loss at one size, between 0 and ``cap``."""

    def loss(log_active: Any) -> Any:
        return _loss(law, flops, reading, {"params_total": params_total, "active_experts_share": jnp.exp(log_active)})

    return 1 - jnp.exp(argmin_between(loss, jnp.log1p(-cap), 0.0))


@jax.jit
def dense_threshold(law: Sparsity, flops: Any, reading: Any) -> Any:
    """Total parameters below which S*(C, N) is 0: where the slope of the loss in S at S = 0 changes its sign."""

    def loss(log_total: Any, active: Any) -> Any:
        return _loss(law, flops, reading, {"params_total": jnp.exp(log_total), "active_experts_share": active})

    def halve(_: Any, bracket: Any) -> Any:
        left, right = bracket
        middle = (left + right) / 2
        dense_is_best = jax.grad(loss, argnums=1)(middle, 1.0) < 0
        return jnp.where(dense_is_best, middle, left), jnp.where(dense_is_best, right, middle)

    ends = jnp.log(jnp.asarray(SMALLEST, float)), jnp.log(jnp.asarray(LARGEST, float))
    return jnp.exp(jax.lax.fori_loop(0, BISECTIONS, halve, ends)[0])


@in_float64
def optimal_params_total(law: Sparsity, flops: Any, sparsity: Any, reading: Any) -> Claim:
    """The claim that ``best_params_total`` is optimal."""
    return Claim(
        statement="N*(C, S) = argmin_N L(N, C / (6 N_a(N, S)), S)",
        source="Abnar et al. 2025, Eq. 3 under Eq. 6",
        value={"params_total": best_params_total(law, flops, sparsity, reading)},
        objective=Partial(_at_sparsity, law, flops, reading, 1 - sparsity),
    )


@in_float64
def optimal_sparsity(law: Sparsity, flops: Any, params_total: Any, reading: Any, *, cap: Any = 0.999) -> Claim:
    """The claim that ``best_sparsity`` is optimal, in terms of 1-S; at a bound it is not stationary and says so."""
    sparsity = best_sparsity(law, flops, params_total, reading, cap=cap)
    notes = []
    if sparsity >= cap * (1 - 1e-6):
        notes.append(
            f"The loss still falls at the cap S = {float(cap):g}: under this law no sparsity is too high at this size."
        )
    if sparsity <= 0:
        notes.append("The loss rises from S = 0 on: at this size and budget the dense model is best.")
    return Claim(
        statement="S*(C, N) = argmin_S L(N, C / (6 N_a(N, S)), S)",
        source="Abnar et al. 2025, Eq. 4 under Eq. 6",
        value={"active_experts_share": 1 - sparsity},
        objective=Partial(_at_size, law, flops, reading, params_total),
        notes=tuple(notes),
    )


class JointOptimum(NamedTuple):
    """Where the loss is least with sparsity capped, and what that says."""

    params_total: float
    sparsity: float
    loss: float
    message: str


def joint_optimum(law: Sparsity, flops: Any, reading: Any, *, cap: Any = 0.999) -> JointOptimum:
    """N and S of least loss with S at most ``cap``: Eq. 2, which has no optimum worth the name without the cap."""
    with jax.enable_x64(True):
        law, flops, reading = jax.tree.map(lambda x: jnp.asarray(x, float), (law, flops, reading))
        actives, totals, losses = _losses_by_sparsity(law, flops, reading, jnp.asarray(1 - cap, float))
        best = int(jnp.argmin(losses))
        message = (
            f"The loss still falls at the cap S = {cap:g}: the law has no joint optimum below it, so this sparsity is "
            f"your limit and not the law's answer."
            if best == 0
            else f"The loss is least at a sparsity below the cap of {cap:g}."
        )
        return JointOptimum(float(totals[best]), float(1 - actives[best]), float(losses[best]), message)


@jax.jit
def _losses_by_sparsity(law: Sparsity, flops: Any, reading: Any, least: Any) -> tuple[Any, Any, Any]:
    """Shares of experts that serve a token, from ``least`` to 1, with the best size and its loss at each."""

    def at(active: Any) -> tuple[Any, Any]:
        total = best_params_total(law, flops, 1 - active, reading)
        return total, _loss(law, flops, reading, {"params_total": total, "active_experts_share": active})

    actives = jnp.exp(jnp.linspace(jnp.log(least), 0.0, 257))
    return actives, *jax.vmap(at)(actives)


def _loss(law: Sparsity, flops: Any, reading: Any, variables: Variables) -> Any:
    total, active = variables["params_total"], variables["active_experts_share"]
    tokens = flops / (FLOPS_PER_PARAM_AND_TOKEN * reading(total, 1 - active))
    return law(Design(params_total=total, tokens=tokens, num_experts=1 / active, top_k=1.0))


def _at_sparsity(law: Sparsity, flops: Any, reading: Any, active_experts_share: Any, variables: Variables) -> Any:
    return _loss(law, flops, reading, {**variables, "active_experts_share": active_experts_share})


def _at_size(law: Sparsity, flops: Any, reading: Any, params_total: Any, variables: Variables) -> Any:
    return _loss(law, flops, reading, {**variables, "params_total": params_total})
