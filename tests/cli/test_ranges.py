"""``moejax ranges``: Tables 3 and 4 of Zhao et al., as the document prints them."""

import json
import shlex

import pytest

from moejax.__main__ import main
from moejax.papers.zhao_models import MODELS, TABLE_3, TABLE_4


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
        ("--params-total 1e9", "belong together"),
        ("kimi-k2 --params-total 1e9 --params-active 1e8", "Models have sizes of their own"),
        ("--params-total 1e9 --params-active 2e9", "at most all of them"),
        ("--law chinchilla", "give --law zhao"),
        ("--gain -1", "above 0 and below 100"),
        ("kimi-k3", "did you mean kimi-k2"),
    ],
)
def test_mistakes_are_answered_with_a_sentence(words, sentence, capsys):
    assert main(["ranges", *shlex.split(words)]) == 2
    assert sentence in " ".join(capsys.readouterr().err.split())
