"""The recipe of the next runs follows the table's last run, and its batch holds whole sequences."""

import json

import pandas as pd
import pytest

from moejax.config import dump
from moejax.experimental_design.propose import recipe_of
from moejax.fit.tables.read_runs import read_runs
from moejax.train.training import Recipe

DEFAULT = Recipe(budgets_tokens=())


def read_with(**recipe):
    config = json.dumps({"recipe": {**dump(DEFAULT), **recipe}})
    rows = [
        {"params_active": n, "tokens": d, "loss": 3.0, "config": config} for n in (1e8, 2e8, 4e8) for d in (1e9, 3e9)
    ]
    return read_runs(pd.DataFrame(rows), "chinchilla")


@pytest.mark.parametrize(("batch_tokens", "expected"), [(6144, 6144), (10240, "auto"), ("auto", "auto")])
def test_a_batch_that_the_new_sequence_length_does_not_divide_is_automatic(batch_tokens, expected):
    recipe = recipe_of(read_with(batch_tokens=batch_tokens), DEFAULT, 3072)
    assert recipe["data"]["sequence_length"] == 3072
    assert recipe.get("batch_tokens", DEFAULT.batch_tokens) == expected


def test_the_last_recipe_is_kept_without_a_new_sequence_length():
    assert recipe_of(read_with(batch_tokens=10240), DEFAULT, None) == {"batch_tokens": 10240}
