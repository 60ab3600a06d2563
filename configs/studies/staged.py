"""Two stages: the number of shared experts, then the granularity of experts.

Purpose:  show a small study whose second stage depends on the result of the first.
Command:  moejax study --config=configs/studies/staged.py --out runs/staged
Data:     the source files of the running Python's standard library, as bytes.
Cost:     10 runs of 5 models, about two minutes of processor time.
Expected: the report names the winner of each stage; one seed does not separate the MoE models.
"""

from ml_collections import ConfigDict

from moejax.study.stages import StageResult

WIDTH = 32


def mixture(num_experts: int, top_k: int, shared: int, granularity: int) -> dict:
    """Return routed experts of granularity G = 2·WIDTH / expert_hidden and shared experts of the same width."""
    experts = dict(num_experts=num_experts, top_k=top_k, num_shared_experts=shared)
    # A normalized weight of a single expert would be 1 and give the router no gradient.
    return experts | dict(expert_hidden=2 * WIDTH // granularity, norm_topk_prob=False)


def finer(before: StageResult) -> dict:
    """Return models with the winner's experts split into parts, at equal total and active parameters."""
    winner = before.architecture
    shared, hidden = winner["num_shared_experts"], winner["expert_hidden"]
    models = {before.winner: winner}  # its rows are reused; it is not trained again
    for parts in (2, 4):
        granularity = 2 * WIDTH * parts // hidden
        # Shared experts keep their number at the new width; routed experts compensate.
        total, active = (parts * (winner[name] + shared) - shared for name in ("num_experts", "top_k"))
        models[f"G{granularity}"] = winner | mixture(total, active, shared, granularity)
    return dict(models=models, expected=before.winner)


def get_config() -> ConfigDict:
    """Return the study."""
    config = ConfigDict()
    config.name = "staged"
    shape = dict(vocab_size=257, model_dim=WIDTH, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=16)
    config.models = {
        "dense": shape | dict(dense_hidden=2 * WIDTH),
        "8-experts": shape | mixture(8, 2, 0, 2),
        "7-and-a-shared": shape | mixture(7, 1, 1, 2),
    }
    config.recipe = dict(
        budgets_tokens=[131_072, 262_144],
        batch_tokens=2_048,
        data=dict(sequence_length=64, validation_tokens=32_768),
        optimizer=dict(learning_rate=1e-2, warmup_tokens=16_384),
        checkpoint_tokens=65_536,
    )
    config.analysis = dict(laws=[])
    config.stages = [
        dict(name="sharing", references=["dense"], expected="8-experts"),
        dict(name="granularity", make=finer),
    ]
    return config
