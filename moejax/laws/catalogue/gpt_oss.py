"""Describe OpenAI's gpt-oss models."""

from moejax.architecture import Architecture, RopeScaling
from moejax.laws.catalogue.published_model import PublishedModel, unembedding_active

_GPT_OSS = Architecture(
    vocab_size=201_088,
    model_dim=2880,
    num_layers=36,
    num_heads=64,
    num_kv_heads=8,
    head_dim=64,
    num_experts=128,
    top_k=4,
    expert_hidden=2880,
    router="topk_softmax",
    attention_bias=True,
    attention_output_bias=True,
    attention_sinks=True,
    sliding_window=128,
    window_pattern="WF",
    router_bias=True,
    expert_mlp_bias=True,
    activation="clamped_swiglu",
    rope_scaling=RopeScaling(kind="yarn", factor=32.0, original_length=4096, truncate=False),
    tied_embeddings=False,
    rope_theta=150_000.0,
    norm_epsilon=1e-5,
)
GPT_OSS_20B = PublishedModel(
    architecture=_GPT_OSS.replace(num_layers=24, num_experts=32),
    params_total=20.91e9,
    params_active=3.61e9,
    counted=unembedding_active,
    source="OpenAI, gpt-oss model card (arXiv:2508.10925), Table 1; gpt_oss/torch/model.py",
)
GPT_OSS_120B = PublishedModel(
    architecture=_GPT_OSS,
    params_total=116.83e9,
    params_active=5.13e9,
    counted=unembedding_active,
    source="OpenAI, gpt-oss model card (arXiv:2508.10925), Table 1; gpt_oss/torch/model.py",
)
