"""Routing in pure JAX: routers, their losses and statistics, capacity, and the dispatchers that run the experts.

A router turns logits into a ``Routing``; a dispatcher runs the experts it names. They share nothing else, so R
routers and D dispatchers are R + D functions.
"""

from moejax.routing.dispatch_dense import dense
from moejax.routing.dispatch_grouped import grouped
from moejax.routing.experts import Experts
from moejax.routing.routing import Routing
from moejax.routing.softmax import softmax_topk, topk_softmax

__all__ = ["DISPATCHERS", "ROUTERS", "Experts", "Routing"]

ROUTERS = {
    "softmax_topk": softmax_topk,
    "topk_softmax": topk_softmax,
}
"""``router(logits, *, top_k, bias=None, key=None, **options) -> Routing``, with logits in float32.

``bias`` moves the choice of experts and not the gates; ``key`` feeds routers with noise, which None switches off.
"""

DISPATCHERS = {
    "dense": dense,
    "grouped": grouped,
}
"""``dispatch(x, routing, experts) -> y``: for each token the sum of gate · expert(x) over its assignments."""
