"""Describe DeepSeek-V3.1, Kimi-K2 of the same design, and the earlier DeepSeekMoE."""

from moejax.architecture import Architecture, RopeScaling
from moejax.laws.catalogue.published_model import PublishedModel, unembedding_active

_DEEPSEEK_V3 = Architecture(
    vocab_size=129_280,
    model_dim=7168,
    num_layers=61,
    num_heads=128,
    num_kv_heads=128,
    head_dim=128,
    dense_hidden=18_432,
    num_dense_layers=3,
    num_experts=256,
    top_k=8,
    expert_hidden=2048,
    num_shared_experts=1,
    query_latent_dim=1536,
    kv_latent_dim=512,
    rope_head_dim=64,
    value_head_dim=128,
    router="group_limited",
    num_groups=8,
    top_k_groups=4,
    routed_scaling_factor=2.5,
    expert_bias=True,
    tied_embeddings=False,
    rope_scaling=RopeScaling(kind="yarn", factor=40.0, original_length=4096, mscale=1.0, mscale_all_dim=1.0),
)
DEEPSEEK_V31 = PublishedModel(
    architecture=_DEEPSEEK_V3,
    params_total=671e9,
    params_active=36.7e9,
    counted=unembedding_active,
    source="DeepSeek-AI, DeepSeek-V3 repository, README_WEIGHTS.md (the main model; V3.1 has its shapes)",
    note="Stated as 37 billion elsewhere. The multi-token-prediction module, 11.5 billion, is not in 671.",
)
KIMI_K2 = PublishedModel(
    architecture=_DEEPSEEK_V3.replace(
        vocab_size=163_840,
        num_heads=64,
        num_kv_heads=64,
        num_dense_layers=1,
        num_experts=384,
        num_groups=1,
        top_k_groups=1,
        routed_scaling_factor=2.827,
        rope_theta=50_000.0,
        rope_scaling=RopeScaling(kind="yarn", factor=32.0, original_length=4096, mscale=1.0, mscale_all_dim=1.0),
    ),
    params_total=1e12,
    params_active=32e9,
    counted=unembedding_active,
    source="Moonshot AI, Kimi-K2 repository, model summary; configuration file",
    note="Total: 1,026 billion, stated as 1T; with one more mixture layer it is the 1,043 that others state.",
)
DEEPSEEK_MOE_16B = PublishedModel(
    architecture=Architecture(
        vocab_size=102_400,
        model_dim=2048,
        num_layers=28,
        num_heads=16,
        num_kv_heads=16,
        head_dim=128,
        dense_hidden=10_944,
        num_dense_layers=1,
        num_experts=64,
        top_k=6,
        expert_hidden=1408,
        num_shared_experts=2,
        norm_topk_prob=False,
        tied_embeddings=False,
    ),
    params_total=16.4e9,
    params_active=2.8e9,
    source="Dai et al., DeepSeekMoE (arXiv:2401.06066); configuration file",
    note="Active: 2.83 billion, stated in two digits.",
)
