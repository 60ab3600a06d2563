"""Implement routing in pure JAX: routers, their losses and statistics, capacity, dispatchers, and the MoE block.

A router turns logits into a ``Routing``; a dispatcher runs the experts that it names. They share nothing else, so R
routers and D dispatchers are R + D functions.
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
