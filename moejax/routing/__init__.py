"""Implement routing in pure JAX: routers, their losses and statistics, capacity, dispatchers, and the MoE block.

A router turns logits into a ``Routing``, and a dispatcher computes the experts of a ``Routing``. They share nothing
else, so every router works with every dispatcher.
"""

from moejax.kernels.experts import ACTIVATIONS, Experts
from moejax.routing.dispatch import DISPATCHERS
from moejax.routing.routers import INPUT_NOISE, ROUTERS, is_causal, router_options, unknown_options
from moejax.routing.routing import Routing

__all__ = [
    "ACTIVATIONS",
    "DISPATCHERS",
    "INPUT_NOISE",
    "ROUTERS",
    "Experts",
    "Routing",
    "is_causal",
    "router_options",
    "unknown_options",
]
