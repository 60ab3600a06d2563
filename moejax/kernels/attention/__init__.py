"""Define causal attention: the mask, the operation, and its reference.

Shapes: B batch, T queries, S keys, H heads, G key-value heads, K width of a query, V width of a value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int

from moejax.architecture import Architecture
from moejax.errors import UserError
from moejax.kernels import cpu
from moejax.kernels.table import TABLE, load, select
from moejax.pytree import pytree
from moejax.sharding import TOKEN_AXES, on_many_devices
from moejax.wording import install_command

CUDNN_LATENT = (192, 128)
"""Only combination of different query and value widths that cuDNN supports, as in DeepSeek-V3."""

BACKENDS = ("auto", *TABLE["attention"])
"""Values of ``Runtime.attention``: the platform's best kernel, or a named kernel."""


@pytree
@dataclass(frozen=True, kw_only=True)
class AttentionMask:
    """A mask that hides later keys, keys of other documents and keys beyond the window."""

    start: Any = 0
    """Int: index of the first query among the keys; 0 if queries and keys are the same tokens."""
    query_segments: Any = None
    """Int[B, T]: document of each query, or None if a row is one document."""
    key_segments: Any = None
    """Int[B, S]: document of each key, or None if a row is one document."""
    window: int = field(default=0, metadata={"static": True})
    """Maximum number of keys that a query attends to, including its own; 0 for all keys."""

    def is_full_sequence(self, queries: int, keys: int) -> bool:
        """Return whether queries and keys are statically known to be the same tokens, without a cache."""
        return isinstance(self.start, int) and not self.start and queries == keys

    def distance(self, queries: int, keys: int) -> Int[Array, "T S"]:
        """Return the number of tokens from key to query."""
        return self.start + jnp.arange(queries)[:, None] - jnp.arange(keys)

    def dense(self, queries: int, keys: int) -> Bool[Array, "B_or_1 T S"]:
        """Return a mask that is True for the keys that a query attends to."""
        distance = self.distance(queries, keys)
        seen = distance >= 0
        if self.window:
            seen = seen & (distance < self.window)
        if self.query_segments is None:
            return seen[None]
        return seen & (self.query_segments[:, :, None] == self.key_segments[:, None, :])


def attention(
    query: Float[Array, "B T H K"],
    key: Float[Array, "B S G K"],
    value: Float[Array, "B S G V"],
    mask: AttentionMask,
    *,
    scale: float,
    slopes: Float[Any, " H"] | None = None,
    sinks: Float[Array, " H"] | None = None,
    backend: str = "auto",
) -> Float[Array, "B T H V"]:
    """Return the softmax-weighted mean of the values, computed by a named kernel or by the best kernel for the program.

    ``slopes`` times the distance in tokens are subtracted from the scores (ALiBi). ``sinks`` are additional logits in
    the softmax without values. Queries that follow a cache are few, so the reference computes them.
    """
    if not mask.is_full_sequence(query.shape[1], key.shape[1]):
        kernel = reference
    elif backend == "auto":
        kernel = select("attention", query, key, value, mask, scale=scale, slopes=slopes, sinks=sinks)
    else:
        kernel = load("attention", backend)
    return kernel(query, key, value, mask, scale=scale, slopes=slopes, sinks=sinks)


def reference(
    query: Float[Array, "B T H K"],
    key: Float[Array, "B S G K"],
    value: Float[Array, "B S G V"],
    mask: AttentionMask,
    *,
    scale: float,
    slopes: Float[Any, " H"] | None = None,
    sinks: Float[Array, " H"] | None = None,
) -> Float[Array, "B T H V"]:
    """Compute attention with all scores in memory at once, in float32."""
    batch, queries, heads, _ = query.shape
    keys, groups = key.shape[1], key.shape[2]
    by_group = (groups, heads // groups, 1, 1)
    grouped = query.reshape(batch, queries, groups, heads // groups, -1)
    scores = jnp.einsum("btgrk,bsgk->bgrts", grouped, key, preferred_element_type=jnp.float32) * scale
    if slopes is not None:
        distance = mask.distance(queries, keys).astype(jnp.float32)
        scores = scores - jnp.asarray(slopes, jnp.float32).reshape(by_group) * distance
    scores = jnp.where(mask.dense(queries, keys)[:, None, None], scores, jnp.finfo(jnp.float32).min)
    if sinks is not None:
        sink = jnp.broadcast_to(sinks.astype(jnp.float32).reshape(by_group), (*scores.shape[:-1], 1))
        scores = jnp.concatenate([scores, sink], axis=-1)
    weights = jax.nn.softmax(scores, axis=-1)[..., :keys].astype(value.dtype)
    mixed = jnp.einsum("bgrts,bsgv->btgrv", weights, value, preferred_element_type=jnp.float32)
    return mixed.astype(value.dtype).reshape(batch, queries, heads, -1)


def on_head_shards(
    local: Callable[..., Array],
    query: Float[Array, "B T H K"],
    key: Float[Array, "B T G K"],
    value: Float[Array, "B T G V"],
    segments: Int[Array, "B T"] | None,
    sinks: Float[Array, " H"] | None,
) -> Float[Array, "B T H V"]:
    """Apply ``local(query, key, value, segments, sinks)`` on each device's rows and heads, without communication."""
    if not on_many_devices():
        return local(query, key, value, segments, sinks)
    tensor = jax.sharding.get_abstract_mesh().shape["tensor"]
    # Split heads only if every device gets the keys of its own queries.
    heads = "tensor" if tensor > 1 and query.shape[2] % tensor == key.shape[2] % tensor == 0 else None
    rows = P(TOKEN_AXES, None, heads, None)
    return jax.shard_map(local, in_specs=(rows, rows, rows, P(TOKEN_AXES), P(heads)), out_specs=rows, check_vma=False)(
        query, key, value, segments, sinks
    )


def check_attention(architecture: Architecture, backend: str, compute_dtype: str) -> None:
    """Raise ``UserError`` if a backend cannot compute an architecture's attention."""
    a = architecture
    alibi = {"positions = 'alibi'": a.positions == "alibi"}
    widths = (a.head_dim + a.rope_head_dim if a.kv_latent_dim else a.head_dim, a.value_width)
    beyond = {
        "numba": {f"compute_dtype = {compute_dtype!r}": compute_dtype != "float32"},
        "splash": alibi,
        "cudnn": {
            # The kernel supports only 16-bit types. Its supported sizes also depend on the GPU.
            f"compute_dtype = {compute_dtype!r} (it computes in 'bfloat16')": compute_dtype != "bfloat16",
            "attention_sinks": a.attention_sinks,
            **alibi,
            f"latent attention with query width {widths[0]} and value width {widths[1]} per head": (
                widths[0] != widths[1] and widths != CUDNN_LATENT
            ),
        },
    }.get(backend, {})
    if any(beyond.values()):
        names = ", ".join(name for name, has in beyond.items() if has)
        raise UserError(
            f"runtime.attention {backend!r} does not support {names}; choose another of {', '.join(BACKENDS)}."
        )
    if backend == "numba" and not cpu.available():
        raise UserError(
            "runtime.attention 'numba' needs the package numba, which is not installed or does not work here. "
            f"Run {install_command('cpu')}, or choose 'auto'."
        )
