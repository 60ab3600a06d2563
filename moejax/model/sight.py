"""Who sees whom in causal attention.

Shapes: B batch, T queries, S keys.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from moejax.pytree import pytree


@pytree
@dataclass(frozen=True, kw_only=True)
class Sight:
    """Which keys a query sees: none later, none of another document, none beyond the window."""

    start: Any = 0
    """Int: index of the first query among the keys; 0 where queries and keys are the same tokens."""
    query_segments: Any = None
    """Int[B, T]: document of each query, or None if a row is one document."""
    key_segments: Any = None
    """Int[B, S]"""
    window: int = field(default=0, metadata={"static": True})
    """Keys that a query sees at most, its own included; 0 for all."""

    def is_whole(self, queries: int, keys: int) -> bool:
        """Whether queries and keys are surely the same tokens, and no cache is continued."""
        return isinstance(self.start, int) and not self.start and queries == keys

    def distance(self, queries: int, keys: int) -> Int[Array, "T S"]:
        """How many tokens the key lies before the query."""
        return self.start + jnp.arange(queries)[:, None] - jnp.arange(keys)

    def mask(self, queries: int, keys: int) -> Bool[Array, "B_or_1 T S"]:
        """Which keys each query sees."""
        distance = self.distance(queries, keys)
        seen = distance >= 0
        if self.window:
            seen = seen & (distance < self.window)
        if self.query_segments is None:
            return seen[None]
        return seen & (self.query_segments[:, :, None] == self.key_segments[:, None, :])
