"""The benchmark of an accelerator keeps what it measured, whatever a case does; and a rehearsal of it measures all."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))

from accelerator_stages import machine, resume, summary  # noqa: E402
from accelerator_stages.cases import NO_TIME, is_measured, read  # noqa: E402
from accelerator_stages.processes import Limits, Runner, Stage  # noqa: E402

STAGES = """
import os, signal, time
from accelerator_stages.cases import LeftOut

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def fail():
    raise ValueError("no such kernel\\nand more")

def lack():
    raise LeftOut("tokamax is not installed")

def hang():
    time.sleep(60)

def troubled(cases):
    for name, measured in {"a": lambda: {"value": 1.5}, "dies": die, "fails": fail, "lacks": lack, "hangs": hang,
                           "b": lambda: {"value": 2.5}}.items():
        cases.measure(name, measured)

def slow(cases):
    for name in map(str, range(2000)):
        cases.measure(name, lambda: time.sleep(0.2) or {"value": 3.5})
"""


def row(run, stage, case, **values):
    return {"run": run, "stage": stage, "case": case, **values}


def test_a_table_holds_neither_a_rehearsals_times_beside_real_ones_nor_those_of_two_devices():
    rehearsal = [row(1, "packages", "missing", is_dry=True), row(1, "ceilings", "copy", gigabytes_per_second=72.0)]
    real = [row(2, "machine", "device", device="H100"), row(2, "ceilings", "copy", gigabytes_per_second=3000.0)]
    other = [row(3, "machine", "device", device="H200"), row(3, "ceilings", "add one", gigabytes_per_second=4000.0)]
    nothing = [row(4, "packages", "missing", is_dry=False)]
    no_device = [row(5, "machine", "device", device="cpu", platform="cpu")]
    assert "A rehearsal" in summary.summary(rehearsal).warnings[0]
    for rows in (rehearsal + real, real + rehearsal, rehearsal + real + no_device):
        found = summary.summary(rows, only_limits=True)
        assert [cells[2] for cells in found.tables[0].rows] == ["3,000 GB/s"]
        assert "Rows of a run that was a rehearsal are left out." in found.warnings
    assert not summary.summary(rehearsal + nothing, only_limits=True).tables
    assert summary.current(real + other) == other
    assert summary.summary(real + other).warnings == ["Rows of a run on H100 are left out."]


@pytest.mark.parametrize(
    ("kind", "tflops", "gigabytes"),
    [
        ("NVIDIA H800", 989.4, None),
        ("TPU7x", 1153.5, 3690.0),
        ("NVIDIA A100-SXM4-40GB", 312.0, 1555.0),
        ("cpu", None, None),
    ],
)
def test_limits_are_those_of_one_device_and_left_out_where_nobody_states_them(monkeypatch, kind, tflops, gigabytes):
    """A chip of Ironwood is two devices."""
    device = SimpleNamespace(device_kind=kind, platform="gpu", client=None, memory_stats=dict)
    monkeypatch.setattr(jax, "devices", lambda: [device])
    found = machine.device()
    assert (found["peak_tflops_per_second"], found["peak_gigabytes_per_second"]) == (tflops, gigabytes)
    copied = row(1, "ceilings", "copy", gigabytes_per_second=3000.0)
    (line, *_) = summary.summary([row(1, "machine", "device", **found), copied], only_limits=True).tables[0].rows
    assert line[1] == (f"{gigabytes:,.4g} GB/s stated" if gigabytes else "not known")
    assert line[3] == (3000 / gigabytes if gigabytes else None)


def test_the_process_of_a_stage_ends_with_what_started_it(tmp_path):
    """Or a case that hangs would hold the device for ever."""
    (tmp_path / "fakes.py").write_text(STAGES)
    start = (
        f"import sys; sys.path.append({str(BENCHMARKS)!r})\n"
        "from accelerator_stages.processes import Limits, Runner, Stage\n"
        "from pathlib import Path\n"
        f"stages = {{'slow': Stage('fakes:slow', 1, {{'': {{'PYTHONPATH': {str(tmp_path)!r}}}}})}}\n"
        f"program = Path({str(BENCHMARKS / 'accelerator.py')!r})\n"
        f"Runner(Path({str(tmp_path)!r}), 7, Limits(900, 900), program).stages(stages)\n"
    )
    rows = tmp_path / "rows.jsonl"
    runner = subprocess.Popen([sys.executable, "-c", start])
    while not read(rows):
        assert runner.poll() is None
        time.sleep(0.05)
    runner.kill()
    runner.wait()
    count = 0
    while len(read(rows)) != count:
        count = len(read(rows))
        assert count < 4000
        time.sleep(2)


def test_a_case_that_dies_fails_or_hangs_costs_that_case_alone(tmp_path):
    (tmp_path / "fakes.py").write_text(STAGES)
    shares = {"fakes:troubled": 50, "fakes:slow": 4, "no_such_package:main": 46}
    environment = {"": {"PYTHONPATH": f"{tmp_path}"}}
    stages = {name.rpartition(":")[2]: Stage(name, share, environment) for name, share in shares.items()}
    limits = Limits(seconds=60, silence_seconds=2, shortest_seconds=0.5)
    began = time.monotonic()
    Runner(tmp_path, 7, limits, BENCHMARKS / "accelerator.py").stages(stages)
    assert time.monotonic() - began < 60
    rows = {(row["stage"], row["case"]): row for row in read(tmp_path / "rows.jsonl") if "begun" not in row}
    troubled = {case: row for (stage, case), row in rows.items() if stage == "troubled"}
    assert [troubled["a"]["value"], troubled["b"]["value"]] == [1.5, 2.5]
    assert "SIGKILL" in troubled["dies"]["error"]
    assert troubled["fails"]["error"] == "ValueError: no such kernel"
    assert "without a new row" in troubled["hangs"]["error"]
    assert troubled["lacks"]["left_out"] == "tokamax is not installed"
    assert "no_such_package" in rows["main", "imports"]["error"]
    # What no time was left for says so.
    slow = [row for (stage, _), row in rows.items() if stage == "slow"]
    assert any(is_measured(row) for row in slow)
    assert all(is_measured(row) or row.get("left_out") or row.get("error") for row in slow)


def test_a_row_that_was_cut_off_is_none_and_a_measured_one_outlasts_a_later_failure(tmp_path):
    path = tmp_path / "rows.jsonl"
    given = [
        {"run": 1, "stage": "ceilings", "case": "copy", "gigabytes_per_second": 4.0},
        {"run": 2, "stage": "ceilings", "case": "copy", "error": "the process died"},
    ]
    others = '[1]\n{"a": 1}\n'
    path.write_text(others + "".join(json.dumps(row) + "\n" for row in given) + '{"run": 3, "sta')
    (row,) = summary.current(read(path))
    assert row == given[0]
    assert "4 GB/s" in summary.summary([row]).tables[0].cells()[0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--out", "mine"], "mine contains files but no rows of this benchmark"),
        (["--join", "mine"], "mine has no rows.jsonl with rows"),
        (["--only", ",,"], "--only contains no stage"),
        (["--minutes", "nan"], "give a positive number"),
    ],
)
def test_a_mistake_is_said_and_a_users_table_stays(tmp_path, words, said):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "table.md").write_text("mine")
    ended = subprocess.run(
        [sys.executable, BENCHMARKS / "accelerator.py", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert said in ended.stderr
    assert (tmp_path / "mine" / "table.md").read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 1


def test_checks_that_were_not_reached_are_not_all_right():
    right = {"run": 1, "stage": "correctness", "case": "a", "is_right": True, "error_ratio": 0.0, "limit": 1.0}
    no_kernel = {"run": 1, "stage": "correctness", "case": "b", "left_out": "the kernel does not take these arguments"}
    (table,) = summary.summary([right, no_kernel], only_limits=True).tables
    assert table.rows[0][:3] == ("checks", "1 that can be made", "1 right")
    assert table.rows[0][-1] == "yes"
    no_time = {"run": 1, "stage": "correctness", "case": "c", "left_out": NO_TIME}
    (table,) = summary.summary([right, no_kernel, no_time], only_limits=True).tables
    assert table.rows[0][:3] == ("checks", "2 that can be made", "1 right")
    assert table.rows[0][-1] == "no"


def test_without_flags_a_training_is_started_with_none(tmp_path, monkeypatch):
    """XLA takes a blank for the name of a file, and ends the process."""
    started = []
    monkeypatch.setattr(resume.subprocess, "Popen", lambda command, env: started.append(env["XLA_FLAGS"]))
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    resume._train(tmp_path / "config.py", tmp_path / "out", "")
    resume._train(tmp_path / "config.py", tmp_path / "out", resume.DETERMINISTIC)
    assert started == ["", resume.DETERMINISTIC]


@pytest.mark.slow
def test_a_check_finds_a_backend_that_is_wrong(monkeypatch):
    from accelerator_stages import correctness

    from moejax.kernels.grouped_matmul import REFERENCE

    def empty_groups_hold_something(x, dy, sizes):
        return jnp.where(sizes[:, None, None] == 0, 1.0, REFERENCE.matrices_gradient(x, dy, sizes))

    def nobodys_rows_leak(x, dy, sizes):
        return REFERENCE.matrices_gradient(x, dy, sizes) + 0 * dy.sum()

    def a_row_is_lost(x, matrices, sizes):
        return REFERENCE.forward(x, matrices, sizes).at[7].set(0)

    checks = correctness.Checks(is_dry=True, seed=0)
    assert checks.grouped("reference", "half are empty")["is_right"]
    for wrong in (
        REFERENCE._replace(matrices_gradient=empty_groups_hold_something),
        REFERENCE._replace(matrices_gradient=nobodys_rows_leak),
        REFERENCE._replace(forward=a_row_is_lost),
    ):
        monkeypatch.setattr(correctness, "load", lambda operation, name, wrong=wrong: wrong)
        assert not checks.grouped("reference", "half are empty")["is_right"]


@pytest.mark.slow
def test_a_rehearsal_measures_every_stage_and_every_program_has_its_table(tmp_path):
    command = [sys.executable, str(BENCHMARKS / "accelerator.py"), "--dry", "--out", str(tmp_path)]
    # Without the fake devices of this process.
    plain = {**os.environ, "XLA_FLAGS": ""}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=plain)
    assert done.returncode == 0, done.stdout + done.stderr + (tmp_path / "log.txt").read_text()
    rows = summary.current(read(tmp_path / "rows.jsonl"))
    measured = {row["stage"] for row in rows if is_measured(row)}
    unmeasured = {row["stage"] for row in rows if not is_measured(row)} - measured
    # Hugging Face's side needs PyTorch.
    assert unmeasured <= {"hugging_face"}
    assert all(row["is_right"] for row in rows if "is_right" in row)
    assert (tmp_path / "table.md").read_text().count("| ") > 100
