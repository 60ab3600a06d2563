"""How long a compiled program takes on one chip: its kernels one after another, beside its links.

Two counts, which lie on either side of the truth where it is known:

- By XLA's cycles: each of XLA's own kernels as long as the cost model of its TPU compiler says, which gives plain
  additions several times what their bytes need; grouped products with all rows that there is room for.
- At least: kernels without a product no longer than their bytes at the bandwidth of the chip's memory, and grouped
  products with the rows that a balanced routing fills. Where nobody states the chip's clock there is this count alone,
  with products at the chip's peak.

In both, kernels of Pallas compute at the chip's peak: grouped products what they state, attention the blocks of scores
that its kernels meet, of which the masked half of a block on the diagonal is a part. What runs only where a buffer is
too small is left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from moejax.laws.chips import Chip
from moejax.plan.step_time import OverlappedLinks
from moejax.train.collectives import bytes_of_arrays
from moejax.train.program_text import Instruction, instructions
from moejax.train.training import Training


@dataclass(frozen=True, kw_only=True)
class ProgramTime(OverlappedLinks):
    """Seconds of one run of a compiled program on one device."""

    xla_seconds: float
    """Kernels that XLA's TPU compiler writes itself, by its cycles; 0 where nobody states these, or the clock."""
    xla_seconds_at_bandwidth: float
    """The same with kernels without products at the bandwidth of the chip's memory; where nobody states the clock, with
    products at the chip's peak."""
    pallas_seconds: float
    """Kernels of Pallas, with all rows of experts that there is room for."""
    pallas_seconds_of_rows: float
    """The same with the rows that a balanced routing fills."""
    link_seconds: dict[str, float]
    """Between chips, by mesh axes joined with a plus."""

    @property
    def cycles_seconds(self) -> float:
        """By XLA's cycles; NaN where nobody states these, or the clock."""
        return self.beside(self.xla_seconds + self.pallas_seconds) if self.xla_seconds else math.nan

    @property
    def floor_seconds(self) -> float:
        """At least; NaN for GPUs."""
        work = self.xla_seconds_at_bandwidth + self.pallas_seconds_of_rows
        return self.beside(work) if self.xla_seconds_at_bandwidth else math.nan


def program_time(text: str, chip: Chip, rows: float, link_seconds: dict[str, float]) -> ProgramTime:
    """The time of a program by its text; ``rows`` is the share of the room for rows of experts that is filled."""
    attention = attention_flops(text) / chip.flops_per_second
    return ProgramTime(
        xla_seconds=compiler_seconds(text, chip),
        xla_seconds_at_bandwidth=compiler_floor_seconds(text, chip),
        pallas_seconds=stated_seconds(text, chip) + attention,
        pallas_seconds_of_rows=stated_seconds(text, chip, rows=rows) + attention,
        link_seconds=link_seconds,
    )


def filled_rows(training: Training, mesh: Mapping[str, int]) -> float:
    """Share of the room for rows of experts that a balanced routing fills: along ``expert`` there is more than that."""
    return 1 / training.recipe.runtime.buffer_factor if mesh["expert"] > 1 else 1.0


_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_STATED = re.compile(r'"cost_estimate":\{"flops":"(?P<flops>\d+)".*?"bytes_accessed":"(?P<bytes>\d+)"')
UNKNOWN_CYCLES = 2**62
"""From here on a number of cycles is the compiler's word for not knowing."""


def compiler_seconds(text: str, chip: Chip) -> float:
    """Seconds of the kernels that XLA's TPU compiler writes itself: the cycles it expects, at the chip's clock; 0 where
    nobody states it. Collectives and kernels of Pallas have no cycles.
    """
    return sum(run.times * _cycles_seconds(cycles, chip) for run, _, cycles in _own_kernels(text))


