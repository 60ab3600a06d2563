"""A window of steps recorded by JAX's profiler."""

import dataclasses

import pytest

from moejax.__main__ import main
from moejax.train.loop import train
from moejax.train.mesh import MeshShape


@pytest.fixture
def one_phase(training):
    recipe = dataclasses.replace(training.recipe, mesh=MeshShape(data=8), budgets_tokens=(2048,))
    return dataclasses.replace(training, recipe=recipe)


@pytest.mark.slow
def test_steps_are_recorded_where_they_can_be_opened(one_phase, tmp_path):
    """Steps 4 to 6 of 8 lie on the trunk and on the branch."""
    said = []
    train(one_phase, tmp_path, profile=(4, 6), log=said.append)
    assert list(tmp_path.glob("profile/plugins/profile/*/*.xplane.pb"))
    assert list(tmp_path.glob("profile/plugins/profile/*/*.trace.json.gz"))
    *_, sentence = said
    assert f"xprof --logdir {tmp_path / 'profile'}" in sentence


@pytest.mark.slow
def test_steps_that_are_not_taken_are_said(one_phase, tmp_path):
    said = []
    train(one_phase, tmp_path, profile=(100, 105), log=said.append)
    assert said[1:] == ["None of the steps 100 to 105 was run, so there is no profile."]
    assert not (tmp_path / "profile").exists()


@pytest.mark.parametrize("steps", ["100", "5:4", "0:3", "a:b"])
def test_a_window_that_is_none_is_refused(steps, capsys):
    assert main(["train", "--profile", steps]) == 2
    assert "such as 100:105" in capsys.readouterr().err
