"""Read sources of runs that are not table files: folders and servers of trackers, and data sets.

| source | data |
|---|---|
| ``FOLDER`` of a study | its ``runs.parquet`` |
| ``mlflow.db``, ``mlruns/``, ``mlflow:http://HOST:PORT`` | MLflow's store or server; ``#NAME`` selects an experiment |
| ``wandb:ENTITY/PROJECT``, a folder with ``*.wandb`` | Weights & Biases by its API, or its offline files |
| a folder with ``events.out.tfevents.*`` | TensorBoard: one run for each folder with events |
| ``hf:OWNER/NAME``, a folder of ``save_to_disk`` | a data set of Hugging Face; ``#SPLIT`` selects a split |

Each run becomes a row with its name, its settings (nested names joined by dots), and the last value of each metric.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moejax.errors import UserError
from moejax.run_sources.tracked_run import History, TrackedRun
from moejax.table_file import MOST_CELLS, MOST_COLUMNS
from moejax.wording import counted, some

DataFrame = Any
"""A ``pandas.DataFrame``."""

NOT_FINITE = "not finite"
"""Key in a metrics table's ``attrs`` for the number of non-finite values by metric."""
MOST_FILES = 200_000
"""Maximum number of files to inspect when detecting the kind of a folder."""
MOST_RUNS = 1_000_000
"""Maximum number of runs to read, since a server's list may never end."""


@dataclass(frozen=True)
class SourceKind:
    """A tracker or library from which runs can be read."""

    title: str
    read: Callable[[str], Iterable[TrackedRun] | DataFrame]
    """Function that returns the runs, or a table of them, from the text after the prefix or from a path."""
    is_file: Callable[[Path], bool]
    """Function that returns whether a file identifies its folder as this kind."""
    histories: Callable[[str], Iterable[History]] | None = None
    """Function that returns each run's metrics by step; None if this is not supported."""


def source(text: str) -> Path | str:
    """Convert a command-line argument to a path, or to a text with a prefix such as ``wandb:``.

    A database address such as ``sqlite:///mlflow.db`` is an MLflow source.
    """
    text = f"mlflow:{text}" if text.startswith("sqlite:") else text
    return text if has_prefix(text) or "://" in text else Path(text)


def has_prefix(text: str | Path) -> bool:
    """Return whether a text begins with the prefix of a kind, such as ``wandb:``."""
    return bool(_prefix(str(text)))


def with_condition(text: str) -> tuple[Path | str, str]:
    """Split ``RUNS:CONDITION`` into the source and the condition, which is empty if not given."""
    text = str(source(text)) if text.startswith("sqlite:") else text
    prefix = f"{_prefix(text)}:" if has_prefix(text) else ""
    address = re.match(r"(https?://[^/:#]+(:\d+)?|sqlite:)?", text.removeprefix(prefix))
    begins = prefix + (address[0] if address else "")
    place, _, condition = text.removeprefix(begins).partition(":")
    return source(begins + place), condition


def named(source: Path | str) -> str:
    """Return the name of a source for titles and folders: the last part of its path."""
    return str(source).partition("#")[0].rstrip("/").rpartition("/")[2] or str(source)


def _prefix(text: str) -> str:
    prefix = text.partition(":")[0]
    return prefix if ":" in text and prefix in kinds() else ""


@functools.cache
def kinds() -> Mapping[str, SourceKind]:
    """Return all source kinds, keyed by prefix. Each module imports its library only when it reads a source."""
    from moejax.run_sources import hugging_face, mlflow, tensorboard, wandb

    return {
        "mlflow": SourceKind("MLflow", mlflow.read, mlflow.is_file, mlflow.histories),
        "wandb": SourceKind("Weights & Biases", wandb.read, wandb.is_file),
        "tensorboard": SourceKind("TensorBoard", tensorboard.read, tensorboard.is_file, tensorboard.histories),
        "hf": SourceKind("Hugging Face datasets", hugging_face.read, hugging_face.is_file),
    }


def kind_of(source: Path | str) -> str:
    """Return the prefix of a source's kind, as given or as detected from the files; empty if the kind is unknown.

    Raises:
      UserError: a folder contains runs of several trackers.
    """
    if prefix := _prefix(str(source)):
        if str(source).partition(":")[2].strip("/ ") == "":
            raise UserError(f"{source} has nothing after the colon; write {prefix}:PLACE.")
        return prefix
    path = Path(str(source).partition("#")[0])
    if path.is_file():
        from moejax.run_sources.mlflow import is_database

        return "mlflow" if is_database(path) else ""
    seen = [prefix for prefix, kind in kinds().items() if any(map(kind.is_file, _files(path)))]
    if len(seen) > 1:
        titles = " and ".join(kinds()[prefix].title for prefix in seen)
        raise UserError(
            f"{path} has runs of {titles}; choose one: {' or '.join(f'{prefix}:{path}' for prefix in seen)}."
        )
    return seen[0] if seen else ""


def _files(path: Path) -> list[Path]:
    files = list(itertools.islice(_walk(path), MOST_FILES + 1))
    if len(files) > MOST_FILES:
        raise UserError(
            f"{path} has more than {MOST_FILES:,} files; give the folder of the runs, or add a prefix such as mlflow:."
        )
    return files


def _walk(path: Path) -> Iterator[Path]:
    # Links are not followed: a tracker's `latest-run` duplicates another run of the folder.
    for folder, _, names in os.walk(path):
        yield from (Path(folder, name) for name in names)


