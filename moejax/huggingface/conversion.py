"""Convert transformers checkpoints to moejax weights and back, with one tensor or expert in memory at a time."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from moejax.architecture import Architecture
from moejax.errors import UserError
from moejax.folder import atomic_folder, write_text
from moejax.folder import write_json as write_plain_json
from moejax.huggingface import FAMILIES, families_and_own_code
from moejax.huggingface.checkpoint import CONFIG, INDEX, SINGLE, Checkpoint, read_config
from moejax.huggingface.family import ModelFamily
from moejax.huggingface.model_card import CARD, Trained, model_card
from moejax.huggingface.options import CHECKPOINT_ONLY, IGNORED
from moejax.huggingface.own_code import CODE, OWN_CODE
from moejax.huggingface.weight_mapping import Pair, fused, pairs
from moejax.say import StageCallback
from moejax.stored import read_json, write_json
from moejax.weights.folder import (
    EXPERT_BIAS,
    FLOATS,
    carry_tokenizer,
    generation_token_ids,
    open_weights,
    parameters,
    read_architecture,
    weights_writer,
)
from moejax.weights.safetensors import Kind, TensorFile, TensorFileWriter
from moejax.wording import told

ORIGIN = "huggingface.json"
"""File in a weights folder with the family and the options of config.json that have no field in an architecture."""


@dataclass(frozen=True)
class Converted:
    """Result of a conversion."""

    family: str
    architecture: Architecture
    tensors: int
    """Number of tensors in the transformers checkpoint."""
    nbytes: int
    files: tuple[str, ...]
    """Tokenizer files that were copied."""
    left_out: tuple[str, ...] = ()
    """Tensors of the checkpoint that are not part of the model."""
    remarks: tuple[str, ...] = ()
    """Remarks on skipped files, and on tensors in several files."""

    def to_json(self) -> dict[str, Any]:
        """Return the results as plain data."""
        return {
            "family": self.family,
            "tensors": self.tensors,
            "bytes": self.nbytes,
            "tokenizer": list(self.files),
            "left_out": list(self.left_out),
            "fault_in_training": self.architecture.fault_in_training,
            "remarks": list(self.remarks),
        }


def types(given_types: Iterable[tuple[str, np.dtype]], dtype: str | None) -> dict[str, np.dtype]:
    """Return the type of each array: the requested or stored type, or float32 if joined or stacked parts differ.

    The expert bias keeps its type, because its updates are too small for 16-bit types.
    """
    chosen: dict[str, np.dtype] = {}
    for name, given in given_types:
        asked = dtype is not None and not name.endswith(("expert_bias", "e_score_correction_bias"))
        kind = FLOATS[dtype] if dtype is not None and asked else given
        chosen[name] = kind if chosen.get(name, kind) == kind else FLOATS["float32"]
    return chosen


def cast(array: np.ndarray, dtype: np.dtype, name: str) -> np.ndarray:
    """Cast an array to another type.

    Raises:
      UserError: values are too large for the type.
    """
    if array.dtype == dtype:
        return array
    with np.errstate(over="ignore", invalid="ignore"):
        cast = array.astype(dtype)
    if dtype == FLOATS["float16"] and np.isinf(cast).any() and not np.isinf(array).any():
        raise UserError(f"{name} has values that float16 cannot hold; choose --dtype bfloat16 or float32.")
    return cast


def check_room(folder: Path, needed: int) -> None:
    """Raise ``UserError`` if the disk has less free space than needed."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise UserError(f"{folder.parent} has {free:,} bytes free, and {needed:,} are needed; choose another --out.")


