"""An MoE model that trains in seconds on any CPU, for first experiments and for tests.

Command:  moejax train --config=configs/tiny.py
Cost:     4.3e10 FLOPs with both branches; 10 to 15 s on one core, mostly for compilation.
Expected: the validation loss is near 2.3 nats/token at 131k tokens, about 0.3 lower than at 65k.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """Return the training run."""
    config = ConfigDict()
    config.name = "tiny"
    config.seed = 0
    config.architecture = dict(
        vocab_size=257,
        model_dim=32,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
        head_dim=16,
        num_experts=4,
        top_k=2,
        expert_hidden=32,
        num_shared_experts=1,
        # As in Qwen2-MoE, so that moejax convert --to hf can export the model.
        shared_expert_gate=True,
    )
    config.recipe = dict(
        budgets_tokens=[65_536, 131_072],
        batch_tokens=2_048,
        data=dict(source="python_stdlib", sequence_length=128, validation_tokens=16_384),
        optimizer=dict(learning_rate=6e-3, warmup_tokens=16_384),
        checkpoint_tokens=32_768,
    )
    return config
