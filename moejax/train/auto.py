"""Choose learning rate and batch size by a hyperparameter law if a recipe leaves them open."""

from __future__ import annotations

from dataclasses import dataclass, replace

from moejax.config import unknown
from moejax.errors import UserError
from moejax.laws.budget.hyperparameters import PUBLISHED
from moejax.laws.conventions import FLOPS
from moejax.laws.design import Design
from moejax.train.training import Training


@dataclass(frozen=True)
class Chosen:
    """A training without open hyperparameters, and their derivation."""

    training: Training
    derivation: str
    """Human-readable paragraph; empty if nothing was open."""


def choose_hyperparameters(training: Training) -> Chosen:
    """Replace a learning rate of 0 and a ``batch_tokens`` of 0 by ``recipe.hyperparameters``.

    The law is evaluated at the longest budget. Its compute is counted as in the law's paper (Tian et al. 2025, App. I).
    The batch is rounded to whole sequences.

    Raises:
      UserError: the law is not known, or a longest budget too short for one batch.
    """
    recipe, named = training.recipe, training.recipe.hyperparameters
    if named not in PUBLISHED:
        raise UserError(unknown(f"recipe.hyperparameters {named!r}", named, list(PUBLISHED)))
    open_rate, open_batch = recipe.optimizer.learning_rate == 0, recipe.batch_tokens == 0
    if not (open_rate or open_batch) or not recipe.budgets_tokens:
        return Chosen(training, "")
    length, budget = recipe.data.sequence_length, max(recipe.budgets_tokens)
    flops = FLOPS["tian"].per_token(training.architecture, length) * budget
    law = PUBLISHED[named]
    found = law.law(Design(flops=float(flops)))
    lines = [f"{named} ({law.source}) for {budget:,} tokens, {flops:.3g} FLOPs without vocabulary:"]
    if open_rate:
        rate = float(f"{float(found['learning_rate']):.3g}")
        recipe = replace(recipe, optimizer=replace(recipe.optimizer, learning_rate=rate))
        lines.append(f"  optimizer.learning_rate = {rate:.3g}")
    if open_batch:
        batch = max(1, round(float(found["batch_tokens"]) / length)) * length
        recipe = replace(recipe, batch_tokens=batch)
        lines.append(f"  batch_tokens = {batch:,}: {found['batch_tokens']:,.0f} in whole sequences of {length}")
    low, high = law.fitted["flops"]
    if not low <= flops <= high:
        lines.append(f"  It was fitted from {low:.0e} to {high:.0e} FLOPs, so this is an extrapolation.")
    return Chosen(replace(training, recipe=recipe), "\n".join(lines))
