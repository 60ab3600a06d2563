"""Read and write moejax's weights folder: ``architecture.json``, ``weights.safetensors`` and tokenizer files.

The file holds the stacked arrays of ``parameters`` under their dotted names, each in its stored type:
float32, bfloat16 or float16. One file suffices for any size, because tensors are read by position.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from moejax.architecture import Architecture
from moejax.config import dump
from moejax.errors import UserError
from moejax.folder import atomic_folder, check_as_written, note
from moejax.model import transformer
from moejax.stored import foreign_json, read_bytes, read_json, write_json
from moejax.weights.safetensors import DTYPES, Kind, TensorFile, TensorFileWriter
from moejax.wording import listed, some

ARCHITECTURE = "architecture.json"
WEIGHTS = "weights.safetensors"

FLOATS = {"float32": DTYPES["F32"], "bfloat16": DTYPES["BF16"], "float16": DTYPES["F16"]}
"""Types of weights by their common names."""


EXPERT_BIAS = "moe_layers.feed_forward.expert_bias"
"""Name of the expert bias, which is stored with the parameters but is not a parameter. Its last rows belong to
multi-token prediction modules."""


class Parameter(NamedTuple):
    """Shape and axes of a stacked array."""

    shape: tuple[int, ...]
    axes: tuple[str, ...]
    """Logical names, as in ``moejax.sharding``."""


@functools.lru_cache(maxsize=16)
def parameters(architecture: Architecture) -> Mapping[str, Parameter]:
    """Return the shape and axes of every stacked array, including an expert bias, keyed by dotted name."""
    shapes = dict(flat(transformer.abstract_params(architecture)))
    axes = dict(flat(transformer.param_axes(architecture)))
    described = {name: Parameter(tuple(leaf.shape), tuple(axes[name])) for name, leaf in shapes.items()}
    if architecture.expert_bias:
        shape = (len(architecture.routed_layers), architecture.num_experts)
        described[EXPERT_BIAS] = Parameter(shape, ("layers", "router"))
    return described


def flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested dicts with their dotted names."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def nested(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Build nested dicts, keyed by the parts of the dotted names."""
    tree: dict[str, Any] = {}
    for name, value in leaves.items():
        *groups, last = name.split(".")
        here = tree
        for group in groups:
            here = here.setdefault(group, {})
        here[last] = value
    return tree


class Weights(NamedTuple):
    """A model with its architecture and parameters."""

    architecture: Architecture
    params: dict[str, Any]
    """Nested dict of float32 arrays."""
    expert_bias: jax.Array | None
    """Float32[routed layers, experts], or None."""


def load_weights(folder: Path | str) -> Weights:
    """Load the weights of a folder in float32, independent of their stored type.

    Raises:
      UserError: the folder holds no weights, or weights that do not match its architecture.
    """
    folder = Path(folder)
    architecture = read_architecture(folder)
    with open_weights(folder, architecture) as file:
        arrays = {name: jnp.asarray(file.read(name).astype(np.float32, copy=False)) for name in file.kinds}
    expert_bias = arrays.pop(EXPERT_BIAS, None)
    return Weights(architecture, nested(arrays), expert_bias)


def save_weights(
    folder: Path | str, architecture: Architecture, params: Mapping[str, Any], expert_bias: Any = None
) -> None:
    """Write a folder for ``load_weights``. It appears only when complete.

    Raises:
      UserError: the folder exists already.
    """
    arrays = dict(flat(params)) | ({} if expert_bias is None else {EXPERT_BIAS: expert_bias})
    kinds = {name: Kind(np.dtype(array.dtype), tuple(array.shape)) for name, array in arrays.items()}
    with atomic_folder(Path(folder)) as partial, weights_writer(partial, architecture, kinds) as file:
        for name, array in arrays.items():
            file.write(name, (), np.asarray(array))


def is_weights(folder: Path) -> bool:
    """Return whether a folder holds moejax weights."""
    return (folder / ARCHITECTURE).is_file() and (folder / WEIGHTS).is_file()


