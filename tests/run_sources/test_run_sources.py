"""Runs of trackers are tables: one row per run, with its settings and the last value of each metric."""

import contextlib
import itertools
import os
import sqlite3
import struct
import zlib

import pytest

from moejax import run_table
from moejax.errors import UserError
from moejax.fit.tables.read_runs import read_runs
from moejax.run_sources import wandb
from moejax.run_sources.source import _row, _table, kinds, source, with_condition
from moejax.run_sources.tracked_run import TrackedRun

RUNS = {"run-0": (1_000_000, 2e7, 3.8), "run-1": (2_000_000, 4e7, 3.6), "run-2": (4_000_000, 8e7, 3.4)}
"""Active parameters, tokens and loss by name."""


def test_a_pipe_in_a_folder_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "meta.yaml")
    with pytest.raises(UserError, match="contains no runs"):
        run_table.read_as_it_is(tmp_path)


def test_a_run_called_by_a_number_keeps_its_name():
    table = _table("x", kinds()["mlflow"], [TrackedRun(name, {"seed": "7"}, {}, {}) for name in ("1.10", "1.1")])
    assert list(table["run"]) == ["1.10", "1.1"]
    assert list(table["seed"]) == [7, 7]


def test_runs_without_an_end_are_refused(monkeypatch):
    monkeypatch.setattr("moejax.run_sources.source.MOST_RUNS", 5)
    endless = (TrackedRun(str(number), {}, {}, {}) for number in itertools.count())
    with pytest.raises(UserError, match=r"^wandb:a/b has more than 5 runs; choose one experiment or project\.$"):
        _table("wandb:a/b", kinds()["wandb"], endless)
    assert next(endless).name == "6"


def test_a_setting_beside_a_metric_of_its_name_keeps_both():
    run = TrackedRun("a", {"loss": "huber", "model": {"layers": [1, 2]}}, {"loss": 2.5}, {})
    assert _row(run) == {"run": "a", "loss": 2.5, "config.loss": "huber", "model.layers": "[1, 2]"}


def tensorboard(folder):
    pytest.importorskip("tensorboard")
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


def test_events_are_runs_of_a_law_and_an_added_run_is_seen_by_the_next_reading(tmp_path):
    folder = tensorboard(tmp_path)
    read = read_runs(folder, ("params_active", "tokens"), loss="best")
    assert sorted(read.runs.design.params_active) == [1e6, 2e6, 4e6]
    assert read.notes[0].startswith("TensorBoard: 3 runs")
    reads = run_table.source._read_once.cache_info().misses
    assert len(run_table.read_as_it_is(folder)) == 3
    assert run_table.source._read_once.cache_info().misses == reads
    (folder / "run-0").rename(folder / "renamed")
    assert "renamed" in set(run_table.read_as_it_is(folder)["run"])


@pytest.mark.parametrize("damage", ["truncated", "impossible length", "changed value"])
def test_events_are_read_up_to_a_damaged_record(damage, tmp_path):
    folder = tensorboard(tmp_path)
    from tensorboardX.record_writer import masked_crc32c

    path = next((folder / "run-0").glob("events*"))
    whole = path.read_bytes()
    length = struct.pack("<Q", 2**60)
    changed = {
        "truncated": whole[:-5],
        "impossible length": whole + length + struct.pack("<I", masked_crc32c(length)),
        "changed value": whole.replace(struct.pack("<f", 3.8), struct.pack("<f", 3.9)),
    }
    path.write_bytes(changed[damage])
    table = run_table.read_as_it_is(folder)
    assert len(table) == 3
    (note,) = (note for note in table.attrs["notes"] if "did not finish" in note)
    assert "1 run did not finish (events are incomplete): run-0" in note


def test_numbers_of_tensorflow_are_read_from_their_tensors():
    pytest.importorskip("tensorboard")
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.compat.proto.tensor_pb2 import TensorProto

    from moejax.run_sources.tensorboard import _scalar

    for tensor in (TensorProto(dtype=1, float_val=[2.5]), TensorProto(dtype=2, tensor_content=struct.pack("<d", 2.5))):
        assert _scalar(Summary.Value(tag="loss", tensor=tensor)) == 2.5
    assert _scalar(Summary.Value(tag="text", tensor=TensorProto(dtype=7, string_val=[b"adamw"]))) is None


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


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (".", "has runs of MLflow and TensorBoard; choose one: mlflow:"),
        ("empty", "contains no runs"),
        ("mlflow:nothing", "There is no MLflow store at nothing|need mlflow"),
        ("tensorboard:empty", "has no TensorBoard events|need tensorboard"),
        ("wandb:empty", r"has no Weights & Biases runs|needs? wandb"),
        ("hf:empty", "cannot be read|need datasets"),
        ("words.db", "is not a run table: its name must end in"),
        ("other.db", "is not a run table: its name must end in"),
    ],
)
def test_what_cannot_be_read_is_named(given, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mlruns").mkdir()
    (tmp_path / "mlruns/meta.yaml").write_text("artifact_location: x\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "tb").mkdir()
    (tmp_path / "tb/events.out.tfevents.1").touch()
    (tmp_path / "words.db").write_text("no database")
    with contextlib.closing(sqlite3.connect(tmp_path / "other.db")) as store:
        store.execute("create table mine (x integer)")
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
