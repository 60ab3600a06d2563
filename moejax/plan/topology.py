"""Which chips, and how they are joined: ``v5p:8x8x16`` is a torus of 1,024, ``cpu:8`` are 8 devices of this machine."""

from __future__ import annotations

import importlib.util
import itertools
import math
import re
from dataclasses import dataclass
from typing import Any

from moejax.errors import UserError
from moejax.laws.chips import CHIPS, Chip
from moejax.wording import did_you_mean

CPU = "cpu"

_FLAT = ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
_SMALL = ((1, 1, 1), (1, 2, 1), (2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4))
CUBE = 4
"""Chips along an edge of the cubes that slices of a three-dimensional torus are made of."""
_LONGEST = {"v4": (4096, 16), "v5p": (6144, 24)}
"""Chips of the largest slice, and along its longest edge."""


@dataclass(frozen=True)
class Topology:
    """A slice of chips."""

    chip_name: str
    """A key of ``moejax.laws.chips.CHIPS``, or ``cpu``."""
    shape: tuple[int, ...]
    """Chips along each dimension of the torus."""

    @property
    def name(self) -> str:
        """As it is written."""
        return f"{self.chip_name}:{'x'.join(map(str, self.shape))}"

    @property
    def devices(self) -> int:
        """Chips, each of which is one device of a mesh."""
        return math.prod(self.shape)

    @property
    def chip(self) -> Chip | None:
        """What one chip can do; None for devices of a CPU, of which nobody states it."""
        return CHIPS.get(self.chip_name)

    def is_ring(self, dimension: int) -> bool:
        """Whether the last chip along a dimension is joined to the first: in whole cubes, or a full edge of a pod."""
        if len(self.shape) == 3:
            return all(size % CUBE == 0 for size in self.shape)
        return len(self.shape) == 2 and self.shape[dimension] == 16

    def compile_only_devices(self) -> list[Any]:
        """The devices that a program can be compiled for: of a TPU none is needed.

        Raises:
          ValueError: libtpu is not installed, or this process has too few devices of a CPU.
        """
        import jax
        from jax.experimental import topologies

        if self.chip_name == CPU:
            if len(jax.devices("cpu")) < self.devices:
                raise ValueError(
                    f"{self.name} needs {self.devices} devices, and this process has {len(jax.devices('cpu'))}; set "
                    f"jax_num_cpu_devices before JAX starts."
                )
            return jax.devices("cpu")[: self.devices]
        check_compiler(self)
        # The two cores of a chip of v4 work as one device, as on the chips that came after it.
        options = {"chip_config_name": "megacore"} if self.chip_name == "v4" else {}
        devices = topologies.get_topology_desc(self.name, "tpu", **options).devices
        assert len(devices) == self.devices, f"{self.name} has {len(devices)} devices"
        return devices


def check_compiler(topology: Topology) -> None:
    """Raise ``ValueError`` if what compiles for the chips is not installed."""
    if topology.chip_name != CPU and importlib.util.find_spec("libtpu") is None:
        raise UserError(
            f"Compiling for {topology.name} needs libtpu, which is not installed; no TPU is needed: "
            f"pip install 'moejax[plan]'."
        )


def parse(text: str) -> Topology:
    """The topology that is written ``CHIP:AxB`` or ``CHIP:AxBxC``, or ``cpu:N``.

    Raises:
      ValueError: no such chip or slice; the sentence offers the nearest.
    """
    chip, _, sizes = text.strip().lower().partition(":")
    tori = [name for name, one in CHIPS.items() if one.torus_dimensions]
    if chip not in (*tori, CPU):
        why = "; its chips are not joined to a torus" if chip in CHIPS else ""
        raise UserError(f"No plan can be made for {chip!r}{why}; {did_you_mean(chip, (*tori, CPU))}")
    if chip == CPU:
        if not re.fullmatch(r"[1-9][0-9]{0,5}", sizes):
            raise UserError(f"The topology is {text!r}; write the number of a CPU's devices, as cpu:8.")
        return Topology(CPU, (int(sizes),))
    if not re.fullmatch(r"[0-9]{1,6}(x[0-9]{1,6})*", sizes):
        raise UserError(f"The topology is {text!r}; write it as {' or '.join(_names(chip)[-3:])}.")
    shape = tuple(int(size) for size in sizes.split("x"))
    if shape not in slices(chip):
        near = ", ".join(_nearest(chip, shape))
        raise UserError(f"There is no slice {chip}:{sizes}; slices {_rule(chip)}. The nearest are {near}.")
    return Topology(chip, shape)


def slices(chip: str) -> list[tuple[int, ...]]:
    """The shapes of slices of a chip, from small to large."""
    if CHIPS[chip].torus_dimensions == 2:
        return list(_FLAT)
    most, longest = _LONGEST[chip]
    edges = range(CUBE, longest + 1, CUBE)
    cubes = [c for c in itertools.combinations_with_replacement(edges, 3) if math.prod(c) <= most]
    return [*_SMALL, *sorted(cubes, key=lambda shape: (math.prod(shape), shape))]


def _rule(chip: str) -> str:
    if CHIPS[chip].torus_dimensions == 2:
        return "are " + ", ".join("x".join(map(str, shape)) for shape in _FLAT)
    most, longest = _LONGEST[chip]
    cubes = f"cubes of {CUBE}x{CUBE}x{CUBE}, short edges first"
    return f"of more than 32 chips are {cubes}, no edge above {longest}, at most {most:,} chips"


def _names(chip: str) -> list[str]:
    return [f"{chip}:{'x'.join(map(str, shape))}" for shape in slices(chip)]


def _nearest(chip: str, shape: tuple[int, ...]) -> list[str]:
    """The slices whose edges, from short to long, differ least in proportion."""
    dimensions = CHIPS[chip].torus_dimensions
    wanted = sorted((*shape, *(1,) * dimensions), reverse=True)[:dimensions][::-1]

    def difference(slice_: tuple[int, ...]) -> float:
        return sum(abs(math.log(max(one, 1) / other)) for one, other in zip(wanted, sorted(slice_), strict=True))

    return [f"{chip}:{'x'.join(map(str, one))}" for one in sorted(slices(chip), key=difference)[:3]]