def from_huggingface(
    source: Path, out: Path, *, dtype: str | None = None, progress: StageCallback = lambda name, done, total: None
) -> Converted:
    """Write the weights folder ``out`` from a checkpoint; ``dtype`` is a key of ``FLOATS``, or None for the stored
    type.

    Raises:
      UserError: the checkpoint is incomplete, of unknown family, or has an option that moejax does not support.
    """
    family, config = read_config(source)
    architecture = family.architecture(config, str(source / CONFIG))
    with Checkpoint(source) as checkpoint:
        if architecture.num_mtp_layers and not checkpoint.has_layer(architecture.num_layers):
            # transformers saves such checkpoints: it keeps the option but not the modules.
            architecture = architecture.without_mtp
        mappings = family.mappings(architecture)
        layouts = [pairs(architecture, layout) for layout in (mappings, fused(mappings))]
        tensor_pairs = max(layouts, key=lambda layout: len(checkpoint.kinds.keys() & {pair.theirs for pair in layout}))
        left_out = checkpoint.check(tensor_pairs, family, architecture.num_layers + architecture.num_mtp_layers)
        checkpoint.check_copies(tensor_pairs)
        tensor_pairs = [pair for pair in tensor_pairs if not pair.copied]
        dtypes = types(
            ((name, checkpoint.kinds[pair.theirs].dtype) for pair in tensor_pairs for name, _ in pair.ours), dtype
        )
        known = parameters(architecture)
        kinds = {name: Kind(dtypes[name], known[name].shape) for name in known}
        total = sum(kind.nbytes for kind in kinds.values())
        with atomic_folder(out) as partial:
            check_room(partial, total)
            with weights_writer(partial, architecture, kinds) as file:
                done = 0
                for pair in tensor_pairs:
                    progress(pair.theirs, done, total)
                    slices = pair.to_ours(checkpoint.read(pair.theirs, pair.index))
                    for (name, index), array in zip(pair.ours, slices, strict=True):
                        array = cast(array, kinds[name].dtype, pair.theirs)
                        file.write(name, index, array)
                        done += array.nbytes
            write_json(partial / ORIGIN, {"model_type": family.name, "options": _carried(family, config)})
            files = carry_tokenizer(source, partial)
    return Converted(
        family.name,
        architecture,
        len(checkpoint.kinds),
        total,
        tuple(files),
        tuple(left_out),
        tuple(checkpoint.remarks),
    )


def _carried(family: ModelFamily, config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name in (IGNORED | family.ignored) - CHECKPOINT_ONLY}


def to_huggingface(
    source: Path,
    out: Path,
    *,
    family: str | None = None,
    dtype: str | None = None,
    shard_bytes: int = 5_000_000_000,
    sequence_length: int = 4096,
    trained: Trained | None = None,
    progress: StageCallback = lambda name, done, total: None,
) -> Converted:
    """Write a checkpoint and its model card from a weights folder. A file is larger than ``shard_bytes`` only if one
    tensor is.

    ``family`` is a key of ``families_and_own_code``. The default is the family that the weights were imported from, or
    else the choice of ``plan_export``. ``sequence_length`` is written as the maximum number of positions, unless rotary
    scaling determines a larger one. ``trained`` is the training run that the model card describes.

    Raises:
      UserError: the weights are incomplete, or the chosen family cannot express their architecture.
    """
    architecture = read_architecture(source)
    origin = _origin(source)
    chosen, config, tensor_pairs, reason = plan_export(architecture, family or origin.get("model_type"))
    with open_weights(source, architecture) as file, atomic_folder(out) as partial:
        stored = {name: kind.dtype for name, kind in file.kinds.items()} | (
            {} if architecture.expert_bias else {EXPERT_BIAS: FLOATS["float32"]}
        )
        dtypes = types(((pair.theirs, stored[name]) for pair in tensor_pairs for name, _ in pair.ours), dtype)
        kinds = {pair.theirs: Kind(dtypes[pair.theirs], pair.whole) for pair in tensor_pairs}
        total = sum(kind.nbytes for kind in kinds.values())
        check_room(partial, total)
        shards = _shards(kinds, shard_bytes)
        _write_shards(partial, shards, kinds, tensor_pairs, file, lambda done, name: progress(name, done, total))
        if len(shards) > 1:
            where = {name: shard for shard, names in shards.items() for name in names}
            write_plain_json(partial / INDEX, {"metadata": {"total_size": total}, "weight_map": where})
        longest = {"max_position_embeddings": _longest(architecture, sequence_length)}
        if origin.get("model_type") == chosen.name:
            carried = origin["options"]
        else:
            # Otherwise transformers assumes the token ids of the family's first model, and a padding token would
            # exclude its embedding from training.
            carried = generation_token_ids(source) | {"pad_token_id": None}
        named = {"torch_dtype": _most_common(kinds)}
        write_plain_json(partial / CONFIG, {**longest, **carried, **config, **named})
        files = carry_tokenizer(source, partial)
        title = source.resolve().name
        has_tokenizer = "tokenizer.json" in files
        card = model_card(
            architecture, chosen, trained, name=title, origin=origin.get("model_type"), has_tokenizer=has_tokenizer
        )
        write_text(partial / CARD, card)
        if chosen is OWN_CODE:
            shutil.copyfile(CODE, partial / CODE.name)
    remarks = (_WITH_OWN_CODE.format(reason=reason.rstrip("."), code=CODE.name),) if reason else ()
    return Converted(chosen.name, architecture, len(kinds), total, tuple(files), remarks=remarks)


