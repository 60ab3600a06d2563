"""How a training stands can be read from its files alone: while it runs, when it was stopped, when it died."""

import dataclasses
import json
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
from command import environment, run, start, write_config
from interrupted import Killed, on_one_device

from moejax.__main__ import main
from moejax.folder import only_writer
from moejax.report.trainings import routing_tables
from moejax.stored import write_json
from moejax.train.directory import metrics
from moejax.train.directory.attempts import (
    COMPILING,
    DONE,
    INITIALIZING,
    INTERRUPTED,
    OPENING_DATA,
    RUNNING,
    STEPPING,
    WAITING,
    AttemptRecorder,
)
from moejax.train.directory.metrics import scalars
from moejax.train.directory.status import read_status
from moejax.train.loop import train


@pytest.fixture
def eight(training):
    return on_one_device(training)


def test_a_finished_training(eight, tmp_path):
    rows = train(eight, tmp_path)
    status = read_status(tmp_path)
    assert status.state == DONE
    assert (status.steps_done, status.total_steps) == (19, 19)
    assert (status.phase, status.step, status.tokens, status.budget_tokens) == ("branch-4096", 16, 4096, 4096)
    assert [row["loss"] for row in status.rows] == [row["loss"] for row in rows]
    assert status.last_checkpoint is not None
    assert (status.last_checkpoint["phase"], status.last_checkpoint["step"]) == ("branch-4096", 16)
    assert status.skipped_steps == 0
    assert status.goodput == pytest.approx(status.seconds["training"] / sum(status.seconds.values()))
    assert rows[-1]["goodput"] == pytest.approx(status.goodput, rel=0.5)
    assert status.memory_peak_bytes is not None
    assert rows[-1]["memory_peak_bytes"] >= status.memory_peak_bytes > 1e7
    assert status.attempts == 1
    assert status.seconds["redone"] == 0
    # Opened once more it is told what it knows, and no new attempt is counted.
    train(eight, tmp_path)
    assert read_status(tmp_path).attempts == 1


