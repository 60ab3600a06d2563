"""The five-factor law in practice: when more active parameters stop paying, and how much G and S matter.

Zhao et al. (2025), Appendices D, E, F and H. Counts are without embeddings; tokens cancel in every function here.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from moejax.laws.design import Design
from moejax.laws.five_factor import FiveFactor
from moejax.laws.five_factor_optima import best_active_experts, best_shared_share, with_experts


def efficient_active_share(
    law: FiveFactor,
    params_total: Any,
    active_experts: Any,
    shared_share: Any,
    *,
    least_gain: float,
    step: float = 0.01,
) -> Any:
    """N_a/N beyond which one more ``step`` lowers the loss by less than ``least_gain`` nats; NaN if that never happens.

    Algorithm 1 (Appendix F) to the letter: it starts at one step and returns the share *after* the step that no
    longer pays.
    """
    shares = step * jnp.arange(1.0, round(1 / step) + 1)

    def loss(share: Any) -> Any:
        active = share * params_total
        return law(
            with_experts(active_experts, shared_share, params_total=params_total, params_active=active, tokens=1e12)
        )

    stops = -jnp.diff(jax.vmap(loss)(shares)) < least_gain
    return jnp.where(stops.any(), shares[1:][jnp.argmax(stops)], jnp.nan)


def active_experts_range(law: FiveFactor, design: Design, *, tolerance: float) -> tuple[Any, Any]:
    """The G whose loss is within ``tolerance`` nats of the best G's, at the sizes of ``design`` (Table 3).

    e·G + f/G = 2·sqrt(e·f) + tolerance/coupling is quadratic in G.
    """
    slack = tolerance / law.coupling(design) / (2 * law.experts_slope)
    middle = best_active_experts(law) + slack
    half = (middle**2 - law.experts_inverse / law.experts_slope) ** 0.5
    return middle - half, middle + half


def shared_share_range(law: FiveFactor, design: Design, *, tolerance: float) -> tuple[Any, Any]:
    """The S whose loss is within ``tolerance`` nats of the best S's, at the sizes of ``design`` (Table 3)."""
    half = (tolerance / law.coupling(design) / law.shared_square) ** 0.5
    return best_shared_share(law) - half, best_shared_share(law) + half


def routed_experts_factor(widening: Any, active_experts: Any, shared_share: Any, num_experts: Any) -> Any:
    """v by which the number of routed experts changes when every expert becomes u = ``widening`` times as wide.

    Appendix H, Eq. 35: v = ((1-u)·S·G + n_e) / (u·n_e) keeps the total parameters, so that N_a alone varies.
    """
    shared = active_experts * shared_share
    return ((1 - widening) * shared + num_experts) / (widening * num_experts)
