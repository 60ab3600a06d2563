"""One way to write each function, so that two architectures that compute the same compare equal."""

from __future__ import annotations

from typing import Any

from moejax.architecture import Architecture
from moejax.huggingface.dense_layer_options import expert_fields
from moejax.huggingface.window_options import window_fields

_SAME_ROUTER: dict[str, dict[str, Any]] = {
    "topk_softmax": {"router": "softmax_topk", "normalise_gates": True},
    "switch": {"router": "softmax_topk", "normalise_gates": False},
    "sigmoid_topk": {"router": "group_limited", "num_groups": 1, "top_k_groups": 1},
}
"""Routers that, without noise, are others with certain options."""


def canonical(architecture: Architecture) -> Architecture:
    """The architecture that stands for all with the same function at inference."""
    a = architecture
    shared = a.num_shared_experts * a.shared_width if a.num_shared_experts else 0
    changes: dict[str, Any] = dict(_SAME_ROUTER.get(a.router, {}))
    changes |= expert_fields(a.has_experts) | window_fields(a.sliding_window, a.has_window)
    changes |= {
        "dense_hidden": 0 if all(a.has_experts) else a.dense_hidden,
        "num_shared_experts": min(shared, 1),
        "shared_hidden": shared,
        "value_head_dim": a.value_width,
    }
    return a.replace(**changes)