_WITH_OWN_CODE = (
    "transformers has no class for this model (nearest family: {reason}), so the folder contains its code, {code}; "
    "load it with trust_remote_code=True"
)


def _write_shards(
    folder: Path,
    shards: Mapping[str, list[str]],
    kinds: Mapping[str, Kind],
    tensor_pairs: Iterable[Pair],
    file: TensorFile,
    progress: Callable[[int, str], None],
) -> None:
    of_name: dict[str, list[Pair]] = {}
    for pair in tensor_pairs:
        of_name.setdefault(pair.theirs, []).append(pair)
    done = 0
    for shard, names in shards.items():
        with TensorFileWriter(folder / shard, {name: kinds[name] for name in names}, {"format": "pt"}) as writer:
            for pair in (pair for name in names for pair in of_name[name]):
                progress(done, pair.theirs)
                ours = [_read_ours(file, name, index, pair) for name, index in pair.ours]
                array = cast(pair.to_theirs(ours), kinds[pair.theirs].dtype, pair.theirs)
                writer.write(pair.theirs, pair.index, array)
                done += array.nbytes


def _read_ours(file: TensorFile, name: str, index: tuple[int, ...], pair: Pair) -> np.ndarray:
    if name == EXPERT_BIAS and name not in file.kinds:
        return np.zeros(pair.whole, np.float32)
    return file.read(name, index)


class Export(NamedTuple):
    """Representation of a model in transformers."""

    family: ModelFamily
    config: dict[str, Any]
    """Options of config.json that the architecture determines."""
    pairs: list[Pair]
    """Tensors of the checkpoint."""
    reason: str = ""
    """Reason why transformers has no class for the model; empty if it has one or if a family was requested."""


def plan_export(architecture: Architecture, name: str | None = None) -> Export:
    """Return the representation of an architecture in the named family. The default is the first family that can
    express it, else moejax's own code.

    Raises:
      UserError: the family is unknown or cannot express the architecture.
    """
    if name is not None:
        known = families_and_own_code()
        if name not in known:
            raise UserError(f"Unknown family {name!r}. Choose from {', '.join(known)}.")
        return _export(known[name], architecture)
    family, reasons = _stock_family(architecture)
    if family is not None:
        return _export(family, architecture)
    return _export(OWN_CODE, architecture)._replace(reason=reasons[0])


