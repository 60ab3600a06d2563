"""Account for the memory of a training step on one chip: its state exactly, the rest as XLA allocates it."""

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
    """Bytes on one chip.

    All fields are summands of ``total`` except ``gradients``, ``limit`` and the smaller of ``temporaries`` and
    ``evaluation``.
    """

    parameters: int
    """Float32 master weights."""
    optimizer_state: int
    other_state: int
    """Balance bias, EMA, counters."""
    batch: int
    """Tokens of the step."""
    temporaries: int
    """Peak temporary memory within a step: gradients, activations, gathered weights, buffers."""
    program: int
    """The compiled code of step and evaluation."""
    gradients: int
    """Float32 gradients, sharded as the parameters; a part of the temporaries."""
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
    def left(self) -> int:
        """Unused bytes; negative if the training does not fit."""
        return self.limit - self.total


def shard_bytes(arrays: Any, shardings: Any) -> int:
    """Return the bytes of a tree of arrays on one device."""

    def of(array: Any, sharding: Any) -> int:
        return math.prod(sharding.shard_shape(array.shape)) * array.dtype.itemsize

    return sum(jax.tree.leaves(jax.tree.map(of, arrays, shardings)))


def abstract_mesh(sizes: Mapping[str, int]) -> AbstractMesh:
    """Return a mesh of these sizes without devices."""
    return AbstractMesh(
        tuple(sizes[axis] for axis in MESH_AXES), MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES)
    )


def parameter_bytes(training: Training, mesh: Mapping[str, int]) -> int:
    """Return the bytes of the parameters on one chip of a mesh of these sizes, without a device."""
    return _parameter_bytes(training.architecture, tuple(mesh[axis] for axis in MESH_AXES))


@functools.lru_cache(maxsize=4096)
def _parameter_bytes(architecture: Architecture, sizes: tuple[int, ...]) -> int:
    abstract = abstract_mesh(dict(zip(MESH_AXES, sizes, strict=True)))
    params, axes = transformer.abstract_params(architecture), transformer.param_axes(architecture)
    shardings = jax.tree.map(
        lambda leaf, names: NamedSharding(abstract, partition_spec(names, leaf.shape, abstract)), params, axes
    )
    return shard_bytes(params, shardings)
