"""Count and price the runs of a study before training, without reading data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from moejax.errors import UserError
from moejax.laws.accounting import flops_per_token, params
from moejax.laws.chips import Chip
from moejax.laws.memory import training_memory
from moejax.study.downstream import asked_tasks, has_harness, of_harness
from moejax.study.study import Study, work
from moejax.train.training import Recipe, Training
from moejax.wording import listed

USABLE_MEMORY = 0.9
"""Share of a chip's memory for arrays; the program and fragmentation take the rest."""
SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, kw_only=True)
class EstimatedRun:
    """A future row of the run table: a model at one budget."""

    model: str
    params_total: int
    params_active: int
    tokens: int
    flops: float
    """FLOPs of a training to this budget alone. Budgets that share a trunk cost less together."""


@dataclass(frozen=True, kw_only=True)
class EstimatedTraining:
    """One training: a trunk with the branches of all its budgets."""

    model: str
    params_total: int
    params_active: int
    budgets_tokens: tuple[int, ...]
    """Budgets rounded to whole batches."""
    batch_tokens: int
    learning_rate: float
    flops: float
    """FLOPs of the trunk and all branches as laws count them, with the masked half of the attention scores."""
    state_bytes: float
    """Parameters, gradients and AdamW's moments in float32, over all chips."""
    sequence_bytes: float
    """Bytes of activations in bfloat16 and logits of one sequence with full rematerialization, the minimum on
    one chip.
    """
    chips_at_least: int | None
    """Minimum number of chips that hold the evenly sharded state and one sequence each; None if no number suffices."""
    chip_hours: float
    cost: float | None
    note: str


@dataclass(frozen=True, kw_only=True)
class EstimatedDownstream:
    """Downstream evaluation of a study's checkpoints. Task files are not read, so the number of texts is unknown."""

    tasks: int
    """Number of tasks and groups of tasks."""
    checkpoints: int
    flops_per_token: float
    """Forward FLOPs per token of a task's texts, over all checkpoints; not in the study's totals."""
    needs_harness: bool
    """True if a task belongs to lm-evaluation-harness."""
    has_harness: bool
    """True if lm-evaluation-harness is installed."""

    @property
    def scores(self) -> int:
        """Number of scores."""
        return self.tasks * self.checkpoints


@dataclass(frozen=True, kw_only=True)
class StudyEstimate:
    """A study's runs and their cost on one kind of chip."""

    study: str
    chip: Chip
    mfu: float
    """Assumed model FLOPs utilization: the share of the chip's peak that required products reach. The masked half of
    the attention scores does not count, as in trainings and plans.
    """
    price: float | None
    """Price of one chip per hour."""
    trainings: list[EstimatedTraining]
    runs: list[EstimatedRun]
    downstream: EstimatedDownstream | None
    """None if there are no tasks."""

    @property
    def totals(self) -> dict[str, float]:
        """Sums over the study, by the names that ``Stated.quantity`` uses."""
        sums = {
            "models": float(len(self.trainings)),
            "runs": float(len(self.runs)),
            "tokens": float(sum(run.tokens for run in self.runs)),
            "flops": sum(training.flops for training in self.trainings),
            "flops_without_shared_trunks": sum(run.flops for run in self.runs),
            "chip_hours": sum(training.chip_hours for training in self.trainings),
        }
        return sums if self.price is None else {**sums, "cost": sums["chip_hours"] * self.price}


def estimate(study: Study, chip: Chip, *, mfu: float, price: float | None = None) -> StudyEstimate:
    """Count and price every run of a study.

    Raises:
      UserError: the study is invalid, or the utilization or price is out of range.
    """
    study.check()
    if not 0 < mfu <= 1:
        raise UserError(f"The MFU is {mfu:g}; give the share of the peak that is reached, above 0 and at most 1.")
    if price is not None and not price >= 0:
        raise UserError(f"The price is {price:g}; give what one chip costs an hour, at least 0.")
    order = {name: place for place, name in enumerate(study.models)}
    trainings = sorted(study.trainings(), key=lambda training: order[training.name])
    return StudyEstimate(
        study=study.name,
        chip=chip,
        mfu=mfu,
        price=price,
        trainings=[_training(one, chip, mfu, price, study.notes.get(one.name, "")) for one in trainings],
        runs=[run for training in trainings for run in _runs(training)],
        downstream=_downstream(study, trainings),
    )


def _downstream(study: Study, trainings: Sequence[Training]) -> EstimatedDownstream | None:
    asked = asked_tasks(study)
    if not asked:
        return None
    forward = [
        # Evaluation uses no multi-token prediction modules.
        flops_per_token(one.architecture.replace(num_mtp_layers=0), one.recipe.data.sequence_length).forward
        * len(one.recipe.budgets_tokens)
        for one in trainings
    ]
    return EstimatedDownstream(
        tasks=len(asked),
        checkpoints=sum(len(one.recipe.budgets_tokens) for one in trainings),
        flops_per_token=float(sum(forward)),
        needs_harness=any(map(of_harness, asked)),
        has_harness=has_harness(),
    )


def _training(training: Training, chip: Chip, mfu: float, price: float | None, note: str) -> EstimatedTraining:
    recipe, architecture = training.recipe, training.architecture
    counts, flops = params(architecture), work(training)
    held = training_memory(architecture, recipe.data.sequence_length, recompute=True)
    state = float(held.parameters + held.gradients + held.optimizer_state)
    sequence = float(held.activations + held.logits)
    left = USABLE_MEMORY * chip.memory_bytes - sequence
    per_token = flops_per_token(architecture, recipe.data.sequence_length).training_causal
    hours = float(per_token * recipe.total_tokens) / (chip.flops_per_second * mfu) / SECONDS_PER_HOUR
    return EstimatedTraining(
        model=training.name,
        params_total=counts.total,
        params_active=counts.active,
        budgets_tokens=tuple(recipe.tokens(recipe.steps(budget)) for budget in recipe.budgets_tokens),
        batch_tokens=recipe.batch_tokens,
        learning_rate=recipe.optimizer.learning_rate,
        flops=flops,
        state_bytes=state,
        sequence_bytes=sequence,
        chips_at_least=math.ceil(state / left) if left > 0 else None,
        chip_hours=hours,
        cost=None if price is None else hours * price,
        note="; ".join(filter(None, (note, _decay_note(recipe)))),
    )


def _decay_note(recipe: Recipe) -> str:
    """Return the tokens that branches read from ``data.decay_mixture``, as text; empty if there is none."""
    weights = recipe.data.decay_mixture
    if not weights:
        return ""
    total = sum(weights.values())
    shares = listed(f"{100 * weight / total:.3g} % {name}" for name, weight in weights.items())
    tokens = [recipe.tokens(recipe.steps(b)) - recipe.tokens(recipe.decay_start(b)) for b in recipe.budgets_tokens]
    return f"decay on {listed(f'{count:.3g}' for count in tokens)} tokens of {shares}"


def _runs(training: Training) -> list[EstimatedRun]:
    recipe, counts = training.recipe, params(training.architecture)
    per_token = flops_per_token(training.architecture, recipe.data.sequence_length).training
    tokens = [recipe.tokens(recipe.steps(budget)) for budget in recipe.budgets_tokens]
    return [
        EstimatedRun(
            model=training.name,
            params_total=counts.total,
            params_active=counts.active,
            tokens=budget,
            flops=float(budget * per_token),
        )
        for budget in tokens
    ]
