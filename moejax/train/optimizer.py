"""AdamW with gradient clipping, through Optax, as a direction of unit learning rate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import optax


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Choices of the optimiser and its schedule."""

    learning_rate: float = 3e-3
    """Peak of the schedule."""
    warmup_tokens: int = 0
    decay_share: float = 0.2
    """Last part of a budget over which the learning rate falls."""
    final_share: float = 0.1
    """Learning rate at the end, as a share of the peak."""
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    clip_norm: float = 1.0
    """Largest global norm of the gradients; 0 leaves them as they are."""

    def check(self) -> None:
        """Raise ``ValueError`` with value, rule and remedy if a choice makes no sense."""
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate is {self.learning_rate}; give a positive number.")
        if not 0 < self.decay_share < 1:
            raise ValueError(f"decay_share is {self.decay_share}; it is a share of the budget, between 0 and 1.")
        for name in ("warmup_tokens", "final_share", "weight_decay", "clip_norm"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it cannot be negative.")
        if self.final_share > 1:
            raise ValueError(f"final_share is {self.final_share}; the rate falls to at most its peak: give 0 to 1.")
        if not self.epsilon > 0:
            raise ValueError(f"epsilon is {self.epsilon}; give a small positive number, such as 1e-8.")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must lie in [0, 1).")


def adamw(config: OptimizerConfig, decays: Any) -> optax.GradientTransformation:
    """Clip by global norm, Adam, decoupled weight decay where ``decays`` (a tree of booleans) says so.

    Updates point uphill at unit size: the training step subtracts them times the learning rate.
    """
    return optax.chain(
        optax.clip_by_global_norm(config.clip_norm) if config.clip_norm else optax.identity(),
        optax.scale_by_adam(b1=config.beta1, b2=config.beta2, eps=config.epsilon),
        optax.add_decayed_weights(config.weight_decay, mask=decays),
    )
