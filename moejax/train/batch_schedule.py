"""Define the batch size over a training run: constant, or increased in stages. Only this module converts tokens to
steps.

Smaller early batches give more steps for the same tokens (McCandlish et al. 2018: the critical batch size grows as the
loss falls). Large published training runs increase the batch over their first tokens (Brown et al. 2020; DeepSeek-AI
2024).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from moejax.errors import UserError
from moejax.ranges import Tokens


@dataclass(frozen=True, kw_only=True)
class RampStage:
    """A stage of the ramp: its steps use ``batch_tokens`` until the training run has read ``tokens`` in total."""

    tokens: Tokens
    batch_tokens: Tokens


@dataclass(frozen=True)
class BatchStage:
    """Consecutive steps with the same batch size."""

    first_step: int
    end: float
    """Step after the last one; infinite for the last stage."""
    tokens_before: int
    batch_tokens: int


@dataclass(frozen=True)
class BatchSchedule:
    """The batch size of every step: the stages of ``ramp``, followed by batches of ``last`` tokens."""

    ramp: tuple[RampStage, ...]
    last: int

    def stages(self) -> Iterator[BatchStage]:
        """Yield all stages in the order of steps; the last stage has no end."""
        step = tokens = 0
        for stage in self.ramp:
            end = step + (stage.tokens - tokens) // stage.batch_tokens
            yield BatchStage(step, float(end), tokens, stage.batch_tokens)
            step, tokens = end, stage.tokens
        yield BatchStage(step, math.inf, tokens, self.last)

    def at(self, step: int) -> BatchStage:
        """Return the stage that contains a step."""
        return next(stage for stage in self.stages() if step < stage.end)

    def sizes(self, start: int, end: int) -> set[int]:
        """Return the batch sizes that occur in steps ``start + 1`` to ``end``, in tokens."""
        return {stage.batch_tokens for stage in self.stages() if stage.first_step < end and stage.end > start}

    def tokens(self, steps: int) -> int:
        """Return the number of tokens in the first ``steps`` steps."""
        stage = self.at(steps)
        return stage.tokens_before + (steps - stage.first_step) * stage.batch_tokens

    def steps(self, tokens: int) -> int:
        """Return the number of whole steps in the first ``tokens`` tokens."""
        within = [stage for stage in self.stages() if stage.tokens_before <= max(tokens, 0)][-1]
        return within.first_step + (tokens - within.tokens_before) // within.batch_tokens

    def check(self, sequence_length: int, budgets_tokens: Sequence[int]) -> None:
        """Raise ``UserError`` if a stage or a budget does not end on a step."""
        before = RampStage(tokens=0, batch_tokens=0)
        for number, stage in enumerate(self.ramp):
            here, batch = f"batch_ramp[{number}]", stage.batch_tokens
            if batch < 1 or batch % sequence_length:
                raise UserError(
                    f"{here}.batch_tokens is {batch}; it must be a positive multiple of data.sequence_length, which "
                    f"is {sequence_length}."
                )
            if not before.batch_tokens < batch < self.last:
                raise UserError(
                    f"{here}.batch_tokens is {batch}; it must exceed {before.batch_tokens} and be less than the "
                    f"final batch_tokens, {self.last}. List the stages in ascending order."
                )
            steps, rest = divmod(stage.tokens - before.tokens, batch)
            if steps < 1 or rest:
                whole = before.tokens + max(steps, 1) * batch
                raise UserError(
                    f"{here} ends at {stage.tokens:,} tokens, but its steps of {batch:,} tokens start at "
                    f"{before.tokens:,} tokens, so it would end within a step; end it at {whole:,}, or at another "
                    "whole step."
                )
            before = stage
        for budget in budgets_tokens if self.ramp else ():
            steps = self.steps(budget)
            if self.tokens(steps) != budget:
                around = f"{self.tokens(steps):,} or {self.tokens(steps + 1):,}"
                raise UserError(f"The budget of {budget:,} tokens ends within a step of the batch ramp; give {around}.")