@functools.lru_cache(maxsize=8)
def _read_once(text: str, prefix: str, state: int) -> DataFrame:
    """Read a source once per process and ``state``, because some sources take minutes."""
    kind = kinds()[prefix]
    runs = kind.read(text.removeprefix(f"{prefix}:"))
    return _table(text, kind, runs) if not hasattr(runs, "columns") else runs


def _state_of(place: str) -> int:
    """Return a number that changes with the files of a local store; constant for a server."""
    path = Path(place.partition("#")[0].removeprefix("sqlite:///"))
    # SQLite first writes changes to a separate log file.
    files = _walk(path) if path.is_dir() else (path, path.with_name(f"{path.name}-wal"))
    return hash(tuple(map(_identity, files)))


def _identity(path: Path) -> tuple[str, int, int]:
    with contextlib.suppress(OSError):
        status = path.stat()
        # Reading an SQLite database creates an empty log file.
        if status.st_size:
            return str(path), status.st_size, status.st_mtime_ns
    return str(path), 0, 0


def read(source: Path | str) -> DataFrame:
    """Return the table of a source, one row per run; remarks are in ``attrs["notes"]``.

    Raises:
      UserError: the kind of the source is unknown, or it cannot be read.
    """
    prefix = kind_of(source)
    if not prefix:
        raise UserError(no_runs(source))
    frame = _read_once(str(source), prefix, _state_of(str(source).removeprefix(f"{prefix}:")))
    copy = frame.copy()
    copy.attrs = dict(frame.attrs)
    return copy


def histories(source: Path | str) -> list[tuple[str, DataFrame]]:
    """Return the name and metrics table of each run of a tracker, one row per step; runs without metrics are left out.

    Non-finite values become NaN. ``attrs[NOT_FINITE]`` counts them by metric, and ``attrs["notes"]`` has remarks.

    Raises:
      UserError: the source is not a tracker, cannot be read, or does not support metrics by step.
    """
    import pandas as pd

    prefix = kind_of(source)
    if not prefix:
        raise UserError(no_runs(source))
    kind = kinds()[prefix]
    if kind.histories is None:
        raise UserError(
            f"{source}: moejax reads only the last value of each metric from {kind.title}. For curves, export the "
            f"history of the runs as CSV."
        )
    tables = []
    for history in kind.histories(str(source).removeprefix(f"{prefix}:")):
        name, metrics = history.name, history.metrics
        steps = sorted({step for points in metrics.values() for step in points})
        cells = {metric: [points.get(step) for step in steps] for metric, points in metrics.items() if metric != "step"}
        if not steps:
            continue
        frame = pd.DataFrame({"step": steps, **cells}).replace([math.inf, -math.inf], math.nan)
        frame.attrs[NOT_FINITE] = {
            metric: sum(not math.isfinite(value) for value in points.values()) for metric, points in metrics.items()
        }
        if history.note:
            frame.attrs["notes"] = (f"run {name}: {history.note}",)
        tables.append((name, frame))
    return tables


def no_runs(folder: Path | str) -> str:
    """Return the error message for a source without runs."""
    titles = ", ".join(kind.title for kind in kinds().values())
    return f"{folder} contains no runs: no runs.parquet of a study, and no files of {titles}. Give another folder."


def _table(text: str, kind: SourceKind, runs: Iterable[TrackedRun]) -> DataFrame:
    import pandas as pd

    runs = list(itertools.islice(runs, MOST_RUNS + 1))
    if len(runs) > MOST_RUNS:
        raise UserError(f"{text} has more than {MOST_RUNS:,} runs; choose one experiment or project.")
    rows = [_row(run) for run in runs]
    names = {name for row in rows for name in row}
    if len(names) > MOST_COLUMNS or len(names) * len(rows) > MOST_CELLS:
        raise UserError(
            f"{text} has {len(rows):,} runs with {len(names):,} settings and metrics; a table has at most "
            f"{MOST_COLUMNS:,} columns and {MOST_CELLS:,} cells. Choose one experiment."
        )
    frame = pd.DataFrame(rows)
    # Keep the text of run names such as 007 or 1e3.
    words = {"run"}.union(*(run.about for run in runs))
    for name in frame.columns:
        frame[name] = frame[name] if name in words else _as_numbers(frame[name])
    notes = [f"{kind.title}: {counted(len(runs), 'run')}, with the last value of each metric."]
    if unfinished := [run for run in runs if not run.finished]:
        states = sorted({run.about.get("status", "") for run in unfinished})
        good = next((run.about["status"] for run in runs if run.finished and "status" in run.about), "finished")
        notes.append(
            f"{counted(len(unfinished), 'run')} did not finish ({', '.join(states)}): "
            f"{some([run.name for run in unfinished], most=3)}. To leave them out, pass --where 'status == \"{good}\"'."
        )
    frame.attrs["notes"] = tuple(notes)
    return frame


def _row(run: TrackedRun) -> dict[str, Any]:
    """Return the cells of a run, keyed by column; a setting with the name of a metric becomes ``config.NAME``."""
    row: dict[str, Any] = {"run": run.name, **run.about, **run.metrics}
    for name, value in flat(run.settings).items():
        row[f"config.{name}" if name in row else name] = value
    return row


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested settings to names joined by dots; lists become text."""
    cells: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            cells.update(flat(value, f"{prefix}{name}."))
        else:
            cells[f"{prefix}{name}"] = str(value) if isinstance(value, list | tuple) else value
    return cells


def _as_numbers(column: Any) -> Any:
    """Convert a column to numbers if possible, because trackers store settings as text."""
    import pandas as pd

    if not all(value is None or isinstance(value, str | int | float) for value in column):
        return column
    try:
        return pd.to_numeric(column)
    except (ValueError, TypeError):
        return column
