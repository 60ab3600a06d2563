"""Parse the instructions of an optimized program, ``compiled.as_text()``, and how often each runs.

XLA prints a program as computations, with one instruction per line. Loops, branches and fusions call computations by
name, so an instruction runs as often as its caller.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """One HLO instruction at one call site of its computation."""

    type: str
    """HLO type of the result."""
    opcode: str
    name: str = ""
    """Name in the program's text; a Pallas kernel has its own name with a numeric suffix."""
    rest: str
    """Operands and attributes."""
    operands: tuple[str, ...] = ()
    """Types of the operands that are instructions of the same computation."""
    operand_names: tuple[str, ...] = ()
    """Names of the operands in ``operands``."""
    times: int = 1
    """Number of executions per program run, if every branch is taken."""
    loops: int = 0
    """Number of loops around the instruction."""
    is_rare: bool = False
    """True if the instruction runs only in a rare case, such as a buffer overflow (``moejax.kernels.control_flow``)."""
    fusion: str = ""
    """Name of the fusion (one kernel) that contains the instruction. A fusion's parts follow the fusion and may be
    fusions themselves.
    """
    is_offloaded: bool = False
    """True if the instruction runs on a TPU's SparseCores, concurrently with the following instructions."""
    times_known: bool = True
    """True if the program states the trip counts of all these loops; an unknown trip count is assumed to be 1."""


@functools.lru_cache(maxsize=1)
def instructions(program: str) -> tuple[Instruction, ...]:
    """Return all fusions and all instructions that call no computation, in textual order.

    The result for the last text is cached, because communication and time are read from the same text. This text is
    long for a large model.

    Raises:
      ValueError: the text is not an optimized program.
    """
    computations = dict(_computations(program))
    entry = next((name for name, computation in computations.items() if computation.is_entry), None)
    if entry is None:
        raise ValueError(
            "The text is not an optimized program, because it has no ENTRY; give the text of a compiled program."
        )
    return tuple(_called(entry, computations, Instruction(type="", opcode="", rest="")))


@dataclass(frozen=True)
class _Computation:
    instructions: list[_Line]
    is_entry: bool


@dataclass(frozen=True)
class _Line:
    name: str
    type: str
    opcode: str
    rest: str


_BEGIN = re.compile(r"(?P<entry>ENTRY )?%?(?P<name>[\w.\-]+) \(.*\) -> .* \{$")
# A type may contain parentheses, but not directly after a lowercase word.
_INSTRUCTION = re.compile(
    r"\s+(?:ROOT )?%?(?P<name>[\w.\-]+) = (?P<type>.*?) (?P<opcode>[a-z][a-z0-9\-]*)\((?P<rest>.*)"
)
_CALLS = re.compile(r"(?P<how>[\w\-]+)=(?:%(?P<one>[\w.\-]+)|\{(?P<many>%[^}]*)\})")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')


def _computations(program: str) -> Iterator[tuple[str, _Computation]]:
    instructions: list[_Line] = []
    for line in program.splitlines():
        if begin := _BEGIN.match(line):
            instructions = []
            yield begin["name"], _Computation(instructions, begin["entry"] is not None)
        elif instruction := _INSTRUCTION.match(line):
            instructions.append(_Line(**instruction.groupdict()))


def _called(name: str, computations: Mapping[str, _Computation], around: Instruction) -> Iterator[Instruction]:
    """Yield the instructions of a computation that is called in the context of ``around``."""
    types = {one.name: one.type for one in computations[name].instructions}
    for one in computations[name].instructions:
        callees = list(_callees(one))
        if not callees or one.opcode == "fusion":
            names = tuple(operand for operand in _operands(one) if operand in types)
            operands = tuple(types[name] for name in names)
            yield replace(
                around,
                name=one.name,
                type=one.type,
                opcode=one.opcode,
                rest=one.rest,
                operands=operands,
                operand_names=names,
            )
        for how, callee in callees:
            inside = around
            if how == "body":
                trips = _trips(one, computations)
                known = around.times_known and trips is not None
                inside = replace(around, times=(trips or 1) * around.times, loops=around.loops + 1, times_known=known)
            elif how == "false_computation":
                inside = replace(around, is_rare=True)
            elif one.opcode == "fusion":
                inside = replace(around, fusion=one.name)
            elif one.opcode == "call-start":
                inside = replace(around, is_offloaded=True)
            yield from _called(callee, computations, inside)


def _operands(instruction: _Line) -> list[str]:
    return re.findall(r"%([\w.\-]+)", instruction.rest.partition(")")[0])


_CALLING = ("call", "call-start")
"""Opcodes that run their ``to_apply`` computation, synchronously or concurrently on a TPU's SparseCores."""


def _callees(instruction: _Line) -> Iterator[tuple[str, str]]:
    """Yield the kind and the name of each computation that an instruction calls, except the scalar functions of
    reductions.
    """
    for call in _CALLS.finditer(instruction.rest):
        if call["how"] != "control-predecessors" and (call["how"] != "to_apply" or instruction.opcode in _CALLING):
            names = [name.strip().lstrip("%") for name in (call["one"] or call["many"]).split(",")]
            # In an indexed conditional with two branches, index 0 (false) comes first.
            is_condition = call["how"] == "branch_computations" and len(names) == 2
            for place, name in enumerate(names):
                yield "false_computation" if is_condition and place == 0 else call["how"], name


def _trips(loop: _Line, computations: Mapping[str, _Computation]) -> int | None:
    """Return the trip count of a loop: XLA's annotation, or else the only constant in its condition."""
    if known := _TRIPS.search(loop.rest):
        return int(known[1])
    condition = next(callee for how, callee in _callees(loop) if how == "condition")
    numbers = {
        int(number[0])
        for instruction in computations[condition].instructions
        if instruction.opcode == "constant" and (number := re.match(r"\d+", instruction.rest))
    }
    return numbers.pop() if len(numbers) == 1 else None
