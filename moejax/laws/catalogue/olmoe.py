"""Describe OLMoE."""

from moejax.architecture import Architecture
from moejax.laws.catalogue.published_model import PublishedModel

OLMOE_1B_7B = PublishedModel(
    architecture=Architecture(
        vocab_size=50_304,
        model_dim=2048,
        num_layers=16,
        num_heads=16,
        num_kv_heads=16,
        head_dim=128,
        num_experts=64,
        top_k=8,
        expert_hidden=1024,
        qk_norm=True,
        qk_norm_all_heads=True,
        norm_topk_prob=False,
        tied_embeddings=False,
        norm_epsilon=1e-5,
    ),
    params_total=6.9e9,
    params_active=1.3e9,
    source="Muennighoff et al., OLMoE (arXiv:2409.02060), Table 1; configuration file",
    note="Active: 1.28 billion, stated in two digits.",
)
