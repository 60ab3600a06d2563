"""Routing in pure JAX: routers, their losses and statistics, capacity, and the dispatchers that run the experts.

A router turns logits into a ``Routing``; a dispatcher runs the experts it names. They share nothing else, so R
routers and D dispatchers are R + D functions.
"""

import inspect

from moejax.routing.dispatch_capacity import capacity
from moejax.routing.dispatch_dense import dense
from moejax.routing.dispatch_grouped import grouped
from moejax.routing.expert_choice import expert_choice
from moejax.routing.experts import Experts, clamped_swiglu, swiglu
from moejax.routing.noisy import balanced, jitter, noisy_topk, random, switch
from moejax.routing.routing import Routing
from moejax.routing.sigmoid import group_limited, sigmoid_topk
from moejax.routing.softmax import softmax_topk, topk_softmax
from moejax.routing.top_p import top_p

__all__ = ["ACTIVATIONS", "DISPATCHERS", "INPUT_NOISE", "NOT_CAUSAL", "ROUTERS", "Experts", "Routing", "router_options"]

ROUTERS = {
    "softmax_topk": softmax_topk,
    "topk_softmax": topk_softmax,
    "sigmoid_topk": sigmoid_topk,
    "group_limited": group_limited,
    "switch": switch,
    "noisy_topk": noisy_topk,
    "expert_choice": expert_choice,
    "top_p": top_p,
    "balanced": balanced,
    "random": random,
}
"""``router(logits, *, top_k, bias=None, key=None, **options) -> Routing``, with logits in float32.

``bias`` moves the choice of experts and never the gates; ``key`` is for routers with noise, which None switches off.
"""

NOT_CAUSAL = frozenset({"expert_choice"})
"""Routers that look at all tokens of a batch at once, so that a later token decides about an earlier one."""

INPUT_NOISE = {"switch": jitter}
"""``noise(x, key) -> x`` for routers whose noise belongs on the input of their linear map, while training."""

DISPATCHERS = {
    "dense": dense,
    "capacity": capacity,
    "grouped": grouped,
}
"""``dispatch(x, routing, experts) -> y``: for each token the sum of gate · expert(x) over its assignments."""

ACTIVATIONS = {"swiglu": swiglu, "clamped_swiglu": clamped_swiglu}
"""Activations of experts, by name."""

_OPTIONS = {
    "normalise_gates": "normalise",
    "gate_scale": "gate_scale",
    "num_groups": "num_groups",
    "top_k_groups": "top_k_groups",
    "threshold": "threshold",
}


def router_options(router: str) -> dict[str, str]:
    """The options a router knows, from their names in an Architecture to the router's own."""
    known = inspect.signature(ROUTERS[router]).parameters
    return {field: option for field, option in _OPTIONS.items() if option in known}


def unknown_options(router: str, given: dict[str, object]) -> list[str]:
    """Those of the options ``given``, by their names in an Architecture, that the router does not know."""
    known = router_options(router)
    return [name for name in given if name in _OPTIONS and name not in known]
