"""What a user names as a table of runs and no file of a table is: trackers' folders and servers, and data sets.

| named as | what is read |
|---|---|
| ``FOLDER`` of a study | its ``runs.parquet`` |
| ``mlflow.db``, ``mlruns/``, ``mlflow:http://HOST:PORT`` | MLflow's store or server; ``#NAME`` one experiment |
| ``wandb:ENTITY/PROJECT``, a folder with ``*.wandb`` | Weights & Biases by its API, or what it wrote offline |
| a folder with ``events.out.tfevents.*`` | TensorBoard: a run for each folder with events |
| ``hf:OWNER/NAME``, a folder of ``save_to_disk`` | a data set of Hugging Face; ``#SPLIT`` one split |

A run becomes a row: its name, its settings (nested ones joined by dots), and the last value of each metric.
"""

from __future__ import annotations

import functools
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
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
"""In the ``attrs`` of a table of metrics by step."""
MOST_FILES = 200_000
"""Files of a folder that are looked at to tell what it is."""


@dataclass(frozen=True)
class SourceKind:
    """A tracker or a library whose runs are read."""

    title: str
    read: Callable[[str], Iterable[TrackedRun] | DataFrame]
    """The runs, or a table of them, from what stands after the prefix, or from a path."""
    is_file: Callable[[Path], bool]
    """Whether a file's name and place show that the folder above is of this kind."""
    histories: Callable[[str], Iterable[History]] | None = None
    """Each run's metrics by step; None where these are not read."""


def source(text: str) -> Path | str:
    """For ``add_argument("runs", type=source)``: a path, or a text with a prefix such as ``wandb:`` as it is.

    An address of a database, ``sqlite:///mlflow.db``, is MLflow's.
    """
    text = f"mlflow:{text}" if text.startswith("sqlite:") else text
    return text if has_prefix(text) or "://" in text else Path(text)


def has_prefix(text: str | Path) -> bool:
    """Whether it begins with the name of a kind, as ``wandb:`` does."""
    return bool(_prefix(str(text)))


def with_condition(text: str) -> tuple[Path | str, str]:
    """``RUNS:CONDITION`` as the source and the condition, which is empty if none is given."""
    text = str(source(text)) if text.startswith("sqlite:") else text
    prefix = f"{_prefix(text)}:" if has_prefix(text) else ""
    address = re.match(r"(https?://[^/:#]+(:\d+)?|sqlite:)?", text.removeprefix(prefix))
    begins = prefix + (address[0] if address else "")
    place, _, condition = text.removeprefix(begins).partition(":")
    return source(begins + place), condition


def named(source: Path | str) -> str:
    """What tables of a source are called in titles and folders: the last part of its name."""
    return str(source).partition("#")[0].rstrip("/").rpartition("/")[2] or str(source)


def _prefix(text: str) -> str:
    prefix = text.partition(":")[0]
    return prefix if ":" in text and prefix in kinds() else ""


@functools.cache
def kinds() -> Mapping[str, SourceKind]:
    """Every kind by its prefix; each file imports its library where it reads."""
    from moejax.run_sources import hugging_face, mlflow, tensorboard, wandb

    return {
        "mlflow": SourceKind("MLflow", mlflow.read, mlflow.is_file, mlflow.histories),
        "wandb": SourceKind("Weights & Biases", wandb.read, wandb.is_file),
        "tensorboard": SourceKind("TensorBoard", tensorboard.read, tensorboard.is_file, tensorboard.histories),
        "hf": SourceKind("Hugging Face datasets", hugging_face.read, hugging_face.is_file),
    }


def kind_of(source: Path | str) -> str:
    """The prefix of what a source is: given, or seen in the folder; empty for none.

    Raises:
      UserError: a folder holds runs of several trackers.
    """
    if prefix := _prefix(str(source)):
        if str(source).partition(":")[2].strip("/ ") == "":
            raise UserError(f"{source} names nothing after the colon; write {prefix}:PLACE.")
        return prefix
    path = Path(str(source).partition("#")[0])
    if path.is_file():
        return "mlflow" if path.suffix in (".db", ".sqlite", ".sqlite3") else ""
    seen = [prefix for prefix, kind in kinds().items() if any(map(kind.is_file, _files(path)))]
    if len(seen) > 1:
        titles = " and ".join(kinds()[prefix].title for prefix in seen)
        raise UserError(
            f"{path} has runs of {titles}; say which are meant: {' or '.join(f'{prefix}:{path}' for prefix in seen)}."
        )
    return seen[0] if seen else ""


