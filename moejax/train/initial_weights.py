"""Start a training run from another model's weights, or an MoE model from a dense model's weights.

Each process reads the parts of another model's weights that its devices hold, one at a time.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
from collections import defaultdict
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
from moejax.data.tokenizer import Tokenizer
from moejax.errors import UserError
from moejax.folder import changes, check_as_written, sha256
from moejax.train.directory.manifest import files_of, hash_files
from moejax.train.directory.saved_weights import (
    check_saved,
    find_saved_state,
    is_training,
    read_saved,
    saved_tokenizer,
    tokenizer_beside,
)
from moejax.train.program import Program
from moejax.train.step import TrainState
from moejax.train.training import Training
from moejax.weights.folder import (
    EXPERT_BIAS,
    WEIGHTS,
    flat,
    is_weights,
    nested,
    open_weights,
    parameters,
    read_architecture,
)
from moejax.weights.upcycle import OF_THE_MIXTURE, Read, ReadBlock, check_upcycled, preserves, upcycled
from moejax.wording import some


def state_from_weights(training: Training, program: Program, log: Callable[[str], None]) -> TrainState:
    """Return a training run's first state on the mesh of ``program``, with its initial weights.

    Raises:
      UserError: the initial weights do not exist, or their model is not compatible.
    """
    given, state = training.recipe.initial_weights, program.init(training.seed)
    bias = state.expert_bias
    shardings, fresh = dict(flat(program.shardings.params)), dict(flat(state.params))
    state = replace(state, params=None, ema=None)
    with _weights(Path(given.source).expanduser()) as (source, of_source):
        find = _fitting(training, source, of_source, fresh, log)
        names, params = sorted(shardings), {}
        for name in names:
            # Only one array at a time exists twice.
            array, part = fresh.pop(name), find(name)
            params[name] = array if part is None else _place(array.shape, shardings[name], part)
        if bias is not None and source.expert_bias:
            same_shape = parameters(source)[EXPERT_BIAS].shape == bias.shape
            if same_shape and source.router == training.architecture.router:
                part = functools.partial(of_source, EXPERT_BIAS)
                bias = _place(bias.shape, program.shardings.expert_bias, part)
            else:
                log(
                    f"The expert bias starts at 0, because the expert bias in {given.source} belongs to another "
                    "router or other layers."
                )
    params = nested(params)
    ema = jax.tree.map(jnp.copy, params) if training.recipe.ema_decay else None
    return replace(state, params=params, expert_bias=bias, ema=ema)


def initial_weights_sha256(training: Training) -> str:
    """Return the SHA-256 of a training run's initial weights, reading all of them.

    Raises:
      UserError: the weights do not exist, or their files have changed since they were written.
    """
    path = Path(training.recipe.initial_weights.source).expanduser()
    if is_weights(path):
        content = sha256(path / WEIGHTS)
        check_as_written(path / WEIGHTS, content)
        return content
    saved = find_saved_state(path, verify=False)
    hashes = hash_files(saved.place, files_of(saved.place))
    check_saved(saved, hashes)
    return hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()


def check_initial_weights(training: Training, tokenizer: Tokenizer | None) -> None:
    """Raise ``UserError`` if a training run cannot start from its configured weights; their arrays are not read.

    ``tokenizer`` is the data's tokenizer, if known.
    """
    path = Path(training.recipe.initial_weights.source).expanduser()
    with _weights(path) as (source, _):
        _check_fit(training, source)
    _check_tokenizer(path, tokenizer)


def _check_tokenizer(path: Path, tokenizer: Tokenizer | None) -> None:
    """Raise ``UserError`` if a learned token has different ids in the data's tokenizer and in that of the weights.
    Added tokens may differ.
    """
    own = tokenizer_beside(path) if is_weights(path) else saved_tokenizer(find_saved_state(path, verify=False))
    theirs = own.vocabulary() if own else None
    here = tokenizer.vocabulary() if tokenizer else None
    if theirs is None or here is None:
        return
    shared = sorted(theirs.keys() & here.keys())
    different = [token for token in shared if theirs[token] != here[token]]
    if different:
        first = different[0]
        raise UserError(
            f"The tokenizers of initial_weights.source {path} and of the data differ in {len(different):,} of "
            f"{len(shared):,} tokens, such as {first} ({theirs[first]!r} in the weights, {here[first]!r} in the data). "
            f"Prepare the data with the tokenizer of the weights (data.tokenizer). To skip this check, remove "
            "tokenizer.json from a weights folder (moejax convert --to weights)."
        )


def _place(shape: tuple[int, ...], sharding: jax.sharding.Sharding, part: ReadBlock) -> jax.Array:
    """Return an array on the mesh; each part on this process's devices is read once."""
    devices_of = defaultdict(list)
    for device, index in sharding.addressable_devices_indices_map(shape).items():
        whole = (*(index or ()), *(slice(None),) * (len(shape) - len(index or ())))
        devices_of[tuple(at.indices(size)[:2] for at, size in zip(whole, shape, strict=True))].append(device)
    parts = []
    for bounds, devices in devices_of.items():
        block = part(tuple(slice(*ends) for ends in bounds))
        parts += [jax.device_put(block, device, may_alias=False) for device in devices]
    return jax.make_array_from_single_device_arrays(shape, sharding, parts)


