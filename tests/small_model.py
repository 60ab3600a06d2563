"""A mixture so small that it is drawn and trained in a moment; tests replace the sizes that they are about."""

from moejax.architecture import Architecture

SMALL = Architecture(
    vocab_size=257,
    model_dim=16,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    num_experts=4,
    top_k=2,
    expert_hidden=8,
)