def exports_as(architecture: Architecture) -> str:
    """Return a sentence about the class that represents an architecture in transformers."""
    try:
        family, _, _, reason = plan_export(architecture)
    except UserError as error:
        return f"Exports to no class of transformers: {told(error)}"
    if not reason:
        return f"Exports as: {family.model_class} (stock transformers)."
    return (
        f"Exports with {CODE.name} (trust_remote_code=True), because transformers has no class for it. "
        f"The nearest family: {reason}"
    )


def check_stock(architecture: Architecture) -> None:
    """Raise ``UserError`` with the differences from each family if transformers has no class for an architecture."""
    family, reasons = _stock_family(architecture)
    if family is None:
        listed = "\n  ".join(reasons)
        raise UserError(
            f"transformers has no class for this architecture. Change the listed fields of one family; the nearest "
            f"family comes first:\n  {listed}"
        )


def check_exportable(asked: str, architectures: Mapping[str, Architecture]) -> None:
    """Raise ``UserError`` if one of the named models cannot be exported as ``--exportable`` asks: ``hf``, or
    ``hf:FAMILY``.
    """
    kind, _, family = asked.partition(":")
    if kind != "hf":
        raise UserError(f"--exportable {asked} is unknown; write --exportable hf, or --exportable hf:FAMILY.")
    for name, architecture in architectures.items():
        try:
            if family:
                plan_export(architecture, family)
            else:
                check_stock(architecture)
        except ValueError as error:
            otherwise = "leave --exportable out" if family else "give --exportable hf:moejax to allow its own code"
            raise UserError(
                f"{name} cannot be exported to Hugging Face (--exportable {asked}); change its architecture, such as "
                f"--config.architecture.FIELD=VALUE, or {otherwise}. {told(error)}"
            ) from error


def _stock_family(architecture: Architecture) -> tuple[ModelFamily | None, list[str]]:
    """Return the first family that can express an architecture, or else each family's reason, nearest family first."""
    reasons = []
    for family in FAMILIES.values():
        try:
            different = family.differences(architecture)
        except ValueError as error:
            reasons.append((math.inf, f"{family.name} cannot express this architecture: {told(error)}"))
            continue
        if not different:
            return family, []
        reasons.append((len(different), f"{family.name} cannot express {', '.join(different)}."))
    return None, [reason for _, reason in sorted(reasons, key=lambda one: one[0])]


def _export(family: ModelFamily, architecture: Architecture) -> Export:
    config = family.config(architecture)
    # Families with an expert bias store zeros for a model without one.
    there = architecture.replace(expert_bias=architecture.expert_bias or family.always.get("expert_bias", False))
    return Export(family, config, [pair for pair in pairs(there, family.mappings(there)) if pair.is_written])


def _shards(kinds: Mapping[str, Kind], shard_bytes: int) -> dict[str, list[str]]:
    shards: list[list[str]] = [[]]
    room = shard_bytes
    for name, kind in kinds.items():
        if kind.nbytes > room and shards[-1]:
            shards.append([])
            room = shard_bytes
        shards[-1].append(name)
        room -= kind.nbytes
    if len(shards) == 1:
        return {SINGLE: shards[0]}
    count = len(shards)
    return {f"model-{i:05}-of-{count:05}.safetensors": names for i, names in enumerate(shards, start=1)}


def _origin(folder: Path) -> dict[str, Any]:
    path = folder / ORIGIN
    shape = {"model_type": str, "options": dict}
    return read_json(path, shape, remedy="remove it, or convert again") if path.is_file() else {}


def _longest(architecture: Architecture, sequence_length: int) -> int:
    scaling = architecture.rope_scaling
    if scaling is None or not scaling.original_length:
        return sequence_length
    return max(sequence_length, round(scaling.factor * scaling.original_length))


def _most_common(kinds: Mapping[str, Kind]) -> str:
    sizes: Counter[np.dtype] = Counter()
    for kind in kinds.values():
        sizes[kind.dtype] += kind.nbytes
    return next(name for name, dtype in FLOATS.items() if dtype == sizes.most_common(1)[0][0])
