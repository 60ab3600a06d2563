"""Trainings that fail on this machine: a sentence that names their log, and no traceback of the study's own."""

import subprocess
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest

from moejax.__main__ import main
from moejax.errors import ChildError, UserError
from moejax.study import executor
from moejax.study.executor import Task, train_all


@pytest.fixture
def fails(monkeypatch):
    """Trainings that end with a status, and print something or nothing."""

    def use(status, text=""):
        def process(task, core):
            with executor.log_file(task).open("ab") as log:
                return subprocess.Popen([sys.executable, "-c", f"print({text!r}); exit({status})"], stdout=log)

        monkeypatch.setattr(executor, "_process", process)

    return use


@pytest.fixture
def task(tmp_path):
    (tmp_path / "models").mkdir()
    return Task(training=cast(Any, SimpleNamespace(name="small")), study=tmp_path)


def run(task):
    train_all(executor.LocalExecutor(1), [task], lambda: (0.0, ""), lambda share, text: None)


@pytest.mark.parametrize(("status", "error"), [(2, UserError), (1, ChildError), (-9, ChildError)])
def test_a_training_that_fails_is_named_with_its_log(fails, task, status, error):
    fails(status if status > 0 else "__import__('os').kill(__import__('os').getpid(), 9)", "ValueError: no such thing")
    with pytest.raises(error, match=r"1 of 1 training runs failed: small ended with .*\(see .*small\.log\)\."):
        run(task)


def test_a_training_that_finds_no_room_for_a_word_is_the_disks_fault(fails, task, monkeypatch):
    fails(1)
    monkeypatch.setattr(executor.shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
    with pytest.raises(UserError, match=r"it printed nothing .* The disk of .*small is full; free space"):
        run(task)


def test_a_study_whose_training_failed_ends_with_a_sentence(config_file, tmp_path, monkeypatch, capsys):
    def failed(*_, **__):
        raise ChildError("1 of 1 training runs failed: small ended with status 1: why (see small.log).")

    monkeypatch.setattr("moejax.study.run.train_study", failed)
    assert main(["study", f"--config={config_file}", "--out", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err
    assert "moejax: 1 of 1 training runs failed: small ended with status 1" in said
    assert "Traceback" not in said
