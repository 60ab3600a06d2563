"""Read TensorBoard runs: event files, one run per folder that has any."""

from __future__ import annotations

import importlib.util
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from moejax.errors import UserError
from moejax.run_sources.tracked_run import History, TrackedRun, by_step, taken_back

EVENTS = "events.out.tfevents."
NUMBERS = {1: ("<f4", "float_val"), 2: ("<f8", "double_val"), 3: ("<i4", "int_val"), 9: ("<i8", "int64_val")}
"""TensorFlow's numeric types: the NumPy type, and the tensor field with the values."""


def is_file(path: Path) -> bool:
    """Return whether the file is an event file."""
    return path.name.startswith(EVENTS)


def read(text: str) -> Iterator[TrackedRun]:
    """Return the last value of every scalar, and the hyperparameters if any; ``step`` is the last step.

    Raises:
      UserError: the folder has no events, a file is damaged, or tensorboardX is not installed.
    """
    folder, files = _event_files(text)
    runs: dict[Path, tuple[dict[str, Any], dict[str, Any]]] = {}
    cut: set[Path] = set()
    for place in dict.fromkeys(path.parent for path in files):
        settings, metrics = runs.setdefault(place, ({}, {}))
        for path in (path for path in files if path.parent == place):
            for event in _events(path):
                if event is None:
                    cut.add(place)
                    break
                for value in event.summary.value:
                    if value.metadata.plugin_data.plugin_name == "hparams":
                        settings.update(_hyperparameters(value.metadata.plugin_data.content, path))
                    elif (number := _number(value)) is not None:
                        # The last value written counts, because a resumed run repeats steps.
                        metrics[value.tag] = number
                        metrics["step"] = event.step
    for place in [place for place, (settings, _) in runs.items() if settings]:
        # PyTorch's add_hparams writes hyperparameters, with metrics of their own, into a folder inside the run's.
        if place.parent in runs and not runs[place.parent][0]:
            settings, metrics = runs.pop(place)
            cut |= {place.parent} if place in cut else set()
            runs[place.parent] = (settings, {**metrics, **runs[place.parent][1]})
    for place, (settings, metrics) in runs.items():
        name = str(place.relative_to(folder))
        about = {"status": "events end within a record" if place in cut else "events are whole"}
        yield TrackedRun(folder.resolve().name if name == "." else name, settings, metrics, about, place not in cut)


def _event_files(text: str) -> tuple[Path, list[Path]]:
    folder = Path(text)
    if importlib.util.find_spec("tensorboardX") is None:
        raise UserError("TensorBoard's events need tensorboardX, which is missing: pip install 'moejax[tensorboard]'.")
    files = sorted(path for path in folder.rglob(f"{EVENTS}*") if path.is_file())
    if not files:
        raise UserError(f"{folder} has no events of TensorBoard (files {EVENTS}*).")
    return folder, files


def histories(text: str) -> Iterator[History]:
    """Yield every run's scalars by step, without values that a resumed run overwrote.

    Raises:
      UserError: as ``read``.
    """
    folder, files = _event_files(text)
    for place in dict.fromkeys(path.parent for path in files):
        points, cut = list[tuple[str, int, float]](), False
        for path in (path for path in files if path.parent == place):
            for event in _events(path):
                if event is None:
                    cut = True
                    break
                numbers = ((value.tag, _number(value)) for value in event.summary.value)
                points += [(tag, event.step, float(number)) for tag, number in numbers if number is not None]
        metrics, again = by_step(points)
        name = folder.resolve().name if place == folder else str(place.relative_to(folder))
        notes = [taken_back(again), "its events end within a record" * cut]
        yield History(name, metrics, "; ".join(filter(None, notes)))


def _events(path: Path) -> Iterator[Any]:
    """Yield the events of a file, and None if its end is missing because it was truncated or is being written.

    A record consists of the data length (8 bytes), its checksum (4), the data and their checksum (TensorFlow's
    TFRecord).
    """
    from google.protobuf.message import DecodeError
    from tensorboardX.proto.event_pb2 import Event  # type: ignore[attr-defined]
    from tensorboardX.record_writer import masked_crc32c

    size = path.stat().st_size
    with path.open("rb") as file:
        while head := file.read(12):
            if len(head) < 12:
                yield None
                return
            (length,) = struct.unpack("<Q", head[:8])
            wrong = masked_crc32c(head[:8]) != struct.unpack("<I", head[8:])[0]
            if not wrong and length + 4 > size - file.tell():
                yield None
                return
            content = b"" if wrong else file.read(length + 4)
            # Checksums of images and histograms, which are large and not used, are not verified.
            if not wrong and length < 65_536:
                wrong = masked_crc32c(content[:length]) != struct.unpack("<I", content[length:])[0]
            try:
                event = None if wrong else Event.FromString(content[:length])
            except DecodeError:
                event = None
            if event is None:
                raise UserError(f"{path} is damaged before byte {file.tell():,}; copy it again, or move it away.")
            yield event


def _number(value: Any) -> float | None:
    """Return a scalar written by TensorBoard (``simple_value``) or TensorFlow 2 (a tensor); None for other values."""
    import numpy as np

    if value.HasField("simple_value"):
        return value.simple_value
    if not value.HasField("tensor") or value.tensor.dtype not in NUMBERS or value.tensor.tensor_shape.dim:
        return None
    kind, field = NUMBERS[value.tensor.dtype]
    if content := value.tensor.tensor_content:
        return float(np.frombuffer(content, kind)[0]) if len(content) == np.dtype(kind).itemsize else None
    held = getattr(value.tensor, field)
    return float(held[0]) if held else 0.0


def _hyperparameters(content: bytes, path: Path) -> dict[str, Any]:
    from google.protobuf.message import DecodeError
    from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData  # type: ignore[attr-defined]

    try:
        given = HParamsPluginData.FromString(content).session_start_info.hparams
    except DecodeError as error:
        raise UserError(f"{path} has damaged hyperparameters; copy it again, or move it away.") from error
    return {name: getattr(value, value.WhichOneof("kind") or "string_value") for name, value in given.items()}
