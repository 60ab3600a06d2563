"""Runs of trackers are tables: a row a run, its settings and the last value of each metric; nothing is written."""

import contextlib
import http.server
import json
import os
import shutil
import socket
import sqlite3
import struct
import tempfile
import threading
import zlib

import pytest
from mlflow_database import SCHEMA

from moejax import run_table
from moejax.errors import UserError
from moejax.fit.tables.read_runs import read_runs
from moejax.run_sources import mlflow, wandb
from moejax.run_sources.source import _row, _table, kinds, source, with_condition
from moejax.run_sources.tracked_run import TrackedRun

RUNS = {"run-0": (1_000_000, 2e7, 3.8), "run-1": (2_000_000, 4e7, 3.6), "run-2": (4_000_000, 8e7, 3.4)}
"""Active parameters, tokens and loss by name; the last is still running."""


def database(path):
    """A store as MLflow's own schema has it, with a run and an experiment that are deleted."""
    with sqlite3.connect(path) as store:
        store.executescript(
            f"{SCHEMA} insert into experiments values (2, 'old', 'deleted');"
            "insert into runs values ('gone', 'gone', 'FINISHED', 9, 'deleted', 1), ('other', 'o', 'FINISHED', 9, "
            "'active', 2);"
        )
        for start, (name, (size, tokens, loss)) in enumerate(RUNS.items()):
            status = "RUNNING" if name == "run-2" else "FINISHED"
            store.execute("insert into runs values (?, ?, ?, ?, 'active', 1)", (name, name, status, start))
            store.execute("insert into params values ('model.params_active', ?, ?)", (str(size), name))
            store.execute("insert into tags values ('mlflow.user', 'me', ?)", (name,))
            for key, value in (("tokens", tokens), ("val/loss", loss)):
                store.execute("insert into latest_metrics values (?, ?, 0, ?)", (key, value, name))
    store.close()
    return path


def files(folder):
    """The same as MLflow's files, of which each metric has the values of three steps."""
    (folder / "7").mkdir(parents=True)
    (folder / "7/meta.yaml").write_text("artifact_location: x\nlifecycle_stage: active\nname: sweep\n")
    for name, (size, tokens, loss) in RUNS.items():
        for part in ("params", "metrics/val", "tags"):
            (folder / "7" / name / part).mkdir(parents=True)
        about = f"artifact_uri: x\nlifecycle_stage: active\nrun_name: {name}\nstatus: {1 if name == 'run-2' else 3}\n"
        (folder / "7" / name / "meta.yaml").write_text(about)
        (folder / "7" / name / "params/model.params_active").write_text(str(size))
        (folder / "7" / name / "tags/mlflow.user").write_text("me")
        (folder / "7" / name / "metrics/tokens").write_text(f"5 {tokens} 2\n")
        (folder / "7" / name / "metrics/val/loss").write_text(f"9 9.0 0\n5 {loss} 2\n7 8.0 1\n")
    return folder


class Server(http.server.BaseHTTPRequestHandler):
    """MLflow's two searches, a page a run."""

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path.endswith("experiments/search"):
            answer = {"experiments": [{"experiment_id": "1", "name": "sweep"}]}
        else:
            at = int(asked.get("page_token", 0))
            name, (size, tokens, loss) = list(RUNS.items())[at]
            status = "RUNNING" if name == "run-2" else "FINISHED"
            info = {"run_id": name, "run_name": name, "status": status, "experiment_id": "1"}
            data = {
                "params": [{"key": "model.params_active", "value": str(size)}],
                "metrics": [{"key": "tokens", "value": tokens}, {"key": "val/loss", "value": loss}],
            }
            answer = {"runs": [{"info": info, "data": data}], **({"next_page_token": str(at + 1)} if at < 2 else {})}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as running:
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        yield f"mlflow:http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()


def test_a_database_files_and_a_server_of_mlflow_give_the_same_runs(tmp_path, server):
    stores = (database(tmp_path / "mlflow.db"), files(tmp_path / "mlruns"), f"{server}#sweep")
    tables = [run_table.read_as_it_is(store).set_index("run").sort_index() for store in stores]
    for table in tables:
        assert list(table.index) == list(RUNS)
        columns = [table[name] for name in ("model.params_active", "tokens", "val/loss")]
        assert list(zip(*columns, strict=True)) == list(RUNS.values())
        assert list(table["status"]) == ["FINISHED", "FINISHED", "RUNNING"]
        assert "mlflow.user" not in table
        assert any("1 run did not finish (RUNNING): run-2" in note for note in table.attrs["notes"])


