"""Define the decoder-only transformer and the pure functions that build, count and run it."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from moejax.architecture import Architecture
from moejax.config import unknown
from moejax.errors import UserError
from moejax.kernels.attention import AttentionMask, check_attention
from moejax.kernels.rms_norm import rms_norm
from moejax.model.cache import KVCache
from moejax.model.embedding import look_up
from moejax.model.feed_forward import router_arguments
from moejax.model.layers import ACTIVATION, ForwardContext, Layer, LayerInputs, run_layers
from moejax.model.mtp import MTPLayers, run_mtp_layers
from moejax.model.parameter import Initialisation, ParamFactory, init_params, metadata
from moejax.model.positions import POSITIONS, check_scaling
from moejax.model.runtime import COMPUTE_DTYPES, Runtime
from moejax.routing import ACTIVATIONS, ROUTERS, is_causal, unknown_options
from moejax.routing.sums import RoutingSums
from moejax.sharding import constrain

Params = dict[str, Any]
"""Nested dict of float32 arrays."""

MTP_LAYERS = "mtp_layers"
"""Key of the multi-token prediction parameters in ``Params``."""


class Transformer(nnx.Module):
    """Parameters of a whole model: embedding, dense layers, MoE layers, final norm, unembedding, and multi-token
    prediction modules."""

    def __init__(self, architecture: Architecture, initialisation: Initialisation):
        a, params = architecture, ParamFactory(initialisation, architecture.num_layers)
        mixtures = sum(a.has_experts)
        self.embedding = params.matrix({"vocab": a.vocab_size, "embed": a.model_dim}, a.model_dim)
        if mixtures < a.num_layers:
            self.dense_layers = Layer(a, a.num_layers - mixtures, params, experts=False)
        if mixtures:
            self.moe_layers = Layer(a, mixtures, params, experts=True)
        self.final_norm = params.ones({"embed": a.model_dim})
        if not a.tied_embeddings:
            self.unembedding = params.matrix({"embed": a.model_dim, "vocab": a.vocab_size}, a.model_dim)
        if a.num_mtp_layers:
            self.mtp_layers = MTPLayers(a, params)


class Output(NamedTuple):
    """Outputs of one forward pass."""

    hidden: Float[Array, "batch length dim"]
    """Normalized output of the last layer, the input of ``unembed``."""
    routing: RoutingSums | None
    """Routing sums stacked over MoE layers, followed by applied multi-token prediction modules; None for a dense
    model."""
    cache: KVCache | None
    """The cache including these tokens; None if no cache was given."""
    mtp_hidden: tuple[Float[Array, "batch length dim"], ...] = ()
    """Inputs of ``unembed`` for later tokens, one for each applied multi-token prediction module."""


def init(architecture: Architecture, key: Key[Array, ""], initialisation: Initialisation | None = None) -> Params:
    """Return initial parameters, as a pure function of the arguments. Multi-token prediction modules change the other
    parameters only by rounding."""
    initialisation = initialisation or Initialisation()
    main = _structure(architecture.without_mtp, initialisation)[1]
    params = init_params(main, key)
    if architecture.num_mtp_layers:
        modules = _structure(architecture, initialisation)[1][MTP_LAYERS]
        params[MTP_LAYERS] = init_params(modules, jax.random.fold_in(key, 1))
    return params


def apply(
    architecture: Architecture,
    runtime: Runtime,
    params: Params,
    tokens: Int[Array, "batch length"],
    *,
    segments: Int[Array, "batch length"] | None = None,
    padding_mask: Bool[Array, "batch length"] | None = None,
    expert_bias: Float[Array, "routed_layers experts"] | None = None,
    key: Key[Array, ""] | None = None,
    cache: KVCache | None = None,
    mtp: bool = False,
) -> Output:
    """Return the hidden state of every token.

    ``segments`` numbers the documents of a row, and attention stays within a document. ``padding_mask`` is False for
    padding, which is not routed and not part of routing sums. ``expert_bias`` shifts the choice of experts. ``key``
    seeds router noise during training. With a ``cache``, the tokens follow the cached tokens. ``mtp=True``, for
    training, also applies the multi-token prediction modules.
    """
    a = architecture
    model: Transformer = nnx.merge(_structure(a)[0], params)
    embedded = constrain(look_up(model.embedding[...], tokens, COMPUTE_DTYPES[runtime.compute_dtype]), ACTIVATION)
    if cache is None:
        mask = AttentionMask(query_segments=segments, key_segments=segments)
    else:
        cache = cache.with_segments(segments, tokens.shape)
        mask = cache.attention_mask(segments)
    mixtures = sum(a.has_experts)
    keys = None if key is None or not mixtures else jax.random.split(key, mixtures)
    stacks, inputs = {}, {}
    if mixtures < a.num_layers:
        stacks[False] = model.dense_layers
        inputs[False] = LayerInputs(cache=None if cache is None else cache.dense)
    if mixtures:
        stacks[True] = model.moe_layers
        bias = None if expert_bias is None else expert_bias[:mixtures]
        inputs[True] = LayerInputs(bias, keys, None if cache is None else cache.moe)
    context = ForwardContext(mask=mask, padding_mask=padding_mask, architecture=a, runtime=runtime)
    x, left = run_layers(stacks, embedded, inputs, context)
    if cache is not None:
        cache = cache.after(tokens.shape[1], *(left[kind].cache if kind in left else None for kind in (False, True)))
    routing = left[True].routing if True in left else None
    hidden = rms_norm(x, model.final_norm[...], a.norm_epsilon)
    if not mtp or not a.num_mtp_layers:
        return Output(hidden, routing, cache)
    keys = None if key is None else jax.random.split(jax.random.fold_in(key, mixtures), a.num_mtp_layers)
    further = LayerInputs(None if expert_bias is None else expert_bias[mixtures:], keys)
    mtp_hidden, sums = run_mtp_layers(model.mtp_layers, hidden, embedded, further, context)
    if routing is not None:
        routing = jax.tree.map(lambda *parts: jnp.concatenate(parts), routing, sums)
    return Output(hidden, routing, cache, mtp_hidden)


def unembedding(architecture: Architecture, params: Params) -> Float[Array, "dim vocab"]:
    """Return the matrix from hidden states to logits."""
    return params["embedding"].T if architecture.tied_embeddings else params["unembedding"]


def unembed(
    architecture: Architecture, params: Params, hidden: Float[Array, "*batch dim"]
) -> Float[Array, "*batch vocab"]:
    """Return next-token logits in float32."""
    return jnp.dot(hidden, unembedding(architecture, params).astype(hidden.dtype), preferred_element_type=jnp.float32)


def forward(
    architecture: Architecture, runtime: Runtime, params: Params, tokens: Int[Array, "batch length"], **options: Any
) -> Float[Array, "batch length vocab"]:
    """Return next-token logits at every position, in float32; ``options`` are passed to ``apply``."""
    return unembed(architecture, params, apply(architecture, runtime, params, tokens, **options).hidden)


def init_expert_bias(architecture: Architecture) -> Float[Array, "routed_layers experts"] | None:
    """Return the initial bias of auxiliary-loss-free balancing; None for an architecture without it."""
    if not architecture.expert_bias:
        return None
    return jnp.zeros((len(architecture.routed_layers), architecture.num_experts), jnp.float32)


def abstract_params(architecture: Architecture) -> Params:
    """Return shapes and types of the parameters without allocating them."""
    return nnx.to_pure_dict(_structure(architecture)[1])


def param_axes(architecture: Architecture) -> Any:
    """Return the logical axis names of every parameter."""
    return metadata(_structure(architecture)[1], "axes")


def param_inputs(architecture: Architecture) -> Any:
    """Return the logical axes that each matrix contracts; empty for an embedding, a norm or a bias."""
    return metadata(_structure(architecture)[1], "inputs")


def matrices(architecture: Architecture) -> Any:
    """Return whether each parameter is a matrix, rather than a norm or a bias."""
    return metadata(_structure(architecture)[1], "is_matrix")


class Counts(NamedTuple):
    """Parameter counts of a built model."""

    total: int
    active: int
    embedding: int


def count(architecture: Architecture) -> Counts:
    """Count the parameters of the built model's arrays, without multi-token prediction modules (see ``count_mtp``).
    Active parameters include ``top_k`` experts of each MoE layer."""
    return _count(architecture, lambda stack: stack != MTP_LAYERS)


def count_mtp(architecture: Architecture) -> Counts:
    """Count the parameters of the multi-token prediction modules, which share the model's embedding and unembedding."""
    return _count(architecture, lambda stack: stack == MTP_LAYERS)


