"""Derive a training's resource request from the study's estimate: chips, processes, memory, time."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jax.sharding import AbstractMesh

from moejax.errors import UserError
from moejax.laws.chips import Chip
from moejax.plan.analytic_estimate import step_bytes
from moejax.plan.search import ROOM
from moejax.say import say
from moejax.sharding import MESH_AXES
from moejax.train.devices import check_products
from moejax.train.training import Training

if TYPE_CHECKING:
    from moejax.study.estimate import EstimatedTraining

MOST_MINUTES = 24 * 60
"""A job that is not done after a day is queued again, to make room for others."""
LEAST_MINUTES = 30
"""Time for compilation, which dominates for small models."""
SLACK = 2.0
"""Ratio of the time limit to the estimated time; a stopped job resumes later."""
MOST_CHIPS = 1 << 16


@dataclass(frozen=True, kw_only=True)
class ResourceRequest:
    """Resources that one training requests from an engine. The defaults are one process on one machine's CPU."""

    chips: int = 0
    """Number of accelerators; 0 for a CPU."""
    topology: str = ""
    """The TPU slice, as ``moejax.plan.topology`` writes it; empty for other chips."""
    nodes: int = 1
    """Number of machines, over all slices."""
    processes: int = 1
    """Number of processes of the training, over all machines."""
    cores: int = 1
    """CPU cores of each process."""
    memory_bytes: int = 0
    """Host memory of each machine; 0 uses the engine's default."""
    minutes: int = 0
    """Time limit, after which an engine may stop the job to resume it later; 0 uses the engine's default."""


def gpu_sizes(per_node: int) -> list[int]:
    """Return the available numbers of GPUs in ascending order: a part of a machine, or whole machines."""
    return [*(size for size in (1, 2, 4, 8) if size < per_node), *range(per_node, MOST_CHIPS, per_node)]


def mesh_axes(training: Training, devices: int, slices: int = 1) -> dict[str, int]:
    """Return the sizes of a training's mesh axes on ``devices`` devices.

    Raises:
      UserError: the mesh or a batch does not divide into them.
    """
    shape = training.recipe.mesh.sizes(devices, slices)
    training.check_mesh(AbstractMesh(shape, MESH_AXES))
    return dict(zip(MESH_AXES, shape, strict=True))


def chips_for(
    training: Training, estimated: EstimatedTraining, device: Chip, sizes: Iterable[int], slices: int = 1
) -> int:
    """Return the smallest available number of devices that holds a training's step and divides its mesh and batch.

    Each of several ``slices`` holds all of the state. The memory of a step is an estimate (``step_bytes``), so if only
    one number is available, an excess is only a warning.

    Raises:
      UserError: no number fits, or the device has no products of the requested 8-bit type.
    """
    mesh, name = training.recipe.mesh, training.name
    check_products(training.recipe.runtime, device)
    if estimated.chips_at_least is None:
        raise UserError(f"{name}: one sequence needs more memory than a chip has; take another --chip.")
    if estimated.chips_at_least > 1 and mesh.fsdp == mesh.expert == mesh.tensor == 1:
        raise UserError(
            f"{name} needs {estimated.chips_at_least} chips to hold its state, but with recipe.mesh.fsdp=1 each chip "
            f"holds all of it: spread it with --config.recipe.mesh.fsdp=-1 --config.recipe.mesh.data=1."
        )
    asked, why = list(sizes), ""
    needed: dict[int, float] = {}
    for size in asked:
        if size // slices >= estimated.chips_at_least:
            try:
                axes = mesh_axes(training, size, slices)
            except UserError as error:
                why = why or f" Of {size:,}: {error}"
                continue
            needed[size] = step_bytes(training, axes, "tpu" if device.torus_dimensions else "gpu")
            if needed[size] <= ROOM * device.memory_bytes:
                return size
    if not needed:
        least, named = f"{name} needs at least {estimated.chips_at_least} chips", len(asked) == 1
        raise UserError(
            f"{least}, and {asked[0]:,}, which were asked for, will not do; ask for another number, or change "
            f"recipe.mesh or batch_tokens.{why}"
            if named
            else f"{least}, and no number of them that can be had will do; change recipe.mesh, batch_tokens or --chip."
            f"{why}"
        )
    least = min(needed, key=lambda size: needed[size])
    said = (
        f"{name}: by arithmetic a step takes {needed[least] / 1e9:,.0f} GB on each of {least:,} chips, and "
        f"{ROOM:.0%} of {device.name} is {ROOM * device.memory_bytes / 1e9:,.0f} GB; choose another "
        f"recipe.mesh, recipe.runtime.remat or recipe.microbatches, of which moejax plan --search finds those that fit"
    )
    if len(asked) > 1:
        raise UserError(f"{said}, or name the number of chips yourself.")
    say(f"moejax: {said}.")
    return least


def minutes_for(estimated: EstimatedTraining, chips: int) -> int:
    """Return the time limit of a job: twice the estimate, at least half an hour and at most a day."""
    wanted = math.ceil(SLACK * 60 * estimated.chip_hours / max(chips, 1))
    return min(max(wanted, LEAST_MINUTES), MOST_MINUTES)