def compiler_floor_seconds(text: str, chip: Chip) -> float:
    """The same at least: kernels without a product no longer than what they read and write at the bandwidth of the
    chip's memory, and all of them no shorter than what they and copies, which run beside them, move.

    Where nobody states the clock, products at the chip's peak, or their bytes if these take longer.
    """
    total, of_memory = 0.0, _copied_bytes(text) / chip.memory_bytes_per_second
    for run, parts, cycles in _own_kernels(text):
        products = [part for part in parts if part.opcode in _PRODUCTS]
        seconds, at_bandwidth = _cycles_seconds(cycles, chip), bytes_moved(run, parts) / chip.memory_bytes_per_second
        if not seconds:
            of_products = (product_flops(one) / _peak(chip, one.operands[:2]) for one in products)
            seconds = max(sum(of_products), at_bandwidth)
        elif not products:
            seconds = min(seconds, at_bandwidth)
        total += run.times * seconds
        of_memory += run.times * min(seconds, at_bandwidth)
    return max(total, of_memory)


def _copied_bytes(text: str) -> int:
    """What copies between the chip's memory and what is on the chip move: whatever of their two ends lies there."""
    return sum(run.times * _bytes(run.type) for run, _ in _kernels(text) if run.opcode == "copy-start")


def _cycles_seconds(cycles: int, chip: Chip) -> float:
    return cycles / chip.cycles_per_second if chip.cycles_per_second else 0.0


def _own_kernels(text: str) -> Iterator[tuple[Instruction, list[Instruction], int]]:
    """Kernels of which the compiler states cycles, with their parts."""
    for run, parts in _kernels(text):
        cycles = _CYCLES.search(run.rest)
        if cycles is not None and int(cycles[1]) < UNKNOWN_CYCLES:
            yield run, parts, int(cycles[1])


def bytes_moved(kernel: Instruction, parts: Iterable[Instruction]) -> int:
    """Bytes of the chip's memory that a kernel reads and writes: its operands and results that lie there; of an array
    that it takes a slice of, or writes one into, that slice alone."""
    found = sum(_bytes(type_) for type_ in (kernel.type, *kernel.operands))
    for part in parts:
        if not part.operands or part.operands[0] not in kernel.operands or not _bytes(part.operands[0]):
            continue
        if part.opcode == "dynamic-slice":
            found -= _bytes(part.operands[0]) - _bytes(part.type)
        elif part.opcode == "dynamic-update-slice":
            # Written in its place: nothing of it is read.
            found -= 2 * _bytes(part.operands[0]) - _bytes(part.operands[1])
    return max(found, 0)


_ELSEWHERE = re.compile(r"\w+\[[\d,<=]*\]\{[^{}]*S\(\d+\)[^{}]*\}")
"""An array whose layout names a space of memory: on the chip, ``S(1)`` on a TPU, or of the host."""


def _bytes(type_: str) -> int:
    """Bytes of the arrays of a type that lie in the chip's memory."""
    return sum(bytes_of_arrays(_ELSEWHERE.sub("", type_)))


_DIMENSIONS = re.compile(r"dim_labels=(?P<input>\w+)_(?P<kernel>\w+)->(?P<output>\w+)")
_WINDOW = re.compile(r"window=\{(?P<window>[^}]*)\}")


def product_flops(product: Instruction) -> float:
    """FLOPs of a product as XLA's TPU compiler writes it, a convolution: pairs of numbers of its input and its kernel
    that meet, twice. What it pads and spreads along windows is no number."""
    labels = _DIMENSIONS.search(product.rest)
    if labels is None:
        return 0.0
    types = (*product.operands[:2], product.type)
    inputs, kernel, output = (
        dict(zip(names, _array(type_), strict=True)) for names, type_ in zip(labels.groups(), types, strict=True)
    )
    said = _WINDOW.search(product.rest)
    words = dict(word.split("=") for word in said["window"].split()) if said else {}
    met = 1
    for place, name in enumerate(sorted(name for name in output if name.isdigit())):
        of = {word: value.split("x")[place] for word, value in words.items()}
        step, spread, apart = (int(of.get(word, 1)) for word in ("stride", "lhs_dilate", "rhs_dilate"))
        before = int(of.get("pad", "0_0").partition("_")[0])
        where = np.arange(output[name])[:, None] * step + np.arange(kernel[name]) * apart - before
        met *= int(((where >= 0) & (where <= (inputs[name] - 1) * spread) & (where % spread == 0)).sum())
    return 2.0 * output["b"] * output["f"] * kernel["i"] * met


