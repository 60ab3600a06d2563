"""Small architectures that between them use everything a model can be made of."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from moejax.architecture import Architecture, RopeScaling
from moejax.model import transformer
from moejax.model.runtime import Runtime

MIXTURE = Architecture(
    vocab_size=64,
    model_dim=16,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    num_dense_layers=1,
    dense_hidden=32,
    num_experts=4,
    top_k=2,
    expert_hidden=8,
    num_shared_experts=1,
    qk_norm=True,
)
DENSE = MIXTURE.replace(num_experts=0, top_k=0, num_shared_experts=0, num_dense_layers=0, expert_hidden=0)
EVERY_LAYER = MIXTURE.replace(num_dense_layers=0)

KNOWN = {
    "mixture": MIXTURE,
    "dense": DENSE,
    "qwen2_moe": EVERY_LAYER.replace(attention_bias=True, qk_norm=False, shared_expert_gate=True, shared_hidden=12),
    "olmoe": EVERY_LAYER.replace(qk_norm_all_heads=True, norm_topk_prob=False, num_shared_experts=0),
    "interleaved": MIXTURE.replace(num_layers=7, layer_pattern="DE", num_last_dense_layers=1, tied_embeddings=False),
    "latent": MIXTURE.replace(
        num_layers=4,
        num_kv_heads=4,
        qk_norm=False,
        query_latent_dim=12,
        kv_latent_dim=6,
        rope_head_dim=4,
        value_head_dim=5,
        router="group_limited",
        num_groups=4,
        top_k_groups=2,
        routed_scaling_factor=2.5,
        expert_bias=True,
        num_mtp_layers=1,
        rope_scaling=RopeScaling(kind="yarn", factor=4.0, original_length=8, mscale=1.0, mscale_all_dim=0.8),
    ),
    "latent_biased": MIXTURE.replace(
        num_kv_heads=4,
        qk_norm=False,
        kv_latent_dim=6,
        rope_head_dim=4,
        attention_bias=True,
        attention_output_bias=True,
        attention_sinks=True,
    ),
    "gpt_oss": EVERY_LAYER.replace(
        num_layers=5,
        num_shared_experts=0,
        qk_norm=False,
        router="topk_softmax",
        router_bias=True,
        expert_mlp_bias=True,
        activation="clamped_swiglu",
        attention_bias=True,
        attention_output_bias=True,
        attention_sinks=True,
        sliding_window=3,
        window_pattern="WF",
        rope_scaling=RopeScaling(kind="yarn", factor=8.0, original_length=8, truncate=False),
    ),
    "alibi": MIXTURE.replace(positions="alibi", num_heads=6, num_kv_heads=3, num_dense_layers=0, num_shared_experts=0),
    "no_positions": DENSE.replace(positions="none", value_head_dim=5, qk_norm=False),
    "half_rotated": DENSE.replace(
        rotary_fraction=0.5,
        sliding_window=4,
        rope_scaling=RopeScaling(kind="llama3", factor=8.0, original_length=16),
    ),
    "capacity": MIXTURE.replace(capacity_factor=1.0, router="switch", top_k=1),
    "noisy": MIXTURE.replace(router="noisy_topk", rope_scaling=RopeScaling(kind="linear", factor=2.0)),
    "expert_choice": MIXTURE.replace(router="expert_choice"),
    "top_p": MIXTURE.replace(router="top_p", threshold=0.6, top_k=3),
    "sigmoid": MIXTURE.replace(router="sigmoid_topk", norm_topk_prob=False, expert_bias=True),
}
"""By the family or the feature that each stands for."""

NOT_CAUSAL = {"expert_choice", "capacity"}
"""Those where a token's output depends on the rest of the batch."""

QUICK = Runtime(scan_layers=True)
"""Layers that repeat are compiled once."""

forward = jax.jit(transformer.forward, static_argnums=(0, 1))


@functools.cache
def params_of(name, seed=0):
    """Parameters of a known architecture, drawn without compiling anything, biases and norms too."""
    draw = np.random.default_rng(seed)
    shapes, axes = transformer.abstract_params(KNOWN[name]), transformer.param_inputs(KNOWN[name])

    def array(shape, names, inputs):
        fan_in = math.prod(size for size, name in zip(shape.shape, names, strict=True) if name in inputs)
        values = draw.normal(size=shape.shape) * (0.7 / math.sqrt(fan_in) if inputs else 0.1)
        return jnp.asarray(values, jnp.float32)

    names = transformer.param_axes(KNOWN[name])
    return jax.tree.map(array, shapes, names, axes)
