"""Estimate memory and time of a training run on a mesh without compilation, to choose candidates worth compiling.

An estimate takes milliseconds. It counts the bytes that the program itself sends and holds; additions and savings by
XLA are not known before compilation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from moejax.architecture import Architecture
from moejax.kernels.table import preferred
from moejax.model.runtime import kept_names
from moejax.plan.counts import mtp_params, named_activations, params, training_memory
from moejax.plan.interconnect import interconnect
from moejax.plan.plan import mesh_sizes, parameter_bytes, slice_mesh_sizes
from moejax.plan.program_time import filled_rows
from moejax.plan.step_time import Roofline, roofline, value_bytes
from moejax.plan.topology import CUBE, Topology
from moejax.sharding import DATA, DCN_DATA
from moejax.train.step import moment_bytes
from moejax.train.training import Training


@dataclass(frozen=True, kw_only=True)
class StepMemory:
    """Estimated bytes of a step on one device."""

    parameters: float
    """Float32 master weights."""
    optimizer_state: float
    ema: float
    gradients: float
    activations: float
    """Activations that the layers keep for the backward pass."""
    gathered_weights: float
    """Weights of the layers that are computed, and of the vocabulary, in the compute type."""
    expert_rows: float
    """Inputs, hidden units and outputs of the experts of one layer."""

    @property
    def total(self) -> float:
        """Sum of all components."""
        return math.fsum(vars(self).values())


@dataclass(frozen=True, kw_only=True)
class AnalyticEstimate:
    """Estimated memory and time of a training run, before compilation."""

    memory: StepMemory
    roofline: Roofline | None
    """Roofline of a step; None if the chip's data are unknown."""


def analytic_estimate(training: Training, topology: Topology) -> AnalyticEstimate:
    """Return the analytic estimate of a training run on a topology."""
    mesh = mesh_sizes(training, topology)
    step_roofline = None
    if topology.chip is not None:
        inside = slice_mesh_sizes(training, topology)
        links = interconnect(topology, inside)
        assert links is not None
        assert topology.device is not None
        slice_devices = topology.devices // topology.slices
        seconds: dict[str, float] = {}
        for kind, axes, bytes_ in communication_volume(training, mesh, topology.platform):
            if axes and bytes_:
                name = "+".join(axes)
                if topology.slices > 1 and DATA in axes:
                    # The sum within slices comes first; each device then sends its part to the other slices.
                    part = bytes_ / math.prod(inside[axis] for axis in axes)
                    seconds[DCN_DATA] = seconds.get(DCN_DATA, 0.0) + links.seconds(kind, (DCN_DATA,), part)
                if math.prod(inside[axis] for axis in axes) == slice_devices and _is_added_up(kind, topology):
                    kind = "all-reduce"
                seconds[name] = seconds.get(name, 0.0) + links.seconds(kind, axes, bytes_)
        step_roofline = roofline(training, mesh, topology.device, parameter_bytes(training, mesh), seconds)
    return AnalyticEstimate(memory=step_memory(training, mesh, topology.platform), roofline=step_roofline)


def _is_added_up(kind: str, topology: Topology) -> bool:
    """Return whether XLA's TPU compiler replaces a gather or scatter over a whole slice by an all-reduce with twice the
    bytes.

    Compiled programs (libtpu 0.0.42.1) show these replacements. Gathers: on v4 and v5p from 4x4x4 up, on tpu7x from
    2x4x4 up, never on 2D slices. Scatters: on v4 and v5p from 2x2x2 up, on v5e and v6e from 4x4 up, never on tpu7x.
    """
    three, chips = len(topology.shape) == 3, topology.chips_of_slice
    if kind == "all-gather":
        cubes = all(size % CUBE == 0 for size in topology.shape)
        return three and (cubes or (topology.chip_name == "tpu7x" and chips >= 32))
    scatters = topology.platform == "tpu" and topology.chip_name != "tpu7x"
    return kind == "reduce-scatter" and scatters and chips >= (8 if three else 16)


def communication_volume(
    training: Training, mesh: Mapping[str, int], platform: str
) -> list[tuple[str, tuple[str, ...], float]]:
    """Return the kind, axes and bytes of all collectives of a step on ``tpu``, ``gpu`` or ``cpu``. Bytes are counted
    like ``Collective.bytes``.
    """
    recipe, a = training.recipe, training.architecture
    value, added, parts = value_bytes(training), _added_bytes(training), recipe.microbatches
    again, forward = recipe.runtime.remat != "none", 1 + training.counted_share
    counts = params(a)
    layers, moe_layers = a.num_layers + a.num_mtp_layers, len(a.routed_layers)
    total, routed = _of_training(a)
    experts = routed / (mesh["expert"] * mesh["tensor"])
    unembedding = float(counts.unembedding or counts.embedding) / mesh["tensor"]
    tables = float(counts.embedding) / mesh["tensor"] + unembedding
    others = (total - routed - float(counts.embedding + counts.unembedding)) / mesh["tensor"]
    # XLA gathers 8-bit projections after quantization.
    of_others = value if recipe.runtime.matmul_quantization == "none" else 1
    # XLA hoists the gather of embedding tables out of the loop over microbatches. Other weights are gathered in each
    # forward and backward pass of each microbatch; kept experts are not gathered again.
    met = tables * value + parts * ((forward + again) * experts * value + (forward + 1) * others * of_others)
    # The gradients of gathered weights are reduced, those of embedding tables in float32.
    same = tables * 4 + others * added
    fsdp = _present(mesh, "fsdp")
    volumes = [("all-gather", fsdp, met), ("reduce-scatter", fsdp, (same + experts * added) * parts)]
    # Each device reduces its remaining part with the devices that hold the same shard.
    volumes.append(("all-reduce", _present(mesh, "data", "expert"), same / mesh["fsdp"] * parts))
    volumes.append(("all-reduce", _present(mesh, "data"), experts * added / mesh["fsdp"] * parts))
    tokens = recipe.batch_tokens / (mesh["data"] * mesh["fsdp"] * mesh["expert"])
    expert = _present(mesh, "expert")
    if expert and recipe.runtime.expert_communication == "all_gather":
        whole = tokens * mesh["expert"] * a.model_dim * value * moe_layers
        volumes += [("all-gather", expert, (1 + forward + again) * whole)]
        volumes += [("reduce-scatter", expert, (1 + forward) * whole)]
    elif expert:
        rows = tokens * a.top_k * a.model_dim * value * moe_layers
        # Buffers include the rows that a balanced routing leaves empty.
        buffers = rows / filled_rows(training, mesh)
        if _gathers_rows(training, platform):
            # Dispatch gathers all rows that leave devices; the return gathers all buffers.
            there, back = mesh["expert"] * rows, mesh["expert"] * buffers
            volumes += [("all-gather", expert, (forward + again) * there + forward * back)]
            volumes += [("reduce-scatter", expert, there + back)]
        else:
            kind = recipe.runtime.expert_communication.replace("_", "-")
            # The dense exchange sends whole buffers; the ragged exchange sends only filled rows.
            sent = buffers if kind == "all-to-all" else rows
            volumes.append((kind, expert, (2 + 2 * forward + again) * sent))
    whole = tokens * a.model_dim * value * layers
    volumes.append(("all-reduce", _present(mesh, "tensor"), (2 + 2 * forward + again) * whole))
    return volumes