def _shapes(architecture: Architecture) -> dict[str, tuple[int, ...]]:
    return {name: kind.shape for name, kind in parameters(architecture).items() if name != EXPERT_BIAS}


def _fitting(
    training: Training, source: Architecture, read: Read, fresh: dict[str, jax.Array], log: Callable[[str], None]
) -> Callable[[str], ReadBlock | None]:
    """Return a function that maps a parameter's name to its block reader, or to None if the parameter keeps its random
    values.
    """
    architecture, given = training.architecture, training.recipe.initial_weights
    _check_fit(training, source)
    if _shapes(source) == _shapes(architecture):
        if changed := changes(dump(source), dump(architecture)):
            log(
                f"The weights of {given.source} have the right shapes, but their architecture differs: "
                f"{_shown(changed)}."
            )
        return lambda name: functools.partial(read, name)
    if not preserves(architecture):
        log(
            f"The gates of router {architecture.router} do not sum to a constant (or a capacity drops tokens), so the "
            f"MoE model does not start as the same function as the dense model {given.source}."
        )
    # Routers are small and needed whole. All processes gather them in the same order.
    routers = {
        name: np.asarray(multihost_utils.process_allgather(array, tiled=True))
        for name, array in sorted(fresh.items())
        if name.endswith(".router")
    }
    return upcycled(source, architecture, read, routers, noise=given.noise, seed=training.seed)


def _check_fit(training: Training, source: Architecture) -> None:
    architecture, given = training.architecture, training.recipe.initial_weights
    if _shapes(source) == _shapes(architecture):
        return
    changed = changes(dump(source), dump(architecture))
    beyond = {name: pair for name, pair in changed.items() if name.partition(".")[0] not in OF_THE_MIXTURE}
    if beyond or source.is_moe or not architecture.is_moe:
        raise UserError(
            f"initial_weights.source {given.source} holds a model with {_shown(beyond or changed)}. Give weights of "
            "this architecture, or, for an MoE model, of a dense model that differs only in the feed-forward layers."
        )
    check_upcycled(source, architecture)


@contextlib.contextmanager
def _weights(path: Path) -> Iterator[tuple[Architecture, Read]]:
    if is_weights(path):
        architecture = read_architecture(path)
        with open_weights(path, architecture, verify=False) as file:
            yield architecture, lambda name, index: file.read_block(name, index).astype(np.float32, copy=False)
    elif is_training(path):
        saved = find_saved_state(path, verify=False)
        yield saved.training.architecture, functools.partial(read_saved, saved)
    else:
        raise UserError(
            f"initial_weights.source is {path}, which holds no weights; give a weights folder (written by moejax "
            "convert), the folder of a training run, or a checkpoint in it."
        )


def _shown(changed: dict[str, tuple[Any, Any]]) -> str:
    return some([f"{name} {old!r} (here {new!r})" for name, (old, new) in changed.items()], most=6)
