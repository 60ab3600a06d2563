"""JSON is written with numbers that JSON has."""

import ast
import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moejax.interval import UNKNOWN, Interval
from moejax.json_text import fields, finite, json_text

ROOT = Path(__file__).parent.parent / "moejax"

FINITE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(FINITE)
def test_what_is_finite_comes_back_as_it_was(value):
    assert json.loads(json_text(value)) == value


def test_what_is_not_known_is_null():
    assert json.loads(json_text({"low": math.nan, "both": (math.nan, 1.0)})) == {"low": None, "both": [None, 1.0]}


@pytest.mark.parametrize("endless", [math.inf, -math.inf])
def test_an_infinite_number_is_refused_by_its_place(endless):
    with pytest.raises(ValueError, match=r"predictions\[1\]\.values\.loss is -?inf"):
        json_text({"predictions": [{"values": {}}, {"values": {"loss": endless}}]})


def test_no_command_writes_json_in_another_way():
    for path in [*(ROOT / "cli").rglob("*.py"), ROOT / "folder.py"]:
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        writing = [call for call in calls if ast.unparse(call.func).endswith(("print", "write_text"))]
        assert not any("json.dumps" in ast.unparse(call) for call in writing), path


def test_a_dataclass_is_written_as_its_fields_and_without_what_is_not_finite():
    found = Interval(low=1.0, middle=2.0, high=math.inf, deviation=math.nan, undefined=0.0)
    assert finite((found, {"none": UNKNOWN.low})) == [
        {"low": 1.0, "middle": 2.0, "high": None, "deviation": None, "undefined": 0.0},
        {"none": None},
    ]


@dataclass(frozen=True)
class Answer:
    name: str
    interval: Interval

    def to_json(self):
        return {**fields(self, "interval"), "low": self.interval.low}


def test_nested_results_are_written_by_their_own_method_and_arrays_and_tables_as_lists():
    answer = Answer("tokens", UNKNOWN)
    table = pd.DataFrame({"loss": [1.5, math.nan]})
    found = json.loads(json_text({"answers": [answer], "array": np.array([[1.0, np.nan]]), "table": table}))
    assert found == {
        "answers": [{"name": "tokens", "low": None}],
        "array": [[1.0, None]],
        "table": [{"loss": 1.5}, {"loss": None}],
    }
