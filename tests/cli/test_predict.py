"""``moejax predict``."""

import json
import subprocess
import sys

import pytest

from moejax.__main__ import main
from moejax.cli.commands import predict
from moejax.cli.shared import law_or_fit
from moejax.laws import LAWS, PUBLISHED
from moejax.laws.budget.peak_rate import counted, peak_rate
from moejax.laws.catalogue import CATALOGUE
from moejax.laws.design import FIELDS


def said(capsys, *arguments: str) -> dict:
    assert main(["predict", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_learning_rate_is_that_of_auto_with_the_range_of_the_laws(capsys):
    design = ("--arch", "deepseek-v3.1", "--tokens", "14.8T")
    rate = said(capsys, "--law", "all", *design)["learning_rate"]
    known = counted(CATALOGUE["deepseek-v3.1"].architecture, 14.8e12, 4096)
    assert rate == peak_rate(known).to_json()
    assert rate["by"] == "tian-2025"
    one = said(capsys, "--law", "hyperparameters", "--constants", "deepseek-2024", *design)["learning_rate"]
    assert (one["by"], one["laws"]) == ("deepseek-2024", rate["laws"])
    assert "learning_rate" not in said(capsys, "--law", "chinchilla", *design)


def test_every_field_of_a_design_can_be_typed():
    assert tuple(predict.DESIGN_OPTIONS) == FIELDS


def test_the_example_in_the_help_runs(capsys):
    assert main(predict.EXAMPLE.split()[1:]) == 0
    printed = capsys.readouterr()
    assert "five_factor" in printed.out
    assert "× above" in printed.out
    assert "not evaluated" in printed.err


def test_all_asks_every_set_of_every_law_or_says_why_not(capsys):
    answer = said(capsys, "--law", "all", "--arch", "deepseek-v3.1", "--tokens", "14.8T")
    asked = {(a["law"], a["constants"]) for a in answer["predictions"]}
    every = {(law, constants) for law in LAWS for constants in PUBLISHED[law]}
    assert asked == {(law, constants) for law, constants in every if law not in answer["not_asked"]}
    assert {law for law, _ in asked} | set(answer["not_asked"]) == set(LAWS)


def test_hoffmann_by_hand(capsys):
    (answer,) = said(capsys, "--law", "hoffmann", "--params-active", "70B", "--tokens", "1.4T")["predictions"]
    by_hand = 1.6934 + 406.4 / 70e9**0.3392 + 410.7 / 1.4e12**0.2849
    assert answer["law"] == "chinchilla"
    assert answer["values"]["loss"] == pytest.approx(by_hand, rel=1e-12)


def test_another_set_of_constants_can_be_named(capsys):
    arguments = ("--law", "chinchilla", "--params-active", "70B", "--tokens", "1.4T")
    default, named = (
        said(capsys, *arguments, *more)["predictions"][0] for more in ([], ["--constants", "besiroglu-2024"])
    )
    assert named["constants"] == "besiroglu-2024"
    assert named["values"] != default["values"]


def test_a_law_asked_by_its_papers_name_has_that_papers_constants(capsys):
    (answer,) = said(capsys, "--law", "besiroglu", "--params-active", "70B", "--tokens", "1.4T")["predictions"]
    assert (answer["law"], answer["constants"]) == ("chinchilla", "besiroglu-2024")


def test_what_is_typed_comes_before_what_the_architecture_implies(capsys):
    model = ("--law", "chinchilla", "--arch", "mixtral-8x7b", "--tokens", "1T")
    assert said(capsys, *model)["design"]["num_experts"] == 8
    assert said(capsys, *model, "--num-experts", "16", "--top-k", "4")["design"]["num_experts"] == 16


def test_flops_follow_from_the_sequence_length_unless_given(capsys):
    model = ("--law", "tian", "--arch", "moe-mini", "--tokens", "1T")
    short, long = (said(capsys, *model, "--sequence-length", length)["design"]["flops"] for length in ("2048", "4096"))
    assert short < long
    assert said(capsys, *model, "--flops", "1e22")["design"]["flops"] == 1e22


def test_leaving_the_fitted_range_is_said_with_the_variable_and_the_factor(capsys):
    (answer,) = said(capsys, "--law", "zhao", "--arch", "kimi-k2", "--tokens", "15.5T")["predictions"]
    assert answer["extrapolated"]["tokens"] == pytest.approx(15.5e12 / 50e9)
    (inside,) = said(capsys, "--law", "hoffmann", "--params-active", "1B", "--tokens", "20B")["predictions"]
    assert not inside["extrapolated"]


def test_a_law_of_dense_models_that_is_asked_of_a_mixture_says_so(capsys):
    asked = ["predict", "--law", "chinchilla", "--tokens", "200B", "--arch"]
    for name, is_mixture in (("mixtral-8x7b", True), ("dense-6.1b", False)):
        assert main([*asked, name]) == 0
        text = capsys.readouterr().out
        assert ("fitted only to dense models" in text and "gain from experts" in text) == is_mixture
        assert said(capsys, *asked[1:], name)["predictions"][0]["as_dense"] == is_mixture


def test_a_folder_of_a_fit_is_that_fit_unless_a_law_has_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("mine", "chinchilla"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "fit.json").touch()
    assert law_or_fit("mine") == "mine/fit.json"
    assert law_or_fit("chinchilla") == "chinchilla"
    assert law_or_fit("./chinchilla") == "chinchilla/fit.json"
    assert law_or_fit("yours") == "yours"


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_published_model_can_be_asked_about(name, capsys):
    assert len(said(capsys, "--law", "all", "--arch", name, "--tokens", "1T")["predictions"]) > 5


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--law", "chinchila", "--params-active", "1B", "--tokens", "20B"], "chinchilla"),
        (["--law", "chinchilla", "--params-active", "1B"], "tokens"),
        (["--law", "chinchilla", "--params-active", "-1", "--tokens", "20B"], "params_active is -1"),
        (["--law", "effective_params", "--params-active", "2B", "--params-total", "1B", "--tokens", "1B"], "total"),
        (["--law", "chinchilla", "--arch", "deepseek-v4", "--tokens", "1T"], "deepseek-v3.1"),
        (["--law", "all"], "--arch"),
        (["--law", "all", "--constants", "x", "--arch", "kimi-k2", "--tokens", "1T"], "--constants"),
        (["--law", "chinchilla", "--constants", "x", "--params-active", "1B", "--tokens", "1B"], "hoffmann-2022"),
    ],
)
def test_mistakes_are_answered_in_sentences(arguments, sentence, capsys):
    assert main(["predict", *arguments]) == 2
    message = capsys.readouterr().err
    assert sentence in message
    assert "Traceback" not in message


