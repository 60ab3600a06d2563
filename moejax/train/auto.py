"""Choose learning rate and batch size by a hyperparameter law if a recipe leaves them open."""

from __future__ import annotations

from dataclasses import dataclass, replace

from moejax.config import unknown
from moejax.errors import UserError
from moejax.laws.budget.peak_rate import LAWS, counted, peak_rate
from moejax.train.training import Training


@dataclass(frozen=True)
class Chosen:
    """A training without open hyperparameters, and their derivation."""

    training: Training
    derivation: tuple[str, ...] = ()
    """Lines for people; none if nothing was open."""


def choose_hyperparameters(training: Training) -> Chosen:
    """Replace a learning rate of 0 and a ``batch_tokens`` of 0 by ``recipe.hyperparameters``.

    The law is evaluated at the longest budget (``peak_rate.counted``). The batch is rounded to whole sequences that the
    microbatches and the mesh's given axes divide. The devices along an axis of -1 are not known yet.

    Raises:
      UserError: the law is not known, or a longest budget too short for one batch.
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
    if open_batch:
        found = float(LAWS[named].law(design)["batch_tokens"])
        together = recipe.microbatches * recipe.mesh.least_token_shards
        batch = max(1, round(found / (length * together))) * length * together
        recipe = replace(recipe, batch_tokens=batch)
        lines.append(f"  batch_tokens = {batch:,}: {found:,.0f} in multiples of {together} sequences of {length}")
    return Chosen(replace(training, recipe=recipe), (*lines, *(f"  {sentence}" for sentence in rate.beyond)))
