"""A checkpoint folder of transformers: its config.json, and its safetensors files, of which only headers are read."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from moejax.errors import UserError
from moejax.folder import check_as_written
from moejax.huggingface import FAMILIES
from moejax.huggingface.family import ModelFamily
from moejax.huggingface.weight_mapping import Pair
from moejax.stored import foreign_json, read_bytes
from moejax.weights.folder import FLOATS
from moejax.weights.safetensors import Kind, TensorFile
from moejax.wording import some

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


class Checkpoint:
    """The tensors of a folder by name, in whichever file they are."""

    def __init__(self, folder: Path):
        self.folder = folder
        paths = _files(folder)
        for path in paths:
            check_as_written(path)
        self._files = [TensorFile(path) for path in paths]
        self._of = {name: file for file in self._files for name in file.kinds}
        self.kinds: dict[str, Kind] = {name: kind for file in self._files for name, kind in file.kinds.items()}

    def read(self, name: str, index: tuple[int, ...] = ()) -> np.ndarray:
        """A tensor, or the part of it at ``index`` of its first axes."""
        return self._of[name].read(name, index)

    def check(self, pairs: Iterable[Pair], family: ModelFamily, num_layers: int) -> list[str]:
        """Raise ``UserError`` if tensors are missing, too many, or of another shape or type than ``pairs`` say.

        Returns the names of tensors that are known not to belong to the model.
        """
        pairs = list(pairs)
        expected = {pair.theirs: pair.whole for pair in pairs}
        missing = sorted({pair.theirs for pair in pairs if not pair.is_copy} - self.kinds.keys())
        if missing:
            raise UserError(
                f"{self.folder} lacks {len(missing)} tensors that a {family.name} of its {CONFIG} has: "
                f"{some(missing)}. A file may be missing, or {CONFIG} is of another model."
            )
        extra = sorted(self.kinds.keys() - expected.keys())
        left_out = [name for name in extra if _no_part(name, family, num_layers)]
        extra = [name for name in extra if name not in left_out]
        if extra:
            raise UserError(
                f"{self.folder} has {len(extra)} tensors that a {family.name} of its {CONFIG} does not have: "
                f"{some(extra)}. Nothing is left out silently; {CONFIG} may be of another model."
            )
        for name in expected.keys() & self.kinds.keys():
            kind, shape = self.kinds[name], expected[name]
            if kind.shape != shape:
                raise UserError(
                    f"{self.folder}: {name} has the shape {list(kind.shape)}; by {CONFIG} it must have {list(shape)}."
                )
            if kind.dtype not in FLOATS.values():
                raise UserError(
                    f"{self.folder}: {name} is {kind.dtype}; moejax reads {', '.join(FLOATS)}. Save the checkpoint in "
                    f"one of them with transformers first."
                )
        return left_out

    def check_copies(self, pairs: Iterable[Pair]) -> None:
        """Raise ``UserError`` if a tensor that repeats another has other numbers."""
        pairs = list(pairs)
        originals = {pair.ours: pair.theirs for pair in pairs if not pair.is_copy}
        for pair in (pair for pair in pairs if pair.is_copy and pair.theirs in self.kinds):
            ours, original = (
                self.read(name).reshape(-1).view(np.uint8) for name in (pair.theirs, originals[pair.ours])
            )
            if not np.array_equal(ours, original):
                raise UserError(
                    f"{self.folder}: {pair.theirs} differs from {originals[pair.ours]}, but modules of multi-token "
                    f"prediction share the model's embedding and head. Set num_nextn_predict_layers to 0 in {CONFIG} "
                    f"to read the model without them."
                )

    def has_layer(self, number: int) -> bool:
        """Whether any tensor is of the layer of this number."""
        return any(name.startswith(f"model.layers.{number}.") for name in self.kinds)

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *raised: object) -> None:
        for file in self._files:
            file.close()


def read_config(folder: Path) -> tuple[ModelFamily, dict[str, Any]]:
    """The family of a checkpoint and its config.json.

    Raises:
      UserError: no folder of transformers, a family that moejax does not know, or quantised weights.
    """
    path = folder / CONFIG
    if not path.is_file():
        raise UserError(f"{folder} is no folder of a Hugging Face checkpoint: it has no {CONFIG}.")
    remedy = "fetch it again"
    config = foreign_json(read_bytes(path, remedy=remedy), path, shape=dict, remedy=remedy)
    name = config.get("model_type")
    family = FAMILIES.get(str(name))
    if family is None:
        raise UserError(f"{path}: model_type {name!r} is no family that moejax reads; known are {', '.join(FAMILIES)}.")
    quantised = config.get("quantization_config")
    if quantised:
        method = quantised.get("quant_method") if isinstance(quantised, dict) else quantised
        raise UserError(
            f"{path}: the weights are quantised ({method}); moejax reads {', '.join(FLOATS)}. Load the checkpoint with "
            f"transformers, dequantised, and save it again."
        )
    return family, config


def _files(folder: Path) -> list[Path]:
    index, single = folder / INDEX, folder / SINGLE
    if index.is_file():
        remedy = "fetch it again"
        index_content = foreign_json(
            read_bytes(index, remedy=remedy), index, shape={"weight_map": dict[str, str]}, remedy=remedy
        )
        names = sorted(set(index_content["weight_map"].values()))
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise UserError(
                f"{folder} is not whole: {INDEX} names {some(missing)}, which is not there; fetch it again."
            )
        return [folder / name for name in names]
    if single.is_file():
        return [single]
    pickled = sorted(path.name for path in folder.glob("*.bin"))
    remedy = f" It has {pickled[0]}, a pickle: load it with transformers and save it again." if pickled else ""
    raise UserError(f"{folder} holds no weights: neither {SINGLE} nor {INDEX}.{remedy}")


def _no_part(name: str, family: ModelFamily, num_layers: int) -> bool:
    """Whether a tensor is none of the model's: a table that old releases saved, or a module after the last layer."""
    layer = re.match(r"model\.layers\.(\d+)\.", name)
    after = family.further_layers and layer is not None and int(layer[1]) >= num_layers
    return after or name.endswith(".rotary_emb.inv_freq")
