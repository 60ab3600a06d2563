"""Qwen3-30B-A3B, 30.5 billion parameters of which 3.3 are active, on 64 chips of TPU v5p.

Purpose:  the plan of docs/plans.md: a widely used shape on one cube of a pod.
Paper:    Qwen3 technical report (2025) and the published configuration file, through the catalogue of models.
Command:  moejax plan --config=configs/plans/qwen3_30b_a3b.py --topology v5p:4x4x4
          On 64 H100: --topology h100:8x8 --mesh fsdp=64
Recipe:   a trillion tokens in steps of a million (the report's 36 trillion and its batch are not repeated here), AdamW.
Mesh:     parameters over 32 chips and two copies of them, no tokens sent. With experts over 4 chips a step takes
          longer by both accounts of docs/plans.md, with fewer bytes sent and less memory. Parameters over all 64 would
          be gathered by sums of arrays of zeros. What attention and the experts' first product give is kept.
Cost:     2.3e22 FLOPs, the masked half of the scores left out (2.8e22 with it); docs/plans.md has chip-hours and days.
Expected: fits with a third of the memory left, limited by products.
"""

from ml_collections import ConfigDict

from moejax.config import dump
from moejax.laws.catalogue import CATALOGUE

SEQUENCE = 4096


def get_config() -> ConfigDict:
    """The training."""
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
