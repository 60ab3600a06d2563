"""A mixture of 1.0 billion parameters, of which 0.21 billion are active, to train on 8 H100 or on one.

Purpose:  a first real training, with a decayed model at each budget; moejax convert --to hf writes a Qwen3-MoE.
Command:  moejax train --config=configs/moe_1b.py --config.recipe.data.source=sets/texts --exportable hf --out runs/1b
          moejax plan --config=configs/moe_1b.py --topology h100:8
          moejax plan --config=configs/moe_1b.py --topology h100:1 --microbatches 8
          On one GPU, train with --config.recipe.microbatches=8 as well.
Data:     docs/train_your_own.md prepares sets/texts, with a tokenizer of at most 50,304 tokens.
Recipe:   AdamW with the learning rate of Tian et al. (2025) for the longest budget, 1.18e-3; 26, 52 and 104 tokens per
          active parameter, of which the two longer ones cost only their decay and the rest of the trunk.
Mesh:     parameters over all GPUs, without sending tokens. Outputs of attention and the experts' first product are
          saved; the rest of a layer is recomputed.
Memory:   by the compiled plans above, not measured: 38 GB of each of 8 H100, 60 GB of one.
Cost:     4.1e19 FLOPs, the masked half of the scores not counted. By the same plans at least 3.0 hours of 8 H100, or
          29 hours of one; 3.6 hours of 8 at an assumed MFU of 40 %.
Expected: a first loss near 10.8 nats/token, ln(50,304), that falls from the first steps on; no GPU has trained it yet.
"""

from ml_collections import ConfigDict

SEQUENCE = 4096


def get_config() -> ConfigDict:
    """Return the training run."""
    config = ConfigDict()
    config.name = "moe-1b"
    config.seed = 0
    config.architecture = dict(
        vocab_size=50_304,
        model_dim=1024,
        num_layers=16,
        num_heads=16,
        num_kv_heads=4,
        head_dim=64,
        qk_norm=True,
        num_experts=32,
        top_k=4,
        expert_hidden=576,
        tied_embeddings=True,
    )
    config.recipe = dict(
        budgets_tokens=[5 * 2**30, 10 * 2**30, 20 * 2**30],
        batch_tokens=256 * SEQUENCE,
        data=dict(source="", sequence_length=SEQUENCE, validation_tokens=2**22),
        optimizer=dict(learning_rate="auto", warmup_tokens=2**28),
        evaluate_tokens=2**29,
        checkpoint_tokens=2**29,
        mesh=dict(data=1, fsdp=-1),
        runtime=dict(compute_dtype="bfloat16", scan_layers=True, remat="attn_out+moe_gate_up"),
    )
    return config
