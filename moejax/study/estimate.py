"""Count the runs of a study and estimate their cost before training, without reading data; derive resource requests."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from jax.sharding import AbstractMesh

from moejax.errors import UserError
from moejax.laws.accounting import flops_per_token, params
from moejax.laws.chips import CHIPS, Chip, flops_per_hour
from moejax.laws.memory import training_memory
from moejax.model.runtime import REMAT_POLICIES
from moejax.plan.analytic_estimate import step_memory
from moejax.plan.search import ROOM
from moejax.plan.topology import parse
from moejax.quantities import format
from moejax.say import say
from moejax.sharding import MESH_AXES
from moejax.study.downstream import asked_tasks, has_harness, of_harness
from moejax.study.study import Study, work
from moejax.train.devices import check_products
from moejax.train.step import moment_bytes
from moejax.train.training import Recipe, Training
from moejax.wording import counted, listed, some

if TYPE_CHECKING:
    from moejax.study.estimate import EstimatedTraining


USABLE_MEMORY = 0.9
"""Share of a chip's memory that arrays can use; the program and fragmentation use the rest."""


@dataclass(frozen=True, kw_only=True)
class EstimatedRun:
    """A planned row of the run table: a model at one budget."""

    model: str
    params_total: int
    params_active: int
    tokens: int
    flops: float
    """FLOPs of training to this budget alone. Several budgets cost less than the sum, because they share a trunk."""


