"""Compile a training run's step and evaluation for a topology, and report memory, work, communication and time."""

from __future__ import annotations

import contextlib
import functools
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding

from moejax.architecture import Architecture
from moejax.kernels.private_api import tracing_for_gpu
from moejax.laws.accounting import flops_per_token
from moejax.model import transformer
from moejax.plan.collectives import Collective, collectives
from moejax.plan.interconnect import Interconnect, interconnect
from moejax.plan.program_time import ProgramTime, filled_rows, program_time
from moejax.plan.step_time import Roofline, evaluation_roofline, model_flops, roofline, step_flops
from moejax.plan.topology import Topology, parse
from moejax.result import Plotted, Result, imported
from moejax.sharding import DCN_DATA, MESH_AXES, partition_spec
from moejax.train.devices import check_quantization
from moejax.train.mesh import batch_sharding, make_mesh
from moejax.train.program import Program, make_program
from moejax.train.training import Training

SECONDS_PER_DAY = 86_400.0


@dataclass(frozen=True, kw_only=True)
class ChipMemory:
    """Bytes on one chip.

    ``total`` is the sum of all fields except ``gradients``, ``limit`` and the smaller of ``temporaries`` and
    ``evaluation``.
    """

    parameters: int
    """Float32 master weights."""
    optimizer_state: int
    other_state: int
    """Balance bias, EMA, counters."""
    batch: int
    """Tokens of one step's batch."""
    temporaries: int
    """Peak temporary memory within a step: gradients, activations, gathered weights, buffers."""
    program: int
    """Compiled code of step and evaluation."""
    gradients: int
    """Float32 gradients, sharded like the parameters; a part of ``temporaries``."""
    limit: int
    """Memory of the chip; 0 if unknown."""
    evaluation: int = 0
    """Peak temporary memory within an evaluation, which never coincides with a step."""

    @property
    def total(self) -> int:
        """Total bytes in a step or an evaluation, whichever needs more."""
        state = self.parameters + self.optimizer_state + self.other_state
        return state + self.batch + max(self.temporaries, self.evaluation) + self.program

    @property
    def is_known(self) -> bool:
        """False if XLA refused the program without stating how much memory it needs; ``total`` is then too small."""
        return self.temporaries > 0

    @property
    def left(self) -> int:
        """Unused bytes; negative if the training run does not fit."""
        return self.limit - self.total


def shard_bytes(arrays: Any, shardings: Any) -> int:
    """Return the bytes of a tree of arrays on one device."""

    def of(array: Any, sharding: Any) -> int:
        return math.prod(sharding.shard_shape(array.shape)) * array.dtype.itemsize

    return sum(jax.tree.leaves(jax.tree.map(of, arrays, shardings)))


def abstract_mesh(sizes: Mapping[str, int]) -> AbstractMesh:
    """Return a mesh with these axis sizes but without devices."""
    return AbstractMesh(
        tuple(sizes[axis] for axis in MESH_AXES), MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES)
    )


def parameter_bytes(training: Training, mesh: Mapping[str, int]) -> int:
    """Return the parameter bytes on one chip of a mesh with these axis sizes; no device is needed."""
    return _parameter_bytes(training.architecture, tuple(mesh[axis] for axis in MESH_AXES))


@functools.lru_cache(maxsize=4096)
def _parameter_bytes(architecture: Architecture, sizes: tuple[int, ...]) -> int:
    abstract = abstract_mesh(dict(zip(MESH_AXES, sizes, strict=True)))
    params, axes = transformer.abstract_params(architecture), transformer.param_axes(architecture)
    shardings = jax.tree.map(
        lambda leaf, names: NamedSharding(abstract, partition_spec(names, leaf.shape, abstract)), params, axes
    )
    return shard_bytes(params, shardings)


