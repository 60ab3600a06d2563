"""Compute statistics of a layer's routing from the same sums as its losses."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from moejax.routing.sums import RoutingSums


def statistics(
    sums: RoutingSums, bias: Float[Array, "*layers experts"] | None = None
) -> dict[str, Float[Array, "*layers"]]:
    """Return scalar statistics of one layer, or of many along a leading axis.

    Loads are relative to the balanced load, so that 1 is balance for any number of experts:

    - ``load_min``, ``load_max``: load of the least and the most loaded expert
    - ``load_cv``: standard deviation of the load over experts (its mean is 1)
    - ``max_violation``: ``load_max`` - 1 (MaxVio of Wang et al. 2024, auxiliary-loss-free balancing)
    - ``load_entropy``: entropy of the load over log(experts); 1 in balance, 0 if one expert takes all
    - ``dead_experts``: experts without a single token
    - ``dropped_share``: assignments dropped by capacity, as a share of those made
    - ``logit_rms``: root mean square of the router's logits
    - ``bias_range``: largest minus smallest routing bias; only with a ``bias``
    """
    counts = sums.counts.astype(jnp.float32)
    experts = counts.shape[-1]
    made = jnp.maximum(counts.sum(-1), 1.0)
    share = counts / made[..., None]
    load = experts * share
    values = {
        "load_min": load.min(-1),
        "load_max": load.max(-1),
        "load_cv": load.std(-1),
        "max_violation": load.max(-1) - 1.0,
        "load_entropy": -(share * jnp.log(jnp.maximum(share, 1e-20))).sum(-1) / jnp.log(float(max(experts, 2))),
        "dead_experts": (counts == 0).sum(-1).astype(jnp.float32),
        # Subtract as integers: beyond 2^24 assignments, two floats may differ by rounding although nothing was dropped.
        "dropped_share": (sums.counts.sum(-1) - sums.served).astype(jnp.float32) / made,
        "logit_rms": jnp.sqrt(sums.squared_logit.sum(-1) / (experts * jnp.maximum(sums.tokens, 1).astype(jnp.float32))),
    }
    return values if bias is None else {**values, "bias_range": bias.max(-1) - bias.min(-1)}
