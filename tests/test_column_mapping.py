"""A mapping saved next to a table belongs to that table, and every decision in it is named."""

import os
import re

import numpy as np
import pandas as pd
import pytest

from moejax.cli.shared import pairs
from moejax.curves.read_curves import read_curves
from moejax.errors import UserError
from moejax.experimental_design.propose import candidates_of
from moejax.fit.tables.read_runs import read_runs
from moejax.laws.dense.chinchilla import Chinchilla
from moejax.run_sources.column_mapping import save_mapping, saved_mapping

BILLIONS = 'table = "b.csv"\ntrust_units = true\n[map]\ntokens = "tokens * 1e9"\n'


@pytest.fixture
def runs(tmp_path):
    """``b.csv`` with tokens in billions, ``b.jsonl`` with plain tokens, and the mapping ``b.toml`` of the former."""
    n, d = (a.ravel() for a in np.meshgrid(np.geomspace(5e7, 7e9, 4), np.geomspace(1e9, 2e11, 4)))
    frame = pd.DataFrame({"params_active": n, "tokens": d, "loss": 1.7 + 400 / n**0.34 + 400 / d**0.28})
    frame.to_json(tmp_path / "b.jsonl", orient="records", lines=True)
    frame.assign(tokens=d / 1e9).to_csv(tmp_path / "b.csv", index=False)
    (tmp_path / "b.toml").write_text(BILLIONS)
    return tmp_path


def test_a_mapping_applies_to_its_own_table_and_a_note_says_that_another_is_read_without_it(runs):
    plain, own = read_runs(runs / "b.jsonl", Chinchilla), read_runs(runs / "b.csv", Chinchilla)
    np.testing.assert_allclose(plain.runs.design.tokens, own.runs.design.tokens)
    assert f"{runs / 'b.toml'} maps the table 'b.csv' and is not used for {runs / 'b.jsonl'}." in plain.notes
    (runs / "b.jsonl").write_text('{"loss": 2}\n')
    with pytest.raises(UserError, match=r"no column params_active.*b.toml maps the table 'b.csv' and is not used"):
        read_runs(runs / "b.jsonl", Chinchilla)
    with pytest.raises(UserError, match=r"b.toml exists and is not overwritten"):
        save_mapping(runs / "b.jsonl", {"loss": "loss"}, trust_units=False)


