"""An MoE model with 1.0 billion parameters, 0.21 billion of them active, to train on one or eight H100.

Purpose:  train a first real model, with a decayed model at each budget; moejax convert --to hf exports it as Qwen3-MoE.
Command:  moejax train --config=configs/moe_1b.py --config.recipe.data.source=sets/texts --exportable hf --out runs/1b
          moejax plan --config=configs/moe_1b.py --topology h100:8
          moejax plan --config=configs/moe_1b.py --topology h100:1 --microbatches 8
          On one GPU, also train with --config.recipe.microbatches=8.
Data:     docs/train_your_own.md shows how to prepare sets/texts; the tokenizer has at most 50,304 tokens.
Recipe:   AdamW with the learning rate of Tian et al. (2025) for the longest budget, 1.18e-3. The budgets are 26, 52 and
          104 tokens per active parameter; they share one trunk, so a shorter budget adds only its decay.
Mesh:     parameters are sharded over all GPUs, and tokens are not sent. The outputs of attention and of the experts'
          first matmul are saved; the rest of a layer is recomputed.
Memory:   38 GB on each of 8 H100, or 60 GB on one, by the compiled plans above; this was not measured.
Cost:     4.1e19 FLOPs without masked attention scores. By the same plans, they take at least 3.0 hours on 8 H100, or 29
          hours on one. Measured steps of other models took 1.5 to 1.7 times their plans, so expect 4.5 to 5 hours on 8.
Expected: the first loss is near 10.8 nats/token, ln(50,304), and falls from the first steps on. This config has not
          been trained on a GPU yet.
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
