"""The quickstart: train nine small models on real text, fit two laws to them, and make a decision.

Purpose:  show the whole workflow, from architectures to a decision, on a laptop's CPU.
Command:  moejax study --config=configs/studies/quickstart.py        (or: make quickstart)
Data:     the source files of the running Python's standard library, as bytes.
Recipe:   one trunk per model (warm-up and stable rate) and one decay branch per budget (Zhao et al. §3).
Cost:     8.6e12 FLOPs with all branches; README.md has the time.
Expected: Every loss is below 2.6 nats/token (the unigram entropy is 3.24). At the largest budget, top-2 MoE models are
          below the dense model of their width. A warning names coefficients that 27 runs do not determine.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """Return the study."""
    config = ConfigDict()
    config.name = "quickstart"
    config.seed = 0

    def dense(model_dim: int, num_layers: int) -> dict:
        return dict(
            vocab_size=257,
            model_dim=model_dim,
            num_layers=num_layers,
            num_heads=model_dim // 16,
            num_kv_heads=model_dim // 32,
            head_dim=16,
            dense_hidden=2 * model_dim,
        )

    def mixture(model_dim: int, num_layers: int, *, experts: int, top_k: int, shared: int = 0) -> dict:
        # As many active hidden units as in the dense model of this width, split into top_k + shared experts.
        shape = dense(model_dim, num_layers) | dict(dense_hidden=0)
        hidden = 2 * model_dim // (top_k + shared)
        shape |= dict(num_experts=experts, top_k=top_k, num_shared_experts=shared, expert_hidden=hidden)
        # The normalized weight of one expert is always 1, and gives the router no gradient.
        return shape | dict(norm_topk_prob=top_k > 1)

    config.models = {
        "dense-32": dense(32, 2),
        "dense-64": dense(64, 2),
        "dense-96": dense(96, 2),
        "moe-32-8e2": mixture(32, 2, experts=8, top_k=2),
        "moe-64-4e1": mixture(64, 2, experts=4, top_k=1),
        "moe-64-8e2": mixture(64, 2, experts=8, top_k=2),
        "moe-64-16e2": mixture(64, 2, experts=16, top_k=2),
        "moe-64-8e1-1s": mixture(64, 2, experts=8, top_k=1, shared=1),
        "moe-96-8e2": mixture(96, 2, experts=8, top_k=2),
    }
    config.recipe = dict(
        budgets_tokens=[262_144, 524_288, 1_048_576],
        batch_tokens=4_096,
        data=dict(source="python_stdlib", sequence_length=128, validation_share=0.05, validation_tokens=131_072),
        optimizer=dict(learning_rate=6e-3, warmup_tokens=65_536, decay_share=0.2, weight_decay=0.1, clip_norm=1.0),
        loss=dict(balance=0.01, router_z=0.001),
        checkpoint_tokens=524_288,
    )
    config.analysis = dict(laws=["chinchilla", "effective_params"], resamples=300, decision_flops=1e13)
    return config