def _count(architecture: Architecture, counted: Callable[[str], bool]) -> Counts:
    total, active, embedding = 0, 0, 0
    sizes = jax.tree.map(lambda p: math.prod(p.shape), abstract_params(architecture))
    axes = param_axes(architecture)
    for stack in filter(counted, sizes):
        named = jax.tree.leaves(axes[stack], is_leaf=lambda leaf: isinstance(leaf, tuple))
        for size, names in zip(jax.tree.leaves(sizes[stack]), named, strict=True):
            total += size
            active += size * architecture.top_k // architecture.num_experts if "expert" in names else size
            embedding += size if "vocab" in names else 0
    return Counts(total, active, embedding)


def is_batch_dependent(architecture: Architecture) -> bool:
    """Return whether a token's output depends on other sequences of its batch. With expert choice or a capacity factor,
    all tokens compete for experts."""
    return architecture.is_moe and (not is_causal(architecture.router) or architecture.capacity_factor is not None)


def check(architecture: Architecture, runtime: Runtime | None = None) -> None:
    """Raise ``UserError`` with value, rule and remedy if the model cannot be built.

    With the ``runtime`` of a training run, also raise if the model cannot be computed or trained with it.
    """
    a = architecture
    a.check()
    for name, value, known in (
        ("router", a.router, ROUTERS),
        ("activation", a.activation, ACTIVATIONS),
        ("positions", a.positions, POSITIONS),
    ):
        if value not in known:
            raise UserError(unknown(f"{name} {value!r}", value, list(known)))
    check_scaling(a.rope_scaling)
    if a.is_moe and (beyond := unknown_options(a.router, _changed(a))):
        rest = "it at its default" if len(beyond) == 1 else "them at their defaults"
        raise UserError(f"Router {a.router!r} has no option {', '.join(beyond)}; leave {rest}.")
    if a.expert_bias and not is_causal(a.router):
        raise UserError(
            f"Router {a.router!r} gives all experts the same load, so it needs no bias; remove expert_bias."
        )
    if a.is_moe:
        # Trace the router, which raises if it does not support the options.
        logits = jax.ShapeDtypeStruct((2, a.num_experts), jnp.float32)
        jax.eval_shape(functools.partial(ROUTERS[a.router], top_k=a.top_k, **router_arguments(a)), logits)
    if runtime is not None:
        if a.fault_in_training:
            raise UserError(a.fault_in_training)
        runtime.check()
        check_attention(a, runtime.attention, runtime.compute_dtype)


def _changed(a: Architecture) -> dict[str, Any]:
    default = Architecture(vocab_size=1, model_dim=1, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=1)
    return {name: value for name, value in vars(a).items() if value != getattr(default, name)}


@functools.lru_cache(maxsize=64)
def _structure(architecture: Architecture, initialisation: Initialisation | None = None) -> tuple[Any, Any]:
    check(architecture)
    return nnx.split(nnx.eval_shape(lambda: Transformer(architecture, initialisation or Initialisation())))
