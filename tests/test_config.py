"""Nested mappings become frozen dataclasses and come back; what does not fit is named by its path."""

import json
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moejax.config import build, dump


@dataclass(frozen=True, kw_only=True)
class Inner:
    rate: float = 0.1
    label: str | None = None


@dataclass(frozen=True, kw_only=True)
class Outer:
    size: int
    sizes: tuple[int, ...] = ()
    inner: Inner = field(default_factory=Inner)
    named: dict[str, Inner] = field(default_factory=dict)
    flag: bool = False


@given(
    st.builds(
        Outer,
        size=st.integers(),
        sizes=st.lists(st.integers(), max_size=3).map(tuple),
        inner=st.builds(Inner, rate=st.floats(allow_nan=False), label=st.none() | st.text()),
        named=st.dictionaries(st.text(), st.builds(Inner, rate=st.floats(allow_nan=False)), max_size=2),
        flag=st.booleans(),
    )
)
def test_what_is_dumped_is_built_again_through_json(value):
    assert build(Outer, json.loads(json.dumps(dump(value)))) == value


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"size": 1, "inner": {"rtae": 1.0}}, r"config\.inner\.rtae is not known; did you mean rate\?"),
        ({}, r"config lacks size; add it"),
        ({"size": "big"}, r"config\.size is 'big'; it must be a whole number"),
        ({"size": 1.5}, r"config\.size is 1\.5; it must be a whole number"),
        ({"size": True}, r"config\.size is True; it must be a whole number"),
        ({"size": 1, "flag": 1}, r"config\.flag is 1; it must be True or False"),
        ({"size": 1, "sizes": 3}, r"config\.sizes is 3; it must be a list"),
        ({"size": 1, "sizes": [1, "x"]}, r"config\.sizes\[1\] is 'x'"),
        ({"size": 1, "inner": 2}, r"config\.inner is 2; it must be a group"),
        ({"size": 1, "named": {"a": {"rate": "x"}}}, r"config\.named\.a\.rate is 'x'; it must be a number"),
    ],
)
def test_a_value_that_does_not_fit_is_named_by_its_path(values, sentence):
    with pytest.raises(ValueError, match=sentence):
        build(Outer, values)
