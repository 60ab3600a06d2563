"""List the parameters of an architecture by flat name, with shapes and axes, as used everywhere on disk."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from moejax.architecture import Architecture
from moejax.model import transformer

EXPERT_BIAS = "moe_layers.feed_forward.expert_bias"
"""Name of the expert bias, which is stored with the parameters but is not one of them. Its last rows belong to
multi-token prediction modules."""


class Parameter(NamedTuple):
    """Shape and axes of a stacked array."""

    shape: tuple[int, ...]
    axes: tuple[str, ...]
    """Logical names, as in ``moejax.sharding``."""


@functools.lru_cache(maxsize=16)
def parameters(architecture: Architecture) -> Mapping[str, Parameter]:
    """Return every stacked array by its dotted name, including the expert bias of an architecture that has one."""
    shapes = dict(flat(transformer.abstract_params(architecture)))
    axes = dict(flat(transformer.param_axes(architecture)))
    described = {name: Parameter(tuple(leaf.shape), tuple(axes[name])) for name, leaf in shapes.items()}
    if architecture.expert_bias:
        shape = (len(architecture.routed_layers), architecture.num_experts)
        described[EXPERT_BIAS] = Parameter(shape, ("layers", "router"))
    return described


def flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested dicts with their dotted names."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def nested(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Build nested dicts from dotted names."""
    tree: dict[str, Any] = {}
    for name, value in leaves.items():
        *groups, last = name.split(".")
        here = tree
        for group in groups:
            here = here.setdefault(group, {})
        here[last] = value
    return tree