def test_a_training_whose_log_was_lost_is_as_far_as_its_newest_checkpoint(eight, tmp_path, capsys):
    train(eight, tmp_path)
    (tmp_path / "branch-4096.json").unlink()
    whole = read_status(tmp_path)
    assert not whole.metrics_missing
    log = tmp_path / "metrics.jsonl"
    log.unlink()
    status = read_status(tmp_path)
    assert status.metrics_missing
    for name in ("phase", "step", "tokens", "steps_done", "total_steps"):
        assert getattr(status, name) == getattr(whole, name)
    assert status.loss is None
    assert main(["status", str(tmp_path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "last step branch-4096, step 16: 4096 tokens of 4096" in said
    assert "steps of all phases 19 of 19" in said
    assert "metrics.jsonl has no line, although there is a checkpoint" in said


def test_a_checkpoint_between_two_logged_steps_is_the_last_step_and_no_line_is_missing(eight, tmp_path):
    train(eight, tmp_path)
    (tmp_path / "branch-4096.json").unlink()
    settings = json.loads((tmp_path / "training.json").read_text())
    settings.pop("moejax")
    settings["recipe"]["log_every_steps"] = 10
    write_json(tmp_path / "training.json", settings)
    log = tmp_path / "metrics.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(line for line in lines if json.loads(line)["step"] < 16))
    status = read_status(tmp_path)
    assert (status.phase, status.step, status.tokens, status.steps_done) == ("branch-4096", 16, 4096, 19)
    assert not status.metrics_missing
    assert status.loss is not None


def test_a_copy_of_a_phase_is_no_checkpoint_of_the_training(eight, tmp_path):
    train(eight, tmp_path)
    whole = read_status(tmp_path)
    shutil.copytree(tmp_path / "checkpoints" / "branch-4096", tmp_path / "checkpoints" / "backup")
    (tmp_path / "metrics.jsonl").unlink()
    status = read_status(tmp_path)
    assert status.last_checkpoint["phase"] == whole.last_checkpoint["phase"] == "branch-4096"


def test_every_checkpoint_is_verified_and_a_damaged_one_named(eight, tmp_path, capsys):
    train(eight, tmp_path)
    assert main(["status", str(tmp_path), "--verify"]) == 0
    said = capsys.readouterr().err
    assert "match their hashes" in said
    assert "no hash" not in said
    shutil.move(tmp_path / "checkpoints", tmp_path / "elsewhere")
    assert main(["status", str(tmp_path), "--verify"]) == 2
    assert "There is nothing to verify" in capsys.readouterr().err
    shutil.move(tmp_path / "elsewhere", tmp_path / "checkpoints")
    (part, *_) = sorted(tmp_path.glob("checkpoints/trunk/*/manifest-0.json"))
    part.unlink()
    assert main(["status", str(tmp_path), "--verify"]) == 0
    assert "files have no recorded hash" in capsys.readouterr().err
    path = max(tmp_path.glob("checkpoints/branch-4096/*/state/**/d/*"), key=lambda path: path.stat().st_size)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert main(["status", str(tmp_path), "--verify"]) == 2
    said = capsys.readouterr().err
    assert "differs from what was written" in said
    place = re.search(r"Move (\S+) away; the same command then continues from the checkpoint before it", said)[1]
    shutil.move(place, tmp_path / "aside")
    train(eight, tmp_path)
    assert main(["status", str(tmp_path), "--verify"]) == 0


@pytest.mark.slow
def test_every_layers_routing_is_logged(eight, tmp_path):
    """Megatron-LM #2398; NeMo Automodel #1232, #1506; prime-rl #789; Fast-LLM #188."""
    dense_first = dataclasses.replace(
        eight,
        architecture=eight.architecture.replace(num_dense_layers=1, dense_hidden=8, num_layers=3, num_mtp_layers=1),
    )
    train(dense_first, tmp_path)
    last = list(metrics.read(tmp_path / "metrics.jsonl"))[-1]
    layers = last["layers"]
    assert layers["layer"] == [1, 2, "mtp_1"]
    # The module's routers are no part of the model's means.
    assert last["max_violation"] == max(layers["max_violation"][:2])
    for name in ("load_cv", "load_min", "load_max", "load_entropy", "dead_experts", "dropped_share", "logit_rms"):
        assert last[name] == pytest.approx(sum(layers[name][:2]) / 2, abs=1e-6)
    assert read_status(tmp_path).layers == layers


def test_a_module_of_multi_token_prediction_is_named_wherever_layers_are_shown(tmp_path):
    layers = {"layer": [0, "mtp_1"], "load_cv": [0.25, 0.5]}
    line = {"phase": "trunk", "step": 1, "tokens": 1, "seconds": 1.0, "steps_done": 1, "loss": 1.0, "layers": layers}
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps(line) + "\n")
    (read,) = metrics.read(path)
    (table,) = routing_tables(read["layers"], "routing")
    assert table.rows == [[0, 0.25], ["mtp_1", 0.5]]
    assert {"layers/load_cv/0", "layers/load_cv/mtp_1"} <= set(scalars(read))


@pytest.mark.slow
def test_lost_work_is_found(eight, tmp_path):
    def kill(steps, values):
        if steps == 9:
            raise Killed

    with pytest.raises(Killed):
        train(eight, tmp_path, progress=kill)
    assert read_status(tmp_path).seconds["redone"] == 0
    # The checkpoint of step 8 is there, and step 9 was logged.
    train(eight, tmp_path)
    status = read_status(tmp_path)
    assert status.seconds["redone"] > 0
    assert status.attempts == 2


def test_states_by_lock_and_last_word(tmp_path, training):
    with pytest.raises(ValueError, match=r"does not exist\. A training run writes its settings"):
        read_status(tmp_path / "new")
    (tmp_path / ".lock").touch()
    with pytest.raises(ValueError, match=r"is empty\. A training run writes its settings"):
        read_status(tmp_path)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ValueError, match="is not the folder of a training run"):
        read_status(tmp_path)
    write_json(tmp_path / "training.json", training.as_json())
    assert read_status(tmp_path).state == WAITING
    with only_writer(tmp_path):
        assert read_status(tmp_path).state == RUNNING
    attempt = {"began": 1.0, "until": 2.0}
    write_json(tmp_path / "attempts.json", [attempt])
    status = read_status(tmp_path)
    assert (status.state, status.why.partition(";")[0]) == (INTERRUPTED, "its process ended without a record")
    last = {**attempt, "state": INTERRUPTED, "why": "stopped by SIGTERM"}
    write_json(tmp_path / "attempts.json", [attempt, last])
    status = read_status(tmp_path)
    assert (status.state, status.why) == (INTERRUPTED, "stopped by SIGTERM")
    write_json(tmp_path / "attempts.json", [{**attempt, "state": DONE}])
    status = read_status(tmp_path)
    assert (status.state, status.why.partition(";")[0]) == (INTERRUPTED, "done, but branch-2048.json is missing")


@pytest.mark.parametrize(
    ("activity", "reached", "running", "ended"),
    [
        (OPENING_DATA, {}, "opening data", "while opening data, before its first step"),
        (COMPILING, {}, "compiling", "while compiling, before its first step"),
        (COMPILING, {"trunk": 10}, "compiling", "while compiling"),
        (STEPPING, {}, "before its first logged step", "before its first logged step"),
        (STEPPING, {"trunk": 3}, "", "without a record"),
    ],
)
def test_the_state_says_how_far_a_training_came_before_its_first_step(
    tmp_path, training, capsys, activity, reached, running, ended
):
    write_json(tmp_path / "training.json", training.as_json())
    attempt = {"began": 1.0, "until": 2.0, "activity": activity, "reached": reached}
    write_json(tmp_path / "attempts.json", [attempt])
    with only_writer(tmp_path):
        assert read_status(tmp_path).activity == running
        assert main(["status", str(tmp_path)]) == 0
    assert re.search(f"state +running{f', {running}' if running else ''} *\n", capsys.readouterr().out)
    status = read_status(tmp_path)
    assert (status.state, status.activity) == (INTERRUPTED, "")
    assert status.why == f"its process ended {ended}; run the same command again to resume"
    write_json(tmp_path / "attempts.json", [{**attempt, "state": INTERRUPTED}])
    with only_writer(tmp_path):
        assert read_status(tmp_path).activity == "starting"


def test_a_training_records_what_it_does_before_its_first_step(eight, tmp_path, monkeypatch):
    seen = []
    begin = AttemptRecorder.begin

    def look(self, activity):
        seen.append(read_status(tmp_path).activity)
        begin(self, activity)
        seen.append(read_status(tmp_path).activity)

    monkeypatch.setattr(AttemptRecorder, "begin", look)
    train(eight, tmp_path)
    assert seen[:5] == [OPENING_DATA, INITIALIZING, INITIALIZING, COMPILING, COMPILING]
    assert seen[5] == "before its first logged step"


def test_the_time_left_is_the_steps_left_at_the_present_speed(tmp_path, training):
    write_json(tmp_path / "training.json", training.as_json())
    phases = {"trunk": 10, "branch-2048": 3, "branch-4096": 6}
    write_json(tmp_path / "attempts.json", [{"began": 1.0, "until": 2.0, "phases": phases}])
    log = metrics.MetricsLog(tmp_path / "metrics.jsonl")
    # The first steps were slow; ten lines before the last it went on at 2 s a step.
    for line in range(1, 13):
        seconds = 100.0 if line == 1 else 200 + 2.0 * line
        log.write("trunk", line, {"tokens": 256 * line, "steps_done": line, "seconds": seconds, "loss": float("nan")})
    with only_writer(tmp_path):
        status = read_status(tmp_path)
    assert status.eta_seconds == pytest.approx((19 - 12) * 2.0)
    assert status.tokens_per_second == pytest.approx(128)
    assert read_status(tmp_path).eta_seconds is None


LINE = {"phase": "trunk", "step": 2, "tokens": 512, "steps_done": 2, "seconds": 2.0, "loss": 3.0}
LAYERS = {"layer": [0, 1], "load_cv": [0.1, "nan"]}


@pytest.mark.parametrize(
    "changed",
    [
        {"phase": "weird"},
        {"phase": "branch-x"},
        {"phase": "branch-" + "9" * 5_000},
        {"step": 10**30},
        {"tokens": 10**400},
        {"seconds": float("inf")},
        {"loss": "much"},
        {"loss": float("nan")},
        {"validation_loss": "x"},
        {"validation_loss": None},
        {"skipped_steps": "nan"},
        {"skipped_steps": True},
        {"mfu": "x"},
        {"tokens_per_second": []},
        {"memory_bytes": "x"},
        {"memory_peak_bytes": "x"},
        {"layers": 3},
        {"layers": {"load_cv": [0.1, 0.2]}},
        {"layers": {**LAYERS, "load_cv": [1]}},
        {"layers": {**LAYERS, "load_cv": ["?", 2]}},
    ],
    ids=lambda changed: str(changed)[:40],
)
def test_a_line_of_the_log_with_something_else_in_it_is_damaged_and_named(changed, tmp_path, training, capsys):
    write_json(tmp_path / "training.json", training.as_json())
    lines = [{**LINE, "step": 1}, {**LINE, **changed}]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert main(["status", str(tmp_path), "--layers"]) == 2
    assert "1 invalid log lines" in capsys.readouterr().err


def test_whatever_a_training_logs_is_shown(tmp_path, training, capsys):
    write_json(tmp_path / "training.json", training.as_json())
    values = dict.fromkeys(("loss", "validation_loss", "mfu", "tokens_per_second"), float("nan"))
    values |= {"tokens": 512, "steps_done": 2, "seconds": 2.0, "skipped_steps": 0.0, "layers": LAYERS}
    log = metrics.MetricsLog(tmp_path / "metrics.jsonl")
    # A step that stands there twice gives no speed.
    log.write("branch-4096", 2, values)
    log.write("branch-4096", 2, {**values, "seconds": 3.0, "loss": float("-inf")})
    assert main(["status", str(tmp_path), "--layers"]) == 0
    assert "nan nats/token" in capsys.readouterr().out
    assert main(["status", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["loss"] is None


def test_names_and_reasons_are_shown_as_they_stand(tmp_path, training, capsys):
    why = "[/b] [red]it ended[/red] \x1b[2J"
    (tmp_path / "models" / "a").mkdir(parents=True)
    write_json(tmp_path / "models" / "a" / "training.json", {**training.as_json(), "name": "[/a]"})
    write_json(
        tmp_path / "models" / "a" / "attempts.json", [{"began": 1.0, "until": 2.0, "state": "failed", "why": why}]
    )
    for folder in (tmp_path / "models" / "a", tmp_path):
        assert main(["status", str(folder)]) == 0
        said = capsys.readouterr().out
        assert "[/a]" in said
        assert r"[/b] [red]it ended[/red] \x1b[2J" in said
        write_json(tmp_path / "study.json", {})


def test_a_row_that_stands_in_anothers_place_is_refused(tmp_path, training):
    write_json(tmp_path / "training.json", training.as_json())
    row = {"model": training.name, "tokens": 4_096, "loss": 3.0, "fingerprint": ""}
    write_json(tmp_path / "branch-4096.json", row)
    assert [row["tokens"] for row in read_status(tmp_path).rows] == [4_096]
    for wrong in ({"model": "other"}, {"tokens": 2_048}):
        write_json(tmp_path / "branch-4096.json", {**row, **wrong})
        with pytest.raises(ValueError, match=r"branch-4096\.json holds the row of .* instead of"):
            read_status(tmp_path)


def test_an_empty_study_has_nothing_to_verify_and_is_named(tmp_path, capsys):
    write_json(tmp_path / "study.json", {})
    assert main(["status", str(tmp_path), "--verify"]) == 2
    assert f"There is nothing to verify: {tmp_path} holds no checkpoint." in capsys.readouterr().err


@pytest.mark.parametrize("width", [10, 5_000])
def test_the_end_of_a_log_is_read_from_its_end(tmp_path, width):
    path = tmp_path / "metrics.jsonl"
    assert metrics.last_lines(path, 2) == []
    known = {"phase": "trunk", "tokens": 1, "seconds": 1.0, "steps_done": 1, "loss": 2.0}
    lines = [{**known, "step": step, "x" * width: 1.0} for step in range(30)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"torn')
    assert metrics.last_lines(path, 1) == lines[-1:]
    assert metrics.last_lines(path, 4) == lines[-4:]
    assert metrics.last_lines(path, 100) == lines


@pytest.mark.slow
def test_the_command_tells_of_a_running_a_killed_and_a_finished_one(tmp_path, capsys):
    config, cache, out = write_config(tmp_path), tmp_path / "cache", tmp_path / "out"
    process = start(cache, f"--config={config}", "--out", out)
    try:
        while len(metrics.last_lines(out / "metrics.jsonl", 5)) < 5:
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.02)
        process.send_signal(signal.SIGSTOP)
        assert main(["status", str(out), "--json"]) == 0
    finally:
        process.kill()
        process.communicate()
    found = json.loads(capsys.readouterr().out)
    assert found["state"] == "running"
    assert found["loss"] > 0
    assert found["total_steps"] == 38
    assert main(["status", str(out)]) == 0
    assert "interrupted: its process ended without a record" in " ".join(capsys.readouterr().out.split())
    process = run(cache, "--out", out)
    assert process.returncode == 0, process.stderr
    assert "goodput: " in process.stdout
    assert "routing of the last logged batch, by layer" in process.stdout
    assert main(["status", str(out), "--layers"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "state done" in said
    assert "2 times" in said
    assert "load CV max vio" in said


def test_a_study_is_a_table_of_its_models(tmp_path, training, capsys):
    (tmp_path / "study.json").write_text("{}")
    for name in ("a", "b"):
        folder = tmp_path / "models" / name
        folder.mkdir(parents=True)
        write_json(folder / "training.json", {**training.as_json(), "name": name})
    assert main(["status", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("waiting") == 2
    assert main(["status", str(tmp_path), "--json"]) == 0
    assert [one["name"] for one in json.loads(capsys.readouterr().out)] == ["a", "b"]


def test_vmapped_runs_are_a_table_of_runs(tmp_path, training, capsys):
    write_json(tmp_path / "training.json", {**training.as_json(), "vmap": {"seeds": [0, 1]}})
    for name in ("seed-0", "seed-1"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        write_json(tmp_path / "runs" / name / "training.json", {**training.as_json(), "name": name})
    assert main(["status", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert printed.count("waiting") == 2
    assert "seed-1" in printed


def test_the_last_validation_loss_is_shown_with_its_phase_and_sources(tmp_path, training, capsys):
    recipe = dataclasses.replace(training.recipe, evaluate_tokens=512)
    write_json(tmp_path / "training.json", dataclasses.replace(training, recipe=recipe).as_json())
    line = {"step": 1, "tokens": 256, "seconds": 1.0, "steps_done": 1, "loss": 5.0}
    measured = {"validation_loss": 2.9, "validation_loss_web": 2.5, "validation_loss_code": 3.1}
    later = [{**line, "phase": "trunk", "step": step} for step in range(2, 40)]
    lines = [{**line, "phase": "branch-2048", **measured}, *later]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    last = {"phase": "branch-2048", "step": 1, "loss": 2.9, "sources": {"web": 2.5, "code": 3.1}}
    assert read_status(tmp_path).last_validation == last
    assert main(["status", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert re.search(r"last step +trunk, step 39:", said)
    assert "2.9000 nats/token (web 2.5000, code 3.1000) at branch-2048, step 1" in said


def test_it_needs_no_jax(tmp_path, training):
    write_json(tmp_path / "training.json", training.as_json())
    code = "import sys; from moejax.__main__ import main; main(sys.argv[1:]); sys.exit('jax' in sys.modules)"
    words = [sys.executable, "-c", code, "status", str(tmp_path)]
    subprocess.run(words, env=environment(tmp_path), capture_output=True, check=True)