def test_a_saved_group_is_read_back_unless_another_is_given(runs):
    frame = pd.read_csv(runs / "b.csv").assign(run=np.arange(16), pair=np.arange(16) // 2)
    frame.rename(columns={"loss": "eval_loss"}).to_csv(runs / "g.csv", index=False)
    assert any(
        "Columns under other names: loss" in note
        for note in read_runs(runs / "g.csv", (), group="run", trust_units=True).notes
    )
    save_mapping(runs / "g.csv", {"tokens": "tokens * 1e9"}, trust_units=False, group="run")
    read = read_runs(runs / "g.csv", Chinchilla)
    assert len(set(read.runs.group)) == 16
    assert f"Columns mapped by {runs / 'g.toml'}: tokens from tokens * 1e9, groups from run." in read.notes
    assert not any("under other names" in note for note in read.notes), "the saved mapping confirms the names"
    assert len(set(read_runs(runs / "g.csv", Chinchilla, group="pair").runs.group)) == 8
    (runs / "g.toml").write_text('table = "g.csv"\ngroup = 3\n')
    with pytest.raises(UserError, match="sets group to something other than a column's name"):
        read_runs(runs / "g.csv", Chinchilla)


def test_a_mapping_that_names_no_table_is_refused_with_the_line_to_add(runs):
    (runs / "b.toml").write_text(BILLIONS.partition("\n")[2])
    with pytest.raises(UserError, match=re.escape("b.toml does not name the table that it maps. If it maps")):
        read_runs(runs / "b.csv", Chinchilla)


@pytest.mark.parametrize("by", ["b.toml", "--trust-units"])
def test_accepted_units_are_noted_with_their_origin(runs, by):
    (runs / "b.toml").write_text('table = "b.csv"\ntrust_units = true\n' if by == "b.toml" else "")
    read = read_runs(runs / "b.csv", Chinchilla, trust_units=by != "b.toml")
    (note,) = (note for note in read.notes if note.startswith("Units accepted by "))
    assert re.search(rf"{by}: tokens lie between 1 and 200, but a run has at least .*Are these billions\?", note)


def test_an_error_of_an_expression_names_the_file_that_holds_it(runs):
    (runs / "b.toml").write_text('table = "b.csv"\n[map]\nparams_active = "nope"\n')
    with pytest.raises(UserError, match=r"params_active=nope of \S*b.toml cannot be computed"):
        read_runs(runs / "b.csv", Chinchilla)
    with pytest.raises(UserError, match="params_active=no cannot be computed"):
        read_runs(runs / "b.csv", Chinchilla, mapping={"params_active": "no"})


def test_loss_curves_use_a_saved_mapping_unless_one_is_given(tmp_path):
    steps = np.arange(1, 41)
    frame = pd.DataFrame({"at": steps, "lr": 1e-3, "val": 3.0 + 1 / steps, "train_loss": 5.0})
    frame.to_csv(tmp_path / "c.csv", index=False)
    (tmp_path / "c.toml").write_text('table = "c.csv"\n[map]\nstep = "at * 2"\nloss = "val"\n')
    (curve,) = read_curves(tmp_path / "c.csv").curves
    assert list(curve.steps) == list(2 * steps)
    assert curve.loss.max() == 4.0
    given = read_curves(tmp_path / "c.csv", mapping={"step": "at"}, loss="train_loss")
    assert list(given.curves[0].steps) == list(steps)
    assert given.curves[0].loss.max() == 5.0
    assert not given.notes


def test_candidates_are_read_by_the_mapping_of_their_own_table(runs, capsys):
    candidates = candidates_of(runs / "b.csv", ("params_active", "tokens"), {}, 1e30)
    assert f"b.csv: Columns mapped by {runs / 'b.toml'}: tokens from tokens * 1e9." in capsys.readouterr().err
    np.testing.assert_allclose(candidates.design.tokens, read_runs(runs / "b.csv", Chinchilla).runs.design.tokens)
    (runs / "b.toml").unlink()
    with pytest.raises(UserError, match=r"b.csv: tokens lie between 1 and 200.*pass trust_units=True"):
        candidates_of(runs / "b.csv", ("params_active", "tokens"), {}, 1e30)
    assert len(candidates_of(runs / "b.csv", ("params_active", "tokens"), {}, 1e30, trust_units=True)) == 16


def test_a_byte_order_mark_is_no_part_of_a_mapping_and_deep_nesting_is_named(runs):
    (runs / "b.toml").write_text(BILLIONS, encoding="utf-8-sig")
    assert saved_mapping(runs / "b.csv").trust_units
    (runs / "b.toml").write_text("map = " + "[" * 100_000)
    with pytest.raises(UserError, match=r"b.toml, the mapping of .* cannot be read"):
        saved_mapping(runs / "b.csv")


def test_saving_replaces_neither_a_dangling_link_nor_a_file_written_meanwhile(runs, monkeypatch):
    (runs / "d.toml").symlink_to("nowhere")
    with pytest.raises(UserError, match=r"d.toml exists and is not overwritten"):
        save_mapping(runs / "d.csv", {"loss": "a"}, trust_units=False)
    assert os.readlink(runs / "d.toml") == "nowhere"
    link = os.link
    monkeypatch.setattr(os, "link", lambda *ends: ((runs / "c.toml").write_text("theirs"), link(*ends)))
    with pytest.raises(UserError, match=r"c.toml exists and is not overwritten"):
        save_mapping(runs / "c.csv", {"loss": "a"}, trust_units=False)
    assert (runs / "c.toml").read_text() == "theirs"
    assert {path.name for path in runs.iterdir()} == {"b.csv", "b.jsonl", "b.toml", "c.toml", "d.toml"}


def test_a_mapping_that_cannot_be_written_says_what_to_do(tmp_path):
    with pytest.raises(UserError, match=r"No such file or directory\). Leave out --save-mapping, or copy the table"):
        save_mapping(tmp_path / "nowhere" / "b.csv", {"loss": "a"}, trust_units=False)


def test_names_that_are_not_utf_8_are_refused():
    with pytest.raises(UserError, match=r"--map 'tokens=\\udcff' is not UTF-8"):
        pairs(["tokens=\udcff"], "--map")
    with pytest.raises(UserError, match="the table's name is not UTF-8"):
        save_mapping("\udcff.csv", {"loss": "a"}, trust_units=False)
