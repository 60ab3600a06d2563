"""Register frozen dataclasses as JAX pytree nodes, each type with its own structure."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import jax

Node = TypeVar("Node", bound=type)


def pytree(cls: Node) -> Node:
    """Register a frozen dataclass: fields with ``static`` metadata are its structure, all others its children.

    ``jax.tree_util.register_dataclass`` does the same in C++. There (jax 0.10.2), two dataclasses with the same number
    of children and equal static fields have equal structures. Their hashes differ, so jit confuses them only
    occasionally, and then runs a program that was compiled for the other class.
    """
    fields = dataclasses.fields(cls)
    kept = tuple(f.name for f in fields if f.metadata.get("static"))
    children = tuple(f.name for f in fields if not f.metadata.get("static"))
    keys = tuple(map(jax.tree_util.GetAttrKey, children))

    def flatten(node: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        return tuple(getattr(node, name) for name in children), tuple(getattr(node, name) for name in kept)

    def flatten_with_keys(node: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        values, structure = flatten(node)
        return tuple(zip(keys, values, strict=True)), structure

    def unflatten(structure: tuple[Any, ...], values: Any) -> Any:
        return cls(**dict(zip(kept, structure, strict=True)), **dict(zip(children, values, strict=True)))

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    return cls
