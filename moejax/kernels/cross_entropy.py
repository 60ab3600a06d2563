"""Compute the cross-entropy of next tokens without storing the logits of many tokens at once.

Tokens are processed in chunks. If gradients are needed, a chunk's gradient is computed while its logits are in memory,
so nothing is computed twice. Wijmans et al. (2024) and Liger Kernel (Hsu et al., 2024) do the same on GPUs.

Shapes: B sequences, T length, N tokens on one device, D model_dim, V vocabulary, C tokens per chunk.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import PartitionSpec as P
from jaxtyping import Bool, Float, Int

from moejax.kernels.platform import platform
from moejax.kernels.table import select
from moejax.sharding import TOKEN_AXES, constrain, token_shards

LOGITS_AT_ONCE = {"cpu": 2**23}
"""Maximum number of logits per chunk on one device, keyed by platform. On a CPU they take 32 MiB."""
OTHER_LOGITS_AT_ONCE = 2**27
"""Limit on other platforms, 512 MiB. Each chunk reads and writes the whole unembedding's gradient. On an accelerator
this takes longer than the matmuls unless a chunk has several hundred tokens."""

F32 = jnp.float32
Arrays = tuple[Array, ...]


def token_loss(
    hidden: Float[Array, "B T D"], unembedding: Float[Array, "D V"], targets: Int[Array, "B T"]
) -> Float[Array, "B T"]:
    """Return the cross-entropy of each target, in nats."""
    return _in_chunks(_loss, P(TOKEN_AXES), hidden, unembedding, targets)


def token_loss_and_correct(
    hidden: Float[Array, "B T D"], unembedding: Float[Array, "D V"], targets: Int[Array, "B T"]
) -> tuple[Float[Array, "B T"], Bool[Array, "B T"]]:
    """Return the cross-entropy of each target, in nats, and whether the target is the most likely token."""

    def both(logits: Array, targets: Array) -> tuple[Array, Array]:
        return _loss(logits, targets), jnp.argmax(logits, axis=1) == targets

    return _in_chunks(both, (P(TOKEN_AXES), P(TOKEN_AXES)), hidden, unembedding, targets)


def _in_chunks(read: Callable[..., Any], specs: Any, hidden: Array, unembedding: Array, targets: Array) -> Any:
    """Apply ``read(logits, targets)``, which returns arrays with one number per target, to chunks."""

    def local(matrix: Array, hidden: Array, targets: Array) -> Any:
        parts = _chunks(matrix.shape[1], hidden.reshape(-1, hidden.shape[2]), targets.reshape(-1))
        values = lax.map(jax.checkpoint(lambda part: read(_logits(part[0], matrix), part[1])), parts)
        return jax.tree.map(lambda x: x.reshape(-1)[: targets.size].reshape(targets.shape), values)

    return _on_each_device(local, specs)(_in_type_of(hidden, unembedding), hidden, targets)


def weighted_loss(
    hidden: Float[Array, "B T D"],
    unembedding: Float[Array, "D V"],
    targets: Int[Array, "B T"],
    weights: Float[Array, "B T"],
) -> Float[Array, ""]:
    """Return ``(weights * token_loss(...)).sum()``, computed together with its gradient in one pass."""
    return weighted_losses((hidden,), unembedding, (targets,), (weights,), (1.0,))[0]


def weighted_losses(
    hidden: tuple[Float[Array, "B T D"], ...],
    unembedding: Float[Array, "D V"],
    targets: tuple[Int[Array, "B T"], ...],
    weights: tuple[Float[Array, "B T"], ...],
    shares: tuple[Any, ...],
) -> tuple[Float[Array, ""], tuple[Float[Array, ""], ...]]:
    """Return the sum of several weighted losses times ``shares``, and each weighted loss. Only the sum has a gradient.
    All losses use the same matrix.

    All tokens of a device are chunked together, so the device stores and sends only one gradient of the matrix.
    """
    total, sums = _weighted_losses(hidden, unembedding, targets, weights, shares)
    return total, jax.tree.map(lax.stop_gradient, sums)


@jax.custom_vjp
def _weighted_losses(
    hidden: Arrays, matrix: Array, targets: Arrays, weights: Arrays, shares: tuple[Any, ...]
) -> tuple[Array, Arrays]:
    losses = [token_loss(h, matrix, aims) for h, aims in zip(hidden, targets, strict=True)]
    sums = tuple((w * loss).sum() for w, loss in zip(weights, losses, strict=True))
    return _total(sums, shares), sums


def _total(sums: tuple[Array, ...], shares: tuple[Any, ...]) -> Array:
    return functools.reduce(jnp.add, (share * one for share, one in zip(shares, sums, strict=True)))


def _losses_and_gradients(
    hidden: Arrays, matrix: Array, targets: Arrays, weights: Arrays, shares: tuple[Any, ...]
) -> tuple[tuple[Array, Arrays], Any]:
    def local(
        matrix: Array, hidden: Arrays, targets: Arrays, weights: Arrays, shared: Arrays
    ) -> tuple[Arrays, Arrays, Array, Arrays]:
        # Concatenate predictions, so that there is only one float32 gradient of the matrix.
        joined = functools.partial(jnp.concatenate, axis=0)
        flat = joined([h.reshape(-1, h.shape[2]) for h in hidden]), matrix
        flat += joined([aims.reshape(-1) for aims in targets]), joined([w.reshape(-1) for w in shared])
        loss, dhidden, dmatrix = select("cross_entropy", *flat)(*flat)
        losses = tuple(one.reshape(w.shape) for one, w in zip(jnp.split(loss, len(weights)), weights, strict=True))
        sums = tuple(_sum((one * w).sum()) for one, w in zip(losses, weights, strict=True))
        dhidden = tuple(one.reshape(h.shape) for one, h in zip(jnp.split(dhidden, len(hidden)), hidden, strict=True))
        return sums, dhidden, _sum_of_rows(dmatrix), losses

    shared = tuple(share * w for share, w in zip(shares, weights, strict=True))
    specs = (P(), P(TOKEN_AXES), P(_rows_axis(matrix)), P(TOKEN_AXES))
    on_devices = _on_each_device(local, specs)
    sums, dhidden, dmatrix, losses = on_devices(_in_type_of(hidden[0], matrix), hidden, targets, weights, shared)
    return (_total(sums, shares), sums), (dhidden, dmatrix.astype(matrix.dtype), losses, sums, shares)


def reference(
    hidden: Float[Array, "N D"], matrix: Float[Array, "D V"], targets: Int[Array, " N"], weights: Float[Array, " N"]
) -> tuple[Float[Array, " N"], Float[Array, "N D"], Float[Array, "D V"]]:
    """Return the loss of each target, and the gradients of the weighted sum of losses, computed chunk by chunk."""

    def one(dmatrix: Array, part: tuple[Array, ...]) -> tuple[Array, tuple[Array, Array]]:
        hidden, targets, weights = part
        logits = _logits(hidden, matrix)
        # The gradient of a loss with respect to its logits is softmax minus one-hot target.
        probability = jax.nn.softmax(logits, axis=1) - jax.nn.one_hot(targets, logits.shape[1], dtype=F32)
        dlogits = (weights[:, None] * probability).astype(hidden.dtype)
        dhidden = jnp.dot(dlogits, matrix.T, preferred_element_type=F32).astype(hidden.dtype)
        dmatrix = dmatrix + jnp.dot(hidden.T, dlogits, preferred_element_type=F32)
        return dmatrix, (dhidden, _loss(logits, targets))

    parts, tokens = _chunks(matrix.shape[1], hidden, targets, weights), hidden.shape[0]
    dmatrix, (dhidden, loss) = lax.scan(one, jnp.zeros(matrix.shape, F32), parts)
    return loss.reshape(-1)[:tokens], dhidden.reshape(-1, hidden.shape[1])[:tokens], dmatrix


def _scale(saved: tuple[Any, Array, Any, Any, Any], given: tuple[Array, Any]) -> tuple[Any, Array, None, Any, Any]:
    (dhidden, dmatrix, losses, sums, shares), (dtotal, _) = saved, given
    dweights = tuple(dtotal * share * loss for share, loss in zip(shares, losses, strict=True))
    dhidden = jax.tree.map(lambda one: dtotal.astype(one.dtype) * one, dhidden)
    dshares = tuple(jnp.asarray(dtotal * one, jnp.result_type(share)) for share, one in zip(shares, sums, strict=True))
    return dhidden, dtotal.astype(dmatrix.dtype) * dmatrix, None, dweights, dshares


_weighted_losses.defvjp(_losses_and_gradients, _scale)


def _logits(hidden: Float[Array, "C D"], matrix: Float[Array, "D V"]) -> Float[Array, "C V"]:
    return jnp.dot(hidden, matrix, preferred_element_type=F32)


def _loss(logits: Float[Array, "C V"], targets: Int[Array, " C"]) -> Float[Array, " C"]:
    return jax.nn.logsumexp(logits, axis=1) - jnp.take_along_axis(logits, targets[:, None], axis=1)[:, 0]


def _chunks(vocab: int, *arrays: Array) -> tuple[Array, ...]:
    """Split token arrays [N, ...] into [chunks, C, ...], padded with zeros."""
    tokens = arrays[0].shape[0]
    most = LOGITS_AT_ONCE.get(platform(), OTHER_LOGITS_AT_ONCE)
    chunks = -(-tokens // max(1, most // vocab))
    size = -(-tokens // chunks)

    def cut(x: Array) -> Array:
        padded = jnp.pad(x, [(0, chunks * size - tokens)] + [(0, 0)] * (x.ndim - 1))
        return padded.reshape(chunks, size, *x.shape[1:])

    return tuple(cut(x) for x in arrays)


def _in_type_of(hidden: Float[Array, "B T D"], matrix: Float[Array, "D V"]) -> Float[Array, "D V"]:
    """Return the matrix in the hidden states' type, with unchanged sharding, so that devices gather it in this type."""
    return constrain(matrix.astype(hidden.dtype), ("embed", "vocab"))


