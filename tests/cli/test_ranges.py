"""``moejax ranges``: Tables 3 and 4 of Zhao et al., as the document prints them."""

import dataclasses
import json
import math
import re
import shlex

import pytest

from moejax.__main__ import main
from moejax.laws.predict import published
from moejax.papers.zhao.models import MODELS, TABLE_3, TABLE_4
from moejax.papers.zhao.ranges import Model, RangeLimits, inward, ranges
from moejax.report import render
from moejax.result import NOT_DETERMINED


def test_its_tables_are_the_document_s_digit_by_digit(capsys):
    assert main(["ranges", "--active-experts", "7", "--shared-share", "0.31"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for model in MODELS:
        structure, shares = (line for line in lines if line.startswith(model + " "))
        experts, _, of_g, of_s = TABLE_3[model]
        # At these G and S the ranges are still those around the law's own optima, as in the document.
        assert f" {experts} " in structure
        assert f"[{', '.join(of_g)}]" in structure
        assert f"[{', '.join(of_s)}]" in structure
        theory, _, fine, _, coarse, _ = TABLE_4[model]
        # Qwen3-30B is 40.049 % and printed as 40.04.
        assert f" {theory}%" in shares or model == "Qwen3-30B-A3B"
        assert f" {fine}%" in shares
        assert f" {coarse}%" in shares


def test_json_says_what_a_model_of_one_s_own_may_do(capsys):
    words = "ranges --params-total 671B --params-active 37B --tolerance 0.002 --gain 0.001 --json"
    assert main(shlex.split(words)) == 0
    said = json.loads(capsys.readouterr().out)
    (row,) = said["models"]
    (low, high), (least, most) = row["active_experts_range"], row["shared_share_range"]
    # More tolerance than Table 3's is a wider range around the same optimum.
    assert low < 4.20 < said["optimal_active_experts"] < 10.93 < high
    assert least < 0.095 < said["optimal_shared_share"] < 0.535 < most
    assert row["efficient_active_share"] == {"0.001": pytest.approx(0.12)}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--params-total 1e9 --params-active 2e9", "give at most --params-total, 1e+09"),
        ("--law chinchilla", "give --law zhao"),
        ("kimi-k3", "did you mean kimi-k2"),
        ("--flops 1e23 --params-total 1e9", "moejax design --law zhao --flops 1e23 --params-total N to get"),
    ],
)
def test_mistakes_are_answered_with_a_sentence(words, sentence, capsys):
    assert main(["ranges", *shlex.split(words)]) == 2
    assert sentence in " ".join(capsys.readouterr().err.split())


def test_an_optimum_that_is_no_share_is_not_determined():
    law = dataclasses.replace(published("zhao").law, share_coupling=1e-9, shared_slope=-50.0)
    result = ranges(law, "mine", [Model("yours", 1e9, 1e8)], "", published("zhao"), RangeLimits())
    (row,) = result.data["models"]
    assert math.isnan(row["optimal_active_share"])
    assert math.isnan(result.data["optimal_shared_share"])
    said = render.text(result)
    assert said.count(NOT_DETERMINED) >= 4
    assert all(float(share) <= 100 for share in re.findall(r"([\d.]+)%", said))


def test_a_range_narrower_than_its_digits_is_written_with_more():
    assert inward(2)([6.7711, 6.7795]) == "[6.772, 6.779]"
    assert inward(2)([6.771, 6.789]) == "[6.78, 6.78]"


@pytest.mark.parametrize(
    ("words", "far"),
    [
        ("--params-total 34B --params-active 220M", "10 times in params_total (yours)."),
        ("--params-total 1.33B --params-active 3M", "0.1 times in params_active (yours)."),
        ("--params-total 1B --params-active 200M", None),
        ("--params-total 1B --params-active 200M --active-experts 20 --shared-share 0", None),
        ("--params-total 1B --params-active 200M --active-experts 40", "G = 40 (fitted 1 to 20)."),
        ("--params-total 1B --params-active 200M --shared-share 0.8", "S = 0.8 (fitted 0 to 0.7)."),
    ],
)
def test_what_is_beyond_what_the_law_was_fitted_to_is_said(words, far, capsys):
    assert main(["ranges", *shlex.split(words)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert ("Outside the law's fitted range" in said) == (far is not None)
    assert far is None or f"Outside the law's fitted range: {far}" in said
