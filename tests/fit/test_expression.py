"""The language of --map and --where reads a table, and does nothing else."""

import math
import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moejax.fit.tables.expression import FUNCTIONS, condition, evaluate

FRAME = pd.DataFrame(
    {
        "N": [1, 2, 4],
        "tokens": [1e9, 2e9, 4e9],
        "written": ["48M", "1e20", "2"],
        "total": ["1B", "2e19", None],
        "blank": ["", None, ""],
        "optimizer": ["adamw", "muon", ""],
        "empty": [None, "a", float("nan")],
        "done": [True, False, True],
        "tokens (B)": [1.0, 2.0, 4.0],
        "it's": [1.0, 1.0, 2.0],
        "log": [0.0, 1.0, 2.0],
        "µ": [5.0, 6.0, 7.0],
    }
)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("N * 2 + 1", [3, 5, 9]),
        ("-N ** 2", [-1, -4, -16]),
        ("6 * `tokens (B)` * 1e9", [6e9, 12e9, 24e9]),
        ("1 / (1 - `it's`)", [math.inf, math.inf, -1]),
        ("written / 2", [24e6, 5e19, 1]),
        ("where(N > 1, log(N), log)", [0, math.log(2), math.log(4)]),
        ("min(N, 3, tokens)", [1, 2, 3]),
        ("max(N, 2)", [2, 2, 4]),
        ("round(log2(N)) // 1 % 2", [0, 1, 0]),
        ("µ", [5, 6, 7]),
        ("`µ` + 0", [5, 6, 7]),
        ("1.5B", [1.5e9] * 3),
        ("9 ** 9 ** 9 ** 9", [math.inf] * 3),
        ("optimizer", ["adamw", "muon", ""]),
    ],
)
def test_values_are_computed_row_by_row(expression, expected):
    assert evaluate(expression, FRAME).tolist() == expected


@pytest.mark.parametrize(
    "expression",
    [
        "N * 7 // 3 * 2",
        "7 % N * 3",
        "N * 7 % 3",
        "7 // N / 2",
        "-N % 3",
        "-N // 3",
        "1 - N % 3 * 2",
        "-N ** 2 // 3",
        "N // 3 * 3 + N % 3",
        "7 - -N % 3",
        "+N % 3",
        "N % 3 % 2 // 1",
    ],
)
def test_arithmetic_has_the_precedence_of_python(expression):
    assert evaluate(expression, FRAME).tolist() == [eval(expression, {"N": n}) for n in FRAME["N"]]


@pytest.mark.parametrize(
    ("expression", "rows"),
    [
        ("N == 2", [1]),
        ("1B < tokens <= 2B", [1]),
        ("N == 1 | N == 4", [0, 2]),
        ("N > 1 & tokens < 3e9", [1]),
        ("not done", [1]),
        ("~done or N == 1", [0, 1]),
        ("optimizer == 'muon'", [1]),
        ("optimizer != 'muon'", [0, 2]),
        ("optimizer in ['muon', \"x & `y` 48M\"]", [1]),
        ("N not in (1, 2)", [2]),
        ("optimizer < 'b'", [0, 2]),
        ("empty != 'a'", [0, 2]),
        ("empty == 'a' or empty < 'b'", [1]),
        ("written > 40M", [0, 1]),
        ("written < total", [0]),
        ("total > written < 1B", [0]),
        ("written != total", [0, 1, 2]),
        ("written == written", [0, 1, 2]),
        ("written == '48M' or written in ['2']", [0, 2]),
        ("written > optimizer", [2]),
        ("blank == blank", [0, 2]),
        ("done == True", [0, 2]),
        ("done", [0, 2]),
    ],
)
def test_a_condition_keeps_the_rows_that_meet_it(expression, rows):
    assert np.flatnonzero(condition(expression, FRAME)).tolist() == rows


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        (
            "tokens.head.__func__.__globals__",
            "has '.head.__func__.__globals__' at character 7, which is not allowed in expressions",
        ),
        ("tokens.to_csv('x')", "has '.to_csv('x')' at character 7"),
        ("__import__('os')", "__import__ is not a function; the functions are abs, sqrt"),
        ("open('x')", "open is not a function"),
        ("tokens[0]", "has '[0]' at character 7, where the end is expected"),
        ("[x for x in tokens]", "where a number, a name or '(' is expected"),
        ("lambda: 1", "at character 7"),
        ("(N := 3)", "at character 4"),
        ("f'{N}'", "where the end is expected"),
        ("min(N)", "where ',' is expected"),
        ("abs(x=N)", "To compare, write =="),
        ("N if done else 2", "where the end is expected"),
        ("M * 2", "there is no column M; the columns are N, tokens"),
        ("@N", "at character 1"),
        ("N = 2", "To compare, write =="),
        ("import os", "where the end is expected"),
        ("optimizer * 2", "column optimizer has 'adamw' in row 1"),
        ("'a' * 2", "'a' is text; arithmetic needs columns of numbers"),
        ("N == '2'", "write numbers without quotes"),
        ("written < '1B'", "write numbers without quotes"),
        ("N and '\udcff'", "a value is used as a condition"),
        ("`\ud800`", "there is no column"),
        ("1if 1else 2", "where the end is expected"),
        ("N and done", "a value is used as a condition"),
        ("N in 3", "where '[' or '(' is expected"),
        ("N is 3", "where the end is expected"),
        ("3j", "where the end is expected"),
        ("N + [1]", "a number, a name or '('"),
        ("", "ends where a number"),
        ("-" * 900 + "N", "nested deeper than 40 levels"),
        ("~" * 900 + "done", "nested deeper than 40 levels"),
        ("N > 1__0", "has '__0' at character 6"),
        ("(" * 500 + "N" + ")" * 500, "has 1,001 characters"),
        ("1K" + "0" * 400, "An expression has columns"),
    ],
)
def test_what_is_not_in_the_language_is_refused_with_a_sentence(expression, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        evaluate(expression, FRAME)


def test_a_value_is_no_condition():
    with pytest.raises(ValueError, match="compare it with another value"):
        condition("tokens", FRAME)


PIECES = ["N", "tokens", "optimizer", "`it's`", "1", "48M", "'a'", "(", ")", "[", "]", ",", ".", ":", "==", "<", "+"]
PIECES += ["-", "**", "*", "and", "or", "not", "in", "if", "else", "lambda", "__class__", "=", "@", "&", "~", "\n"]


@settings(max_examples=300, derandomize=True)
@given(st.one_of(st.text(max_size=40), st.lists(st.sampled_from([*PIECES, *FUNCTIONS]), max_size=12).map(" ".join)))
def test_any_text_is_a_value_for_every_row_or_a_sentence(expression):
    try:
        values = evaluate(expression, FRAME)
    except ValueError as error:
        # A library's error would be of a class of its own, or not caught at all.
        said = str(error)
    else:
        said = ""
        assert values.shape == (3,)
    assert len(said) < 1_000
