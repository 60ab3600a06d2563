"""Read and write the safetensors format: the header length in eight bytes, a JSON header, and the tensors in sequence.

Tensors are read and written by position instead of memory-mapped, so that memory holds only the requested data.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from moejax.errors import UserError
from moejax.stored import foreign_json

DTYPES = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
"""NumPy types, keyed by their names in a header."""

_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_LONGEST_HEADER = 100_000_000


class Kind(NamedTuple):
    """Type and shape of a tensor."""

    dtype: np.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class TensorFile:
    """A safetensors file with its header loaded and its tensors read on demand."""

    def __init__(self, path: Path):
        self.path = path
        self._file = path.open("rb", buffering=0)
        try:
            header, self._begin = _read_header(self._file.fileno(), path)
            self.metadata: dict[str, str] = header.pop("__metadata__", {})
            self._tensors = {name: _placed(entry, name, path) for name, entry in header.items()}
            end = self._begin + max((begin + kind.nbytes for kind, begin in self._tensors.values()), default=0)
            size = os.fstat(self._file.fileno()).st_size
            if size < end:
                raise UserError(
                    f"{path} is incomplete: it has {size:,} bytes, but its tensors end at byte {end:,}; fetch it again."
                )
        except ValueError:
            self._file.close()
            raise

    @property
    def kinds(self) -> dict[str, Kind]:
        """Return the type and shape of every tensor."""
        return {name: kind for name, (kind, _) in self._tensors.items()}

    def read(self, name: str, index: tuple[int, ...] = ()) -> np.ndarray:
        """Read a tensor, or its part at ``index`` along the first axes."""
        kind, begin = self._tensors[name]
        part, offset = _part(kind, index)
        array = np.empty(part.shape, part.dtype)
        _read(self._file.fileno(), _bytes(array), self._begin + begin + offset, self.path)
        return array

    def read_block(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        """Read a block of a tensor, given a slice with step 1 for every axis. Rows are read completely, one matrix at a
        time."""
        kind, begin = self._tensors[name]
        fill = 2 - len(kind.shape)
        bounds = [*(range(1),) * fill, *(range(size)[at] for size, at in zip(kind.shape, index, strict=True))]
        *leading, rows, columns = bounds
        width = kind.shape[-1] if kind.shape else 1
        block = np.empty([len(axis) for axis in bounds], kind.dtype)
        for place in np.ndindex(*(len(axis) for axis in leading)):
            _, offset = _part(kind, tuple(axis[at] for axis, at in zip(leading, place, strict=True)))
            offset += rows.start * width * kind.dtype.itemsize
            matrix = np.empty((len(rows), width), kind.dtype)
            _read(self._file.fileno(), _bytes(matrix), self._begin + begin + offset, self.path)
            block[place] = matrix[:, columns.start : columns.stop]
        return block.reshape(block.shape[max(0, fill) :])

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


class TensorFileWriter:
    """A safetensors file under construction. Its tensors are known in advance and may be written in any order."""

    def __init__(self, path: Path, kinds: Mapping[str, Kind], metadata: Mapping[str, str] | None = None):
        self._places: dict[str, tuple[Kind, int]] = {}
        header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
        end = 0
        # Wide types come first, so that every tensor is aligned to its own type.
        for name, kind in sorted(kinds.items(), key=lambda item: -item[1].dtype.itemsize):
            self._places[name] = (kind, end)
            header[name] = {
                "dtype": _NAMES[kind.dtype],
                "shape": list(kind.shape),
                "data_offsets": [end, end + kind.nbytes],
            }
            end += kind.nbytes
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self._begin = 8 + len(text)
        self._file = path.open("wb", buffering=0)
        _write(self._file.fileno(), memoryview(len(text).to_bytes(8, "little") + text), 0)
        os.truncate(self._file.fileno(), self._begin + end)

    def write(self, name: str, index: tuple[int, ...], array: np.ndarray) -> None:
        """Write a tensor, or its part at ``index`` along the first axes."""
        kind, begin = self._places[name]
        part, offset = _part(kind, index)
        assert array.shape == part.shape, f"{name}{list(index)} has the shape {part.shape}, not {array.shape}"
        array = np.ascontiguousarray(array.astype(part.dtype, copy=False))
        _write(self._file.fileno(), _bytes(array), self._begin + begin + offset)

    def write_block(self, name: str, start: tuple[int, ...], array: np.ndarray) -> None:
        """Write a block of a tensor. It has all axes of the tensor, and its first element is at ``start``."""
        kind, begin = self._places[name]
        whole = next((n for n in range(len(kind.shape), 0, -1) if array.shape[n - 1] != kind.shape[n - 1]), 1)
        strides = np.cumprod([1, *reversed(kind.shape[1:])])[::-1] if kind.shape else np.array([], int)
        # Write runs of rows that are contiguous both in the block and in the file.
        for index in np.ndindex(array.shape[: whole - 1]):
            corner = [at + i for at, i in zip(start, (*index, *(0,) * (len(start) - len(index))), strict=True)]
            offset = int(np.dot(corner, strides)) * kind.dtype.itemsize
            rows = np.ascontiguousarray(array[index].astype(kind.dtype, copy=False))
            _write(self._file.fileno(), _bytes(rows), self._begin + begin + offset)

    def close(self) -> None:
        """Flush the file to disk and close it."""
        os.fsync(self._file.fileno())
        self._file.close()

    def __enter__(self) -> TensorFileWriter:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def _read_header(file: int, path: Path) -> tuple[dict, int]:
    length = int.from_bytes(os.pread(file, 8, 0), "little")
    if not 2 <= length <= min(_LONGEST_HEADER, os.fstat(file).st_size - 8):
        raise UserError(f"{path} is not a complete safetensors file; fetch it again.")
    text = bytearray(length)
    _read(file, memoryview(text), 8, path)
    return foreign_json(bytes(text), path, shape=dict, remedy="fetch it again"), 8 + length


def _placed(entry: Any, name: str, path: Path) -> tuple[Kind, int]:
    try:
        kind = Kind(DTYPES[entry["dtype"]], tuple(map(int, entry["shape"])))
        begin, end = map(int, entry["data_offsets"])
    except (KeyError, TypeError, ValueError) as error:
        given = entry.get("dtype") if isinstance(entry, dict) else entry
        raise UserError(
            f"{path}: the header entry of {name} is invalid or has an unknown type ({given!r}); fetch the file again, "
            f"or save it in another type."
        ) from error
    if begin < 0 or end - begin != kind.nbytes:
        raise UserError(
            f"{path} is damaged: {name} has {end - begin} bytes in the header, but its type and shape need "
            f"{kind.nbytes}; fetch it again."
        )
    return kind, begin


def _part(kind: Kind, index: tuple[int, ...]) -> tuple[Kind, int]:
    """Return the part at ``index`` of the first axes, and its offset in bytes from the start of the tensor."""
    part = Kind(kind.dtype, kind.shape[len(index) :])
    number = 0
    for i, size in zip(index, kind.shape, strict=False):
        assert 0 <= i < size, f"index {index} lies outside {kind.shape}"
        number = number * size + i
    return part, number * part.nbytes


def _bytes(array: np.ndarray) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _read(file: int, view: memoryview, offset: int, path: Path) -> None:
    done = 0
    while done < len(view):
        count = os.preadv(file, [view[done:]], offset + done)
        if not count:
            raise UserError(f"{path} ends at {offset + done:,} bytes, in the middle of a tensor; fetch it again.")
        done += count


def _write(file: int, view: memoryview, offset: int) -> None:
    done = 0
    while done < len(view):
        done += os.pwrite(file, view[done:], offset + done)
