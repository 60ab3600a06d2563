"""How long a compiled program takes on one chip: its kernels one after another, beside its links.

Two counts, which lie on either side of the truth where it is known:

- By XLA's cycles: each of XLA's own kernels as long as the cost model of its TPU compiler says, which gives plain
  additions several times what their bytes need; grouped products with all rows that there is room for.
- At least: kernels without a product no longer than their bytes at the bandwidth of the chip's memory, and grouped
  products with the rows that a balanced routing fills.

In both, kernels of Pallas compute at the chip's peak: grouped products what they state, attention the blocks of scores
that its kernels meet, of which the masked half of a block on the diagonal is a part. What runs only where a buffer is
too small is left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

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
    """The same with kernels without products at the bandwidth of the chip's memory."""
    pallas_seconds: float
    """Kernels of Pallas, with all rows of experts that there is room for."""
    pallas_seconds_of_rows: float
    """The same with the rows that a balanced routing fills."""
    link_seconds: dict[str, float]
    """Between chips, by mesh axes joined with a plus."""

    @property
    def cycles_seconds(self) -> float:
        """By XLA's cycles; NaN where it states none."""
        return self._beside(self.xla_seconds + self.pallas_seconds)

    @property
    def floor_seconds(self) -> float:
        """At least; NaN where XLA states no cycles."""
        return self._beside(self.xla_seconds_at_bandwidth + self.pallas_seconds_of_rows)

    def _beside(self, work: float) -> float:
        return self.beside(work) if self.xla_seconds else math.nan


def program_time(text: str, chip: Chip, rows: float, link_seconds: dict[str, float]) -> ProgramTime:
    """The time of a program by its text; ``rows`` is the share of the room for rows of experts that is filled."""
    attention = attention_flops(text) / chip.flops_per_second
    return ProgramTime(
        xla_seconds=compiler_seconds(text, chip),
        xla_seconds_at_bandwidth=compiler_seconds(text, chip, at_bandwidth=True),
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


def compiler_seconds(text: str, chip: Chip, *, at_bandwidth: bool = False) -> float:
    """Seconds of the kernels that XLA's TPU compiler writes itself: the cycles it expects, at the chip's clock.

    With ``at_bandwidth``, kernels without a product take no longer than what they read and write at the bandwidth of
    the chip's memory. Collectives and kernels of Pallas have no cycles.
    """
    if not chip.cycles_per_second:
        return 0.0
    total = 0.0
    for run, has_products in _kernels(text):
        cycles = _CYCLES.search(run.rest)
        if cycles is None or int(cycles[1]) >= UNKNOWN_CYCLES:
            continue
        seconds = int(cycles[1]) / chip.cycles_per_second
        if at_bandwidth and not has_products:
            bytes_ = sum(sum(bytes_of_arrays(type_)) for type_ in (run.type, *run.operands))
            seconds = min(seconds, bytes_ / chip.memory_bytes_per_second)
        total += run.times * seconds
    return total


def stated_seconds(text: str, chip: Chip, *, rows: float = 1.0) -> float:
    """Seconds of the kernels of Pallas that state what they do: their FLOPs at the chip's peak, or their bytes at its
    memory's bandwidth.

    Grouped products state all rows there is room for, also those that a balanced routing leaves empty; ``rows`` is the
    share of them whose FLOPs count. Attention states nothing.
    """
    kernels = ((run.times, stated) for run, _ in _kernels(text) if (stated := _STATED.search(run.rest)))
    return sum(
        times * max(rows * int(one["flops"]) / chip.flops_per_second, int(one["bytes"]) / chip.memory_bytes_per_second)
        for times, one in kernels
    )


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


def _kernels(text: str) -> Iterator[tuple[Instruction, bool]]:
    """What runs in every step, and whether there is a product in it."""
    kernel: Instruction | None = None
    has_products = False
    for run in instructions(text):
        if run.is_rare:
            continue
        is_product = run.opcode in ("convolution", "dot")
        if run.in_fusion:
            has_products |= is_product
            continue
        if kernel is not None:
            yield kernel, has_products
        kernel, has_products = run, is_product
    if kernel is not None:
        yield kernel, has_products
