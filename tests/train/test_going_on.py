"""A training goes on with more budgets, on another mesh, after a full disk: to the numbers it would have had."""

import dataclasses
import re
import resource
import shutil
import signal
import time

import pytest
from command import assert_same_training, run, start, write_config
from interrupted import logged

from moejax.stored import write_json
from moejax.train.directory import metrics
from moejax.train.directory.checkpoint import CheckpointManager
from moejax.train.directory.manifest import finished_steps, verify
from moejax.train.directory.saved_weights import find_saved_state
from moejax.train.loop import train
from moejax.train.mesh import MeshShape
from moejax.train.stopping import Stop, Stopped


def with_recipe(training, **changes):
    return dataclasses.replace(training, recipe=dataclasses.replace(training.recipe, **changes))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Trainings by their budgets, each once."""
    found = {}

    def find(training, budgets):
        if budgets not in found:
            folder = tmp_path_factory.mktemp("whole") / "out"
            found[budgets] = (train(with_recipe(training, budgets_tokens=budgets), folder), folder)
        return found[budgets]

    return find


@pytest.fixture
def eight(training):
    return with_recipe(training, mesh=MeshShape(data=8))


@pytest.mark.slow
def test_further_budgets_cost_only_what_they_lack_and_equal_a_training_that_had_them(eight, trained, tmp_path):
    """One longer, for which the trunk grows, and one shorter, whose branch begins where no checkpoint was kept."""
    shutil.copytree(trained(eight, (4096,))[1], tmp_path / "out")
    wanted, said = (3072, 4096, 6144), []
    longer = with_recipe(eight, budgets_tokens=wanted)
    with pytest.raises(ValueError, match=r"recipe.budgets_tokens was \[4096\], is \[3072, 4096, 6144\]"):
        train(longer, tmp_path / "out")
    rows = train(longer, tmp_path / "out", accept_changes=True, log=said.append)
    expected, _ = trained(eight, wanted)
    assert [row["loss"] for row in rows] == [row["loss"] for row in expected]
    assert rows[0]["fingerprint"].startswith(f"{longer.fingerprint()}-changed-")
    # The trunk of 4096 tokens kept its steps 8 and 10, and the branch of 3072 begins at step 7.
    assert any("no checkpoint at step 7; its steps from step 0 on are repeated" in text for text in said)


class StopAfter(Stop):
    """Asks to stop after so many steps."""

    def __init__(self, steps):
        super().__init__()
        self.most = steps

    def after_step(self):
        super().after_step()
        self.number = signal.SIGTERM if self.steps == self.most else 0
        return self.number > 0


def test_steps_that_are_taken_once_more_are_saved_when_asked_to_stop(training, trained, tmp_path, monkeypatch):
    """Under a limit of time they would begin at 0 for ever."""
    one, out, said = with_recipe(training, mesh=MeshShape(data=8)), tmp_path / "out", []
    rows, whole = trained(one, one.recipe.budgets_tokens)
    shutil.copytree(whole, out)
    (out / "branch-2048.json").unlink()
    shutil.rmtree(out / "checkpoints" / "branch-2048")
    shutil.rmtree(out / "checkpoints" / "trunk" / "5")
    before, read = logged(out), []
    restore = CheckpointManager.restore
    monkeypatch.setattr(CheckpointManager, "restore", lambda self, *of: read.append(of[0]) or restore(self, *of))
    for saved in ({8, 10, 2}, {8, 10, 2, 4}):
        with pytest.raises(Stopped):
            train(one, out, stop=StopAfter(2), log=said.append)
        assert set(finished_steps(out / "checkpoints" / "trunk")) == saved
    again = train(one, out, log=said.append)
    assert [text[-38:] for text in said if "are repeated" in text] == [
        f"its steps from step {start} on are repeated." for start in (0, 2, 4)
    ]
    assert [row["loss"] for row in again] == [row["loss"] for row in rows]
    assert read == [2, 4]  # Each restart reads one checkpoint, once.
    assert logged(out) == before
    assert set(finished_steps(out / "checkpoints" / "trunk")) == {4, 5, 8, 10}
    assert verify(out).damaged == ()


@pytest.mark.slow
def test_an_unfinished_folder_whose_training_was_edited_is_refused(eight, trained, tmp_path):
    """Edited so that the file is whole: its checkpoints tell what was trained."""
    whole, out = with_recipe(eight, budgets_tokens=(4096,)), tmp_path / "out"
    shutil.copytree(trained(eight, (4096,))[1], out)
    (out / "branch-4096.json").unlink()
    edited = with_recipe(whole, optimizer=dataclasses.replace(whole.recipe.optimizer, learning_rate=5e-3))
    write_json(out / "training.json", edited.as_json())
    sentence = (
        r"was trained with settings that differ from training.json: recipe.optimizer.learning_rate was 0.01, is 0.005"
    )
    with pytest.raises(ValueError, match=sentence):
        train(edited, out)


@pytest.mark.slow
def test_a_checkpoint_that_was_copied_to_another_step_or_phase_is_damaged(eight, trained, tmp_path):
    """Whole and of this training, so that log and rows would look right."""
    whole, out = with_recipe(eight, budgets_tokens=(4096,)), tmp_path / "out"
    shutil.copytree(trained(eight, (4096,))[1], out)
    (out / "branch-4096.json").unlink()
    shutil.rmtree(out / "checkpoints" / "trunk" / "10")
    shutil.rmtree(out / "checkpoints" / "branch-4096")
    shutil.copytree(out / "checkpoints" / "trunk" / "8", out / "checkpoints" / "trunk" / "9")
    shutil.copytree(out / "checkpoints" / "trunk" / "8", out / "checkpoints" / "branch-4096" / "9")
    wrong, said = "it was saved as step 8 of trunk, and was moved or copied", []
    with pytest.raises(ValueError, match=wrong):
        find_saved_state(out)
    assert [error.endswith(wrong) for _, error in verify(out).damaged] == [True, True]
    with pytest.raises(
        ValueError, match=rf"branch-4096 cannot be restored .*{wrong}.*No earlier checkpoint can be restored"
    ):
        train(whole, out, log=said.append)
    # Nothing was moved, and nothing is trained over it.
    shutil.rmtree(out / "checkpoints" / "branch-4096")
    (row,) = train(whole, out, log=said.append)
    assert row["loss"] == trained(eight, (4096,))[0][0]["loss"]
    assert any(
        re.search(rf"step 9 in .*trunk cannot be restored .*{wrong}.*Resuming from step 8", text) for text in said
    )


@pytest.mark.slow
def test_a_training_whose_settings_are_lost_goes_on_with_those_that_are_given(eight, trained, tmp_path):
    """Its checkpoints know whether they are the same."""
    whole, out = with_recipe(eight, budgets_tokens=(4096,)), tmp_path / "out"
    expected, folder = trained(eight, (4096,))
    shutil.copytree(folder, out)
    for name in ("branch-4096.json", "training.json"):
        (out / name).unlink()
    other = with_recipe(whole, optimizer=dataclasses.replace(whole.recipe.optimizer, learning_rate=5e-3))
    with pytest.raises(ValueError, match=r"learning_rate was 0.01, is 0.005"):
        train(other, out)
    (out / "training.json").unlink()
    (row,) = train(whole, out)
    assert row["loss"] == expected[0]["loss"]


@pytest.mark.slow
def test_another_mesh_goes_on_unasked(eight, trained, tmp_path):
    shutil.copytree(trained(eight, (4096,))[1], tmp_path / "out")
    (tmp_path / "out" / "branch-4096.json").unlink()
    other = with_recipe(eight, budgets_tokens=(4096,), mesh=MeshShape(data=2, expert=2, tensor=2))
    (row,) = train(other, tmp_path / "out")
    assert row["loss"] == pytest.approx(trained(eight, (4096,))[0][0]["loss"], abs=1e-4)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="only Linux can limit the files of another process")
def test_a_full_disk_stops_a_training_cleanly_and_it_goes_on_when_there_is_room(tmp_path):
    config, cache, out = write_config(tmp_path), tmp_path / "cache", tmp_path / "out"
    assert run(cache, f"--config={config}", "--out", tmp_path / "whole").returncode == 0
    process = start(cache, f"--config={config}", "--out", out)
    while not list(out.glob("checkpoints/trunk/*/manifest-0.json")):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.005)
    # No file may grow beyond this from now on, as if the disk were full.
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (4096, 4096))
    said = process.communicate(timeout=120)[1]
    assert process.returncode == 2, said
    assert "cannot be written to" in said
    assert "Traceback" not in said, said
    with CheckpointManager(out / "checkpoints" / "trunk") as saves:
        assert saves.steps()
    # The line that met the limit is torn, and passed over.
    assert list(metrics.read(out / "metrics.jsonl"))
    assert run(cache, "--out", out).returncode == 0
    assert_same_training(out, tmp_path / "whole")