@dataclass(frozen=True, kw_only=True)
class CollectiveVolume:
    """Collectives of one kind along the same mesh axes, in one step."""

    kind: str
    """XLA's name of the collective."""
    axes: str
    """Mesh axes joined with a plus."""
    devices: int
    """Devices of one group."""
    count: int
    """Number of executions per step."""
    written: int
    """Number of instructions in the program; loops execute them repeatedly."""
    bytes: float
    """Bytes of the whole arrays, summed over all executions."""
    bytes_sent: float
    """Bytes sent by one chip, summed over all executions."""
    links: dict[str, float]
    """Bytes sent over each kind of link (ICI, NVLink, InfiniBand); empty if unknown."""
    seconds: float
    """Time at the bandwidth of the links; 0 if unknown."""
    rare_bytes: float
    """Bytes of collectives that run only if a buffer overflows; not included in the other fields."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Plan(Plotted):
    """One training run on one topology."""

    name: str
    topology: str
    chips: int
    devices: int
    """Number of devices in the mesh: one or two for each chip. Values per chip are values per device."""
    mesh: dict[str, int]
    """Sizes of the mesh axes: ``dcn_data`` and the axes within a slice."""
    batch_tokens: int
    sequence_length: int
    microbatches: int
    remat: str
    matmul_quantization: str
    expert_communication: str
    memory: ChipMemory
    does_not_fit: str
    """XLA's reason if the program does not fit, else empty. With a reason, ``memory`` holds XLA's numbers and no times
    are estimated.
    """
    model_flops: float
    """FLOPs that the model needs for a step, without the masked half of the attention scores; the numerator of
    the MFU.
    """
    model_flops_unmasked: float
    """FLOPs with the masked half, counted as in laws and in the column ``flops`` of run tables."""
    step_flops: float
    """FLOPs that a step executes on all chips, recomputation included."""
    xla_flops: float
    """FLOPs of one chip as counted by XLA; Pallas kernels state their FLOPs."""
    communication: tuple[CollectiveVolume, ...]
    roofline: Roofline | None
    """Roofline of the step; None if the chip's data are unknown."""
    program: ProgramTime | None
    """Time of the compiled step, kernel by kernel; None if the chip's data are unknown."""
    evaluation_tokens: int
    """Number of tokens in an evaluation batch, padding for the mesh included."""
    evaluation_roofline: Roofline | None
    """Roofline of one evaluation batch; None if the chip's data are unknown."""
    evaluation_program: ProgramTime | None
    tokens: int
    """Number of tokens of the longest budget."""
    total_steps: int
    """Number of steps of the trunk and the branches of all budgets."""
    total_tokens: int
    """Number of tokens of the trunk and the branches of all budgets."""
    compile_seconds: float

    def summary(self) -> Result:
        """Return the memory of one chip, the communication of a step, and its time."""
        return imported("plan.summary").summary(self)

    @property
    def fits(self) -> bool:
        """True if XLA could compile the program and the program needs no more memory than the chip has."""
        return not self.does_not_fit and (self.memory.left >= 0 or not self.memory.limit)

    @property
    def mfu(self) -> float:
        """Model FLOPs utilization (MFU): the ratio of the model's FLOPs to the FLOPs that the chips could execute in
        the roofline's time.
        """
        return self._mfu(self.roofline.step_seconds) if self.roofline else math.nan

    @property
    def mfu_without_overlap(self) -> float:
        """Model FLOPs utilization if communication overlapped with nothing."""
        return self._mfu(self.roofline.step_seconds_without_overlap) if self.roofline else math.nan

    @property
    def has_cycles(self) -> bool:
        """True if XLA's cycles and the chip's clock are known."""
        return self.program is not None and self.program.xla_seconds > 0

    @property
    def seconds(self) -> float:
        """Seconds of a step: the larger of the roofline's time and the program's ``floor_seconds``. If the program's
        schedule shows which kernels wait for links, the roofline counts only work. The result is not a strict bound:
        ``moejax.plan.step_time`` and ``moejax.plan.program_time`` state the assumptions. It is 0 if the chip's data are
        unknown.
        """
        if self.roofline is None or self.program is None:
            return 0.0
        is_scheduled = self.program.waited_seconds is not None
        of_roofline = self.roofline.work_seconds if is_scheduled else self.roofline.step_seconds
        return max(of_roofline, self.program.floor_seconds)

    @property
    def mfu_of_program_floor(self) -> float:
        """Model FLOPs utilization in the compiled program's ``ProgramTime.floor_seconds``."""
        return self._mfu(self.program.floor_seconds) if self.program else math.nan

    @property
    def mfu_of_program_cycles(self) -> float:
        """Model FLOPs utilization in the compiled program's ``ProgramTime.cycles_seconds``."""
        return self._mfu(self.program.cycles_seconds) if self.program else math.nan

    def _mfu(self, seconds: float) -> float:
        chip = parse(self.topology).chip
        assert chip is not None
        return self.model_flops / (seconds * self.chips * chip.flops_per_second)

    @property
    def tokens_per_day(self) -> float:
        """Tokens per day if a step takes ``seconds``."""
        return self.batch_tokens / self.seconds * SECONDS_PER_DAY if self.seconds else math.nan

    @property
    def days(self) -> float:
        """Days to train all budgets, which share a trunk, if a step takes ``seconds``."""
        return self.total_tokens / self.tokens_per_day

    @property
    def chip_hours(self) -> float:
        """Chip-hours to train all budgets if a step takes ``seconds``."""
        return self.days * 24 * self.chips

    @property
    def bytes_sent(self) -> float:
        """Bytes that one chip sends in a step."""
        return sum((one.bytes_sent for one in self.communication), 0.0)


