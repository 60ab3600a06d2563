"""MLflow's runs, read from its database, its files or its server. MLflow itself is not needed, and nothing is written:
its own client would bring an older database to its version.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import math
import os
import sqlite3
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from moejax.errors import UserError
from moejax.run_sources.tracked_run import History, TrackedRun, by_step, taken_back
from moejax.stored import foreign_json
from moejax.wording import did_you_mean, says, shown

STATUS = {1: "RUNNING", 2: "SCHEDULED", 3: "FINISHED", 4: "FAILED", 5: "KILLED"}
"""MLflow's ``RunStatus``, which its files keep as a number."""

SECONDS = 60
"""How long a server may take for one answer."""


def is_file(path: Path) -> bool:
    """Whether it is what MLflow keeps an experiment's name in."""
    # A pipe under this name would be waited for.
    begins = "artifact_"
    return path.name == "meta.yaml" and path.is_file() and path.read_text("utf-8", "replace").startswith(begins)


def read(text: str) -> Iterable[TrackedRun]:
    """The runs that are not deleted, of all experiments or of the one after ``#``.

    Raises:
      UserError: it is no such store, is of no known version, or has no such experiment.
    """
    place, _, experiment = text.partition("#")
    if place.startswith(("http://", "https://")):
        try:
            return list(_of_server(place.rstrip("/"), experiment))
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{place} answers as no MLflow server does ({says('it', error)}).") from error
    path = Path(place.removeprefix("sqlite:///"))
    if not path.exists():
        raise UserError(f"There is no MLflow store at {path}; name its database (mlflow.db), folder or server.")
    return _of_files(path, experiment) if path.is_dir() else _of_database(path, experiment)


def histories(text: str) -> Iterator[History]:
    """The metrics by step of the runs that ``read`` reads, from a database or a folder.

    Raises:
      UserError: as ``read``, or it is a server.
    """
    place, _, experiment = text.partition("#")
    if place.startswith(("http://", "https://")):
        raise UserError(f"Of the MLflow server at {place} no curves are read; name its database or folder.")
    path = Path(place.removeprefix("sqlite:///"))
    if path.is_dir():
        folders = (folder for folder, _, _ in _folders(path, experiment))
        every = ((_name(folder), _points_of_files(folder)) for folder in folders)
    else:
        every = ((run.name, _points_of_database(path, run.about["run_id"])) for run in read(text))
    for name, points in every:
        metrics, again = by_step(points)
        yield History(name, metrics, taken_back(again))


def _points_of_database(path: Path, key: str) -> list[tuple[str, int, float]]:
    try:
        with contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            rows = database.execute(
                "select key, step, value, is_nan from metrics where run_uuid = ? order by timestamp, step", [key]
            ).fetchall()
        return [
            (name, int(step or 0), math.nan if nan or cell is None else _number(cell, f"{name} of the run {key}"))
            for name, step, cell, nan in rows
        ]
    except (sqlite3.Error, ValueError, TypeError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path} has no metrics by step that can be read ({says('sqlite', error)}).") from error


def _name(folder: Path) -> str:
    tagged = _values(folder / "tags").get("mlflow.runName")
    return str(tagged or _meta(folder).get("run_name") or folder.name)


def _points_of_files(folder: Path) -> list[tuple[str, int, float]]:
    points = []
    for name, text in _values(folder / "metrics").items():
        lines = sorted(_lines(text, folder / "metrics" / name), key=lambda line: (line[1], line[0]))
        points += [(name, step, value) for step, _, value in lines]
    return points


def _chosen(experiments: dict[str, str], chosen: str, where: str) -> dict[str, str]:
    """Names by id, of all experiments or of the chosen one."""
    if chosen and chosen not in experiments.values():
        raise UserError(f"{where} has no experiment {chosen}; {did_you_mean(chosen, sorted(experiments.values()))}")
    return {key: name for key, name in experiments.items() if chosen in ("", name)}


def _run(name: str, key: str, experiment: str, status: Any, params: Any, tags: Any, metrics: Any) -> TrackedRun:
    """A run of any store; ``metrics`` are as that holds them.

    Raises:
      UserError: a metric is no number.
    """
    own = {name: value for name, value in tags.items() if not str(name).startswith("mlflow.")}
    about = {"run_id": key, "experiment": experiment, "status": str(status or "unknown")}
    name = str(tags.get("mlflow.runName", name or key))
    numbers = {metric: _number(value, f"{metric} of the run {name}") for metric, value in metrics.items()}
    return TrackedRun(name, {**own, **params}, numbers, about, status == "FINISHED")


def _of_database(path: Path, chosen: str) -> Iterator[TrackedRun]:
    try:
        with contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            rows = database.execute(
                "select experiment_id, name from experiments where lifecycle_stage = 'active'"
            ).fetchall()
            experiments = _chosen({str(key): name for key, name in rows}, chosen, str(path))
            runs = database.execute(
                "select run_uuid, name, status, experiment_id from runs where lifecycle_stage = 'active' order by "
                "start_time, run_uuid"
            ).fetchall()
            kept: dict[str, dict[str, dict[str, Any]]] = {}
            for table in ("params", "tags"):
                own = kept.setdefault(table, {})
                for key, name, cell in database.execute(f"select run_uuid, key, value from {table}"):
                    own.setdefault(key, {})[name] = cell
            own = kept.setdefault("latest_metrics", {})
            for key, name, cell, nan in database.execute("select run_uuid, key, value, is_nan from latest_metrics"):
                own.setdefault(key, {})[name] = math.nan if nan or cell is None else cell
    except sqlite3.Error as error:
        raise UserError(
            f"{path} is no database of MLflow's that can be read ({says('sqlite', error)}); name the one that "
            f"`mlflow server --backend-store-uri sqlite:///...` writes."
        ) from error
    for key, name, status, experiment in runs:
        if str(experiment) in experiments:
            params, tags, metrics = (kept[table].get(key, {}) for table in ("params", "tags", "latest_metrics"))
            yield _run(name, key, experiments[str(experiment)], status, params, tags, metrics)


