"""A study on a real Slurm of two nodes, brought up on this machine: preempted, warned of its time limit, cancelled."""

import json
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from moejax import run_table
from moejax.__main__ import main
from moejax.storage import open_storage
from moejax.study.run import read_study, train_study, write_table
from moejax.study.status import run_statuses
from moejax.train.directory.attempts import ATTEMPTS, read_attempts
from moejax.train.directory.row import OF_THE_CLOCK

pytestmark = pytest.mark.slurm

SCRIPT = Path(__file__).parents[2] / "launch" / "slurm-single-machine.sh"
LONGER = ["--config.recipe.batch_tokens=256", "--config.recipe.budgets_tokens=1048576,2097152"]
STEPS = 300
"""That a training takes before it is stopped, of 9,000."""
PATIENCE_SECONDS = 240
CPU = ["--chip", "cpu", "--minutes", "9"]


@pytest.fixture(scope="module", autouse=True)
def slurm(tmp_path_factory):
    """Slurm's commands reach the Slurm of these tests; trainings have one device, as a user's do."""
    able = subprocess.run([SCRIPT, "check"], capture_output=True, text=True, check=False)
    if able.returncode:
        pytest.skip(able.stdout.strip())
    folder = tmp_path_factory.mktemp("slurm")
    with pytest.MonkeyPatch.context() as patch:
        try:
            up = subprocess.run([SCRIPT, "up", folder], capture_output=True, text=True, check=False, timeout=300)
            assert up.returncode == 0, up.stdout + up.stderr
            patch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
            patch.delenv("XLA_FLAGS")
            yield
        finally:
            subprocess.run([SCRIPT, "down", folder], check=True, timeout=60)


def until(condition, what):
    """Wait for something that comes about by itself, and return it."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what} did not come about in {PATIENCE_SECONDS} s"
        time.sleep(0.1)
    return found


def say(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def steps(folder, model):
    path = folder / "models" / model / "metrics.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return json.loads(lines[-1])["steps_done"] if lines else 0


def states(folder, model):
    return [attempt.state for attempt in read_attempts(folder / "models" / model)]


def job(folder, model):
    """What Slurm calls the training of a model."""
    launches = [json.loads(line)["ids"] for line in (folder / "launches.jsonl").read_text().splitlines()]
    return [ids[model] for ids in launches if model in ids][-1]


def table(folder):
    return run_table.read(folder / "runs.parquet").drop(columns=[*OF_THE_CLOCK], errors="ignore")


def alone(study, folder):
    """The same on this machine, uninterrupted."""
    train_study(study, folder, update=lambda share, text: None)
    return table(folder)


def test_a_study_that_slurm_preempts_warns_and_cancels_ends_with_the_table_of_this_machine(
    config_file, tmp_path, capsys
):
    there = tmp_path / "there"
    launch = ["launch", "slurm", f"--config={config_file}", *LONGER, "--out", str(there), *CPU, "--submit"]
    assert main(launch) == 0
    study = read_study(there)

    def goes_on(model, start):
        return len(states(there, model)) >= start and steps(there, model) > STEPS * start

    # Three trainings, two nodes. A more urgent job takes both, and Slurm queues again what it stops.
    one = until(lambda: next((model for model in study.models if goes_on(model, 1)), None), "a start")
    say("srun", "--partition=urgent", "--nodes=2", "true")
    until(lambda: goes_on(one, 2), "a restart after preemption")
    # Slurm's warning before the time limit: the training saves, and its job queues itself again.
    say("scancel", "--signal=USR2", job(there, one))
    until(lambda: goes_on(one, 3), "a restart after the warning")
    # What someone cancels saves, and stays away until the next launch, which leaves the others alone.
    cancelled = job(there, one)
    say("scancel", cancelled)
    until(lambda: cancelled not in say("squeue", "--noheader", "--array", "--format=%i").split(), "an end")
    assert states(there, one) == ["interrupted"] * 3
    assert main(launch) == 0
    assert job(there, one) != cancelled
    until(
        lambda: all(one.state == "done" for one in run_statuses(open_storage(there), study.trainings())),
        "the end of all",
    )
    assert states(there, one) == ["interrupted"] * 3 + ["done"]
    assert main(["study", "status", str(there)]) == 0
    with capsys.disabled():
        print(f"\n{capsys.readouterr().out}\n{(there / 'models' / one / ATTEMPTS).read_text()}")
    write_table(study, there)
    assert table(there).equals(alone(study, tmp_path / "here"))


def test_a_training_on_two_nodes_meets_through_slurms_variables(config_file, tmp_path):
    words = [f"--config={config_file}", "--config.recipe.budgets_tokens=32768,65536", *CPU, "--nodes", "2"]
    words += ["--setup", f"touch {tmp_path}/process-$SLURM_PROCID"]
    assert main(["launch", "slurm", *words, "--out", str(tmp_path / "two"), "--submit", "--wait"]) == 0
    two, one = table(tmp_path / "two"), alone(read_study(tmp_path / "two"), tmp_path / "one")
    assert sorted(path.name for path in tmp_path.glob("process-*")) == ["process-0", "process-1"]
    assert list(two["num_devices"].unique()) == [2]
    assert list(one["num_devices"].unique()) == [1]
    # Sums over tokens are taken in another order.
    np.testing.assert_allclose(two["loss"], one["loss"], rtol=1e-3)


def test_the_stages_of_a_study_are_launched_one_after_another_and_end_with_the_table_of_this_machine(
    staged_config_file, tmp_path, capsys
):
    there, config = tmp_path / "there", f"--config={staged_config_file}"
    launch = ["launch", "slurm", config, "--out", str(there), *CPU, "--submit", "--wait"]
    assert main(launch) == 0
    handed_over = [sorted(json.loads(line)["ids"]) for line in (there / "launches.jsonl").read_text().splitlines()]
    assert handed_over == [["wide-16", "wide-32"], ["deep-2", "deep-3"]]
    assert "stage depth: 2 models, made from width, where" in capsys.readouterr().err
    # A second launch submits nothing.
    assert main(launch) == 0
    assert "are done or submitted" in capsys.readouterr().out
    assert len((there / "launches.jsonl").read_text().splitlines()) == 2
    assert main(["study", config, "--out", str(tmp_path / "here")]) == 0
    assert table(there).equals(table(tmp_path / "here"))
