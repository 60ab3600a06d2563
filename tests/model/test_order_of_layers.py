"""The order of layers: patterns, and the units they repeat."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from known_architectures import MIXTURE

from moejax.model.layers import blocks


@given(st.text("ED", max_size=40))
def test_blocks_spell_out_the_sequence_they_were_made_from(kinds):
    assert "".join("".join(block.unit) * block.repeats for block in blocks(kinds)) == kinds


@pytest.mark.parametrize(
    ("kinds", "found"),
    [
        ("E" * 61, [("E", 61)]),
        ("DDD" + "E" * 58, [("D", 3), ("E", 58)]),
        ("ED" * 24, [("ED", 24)]),
        ("D" + "WF" * 5 + "D", [("D", 1), ("WF", 5), ("D", 1)]),
    ],
)
def test_layers_that_repeat_are_compiled_once(kinds, found):
    assert [("".join(block.unit), block.repeats) for block in blocks(kinds)] == found


def test_patterns_repeat_between_the_first_and_the_last_dense_layers():
    a = MIXTURE.replace(num_layers=8, num_dense_layers=1, num_last_dense_layers=2, layer_pattern="DE")
    assert "".join("DE"[has] for has in a.has_experts) == "DDEDEDDD"
    assert a.num_moe_layers == 2
    windowed = a.replace(sliding_window=4, window_pattern="WWF")
    assert "".join("FW"[has] for has in windowed.has_window) == "WWFWWFWW"
    assert windowed.num_windowed_layers == 6
    assert a.num_windowed_layers == 0