def _gathers_rows(training: Training, platform: str) -> bool:
    """Return whether the platform lacks a ragged all-to-all and gathers all rows instead
    (``moejax.kernels.ragged_all_to_all``).
    """
    is_ragged = training.recipe.runtime.expert_communication == "ragged_all_to_all"
    return is_ragged and preferred("ragged_all_to_all", platform) == "reference"


def _of_training(a: Architecture) -> tuple[float, float]:
    of_model, of_modules = params(a), mtp_params(a)
    return float(of_model.total + of_modules.total), float(of_model.routed_experts + of_modules.routed_experts)


def step_memory(training: Training, mesh: Mapping[str, int], platform: str) -> StepMemory:
    """Return the bytes of a step on one device of ``tpu``, ``gpu`` or ``cpu``: state, gradients, saved activations and
    the largest temporaries.
    """
    recipe, a = training.recipe, training.architecture
    held = parameter_bytes(training, mesh)
    value, added = value_bytes(training), _added_bytes(training)
    tokens = recipe.batch_tokens / recipe.microbatches / (mesh["data"] * mesh["fsdp"] * mesh["expert"])
    room = 1 / filled_rows(training, mesh)
    counts, layers = params(a), max(len(a.routed_layers), 1)
    matrices = _of_training(a)[1] / layers / (mesh["expert"] * mesh["tensor"])
    # Matrices in the compute type of one layer and the next, and gradients of one layer. Without remat, the matrices of
    # every layer are kept for the backward pass. The unembedding is counted in both the compute type and float32.
    gathered = matrices * ((max(layers, 2) if recipe.runtime.remat == "none" else 2) * value + added)
    gathered += float(counts.unembedding or counts.embedding) / mesh["tensor"] * (value + 4)
    rows = tokens * a.top_k * room * (3 * a.model_dim + 4 * a.expert_hidden / mesh["tensor"]) * value
    if _gathers_rows(training, platform):
        # Without a ragged exchange, a device also holds the buffers of all devices along ``expert``.
        rows += mesh["expert"] * tokens * a.top_k * room * a.model_dim * value
    return StepMemory(
        parameters=held,
        optimizer_state=held * moment_bytes(recipe.optimizer, a) / 4,
        ema=held if recipe.ema_decay else 0,
        # Gradients have the type of their reduction, unless microbatches accumulate them in float32.
        gradients=held * (1 if recipe.microbatches > 1 or added == 4 else 0.75),
        activations=_kept(training, tokens, value, room),
        gathered_weights=gathered,
        expert_rows=rows,
    )


def _kept(training: Training, tokens: float, value: int, room: float) -> float:
    """Return the bytes that the layers keep for the backward pass.

    ``dots`` keeps everything except the experts' rows. ``full`` keeps only the layers' inputs. Named policies also keep
    the named activations. The experts' rows are scaled by ``room``, the size of a device's buffer.
    """
    a = training.architecture
    every, few = (
        float(training_memory(a, tokens, activation_bytes=value, recompute=again).activations)
        for again in (False, True)
    )
    rows = tokens * value * len(a.routed_layers) * a.top_k * (2 * a.model_dim + 3 * a.expert_hidden)
    remat, named = training.recipe.runtime.remat, named_activations(a, training.recipe.data.sequence_length)
    rooms, names = {"moe_gate_up": room}, kept_names(remat)
    kept = few + tokens * value * sum(rooms.get(name, 1.0) * float(named[name].values) for name in names)
    kept += tokens * 4 * sum(float(named[name].sums) for name in names)
    return {"none": every, "dots": max(every - rows, few)}.get(remat, min(kept, every))


def _present(mesh: Mapping[str, int], *axes: str) -> tuple[str, ...]:
    return tuple(axis for axis in axes if mesh[axis] > 1)


def _added_bytes(training: Training) -> int:
    """Return the bytes per number when a layer's gradients are reduced across devices."""
    return value_bytes(training) if training.recipe.runtime.reduce_dtype == "bfloat16" else 4


def divisors(number: int) -> list[int]:
    """Return all divisors in ascending order."""
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})
