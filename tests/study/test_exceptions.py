"""Models of one study with recipes, seeds and budgets of their own."""

import dataclasses

import pytest

from moejax.architecture import Architecture
from moejax.data.config import DataConfig
from moejax.study.study import Analysis, Study
from moejax.train.optimizer import OptimizerConfig
from moejax.train.training import Recipe

SHAPE = Architecture(
    vocab_size=257, model_dim=16, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8, dense_hidden=32
)
RECIPE = Recipe(
    budgets_tokens=(4_096, 8_192),
    batch_tokens=1_024,
    data=DataConfig(sequence_length=64, validation_tokens=1_024),
    optimizer=OptimizerConfig(learning_rate=1e-2, weight_decay=0.3),
)
STUDY = Study(name="two", models={"a": SHAPE, "b": SHAPE}, recipe=RECIPE)


def changed(**changes):
    return dataclasses.replace(STUDY, **changes)


# Without an expert bias.
TRAINED = dataclasses.replace(RECIPE, loss=dataclasses.replace(RECIPE.loss, balance=0.01))


def test_a_model_without_exceptions_has_the_studys_recipe():
    assert {training.recipe for training in STUDY.trainings()} == {TRAINED}
    assert {training.seed for training in STUDY.trainings()} == {0}


def test_a_models_exceptions_change_that_model_and_nothing_else_of_its_recipe():
    one = changed(recipes={"b": {"budgets_tokens": [6_144], "optimizer": {"learning_rate": 3e-3}}}, seeds={"b": 7})
    found = {training.name: training for training in one.trainings()}
    assert found["a"].recipe == TRAINED
    assert found["b"].recipe == dataclasses.replace(
        TRAINED, budgets_tokens=(6_144,), optimizer=dataclasses.replace(TRAINED.optimizer, learning_rate=3e-3)
    )
    assert (found["a"].seed, found["b"].seed) == (0, 7)


def test_exceptions_decide_whose_folder_it_is_and_notes_do_not():
    assert changed(notes={"a": "inferred"}).identity() == STUDY.identity()
    assert changed(seeds={"a": 1}).identity() != STUDY.identity()
    assert set(STUDY.identity()) == {"name", "seed", "models", "recipe"}


def test_one_architecture_trained_twice_is_one_group():
    other = dataclasses.replace(SHAPE, model_dim=24)
    assert changed(models={"a": SHAPE, "b": SHAPE, "c": other}).groups() == {"a": "a", "b": "a", "c": "c"}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"recipes": {"c": {}}}, "recipes: model 'c' is unknown"),
        ({"seeds": {"c": 1}}, "seeds: model 'c' is unknown"),
        ({"recipes": {"b": {"optimzer": {}}}}, "did you mean optimizer"),
        ({"recipes": {"b": 3}}, "recipes.b is 3; it must be a dict of settings"),
        ({"recipes": {"b": {"batch_tokens": 100}}}, "a positive multiple of data.sequence_length"),
        ({"analysis": Analysis(hold_out="token")}, "did you mean tokens"),
        ({"analysis": Analysis(hold_out_models=("c",))}, "model 'c' is unknown"),
        ({"recipes": {name: {"budgets_tokens": [4_096]} for name in "ab"}}, "needs at least two"),
    ],
)
def test_exceptions_that_make_no_sense_are_refused_in_a_sentence(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        changed(**changes).check()


def test_a_study_that_leaves_its_corpus_open_asks_for_it():
    without = dataclasses.replace(RECIPE, data=dataclasses.replace(RECIPE.data, source=""))
    changed(recipe=without).check()
    with pytest.raises(ValueError, match=r"--config\.recipe\.data\.source=PATH"):
        changed(recipe=without).check_data()


def test_models_of_a_study_read_the_same_data():
    with pytest.raises(ValueError, match="b changes data"):
        changed(recipes={"b": {"data": {"sequence_length": 128}}}).check()
