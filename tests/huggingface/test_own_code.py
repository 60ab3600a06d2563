"""A design that no class of transformers computes is exported with its code, and is read back to the bit."""

import ast
import json

import numpy as np
import pytest
from checkpoints import random_params, same, tensors
from family_architectures import SMALL

from moejax.errors import UserError
from moejax.huggingface.conversion import from_huggingface, plan_export, to_huggingface
from moejax.huggingface.own_code import CODE, OWN_CODE, ROUTERS
from moejax.routing import ROUTERS as KNOWN_ROUTERS
from moejax.weights.folder import load_weights, save_weights

ALIBI = SMALL["mixtral"].replace(positions="alibi")


def test_a_design_of_no_class_is_written_with_its_code_and_the_nearest_class_is_named(tmp_path):
    save_weights(tmp_path / "ours", ALIBI, random_params(ALIBI))
    done = to_huggingface(tmp_path / "ours", tmp_path / "theirs")
    assert done.family == "moejax"
    assert "mixtral cannot express positions = 'alibi' (nearest value: 'rope')" in done.remarks[0]
    assert "trust_remote_code=True" in done.remarks[0]
    assert (tmp_path / "theirs" / CODE.name).read_bytes() == CODE.read_bytes()
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    classes = {node.name for node in ast.parse(CODE.read_text()).body if isinstance(node, ast.ClassDef)}
    assert {place.partition(".")[0] for place in config["auto_map"].values()} == {CODE.stem}
    assert {place.partition(".")[2] for place in config["auto_map"].values()} <= classes


def test_the_code_imports_pytorch_and_transformers_alone():
    nodes = [node for node in ast.walk(ast.parse(CODE.read_text())) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {getattr(node, "module", None) or node.names[0].name for node in nodes}
    assert {name.partition(".")[0] for name in names} == {"__future__", "math", "types", "typing", "torch"} | {
        "transformers"
    }


def test_a_design_of_a_class_is_written_without_the_code_unless_it_is_asked_for(tmp_path):
    save_weights(tmp_path / "ours", SMALL["mixtral"], random_params(SMALL["mixtral"]))
    assert to_huggingface(tmp_path / "ours", tmp_path / "theirs").family == "mixtral"
    assert not (tmp_path / "theirs" / CODE.name).exists()
    forced = to_huggingface(tmp_path / "ours", tmp_path / "own", family="moejax")
    assert (forced.family, forced.remarks) == ("moejax", ())


@pytest.mark.parametrize("name", SMALL)
def test_every_bit_comes_back_and_stays_in_the_form_of_the_code(name, tmp_path):
    architecture = SMALL[name].replace(expert_bias=False)
    params = random_params(architecture)
    save_weights(tmp_path / "ours", architecture, params)
    to_huggingface(tmp_path / "ours", tmp_path / "theirs", family="moejax", shard_bytes=500)
    done = from_huggingface(tmp_path / "theirs", tmp_path / "back")
    assert (done.family, done.architecture) == ("moejax", architecture)
    same(load_weights(tmp_path / "back").params, params)
    to_huggingface(tmp_path / "back", tmp_path / "again")
    assert tensors(tmp_path / "again") == tensors(tmp_path / "theirs")


def test_an_expert_bias_is_part_of_the_checkpoint(tmp_path):
    architecture = SMALL["deepseek_v3"]
    bias = np.random.default_rng(0).normal(size=(3, architecture.num_experts)).astype(np.float32)
    save_weights(tmp_path / "ours", architecture, random_params(architecture), bias)
    to_huggingface(tmp_path / "ours", tmp_path / "theirs", family="moejax", dtype="bfloat16")
    from_huggingface(tmp_path / "theirs", tmp_path / "back")
    np.testing.assert_array_equal(load_weights(tmp_path / "back").expert_bias, bias)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"router": "expert_choice"}, "router 'expert_choice' lets experts choose among all tokens of a batch"),
        (
            {"router": "random"},
            "router 'random' is for debugging; only models with one of these routers can be exported: softmax_topk, ",
        ),
        ({"capacity_factor": 1.25}, "capacity_factor is 1.25, and the dropped tokens depend on the rest"),
    ],
)
def test_a_design_that_cannot_generate_token_by_token_is_refused(changes, said, tmp_path):
    refused = ALIBI.replace(**changes)
    with pytest.raises(UserError, match=said):
        plan_export(refused)
    save_weights(tmp_path / "ours", refused, random_params(refused))
    with pytest.raises(UserError, match=said):
        to_huggingface(tmp_path / "ours", tmp_path / "theirs")
    assert not (tmp_path / "theirs").exists()


def test_every_router_that_is_causal_and_learns_is_in_the_code():
    missing = set(KNOWN_ROUTERS) - set(ROUTERS) - {"expert_choice", "balanced", "random"}
    assert not missing, f"add {sorted(missing)} to MoejaxRouter and to ROUTERS in moejax/huggingface/own_code.py"
    assert set(ROUTERS) <= set(KNOWN_ROUTERS) - {"expert_choice", "balanced", "random"}


def test_a_config_with_an_unknown_field_is_refused():
    config = OWN_CODE.config(ALIBI)
    config["architecture"] = config["architecture"] | {"num_expert": 4}
    with pytest.raises(UserError, match=r"num_expert is unknown; did you mean num_experts"):
        OWN_CODE.architecture(config)
