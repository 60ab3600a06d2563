"""A model with the shape of DeepSeek-V3, 671 billion parameters of which 37 billion are active, on 1,024 TPU v5p chips.

Purpose:  plan the largest open model of its time on an eighth of a TPU pod; docs/plans.md has the result.
Paper:    DeepSeek-V3 technical report (arXiv:2412.19437), Sec. 4.2. It trains on 14.8 trillion tokens in steps of
          15,360 sequences of 4,096 tokens. Expert biases and a sequence-wise balance loss with weight 1e-4 balance the
          load.
Command:  moejax plan --config=configs/plans/deepseek_v3.py --topology v5p:8x8x16
          On as many H100: --topology h100:128x8
          Without multi-token prediction, as in docs/plans.md: --config=configs/plans/deepseek_v3.py:next-token
Recipe:   the report's recipe with four differences, none of which changes the cost of a step:
          - Every step has 16,384 sequences, a multiple of 1,024 chips; the report begins with 3,072 sequences and
            reaches 15,360 at 469 billion tokens. The 2,000 warm-up steps have this size too (inferred).
          - Computation is in float32 and bfloat16 instead of FP8.
          - The learning rate is constant; the report lowers it from 10 trillion tokens on.
          - The update rate of the expert bias is always 0.001 (moejax's default); in the report it is 0.001 for 14.3
            trillion tokens and then 0.
          The one multi-token prediction module has weight 0.3 for 10 trillion tokens and then 0.1 (Sec. 4.2). It adds
          11.6 billion parameters to the 671 billion.
Mesh:     experts are sharded over the 8 chips of one edge, which gather their tokens; parameters are sharded over 128
          chips. A chip computes eight microbatches of 8,192 tokens.
Cost:     3.9e24 FLOPs without masked attention scores, and 3.7e24 without the module; docs/plans.md has the chip-hours
          and days of the latter.
Expected: the run fits with 20 % of the memory left. Matmuls limit its speed if they hide the gathering of weights.
"""

from ml_collections import ConfigDict

from moejax.config import dump
from moejax.errors import UserError
from moejax.laws.catalogue import CATALOGUE

SEQUENCE = 4096


def get_config(predicted: str = "multi-token") -> ConfigDict:
    """Return the training run; ``predicted`` is "multi-token", as published, or "next-token"."""
    if predicted not in ("multi-token", "next-token"):
        raise UserError(f"The prediction is {predicted!r}; choose multi-token or next-token.")
    config = ConfigDict()
    config.name = "deepseek-v3"
    config.seed = 0
    config.architecture = dump(CATALOGUE["deepseek-v3.1"].architecture.replace(rope_scaling=None))
    config.architecture.num_mtp_layers = int(predicted == "multi-token")
    config.recipe = dict(
        budgets_tokens=[14_800_000_000_000],
        batch_tokens=16_384 * SEQUENCE,
        microbatches=8,
        data=dict(source="", sequence_length=SEQUENCE),
        optimizer=dict(learning_rate=2.2e-4, warmup_tokens=2000 * 16_384 * SEQUENCE),
        loss=dict(
            balance=0.0,
            sequence_balance=1e-4,
            router_z=0.0,
            mtp=0.3,
            mtp_later=0.1,
            mtp_later_tokens=10_000_000_000_000,
        ),
        mesh=dict(data=1, fsdp=-1, expert=8),
        runtime=dict(
            compute_dtype="bfloat16",
            scan_layers=True,
            remat="full",
            expert_communication="all_gather",
            buffer_factor=1.5,
        ),
    )
    return config
