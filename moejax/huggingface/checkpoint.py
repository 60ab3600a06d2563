"""Read a checkpoint folder of transformers: config.json, and safetensors files whose tensors are read on demand."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from moejax.errors import UserError
from moejax.folder import check_as_written
from moejax.huggingface import families_and_own_code
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
    """Tensors of a folder by name. If several files hold a tensor, the index determines which one is read."""

    def __init__(self, folder: Path):
        self.folder = folder
        paths, weight_map, self.remarks = _files(folder)
        for path in paths:
            check_as_written(path)
        with contextlib.ExitStack() as opened:
            files = {path.name: opened.enter_context(TensorFile(path)) for path in paths}
            holders: dict[str, list[str]] = {}
            for file in files:
                for name in files[file].kinds:
                    holders.setdefault(name, []).append(file)
            self.remarks += _check_index(folder, weight_map, holders)
            self._opened = opened.pop_all()
        self._of = {name: files[weight_map.get(name, held[0])] for name, held in holders.items()}
        self.kinds: dict[str, Kind] = {name: file.kinds[name] for name, file in self._of.items()}

    def read(self, name: str, index: tuple[int, ...] = ()) -> np.ndarray:
        """Read a tensor, or its part at ``index`` along the first axes."""
        return self._of[name].read(name, index)

    def check(self, pairs: Iterable[Pair], family: ModelFamily, num_layers: int) -> list[str]:
        """Raise ``UserError`` if tensors are missing, unexpected, or have another shape or type than in ``pairs``.

        Return the names of tensors that are known not to belong to the model.
        """
        pairs = list(pairs)
        expected = {pair.theirs: pair.whole for pair in pairs}
        missing = sorted({pair.theirs for pair in pairs if not pair.copied} - self.kinds.keys())
        if missing:
            raise UserError(
                f"{self.folder} lacks {len(missing)} tensors of the {family.name} model in its {CONFIG}: "
                f"{some(missing)}. Fetch the checkpoint again; if it is complete, replace {CONFIG} by this model's."
            )
        extra = sorted(self.kinds.keys() - expected.keys())
        left_out = [name for name in extra if _no_part(name, family, num_layers)]
        extra = [name for name in extra if name not in left_out]
        if extra:
            raise UserError(
                f"{self.folder} has {len(extra)} tensors that the {family.name} model in its {CONFIG} does not have: "
                f"{some(extra)}. moejax does not drop unknown tensors: replace {CONFIG} if it is of another model, "
                f"or save the checkpoint without these tensors."
            )
        for name in expected.keys() & self.kinds.keys():
            kind, shape = self.kinds[name], expected[name]
            if kind.shape != shape:
                raise UserError(
                    f"{self.folder}: {name} has the shape {list(kind.shape)}, but {CONFIG} requires {list(shape)}. "
                    f"Fetch the checkpoint again, or replace {CONFIG} if it belongs to another model."
                )
            if kind.dtype not in FLOATS.values():
                raise UserError(
                    f"{self.folder}: {name} is {kind.dtype}; moejax reads {', '.join(FLOATS)}. Save the checkpoint in "
                    f"one of them with transformers first."
                )
        return left_out

    def check_copies(self, pairs: Iterable[Pair]) -> None:
        """Raise ``UserError`` if a copy of another tensor has different values."""
        pairs = list(pairs)
        originals = {pair.ours: pair.theirs for pair in pairs if not pair.copied}
        for pair in (pair for pair in pairs if pair.copied and pair.theirs in self.kinds):
            ours, original = (
                self.read(name).reshape(-1).view(np.uint8) for name in (pair.theirs, originals[pair.ours])
            )
            if not np.array_equal(ours, original):
                raise UserError(
                    f"{self.folder}: {pair.theirs} differs from {originals[pair.ours]}, but {pair.copied} in {CONFIG}."
                )

    def has_layer(self, number: int) -> bool:
        """Return whether any tensor belongs to layer ``number``."""
        return any(name.startswith(f"model.layers.{number}.") for name in self.kinds)

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *raised: object) -> None:
        self._opened.close()


def read_config(folder: Path) -> tuple[ModelFamily, dict[str, Any]]:
    """Return the family of a checkpoint and its config.json.

    Raises:
      UserError: the folder is not a transformers checkpoint, its family is unknown, or its weights are quantized.
    """
    path = folder / CONFIG
    if not path.is_file():
        raise UserError(f"{folder} is not a Hugging Face checkpoint: it has no {CONFIG}. Give a folder with {CONFIG}.")
    remedy = "fetch it again"
    config = foreign_json(read_bytes(path, remedy=remedy), path, shape=dict, remedy=remedy)
    name = config.get("model_type")
    known = families_and_own_code()
    family = known.get(str(name))
    if family is None:
        raise UserError(
            f"{path}: moejax does not support model_type {name!r}; supported are {', '.join(known)}. Give a checkpoint "
            f"of one of these families."
        )
    quantized = config.get("quantization_config")
    if quantized:
        method = quantized.get("quant_method") if isinstance(quantized, dict) else quantized
        raise UserError(
            f"{path}: the weights are quantized ({method}), but moejax reads only {', '.join(FLOATS)}. Dequantize the "
            f"checkpoint with transformers and save it again."
        )
    return family, config


def _files(folder: Path) -> tuple[list[Path], dict[str, str], list[str]]:
    index, single = folder / INDEX, folder / SINGLE
    weight_map: dict[str, str] = {}
    if index.is_file():
        remedy = "fetch it again"
        content = foreign_json(
            read_bytes(index, remedy=remedy), index, shape={"weight_map": dict[str, str]}, remedy=remedy
        )
        weight_map = content["weight_map"]
    names = sorted(set(weight_map.values()))
    if single.is_file():
        if not weight_map or names == [SINGLE]:
            return [single], weight_map, []
        return [single], {}, [f"{SINGLE} is read, as in transformers; remove {INDEX}, which names other files."]
    if names:
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            others = sorted(path.name for path in folder.glob("*.safetensors") if path.name not in names)
            stale = f" {INDEX} may be outdated: it does not name {some(others)}." if others else ""
            raise UserError(
                f"{folder} is incomplete: {INDEX} names {some(missing)}, which does not exist; fetch it again.{stale}"
            )
        return [folder / name for name in names], weight_map, []
    pickled = sorted(path.name for path in folder.glob("*.bin"))
    saved = f"It has {pickled[0]}, a pickle: load it with transformers and save it again."
    remedy = saved if pickled else "Fetch the checkpoint again."
    raise UserError(f"{folder} holds no weights: neither {SINGLE} nor {INDEX}. {remedy}")


def _check_index(folder: Path, weight_map: Mapping[str, str], holders: Mapping[str, list[str]]) -> list[str]:
    index = folder / INDEX
    if absent := sorted(name for name, file in weight_map.items() if file not in holders.get(name, [])):
        raise UserError(
            f"{index} does not match the files: it has {len(absent)} tensors in the wrong file, such as {absent[0]} "
            f"in {weight_map[absent[0]]}. Fetch the folder again, or regenerate the index."
        )
    several = {name: files for name, files in holders.items() if len(files) > 1}
    for name, files in several.items():
        if name not in weight_map:
            raise UserError(f"{folder}: {name} is in {some(files)}, and {INDEX} does not name one of them; add it.")
    if not several:
        return []
    shown = some([f"{name} ({weight_map[name]})" for name in sorted(several)], most=3)
    return [f"{len(several)} tensors are in several files; each is read from the one in {INDEX}: {shown}."]


def _no_part(name: str, family: ModelFamily, num_layers: int) -> bool:
    """Return whether a tensor is not part of the model: a rotary table of old releases, or a module after the last
    layer."""
    layer = re.match(r"model\.layers\.(\d+)\.", name)
    after = family.further_layers and layer is not None and int(layer[1]) >= num_layers
    return after or name.endswith(".rotary_emb.inv_freq")
