"""What both directions of a conversion share: what is said of it, types of arrays, room on the disk."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from moejax.architecture import Architecture
from moejax.errors import UserError
from moejax.weights.folder import FLOATS

ORIGIN = "huggingface.json"
"""In a folder of weights: the family, and the options of its config.json that an architecture has no place for."""

Progress = Callable[[int, int, str], None]
"""Called with the bytes done, their total, and the tensor in hand."""


@dataclass(frozen=True)
class Converted:
    """What was written."""

    family: str
    architecture: Architecture
    tensors: int
    """Of theirs."""
    nbytes: int
    files: tuple[str, ...]
    """Of a tokenizer, carried along."""
    left_out: tuple[str, ...]
    """Tensors of theirs that are none of the model's."""


def types(found: Iterable[tuple[str, np.dtype]], dtype: str | None) -> dict[str, np.dtype]:
    """The type of each array: as stored, float32 where what is stacked or joined differs, or the one asked for.

    The bias that balances stays as it is: it is moved in steps too small for two bytes.
    """
    chosen: dict[str, np.dtype] = {}
    for name, given in found:
        asked = dtype is not None and not name.endswith(("balance_bias", "e_score_correction_bias"))
        kind = FLOATS[dtype] if dtype is not None and asked else given
        chosen[name] = kind if chosen.get(name, kind) == kind else FLOATS["float32"]
    return chosen


def cast(array: np.ndarray, dtype: np.dtype, name: str) -> np.ndarray:
    """The numbers in another type.

    Raises:
      UserError: they are too large for it.
    """
    if array.dtype == dtype:
        return array
    with np.errstate(over="ignore", invalid="ignore"):
        cast = array.astype(dtype)
    if dtype == FLOATS["float16"] and np.isinf(cast).any() and not np.isinf(array).any():
        raise UserError(f"{name} has values that float16 cannot hold; choose --dtype bfloat16 or float32.")
    return cast


def check_room(folder: Path, needed: int) -> None:
    """Raise ``UserError`` if the disk has less room than needed."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise UserError(f"{folder.parent} has {free:,} bytes free, and {needed:,} are needed; choose another --out.")
