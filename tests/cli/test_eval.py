"""moejax eval without the harness; with it, tests/parity/test_harness.py."""

from moejax.__main__ import main
from moejax.wording import install_command


def test_where_the_harness_is_missing_the_extra_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("moejax.cli.commands.eval.find_spec", lambda name: None)
    assert main(["eval", str(tmp_path), "--tasks", "arc_easy"]) == 2
    assert f"need the package lm-eval; run {install_command('eval')}" in capsys.readouterr().err


def test_what_asks_for_nothing_is_a_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("moejax.cli.commands.eval.find_spec", lambda name: True)
    assert main(["eval", str(tmp_path), "--tasks", ","]) == 2
    assert "names no task" in capsys.readouterr().err