def _on_each_device(local: Callable[..., Any], out_specs: Any) -> Callable[..., Any]:
    """Wrap ``local(matrix, *token_arrays)`` to run on each device's tokens; the matrix stays sharded along other
    axes."""
    if token_shards() == 1:
        return local

    def spread(matrix: Array, *arrays: Any) -> Any:
        specs = (P(), *(P(TOKEN_AXES) for _ in arrays))
        return jax.shard_map(local, in_specs=specs, out_specs=out_specs, axis_names=set(TOKEN_AXES), check_vma=False)(
            matrix, *arrays
        )

    return spread


def _sum(x: Array) -> Array:
    return x if token_shards() == 1 else lax.psum(x, TOKEN_AXES)


def _rows_axis(matrix: Float[Array, "D V"]) -> str | None:
    """Return the mesh axis that shards the rows of the matrix's gradient, if any."""
    if token_shards() == 1:
        return None
    sizes = jax.sharding.get_abstract_mesh().shape
    # If the vocabulary is also split, XLA would gather it before scattering rows.
    return "fsdp" if sizes["tensor"] == 1 and matrix.shape[0] % sizes["fsdp"] == 0 else None


def _sum_of_rows(dmatrix: Float[Array, "D V"]) -> Float[Array, "rows V"]:
    """Return this device's rows of ``_sum``."""
    axis = _rows_axis(dmatrix)
    if axis is None:
        return _sum(dmatrix)
    # Scatter along a new leading axis: for an existing axis, XLA's TPU compiler may all-reduce the whole array.
    parts = dmatrix.reshape(jax.sharding.get_abstract_mesh().shape[axis], -1, dmatrix.shape[1])
    return lax.psum(lax.psum_scatter(parts, axis), tuple(other for other in TOKEN_AXES if other != axis))
