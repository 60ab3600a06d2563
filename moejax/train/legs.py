"""The legs of a training: the trunk that all budgets share, and the branch of each."""

from __future__ import annotations

import math
from dataclasses import dataclass

from moejax.train.metrics import TRUNK, branch_name
from moejax.train.schedule import WarmupStableDecay
from moejax.train.training import Training


@dataclass(frozen=True)
class Leg:
    """A trunk or a branch: one stretch of steps under one schedule, with its own checkpoints."""

    name: str
    start: int
    end: int
    schedule: WarmupStableDecay
    steps_before: int
    """Steps of the legs before this one."""


def legs(training: Training) -> tuple[Leg, list[Leg]]:
    """The trunk, and a branch per budget."""
    optimizer = training.recipe.optimizer

    def schedule(decay_start: float, decay_steps: float) -> WarmupStableDecay:
        return WarmupStableDecay(
            peak=optimizer.learning_rate,
            warmup_steps=float(training.recipe.warmup_steps),
            decay_start=decay_start,
            decay_steps=decay_steps,
            final_share=optimizer.final_share,
            shape=optimizer.decay_shape,
        )

    trunk = Leg(TRUNK, 0, training.recipe.trunk_steps, schedule(math.inf, 1.0), 0)
    branches, before = [], trunk.end
    for budget in training.recipe.budgets_tokens:
        start, end = training.recipe.decay_start(budget), training.recipe.steps(budget)
        branches.append(Leg(branch_name(budget), start, end, schedule(float(start), float(end - start)), before))
        before += end - start
    return trunk, branches
