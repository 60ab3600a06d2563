"""Nested mappings become frozen dataclasses and come back; what does not fit is named by its path."""

import importlib
import json
import math
import typing
from dataclasses import dataclass, field, fields, is_dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moejax.config import build, check_fields, dump
from moejax.errors import UserError
from moejax.ranges import NumberRange
from moejax.reference import settings


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
        ({"size": 1, "inner": {"rtae": 1.0}}, r"config\.inner\.rtae is unknown; did you mean rate\?"),
        ({}, r"config lacks size; add it"),
        ({"size": "big"}, r"config\.size is 'big'; it must be a whole number"),
        ({"size": 1.5}, r"config\.size is 1\.5; it must be a whole number"),
        ({"size": True}, r"config\.size is True; it must be a whole number"),
        ({"size": 1, "flag": 1}, r"config\.flag is 1; it must be True or False"),
        ({"size": 1, "sizes": 3}, r"config\.sizes is 3; it must be a list"),
        ({"size": 1, "sizes": [1, "x"]}, r"config\.sizes\[1\] is 'x'"),
        ({"size": 1, "inner": 2}, r"config\.inner is 2; it must be a group"),
        ({"size": 1, "named": {"a": {"rate": "x"}}}, r"config\.named\.a\.rate is 'x'; it must be a number"),
        ({"size": 1, "inner": {1: 2}}, r"config\.inner\.1 is unknown"),
        ({"size": 1, "named": {1: {}}}, r"config\.named has the key 1; write keys as text, here '1'"),
    ],
)
def test_a_value_that_does_not_fit_is_named_by_its_path(values, sentence):
    with pytest.raises(ValueError, match=sentence):
        build(Outer, values)


def _numbers(hint, path="", within=()):
    """Every number below a type: its path, and the NumberRange of its Annotated or None."""
    if typing.get_origin(hint) is typing.Annotated:
        kind, limits = typing.get_args(hint)
        yield from [] if kind is str else [(path, limits)]
    elif hint in (int, float):
        yield path, None
    elif is_dataclass(hint):
        hints = typing.get_type_hints(hint, include_extras=True)
        for one in fields(hint):
            yield from _numbers(hints[one.name], f"{path}.{one.name}")
    else:
        for item in typing.get_args(hint):
            yield from _numbers(item, path)


DESCRIBED = [getattr(importlib.import_module(module), name) for name, module in settings.MODULES.items()]
NUMBERS = {path: limits for kind in DESCRIBED for path, limits in _numbers(kind, kind.__name__)}


def test_every_number_of_every_config_has_a_finite_range():
    assert len(NUMBERS) > 150
    assert [path for path, limits in NUMBERS.items() if not isinstance(limits, NumberRange)] == []
    assert all(math.isfinite(bound) for limits in NUMBERS.values() if limits for bound in (limits.low, limits.high))


@pytest.mark.parametrize("path", [path for path in NUMBERS if path.startswith("Architecture.")])
def test_what_lies_outside_a_range_is_refused_by_its_path_from_a_file_and_from_python(path):
    from moejax.architecture import Architecture, RopeScaling

    plain = dict.fromkeys(("vocab_size", "model_dim", "num_layers", "num_heads", "num_kv_heads", "head_dim"), 1)
    plain["head_dim"] = 2
    whole = Architecture(**plain, dense_hidden=1, rope_scaling=RopeScaling(kind="linear", factor=2.0))
    check_fields(whole)
    *groups, name = path.split(".")[1:]
    limits = NUMBERS[path]
    assert limits is not None
    beyond = int if limits.whole else float
    for value in (beyond(limits.low - 1), beyond(limits.high * 2 + 1), 10**400, math.nan, math.inf, True):
        changed = dump(whole)
        here = changed
        for group in groups:
            here = here[group]
        here[name] = value
        with pytest.raises(UserError, match=rf"config\.{'.'.join([*groups, name])} is "):
            build(Architecture, changed)
        if not groups and type(value) is beyond:
            with pytest.raises(UserError, match=f"^{name} is "):
                whole.replace(**{name: value}).check()