def check_plan(training: Training, topology: Topology) -> None:
    """Raise ``UserError`` if the training run cannot run on the topology, even with unlimited memory."""
    training.check()
    training.check_mesh(abstract_mesh(mesh_sizes(training, topology)))
    check_quantization(training.architecture, training.recipe.runtime, topology.chip_name)


def mesh_sizes(training: Training, topology: Topology) -> dict[str, int]:
    """Return the sizes of the mesh axes over all slices, keyed by axis.

    Raises:
      UserError: the mesh does not tile the topology.
    """
    return dict(zip(MESH_AXES, training.recipe.mesh.sizes(topology.devices, topology.slices), strict=True))


def slice_mesh_sizes(training: Training, topology: Topology) -> dict[str, int]:
    """Return the sizes of the mesh axes within a slice, keyed by axis.

    With one slice, ``dcn_data`` is part of ``data``.
    """
    if topology.slices == 1:
        return mesh_sizes(training, topology)
    sizes = training.recipe.mesh.slice_sizes(topology.devices, topology.slices)
    return dict(zip(MESH_AXES, sizes, strict=True))


def measure(training: Training, topology: Topology, *, text_to: str = "") -> Plan:
    """Compile a training run's step and evaluation for a topology in this process, and return the plan.

    ``text_to`` names a file for the text of the compiled step. A training run that does not fit raises no error.

    Raises:
      UserError: the training run cannot run on the topology, or the compiler is missing.
    """
    check_plan(training, topology)
    devices = topology.compile_only_devices()
    mesh = make_mesh(training.recipe.mesh, devices)
    program = make_program(training, mesh)
    start = time.monotonic()
    try:
        with jax.set_mesh(mesh), tracing_for_gpu(devices[0]) if topology.is_gpu else contextlib.nullcontext():
            compiled = program.step.lower(program.abstract, program.batch, program.schedule).compile()
            evaluation = program.lowered_evaluation().compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return _plan(training, topology, program, mesh, None, None, str(error), time.monotonic() - start)
    if text_to:
        with open(text_to, "w", encoding="utf-8") as file:
            file.write(compiled.as_text() or "")
    return _plan(training, topology, program, mesh, compiled, evaluation, "", time.monotonic() - start)


def _plan(
    training: Training,
    topology: Topology,
    program: Program,
    mesh: Mesh,
    compiled: Any,
    evaluation: Any,
    refused: str,
    seconds: float,
) -> Plan:
    recipe, sizes = training.recipe, slice_mesh_sizes(training, topology)
    per_token = flops_per_token(training.architecture, recipe.data.sequence_length)
    memory = _memory(program, topology, compiled, evaluation, refused)
    communication, step = _timed(training, compiled, topology, sizes)
    _, evaluated = _timed(training, evaluation, topology, sizes)
    tokens = program.evaluation_batch["tokens"].shape[0] * recipe.data.sequence_length
    of_step = of_evaluation = None
    if step is not None and evaluated is not None and topology.device is not None:
        known = training, dict(mesh.shape), topology.device
        of_step = roofline(*known, memory.parameters, step.link_seconds)
        of_evaluation = evaluation_roofline(*known, tokens, evaluated.link_seconds)
    return Plan(
        name=training.name,
        topology=topology.name,
        chips=topology.chips,
        devices=topology.devices,
        mesh={DCN_DATA: topology.slices, **sizes},
        batch_tokens=recipe.batch_tokens,
        sequence_length=recipe.data.sequence_length,
        microbatches=recipe.microbatches,
        remat=recipe.runtime.remat,
        matmul_quantization=recipe.runtime.matmul_quantization,
        expert_communication=recipe.runtime.expert_communication,
        memory=memory,
        does_not_fit=_refusal(refused) if refused else "",
        model_flops=model_flops(training),
        model_flops_unmasked=float(per_token.training * recipe.batch_tokens),
        step_flops=step_flops(training),
        xla_flops=0.0 if compiled is None else float((compiled.cost_analysis() or {}).get("flops", 0.0)),
        communication=communication,
        roofline=of_step,
        program=step,
        evaluation_tokens=tokens,
        evaluation_roofline=of_evaluation,
        evaluation_program=evaluated,
        tokens=recipe.tokens(recipe.steps(max(recipe.budgets_tokens))),
        total_steps=recipe.total_steps,
        total_tokens=recipe.total_tokens,
        compile_seconds=seconds,
    )


