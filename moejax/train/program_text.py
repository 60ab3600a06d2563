"""The instructions of an optimised program, ``compiled.as_text()``, and how often each runs.

XLA prints a program as computations, one instruction a line. Loops, branches and fusions call computations by name, so
an instruction runs as often as what calls it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """One instruction, where one run of the program comes to it."""

    type: str
    """Of its result."""
    opcode: str
    name: str = ""
    """In the program's text: of a kernel of Pallas its own, with a number behind."""
    rest: str
    """Operands and attributes."""
    operands: tuple[str, ...] = ()
    """Types of the operands, of those that are instructions of the same computation."""
    operand_names: tuple[str, ...] = ()
    """Their names."""
    times: int = 1
    """How often it runs in one run of the program; with branches, if each were taken."""
    loops: int = 0
    """Loops around it."""
    is_rare: bool = False
    """Whether it runs only where a condition does not hold, which holds nearly always (``moejax.condition``)."""
    fusion: str = ""
    """The fusion that it is a part of: one kernel with others. A fusion's parts follow it, and may be fusions
    themselves."""
    is_offloaded: bool = False
    """Whether it runs beside what is written behind it, on a TPU's SparseCores."""
    times_known: bool = True
    """Whether the program says how often the loops around it run; one that does not is counted as one turn."""


def instructions(program: str) -> Iterator[Instruction]:
    """The instructions of a program that call no others, and fusions, in the order in which they are written.

    Raises:
      ValueError: the text is no optimised program.
    """
    computations = dict(_computations(program))
    entry = next((name for name, found in computations.items() if found.is_entry), None)
    if entry is None:
        raise ValueError("This is no optimised program: it has no ENTRY; give the text of a compiled one.")
    yield from _called(entry, computations, Instruction(type="", opcode="", rest=""))


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
# A type may hold parentheses, but none that follow a word in small letters.
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
    """The instructions of a computation, which runs as ``around`` says."""
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
    """Names of what an instruction is applied to."""
    return re.findall(r"%([\w.\-]+)", instruction.rest.partition(")")[0])


_CALLING = ("call", "call-start")
"""What runs the computation that it names with ``to_apply``: here, or beside what follows, on a TPU's SparseCores."""


def _callees(instruction: _Line) -> Iterator[tuple[str, str]]:
    """How an instruction calls others, and their names; what a reduction applies to pairs of numbers is left out."""
    for call in _CALLS.finditer(instruction.rest):
        if call["how"] != "control-predecessors" and (call["how"] != "to_apply" or instruction.opcode in _CALLING):
            names = [name.strip().lstrip("%") for name in (call["one"] or call["many"]).split(",")]
            # Numbered branches of a condition: that for false, which is 0, comes first.
            is_condition = call["how"] == "branch_computations" and len(names) == 2
            for place, name in enumerate(names):
                yield "false_computation" if is_condition and place == 0 else call["how"], name


def _trips(loop: _Line, computations: Mapping[str, _Computation]) -> int | None:
    """How often a loop runs: what XLA found, or else the one number that its condition holds."""
    if known := _TRIPS.search(loop.rest):
        return int(known[1])
    condition = next(callee for how, callee in _callees(loop) if how == "condition")
    numbers = {
        int(found[0])
        for instruction in computations[condition].instructions
        if instruction.opcode == "constant" and (found := re.match(r"\d+", instruction.rest))
    }
    return numbers.pop() if len(numbers) == 1 else None
