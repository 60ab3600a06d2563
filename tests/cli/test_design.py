"""``moejax design``."""

import json

import pytest

from moejax.__main__ import main
from moejax.cli import design
from moejax.cli.config_file import load
from moejax.laws.chinchilla import HOFFMANN_2022, optimal_split
from moejax.train.auto import choose_hyperparameters
from moejax.train.training import Training

BUDGET = ("design", "--law", "chinchilla", "--flops", "1e21")


def test_a_budget_becomes_a_design_and_a_config_that_trains_it(capsys, tmp_path):
    assert main([*BUDGET, "--json", "--out", str(tmp_path)]) == 0
    said = json.loads(capsys.readouterr().out)
    split = optimal_split(HOFFMANN_2022, 1e21)
    assert said["optimum"]["values"]["params_active"] == pytest.approx(split["params_active"], rel=1e-6)
    assert said == json.loads((tmp_path / "design.json").read_text())
    training = choose_hyperparameters(load(Training, str(tmp_path / "config.py"), [])).training
    training.architecture.check()
    training.recipe.check()
    assert training.recipe.budgets_tokens[0] == pytest.approx(said["built"]["tokens"], abs=4096)
    assert said["built"]["measures"]["flops"] <= 1e21 * (1 + 1e-9)
    assert said["published"]["dense-6.1b"]["measures"]["flops"] == pytest.approx(1e21)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--law", "chinchilla"), "Nothing limits the design"),
        (("--law", "chinchila", "--flops", "1e21"), "no law 'chinchila'"),
        (("--law", "chinchilla", "--flops", "1e21", "--memory", "80G"), "--chips COUNT"),
        (("--law", "chinchilla", "--flops", "1e21", "--hold", "width=8"), "width is not known"),
        (("--law", "chinchilla", "--flops", "1e21", "--range", "tokens=5"), "NAME=LOW:HIGH"),
        (("--law", "chinchilla", "--flops", "1e21", "--mfu", "2"), "at most 1"),
        (("--law", "chinchilla", "--flops", "1e21", "--convention", "tien"), "did you mean tian"),
        (("--law", "chinchilla", "--flops", "1e21", "--bootstrap", "10"), "belong together"),
        (("--law", "routed", "--flops", "1e21"), "cannot split flops"),
        (("--law", "leverage", "--params-total", "1e9"), "Choose a shape"),
        (("--law", "three_factor", "--flops", "1e21"), "No constants are published"),
    ],
)
def test_mistakes_are_sentences(capsys, words, says):
    assert main(["design", *words]) == 2
    assert says in capsys.readouterr().err


def test_every_example_names_options_that_exist():
    import argparse

    parser = argparse.ArgumentParser()
    design.add_arguments(parser)
    for line in design.EXAMPLE.splitlines():
        parser.parse_args(line.split()[2:])
