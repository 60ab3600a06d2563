"""Read MLflow runs from a database, files or a server, without MLflow, whose client would migrate an older database to
its version. Nothing is written."""

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

from moejax import input_file
from moejax.errors import UserError
from moejax.run_sources.tracked_run import History, TrackedRun, by_step, taken_back
from moejax.stored import foreign_json
from moejax.table_file import MOST_BYTES
from moejax.wording import did_you_mean, says, shown

STATUS = {1: "RUNNING", 2: "SCHEDULED", 3: "FINISHED", 4: "FAILED", 5: "KILLED"}
"""MLflow's ``RunStatus``, stored as a number in its files."""

SECONDS = 60
"""Timeout of a server request, in seconds."""
MOST_PAGES = 1_000
"""Maximum number of pages of a server's list, each of up to 1,000 items."""
MOST_META_BYTES = 100_000
"""Maximum size of a ``meta.yaml``, which MLflow writes with a dozen lines."""


def is_file(path: Path) -> bool:
    """Return whether the file is one in which MLflow stores the name of an experiment."""
    # Opening a named pipe would block.
    if path.name != "meta.yaml" or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(9) == b"artifact_"


def read(text: str) -> Iterable[TrackedRun]:
    """Return the runs that are not deleted, of all experiments or of the one named after ``#``.

    Raises:
      UserError: the store is unreadable, has an unknown version, or lacks the experiment.
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
    if path.is_dir():
        return _of_files(path, experiment)
    input_file.check(path)
    return _of_database(path, experiment)


def histories(text: str) -> Iterator[History]:
    """Yield the metrics by step of the runs that ``read`` returns, from a database or a folder.

    Raises:
      UserError: as ``read``, or the store is a server.
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
    if chosen and chosen not in experiments.values():
        raise UserError(f"{where} has no experiment {chosen}; {did_you_mean(chosen, sorted(experiments.values()))}")
    return {key: name for key, name in experiments.items() if chosen in ("", name)}


def _run(name: str, key: str, experiment: str, status: Any, params: Any, tags: Any, metrics: Any) -> TrackedRun:
    """Build a run of any store from its parameters, tags and metrics.

    Raises:
      UserError: a metric is not a number.
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
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise UserError(
            f"{path} is no database of MLflow's that can be read ({says('sqlite', error)}); name the one that "
            f"`mlflow server --backend-store-uri sqlite:///...` writes."
        ) from error
    for key, name, status, experiment in runs:
        if str(experiment) in experiments:
            params, tags, metrics = (kept[table].get(key, {}) for table in ("params", "tags", "latest_metrics"))
            yield _run(name, key, experiments[str(experiment)], status, params, tags, metrics)


def _folders(path: Path, chosen: str) -> Iterator[tuple[Path, dict[str, Any], str]]:
    """Yield the folder of every run that is not deleted, the contents of its file, and its experiment."""
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
        text = input_file.read_bytes(folder / "meta.yaml", MOST_META_BYTES).decode("utf-8")
        # Nested aliases grow without limit when printed, and the time to read nested values grows with the square of
        # the depth.
        depth = 0
        for token in yaml.scan(text):
            depth += token.id in ("[", "{", "<block mapping start>", "<block sequence start>")
            depth -= token.id in ("]", "}", "<block end>")
            if token.id == "<alias>" or depth > 10:
                raise UserError(f"{folder / 'meta.yaml'} has aliases or deep nesting, as MLflow writes none; mend it.")
        about = yaml.safe_load(text)
    except (OSError, ValueError, ArithmeticError, yaml.YAMLError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{folder / 'meta.yaml'} cannot be read ({says('it', error)}).") from error
    return about if isinstance(about, dict) else {}


def _values(folder: Path) -> dict[str, str]:
    """Return the texts of a folder's files by name; a part of the name before ``/`` is a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    contents = {str(path.relative_to(folder)): input_file.read_bytes(path, MOST_BYTES) for path in files}
    return {name: content.decode("utf-8", errors="replace") for name, content in contents.items()}


def _latest(text: str, path: Path) -> float:
    """Return the value at the largest step, the last one written if there are several; a line is ``milliseconds value
    step``."""
    return max(_lines(text, path))[2]


def _lines(text: str, path: Path) -> list[tuple[int, int, float]]:
    lines = [line.split() for line in text.splitlines() if line.strip()]
    try:
        found = [(int(cells[2]) if len(cells) > 2 else 0, int(cells[0]), float(cells[1])) for cells in lines]
        return found or [(0, 0, float("no line"))]
    except (ValueError, IndexError) as error:
        raise UserError(f"{path} has a line that is no `milliseconds value step`; remove or mend it.") from error


def _number(value: Any, what: str) -> float:
    """Return a metric's value. MLflow stores an infinite one as the largest float in a database, and returns it so.

    Raises:
      UserError: the value is not a number.
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
    """Yield all items of a paged list of the server (MLflow's REST API 2.0)."""
    token = ""
    for _ in range(MOST_PAGES):
        answer = _ask(address, method, {**asked, **({"page_token": token} if token else {})})
        yield from answer.get(part, ())
        token = answer.get("next_page_token", "")
        if not token:
            return
    raise UserError(f"{address} has more than {MOST_PAGES:,} pages of {part}; name one experiment, as {address}#NAME.")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Redirect handler that refuses redirects: urllib would send the credentials to any host, and drop the request
    body."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        """Return None, so that the answer is an ``HTTPError``."""


def _ask(address: str, method: str, asked: dict[str, Any]) -> dict[str, Any]:
    headers = {"Content-Type": "application/json"}
    if token := os.environ.get("MLFLOW_TRACKING_TOKEN"):
        headers["Authorization"] = f"Bearer {token}"
    elif user := os.environ.get("MLFLOW_TRACKING_USERNAME"):
        words = f"{user}:{os.environ.get('MLFLOW_TRACKING_PASSWORD', '')}"
        headers["Authorization"] = f"Basic {base64.b64encode(words.encode()).decode()}"
    request = urllib.request.Request(f"{address}/api/2.0/mlflow/{method}", json.dumps(asked).encode(), headers)
    try:
        with urllib.request.build_opener(_Redirects).open(request, timeout=SECONDS) as answer:
            content = answer.read(MOST_BYTES + 1)
    except urllib.error.HTTPError as error:
        if "Location" in error.headers:
            raise UserError(
                f"The MLflow server at {address} redirects to {error.headers['Location']}; credentials are not sent "
                f"there. Name that address if it is your server's."
            ) from error
        raise UserError(
            f"The MLflow server at {address} refused {method} (HTTP status {error.code}); MLFLOW_TRACKING_TOKEN, or "
            f"MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, say who asks."
        ) from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise UserError(f"No MLflow server answers at {address} ({says('it', error)}); is it running?") from error
    if len(content) > MOST_BYTES:
        raise UserError(f"{address} answers {method} with more than {MOST_BYTES:,} bytes; name one experiment.")
    return foreign_json(content, f"The answer of {address}", shape=dict, remedy="is it an MLflow server?")
