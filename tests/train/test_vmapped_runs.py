"""Vmapped runs are trainings of their own: what they are one by one, also when killed, bit for bit."""

import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest
from command import newest_states
from interrupted import Killed, lasting, logged, train_killed_at_every_log

from moejax.train.directory.attempts import DONE, read_attempts
from moejax.train.directory.checkpoint import CheckpointManager
from moejax.train.loop import train
from moejax.train.mesh import make_mesh
from moejax.train.training import VmapAxes, vmap_groups, vmapped_runs

AXES = VmapAxes(seeds=(0, 1), learning_rates=(1e-2, 3e-3))


@pytest.fixture(autouse=True)
def one_device(monkeypatch):
    """Vmapped runs are on one device, and tests see eight."""
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    monkeypatch.setattr("moejax.train.opening.make_mesh", lambda shape: make_mesh(shape, jax.devices()[:1]))


@pytest.fixture
def training(training):
    """Of one layer, and half as many checkpoints, as each is one of every run."""
    return dataclasses.replace(
        training,
        architecture=training.architecture.replace(num_layers=1),
        recipe=dataclasses.replace(training.recipe, checkpoint_tokens=2048),
    )


@pytest.fixture
def vmapped(training):
    return dataclasses.replace(training, vmap=AXES)


def with_optimizer(training, **changes):
    optimizer = dataclasses.replace(training.recipe.optimizer, **changes)
    return dataclasses.replace(training, recipe=dataclasses.replace(training.recipe, optimizer=optimizer))


def folder_of(out, run):
    return out / "runs" / run.name


def test_runs_are_all_combinations_each_named_after_its_own(vmapped):
    found = vmapped_runs(vmapped)
    assert [run.name for run in found] == [
        "small-seed0-lr0.01", "small-seed0-lr0.003", "small-seed1-lr0.01", "small-seed1-lr0.003",
    ]  # fmt: skip
    assert [(run.seed, run.recipe.optimizer.learning_rate) for run in found] == [
        (0, 1e-2), (0, 3e-3), (1, 1e-2), (1, 3e-3),
    ]  # fmt: skip
    assert not any(run.vmap for run in found)


@pytest.mark.parametrize("num_mtp_layers", [0, 1])
@pytest.mark.matrix(1)
def test_a_run_is_what_it_is_when_trained_by_itself(vmapped, trained, tmp_path, num_mtp_layers):
    architecture = vmapped.architecture.replace(num_mtp_layers=num_mtp_layers)
    vmapped = dataclasses.replace(vmapped, architecture=architecture)
    rows, folder = trained(vmapped)
    # The last, which has neither the seed nor the rate of the first.
    for number, run in list(enumerate(vmapped_runs(vmapped)))[-1:]:
        alone = train(run, tmp_path / run.name)
        for ours, theirs in zip(rows[2 * number : 2 * number + 2], alone, strict=True):
            assert ours["loss"] == pytest.approx(theirs["loss"], abs=2e-5)
            assert ours["fingerprint"] == theirs["fingerprint"]
        read, expected = logged(folder_of(folder, run)), logged(tmp_path / run.name)
        assert [line["batch_digest"] for line in read] == [line["batch_digest"] for line in expected]
        np.testing.assert_allclose([line["loss"] for line in read], [line["loss"] for line in expected], atol=1e-4)
        states, reference = newest_states(folder_of(folder, run)), newest_states(tmp_path / run.name)
        assert states.keys() == reference.keys()
        for place, array in states.items():
            np.testing.assert_allclose(array, reference[place], atol=2e-4, rtol=2e-3, err_msg=str(place))


def test_runs_differ_as_their_seeds_and_rates_do(vmapped, trained):
    rows, folder = trained(vmapped)
    assert len({row["loss"] for row in rows}) == 8
    read = [[line["batch_digest"] for line in logged(folder_of(folder, run))] for run in vmapped_runs(vmapped)]
    assert read[0] == read[1] != read[2] == read[3]


@pytest.mark.slow
def test_weight_decay_is_an_axis_and_one_order_of_data_is_read_once(training, tmp_path):
    data = dataclasses.replace(training.recipe.data, order_seed=7)
    training = dataclasses.replace(
        training,
        recipe=dataclasses.replace(training.recipe, data=data, budgets_tokens=(2048,)),
        vmap=VmapAxes(weight_decays=(0.0, 0.3)),
    )
    rows = train(training, tmp_path / "together")
    assert [row["weight_decay"] for row in rows] == [0.0, 0.3]
    for row, run in zip(rows, vmapped_runs(training), strict=True):
        assert row["loss"] == pytest.approx(train(run, tmp_path / run.name)[0]["loss"], abs=2e-5)


@pytest.mark.slow
def test_the_time_and_the_steps_of_each_run_are_accounted_for(vmapped, trained):
    _, folder = trained(vmapped)
    for run in vmapped_runs(vmapped):
        (attempt,) = read_attempts(folder_of(folder, run))
        assert (attempt.state, attempt.vmapped_runs) == (DONE, 4)
        assert attempt.reached == {"trunk": 10, "branch-2048": 8, "branch-4096": 16}
        assert all(attempt.seconds[bucket] > 0 for bucket in ("starting", "training", "evaluation", "checkpointing"))
        assert sum(attempt.seconds.values()) == pytest.approx(attempt.until - attempt.began, abs=0.1)


