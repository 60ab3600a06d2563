"""Programs that a training keeps: a restart finds them, and its numbers are those of one that compiled everything."""

import os
import re

import pytest
from command import assert_same_training, logged, run, write_config

CHOSEN = re.compile("JAX_COMPILATION_CACHE|JAX_PERSISTENT_CACHE")


@pytest.fixture
def unchosen(monkeypatch):
    """As a user has it, who has chosen no cache."""
    for name in filter(CHOSEN.match, list(os.environ)):
        monkeypatch.delenv(name)


def programs(folder):
    """Every program that is kept, and when it was written."""
    found = {path: path.stat().st_mtime_ns for path in folder.glob("programs/*/jit_*")}
    assert found
    return found


def functions(programs):
    """How many programs there are of each function of a training."""
    return {one: sum(path.name.startswith(f"jit_{one}-") for path in programs) for one in ("init", "step", "evaluate")}


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_second_start_compiles_no_function_of_the_training_and_has_the_same_numbers(tmp_path, unchosen, processes):
    config, words = write_config(tmp_path), ["--processes", processes] if processes > 1 else []
    shared = ["--programs", tmp_path / "programs"]
    for out in ("first", "second", "apart"):
        ended = run(None, f"--config={config}", "--out", tmp_path / out, *words, *([] if out == "apart" else shared))
        assert ended.returncode == 0, ended.stderr
        if out == "first":
            before = programs(tmp_path)
    assert all(functions(before).values())
    assert before.items() <= programs(tmp_path).items()
    # What compiles in less than .02 s is not kept, and may take longer the next time.
    assert functions(programs(tmp_path)) == functions(before)
    assert programs(tmp_path / "apart").keys()
    assert_same_training(tmp_path / "second", tmp_path / "first")
    assert_same_training(tmp_path / "apart", tmp_path / "first")


@pytest.mark.slow
def test_vmapped_runs_find_their_programs_and_a_damaged_one_changes_nothing(tmp_path, unchosen):
    config = write_config(tmp_path)
    rates = "--config.vmap.learning_rates=0.003,0.01"
    for out in ("first", "second"):
        ended = run(None, f"--config={config}", rates, "--out", tmp_path / out, "--programs", tmp_path / "programs")
        assert ended.returncode == 0, ended.stderr
        if out == "first":
            for path in programs(tmp_path):
                path.write_bytes(path.read_bytes()[:-50] + bytes(50))
    for first in (tmp_path / "first" / "runs").iterdir():
        assert logged(tmp_path / "second" / "runs" / first.name) == logged(first)
