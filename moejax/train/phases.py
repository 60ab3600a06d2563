"""Define the phases of a training: the trunk that all budgets share, and the branch of each budget."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from moejax.train.directory.metrics import TRUNK, branch_name
from moejax.train.schedule import Ramp, Schedule, WarmupStableDecay
from moejax.train.training import Recipe, Training


@dataclass(frozen=True)
class Phase:
    """A trunk or a branch: consecutive steps under one schedule, with its own checkpoints."""

    name: str
    start: int
    end: int
    schedule: Schedule
    steps_before: int
    """Number of steps in the phases before this one."""

    @property
    def decay_start(self) -> int | None:
        """Step of a branch after which its learning rate decays and ``data.decay_mixture`` is read; None for the
        trunk."""
        return None if self.name == TRUNK else self.start

    def steps_done(self, step: int) -> int:
        """Return the number of steps over trunk and branches after ``step`` of this phase."""
        return self.steps_before + step - self.start


def phases(training: Training) -> tuple[Phase, list[Phase]]:
    """Return the trunk, and a branch per budget."""
    recipe, optimizer = training.recipe, training.recipe.optimizer
    last = recipe.batch_tokens

    def schedule(decay_start: float, decay_steps: float) -> Schedule:
        learning_rate = WarmupStableDecay(
            peak=optimizer.learning_rate,
            warmup_steps=recipe.tokens(recipe.warmup_steps) / last,
            decay_start=decay_start,
            decay_steps=decay_steps,
            final_share=optimizer.final_share,
            ramp=_ramp(recipe),
            shape=optimizer.decay_shape,
        )
        return Schedule(learning_rate=learning_rate, weight_decay=float(optimizer.weight_decay))

    trunk = Phase(TRUNK, 0, recipe.trunk_steps, schedule(math.inf, 1.0), 0)
    branches, before = [], trunk.end
    for budget in recipe.budgets_tokens:
        start, end = recipe.decay_start(budget), recipe.steps(budget)
        falls = schedule(recipe.tokens(start) / last, (recipe.tokens(end) - recipe.tokens(start)) / last)
        branches.append(Phase(branch_name(budget), start, end, falls, before))
        before += end - start
    return trunk, branches


def _ramp(recipe: Recipe) -> Ramp | None:
    if not recipe.batch_ramp:
        return None
    stages, last = list(recipe.batch_schedule.stages()), recipe.batch_tokens
    share = np.array([stage.batch_tokens / last for stage in stages], np.float32)
    return Ramp(
        first_step=np.array([stage.first_step for stage in stages], np.float32),
        before=np.array([stage.tokens_before / last for stage in stages], np.float32),
        share=share,
        rate=share**recipe.optimizer.batch_exponent,
    )
