"""Read TensorBoard runs through TensorBoard's own reader; every folder with event files is a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moejax.errors import UserError
from moejax.run_sources.tracked_run import History, TrackedRun, by_step, library, resumed_note
from moejax.wording import says

EVENTS = "events.out.tfevents."
INCOMPLETE = "events are incomplete"
"""Status of a run whose last record is truncated, because the file is still being written or is damaged."""


def is_file(path: Path) -> bool:
    """Return whether the file is an event file."""
    return path.name.startswith(EVENTS)


@dataclass
class _Folder:
    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    points: list[tuple[str, int, float]] = field(default_factory=list)
    complete: bool = True


def read(text: str) -> Iterator[TrackedRun]:
    """Yield runs with the last value of every scalar, and hyperparameters if any; ``step`` is the last step.

    Raises:
      UserError: TensorBoard is not installed, or the folder has no events.
    """
    folders = _folders(text)
    for place in [place for place, own in folders.items() if own.settings]:
        # PyTorch's add_hparams writes hyperparameters, with their own metrics, into a folder inside the run's folder.
        parent = folders.get(place.parent)
        if parent is not None and not parent.settings:
            inner = folders.pop(place)
            parent.settings, parent.points = inner.settings, [*inner.points, *parent.points]
            parent.complete &= inner.complete
    for own in folders.values():
        # The last written value counts, because a resumed run repeats steps.
        metrics: dict[str, float] = {name: value for name, _, value in own.points}
        if own.points:
            metrics["step"] = own.points[-1][1]
        about = {"status": "events are complete" if own.complete else INCOMPLETE}
        yield TrackedRun(own.name, own.settings, metrics, about, own.complete)


def histories(text: str) -> Iterator[History]:
    """Yield every run's scalars by step, without values that a resumed run overwrote.

    Raises:
      UserError: like ``read``.
    """
    for own in _folders(text).values():
        metrics, discarded = by_step(own.points)
        yield History(
            own.name, metrics, "; ".join(filter(None, [resumed_note(discarded), INCOMPLETE * (not own.complete)]))
        )


def _folders(text: str) -> dict[Path, _Folder]:
    library("tensorboard", "TensorBoard's events", "tensorboard")
    folder = Path(text)
    folders: dict[Path, _Folder] = {}
    for path in sorted(path for path in folder.rglob(f"{EVENTS}*") if path.is_file()):
        name = folder.resolve().name if path.parent == folder else str(path.parent.relative_to(folder))
        _add(folders.setdefault(path.parent, _Folder(name)), path)
    if not folders:
        raise UserError(f"{folder} has no TensorBoard events; give a folder with files {EVENTS}*.")
    return folders


def _add(own: _Folder, path: Path) -> None:
    """Add the events of a file, up to the first record that is truncated or damaged."""
    from google.protobuf.message import DecodeError
    from tensorboard.compat.proto.event_pb2 import Event  # type: ignore[import-not-found]
    from tensorboard.compat.tensorflow_stub import errors  # type: ignore[import-not-found]
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import (  # type: ignore[import-not-found]
        PyRecordReader_New,
    )
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData  # type: ignore[import-not-found]

    reader = PyRecordReader_New(str(path))
    try:
        while True:
            reader.GetNext()
            event = Event.FromString(reader.record())
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "hparams":
                    given = HParamsPluginData.FromString(value.metadata.plugin_data.content).session_start_info.hparams
                    for name, one in given.items():
                        own.settings[name] = getattr(one, one.WhichOneof("kind") or "string_value")
                elif (number := _scalar(value)) is not None:
                    own.points.append((value.tag, event.step, number))
    except errors.OutOfRangeError:
        pass
    except (errors.DataLossError, MemoryError):
        # A damaged length may request more memory than is available.
        own.complete = False
    except DecodeError as error:
        raise UserError(
            f"{path} is damaged ({says('protobuf', error)}). Copy it again, or move it to another folder."
        ) from error
    finally:
        reader.file_handle.close()


def _scalar(value: Any) -> float | None:
    """Return a scalar written by TensorBoard (``simple_value``) or TensorFlow 2 (a tensor); None for other values."""
    from tensorboard.util.tensor_util import make_ndarray  # type: ignore[import-not-found]

    if value.HasField("simple_value"):
        return value.simple_value
    if not value.HasField("tensor") or value.tensor.tensor_shape.dim:
        return None
    array = make_ndarray(value.tensor)
    return float(array) if array.dtype.kind in "iuf" and array.size == 1 else None
