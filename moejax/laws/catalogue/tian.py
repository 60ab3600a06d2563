"""Describe the two models that Tian et al. (2025) train at scale."""

from moejax.architecture import Architecture
from moejax.laws.catalogue.published_model import PublishedModel, no_vocabulary

MOE_MINI = PublishedModel(
    architecture=Architecture(
        vocab_size=126_464,
        model_dim=2048,
        num_layers=20,
        num_heads=16,
        num_kv_heads=4,
        head_dim=128,
        dense_hidden=5120,
        num_dense_layers=1,
        num_experts=384,
        top_k=12,
        expert_hidden=384,
        num_shared_experts=1,
        tied_embeddings=False,
    ),
    params_total=17.5e9,
    params_active=0.85e9,
    counted=no_vocabulary,
    source="Tian et al. 2025, Table 1 and App. D; one dense layer follows from the total",
    note="Active: 0.839 billion with the router and 0.824 without; the stated 0.85 does not follow from the shape.",
)
DENSE_6B = PublishedModel(
    architecture=Architecture(
        vocab_size=126_464,
        model_dim=4096,
        num_layers=28,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        dense_hidden=14_336,
        tied_embeddings=False,
    ),
    params_total=6.11e9,
    params_active=6.11e9,
    counted=no_vocabulary,
    source="Tian et al. 2025, Table 1 and App. D",
)
