"""Describe the Mixtral models."""

from moejax.architecture import Architecture
from moejax.laws.catalogue.published_model import PublishedModel

_MIXTRAL = Architecture(
    vocab_size=32_000,
    model_dim=4096,
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    num_experts=8,
    top_k=2,
    expert_hidden=14_336,
    tied_embeddings=False,
    rope_theta=1_000_000.0,
    norm_epsilon=1e-5,
)
MIXTRAL_8X7B = PublishedModel(
    architecture=_MIXTRAL,
    params_total=46.7e9,
    params_active=12.9e9,
    source="Mistral AI, announcement of Mixtral 8x7B (2023) and configuration file",
)
MIXTRAL_8X22B = PublishedModel(
    architecture=_MIXTRAL.replace(model_dim=6144, num_layers=56, num_heads=48, expert_hidden=16_384),
    params_total=141e9,
    params_active=39e9,
    source="Mistral AI, announcement of Mixtral 8x22B (2024) and configuration file (v0.1)",
)
