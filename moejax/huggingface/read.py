"""Checkpoints of transformers to moejax's weights: one tensor, or one expert of it, in memory at a time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moejax.folder import whole_folder
from moejax.huggingface.checkpoint import CONFIG, Checkpoint, read_config
from moejax.huggingface.conversion import ORIGIN, Converted, Progress, cast, check_room, types
from moejax.huggingface.family import Family
from moejax.huggingface.options import INERT, OWN
from moejax.huggingface.tie import pairs
from moejax.stored import write_json
from moejax.weights.folder import weights_writer
from moejax.weights.parameters import parameters
from moejax.weights.safetensors import Kind
from moejax.weights.tokenizer_files import carry_tokenizer


def from_huggingface(
    source: Path, out: Path, *, dtype: str | None = None, progress: Progress = lambda done, total, name: None
) -> Converted:
    """Write the weights folder ``out`` from a checkpoint; ``dtype`` is a key of ``FLOATS``, or None for as stored.

    Raises:
      UserError: the checkpoint is not whole or not of a known family, or has an option that moejax does not compute.
    """
    family, config = read_config(source)
    architecture = family.architecture(config, str(source / CONFIG))
    found = pairs(architecture, family.ties(architecture))
    with Checkpoint(source) as checkpoint:
        left_out = checkpoint.check(found, family, architecture.num_layers)
        dtypes = types(((name, checkpoint.kinds[pair.theirs].dtype) for pair in found for name, _ in pair.ours), dtype)
        known = parameters(architecture)
        kinds = {name: Kind(dtypes[name], known[name].shape) for name in known}
        total = sum(kind.nbytes for kind in kinds.values())
        with whole_folder(out) as partial:
            check_room(partial, total)
            with weights_writer(partial, architecture, kinds) as file:
                done = 0
                for pair in found:
                    progress(done, total, pair.theirs)
                    slices = pair.to_ours(checkpoint.read(pair.theirs, pair.index))
                    for (name, index), array in zip(pair.ours, slices, strict=True):
                        array = cast(array, kinds[name].dtype, pair.theirs)
                        file.write(name, index, array)
                        done += array.nbytes
            write_json(partial / ORIGIN, {"model_type": family.name, "options": _carried(family, config)})
            files = carry_tokenizer(source, partial)
    return Converted(family.name, architecture, len(checkpoint.kinds), total, tuple(files), tuple(left_out))


def _carried(family: Family, config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name in (INERT | family.inert) - OWN}
