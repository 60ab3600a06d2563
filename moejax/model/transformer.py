"""The decoder-only transformer, and the pure functions that build, count and run it.

Layers of one kind that follow each other are one stack: their parameters share a leading ``layers`` axis.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from moejax.architecture import Architecture
from moejax.model.attention import Attention
from moejax.model.feed_forward import FeedForward
from moejax.model.mixture import Mixture
from moejax.model.norm import rms_norm
from moejax.model.parameter import logical_axes, parameter
from moejax.model.runtime import COMPUTE_DTYPES, REMAT_POLICIES, Runtime
from moejax.model.sharding import constrain
from moejax.routing.sums import RoutingSums

Params = dict[str, Any]
"""Nested dict of float32 arrays."""

ACTIVATION = ("batch", None, None)

NOT_BUILT = (
    "kv_latent_dim",
    "query_latent_dim",
    "rope_head_dim",
    "value_head_dim",
    "shared_expert_gate",
    "attention_output_bias",
    "attention_sinks",
    "router_bias",
    "expert_bias",
)
"""Fields of an Architecture that the catalogue and the accounting know and this model does not."""


class Output(NamedTuple):
    """What one forward pass returns."""

    logits: Float[Array, "batch length vocab"]
    routing: RoutingSums | None
    """What the routers did, stacked over mixture layers; None for a dense model."""


class Layers(nnx.Module):
    """A stack of layers of one kind: attention, then a feed-forward that is dense or a mixture of experts."""

    def __init__(self, architecture: Architecture, feed_forward: FeedForward | Mixture, layers: int, *, rngs: nnx.Rngs):
        stack = {"layers": layers, "embed": architecture.model_dim}
        self.attention_norm = parameter(rngs, stack)
        self.attention = Attention(architecture, layers, rngs=rngs)
        self.feed_forward_norm = parameter(rngs, stack)
        self.feed_forward = feed_forward

    def __call__(
        self,
        x: Float[Array, "batch length dim"],
        positions: Int[Array, "batch length"],
        bias: Float[Array, " experts"] | None,
        real: Bool[Array, " batch"] | None,
        architecture: Architecture,
        runtime: Runtime,
    ) -> tuple[Float[Array, "batch length dim"], RoutingSums | None]:
        """One layer, its parameters already taken from the stack: its output, and what its router did."""
        normed = rms_norm(x, self.attention_norm[...], architecture.norm_epsilon)
        x = x + self.attention(normed, positions, architecture, runtime)
        normed = rms_norm(x, self.feed_forward_norm[...], architecture.norm_epsilon)
        y, sums = self.feed_forward(normed, bias, real, architecture, runtime)
        return constrain(x + y, ACTIVATION), sums


class Transformer(nnx.Module):
    """Parameters of a whole model: embedding, dense layers, mixture layers, final norm, unembedding."""

    def __init__(self, architecture: Architecture, *, rngs: nnx.Rngs):
        a = architecture
        self.embedding = parameter(rngs, {"vocab": a.vocab_size, "embed": a.model_dim}, fan_in=a.model_dim)
        dense = a.num_dense_layers if a.is_moe else a.num_layers
        if dense:
            self.dense_layers = Layers(a, FeedForward(a, dense, a.dense_hidden, rngs=rngs), dense, rngs=rngs)
        if a.is_moe:
            moe = a.num_moe_layers
            self.mixture_layers = Layers(a, Mixture(a, moe, rngs=rngs), moe, rngs=rngs)
        self.final_norm = parameter(rngs, {"embed": a.model_dim})
        if not a.tied_embeddings:
            self.unembedding = parameter(rngs, {"embed": a.model_dim, "vocab": a.vocab_size}, fan_in=a.model_dim)


def init(architecture: Architecture, key: Key[Array, ""]) -> Params:
    """Fresh parameters: a pure function of architecture and key."""
    return nnx.to_pure_dict(nnx.split(Transformer(architecture, rngs=nnx.Rngs(key)))[1])


def forward(
    architecture: Architecture,
    runtime: Runtime,
    params: Params,
    tokens: Int[Array, "batch length"],
    router_bias: Float[Array, "layers experts"] | None = None,
    real: Bool[Array, " batch"] | None = None,
) -> Output:
    """Next-token logits at every position, in float32; sequences not ``real`` are left out of the routing sums."""
    model: Transformer = nnx.merge(_structure(architecture)[0], params)
    dtype = COMPUTE_DTYPES[runtime.compute_dtype]
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    x = constrain(model.embedding[...].astype(dtype)[tokens], ACTIVATION)
    routing = None
    if architecture.num_dense_layers or not architecture.is_moe:
        x, _ = _run(model.dense_layers, x, positions, None, real, architecture, runtime)
    if architecture.is_moe:
        x, routing = _run(model.mixture_layers, x, positions, router_bias, real, architecture, runtime)
    x = rms_norm(x, model.final_norm[...], architecture.norm_epsilon)
    if architecture.tied_embeddings:
        logits = jnp.einsum("btd,vd->btv", x, model.embedding[...].astype(dtype), preferred_element_type=jnp.float32)
    else:
        logits = jnp.einsum("btd,dv->btv", x, model.unembedding[...].astype(dtype), preferred_element_type=jnp.float32)
    return Output(logits, routing)


def abstract_params(architecture: Architecture) -> Params:
    """Shapes and types of the parameters, without making any."""
    return nnx.to_pure_dict(_structure(architecture)[1])


def param_axes(architecture: Architecture) -> Any:
    """Logical axis names of every parameter."""
    return logical_axes(_structure(architecture)[1])


def matrices(architecture: Architecture) -> Any:
    """Which parameters are matrices from or to the residual stream, rather than norms and biases."""
    is_matrix = lambda axes: "embed" in axes and len(set(axes) - {"layers"}) > 1  # noqa: E731
    return jax.tree.map(is_matrix, param_axes(architecture), is_leaf=lambda leaf: isinstance(leaf, tuple))


class Counts(NamedTuple):
    """Parameters of a built model."""

    total: int
    active: int
    embedding: int


def count(architecture: Architecture) -> Counts:
    """Parameters counted on the built model's own arrays: a token meets top_k of every num_experts experts."""
    total, active, embedding = 0, 0, 0
    sizes = jax.tree.map(lambda p: math.prod(p.shape), abstract_params(architecture))
    axes = jax.tree.leaves(param_axes(architecture), is_leaf=lambda leaf: isinstance(leaf, tuple))
    for size, names in zip(jax.tree.leaves(sizes), axes, strict=True):
        total += size
        active += size * architecture.top_k // architecture.num_experts if "expert" in names else size
        embedding += size if "vocab" in names else 0
    return Counts(total, active, embedding)


@functools.lru_cache(maxsize=64)
def _structure(architecture: Architecture) -> tuple[Any, Any]:
    architecture.check()
    if missing := [name for name in NOT_BUILT if getattr(architecture, name)]:
        raise ValueError(
            f"The model cannot build {', '.join(missing)} (laws and counts can use it); leave it at its default."
        )
    return nnx.split(nnx.eval_shape(lambda: Transformer(architecture, rngs=nnx.Rngs(0))))


def _run(layers: Layers, x, positions, bias, real, architecture: Architecture, runtime: Runtime):
    """Apply a stack of layers one after another; per-layer results come back stacked."""
    structure, stacked = nnx.split(layers)

    def one(x, per_layer):
        params, bias = per_layer
        return nnx.merge(structure, params)(x, positions, bias, real, architecture, runtime)

    policy = REMAT_POLICIES[runtime.remat]
    # Under scan nothing is shared between iterations, so that common subexpressions cannot undo the recomputation.
    one = one if policy is None else jax.checkpoint(one, policy=policy, prevent_cse=not runtime.scan_layers)
    depth = jax.tree.leaves(stacked)[0].shape[0]
    return jax.lax.scan(one, x, (stacked, bias), unroll=1 if runtime.scan_layers else depth)
