"""Architectures that a family can express, drawn by hypothesis, and one small one of each."""

from hypothesis import strategies as st

from moejax.architecture import Architecture, RopeScaling

_SIZES = st.integers(1, 6)
_EXPERTS = st.integers(1, 6).flatmap(
    lambda experts: st.fixed_dictionaries({"num_experts": st.just(experts), "top_k": st.integers(1, experts)})
)
_FACTOR = st.floats(1, 64)
_SCALING = st.none() | st.one_of(
    st.builds(RopeScaling, kind=st.just("linear"), factor=_FACTOR),
    st.builds(
        RopeScaling,
        kind=st.just("llama3"),
        factor=_FACTOR,
        original_length=st.integers(8, 8192),
        low_freq_factor=st.floats(0.5, 2),
        high_freq_factor=st.floats(3, 5),
    ),
    st.builds(
        RopeScaling,
        kind=st.just("yarn"),
        factor=_FACTOR,
        original_length=st.integers(8, 8192),
        beta_fast=st.floats(16, 64),
        beta_slow=st.floats(0.5, 2),
        mscale=st.sampled_from([0.0, 0.7]),
        mscale_all_dim=st.sampled_from([0.0, 1.0]),
        truncate=st.booleans(),
    ),
)
_WINDOW = st.fixed_dictionaries({"sliding_window": st.integers(0, 9)})
_WINDOWS = st.fixed_dictionaries(
    {"sliding_window": st.integers(0, 9), "window_pattern": st.text("WF", min_size=1, max_size=4)}
)
_DENSE_LAYERS = st.fixed_dictionaries(
    {
        "num_layers": st.integers(3, 7),
        "num_dense_layers": st.integers(0, 1),
        "num_last_dense_layers": st.integers(0, 1),
        "layer_pattern": st.text("ED", min_size=0, max_size=3).map(lambda letters: "E" + letters),
        "dense_hidden": _SIZES,
    }
)


def _biases(draw: bool) -> dict:
    return {"attention_bias": draw, "attention_output_bias": draw}


_BIASES = st.booleans().map(_biases)
_NORMALIZED = st.fixed_dictionaries({"norm_topk_prob": st.booleans()})


@st.composite
def _common(draw, *rules, **always):
    kv_heads = draw(st.integers(1, 3))
    fields = {
        "vocab_size": draw(_SIZES),
        "model_dim": draw(_SIZES),
        "num_layers": draw(st.integers(1, 4)),
        "num_kv_heads": kv_heads,
        "num_heads": kv_heads * draw(st.integers(1, 3)),
        "head_dim": 2 * draw(st.integers(1, 3)),
        "expert_hidden": draw(_SIZES),
        "rope_theta": draw(st.floats(1e3, 1e6)),
        "rope_scaling": draw(_SCALING),
        "tied_embeddings": draw(st.booleans()),
        "norm_epsilon": draw(st.sampled_from([1e-5, 1e-6])),
        **draw(_EXPERTS),
    }
    for rule in rules:
        fields |= draw(rule)
    return fields | {name: value(fields) if callable(value) else value for name, value in always.items()}


def _architectures(*rules, **always):
    return _common(*rules, **always).map(lambda fields: Architecture(**fields))


@st.composite
def _latent(draw):
    heads = draw(st.integers(1, 3))
    groups = draw(st.integers(1, 3))
    chosen, in_group = draw(st.integers(1, groups)), draw(st.integers(2, 3))
    return {
        "num_heads": heads,
        "num_kv_heads": heads,
        "query_latent_dim": draw(st.integers(0, 4)),
        "kv_latent_dim": draw(_SIZES),
        "rope_head_dim": 2 * draw(st.integers(1, 3)),
        "value_head_dim": draw(st.integers(0, 4)),
        "num_layers": draw(st.integers(2, 4)),
        "num_dense_layers": draw(st.integers(0, 1)),
        "dense_hidden": draw(_SIZES),
        "num_experts": groups * in_group,
        "top_k": draw(st.integers(1, chosen * in_group)),
        "num_groups": groups,
        "top_k_groups": chosen,
        "num_shared_experts": draw(st.integers(1, 2)),
        "routed_scaling_factor": draw(st.floats(0.5, 3)),
        "expert_bias": draw(st.booleans()),
        "num_mtp_layers": draw(st.integers(0, 2)),
    }


_SHARED = st.fixed_dictionaries(
    {
        "num_shared_experts": st.integers(1, 2),
        "shared_hidden": st.integers(0, 4),
        "attention_bias": st.booleans(),
    }
)

ARCHITECTURES = {
    "mixtral": _architectures(_WINDOW),
    "olmoe": _architectures(
        _NORMALIZED,
        _BIASES,
        qk_norm=True,
        qk_norm_all_heads=True,
        model_dim=lambda fields: fields["num_heads"] * fields["head_dim"],
    ),
    "qwen2_moe": _architectures(_NORMALIZED, _DENSE_LAYERS, _WINDOWS, _SHARED, shared_expert_gate=True),
    "qwen3_moe": _architectures(_NORMALIZED, _BIASES, _DENSE_LAYERS, _WINDOW, qk_norm=True),
    "deepseek_v3": _architectures(_NORMALIZED, _BIASES, _latent(), router="group_limited", norm_epsilon=1e-6),
    "gpt_oss": _architectures(
        _BIASES,
        _WINDOWS,
        router="topk_softmax",
        router_bias=True,
        expert_mlp_bias=True,
        activation="clamped_swiglu",
        attention_sinks=True,
    ),
}
"""Strategies by family."""

_SMALL = {
    "vocab_size": 11,
    "model_dim": 8,
    "num_layers": 3,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 2,
    "num_experts": 4,
    "top_k": 2,
    "expert_hidden": 6,
    "tied_embeddings": False,
}

SMALL = {
    "mixtral": Architecture(**_SMALL, norm_epsilon=1e-5),
    "olmoe": Architecture(**_SMALL, qk_norm=True, qk_norm_all_heads=True, norm_topk_prob=False),
    "qwen2_moe": Architecture(
        **_SMALL,
        num_shared_experts=1,
        shared_hidden=5,
        shared_expert_gate=True,
        attention_bias=True,
        layer_pattern="ED",
        dense_hidden=7,
    ),
    "qwen3_moe": Architecture(**_SMALL, qk_norm=True, num_dense_layers=1, dense_hidden=7),
    "deepseek_v3": Architecture(
        **(_SMALL | {"num_kv_heads": 4, "head_dim": 3}),
        kv_latent_dim=5,
        query_latent_dim=6,
        rope_head_dim=4,
        value_head_dim=2,
        router="group_limited",
        num_groups=2,
        top_k_groups=1,
        expert_bias=True,
        num_shared_experts=2,
        num_dense_layers=1,
        dense_hidden=7,
        routed_scaling_factor=2.5,
        num_mtp_layers=1,
    ),
    "gpt_oss": Architecture(
        **_SMALL,
        router="topk_softmax",
        router_bias=True,
        expert_mlp_bias=True,
        activation="clamped_swiglu",
        attention_sinks=True,
        attention_bias=True,
        attention_output_bias=True,
        sliding_window=4,
        window_pattern="WF",
    ),
}
"""One of each family."""
