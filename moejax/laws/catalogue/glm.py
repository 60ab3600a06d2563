"""Describe GLM-4.5 and GLM-4.5-Air."""

from moejax.architecture import Architecture
from moejax.laws.catalogue.published_model import PublishedModel, no_vocabulary

_GLM_45 = Architecture(
    vocab_size=151_552,
    model_dim=5120,
    num_layers=92,
    num_heads=96,
    num_kv_heads=8,
    head_dim=128,
    dense_hidden=12_288,
    num_dense_layers=3,
    num_experts=160,
    top_k=8,
    expert_hidden=1536,
    num_shared_experts=1,
    router="sigmoid_topk",
    expert_bias=True,
    routed_scaling_factor=2.5,
    rotary_fraction=0.5,
    qk_norm=True,
    attention_bias=True,
    tied_embeddings=False,
    rope_theta=1_000_000.0,
    norm_epsilon=1e-5,
)
GLM_45_AIR = PublishedModel(
    architecture=_GLM_45.replace(
        model_dim=4096,
        num_layers=46,
        dense_hidden=10_944,
        num_dense_layers=1,
        num_experts=128,
        expert_hidden=1408,
        routed_scaling_factor=1.0,
        qk_norm=False,
    ),
    params_total=106e9,
    params_active=12e9,
    counted=no_vocabulary,
    source="Zhipu AI, GLM-4.5 (arXiv:2508.06471), Table 1; configuration file",
    note="Without its multi-token-prediction layer. Active: 12.18 billion, stated in whole billions.",
)
GLM_45 = PublishedModel(
    architecture=_GLM_45,
    params_total=355e9,
    params_active=32e9,
    counted=no_vocabulary,
    source="Zhipu AI, GLM-4.5 (arXiv:2508.06471), Table 1; configuration file",
    note="Total: without its multi-token-prediction layer, another 4.0 billion that the stated figure has.",
)
