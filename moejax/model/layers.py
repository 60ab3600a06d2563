"""Apply a transformer's layers, which are stacked by kind, in the model's order, with a loop over repeated layers.

All dense layers form one stack and all MoE layers another; parameters of a stack have a leading ``layers`` axis. The
architecture's ``has_experts`` and ``has_window`` define the order of the layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Key

from moejax.architecture import Architecture
from moejax.kernels.attention import AttentionMask
from moejax.kernels.rms_norm import rms_norm
from moejax.model.attention import Attention, KeyValue
from moejax.model.feed_forward import FeedForward, MoE
from moejax.model.latent_attention import LatentAttention, Latents
from moejax.model.parameter import ParamFactory
from moejax.model.runtime import Runtime, remat_policy
from moejax.pytree import pytree
from moejax.routing.sums import RoutingSums
from moejax.sharding import constrain

ACTIVATION = ("batch", None, None)


class LayerInputs(NamedTuple):
    """Inputs of a layer in addition to its parameters. For a stack of layers, every array has a leading axis."""

    expert_bias: Float[Array, "*layers E"] | None = None
    """Expert bias of MoE layers; None without expert bias."""
    key: Key[Array, "*layers"] | None = None
    """Key for router noise during training."""
    cache: KeyValue | Latents | None = None
    """Keys and values of earlier tokens, with space for the current tokens; None to attend only to the current
    tokens."""


class LayerOutputs(NamedTuple):
    """Outputs of a layer in addition to its activations. For a stack of layers, every array has a leading axis."""

    routing: RoutingSums | None
    cache: KeyValue | Latents | None


@pytree
@dataclass(frozen=True, kw_only=True)
class ForwardContext:
    """Values that all layers share in one forward pass."""

    mask: AttentionMask
    padding_mask: Any = None
    """Bool[B, T]: False for padding; None without padding."""
    architecture: Architecture = field(metadata={"static": True})
    runtime: Runtime = field(metadata={"static": True})


class Layer(nnx.Module):
    """``layers`` stacked layers of one kind: attention, then a dense or mixture-of-experts feed-forward."""

    def __init__(self, architecture: Architecture, layers: int, params: ParamFactory, *, experts: bool):
        a, stack = architecture, {"layers": layers, "embed": architecture.model_dim}
        self.attention_norm = params.ones(stack)
        self.attention = (LatentAttention if a.kv_latent_dim else Attention)(a, layers, params)
        self.feed_forward_norm = params.ones(stack)
        self.feed_forward = MoE(a, layers, params) if experts else FeedForward(a, layers, a.dense_hidden, params)

    def __call__(
        self, x: Float[Array, "B T D"], inputs: LayerInputs, context: ForwardContext, *, window: int
    ) -> tuple[Float[Array, "B T D"], LayerOutputs]:
        """Apply one layer; the module's parameters are already sliced from the stack."""
        a, mask = context.architecture, replace(context.mask, window=window)
        normed = rms_norm(x, self.attention_norm[...], a.norm_epsilon)
        kv: Any = self.attention.project_kv(normed, mask.start, a, context.runtime)
        if inputs.cache is not None:
            kv = jax.tree.map(
                lambda old, new: jax.lax.dynamic_update_slice_in_dim(old, new.astype(old.dtype), mask.start, 1),
                inputs.cache,
                kv,
            )
        x = x + self.attention(normed, kv, mask, a, context.runtime)
        normed = rms_norm(x, self.feed_forward_norm[...], a.norm_epsilon)
        sums = None
        if isinstance(self.feed_forward, MoE):
            y, sums = self.feed_forward(
                normed, inputs.expert_bias, inputs.key, context.padding_mask, a, context.runtime
            )
        else:
            y = self.feed_forward(normed, context.runtime)
        return constrain(x + y, ACTIVATION), LayerOutputs(sums, None if inputs.cache is None else kv)


class Block(NamedTuple):
    """A ``unit`` of layer kinds that is repeated ``repeats`` times."""

    unit: tuple[Any, ...]
    repeats: int


def blocks(kinds: Sequence[Any], longest: int = 8) -> list[Block]:
    """Split a sequence of layers greedily into repeated units of at most ``longest`` layers."""
    stages, at = [], 0
    while at < len(kinds):
        best = Block(tuple(kinds[at : at + 1]), 1)
        for size in range(1, min(longest, len(kinds) - at) + 1):
            unit, repeats = tuple(kinds[at : at + size]), 1
            while tuple(kinds[at + repeats * size : at + (repeats + 1) * size]) == unit:
                repeats += 1
            if repeats > 1 and repeats * size > len(best.unit) * best.repeats:
                best = Block(unit, repeats)
        stages.append(best)
        at += len(best.unit) * best.repeats
    return stages


