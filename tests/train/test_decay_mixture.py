"""A mixture for the decay: the trunk is as it was, branches resume bit for bit, and rows tell what was read."""

import dataclasses
import json

import numpy as np
import pytest
from few_documents import Few
from interrupted import Killed, lasting, logged, on_one_device

from moejax.config import build
from moejax.data.config import WeightedSource
from moejax.data.sources import NAMED
from moejax.train.loop import train
from moejax.train.training import Training

NAMES_ITSELF = ("config", "fingerprint")
"""Columns that say what was asked for."""


@pytest.fixture(autouse=True)
def fine_files(monkeypatch):
    """The corpus named ``fine``: other text than ``few``."""
    monkeypatch.setitem(NAMED, "fine", lambda reading: [Few("Of the {0}th kind there is no word in any book.\n")])


@pytest.fixture
def annealed(training):
    """The training, on two sets, of which the trunk reads the first."""
    parts = (
        WeightedSource(name="web", source="few", weight=1.0),
        WeightedSource(name="fine", source="fine", weight=0.0),
    )

    def make(**decay):
        data = dataclasses.replace(training.recipe.data, source="", mixture=parts, decay_mixture=decay)
        recipe = dataclasses.replace(training.recipe, data=data, log_every_steps=1)
        architecture = training.architecture.replace(num_layers=1)
        return on_one_device(dataclasses.replace(training, architecture=architecture, recipe=recipe))

    return make


def digests(folder, trunk):
    """What each step read, of the trunk or of the branches."""
    lines = [line for line in logged(folder) if (line["phase"] == "trunk") == trunk]
    return {(line["phase"], line["step"]): line["batch_digest"] for line in lines}


def test_branches_alone_read_the_mixture_of_the_decay(annealed, trained):
    plain, of_plain = trained(annealed())
    rows, folder = trained(annealed(web=1.0, fine=2.0))
    # The trunk, every number of it.
    assert [line for line in logged(folder) if line["phase"] == "trunk"] == [
        line for line in logged(of_plain) if line["phase"] == "trunk"
    ]
    before, after = digests(of_plain, trunk=False), digests(folder, trunk=False)
    assert before.keys() == after.keys()
    assert not set(before.values()) & set(after.values())
    for row, one in zip(rows, plain, strict=True):
        assert row["loss_fine"] < one["loss_fine"] - 0.05
        assert row["loss"] == row["loss_web"] > one["loss"] == one["loss_web"]
        assert "share_fine" not in row
        # A row is 32 tokens; two of three in the decay are no longer of the first set.
        assert row["epochs_web"] / one["epochs_web"] == pytest.approx(
            1 - 2 / 3 * row["decay_tokens"] / row["tokens"], abs=32 / row["tokens"]
        )
        assert "epochs_fine" not in one
        assert row["unique_tokens"] > one["unique_tokens"]
        assert build(Training, json.loads(row["config"])) == annealed(web=1.0, fine=2.0)
        assert row["fingerprint"] != one["fingerprint"]
    assert rows[0]["epochs_fine"] / rows[0]["decay_tokens"] == pytest.approx(
        rows[1]["epochs_fine"] / rows[1]["decay_tokens"], rel=0.1
    )


def test_the_trunks_own_mixture_named_for_the_decay_gives_the_same_numbers(annealed, trained):
    plain, folder = trained(annealed())
    same, of_same = trained(annealed(web=3.0))
    assert [{k: v for k, v in row.items() if k not in NAMES_ITSELF} for row in lasting(same)] == [
        {k: v for k, v in row.items() if k not in NAMES_ITSELF} for row in lasting(plain)
    ]
    assert logged(of_same) == logged(folder)


def test_a_training_killed_within_its_branches_ends_the_same(annealed, trained, tmp_path):
    training = annealed(web=1.0, fine=2.0)
    rows, folder = trained(training)
    within = [line["steps_done"] for line in logged(folder) if line["phase"] != "trunk" and line["step"] % 4 == 2]
    assert len(within) >= 2

    def kill(steps, values):
        if values and steps in within:
            within.remove(steps)
            raise Killed

    while True:
        try:
            again = train(training, tmp_path / "out", progress=kill)
        except Killed:
            continue
        break
    assert not within
    assert lasting(again) == lasting(rows)
    assert logged(tmp_path / "out") == logged(folder)


@pytest.mark.parametrize(
    ("optimizer", "sentence"),
    [
        ({"final_share": 1.0}, "optimizer.final_share = 1 the rate never decays"),
        ({"decay_share": 1.0}, "optimizer.decay_share = 1 the rate always decays after the warm-up"),
    ],
)
def test_a_branch_without_a_decay_of_its_own_is_refused_before_anything_is_written(
    annealed, tmp_path, optimizer, sentence
):
    training = annealed(fine=1.0)
    other = dataclasses.replace(training.recipe.optimizer, **optimizer)
    recipe = dataclasses.replace(training.recipe, optimizer=other)
    with pytest.raises(ValueError, match=sentence):
        train(dataclasses.replace(training, recipe=recipe), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_without_a_mixture_for_the_decay_a_training_keeps_the_fingerprint_that_it_had(training):
    plain = training.as_json()
    assert plain["recipe"]["data"].pop("decay_mixture") == {}
    assert build(Training, plain).fingerprint() == training.fingerprint()
    assert np.isscalar(hash(training))