@pytest.mark.slow
def test_vmapped_runs_killed_at_every_log_end_the_same_bit_for_bit(vmapped, trained, tmp_path):
    rows, whole = trained(vmapped)
    folder = tmp_path / "killed"
    assert lasting(train_killed_at_every_log(vmapped, folder)) == lasting(rows)
    for run in vmapped_runs(vmapped):
        assert logged(folder_of(folder, run)) == logged(folder_of(whole, run))
        ours, theirs = newest_states(folder_of(folder, run)), newest_states(folder_of(whole, run))
        assert ours.keys() == theirs.keys()
        assert [place for place, array in ours.items() if array.tobytes() != theirs[place].tobytes()] == []


@pytest.mark.slow
def test_a_kill_between_the_saves_of_two_runs_loses_nothing(vmapped, trained, tmp_path, monkeypatch):
    rows, _ = trained(vmapped)
    save, saved = CheckpointManager.save, []

    def killed_after_five(self, step, *rest):
        if len(saved) == 5:
            self.wait()
            raise Killed
        saved.append(step)
        save(self, step, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(CheckpointManager, "save", killed_after_five)
        with pytest.raises(Killed):
            train(vmapped, tmp_path)
    # The first checkpoint of all four runs, and the next of one.
    assert saved[0] == saved[3] < saved[4]
    assert [row["loss"] for row in rows] == [row["loss"] for row in train(vmapped, tmp_path)]


@pytest.mark.slow
def test_a_run_goes_on_by_itself_from_what_was_saved_of_all(vmapped, trained, tmp_path):
    rows, whole = trained(vmapped)
    run = vmapped_runs(vmapped)[3]
    shutil.copytree(folder_of(whole, run), tmp_path / "out")
    (tmp_path / "out" / "branch-4096.json").unlink()
    (row,) = [row for row in train(run, tmp_path / "out") if row["tokens"] == 4096]
    assert row["loss"] == rows[7]["loss"]


@pytest.mark.slow
def test_a_run_that_diverges_is_left_out_and_the_others_are_what_they_are_without_it(training, tmp_path):
    good = vmapped_runs(dataclasses.replace(training, vmap=VmapAxes(seeds=(0, 1))))
    bad = dataclasses.replace(with_optimizer(training, learning_rate=1e6), name="bad")
    every = [good[0], bad, good[1]]
    folders = [tmp_path / run.name for run in every]
    first, *beside = zip(every, folders, strict=True)
    with pytest.raises(ValueError, match=r"1 of 3 runs diverged; all other runs are done. bad diverged: all steps"):
        train(*first, beside=beside, data_folder=tmp_path / "data")
    # Asked again, nothing is trained and the same is said.
    with pytest.raises(ValueError, match="1 of 3 runs diverged"):
        train(*first, beside=beside, data_folder=tmp_path / "data")
    assert not list(folders[1].glob("branch-*.json"))
    assert max(line["step"] for line in logged(folders[1])) == 6
    for run, folder in zip(good, (folders[0], folders[2]), strict=True):
        expected = train(run, tmp_path / f"{run.name}-alone", data_folder=tmp_path / "data")
        found = [json.loads(path.read_text()) for path in sorted(folder.glob("branch-*.json"))]
        assert [row["loss"] for row in found] == pytest.approx([row["loss"] for row in expected], abs=2e-5)


def test_trainings_are_packed_by_what_they_have_in_common(training):
    other = dataclasses.replace(training, name="other", architecture=training.architecture.replace(top_k=3))
    several = [
        dataclasses.replace(with_optimizer(training, learning_rate=rate), name=f"rate-{rate}")
        for rate in (1e-2, 1e-3, 1e-4)
    ]
    names = [[one.name for one in group] for group in vmap_groups([several[0], other, *several[1:]], 2)]
    assert names == [["rate-0.01", "rate-0.001"], ["other"], ["rate-0.0001"]]


@pytest.mark.parametrize(
    ("axes", "sentence"),
    [
        ({"seeds": (1, 1)}, r"vmap.seeds is \(1, 1\); each value is a run"),
        ({"seeds": (-1,)}, r"seeds\[0\] is -1; give a whole number from 0"),
        ({"learning_rates": (1e-3, 0.0)}, "learning_rate is 0.0; give a positive number"),
        ({"weight_decays": (-0.1,)}, r"weight_decays\[0\] is -0.1; give a number from 0"),
    ],
)
def test_impossible_axes_are_refused(training, tmp_path, axes, sentence):
    with pytest.raises(ValueError, match=sentence):
        train(dataclasses.replace(training, vmap=VmapAxes(**axes)), tmp_path / "out")
    assert not (tmp_path / "out" / "runs").exists()


def test_vmapped_runs_on_a_mesh_are_refused(vmapped, tmp_path, monkeypatch):
    monkeypatch.setattr(jax, "device_count", lambda: 8)
    with pytest.raises(ValueError, match="need one process and one device, but there are 1 processes with 8 devices"):
        train(vmapped, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_trainings_of_two_architectures_are_not_vmapped_together(training, tmp_path):
    other = dataclasses.replace(training, name="other", architecture=training.architecture.replace(top_k=3))
    with pytest.raises(ValueError, match=r"cannot be vmapped together: architecture.top_k was 2, is 3"):
        train(training, tmp_path / "a", beside=[(other, tmp_path / "b")])
