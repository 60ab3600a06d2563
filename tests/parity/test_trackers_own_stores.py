"""Runs that the trackers' own libraries wrote are read back as they were logged."""

import pytest

from moejax import run_table

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
    for source in ("one", "hf:two#b"):
        assert run_table.read(source).to_dict("list") == rows
    with pytest.raises(ValueError, match="has the splits a, b; name one"):
        run_table.read("two")
