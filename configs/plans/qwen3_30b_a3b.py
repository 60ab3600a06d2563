"""Qwen3-30B-A3B, 30.5 billion parameters of which 3.3 billion are active, on 64 TPU v5p chips.

Purpose:  plan a widely used model on one cube of a TPU pod; docs/plans.md has the result.
Paper:    Qwen3 technical report (2025) and the published configuration file, through the catalogue of models.
Command:  moejax plan --config=configs/plans/qwen3_30b_a3b.py --topology v5p:4x4x4
          On 64 H100: --topology h100:8x8 --mesh fsdp=64
Recipe:   a trillion tokens in steps of a million tokens with AdamW, instead of the report's 36 trillion tokens and its
          batch size.
Mesh:     parameters are sharded over 32 chips, in two copies, and tokens are not sent. With experts over 4 chips, a
          step takes longer by both estimates of docs/plans.md, although it sends fewer bytes and uses less memory. If
          parameters were sharded over all 64 chips, XLA would gather them by summing arrays of zeros. The outputs of
          attention and of the experts' first matmul are saved.
Cost:     2.3e22 FLOPs without masked attention scores (2.8e22 with them); docs/plans.md has chip-hours and days.
Expected: the run fits with a third of the memory left. Matmuls limit its speed.
"""

from ml_collections import ConfigDict

from moejax.config import dump
from moejax.laws.catalogue import CATALOGUE

SEQUENCE = 4096


def get_config() -> ConfigDict:
    """Return the training run."""
    config = ConfigDict()
    config.name = "qwen3-30b-a3b"
    config.seed = 0
    config.architecture = dump(CATALOGUE["qwen3-30b-a3b"].architecture)
    config.recipe = dict(
        budgets_tokens=[10**12],
        batch_tokens=256 * SEQUENCE,
        data=dict(source="", sequence_length=SEQUENCE),
        optimizer=dict(learning_rate="auto", warmup_tokens=10**10),
        mesh=dict(data=2, fsdp=-1),
        runtime=dict(compute_dtype="bfloat16", scan_layers=True, remat="attn_qkv+attn_out+moe_gate_up"),
    )
    return config
