"""``moejax count``."""

import json

import pytest
from small_model import SMALL

from moejax.__main__ import main
from moejax.cli.commands import count
from moejax.cli.commands.predict import PredictCommand
from moejax.cli.config_file import load_architecture
from moejax.laws.accounting import flops_per_token, params
from moejax.laws.catalogue import CATALOGUE

CONFIG = """
from ml_collections import ConfigDict

def get_config(width="64"):
    return ConfigDict({"architecture": {
        "vocab_size": 1000, "model_dim": int(width), "num_layers": 2, "num_heads": 4, "num_kv_heads": 2,
        "head_dim": 16, "num_experts": 8, "top_k": 2, "expert_hidden": 32,
    }, "seed": 0})
"""


def run(*arguments: str) -> int:
    return main(["count", *arguments])


def test_the_example_in_the_help_runs(capsys):
    assert run(*count.EXAMPLE.split()[2:]) == 0
    printed = capsys.readouterr().out
    assert "routed experts idle" in printed
    assert "671B" in printed


def test_modules_of_multi_token_prediction_are_told_beside_the_models_parameters(tmp_path, capsys):
    path = tmp_path / "ahead.py"
    path.write_text(CONFIG.replace('"top_k": 2,', '"top_k": 2, "num_mtp_layers": 1,'))
    assert run("--config", str(path), "--json") == 0
    ahead = json.loads(capsys.readouterr().out)
    path.write_text(CONFIG)
    assert run("--config", str(path), "--json") == 0
    alone = json.loads(capsys.readouterr().out)
    assert ahead["params"] == alone["params"]
    assert alone["params_mtp"] == 0 < ahead["params_mtp_active"] < ahead["params_mtp"]
    assert ahead["params_mtp"] == sum(ahead["mtp_params"].values())
    more = ahead["flops_per_token_training"] - alone["flops_per_token_training"]
    assert more > 3 * 2 * 1000 * 64
    assert ahead["bytes"]["adamw_float32"] == 16 * (ahead["params_total"] + ahead["params_mtp"])


def test_json_is_exact_and_its_parts_add_up(capsys):
    assert run("--arch", "qwen3-30b-a3b", "--json") == 0
    counts = json.loads(capsys.readouterr().out)
    expected = params(CATALOGUE["qwen3-30b-a3b"].architecture)
    assert counts["params_total"] == sum(counts["params"].values()) == expected.total
    assert counts["params_active"] == expected.active
    assert counts["flops_per_token_training"] == 3 * sum(counts["flops_per_token_forward"].values())


def test_sequence_lengths_are_written_as_people_write_them(capsys):
    run("--arch", "mixtral-8x7b", "--sequence-length", "4.096K", "--json")
    assert json.loads(capsys.readouterr().out)["sequence_length"] == 4096


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_published_model_can_be_printed(name, capsys):
    assert run("--arch", name) == 0
    assert "Published" in capsys.readouterr().out


def test_a_config_file_is_counted_and_takes_an_argument(tmp_path, capsys):
    file = tmp_path / "small.py"
    file.write_text(CONFIG)
    for given, width in ((str(file), 64), (f"{file}:128", 128)):
        assert run("--config", given, "--json") == 0
        architecture = SMALL.replace(
            vocab_size=1000, model_dim=width, num_heads=4, num_kv_heads=2, head_dim=16, num_experts=8, expert_hidden=32
        )
        assert json.loads(capsys.readouterr().out)["params_total"] == params(architecture).total


def test_an_architecture_that_cannot_be_trained_is_counted_and_said_so(tmp_path, capsys):
    file = tmp_path / "small.py"
    file.write_text(CONFIG)
    assert run("--config", str(file), "--config.architecture.top_k=1", "--json") == 0
    captured = capsys.readouterr()
    assert f"({file}) cannot be trained: top_k is 1" in captured.err
    assert json.loads(captured.out)["params_total"] > 0


def test_a_config_without_an_architecture_is_named(tmp_path, capsys):
    file = tmp_path / "other.py"
    file.write_text("from ml_collections import ConfigDict\ndef get_config():\n    return ConfigDict({'seed': 0})\n")
    assert run("--config", str(file)) == 2
    assert "no `architecture`" in capsys.readouterr().err


def test_effective_parameters_are_those_of_the_dense_model_with_the_same_loss(capsys):
    assert run("--arch", "deepseek-v3.1", "--json") == 0
    counts = json.loads(capsys.readouterr().out)
    assert main(["predict", "--law", "effective_params", "--arch", "deepseek-v3.1", "--tokens", "14.8T", "--json"]) == 0
    (mixture,) = json.loads(capsys.readouterr().out)["predictions"]
    assert mixture["params_effective"] == counts["params_effective"]["chapter-002"]
    size = str(mixture["params_effective"])
    dense = ["--params-active", size, "--params-total", size, "--tokens", "14.8T", "--json"]
    assert main(["predict", "--law", "effective_params", *dense]) == 0
    (twin,) = json.loads(capsys.readouterr().out)["predictions"]
    assert twin["values"]["loss"] == pytest.approx(mixture["values"]["loss"], rel=1e-9)
    assert twin["params_effective"] == pytest.approx(mixture["params_effective"], rel=1e-9)


def test_the_sequence_length_is_the_configs_unless_one_is_given(tmp_path, capsys):
    file = tmp_path / "small.py"
    recipe = '"recipe": {"budgets_tokens": [4096], "batch_tokens": 1024, "data": {"sequence_length": 512}}'
    file.write_text(CONFIG.replace('"seed": 0', recipe))

    def length(*words):
        assert run("--config", str(file), *words, "--json") == 0
        return json.loads(capsys.readouterr().out)["sequence_length"]

    assert length() == 512
    assert length("--config.recipe.data.sequence_length=128") == 128
    assert length("--sequence-length", "2048") == 2048
    file.write_text(CONFIG)
    assert length() == 4096
    file.write_text(CONFIG.replace('"seed": 0', '"recipe": {"budgets_tokens": [4096]}'))
    assert length("--config.recipe.data.sequence_length=128") == 128


def test_predictions_count_the_flops_of_the_configs_sequence_length(tmp_path):
    file = tmp_path / "small.py"
    flops = []
    for length in (64, 8192):
        file.write_text(CONFIG.replace('"seed": 0', f'"recipe": {{"data": {{"sequence_length": {length}}}}}'))
        design = PredictCommand(law="chinchilla", config=str(file), tokens=1e9).design()
        per_token = flops_per_token(load_architecture(str(file), [])[0], length).training
        assert design.flops == float(per_token * 1e9)
        flops.append(design.flops)
    assert flops[0] < flops[1]