def run_layers(
    stacks: dict[bool, Layer], x: Float[Array, "B T D"], inputs: dict[bool, LayerInputs], context: ForwardContext
) -> tuple[Float[Array, "B T D"], dict[bool, LayerOutputs]]:
    """Apply all layers in order. Keys of ``stacks``, ``inputs`` and outputs are True for MoE layers, False for dense
    layers."""
    a, runtime = context.architecture, context.runtime
    kinds = list(zip(a.has_experts, a.has_window, strict=True))
    structure = {experts: nnx.split(stack)[0] for experts, stack in stacks.items()}
    rows = {experts: (nnx.split(stack)[1], inputs[experts]) for experts, stack in stacks.items()}

    # Close over values shared by all layers. As arguments of jax.checkpoint they would be traced, but tiled attention
    # must know statically that its queries start at 0.
    def one(x: Array, row: Any, kind: tuple[bool, bool]) -> tuple[Array, LayerOutputs]:
        params, extra = row
        layer = nnx.merge(structure[kind[0]], params)
        return layer(x, extra, context, window=a.sliding_window if kind[1] else 0)

    one = rematerialized(one, runtime, scanned=runtime.scan_layers)

    def unit_of(kinds: Sequence[tuple[bool, bool]], x: Array, rows: dict[bool, Any]) -> tuple[Array, dict[bool, Any]]:
        waiting = {experts: iter(unstacked(rows[experts])) for experts in rows}
        left: dict[bool, list[LayerOutputs]] = {experts: [] for experts in rows}
        for kind in kinds:
            x, result = one(x, next(waiting[kind[0]]), kind)
            left[kind[0]].append(result)
        return x, {experts: stacked(results) for experts, results in left.items() if results}

    if not runtime.scan_layers:
        return unit_of(kinds, x, rows)
    left: dict[bool, list[Any]] = {experts: [] for experts in stacks}
    for unit, repeats in blocks(kinds):
        here, rows = _first(rows, {experts: repeats * [k[0] for k in unit].count(experts) for experts in rows})
        here = jax.tree.map(lambda leaf, n=repeats: leaf.reshape(n, -1, *leaf.shape[1:]), here)
        x, results = jax.lax.scan(lambda x, rows, unit=unit: unit_of(unit, x, rows), x, here)
        for experts, result in results.items():
            left[experts].append(jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), result))
    return x, {experts: jax.tree.map(lambda *parts: jnp.concatenate(parts), *parts) for experts, parts in left.items()}


def rematerialized(layer: Callable[..., Any], runtime: Runtime, *, scanned: bool) -> Callable[..., Any]:
    """Wrap ``layer(x, row, kind)`` in ``jax.checkpoint`` with the remat policy; ``kind`` is static. Pass
    ``scanned=True`` inside ``jax.lax.scan``."""
    policy = remat_policy(runtime.remat)
    if policy is None:
        return layer
    # Scan iterations share nothing, so common-subexpression elimination cannot undo the recomputation.
    return jax.checkpoint(layer, policy=policy, prevent_cse=not scanned, static_argnums=2)


def unstacked(rows: Any) -> list[Any]:
    """Split a stack into one pytree per layer. Unlike indexing, a split joins the gradients of all layers at once."""
    leaves, structure = jax.tree.flatten(rows)
    depth = leaves[0].shape[0]
    parts = [jax.lax.split(leaf, [1] * depth) for leaf in leaves]
    return [structure.unflatten([part[i].squeeze(0) for part in parts]) for i in range(depth)]


def stacked(results: list[Any]) -> Any:
    """Stack the pytrees of layers, the inverse of ``unstacked``."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *results)


def _first(rows: dict[bool, Any], counts: dict[bool, int]) -> tuple[dict[bool, Any], dict[bool, Any]]:
    here = {e: jax.tree.map(lambda leaf, n=counts[e]: leaf[:n], rows[e]) for e in rows if counts[e]}
    rest = {e: jax.tree.map(lambda leaf, n=counts[e]: leaf[n:], rows[e]) for e in rows}
    return here, rest
