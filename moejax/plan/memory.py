"""What a training step holds on one chip: its state exactly, the rest as XLA has placed it."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, NamedSharding

from moejax.architecture import Architecture
from moejax.model import transformer
from moejax.sharding import MESH_AXES, partition_spec
from moejax.train.training import Training


@dataclass(frozen=True, kw_only=True)
class ChipMemory:
    """Bytes on one chip; the fields but ``gradients``, ``limit`` and the smaller one of
    ``temporaries`` and ``evaluation`` are the summands of ``total``."""

    parameters: int
    """Float32 master weights."""
    optimizer_state: int
    other_state: int
    """Balance bias, EMA, counters."""
    batch: int
    """Tokens of the step."""
    temporaries: int
    """What comes and goes within a step, at its most: gradients, activations, gathered weights, buffers."""
    program: int
    """The compiled code, of step and evaluation."""
    gradients: int
    """Share of the temporaries: float32, split as the parameters are."""
    limit: int
    """What the chip has; 0 where nobody states it."""
    evaluation: int = 0
    """What comes and goes within an evaluation, at its most, and not at the same time as in a step."""

    @property
    def total(self) -> int:
        """All of it, in a step or in an evaluation, whichever needs more."""
        state = self.parameters + self.optimizer_state + self.other_state
        return state + self.batch + max(self.temporaries, self.evaluation) + self.program

    @property
    def left(self) -> int:
        """What is not used; negative where it does not fit."""
        return self.limit - self.total


def shard_bytes(arrays: Any, shardings: Any) -> int:
    """Bytes of a tree of arrays on one device."""

    def of(array: Any, sharding: Any) -> int:
        return math.prod(sharding.shard_shape(array.shape)) * array.dtype.itemsize

    return sum(jax.tree.leaves(jax.tree.map(of, arrays, shardings)))


def abstract_mesh(sizes: Mapping[str, int]) -> AbstractMesh:
    """A mesh of these sizes without devices."""
    return AbstractMesh(
        tuple(sizes[axis] for axis in MESH_AXES), MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES)
    )


def parameter_bytes(training: Training, mesh: Mapping[str, int]) -> int:
    """Bytes of the parameters on one chip of a mesh of these sizes, without a device."""
    return _parameter_bytes(training.architecture, tuple(mesh[axis] for axis in MESH_AXES))


@functools.lru_cache(maxsize=4096)
def _parameter_bytes(architecture: Architecture, sizes: tuple[int, ...]) -> int:
    abstract = abstract_mesh(dict(zip(MESH_AXES, sizes, strict=True)))
    params, axes = transformer.abstract_params(architecture), transformer.param_axes(architecture)
    shardings = jax.tree.map(
        lambda leaf, names: NamedSharding(abstract, partition_spec(names, leaf.shape, abstract)), params, axes
    )
    return shard_bytes(params, shardings)