def _files(path: Path) -> list[Path]:
    found: list[Path] = []
    # Links are not followed: a tracker's `latest-run` is a run that stands there already.
    for folder, _, names in os.walk(path):
        found += [Path(folder, name) for name in names]
        if len(found) > MOST_FILES:
            raise UserError(f"{path} has more than {MOST_FILES:,} files; name the folder of the runs, or its kind.")
    return found


@functools.lru_cache(maxsize=8)
def _read_once(text: str, prefix: str) -> DataFrame:
    """A source, read once by a process: some take minutes over a network."""
    kind = kinds()[prefix]
    found = kind.read(text.removeprefix(f"{prefix}:"))
    return _table(text, kind, list(found)) if not hasattr(found, "columns") else found


def read(source: Path | str) -> DataFrame:
    """The table of a source that is no file of a table, one row a run; sentences about it are in ``attrs["notes"]``.

    Raises:
      UserError: it is of no kind, or cannot be read as one.
    """
    prefix = kind_of(source)
    if not prefix:
        raise UserError(no_runs(source))
    frame = _read_once(str(source), prefix)
    copy = frame.copy()
    copy.attrs = dict(frame.attrs)
    return copy


def histories(source: Path | str) -> list[tuple[str, DataFrame]]:
    """The name of each run of a tracker, and a table of its metrics, a row a step; those without any are left out.

    Values that are no finite number are empty, and ``NOT_FINITE`` in its ``attrs`` counts them by metric; "notes" says
    what is to be known of it.

    Raises:
      UserError: it is no tracker's, cannot be read, or is of one whose metrics by step are not read.
    """
    import pandas as pd

    prefix = kind_of(source)
    if not prefix:
        raise UserError(no_runs(source))
    kind = kinds()[prefix]
    if kind.histories is None:
        raise UserError(
            f"{source}: of {kind.title} the last value of each metric is read, and no curves; export the history of "
            f"its runs as CSV."
        )
    found = []
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
        found.append((name, frame))
    return found


def no_runs(folder: Path | str) -> str:
    """What is said of a folder without runs."""
    titles = ", ".join(kind.title for kind in kinds().values())
    return f"{folder} is a folder without runs: it has no runs.parquet of a study, and no files of {titles}."


def _table(text: str, kind: SourceKind, runs: list[TrackedRun]) -> DataFrame:
    import pandas as pd

    rows = [_row(run) for run in runs]
    names = {name for row in rows for name in row}
    if len(names) > MOST_COLUMNS or len(names) * len(rows) > MOST_CELLS:
        raise UserError(
            f"{text} has {len(rows):,} runs with {len(names):,} settings and metrics together; a table has "
            f"{MOST_COLUMNS:,} columns and {MOST_CELLS:,} cells at most. Name one experiment."
        )
    frame = pd.DataFrame(rows)
    # A run called 007 or 1e3 keeps its name.
    words = {"run"}.union(*(run.about for run in runs))
    for name in frame.columns:
        frame[name] = frame[name] if name in words else _as_numbers(frame[name])
    notes = [f"{kind.title}: {counted(len(runs), 'run')}; of every metric the last value."]
    if unfinished := [run for run in runs if not run.finished]:
        states = sorted({run.about.get("status", "") for run in unfinished})
        good = next((run.about["status"] for run in runs if run.finished and "status" in run.about), "finished")
        notes.append(
            f"{counted(len(unfinished), 'run')} did not finish ({', '.join(states)}): "
            f"{some([run.name for run in unfinished], most=3)}; --where 'status == \"{good}\"' leaves them out."
        )
    frame.attrs["notes"] = tuple(notes)
    return frame


def _row(run: TrackedRun) -> dict[str, Any]:
    """A run's cells; where a setting has the name of a metric, it stands under ``config.NAME``."""
    row: dict[str, Any] = {"run": run.name, **run.about, **run.metrics}
    for name, value in flat(run.settings).items():
        row[f"config.{name}" if name in row else name] = value
    return row


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as one level, under the names of all levels with a dot between them; lists as their text."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            found.update(flat(value, f"{prefix}{name}."))
        else:
            found[f"{prefix}{name}"] = str(value) if isinstance(value, list | tuple) else value
    return found


def _as_numbers(column: Any) -> Any:
    """A column as numbers, if all that it holds can be read so: trackers keep settings as texts."""
    import pandas as pd

    if not all(value is None or isinstance(value, str | int | float) for value in column):
        return column
    try:
        return pd.to_numeric(column)
    except (ValueError, TypeError):
        return column