def test_a_loss_without_bound_is_no_number_of_mlflows_largest(tmp_path):
    path = database(tmp_path / "mlflow.db")
    with sqlite3.connect(path) as store:
        largest = (
            "update latest_metrics set value = 1.7976931348623157e308 where run_uuid = 'run-0' and key = 'val/loss'"
        )
        store.execute(largest)
    store.close()
    assert list(run_table.read_as_it_is(path)["val/loss"]) == [float("inf"), 3.6, 3.4]


@pytest.mark.parametrize("value", ["much", b"\x00\x01"])
def test_a_metric_that_is_no_number_is_named_with_its_run(tmp_path, value):
    path = database(tmp_path / "mlflow.db")
    with sqlite3.connect(path) as store:
        store.execute("update latest_metrics set value = ? where run_uuid = 'run-1' and key = 'val/loss'", (value,))
    store.close()
    with pytest.raises(UserError, match=r"val/loss of the run run-1 is .* in MLflow's store, and no number"):
        run_table.read_as_it_is(path)


def test_a_run_without_a_status_did_not_finish_as_far_as_is_known(tmp_path):
    path = database(tmp_path / "mlflow.db")
    with sqlite3.connect(path) as store:
        store.execute("update runs set status = null where run_uuid = 'run-1'")
    store.close()
    folder = files(tmp_path / "mlruns")
    about = folder / "7/run-1/meta.yaml"
    about.write_text(about.read_text().replace("status: 3", "status: [3]"))
    for store, status in ((path, "unknown"), (folder, "[3]")):
        table = run_table.read_as_it_is(store).set_index("run")
        assert table.loc["run-1", "status"] == status
        (said,) = (note for note in table.attrs["notes"] if "did not finish" in note)
        assert "2 runs" in said
        assert status in said


def test_a_pipe_in_a_folder_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "meta.yaml")
    with pytest.raises(UserError, match="is a folder without runs"):
        run_table.read_as_it_is(tmp_path)


def test_a_run_called_by_a_number_keeps_its_name():
    table = _table("x", kinds()["mlflow"], [TrackedRun(name, {"seed": "7"}, {}, {}) for name in ("1.10", "1.1")])
    assert list(table["run"]) == ["1.10", "1.1"]
    assert list(table["seed"]) == [7, 7]


def test_a_database_that_is_no_file_is_named(monkeypatch):
    with tempfile.TemporaryDirectory() as short, socket.socket(socket.AF_UNIX) as listening:
        monkeypatch.chdir(short)
        listening.bind("mlflow.db")
        with pytest.raises(UserError, match=r"mlflow\.db is a socket and no regular file"):
            run_table.read(source("mlflow:mlflow.db"))


class Answers(http.server.BaseHTTPRequestHandler):
    """A server that records who asks, and answers as ``answer`` of the server does."""

    def do_POST(self):
        self.server.asked.append(dict(self.headers))
        status, headers, content = self.server.answer(self)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def answering(answer):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as running:
        running.answer, running.asked = answer, []
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        yield running, f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_credentials_are_not_sent_where_a_server_redirects_to(monkeypatch, status):
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "secret")
    with (
        answering(lambda request: (200, {}, b"{}")) as (other, elsewhere),
        answering(lambda request: (status, {"Location": f"{elsewhere}/x"}, b"")) as (first, address),
    ):
        with pytest.raises(UserError, match=f"redirects to {elsewhere}/x; credentials are not sent there"):
            run_table.read(source(f"mlflow:{address}"))
        assert [asked["Authorization"] for asked in first.asked] == ["Bearer secret"]
        assert other.asked == []


def test_a_list_without_an_end_is_left(monkeypatch):
    monkeypatch.setattr(mlflow, "MOST_PAGES", 5)
    with answering(lambda request: (200, {}, b'{"experiments": [], "next_page_token": "more"}')) as (server, address):
        with pytest.raises(UserError, match="has more than 5 pages of experiments; name one experiment"):
            run_table.read(source(f"mlflow:{address}"))
        assert len(server.asked) == 5


def test_an_answer_that_is_too_large_is_left(monkeypatch):
    monkeypatch.setattr(mlflow, "MOST_BYTES", 1_000)
    with (
        answering(lambda request: (200, {}, b" " * 1_001)) as (_, address),
        pytest.raises(UserError, match="answers experiments/search with more than 1,000 bytes"),
    ):
        run_table.read(source(f"mlflow:{address}"))


