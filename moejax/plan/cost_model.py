"""How long a compiled program works on one chip, kernel after kernel, by what the compiler and the kernels say of it.

What runs only where a condition says so is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from moejax.laws.chips import Chip
from moejax.train.program_text import Run, runs

_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_STATED = re.compile(r'"cost_estimate":\{"flops":"(?P<flops>\d+)".*?"bytes_accessed":"(?P<bytes>\d+)"')
UNKNOWN_CYCLES = 2**62
"""From here on a number of cycles is the compiler's word for not knowing."""


def compiler_seconds(text: str, chip: Chip) -> float:
    """Of the kernels that XLA's TPU compiler writes itself: the cycles it expects, at the chip's clock.

    Collectives and kernels of Pallas have none.
    """
    if not chip.cycles_per_second:
        return 0.0
    found = ((run.times, int(cycles[1])) for run in _often(text) if (cycles := _CYCLES.search(run.rest)))
    return sum(times * cycles for times, cycles in found if cycles < UNKNOWN_CYCLES) / chip.cycles_per_second


def stated_seconds(text: str, chip: Chip) -> float:
    """Of the kernels of Pallas: the FLOPs they state at the chip's peak, or the bytes at its memory's bandwidth.

    Grouped products state all rows there is room for, also those that a balanced routing leaves empty. Attention states
    nothing.
    """
    found = ((run.times, stated) for run in _often(text) if (stated := _STATED.search(run.rest)))
    return sum(
        times * max(int(one["flops"]) / chip.flops_per_second, int(one["bytes"]) / chip.memory_bytes_per_second)
        for times, one in found
    )


def _often(text: str) -> Iterator[Run]:
    return (run for run in runs(text) if not run.in_fusion and not run.in_branch)
