"""``mj.train`` and ``mj.plan`` take the dictionary of a config, and answer with tables and figures."""

import copy
import json

import numpy as np
import pytest

import moejax as mj
from moejax.errors import UserError

SETTINGS = {
    "name": "small",
    "architecture": {
        "vocab_size": 257,
        "model_dim": 16,
        "num_layers": 1,
        "num_heads": 2,
        "num_kv_heads": 1,
        "head_dim": 8,
        "num_experts": 4,
        "top_k": 2,
        "expert_hidden": 8,
    },
    "recipe": {
        "budgets_tokens": [1024, 2048],
        "batch_tokens": 256,
        "data": {"sequence_length": 32, "validation_share": 0.2, "validation_tokens": 512},
        "optimizer": {"learning_rate": 1e-2, "warmup_tokens": 256},
        "log_every_steps": 2,
    },
}


@pytest.fixture
def settings(tmp_path):
    """A training of seconds on forty short files."""
    (tmp_path / "texts").mkdir()
    for number in range(40):
        (tmp_path / "texts" / f"{number}.txt").write_text(f"def f{number}(x): return x + {number}\n" * 20)
    settings = copy.deepcopy(SETTINGS)
    settings["recipe"]["data"]["source"] = str(tmp_path / "texts")
    return settings


def test_a_dictionary_is_trained_and_its_losses_are_drawn(settings, tmp_path, capsys):
    # The test's process has 8 devices, over which the default mesh spreads a batch of 8 sequences.
    trained = mj.train(settings, tmp_path / "run", data=tmp_path / "data")
    frame = trained.to_frame()
    assert list(frame["tokens"]) == [1024, 2048]
    assert list(frame["loss_nats_per_token"]) == [row["loss"] for row in trained.data]
    assert (frame["loss_nats_per_token"] < np.log(257)).all()
    drawn = mj.plot.loss(tmp_path / "run")
    assert drawn.save(tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert {row["phase"] for row in drawn.rows} == {"trunk", "branch-1024", "branch-2048"}
    assert "Compiling the step of small" in capsys.readouterr().err
    again = mj.train(settings, tmp_path / "run", data=tmp_path / "data")
    assert [row["loss"] for row in again.data] == [row["loss"] for row in trained.data]
    assert json.loads((tmp_path / "run" / "training.json").read_text())["name"] == "small"
    settings["architecture"]["model_dim"] = 32
    with pytest.raises(UserError, match=r"model_dim"):
        mj.train(settings, tmp_path / "run", data=tmp_path / "data")


def test_a_mistake_in_a_dictionary_is_named_by_its_path():
    with pytest.raises(UserError, match=r"recipe\.batch_token\b.*batch_tokens"):
        mj.train({**SETTINGS, "recipe": {"batch_token": 256}})
    with pytest.raises(UserError, match=r"No plan can be made for 'h900'"):
        mj.plan(SETTINGS, "h900:8")


def test_a_design_that_cannot_be_built_has_no_training_and_names_the_argument_to_change():
    mixture = mj.Architecture(**SETTINGS["architecture"])
    dense = mixture.replace(num_experts=0, top_k=0, expert_hidden=0, dense_hidden=32)
    decision = mj.design("effective_params", flops=1e20, hold={"expansion": 4}, like=dense)
    for wanted in (decision.training, decision.config):
        with pytest.raises(UserError, match=r"no (training|config)\. .*; give a model with experts \(`like`\)"):
            wanted()


def test_the_training_of_a_design_is_planned_and_the_plan_is_drawn():
    like = mj.Architecture(**SETTINGS["architecture"])
    decision = mj.design("chinchilla", flops=1e14, like=like)
    training = decision.training("mine")
    assert decision.built is not None
    assert mj.Architecture(**training["architecture"]) == decision.built.architecture
    training["recipe"] |= {"batch_tokens": 2**14, "mesh": {"data": 1, "fsdp": 2}}
    plan = mj.plan(training, "cpu:2")
    assert (plan.name, plan.mesh["fsdp"]) == ("mine", 2)
    assert 0 <= training["recipe"]["budgets_tokens"][0] - plan.tokens < plan.batch_tokens == 2**14
    assert plan.memory.parameters > 0
    assert plan.memory.parameters in list(plan.to_frame()["bytes"])
    assert plan.plot().rows
