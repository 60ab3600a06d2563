"""Their tensors and ours hold the same numbers: every one of ours is in exactly one of theirs."""

from collections import Counter

import numpy as np
import pytest
from family_architectures import ARCHITECTURES
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from moejax.huggingface import FAMILIES
from moejax.huggingface.weight_mapping import pairs, rearrange
from moejax.model import transformer
from moejax.weights.folder import parameters


@given(st.permutations(["a", "b", "c"]), st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
def test_axes_regrouped_and_back_are_the_same_numbers(order, a, b, c):
    sizes = {"a": a, "b": b, "c": c}
    array = np.arange(a * b * c).reshape(a * b, c)
    there = rearrange(array, f"(a b) c -> {' '.join(order)}", sizes)
    assert there.shape == tuple(sizes[name] for name in order)
    np.testing.assert_array_equal(rearrange(there, f"{' '.join(order)} -> (a b) c", sizes), array)


def test_axes_regrouped_are_numpys_own():
    array = np.arange(24).reshape(6, 4)
    np.testing.assert_array_equal(
        rearrange(array, "(h k) d -> d h k", {"h": 2, "k": 3, "d": 4}), array.T.reshape(4, 2, 3)
    )
    assert rearrange(array[:1], "() d -> d", {"d": 4}).shape == (4,)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_number_of_ours_is_in_one_place_of_theirs(family):
    @settings(max_examples=8, suppress_health_check=list(HealthCheck))
    @given(ARCHITECTURES[family])
    def check(architecture):
        try:
            transformer.check(architecture)
        except ValueError:
            assume(False)
        theirs = {}
        number = 0
        every = pairs(architecture, FAMILIES[family].mappings(architecture))
        found = [pair for pair in every if not pair.copied]
        assert {pair.ours for pair in every} == {pair.ours for pair in found}
        for pair in found:
            if pair.theirs not in theirs:
                size = int(np.prod(pair.whole))
                theirs[pair.theirs] = np.arange(number, number + size).reshape(pair.whole)
                number += size
        ours = {name: np.full(parameter.shape, -1) for name, parameter in parameters(architecture).items()}
        for pair in found:
            for (name, index), part in zip(pair.ours, pair.to_ours(theirs[pair.theirs][pair.index]), strict=True):
                assert (ours[name][index] == -1).all()
                ours[name][index] = part
        counted = Counter(np.concatenate([array.ravel() for array in ours.values()]).tolist())
        assert counted == Counter(range(number))
        for pair in found:
            back = pair.to_theirs([ours[name][index] for name, index in pair.ours])
            np.testing.assert_array_equal(back, theirs[pair.theirs][pair.index])

    check()


def test_alternating_channels_become_halves():
    architecture = FAMILIES["gpt_oss"].architecture(
        {
            "vocab_size": 2,
            "hidden_size": 2,
            "num_hidden_layers": 1,
            "num_attention_heads": 1,
            "num_key_value_heads": 1,
            "head_dim": 2,
            "intermediate_size": 3,
            "num_local_experts": 1,
            "num_experts_per_tok": 1,
        }
    )
    found = pairs(architecture, FAMILIES["gpt_oss"].mappings(architecture))
    bias = next(pair for pair in found if pair.theirs.endswith("gate_up_proj_bias"))
    gate, up = bias.to_ours(np.arange(6))
    assert gate.tolist() == [0, 2, 4]
    assert up.tolist() == [1, 3, 5]