def read_architecture(folder: Path) -> Architecture:
    """Read and check the architecture of a weights folder.

    Raises:
      UserError: the folder has no architecture, or one that cannot be built.
    """
    for name in (ARCHITECTURE, WEIGHTS):
        if not (folder / name).is_file():
            raise UserError(f"{folder} is not a weights folder: it has no {name}. Create one with moejax convert.")
    path = folder / ARCHITECTURE
    architecture = read_json(path, Architecture, remedy="write it again with moejax convert")
    transformer.check(architecture)
    return architecture


def open_weights(folder: Path, architecture: Architecture, *, verify: bool = True) -> TensorFile:
    """Open the weight file of a folder and check its tensors against ``architecture``. With ``verify``, also check the
    file's hash.

    Raises:
      UserError: the contents have changed, or tensors are missing, unexpected, or of another shape or type.
    """
    if verify:
        check_as_written(folder / WEIGHTS)
    file = TensorFile(folder / WEIGHTS)
    try:
        _check(file, architecture)
    except ValueError:
        file.close()
        raise
    return file


@contextlib.contextmanager
def weights_writer(folder: Path, architecture: Architecture, kinds: Mapping[str, Kind]) -> Iterator[TensorFileWriter]:
    """Open the weight file of a new folder for writing; write the architecture first and the file's hash at the end."""
    known = {name: parameter.shape for name, parameter in parameters(architecture).items()}
    given = {name: kind.shape for name, kind in kinds.items()}
    if known != given:
        different = sorted(name for name in known.keys() | given.keys() if known.get(name) != given.get(name))
        raise UserError(
            f"The arrays {', '.join(different[:5])} do not match the architecture; give every array of "
            f"moejax.weights.folder.parameters, with its shape."
        )
    write_json(folder / ARCHITECTURE, dump(architecture))
    with TensorFileWriter(folder / WEIGHTS, kinds, {"format": "moejax"}) as file:
        yield file
    note(folder, WEIGHTS, folder / WEIGHTS)


def _check(file: TensorFile, architecture: Architecture) -> None:
    known, stored = parameters(architecture), file.kinds
    for what, names in (("lacks", known.keys() - stored.keys()), ("has", stored.keys() - known.keys())):
        if names:
            raise UserError(
                f"{file.path} does not match {ARCHITECTURE} in the same folder: it {what} "
                f"{some(sorted(names))}. Restore the matching file, or convert again."
            )
    for name, kind in stored.items():
        if kind.shape != known[name].shape:
            raise UserError(
                f"{file.path} does not match {ARCHITECTURE} in the same folder: {name} has the shape "
                f"{list(kind.shape)} and must have {list(known[name].shape)}. Restore the matching "
                f"file, or convert again."
            )
        if kind.dtype not in FLOATS.values():
            raise UserError(f"{file.path}: {name} is {kind.dtype}, but weights must be {listed(FLOATS, 'or')}.")


GENERATION = "generation_config.json"
"""File of generation defaults, which names the first and last tokens of a generated text."""
TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
"""Keys of special tokens in ``config.json`` and ``generation_config.json``."""

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "tekken.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    GENERATION,
)
"""Tokenizer files that Hugging Face libraries write."""


def carry_tokenizer(source: Path, target: Path) -> list[str]:
    """Copy the tokenizer files that exist, and return their names."""
    names = [name for name in TOKENIZER_FILES if (source / name).is_file()]
    for name in names:
        shutil.copyfile(source / name, target / name)
    return names


def generation_token_ids(folder: Path) -> dict[str, Any]:
    """Return the ids of special tokens in ``generation_config.json``, keyed as there; None for undefined tokens."""
    path = folder / GENERATION
    remedy = "copy it again, or remove it"
    named = foreign_json(read_bytes(path, remedy=remedy), path, shape=dict, remedy=remedy) if path.is_file() else {}
    return {name: named.get(name) for name in TOKEN_IDS}


def special_token(folder: Path, name: str) -> str | None:
    """Return an entry of ``tokenizer_config.json`` such as ``bos_token``; None if it is missing."""
    path = folder / "tokenizer_config.json"
    if not path.is_file():
        return None
    remedy = "copy it again, or remove it"
    token = foreign_json(read_bytes(path, remedy=remedy), path, shape=dict, remedy=remedy).get(name)
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None
