"""MoE-mini of Tian et al. (2025), 17.5 billion parameters of which 0.85 billion are active, on 256 TPU v5e chips.

Purpose:  find out whether the model fits into 16 GiB per chip, what limits its speed, and how long a trillion tokens
          take; docs/plans.md has the result.
Paper:    Table 1 and Appendix D. The paper trains on H800s, with expert parallelism 8 and tensor parallelism 2 (Table
          13).
Command:  moejax plan --config=configs/plans/moe_mini.py --topology v5e:16x16
Recipe:   the paper's trillion tokens; learning rate and batch size by its Eq. 5, with the batch size rounded to a
          multiple of 256 chips.
Mesh:     experts are sharded over 2 chips, parameters over 128. The expert axis is short because experts are only 384
          wide: on this chip's links, sending a token to its twelve experts takes far longer than gathering the experts
          for 16,384 tokens. The axis is not 1, because the TPU compiler would then sum whole gradients over all chips.
          The model fits only with two microbatches.
Cost:     7.5e21 FLOPs without masked attention scores; docs/plans.md has chip-hours and days.
Expected: the run fits with 8 % of the memory left. The links that gather weights limit its speed, or memory does
          (docs/plans.md).
"""

from ml_collections import ConfigDict

from moejax.config import dump
from moejax.laws.catalogue import CATALOGUE

SEQUENCE = 4096


def get_config() -> ConfigDict:
    """Return the training run."""
    config = ConfigDict()
    config.name = "moe-mini"
    config.seed = 0
    config.architecture = dump(CATALOGUE["moe-mini"].architecture)
    config.recipe = dict(
        budgets_tokens=[10**12],
        batch_tokens=1024 * SEQUENCE,
        microbatches=2,
        data=dict(source="", sequence_length=SEQUENCE),
        optimizer=dict(learning_rate="auto", warmup_tokens=10**10, decay_shape="exponential"),
        mesh=dict(data=1, fsdp=-1, expert=2),
        runtime=dict(compute_dtype="bfloat16", scan_layers=True, remat="full", buffer_factor=1.5),
    )
    return config