@dataclass(frozen=True, kw_only=True)
class EstimatedTraining:
    """One training run: a trunk with the branches of all its budgets."""

    model: str
    params_total: int
    params_active: int
    budgets_tokens: tuple[int, ...]
    """Budgets rounded to whole batches."""
    total_tokens: int
    """Tokens of the trunk and all branches."""
    batch_tokens: int
    learning_rate: float
    flops: float
    """FLOPs of the trunk and all branches, counted as in laws, with the masked half of the attention scores."""
    state_bytes: float
    """Bytes of parameters, gradients and AdamW's moments, summed over all chips."""
    sequence_bytes: float
    """Bytes of one sequence's bfloat16 activations and logits with full rematerialization: the minimum on one chip.
    """
    chips_at_least: int | None
    """Minimum number of chips that hold an even shard of the state and one sequence each; None if no number
    suffices.
    """
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
    """Forward FLOPs per token of task text, summed over all checkpoints; the study's totals exclude them."""
    needs_harness: bool
    """True if a task needs lm-evaluation-harness."""
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
    """Assumed model FLOPs utilization (MFU): the rate of the model's FLOPs as a share of the chip's peak. The masked
    half of the attention scores does not count, as in training runs and plans.
    """
    price: float | None
    """Price of one chip per hour."""
    trainings: list[EstimatedTraining]
    runs: list[EstimatedRun]
    downstream: EstimatedDownstream | None
    """Downstream evaluation; None if the study has no tasks."""

    @property
    def totals(self) -> dict[str, float]:
        """Sums over the study, keyed by the names in ``Stated.quantity``."""
        sums = {
            "models": float(len(self.trainings)),
            "runs": float(len(self.runs)),
            "tokens": float(sum(training.total_tokens for training in self.trainings)),
            "tokens_without_shared_trunks": float(sum(run.tokens for run in self.runs)),
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
        raise UserError(f"The MFU is {mfu:g}; give a share of the peak above 0 and at most 1.")
    if price is not None and not price >= 0:
        raise UserError(f"The price is {price:g}; give the price of one chip per hour, at least 0.")
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
    moments = moment_bytes(recipe.optimizer, architecture)
    held = training_memory(architecture, recipe.data.sequence_length, optimizer_bytes=moments, recompute=True)
    state = float(held.parameters + held.gradients + held.optimizer_state)
    sequence = float(held.activations + held.logits)
    left = USABLE_MEMORY * chip.memory_bytes - sequence
    hours = chip_hours(training, chip, mfu)
    return EstimatedTraining(
        model=training.name,
        params_total=counts.total,
        params_active=counts.active,
        budgets_tokens=tuple(recipe.tokens(recipe.steps(budget)) for budget in recipe.budgets_tokens),
        total_tokens=recipe.total_tokens,
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


def chip_hours(training: Training, chip: Chip, mfu: float) -> float:
    """Return the estimated chip-hours of a training run with the branches of all budgets."""
    recipe = training.recipe
    per_token = flops_per_token(training.architecture, recipe.data.sequence_length).training_causal
    return float(per_token * recipe.total_tokens) / flops_per_hour(chip.flops_per_second, mfu)


def _decay_note(recipe: Recipe) -> str:
    """Return a text about the tokens that branches read from ``data.decay_mixture``; empty if there are none."""
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


MOST_MINUTES = 24 * 60
"""Maximum time limit of a job. A job that is not done after a day is queued again, so that other jobs can start."""
LEAST_MINUTES = 30
"""Minimum time limit of a job. It allows for compilation, which dominates for small models."""
SLACK = 2.0
"""Ratio of the time limit to the estimated time; a stopped job resumes later."""
MOST_CHIPS = 1 << 16


@dataclass(frozen=True, kw_only=True)
class ResourceRequest:
    """Resources that one training run requests from an engine. The defaults are one process on one machine's CPU."""

    chips: int = 0
    """Number of accelerators; 0 for a CPU."""
    chip: str = ""
    """Name of the accelerator for which ``chips`` and ``minutes`` were estimated; empty for a CPU."""
    topology: str = ""
    """The TPU slice, as ``moejax.plan.topology`` writes it; empty for other chips."""
    nodes: int = 1
    """Number of machines, over all slices."""
    processes: int = 1
    """Number of processes of the training run, over all machines."""
    cores: int = 1
    """CPU cores of each process."""
    memory_bytes: int = 0
    """Host memory of each machine; 0 uses the engine's default."""
    minutes: int = 0
    """Time limit, after which an engine may stop the job to resume it later; 0 uses the engine's default."""


def gpu_sizes(per_node: int) -> list[int]:
    """Return the possible numbers of GPUs in ascending order: a part of a machine, or whole machines."""
    return [*(size for size in (1, 2, 4, 8) if size < per_node), *range(per_node, MOST_CHIPS, per_node)]


def mesh_axes(training: Training, devices: int, slices: int = 1) -> dict[str, int]:
    """Return the sizes of a training run's mesh axes on ``devices`` devices, keyed by axis.

    Raises:
      UserError: the mesh or a batch cannot be split over the devices.
    """
    shape = training.recipe.mesh.sizes(devices, slices)
    training.check_mesh(AbstractMesh(shape, MESH_AXES))
    return dict(zip(MESH_AXES, shape, strict=True))


def chips_for(
    training: Training, estimated: EstimatedTraining, device: Chip, sizes: Iterable[int], slices: int = 1
) -> int:
    """Return the smallest number of devices that can hold a training run's step and fits its mesh and batch. ``sizes``
    lists the available numbers.

    Each of several ``slices`` holds the whole state. The memory of a step is an estimate (``step_memory``), so
    exceeding the chip's memory is only a warning if ``sizes`` has one entry.

    Raises:
      UserError: no number fits, or the device does not support matmuls in the requested 8-bit type.
    """
    mesh, name = training.recipe.mesh, training.name
    check_products(training.recipe.runtime, device)
    if estimated.chips_at_least is None:
        raise UserError(f"{name}: one sequence needs more memory than a chip has; choose another --chip.")
    if estimated.chips_at_least > 1 and mesh.fsdp == mesh.expert == mesh.tensor == 1:
        raise UserError(
            f"{name} needs {estimated.chips_at_least} chips to hold its state, but with recipe.mesh.fsdp=1 each "
            "chip holds the whole state. Shard it with --config.recipe.mesh.fsdp=-1 --config.recipe.mesh.data=1."
        )
    asked, why = list(sizes), ""
    needed: dict[int, float] = {}
    for size in asked:
        if size // slices >= estimated.chips_at_least:
            try:
                axes = mesh_axes(training, size, slices)
            except UserError as error:
                why = why or f" With {size:,} chips: {error}"
                continue
            needed[size] = _step_bytes(training, axes, device)
            if needed[size] <= ROOM * device.memory_bytes:
                return size
    if not needed:
        needs, named = f"{estimated.chips_at_least} chips", len(asked) == 1
        raise UserError(
            f"{name} cannot be trained on {asked[0]:,} chips.{why or f' It needs at least {needs}.'} Request another "
            "number, or change recipe.mesh or batch_tokens; moejax plan --search --estimate finds meshes."
            if named
            else f"{name} needs at least {needs}, and no available number of chips works. Change recipe.mesh, "
            f"batch_tokens or --chip.{why}"
        )
    least = min(needed, key=lambda size: needed[size])
    said = (
        f"{name}: a step needs an estimated {needed[least] / 1e9:,.0f} GB on each of {least:,} chips, but "
        f"{ROOM:.0%} of {device.name} is {ROOM * device.memory_bytes / 1e9:,.0f} GB. Choose another recipe.mesh, "
        "recipe.runtime.remat or recipe.microbatches (moejax plan --search finds values that fit)"
    )
    if len(asked) > 1:
        raise UserError(f"{said}, or name the number of chips yourself.")
    say(f"moejax: {said}.")
    return least


def _step_bytes(training: Training, axes: Mapping[str, int], device: Chip) -> float:
    return step_memory(training, axes, "tpu" if device.torus_dimensions else "gpu").total


def remat_with_fewer_chips(
    training: Training, estimated: EstimatedTraining, device: Chip, sizes: Iterable[int], chips: int, slices: int = 1
) -> tuple[str, int] | None:
    """Return the remat policy that recomputes the least of those that need the fewest chips, with this number; None if
    no policy needs fewer than ``chips``.
    """
    recipe = training.recipe
    for size in (size for size in sizes if size < chips and size // slices >= (estimated.chips_at_least or chips)):
        for remat in REMAT_POLICIES:
            one = replace(training, recipe=replace(recipe, runtime=replace(recipe.runtime, remat=remat)))
            with contextlib.suppress(UserError):
                if _step_bytes(one, mesh_axes(one, size, slices), device) <= ROOM * device.memory_bytes:
                    return remat, size
    return None


def settings_text(training: Training) -> str:
    """Return the settings of a training run that determine its memory and time, and its data."""
    recipe, data = training.recipe, training.recipe.data
    parts = f"{microbatches} microbatches" if (microbatches := recipe.microbatches) > 1 else ""
    sources = some([part.source for part in data.parts]) or data.source
    settings = {
        "remat": recipe.runtime.remat,
        "compute_dtype": recipe.runtime.compute_dtype,
        "batch": f"{format(recipe.batch_tokens, 3)} tokens in sequences of {data.sequence_length:,}",
        "": parts,
        "budgets": f"{listed(format(budget, 3) for budget in recipe.budgets_tokens)} tokens",
        "learning rate": f"{recipe.optimizer.learning_rate:.3g}",
        "data": sources,
    }
    return ", ".join(f"{name} {value}".strip() for name, value in settings.items() if value)


def resources_text(training: Training, resources: ResourceRequest, mfu: float, price: float | None = None) -> str:
    """Return the chips, mesh, hours, chip-hours and cost of a training run with the requested resources."""
    if not resources.chips:
        limit = f"time limit {resources.minutes or MOST_MINUTES:,} minutes"
        return f"CPUs of {counted(resources.nodes, 'node')}, {limit}; no time is estimated for CPUs"
    topology = parse(resources.topology) if resources.topology else None
    devices, slices = (topology.devices, topology.slices) if topology else (resources.chips, 1)
    axes = mesh_axes(training, devices, slices)
    mesh = " ".join(f"{axis}={size}" for axis, size in axes.items() if size > 1) or "one device"
    chip = next(one for key, one in CHIPS.items() if resources.chip in (key, one.name))
    hours = chip_hours(training, chip, mfu)
    place = f"{resources.chips:,} {resources.chip} on {counted(resources.nodes, 'node')}"
    if topology:
        one = replace(topology, slices=1)
        place = f"{counted(slices, 'slice')} of {one.name} ({counted(resources.chips, 'chip')})"
    said = f"{place}, mesh {mesh}, about {format(hours / resources.chips, 3)} hours, {format(hours, 3)} chip-hours"
    said += "" if price is None else f", cost {format(hours * price, 3)} at {price:g} an hour"
    jobs = math.ceil(hours / resources.chips / (resources.minutes / 60)) if resources.minutes else 1
    return said + (
        f", in about {jobs} jobs of {resources.minutes / 60:.3g} hours, one after another" if jobs > 1 else ""
    )


def minutes_for(estimated: EstimatedTraining, chips: int) -> int:
    """Return the time limit of a job: twice the estimate, at least half an hour and at most a day."""
    wanted = math.ceil(SLACK * 60 * estimated.chip_hours / max(chips, 1))
    return min(max(wanted, LEAST_MINUTES), MOST_MINUTES)
