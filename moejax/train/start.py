"""The state from which a training starts: random weights from its seed, or those of another model."""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from moejax.architecture import Architecture
from moejax.config import dump
from moejax.errors import UserError
from moejax.folder import changes
from moejax.train.program import Program
from moejax.train.saved_weights import find_saved_state, is_training, read_saved
from moejax.train.step import TrainState
from moejax.train.training import Training
from moejax.train.upcycle import OF_THE_MIXTURE, Read, check_upcycled, preserves, upcycled
from moejax.weights.folder import is_weights, open_weights, read_architecture
from moejax.weights.parameters import EXPERT_BIAS, flat, nested, parameters
from moejax.wording import some


def first_state(training: Training, program: Program, log: Callable[[str], None]) -> tuple[TrainState, str]:
    """A training's first state on the mesh of ``program``, and in the first process the SHA-256 of the weights that it
    begins with, if they are another model's.

    Raises:
      UserError: its initial weights are not there, or are of a model that it cannot start from.
    """
    state = program.init(training.seed)
    given = training.recipe.initial_weights
    if not given.source:
        return state, ""
    digest = hashlib.sha256()

    def place(name: str, read: Read, sharding: jax.sharding.Sharding) -> jax.Array:
        array = read(name)
        if jax.process_index() == 0:
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    with _weights(Path(given.source).expanduser()) as (source, read):
        find = _fitting(training, source, read, _on_devices(state.params), log)
        shardings = dict(flat(program.shardings.params))
        params = nested({name: place(name, find, shardings[name]) for name in sorted(shardings)})
        bias = state.expert_bias
        if bias is not None and source.expert_bias and source == training.architecture:
            bias = place(EXPERT_BIAS, read, program.shardings.expert_bias)
    ema = None if state.ema is None else jax.tree.map(jnp.copy, params)
    return replace(state, params=params, expert_bias=bias, ema=ema), digest.hexdigest()


def check_initial_weights(training: Training) -> None:
    """Raise ``UserError`` if a training cannot start from the weights that it names; their arrays are not read."""
    given = training.recipe.initial_weights
    if given.source:
        with _weights(Path(given.source).expanduser()) as (source, _):
            _check_fit(training, source)


def _on_devices(params: Any) -> Read:
    """Parameters on the devices of all processes, by their dotted names."""
    leaves = dict(flat(params))
    return lambda name: np.asarray(multihost_utils.process_allgather(leaves[name], tiled=True))


def _shapes(architecture: Architecture) -> dict[str, tuple[int, ...]]:
    return {name: kind.shape for name, kind in parameters(architecture).items() if name != EXPERT_BIAS}


def _fitting(training: Training, source: Architecture, read: Read, fresh: Read, log: Callable[[str], None]) -> Read:
    architecture, given = training.architecture, training.recipe.initial_weights
    _check_fit(training, source)
    if _shapes(source) == _shapes(architecture):
        if changed := changes(dump(source), dump(architecture)):
            log(f"The weights of {given.source} fit, but computed something else: {_shown(changed)}.")
        return read
    if not preserves(architecture):
        log(
            f"The gates of router {architecture.router} do not sum to a constant (or a capacity drops tokens), so the "
            f"mixture does not start as the dense model {given.source} ended."
        )
    return upcycled(source, architecture, read, fresh, noise=given.noise, seed=training.seed)


def _check_fit(training: Training, source: Architecture) -> None:
    architecture, given = training.architecture, training.recipe.initial_weights
    if _shapes(source) == _shapes(architecture):
        return
    changed = changes(dump(source), dump(architecture))
    beyond = {name: pair for name, pair in changed.items() if name.partition(".")[0] not in OF_THE_MIXTURE}
    if beyond or source.is_moe or not architecture.is_moe:
        raise UserError(
            f"initial_weights.source {given.source} is of a model with {_shown(beyond or changed)}; give weights of "
            f"this architecture, or, for a mixture, of a dense model that differs in the feed-forward alone."
        )
    check_upcycled(source, architecture)


@contextlib.contextmanager
def _weights(path: Path) -> Iterator[tuple[Architecture, Read]]:
    """Architecture and parameters of a folder of weights, a training or a checkpoint."""
    if is_weights(path):
        architecture = read_architecture(path)
        with open_weights(path, architecture) as file:
            yield architecture, lambda name: file.read(name).astype(np.float32, copy=False)
    elif is_training(path):
        saved = find_saved_state(path)
        yield saved.training.architecture, functools.partial(read_saved, saved)
    else:
        raise UserError(
            f"initial_weights.source {path} is neither a folder of weights, as moejax convert writes, nor the folder "
            f"of a training or a checkpoint in one."
        )


def _shown(changed: dict[str, tuple[Any, Any]]) -> str:
    return some([f"{name} {old!r} (here {new!r})" for name, (old, new) in changed.items()], most=6)