@pytest.mark.parametrize("option", ["--top-k", "--num-experts", "--model-dim"])
def test_of_numbers_that_no_model_has_it_is_said_that_the_law_is_asked_between_models(option, capsys):
    words = ["predict", "--law", "chinchilla", "--params-active", "1B", "--tokens", "20B", option]
    assert main([*words, "2.5"]) == 0
    name = option[2:].replace("-", "_")
    assert f"No model has {name} 2.5; the law interpolates between models." in capsys.readouterr().out
    assert main([*words, "2"]) == 0
    assert "No model has" not in capsys.readouterr().out


def test_a_prediction_loads_no_library_but_jax():
    # So it answers at once: 1.5 to 1.8 seconds, where pandas, SciPy, Flax and Optax take two seconds to load.
    code = (
        "import sys; from moejax.__main__ import main; main(sys.argv[1:]);"
        "print(sorted({'flax', 'grain', 'jaxopt', 'matplotlib', 'ml_collections', 'optax', 'orbax', 'pandas',"
        " 'pyarrow', 'scipy', 'tensorstore'} & set(sys.modules)))"
    )
    said = subprocess.run([sys.executable, "-c", code, *predict.EXAMPLE.split()[1:]], check=True, capture_output=True)
    assert said.stdout.decode().splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--params-active", "7B", "--tokens", "1e12", "--flops", "1"], "flops is 1, which is below"),
        (["--params-active", "7B", "--tokens", "1e12", "--flops", "1e12"], "times 6 · params_active · tokens"),
        (
            ["--params-active", "0.5", "--tokens", "1e9"],
            "params_active is 0.5, which is below 1000",
        ),
        (["--params-active", "1e9", "--tokens", "1"], "tokens is 1, which is below 10000 tokens"),
    ],
)
def test_what_contradicts_itself_or_nobody_trains_gets_no_number(words, sentence, capsys):
    assert main(["predict", "--law", "chinchilla", *words]) == 2
    said = capsys.readouterr()
    assert sentence in said.err
    assert not said.out


def test_the_folder_of_a_fit_is_its_fit_and_a_damaged_one_is_named(tmp_path, capsys):
    (tmp_path / "fit.json").touch()
    for command in ("predict", "design"):
        assert main([command, "--law", str(tmp_path)]) == 2
        assert f"{tmp_path}/fit.json cannot be read: it is empty" in capsys.readouterr().err
