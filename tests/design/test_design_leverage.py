"""Leverage of one family of designs over another, under a law."""

import jax
import numpy as np
import pytest

from moejax.design.constraint import held
from moejax.design.leverage import leverage, leverages_under, proportions
from moejax.fit.uncertainty.estimands import decision_estimands, find
from moejax.float64 import float64
from moejax.laws import PUBLISHED
from moejax.laws.catalogue import CATALOGUE
from moejax.laws.mixtures.effective_params import CHAPTER_002
from moejax.laws.mixtures.five_factor import ZHAO_2025

SIXTEEN, DENSE = held({"expansion": 16.0}), held({"expansion": 1.0})


def closed_form(law):
    (estimand,) = find("EL", decision_estimands(type(law), {"flops": 1e22, "expansion": 16.0}), type(law))
    with float64():
        return float(estimand.functional(law))


def test_leverage_over_dense_models_is_the_closed_form():
    assert leverage(CHAPTER_002, SIXTEEN, DENSE, 1e22).value == pytest.approx(closed_form(CHAPTER_002), rel=1e-6)


def test_a_family_has_no_leverage_over_itself_and_the_inverse_over_the_other_way():
    assert leverage(CHAPTER_002, SIXTEEN, SIXTEEN, 1e22).value == pytest.approx(1.0, rel=1e-6)
    there = leverage(CHAPTER_002, SIXTEEN, DENSE, 1e22)
    back = leverage(CHAPTER_002, DENSE, SIXTEEN, there.against.values["flops"])
    assert there.value * back.value == pytest.approx(1.0, rel=1e-6)


def test_resampled_laws_give_resampled_leverages():
    found = leverage(CHAPTER_002, SIXTEEN, DENSE, 1e22)
    other = PUBLISHED["effective_params"]
    laws = [CHAPTER_002, *(one.law for one in other.values())]
    stacked = jax.tree.map(lambda *leaves: np.asarray(leaves, float), *laws)
    assert leverages_under(found, stacked) == pytest.approx([closed_form(law) for law in laws], rel=1e-5)


def test_a_published_model_stands_for_its_proportions():
    kimi = proportions(ZHAO_2025, CATALOGUE["kimi-k2"].architecture)
    assert set(kimi) == {"expansion", "active_experts", "shared_share"}
    assert kimi["active_experts"] == 9
