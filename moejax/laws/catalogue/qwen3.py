"""Describe the Qwen3 mixtures."""

from moejax.architecture import Architecture
from moejax.laws.catalogue.published_model import PublishedModel

_QWEN3 = Architecture(
    vocab_size=151_936,
    model_dim=2048,
    num_layers=48,
    num_heads=32,
    num_kv_heads=4,
    head_dim=128,
    num_experts=128,
    top_k=8,
    expert_hidden=768,
    qk_norm=True,
    tied_embeddings=False,
    rope_theta=1_000_000.0,
)
QWEN3_30B_A3B = PublishedModel(
    architecture=_QWEN3,
    params_total=30.5e9,
    params_active=3.3e9,
    source="Qwen3-30B-A3B model card and configuration file",
    note="Active: 3.35 billion with the embedding and 3.04 without, stated as 3.3.",
)
QWEN3_235B_A22B = PublishedModel(
    architecture=_QWEN3.replace(model_dim=4096, num_layers=94, num_heads=64, expert_hidden=1536),
    params_total=235e9,
    params_active=22e9,
    source="Qwen3-235B-A22B model card and configuration file",
)
