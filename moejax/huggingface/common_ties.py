"""Names of tensors that families share: Llama's, with experts beside them."""

from __future__ import annotations

from moejax.huggingface.tie import Tie

LAYER = "model.layers.{layer}."

MODEL = [
    Tie("model.embed_tokens.weight", "vocab embed", ("embedding",)),
    Tie(LAYER + "input_layernorm.weight", "embed", ("attention_norm",)),
    Tie(LAYER + "post_attention_layernorm.weight", "embed", ("feed_forward_norm",)),
    Tie("model.norm.weight", "embed", ("final_norm",)),
    Tie("lm_head.weight", "vocab embed", ("unembedding",)),
]
"""Everything outside attention and feed-forward."""

_ATTENTION = LAYER + "self_attn."

ATTENTION = [
    Tie(_ATTENTION + "q_proj.weight", "(heads head_dim) embed", ("attention.query",)),
    Tie(_ATTENTION + "k_proj.weight", "(kv_heads head_dim) embed", ("attention.key",)),
    Tie(_ATTENTION + "v_proj.weight", "(kv_heads value_dim) embed", ("attention.value",)),
    Tie(_ATTENTION + "o_proj.weight", "embed (heads value_dim)", ("attention.output",)),
    Tie(_ATTENTION + "q_proj.bias", "(heads head_dim)", ("attention.query_bias",)),
    Tie(_ATTENTION + "k_proj.bias", "(kv_heads head_dim)", ("attention.key_bias",)),
    Tie(_ATTENTION + "v_proj.bias", "(kv_heads value_dim)", ("attention.value_bias",)),
    Tie(_ATTENTION + "o_proj.bias", "embed", ("attention.output_bias",)),
    Tie(_ATTENTION + "sinks", "heads", ("attention.sinks",)),
]
"""Grouped-query attention."""

QK_NORM = [
    Tie(_ATTENTION + "q_norm.weight", "head_dim", ("attention.query_norm",)),
    Tie(_ATTENTION + "k_norm.weight", "head_dim", ("attention.key_norm",)),
]
"""Norms within each head."""

QK_NORM_ALL_HEADS = [
    Tie(_ATTENTION + "q_norm.weight", "(heads head_dim)", ("attention.query_norm",)),
    Tie(_ATTENTION + "k_norm.weight", "(kv_heads head_dim)", ("attention.key_norm",)),
]
"""Norms over all heads."""


def latent_attention(query_latents: bool, rope_head_dim: int) -> list[Tie]:
    """DeepSeek's, whose rotary channels alternate between what are first and second halves here."""
    turned = rope_head_dim
    queries = (
        [
            Tie(_ATTENTION + "q_a_proj.weight", "latent embed", ("attention.query_down",)),
            Tie(_ATTENTION + "q_a_proj.bias", "latent", ("attention.query_down_bias",)),
            Tie(_ATTENTION + "q_a_layernorm.weight", "latent", ("attention.query_latent_norm",)),
            Tie(_ATTENTION + "q_b_proj.weight", "(heads *) latent", ("attention.query",), alternating=turned),
        ]
        if query_latents
        else [Tie(_ATTENTION + "q_proj.weight", "(heads *) embed", ("attention.query",), alternating=turned)]
    )
    down = ("attention.latent_down", "attention.turned_key")
    down_bias = ("attention.latent_down_bias", "attention.turned_key_bias")
    return [
        *queries,
        Tie(_ATTENTION + "kv_a_proj_with_mqa.weight", "* embed", down, alternating=turned),
        Tie(_ATTENTION + "kv_a_proj_with_mqa.bias", "*", down_bias, alternating=turned),
        Tie(_ATTENTION + "kv_a_layernorm.weight", "latent", ("attention.latent_norm",)),
        Tie(_ATTENTION + "kv_b_proj.weight", "(heads *) latent", ("attention.key", "attention.value")),
        Tie(_ATTENTION + "o_proj.weight", "embed (heads value_dim)", ("attention.output",)),
        Tie(_ATTENTION + "o_proj.bias", "embed", ("attention.output_bias",)),
    ]


def feed_forward(module: str, ours: str) -> list[Tie]:
    """A dense SwiGLU feed-forward."""
    return [
        Tie(f"{LAYER}{module}.gate_proj.weight", "hidden embed", (f"{ours}.gate",)),
        Tie(f"{LAYER}{module}.up_proj.weight", "hidden embed", (f"{ours}.up",)),
        Tie(f"{LAYER}{module}.down_proj.weight", "embed hidden", (f"{ours}.down",)),
    ]


def experts(module: str, gate: str = "gate_proj", up: str = "up_proj", down: str = "down_proj") -> list[Tie]:
    """A router, and experts of which each is a module of its own."""
    expert = f"{LAYER}{module}.experts.{{expert}}."
    return [
        Tie(f"{LAYER}{module}.gate.weight", "router embed", ("feed_forward.router",)),
        Tie(f"{expert}{gate}.weight", "hidden embed", ("feed_forward.gate",)),
        Tie(f"{expert}{up}.weight", "hidden embed", ("feed_forward.up",)),
        Tie(f"{expert}{down}.weight", "embed hidden", ("feed_forward.down",)),
    ]
