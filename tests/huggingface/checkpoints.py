"""Checkpoints of every family with random numbers, written without transformers."""

import json
from pathlib import Path

import jax
import numpy as np
from family_architectures import SMALL

from moejax.huggingface import FAMILIES
from moejax.huggingface.weight_mapping import pairs
from moejax.weights.folder import EXPERT_BIAS, nested, parameters
from moejax.weights.safetensors import Kind, TensorFile, TensorFileWriter


def write(folder: Path, family: str, *, dtype=np.float32, architecture=None, config=None, change=lambda kinds: None):
    """A checkpoint in one file; ``change`` may spoil its tensors, ``config`` its options."""
    architecture = architecture or SMALL[family]
    paired = pairs(architecture, FAMILIES[family].mappings(architecture))
    kinds = {pair.theirs: Kind(np.dtype(dtype), pair.whole) for pair in paired}
    change(kinds)
    originals = {pair.ours: pair.theirs for pair in paired if not pair.copied}
    copies = {pair.theirs: originals[pair.ours] for pair in paired if pair.copied}
    written = {}
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    with TensorFileWriter(folder / "model.safetensors", kinds, {"format": "pt"}) as file:
        for name, kind in kinds.items():
            numbers = written[copies[name]] if name in copies else random.normal(size=kind.shape).astype(kind.dtype)
            written[name] = numbers
            file.write(name, (), numbers)
    options = FAMILIES[family].config(architecture) | {"torch_dtype": np.dtype(dtype).name, **(config or {})}
    (folder / "config.json").write_text(json.dumps(options))
    return folder


def rewrite(path: Path, numbers: dict) -> None:
    """A safetensors file with these arrays."""
    kinds = {name: Kind(array.dtype, array.shape) for name, array in numbers.items()}
    with TensorFileWriter(path, kinds, {"format": "pt"}) as file:
        for name, array in numbers.items():
            file.write(name, (), array)


def arrays(path: Path) -> dict:
    """All arrays of a safetensors file."""
    with TensorFile(path) as file:
        return {name: file.read(name) for name in file.kinds}


def random_params(architecture):
    """Parameters of ours without the cost of compiling their initialisation."""
    random = np.random.default_rng(0)
    found = {
        name: random.normal(size=parameter.shape).astype(np.float32)
        for name, parameter in parameters(architecture).items()
    }
    found.pop(EXPERT_BIAS, None)
    return nested(found)


def tensors(folder: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Type, shape and bytes of every tensor of a folder."""
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        with TensorFile(path) as file:
            for name, kind in file.kinds.items():
                found[name] = (str(kind.dtype), kind.shape, file.read(name).tobytes())
    return found


def same(ours, theirs) -> None:
    """Two nested dicts of arrays are equal to the bit."""
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)
