"""Tian et al. (2025)'s MoE-mini, 17.5 billion parameters of which 0.85 are active, on 256 chips of TPU v5e.

Purpose:  the plan of docs/plans.md: does it fit 16 GiB a chip, what limits it, what does a trillion tokens take.
Paper:    Table 1 and Appendix D; trained there on H800s with experts over 8 and tensors over 2 (Table 13).
Command:  moejax plan --config=configs/plans/moe_mini.py --topology v5e:16x16
Recipe:   the paper's trillion tokens, its Eq. 5 for rate and batch, which is rounded to what 256 chips divide.
Mesh:     experts over 2 chips, parameters over 128. An expert is 384 wide: sending a token to its twelve experts takes
          far longer over this chip's links than gathering the experts for 16,384 tokens, so the expert axis is short.
          It is not 1: the TPU compiler sums whole gradients over all chips. Two microbatches, or it does not fit.
Cost:     7.5e21 FLOPs, the masked half of the scores left out; docs/plans.md has chip-hours and days.
Expected: fits with 8 % left, limited by the links that gather weights, or by memory (docs/plans.md).
"""

from ml_collections import ConfigDict

from moejax.config import dump
from moejax.laws.catalogue import CATALOGUE

SEQUENCE = 4096


def get_config() -> ConfigDict:
    """The training."""
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
