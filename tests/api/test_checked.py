"""Numbers that functions of ``moejax`` accept are those that the commands accept."""

import inspect
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import moejax as mj
from moejax.api.checked import checked
from moejax.cli.options import Command
from moejax.errors import UserError
from moejax.ranges import Copies, Level, NotNegative, Quantity


@checked
def answer(
    name: str, flops: Quantity | None = None, *, level: Level = 0.9, folds: Copies = 0, **given: NotNegative
) -> Any:
    return name, flops, level, folds, given


def test_numbers_arrive_as_plain_numbers():
    got = answer("a", np.float32(2.0), level=np.float64(0.5), folds=np.int64(3), tokens=jnp.float32(4.0), k=np.array(5))
    assert got == ("a", 2.0, 0.5, 3, {"tokens": 4.0, "k": 5.0})
    assert [type(value) for value in (*got[1:4], *got[4].values())] == [float, float, int, float, float]


def test_what_is_not_given_keeps_its_default():
    assert answer("a") == ("a", None, 0.9, 0, {})
    assert answer("a", None) == answer("a")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"flops": -1.0}, "flops is -1.0; give a number above 0"),
        ({"flops": "1e24"}, "flops is '1e24'; it must be a number"),
        ({"flops": float("nan")}, "flops is nan"),
        ({"flops": True}, "flops is True"),
        ({"level": 1.0}, "level is 1.0"),
        ({"level": 90}, "level is 90"),
        ({"folds": 2.5}, "folds is 2.5; it must be a whole number"),
        ({"tokens": -3.0}, "tokens is -3.0"),
    ],
)
def test_other_values_end_in_a_sentence_that_names_the_argument(given, message):
    with pytest.raises(UserError, match=message):
        answer("a", **given)


def test_a_checked_function_shows_its_own_signature():
    assert [*inspect.signature(answer).parameters] == ["name", "flops", "level", "folds", "given"]


def test_python_and_commands_share_a_range_of_levels():
    from moejax.cli.shared import LevelOptions

    assert issubclass(LevelOptions, Command)
    assert LevelOptions.__annotations__["level"] == mj.decide.__annotations__["level"] == "Level"
