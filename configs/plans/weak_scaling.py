"""A model with the shape of OLMoE, 6.9 billion parameters of which 1.3 billion are active, on 16 to 1,024 chips.

Purpose:  test weak scaling with 8,192 tokens per chip: the bytes that a chip sends per step should not grow with the
          number of chips (docs/plans.md).
Paper:    Muennighoff et al. 2024 (arXiv:2409.02060); the catalogue of models provides the shape.
Command:  moejax plan --config=configs/plans/weak_scaling.py:16 --topology v5p:2x2x4
          The argument is the number of chips: 16, 64 for v5p:4x4x4, 256 for v5p:4x8x8, 1024 for v5p:8x8x16.
Mesh:     experts are sharded over 4 chips and parameters over 16, with copies on the other chips. If parameters were
          sharded over all n chips, each chip would send (n - 1)/n of the gathered bytes, which grows with n.
Cost:     none; this config is not meant for training.
Expected: the bytes sent per chip differ by at most 10 % from 16 to 1,024 chips.
"""

from ml_collections import ConfigDict

from moejax.config import dump
from moejax.laws.catalogue import CATALOGUE

SEQUENCE = 4096


def get_config(chips: str = "16") -> ConfigDict:
    """Return the training run on this number of chips."""
    config = ConfigDict()
    config.name = f"olmoe-{chips}"
    config.seed = 0
    config.architecture = dump(CATALOGUE["olmoe-1b-7b"].architecture)
    config.recipe = dict(
        budgets_tokens=[10**12],
        batch_tokens=2 * int(chips) * SEQUENCE,
        data=dict(source="", sequence_length=SEQUENCE),
        optimizer=dict(learning_rate=4e-4),
        mesh=dict(data=-1, fsdp=4, expert=4),
        runtime=dict(compute_dtype="bfloat16", scan_layers=True, remat="full"),
    )
    return config