ALIASES = "\n".join([f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9 if i else ['lol'])}]" for i in range(12)])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{ALIASES}\nstatus: *a11\n", "has aliases or deep nesting, as MLflow writes none"),
        ("status: " + "[" * 50_000, "has aliases or deep nesting"),
        ("\n".join(" " * i + "a:" for i in range(400)), "has aliases or deep nesting"),
        ("when: 2024-99-99\n", "cannot be read"),
        ("a: b: c\n", "cannot be read"),
        ("x" * 100_001, "has more than 100,000 bytes"),
    ],
)
def test_a_file_of_a_run_that_mlflow_would_not_write_is_named(tmp_path, text, words):
    about = files(tmp_path / "mlruns") / "7/run-1/meta.yaml"
    about.write_text(f"lifecycle_stage: active\n{text}")
    with pytest.raises(UserError, match=f"7/run-1/meta.yaml {words}"):
        run_table.read(tmp_path / "mlruns")


def test_nested_settings_and_metrics_are_read_under_our_names(tmp_path):
    read = read_runs(files(tmp_path / "mlruns"), ("params_active", "tokens"), where=['status == "FINISHED"'])
    assert list(read.runs.design.params_active) == [1e6, 2e6]
    assert list(read.runs.loss) == [3.8, 3.6]
    assert read.notes[0].startswith("MLflow: 3 runs")
    assert "params_active from `model.params_active`" in " ".join(read.notes)


def test_a_setting_beside_a_metric_of_its_name_keeps_both():
    run = TrackedRun("a", {"loss": "huber", "model": {"layers": [1, 2]}}, {"loss": 2.5}, {})
    assert _row(run) == {"run": "a", "loss": 2.5, "config.loss": "huber", "model.layers": "[1, 2]"}


def tensorboard(folder):
    writer = pytest.importorskip("tensorboardX").SummaryWriter
    for name, (size, tokens, loss) in RUNS.items():
        log = writer(str(folder / name))
        for step in range(3):
            log.add_scalar("val/loss", loss + 2 - step, step)
        log.add_scalar("tokens", tokens, 2)
        log.add_hparams({"params_active": float(size), "optimizer": "adamw"}, {"best": loss}, name="hparams")
        log.close()
    return folder


def test_events_give_the_last_value_and_the_hyperparameters_of_a_run(tmp_path):
    table = run_table.read_as_it_is(tensorboard(tmp_path / "logs")).set_index("run")
    assert sorted(table.index) == list(RUNS)
    for name, (size, tokens, loss) in RUNS.items():
        row = table.loc[name]
        assert (row["params_active"], row["tokens"], row["optimizer"]) == (size, tokens, "adamw")
        assert row["val/loss"] == row["best"] == pytest.approx(loss, rel=1e-6)


@pytest.mark.parametrize("kind", ["files", "database", "a database's log"])
def test_a_run_that_was_added_is_seen_by_the_next_reading_and_an_unchanged_store_is_read_once(tmp_path, kind):
    place = files(tmp_path / "mlruns") if kind == "files" else database(tmp_path / "mlflow.db")
    with contextlib.ExitStack() as held:
        if kind != "files":
            store = held.enter_context(contextlib.closing(sqlite3.connect(place)))
            if "log" in kind:
                store.execute("pragma journal_mode=wal")
        before = run_table.read_as_it_is(place)
        reads = run_table.source._read_once.cache_info().misses
        assert run_table.read_as_it_is(place).equals(before)
        assert run_table.source._read_once.cache_info().misses == reads
        if kind == "files":
            shutil.copytree(place / "7/run-0", place / "7/added")
        else:
            store.execute("insert into runs values ('added', 'added', 'FINISHED', 9, 'active', 1)")
            store.commit()
        assert len(run_table.read_as_it_is(place)) == len(before) + 1