def _array(type_: str) -> tuple[int, ...]:
    """Shape of the one array of a type."""
    return tuple(int(size) for size in type_.partition("[")[2].partition("]")[0].split(","))


def stated_seconds(text: str, chip: Chip, *, rows: float = 1.0) -> float:
    """Seconds of the kernels of Pallas that state what they do: their FLOPs at the chip's peak for what they read, or
    their bytes at its memory's bandwidth.

    Grouped products state all rows there is room for, also those that a balanced routing leaves empty; ``rows`` is the
    share of them whose FLOPs count. Attention states nothing.
    """
    kernels = ((run, stated) for run, _ in _kernels(text) if (stated := _STATED.search(run.rest)))
    return sum(
        run.times
        * max(rows * int(one["flops"]) / _peak(chip, _factors(run)), int(one["bytes"]) / chip.memory_bytes_per_second)
        for run, one in kernels
    )


def _factors(run: Instruction) -> list[str]:
    """Types of the factors of a kernel's products: what it reads of 8 bits, if it does, beside their scales."""
    return [type_ for type_ in run.operands if any(re.match(word, type_) for word in _IN_8_BITS.values())]


_IN_8_BITS = {"fp8": r"f8\w+\[", "int8": r"[su]8\["}
"""How a type begins that is one of ``Runtime.matmul_quantization``."""


def _peak(chip: Chip, factors: Sequence[str]) -> float:
    """FLOPs per second of products of factors of such types: those of 8 bits where all of them are."""
    of_8_bits = (name for name, word in _IN_8_BITS.items() if factors and all(re.match(word, one) for one in factors))
    return chip.peak(next(of_8_bits, "none")) or chip.flops_per_second


_SPLASH = re.compile(r"splash_mha_(?P<phase>fwd|dq|dkv)_")
_SPLASH_WIDTHS = {"fwd": (1, 1), "dq": (2, 1), "dkv": (2, 2)}
"""How many products over the width of a query and of a value a kernel of splash attention makes of each score: scores
and means of values; scores again, their gradients, and those of queries; or those of keys and of values."""


def attention_flops(text: str) -> float:
    """FLOPs of splash attention's kernels: products of whole blocks of queries with the blocks of keys that they meet.

    A kernel reads first which blocks meet, an array of [1, blocks of queries, blocks of keys], narrowed to a window if
    there is one; its first floating arrays are queries, keys and values, [sequences, heads, tokens, width].
    """
    total = 0.0
    for run, _ in _kernels(text):
        if (kernel := _SPLASH.match(run.name)) is None:
            continue
        whole = [shape for type_ in run.operands for shape in _shapes(type_, "s")]
        (*several, length, query_width), _, (*_, value_width), *_ = (
            shape for type_ in run.operands for shape in _shapes(type_, "b?f")
        )
        blocks = whole[0][-2:]
        met = sum(min(keys, min(blocks)) for keys in range(1, max(blocks) + 1))
        scores = math.prod(several) * (length / max(blocks)) ** 2 * met
        of_queries, of_values = _SPLASH_WIDTHS[kernel["phase"]]
        total += run.times * 2 * scores * (of_queries * query_width + of_values * value_width)
    return total


def _shapes(type_: str, kind: str) -> list[tuple[int, ...]]:
    """Of the arrays of a type whose numbers are of some kind."""
    return [tuple(map(int, shape.split(","))) for shape in re.findall(rf"\b{kind}\d+\[([\d,]+)\]", type_)]


_PRODUCTS = ("convolution", "dot")


def _kernels(text: str) -> Iterator[tuple[Instruction, list[Instruction]]]:
    """What runs in every step, and what it is made of: itself, or the instructions that are fused in it."""
    kernel: Instruction | None = None
    parts: list[Instruction] = []
    for run in instructions(text):
        if run.is_rare:
            continue
        if run.in_fusion:
            parts.append(run)
            continue
        if kernel is not None:
            yield kernel, parts
        kernel, parts = run, [run]
    if kernel is not None:
        yield kernel, parts
