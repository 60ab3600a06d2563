"""A training's step and evaluation, compiled for a topology: memory, work, communication, how long it takes."""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh

from moejax.laws.accounting import flops_per_token
from moejax.plan.absent_gpu import standing_in
from moejax.plan.interconnect import Interconnect, interconnect
from moejax.plan.memory import ChipMemory, abstract_mesh, shard_bytes
from moejax.plan.program_time import ProgramTime, filled_rows, program_time
from moejax.plan.step_time import Roofline, evaluation_roofline, model_flops, roofline, step_flops
from moejax.plan.topology import Topology, parse
from moejax.sharding import DCN_DATA, MESH_AXES
from moejax.train.collectives import Collective, collectives
from moejax.train.devices import check_quantization
from moejax.train.mesh import batch_sharding, make_mesh
from moejax.train.program import Program, make_program
from moejax.train.training import Training

SECONDS_PER_DAY = 86_400.0


@dataclass(frozen=True, kw_only=True)
class CollectiveVolume:
    """Collectives of one kind, along the same mesh axes, in one step."""

    kind: str
    """As XLA calls it."""
    axes: str
    """Mesh axes joined with a plus."""
    devices: int
    """Chips of one group."""
    count: int
    """How often one runs in a step."""
    written: int
    """Instructions in the program; loops run them again."""
    bytes: float
    """Bytes of the whole arrays, over all runs."""
    bytes_sent: float
    """Bytes sent by one chip, over all runs."""
    links: dict[str, float]
    """Those bytes by the kind of links (ICI, NVLink, InfiniBand); none where it is not known."""
    seconds: float
    """At the bandwidth of the links; 0 where it is not known."""
    rare_bytes: float
    """Bytes of what runs only where a buffer is too small; not in the other columns."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One training on one topology."""

    name: str
    topology: str
    chips: int
    devices: int
    """Of the mesh: one for each chip, of some chips two. What is said of a chip is said of one device."""
    mesh: dict[str, int]
    """Sizes of its axes: ``dcn_data``, and those of a slice."""
    batch_tokens: int
    sequence_length: int
    microbatches: int
    remat: str
    matmul_quantization: str
    expert_communication: str
    memory: ChipMemory
    does_not_fit: str
    """Why XLA refused to place it, or nothing. Where it did, ``memory`` holds what XLA said, and nothing is timed."""
    model_flops: float
    """FLOPs that a step needs, the masked half of the scores left out; what the MFU is of."""
    model_flops_unmasked: float
    """With the masked half, as laws and the ``flops`` of run rows count."""
    step_flops: float
    """FLOPs that a step computes, over all chips: with what is computed again."""
    xla_flops: float
    """FLOPs of one chip as XLA counts them, a kernel of Pallas as it says itself."""
    communication: tuple[CollectiveVolume, ...]
    roofline: Roofline | None
    """None where nobody states what a chip can do."""
    program: ProgramTime | None
    """The compiled step, kernel by kernel; None as the roofline."""
    evaluation_tokens: int
    """Tokens of a batch of an evaluation, what fills it up for the mesh included."""
    evaluation_roofline: Roofline | None
    """Of one batch; None as the step's."""
    evaluation_program: ProgramTime | None
    tokens: int
    """Tokens of the longest budget."""
    compile_seconds: float

    @property
    def fits(self) -> bool:
        """Whether XLA could place it, in no more than the chip has."""
        return not self.does_not_fit and (self.memory.left >= 0 or not self.memory.limit)

    @property
    def mfu(self) -> float:
        """Model FLOPs utilisation by the roofline: what the model needs over what the chips could compute."""
        return self._mfu(self.roofline.step_seconds) if self.roofline else math.nan

    @property
    def mfu_without_overlap(self) -> float:
        """If nothing on the links overlapped with anything."""
        return self._mfu(self.roofline.step_seconds_without_overlap) if self.roofline else math.nan

    @property
    def has_cycles(self) -> bool:
        """Whether XLA's cycles and the chip's clock are known."""
        return self.program is not None and self.program.xla_seconds > 0

    @property
    def seconds(self) -> float:
        """Seconds of a step by the longer of two accounts: the roofline's, and the program's ``floor_seconds``.

        Where the program's schedule says what waits for links, the roofline's is its work alone. No strict bound: what
        each assumes is in ``moejax.plan.step_time`` and ``moejax.plan.program_time``. 0 where nobody states what a chip
        can do.
        """
        if self.roofline is None or self.program is None:
            return 0.0
        is_scheduled = self.program.waited_seconds is not None
        of_roofline = self.roofline.work_seconds if is_scheduled else self.roofline.step_seconds
        return max(of_roofline, self.program.floor_seconds)

    @property
    def mfu_of_program_floor(self) -> float:
        """Model FLOPs utilisation by the compiled program at its peaks (``ProgramTime.floor_seconds``)."""
        return self._mfu(self.program.floor_seconds) if self.program else math.nan

    @property
    def mfu_of_program_cycles(self) -> float:
        """Model FLOPs utilisation by the compiled program, by XLA's cycles."""
        return self._mfu(self.program.cycles_seconds) if self.program else math.nan

    def _mfu(self, seconds: float) -> float:
        chip = parse(self.topology).chip
        assert chip is not None
        return self.model_flops / (seconds * self.chips * chip.flops_per_second)

    @property
    def tokens_per_day(self) -> float:
        """Tokens per day, by ``seconds``."""
        return self.batch_tokens / self.seconds * SECONDS_PER_DAY if self.seconds else math.nan

    @property
    def days(self) -> float:
        """For the longest budget, by ``seconds``."""
        return self.tokens / self.tokens_per_day

    @property
    def chip_hours(self) -> float:
        """For the longest budget, by ``seconds``."""
        return self.days * 24 * self.chips

    @property
    def bytes_sent(self) -> float:
        """Bytes that one chip sends to others in a step."""
        return sum((one.bytes_sent for one in self.communication), 0.0)


