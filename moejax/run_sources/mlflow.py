"""Read MLflow runs from a database, a folder or a server through MLflow's own client. The store is not changed."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import sqlite3
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from moejax import input_file
from moejax.errors import UserError
from moejax.run_sources.tracked_run import History, TrackedRun, by_step, library, resumed_note
from moejax.wording import did_you_mean, says

SETTINGS = {
    # The client refuses folders unless this is set.
    "MLFLOW_ALLOW_FILE_STORE": "true",
    # The default of 7 retries waits for minutes before it reports an unreachable server.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
"""Environment variables of MLflow that are set unless the user has set them."""
PAGE = 1_000
"""Number of runs per request."""
MOST_PAGES = 1_000
"""Maximum number of pages of a list."""


def is_file(path: Path) -> bool:
    """Return whether MLflow stores the name of an experiment in this file."""
    # Opening a named pipe would block.
    if path.name != "meta.yaml" or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(9) == b"artifact_"


def is_database(path: Path) -> bool:
    """Return whether a file is an MLflow database."""
    if path.suffix not in (".db", ".sqlite", ".sqlite3"):
        return False
    try:
        with contextlib.closing(_read_only(path)) as store:
            return bool(store.execute("select 1 from sqlite_master where name = 'experiments'").fetchall())
    except sqlite3.Error:
        return False


def _read_only(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)


def read(text: str) -> list[TrackedRun]:
    """Return the runs of all experiments, or of the experiment named after ``#``. Deleted runs are left out.

    Raises:
      UserError: MLflow is not installed, the store is unreadable, or the experiment does not exist.
    """
    with _runs(text) as (_, runs):
        return [_tracked(run, experiment) for run, experiment in runs]


def histories(text: str) -> Iterator[History]:
    """Yield the metrics by step of the runs that ``read`` returns.

    Raises:
      UserError: like ``read``.
    """
    with _runs(text) as (client, runs):
        for run, _ in runs:
            points = []
            for name in run.data.metrics:
                written = client.get_metric_history(run.info.run_id, name)
                for one in sorted(written, key=lambda metric: (metric.timestamp, metric.step)):
                    points.append((name, one.step, _number(one.value)))
            metrics, discarded = by_step(points)
            yield History(run.info.run_name or run.info.run_id, metrics, resumed_note(discarded))


@contextlib.contextmanager
def _runs(text: str) -> Iterator[tuple[Any, list[tuple[Any, str]]]]:
    place, _, chosen = text.partition("#")
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    mlflow = library("mlflow", "MLflow runs", "mlflow")
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings(), _address(place) as address:
            # MLflow uses deprecated options of SQLAlchemy.
            warnings.simplefilter("ignore")
            client = mlflow.MlflowClient(address)
            experiments = {
                one.experiment_id: one.name for one in _every(client.search_experiments, place, "experiments")
            }
            if chosen and chosen not in experiments.values():
                known = did_you_mean(chosen, sorted(experiments.values()))
                raise UserError(f"{place} has no experiment {chosen}; {known}")
            ids = [key for key, name in experiments.items() if chosen in ("", name)]

            def search(**page: Any) -> Any:
                return client.search_runs(ids, order_by=["attributes.start_time ASC"], **page)

            found = _every(search, place, "runs") if ids else ()
            yield client, [(run, experiments[run.info.experiment_id]) for run in found]
    except UserError:
        raise
    except Exception as error:
        # The client raises exceptions of MLflow, SQLAlchemy, Alembic and requests.
        raise UserError(
            f"MLflow cannot read {place} ({says('mlflow', error)}). Give an MLflow database (mlflow.db), an "
            f"MLflow folder (mlruns/), or the address of a running server."
        ) from error


def _every(search: Callable[..., Any], place: str, items: str) -> Iterator[Any]:
    """Yield a list that the client returns page by page, up to ``MOST_PAGES``, since a server may never stop."""
    token = None
    for _ in range(MOST_PAGES):
        page = search(max_results=PAGE, page_token=token)
        yield from page
        token = page.token
        if not token:
            return
    raise UserError(f"{place} lists more than {MOST_PAGES:,} pages of {items}; choose an experiment: {place}#NAME.")


@contextlib.contextmanager
def _address(place: str) -> Iterator[str]:
    """Yield the tracking URI of a server, or of a copy of a local store. MLflow would create folders in the original
    and upgrade an old database."""
    if place.startswith(("http://", "https://")):
        yield place.rstrip("/")
        return
    path = Path(place.removeprefix("sqlite:///"))
    if not path.exists():
        raise UserError(f"There is no MLflow store at {path}; give an MLflow database (mlflow.db), folder or server.")
    with tempfile.TemporaryDirectory() as folder:
        if path.is_dir():
            for experiment in (path, *path.iterdir()):
                if (experiment / "meta.yaml").is_file():
                    Path(folder, experiment.resolve().name).symlink_to(experiment.resolve(), target_is_directory=True)
            yield Path(folder).as_uri()
            return
        input_file.check(path)
        copy = Path(folder, "mlflow.db")
        with (
            contextlib.closing(_read_only(path)) as original,
            contextlib.closing(sqlite3.connect(copy)) as target,
        ):
            # A backup includes the write-ahead log of a database in use.
            original.backup(target)
        from mlflow.db import upgrade  # type: ignore[import-not-found]

        upgrade.callback(f"sqlite:///{copy}")  # type: ignore[reportOptionalCall]
        yield f"sqlite:///{copy}"


def _tracked(run: Any, experiment: str) -> TrackedRun:
    own = {name: value for name, value in run.data.tags.items() if not name.startswith("mlflow.")}
    about = {"run_id": run.info.run_id, "experiment": experiment, "status": str(run.info.status or "unknown")}
    return TrackedRun(
        run.info.run_name or run.info.run_id,
        {**own, **run.data.params},
        {name: _number(value) for name, value in run.data.metrics.items()},
        about,
        run.info.status == "FINISHED",
    )


def _number(value: float) -> float:
    """Return a metric; an MLflow database stores infinity as the largest float."""
    return math.copysign(math.inf, value) if abs(value) >= sys.float_info.max else float(value)