def _memory(program: Program, topology: Topology, compiled: Any, evaluation: Any, refused: str) -> ChipMemory:
    abstract, shardings = program.abstract, program.shardings
    parameters = shard_bytes(abstract.params, shardings.params)
    optimizer = shard_bytes(abstract.optimizer, shardings.optimizer)
    state = shard_bytes(abstract, shardings)
    batch = shard_bytes(program.batch, jax.tree.map(lambda _: batch_sharding(program.mesh), program.batch))
    chip = topology.device
    if compiled is None:
        (temporaries, code), (of_evaluation, other_code) = (max(_asked_for(refused) - state - batch, 0), 0), (0, 0)
    else:
        temporaries, code = _of_program(compiled)
        of_evaluation, other_code = _of_program(evaluation)
    return ChipMemory(
        parameters=parameters,
        optimizer_state=optimizer,
        other_state=state - parameters - optimizer,
        batch=batch,
        temporaries=temporaries,
        program=code + other_code,
        evaluation=of_evaluation,
        gradients=parameters,
        limit=0 if chip is None else int(chip.memory_bytes),
    )


def _of_program(compiled: Any) -> tuple[int, int]:
    analysis = compiled.memory_analysis()
    # Outputs that do not reuse the memory of the input state.
    beside = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    return analysis.temp_size_in_bytes + max(beside, 0), analysis.generated_code_size_in_bytes


_SIZE = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def _asked_for(refused: str) -> int:
    """Return the bytes that XLA's message ``refused`` states as used by the program; 0 if it states none."""
    used = re.search(r"Used ([\d.]+)([KMGT]) of", refused)
    return int(float(used[1]) * _SIZE[used[2]]) if used else 0


def _refusal(refused: str) -> str:
    used = re.search(r"Used .*? by [\d.]+[KMGT]", refused)
    return used[0] if used else f"XLA says: {refused[:300]}"


def _communication(sent: Sequence[Collective], links: Interconnect | None) -> tuple[CollectiveVolume, ...]:
    groups: dict[tuple[str, tuple[str, ...]], list[Collective]] = {}
    for one in sent:
        groups.setdefault((one.kind, one.axes), []).append(one)
    return tuple(_summarize(kind, axes, alike, links) for (kind, axes), alike in groups.items())


def _timed(
    training: Training, compiled: Any, topology: Topology, mesh: dict[str, int]
) -> tuple[tuple[CollectiveVolume, ...], ProgramTime | None]:
    if compiled is None:
        return (), None
    text, links = compiled.as_text(), interconnect(topology, mesh)
    sent = collectives(text, mesh, topology.slices)
    communication = _communication(sent, links)
    if topology.device is None or links is None:
        return communication, None
    by_axes: dict[str, float] = {}
    for one in communication:
        by_axes[one.axes] = by_axes.get(one.axes, 0.0) + one.seconds
    each = {one.name: links.seconds(one.kind, one.axes, float(one.bytes), one.pairs) for one in sent}
    return communication, program_time(text, topology.device, filled_rows(training, mesh), by_axes, each)


def _summarize(
    kind: str, axes: tuple[str, ...], alike: list[Collective], links: Interconnect | None
) -> CollectiveVolume:
    often = [one for one in alike if not one.is_rare]
    by_link: dict[str, float] = {}
    seconds = 0.0
    for one in often:
        if links is None:
            break
        exchanged = kind, axes, float(one.bytes), one.pairs
        seconds += one.times * links.seconds(*exchanged)
        for link, sent in links.bytes_sent(*exchanged).items():
            by_link[link] = by_link.get(link, 0.0) + one.times * sent
    return CollectiveVolume(
        kind=kind,
        axes="+".join(axes),
        devices=max(one.devices for one in alike),
        count=sum(one.times for one in often),
        written=len(often),
        bytes=float(sum(one.times * one.bytes for one in often)),
        bytes_sent=float(sum(one.times * one.bytes_sent for one in often)),
        links=by_link,
        seconds=seconds,
        rare_bytes=float(sum(one.times * one.bytes for one in alike if one not in often)),
    )