def check_plan(training: Training, topology: Topology) -> None:
    """Raise ``UserError`` if the training cannot be trained on the topology at all, whatever its memory."""
    training.check()
    training.check_mesh(abstract_mesh(mesh_sizes(training, topology)))
    check_quantization(training.architecture, training.recipe.runtime, topology.chip_name)


def mesh_sizes(training: Training, topology: Topology) -> dict[str, int]:
    """Sizes of the mesh's axes, over all slices.

    Raises:
      UserError: the mesh does not tile the topology.
    """
    return dict(zip(MESH_AXES, training.recipe.mesh.sizes(topology.devices, topology.slices), strict=True))


def slice_mesh_sizes(training: Training, topology: Topology) -> dict[str, int]:
    """The same within a slice of the topology; without several, ``dcn_data`` is a part of ``data``."""
    if topology.slices == 1:
        return mesh_sizes(training, topology)
    sizes = training.recipe.mesh.slice_sizes(topology.devices, topology.slices)
    return dict(zip(MESH_AXES, sizes, strict=True))


def measure(training: Training, topology: Topology, *, text_to: str = "") -> Plan:
    """Compile a training's step and its evaluation for a topology in this process, and read the plan off them.

    ``text_to`` names a file for the text of the compiled step.

    Raises:
      UserError: it cannot be trained so, or what compiles is missing. What does not fit is no error.
    """
    check_plan(training, topology)
    devices = topology.compile_only_devices()
    mesh = make_mesh(training.recipe.mesh, devices)
    program = make_program(training, mesh)
    start = time.monotonic()
    try:
        with jax.set_mesh(mesh), standing_in(devices[0]) if topology.is_gpu else contextlib.nullcontext():
            compiled = program.step.lower(program.abstract, program.batch, program.schedule).compile()
            evaluation = program.lowered_evaluation().compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return _plan(training, topology, program, mesh, None, None, str(error), time.monotonic() - start)
    if text_to:
        with open(text_to, "w", encoding="utf-8") as file:
            file.write(compiled.as_text())
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
    step, evaluated = (
        _timed(training, one, topology, sizes) if one is not None else _Timed() for one in (compiled, evaluation)
    )
    tokens = program.evaluation_batch["tokens"].shape[0] * recipe.data.sequence_length
    of_step = of_evaluation = None
    if step.program is not None and evaluated.program is not None and topology.device is not None:
        known = training, dict(mesh.shape), topology.device
        of_step = roofline(*known, memory.parameters, step.program.link_seconds)
        of_evaluation = evaluation_roofline(*known, tokens, evaluated.program.link_seconds)
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
        communication=step.communication,
        roofline=of_step,
        program=step.program,
        evaluation_tokens=tokens,
        evaluation_roofline=of_evaluation,
        evaluation_program=evaluated.program,
        tokens=recipe.tokens(recipe.steps(max(recipe.budgets_tokens))),
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
    """Bytes of what comes and goes in a program, and of its code."""
    analysis = compiled.memory_analysis()
    # What goes out beside the state, which takes the place of the state that came in.
    beside = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    return analysis.temp_size_in_bytes + max(beside, 0), analysis.generated_code_size_in_bytes


_SIZE = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def _asked_for(refused: str) -> int:
    """Bytes that a program would have used, from the words in which XLA refused it; 0 if it does not say."""
    used = re.search(r"Used ([\d.]+)([KMGT]) of", refused)
    return int(float(used[1]) * _SIZE[used[2]]) if used else 0


def _refusal(refused: str) -> str:
    used = re.search(r"Used .*? by [\d.]+[KMGT]", refused)
    return used[0] if used else f"XLA says: {refused[:300]}"


def _communication(found: Sequence[Collective], links: Interconnect | None) -> tuple[CollectiveVolume, ...]:
    groups: dict[tuple[str, tuple[str, ...]], list[Collective]] = {}
    for one in found:
        groups.setdefault((one.kind, one.axes), []).append(one)
    return tuple(_summarise(kind, axes, alike, links) for (kind, axes), alike in groups.items())


@dataclass(frozen=True)
class _Timed:
    """What a compiled program sends, and how long it takes."""

    communication: tuple[CollectiveVolume, ...] = ()
    program: ProgramTime | None = None


def _timed(training: Training, compiled: Any, topology: Topology, mesh: dict[str, int]) -> _Timed:
    text, links = compiled.as_text(), interconnect(topology, mesh)
    found = collectives(text, mesh, topology.slices)
    communication = _communication(found, links)
    if topology.device is None or links is None:
        return _Timed(communication)
    by_axes: dict[str, float] = {}
    for one in communication:
        by_axes[one.axes] = by_axes.get(one.axes, 0.0) + one.seconds
    each = {one.name: links.seconds(one.kind, one.axes, float(one.bytes), one.pairs) for one in found}
    return _Timed(communication, program_time(text, topology.device, filled_rows(training, mesh), by_axes, each))


def _summarise(
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
