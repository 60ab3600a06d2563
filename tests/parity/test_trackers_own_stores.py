"""Runs that the trackers' own libraries wrote are read back as they were logged."""

import contextlib
import http.server
import json
import sqlite3
import threading

import mlflow_stores
import pytest

from moejax import run_table
from moejax.errors import UserError
from moejax.run_sources.source import source

RUNS = {"run-0": (1e6, 3.8), "run-1": (2e6, 3.6)}


@pytest.mark.parity
def test_runs_that_wandb_logged_offline_are_read_back(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    for name, (size, loss) in RUNS.items():
        run = wandb.init(project="moe", name=name, dir=str(tmp_path), config={"model": {"params_active": size}})
        for step in range(300):
            run.log({"val/loss": loss + (299 - step), "note": "x" * 200})
        run.summary["best"] = loss
        run.finish(exit_code=1 if name == "run-1" else 0)
    table = run_table.read_as_it_is(tmp_path).set_index("run").sort_index()
    columns = (table["model.params_active"], table["val/loss"])
    assert dict(zip(table.index, zip(*columns, strict=True), strict=True)) == RUNS
    assert list(table["best"]) == [3.8, 3.6]
    assert list(table["status"]) == ["finished", "failed"]


@pytest.mark.parity
def test_a_saved_data_set_is_a_table(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    rows = {"params_active": [1e6, 2e6], "loss": [3.8, 3.6]}
    monkeypatch.chdir(tmp_path)
    datasets.Dataset.from_dict(rows).save_to_disk("one")
    datasets.DatasetDict({name: datasets.Dataset.from_dict(rows) for name in ("a", "b")}).save_to_disk("two")
    for place in ("one", "hf:two#b"):
        assert run_table.read(place).to_dict("list") == rows
    with pytest.raises(ValueError, match="has the splits a, b; choose one"):
        run_table.read("two")


SWEEP = {
    name: (
        {"model.params_active": size, "optimizer": "adamw"},
        [("val/loss", 0, 9.0), ("val/loss", 2, loss), ("tokens", 2, 2e7), ("diverged", 1, float("inf"))],
        None if name == "run-1" else "FINISHED",
    )
    for name, (size, loss) in RUNS.items()
}


def address(kind, folder):
    return f"sqlite:///{folder}/mlflow.db" if kind == "mlflow.db" else (folder / "mlruns").as_uri()


@pytest.mark.parity
@pytest.mark.parametrize("kind", ["mlflow.db", "mlruns"])
def test_runs_that_mlflow_logged_are_read_and_its_store_is_not_changed(kind, tmp_path):
    client = mlflow_stores.write(address(kind, tmp_path), SWEEP)
    other = mlflow_stores.write(address(kind, tmp_path), {"gone": SWEEP["run-0"], "old": SWEEP["run-0"]}, "other")
    experiments = [one.experiment_id for one in other.search_experiments()]
    (gone,) = (run for run in other.search_runs(experiments) if run.info.run_name == "gone")
    other.delete_run(gone.info.run_id)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    table = run_table.read_as_it_is(source(f"mlflow:{tmp_path / kind}#sweep")).set_index("run").sort_index()
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    columns = (table["model.params_active"], table["val/loss"])
    assert dict(zip(table.index, zip(*columns, strict=True), strict=True)) == RUNS
    assert list(table["status"]) == ["FINISHED", "RUNNING"]
    assert list(table["diverged"]) == [float("inf")] * 2
    assert not [name for name in table.columns if name.startswith("mlflow.")]
    assert any("1 run did not finish (RUNNING): run-1" in note for note in table.attrs["notes"])
    assert sorted(run_table.read_as_it_is(tmp_path / kind)["run"]) == ["old", *RUNS]
    with pytest.raises(UserError, match="has no experiment swep; did you mean sweep"):
        run_table.read_as_it_is(source(f"mlflow:{tmp_path / kind}#swep"))
    assert client.get_experiment_by_name("sweep").lifecycle_stage == "active"


@pytest.mark.parity
def test_a_database_that_is_not_mlflows_is_refused_and_left_as_it_is(tmp_path):
    pytest.importorskip("mlflow")
    path = tmp_path / "mine.db"
    with contextlib.closing(sqlite3.connect(path)) as store:
        store.execute("create table mine (x integer)")
    before = path.read_bytes()
    with pytest.raises(UserError, match=r"mine\.db is not a run table"):
        run_table.read(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["mine.db"]


class Server(http.server.BaseHTTPRequestHandler):
    """MLflow's REST API with one run per page, on request without a last page; or a redirect to another server."""

    def do_POST(self):
        self.server.asked.append(dict(self.headers))
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.server.elsewhere:
            self.send_response(307)
            self.send_header("Location", f"{self.server.elsewhere}{self.path}")
            self.end_headers()
            return
        if "experiments/search" in self.path:
            answer = {"experiments": [{"experiment_id": "1", "name": "sweep", "lifecycle_stage": "active"}]}
        else:
            at = int(json.loads(content).get("page_token", 0))
            name, (size, loss) = list(RUNS.items())[at]
            info = {"run_id": name, "run_name": name, "status": "FINISHED", "experiment_id": "1"}
            params, metrics = ([{"key": key, "value": value}] for key, value in (("size", str(size)), ("loss", loss)))
            answer = {"runs": [{"info": info, "data": {"params": params, "metrics": metrics}}]}
            more = str((at + 1) % len(RUNS)) if at + 1 < len(RUNS) or self.server.is_endless else ""
            answer |= {"next_page_token": more} if more else {}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    do_GET = do_POST

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def serving(elsewhere="", *, is_endless=False):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as running:
        running.asked, running.elsewhere, running.is_endless = [], elsewhere, is_endless
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        yield running, f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()


@pytest.mark.parity
def test_a_server_of_mlflow_is_read_page_by_page_and_credentials_are_not_sent_elsewhere(monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "secret")
    with serving() as (other, elsewhere), serving(elsewhere) as (first, redirecting):
        table = run_table.read_as_it_is(source(f"mlflow:{elsewhere}#sweep")).set_index("run")
        assert {name: (row["size"], row["loss"]) for name, row in table.iterrows()} == RUNS
        assert {asked["Authorization"] for asked in other.asked} == {"Bearer secret"}
        other.asked.clear()
        run_table.read_as_it_is(source(f"mlflow:{redirecting}"))
        assert {asked["Authorization"] for asked in first.asked} == {"Bearer secret"}
        assert not [asked for asked in other.asked if "Authorization" in asked]


@pytest.mark.parity
def test_a_list_of_runs_without_an_end_is_refused(monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.setattr("moejax.run_sources.mlflow.MOST_PAGES", 5)
    with serving(is_endless=True) as (running, address):
        with pytest.raises(UserError, match=r"127\.0\.0\.1:\d+ lists more than 5 pages of runs; choose an experiment"):
            run_table.read_as_it_is(source(f"mlflow:{address}"))
        assert len(running.asked) < 10


@pytest.mark.parity
def test_a_server_that_is_not_running_is_named(monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(UserError, match=r"MLflow cannot read http://127\.0\.0\.1:9 "):
        run_table.read(source("mlflow:http://127.0.0.1:9"))
