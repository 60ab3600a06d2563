"""How fast a training is: tokens per second, and the share of the chips' peak that its products reach."""

from __future__ import annotations

import jax

from moejax.laws.accounting import flops_per_token
from moejax.laws.chips import CHIPS
from moejax.train.training import Training

CHIP_OF_DEVICE = {
    "NVIDIA A100-SXM4-40GB": "a100",
    "NVIDIA A100-SXM4-80GB": "a100",
    "NVIDIA H100 80GB HBM3": "h100",
    "NVIDIA H200": "h200",
    "NVIDIA H800": "h800",
    "TPU v4": "v4",
    "TPU v5 lite": "v5e",
    "TPU v5e": "v5e",
    "TPU v5": "v5p",
    "TPU v5p": "v5p",
    "TPU v6 lite": "v6e",
    "TPU v6e": "v6e",
}
"""Chips of ``moejax.laws.chips`` by what JAX calls their devices. Of A100s, memory alone differs."""


class Speed:
    """Of one training on the devices of this program."""

    def __init__(self, training: Training):
        self._flops = flops_per_token(training.architecture, training.recipe.data.sequence_length).training
        chip = CHIPS.get(CHIP_OF_DEVICE.get(jax.devices()[0].device_kind, ""))
        self._peak = chip.flops_per_second * jax.device_count() if chip else None

    def of(self, tokens: int, seconds: float) -> dict[str, float]:
        """``tokens_per_second`` and, where the chip is known, ``mfu``: the share of its bfloat16 peak."""
        if seconds <= 0:
            return {}
        rate = tokens / seconds
        return {"tokens_per_second": rate} | ({} if self._peak is None else {"mfu": self._flops * rate / self._peak})