def _folders(path: Path, chosen: str) -> Iterator[tuple[Path, dict[str, Any], str]]:
    """The folder of every run that is not deleted, what its file says, and its experiment."""
    of_experiment = [folder for folder in (path, *sorted(path.iterdir())) if (folder / "meta.yaml").is_file()]
    found = {str(folder): about for folder in of_experiment if "name" in (about := _meta(folder))}
    active = {key: str(about["name"]) for key, about in found.items() if about.get("lifecycle_stage") == "active"}
    for key, experiment in _chosen(active, chosen, str(path)).items():
        for folder in sorted(file.parent for file in Path(key).glob("*/meta.yaml")):
            about = _meta(folder)
            if about.get("lifecycle_stage") == "active":
                yield folder, about, experiment


def _of_files(path: Path, chosen: str) -> Iterator[TrackedRun]:
    for folder, about, experiment in _folders(path, chosen):
        texts = {part: _values(folder / part) for part in ("params", "tags", "metrics")}
        metrics = {name: _latest(text, folder / "metrics" / name) for name, text in texts["metrics"].items()}
        number = about.get("status")
        status = STATUS.get(number, number) if isinstance(number, int) else number
        name = str(about.get("run_name") or "")
        yield _run(name, folder.name, experiment, status, texts["params"], texts["tags"], metrics)


def _meta(folder: Path) -> dict[str, Any]:
    import yaml

    try:
        about = yaml.safe_load((folder / "meta.yaml").read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{folder / 'meta.yaml'} cannot be read ({says('it', error)}).") from error
    return about if isinstance(about, dict) else {}


def _values(folder: Path) -> dict[str, str]:
    """Texts of a folder's files by their name, of which a part before ``/`` is a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_text(encoding="utf-8", errors="replace") for path in files}


def _latest(text: str, path: Path) -> float:
    """The value at the largest step, of several the last written; a line is ``milliseconds value step``."""
    return max(_lines(text, path))[2]


def _lines(text: str, path: Path) -> list[tuple[int, int, float]]:
    """Step, milliseconds and value of each line."""
    lines = [line.split() for line in text.splitlines() if line.strip()]
    try:
        found = [(int(cells[2]) if len(cells) > 2 else 0, int(cells[0]), float(cells[1])) for cells in lines]
        return found or [(0, 0, float("no line"))]
    except (ValueError, IndexError) as error:
        raise UserError(f"{path} has a line that is no `milliseconds value step`; remove or mend it.") from error


def _number(value: Any, what: str) -> float:
    """A metric's value; MLflow keeps an infinite one as the largest float in a database, and gives it so.

    Raises:
      UserError: it is no number.
    """
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{what} is {shown(value)} in MLflow's store, and no number; remove or mend it.") from error
    return math.copysign(math.inf, number) if abs(number) >= sys.float_info.max else number


def _of_server(address: str, chosen: str) -> Iterator[TrackedRun]:
    listed = _pages(address, "experiments/search", {"max_results": 1000}, "experiments")
    experiments = _chosen({one["experiment_id"]: one["name"] for one in listed}, chosen, address)
    if not experiments:
        return
    asked = {"experiment_ids": list(experiments), "max_results": 1000, "order_by": ["attributes.start_time ASC"]}
    for run in _pages(address, "runs/search", asked, "runs"):
        about, data = run["info"], run.get("data", {})
        own = {part: {one["key"]: one["value"] for one in data.get(part, ())} for part in ("params", "tags")}
        metrics = {one["key"]: one["value"] for one in data.get("metrics", ())}
        experiment = experiments[about["experiment_id"]]
        status = about.get("status")
        yield _run(about.get("run_name", ""), about["run_id"], experiment, status, own["params"], own["tags"], metrics)


def _pages(address: str, method: str, asked: dict[str, Any], part: str) -> Iterator[dict[str, Any]]:
    """All of a list that the server gives in pages (MLflow's REST API 2.0)."""
    token = ""
    while True:
        answer = _ask(address, method, {**asked, **({"page_token": token} if token else {})})
        yield from answer.get(part, ())
        token = answer.get("next_page_token", "")
        if not token:
            return


def _ask(address: str, method: str, asked: dict[str, Any]) -> dict[str, Any]:
    headers = {"Content-Type": "application/json"}
    if token := os.environ.get("MLFLOW_TRACKING_TOKEN"):
        headers["Authorization"] = f"Bearer {token}"
    elif user := os.environ.get("MLFLOW_TRACKING_USERNAME"):
        words = f"{user}:{os.environ.get('MLFLOW_TRACKING_PASSWORD', '')}"
        headers["Authorization"] = f"Basic {base64.b64encode(words.encode()).decode()}"
    request = urllib.request.Request(f"{address}/api/2.0/mlflow/{method}", json.dumps(asked).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            content = answer.read()
    except urllib.error.HTTPError as error:
        raise UserError(
            f"The MLflow server at {address} refused {method} (HTTP status {error.code}); MLFLOW_TRACKING_TOKEN, or "
            f"MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, say who asks."
        ) from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise UserError(f"No MLflow server answers at {address} ({says('it', error)}); is it running?") from error
    return foreign_json(content, f"The answer of {address}", shape=dict, remedy="is it an MLflow server?")