def test_events_that_are_still_written_end_early_and_damaged_ones_are_refused(tmp_path):
    from tensorboardX.record_writer import masked_crc32c

    folder = tensorboard(tmp_path)
    path = next((folder / "run-0").glob("events*"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    cut = run_table.read_as_it_is(folder)
    assert len(cut) == 3
    (said,) = (note for note in cut.attrs["notes"] if "did not finish" in note)
    assert "1 run did not finish (events end within a record): run-0" in said
    length = struct.pack("<Q", 2**60)
    path.write_bytes(whole + length + struct.pack("<I", masked_crc32c(length)))
    assert any("events end within a record" in note for note in run_table.read_as_it_is(folder).attrs["notes"])
    path.write_bytes(whole.replace(struct.pack("<f", 3.8), struct.pack("<f", 3.9)))
    with pytest.raises(UserError, match="is damaged before byte"):
        run_table.read_as_it_is(folder)


def test_numbers_of_tensorflow_are_read_from_their_tensors():
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto.summary_pb2 import Summary
    from tensorboardX.proto.tensor_pb2 import TensorProto

    from moejax.run_sources.tensorboard import _number

    for tensor in (TensorProto(dtype=1, float_val=[2.5]), TensorProto(dtype=2, tensor_content=struct.pack("<d", 2.5))):
        assert _number(Summary.Value(tag="loss", tensor=tensor)) == 2.5
    assert _number(Summary.Value(tag="loss", tensor=TensorProto(dtype=2, tensor_content=b"short"))) is None


def wandb_file(path, records, block=wandb.BLOCK):
    """A file as W&B writes it: records in parts that no block's end cuts."""
    content = wandb.HEADER
    for record in records:
        first = True
        while first or record:
            room = block - len(content) % block
            if room < 7:
                content += bytes(room)
                continue
            part, record = record[: room - 7], record[room - 7 :]
            kind = {(True, True): 1, (True, False): 2, (False, False): 3, (False, True): 4}[(first, not record)]
            content += struct.pack("<IHB", zlib.crc32(bytes([kind]) + part), len(part), kind) + part
            first = False
    path.write_bytes(content)
    return path


def test_records_of_wandb_are_read_across_blocks_up_to_where_a_run_was_killed(tmp_path):
    records = [b"a" * 10, b"b" * 100_000, b"", b"c" * (wandb.BLOCK - 7)]
    path = wandb_file(tmp_path / "run-1.wandb", records)
    assert list(wandb._records(path)) == records
    path.write_bytes(path.read_bytes()[:-1])
    assert list(wandb._records(path)) == records[:-1]
    path.write_bytes(path.read_bytes().replace(b"bb", b"bc", 1))
    with pytest.raises(UserError, match="is damaged at byte"):
        list(wandb._records(path))


def test_a_database_that_is_not_mlflows_is_refused_and_left_as_it_is(tmp_path):
    path = tmp_path / "mine.db"
    with sqlite3.connect(path) as store:
        store.execute("create table mine (x integer)")
    store.close()
    before = path.read_bytes()
    with pytest.raises(UserError, match=r"is no database of MLflow's.*no such table"):
        run_table.read(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["mine.db"]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("mlruns#swep", "has no experiment swep; did you mean sweep"),
        (".", "has runs of MLflow and TensorBoard; say which are meant: mlflow:"),
        ("empty", "is a folder without runs"),
        ("mlflow:nothing", "There is no MLflow store at nothing"),
        ("tensorboard:empty", "has no events of TensorBoard"),
        ("wandb:empty", r"has no runs of Weights & Biases|needs? wandb"),
        ("hf:empty", "cannot be read|need datasets"),
        ("mlflow:http://127.0.0.1:9", "No MLflow server answers at"),
    ],
)
def test_what_cannot_be_read_is_named(given, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files(tmp_path / "mlruns")
    (tmp_path / "empty").mkdir()
    (tmp_path / "tb").mkdir()
    (tmp_path / "tb/events.out.tfevents.1").touch()
    with pytest.raises(UserError, match=sentence):
        run_table.read(source(given))


def test_the_folder_of_a_study_is_its_run_table(tmp_path):
    (tmp_path / "tb").mkdir()
    (tmp_path / "tb/events.out.tfevents.1").touch()
    run_table.write([{"loss": 3.0, "tokens": 1e6}], tmp_path / "runs.parquet")
    assert list(run_table.read(tmp_path)["loss"]) == [3.0]


def test_a_condition_after_a_source_leaves_its_address_whole():
    assert with_condition("mlflow:http://host:5000#a:seed==1") == ("mlflow:http://host:5000#a", "seed==1")
    assert with_condition("wandb:me/moe") == ("wandb:me/moe", "")
    assert with_condition("runs.csv:num_experts>0") == (source("runs.csv"), "num_experts>0")
