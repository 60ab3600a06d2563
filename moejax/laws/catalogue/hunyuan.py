"""Describe Tencent's Hunyuan-A13B."""

from moejax.architecture import Architecture
from moejax.laws.catalogue.published_model import PublishedModel

HUNYUAN_A13B = PublishedModel(
    architecture=Architecture(
        vocab_size=128_167,
        model_dim=4096,
        num_layers=32,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        num_experts=64,
        top_k=8,
        expert_hidden=3072,
        num_shared_experts=1,
        qk_norm=True,
        norm_epsilon=1e-5,
    ),
    params_total=80e9,
    params_active=13e9,
    source="Tencent, Hunyuan-A13B repository and configuration file",
    note="Active: 12.75 billion, stated in whole billions.",
)
