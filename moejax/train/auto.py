"""Choose learning rate and batch size by a hyperparameter law if a recipe leaves them open."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from moejax.config import unknown
from moejax.errors import UserError
from moejax.laws.budget.peak_rate import LAWS, counted, peak_rate
from moejax.train.training import Training

OTHER_BATCH = 2.0
"""Ratio of the configured batch size to the law's above which a warning says that the law's learning rate is for
another batch size.
"""


@dataclass(frozen=True)
class Chosen:
    """A training run with all hyperparameters chosen, and their derivation."""

    training: Training
    derivation: tuple[str, ...] = ()
    """Text lines for the user; none if nothing was open."""


def choose_hyperparameters(training: Training) -> Chosen:
    """Replace a learning rate of 0 and a ``batch_tokens`` of 0 by the law ``recipe.hyperparameters``.

    The law is evaluated at the longest budget (``peak_rate.counted``). The batch is rounded to a power of two
    sequences, which meshes and microbatches divide, so that the numbers do not depend on them.

    Raises:
      UserError: the law is unknown, or the longest budget is too short for one batch.
    """
    recipe, named = training.recipe, training.recipe.hyperparameters
    if named not in LAWS:
        raise UserError(unknown(f"recipe.hyperparameters {named!r}", named, list(LAWS)))
    open_rate, open_batch = recipe.optimizer.learning_rate == 0, recipe.batch_tokens == 0
    if not (open_rate or open_batch) or not recipe.budgets_tokens:
        return Chosen(training)
    length, budget = recipe.data.sequence_length, max(recipe.budgets_tokens)
    design = counted(training.architecture, budget, length)
    rate = peak_rate(design, named)
    assert rate is not None, "an architecture and its tokens have all inputs"
    lines = [f"{named} ({rate.source}) for {budget:,} tokens, {design.flops:.3g} FLOPs without vocabulary:"]
    if open_rate:
        recipe = replace(recipe, optimizer=replace(recipe.optimizer, learning_rate=rate.value))
        lines += [f"  optimizer.learning_rate = {rate.value:.3g}", f"  {rate.spread}"]
    best = float(LAWS[named].law(design)["batch_tokens"])
    if open_batch:
        batch = 2 ** max(0, round(math.log2(best / length))) * length
        recipe = replace(recipe, batch_tokens=batch)
        lines.append(f"  batch_tokens = {batch:,}: {best:,.0f} rounded to a power of two of sequences of {length}")
    elif not best / OTHER_BATCH <= recipe.batch_tokens <= best * OTHER_BATCH:
        lines.append(
            f"  The learning rate is for batches of {best:,.0f} tokens, but batch_tokens is "
            f"{recipe.batch_tokens:,}; sweep the learning rate."
        )
    return Chosen(replace(training, recipe=recipe), (*lines, *(f"  {sentence}" for sentence in rate.beyond)))
