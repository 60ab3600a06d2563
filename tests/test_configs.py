"""Every config can be built, and its models are counted alike by the accounting and by their own arrays."""

from pathlib import Path

import pytest

from moejax.cli.config_file import load
from moejax.laws import accounting
from moejax.model import transformer
from moejax.study.study import Study
from moejax.train.training import Training

CONFIGS = Path(__file__).parent.parent / "configs"
TRAININGS = sorted(CONFIGS.glob("*.py"))
STUDIES = sorted((CONFIGS / "studies").glob("*.py"))


def counted_alike(architecture):
    formula = accounting.params(architecture)
    return transformer.count(architecture) == (formula.total, formula.active, formula.vocabulary)


@pytest.mark.parametrize("path", TRAININGS, ids=lambda path: path.stem)
def test_a_training_config_is_a_training(path):
    training = load(Training, str(path), [])
    training.check()
    assert counted_alike(training.architecture)


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_a_study_config_is_a_study(path):
    study = load(Study, str(path), [])
    study.check()
    assert all(counted_alike(architecture) for architecture in study.models.values())


@pytest.mark.parametrize("path", [*TRAININGS, *STUDIES], ids=lambda path: path.stem)
def test_a_config_says_its_purpose_command_and_what_to_expect(path):
    text = path.read_text().split('"""')[1]
    assert f"--config={path.relative_to(CONFIGS.parent)}" in text
    assert "Expected:" in text
    assert "Cost:" in text


def test_the_quickstart_is_a_family_of_dense_models_and_mixtures():
    study = load(Study, str(CONFIGS / "studies" / "quickstart.py"), [])
    mixtures = [model for model in study.models.values() if model.is_moe]
    assert len(mixtures) >= 6
    assert len(study.models) - len(mixtures) >= 2
    assert len(study.recipe.budgets_tokens) >= 3
    for name in ("num_experts", "top_k", "num_shared_experts", "model_dim"):
        assert len({getattr(model, name) for model in mixtures}) > 1, f"the mixtures differ in {name}"
