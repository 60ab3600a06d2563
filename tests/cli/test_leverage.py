"""``moejax leverage``."""

import dataclasses
import json
import re

import numpy as np
import pandas as pd
import pytest

from moejax.__main__ import main
from moejax.cli.commands.leverage import LeverageCommand
from moejax.cli.options import flag_of
from moejax.fit.fit_result import FitResult
from moejax.fit.uncertainty.estimands import decision_estimands, find
from moejax.float64 import float64
from moejax.laws.dense.loss_compute import LossCompute
from moejax.laws.design import Design
from moejax.laws.mixtures.effective_params import CHAPTER_002, EffectiveParams
from moejax.run_table import write

DENSE = LossCompute(scale=60.0, exponent=-0.08, irreducible=1.2)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    rows = []
    for experts, gain in ((0, 1.0), (64, 4.0)):
        for flops in np.geomspace(3e18, 3e20, 5):
            with float64():
                loss = float(DENSE(Design(flops=np.float64(flops * gain))))
            rows.append({"num_experts": experts, "flops": flops, "loss": loss})
    return write(rows, tmp_path_factory.mktemp("runs") / "runs.csv")


def test_two_families_of_a_table_are_compared_at_the_firsts_budgets(table, capsys):
    assert main(["leverage", f"{table}:num_experts > 0", f"{table}:num_experts == 0", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["leverage"]
    assert [row["leverage"] for row in said] == pytest.approx([4.0] * 5, rel=1e-4)
    assert all(row["low"] <= row["leverage"] <= row["high"] for row in said)


def test_notes_on_a_table_of_two_families_are_printed_once(table, tmp_path, capsys):
    copy = tmp_path / "renamed.csv"
    pd.read_csv(table).rename(columns={"loss": "eval_loss"}).to_csv(copy, index=False)
    assert main(["leverage", f"{copy}:num_experts > 0", f"{copy}:num_experts == 0"]) == 0
    assert capsys.readouterr().err.count("Columns under other names") == 1


def test_two_budgets_have_a_leverage_at_a_given_asymptote_and_a_power_law_without_one(table, capsys):
    families = [f"{table}:num_experts {how} 0 and flops < 1.2e19" for how in (">", "==")]
    assert main(["leverage", *families, "--fix", "irreducible=1.2", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["leverage"]
    assert [row["leverage"] for row in said] == pytest.approx([4.0] * 2, rel=1e-6)
    assert main(["leverage", *families]) == 0
    said = capsys.readouterr().out
    assert "B was trained at 2 budgets, too few to fit an irreducible loss" in said
    assert "no budget is left to estimate the noise" in said


def test_two_families_of_designs_are_compared_under_a_law(capsys):
    words = ("leverage", "expansion=16", "expansion=1", "--law", "effective_params", "--flops", "1e22")
    assert main([*words, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["leverage"]
    (estimand,) = find("EL", decision_estimands(EffectiveParams, {"flops": 1e22, "expansion": 16.0}), EffectiveParams)
    with float64():
        assert row["leverage"] == pytest.approx(float(estimand.functional(CHAPTER_002)), rel=1e-6)
    assert row["low"] is None
    assert main([*words]) == 0
    assert "at equal loss" in capsys.readouterr().out


@pytest.fixture(scope="module")
def variants(tmp_path_factory):
    """A variant that is worth 1.3 times the compute, at eight budgets, in tables of FLOPs and of sizes."""
    random, rows = np.random.default_rng(0), []
    for variant in (0, 1):
        for flops in np.geomspace(1e18, 1e20, 8):
            loss = 1.6 + 60 * (flops * 1.3**variant) ** -0.09
            rows.append({"V": variant, "flops": flops, "loss": loss * np.exp(0.0005 * random.normal())})
    return write(rows, tmp_path_factory.mktemp("variants") / "runs.csv")


def test_a_column_of_a_formula_has_a_leverage_with_an_interval(variants, tmp_path, capsys):
    out = str(tmp_path / "fit")
    form = ["--form", "loss = 1.6 + A*(flops*exp(g*V))^-b", "--either", "g", "--penalty", "squared", "--starts", "64"]
    assert main(["fit", str(variants), *form, "--out", out]) == 0
    capsys.readouterr()
    words = ["leverage", "V=1", "V=0", "--law", f"{out}/fit.json", "--flops", "1e19"]
    assert main([*words, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["leverage"]
    worth = FitResult.load(f"{out}/fit.json").conf_int().loc["g"]
    assert np.log([row["low"], row["leverage"], row["high"]]) == pytest.approx(
        worth[["low", "value", "high"]], rel=1e-6
    )
    assert row["leverage"] == pytest.approx(1.3, rel=0.05)
    assert main([*words, "--flops", "1e22"]) == 0
    said = capsys.readouterr().out
    assert "times in flops" in said
    assert "Under this law the leverage is the same at every budget" in said
    for wrong in ("V=1,W=2", "W=1"):
        assert main(["leverage", wrong, "V=0", *words[3:]]) == 2
        assert "give V=VALUE" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("a.csv", "b.csv"), "The table a.csv does not exist"),
        (("kimi-k3", "glm-4.5", "--law", "zhao", "--flops", "1e24"), "kimi-k2"),
        (("expansion=16", "expansion=1", "--law", "leverage", "--flops", "1e24"), "predicts no loss"),
        (("expansion=16", "expansion=0.5", "--law", "effective_params", "--flops", "1e22"), "is at least 1"),
        (("kimi-k2", "dense-6.1b", "--law", "zhao", "--flops", "1e24"), "the number of active experts"),
        (("kimi-k2", "mixtral-8x7b", "--law", "chinchilla", "--flops", "1e24"), "do not distinguish kimi-k2"),
    ],
)
def test_mistakes_are_sentences(capsys, words, says):
    assert main(["leverage", *words]) == 2
    assert says in capsys.readouterr().err


def test_families_of_published_models_say_how_far_they_lie_beyond_the_law(capsys):
    # Mixtral has no shared experts, the end of what there is.
    assert main(["leverage", "mixtral-8x7b", "kimi-k2", "--law", "zhao", "--flops", "1e22"]) == 0
    said = capsys.readouterr().out
    assert "lies outside the law's fitted range: " in said
    assert "tokens" in said


def test_sizes_of_one_budget_are_no_replicates_and_how_its_loss_came_about_is_said(tmp_path, capsys):
    rows = []
    for experts, sizes in ((0, 5), (8, 3)):
        for flops in np.geomspace(3e18, 3e20, 5):
            with float64():
                loss = float(DENSE(Design(flops=np.float64(flops * (1 + experts / 4)))))
            for offset in np.linspace(-0.6, 0.6, sizes):
                size = np.sqrt(flops / 120) * np.exp(offset)
                row = {"params_active": size, "tokens": flops / 6 / size, "loss": loss * (1 + 0.01 * offset**2)}
                rows.append({"num_experts": experts, "top_k": min(experts, 1), "flops": flops, **row})
    table = write(rows, tmp_path / "runs.csv")
    words = ("leverage", f"{table}:num_experts > 0", f"{table}:num_experts == 0")
    assert main([*words]) == 0
    said = capsys.readouterr()
    assert "replicates" not in said.err
    assert "A: the loss at each of 5 budgets is the minimum of a quadratic in log params_active" in said.out
    assert "3 runs per budget" in said.out
    assert "luckier" not in said.out
    assert "B's up to 3 times above its largest" in said.out
    assert main([*words, "--map", "params_active=0*flops+1e8", "--map", "tokens=flops/6e8"]) == 0
    said = capsys.readouterr()
    assert "the lowest of 3 runs in A, and the lowest of 5 runs in B" in said.out
    assert main([*words, "--flops", "3e21", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["leverage"]
    assert (row["a_beyond"], row["b_beyond"]) == (pytest.approx(10), pytest.approx(30, rel=0.02))


def test_every_option_that_is_named_where_curves_are_not_determined_is_one_of_the_command(tmp_path, capsys):
    random, rows = np.random.default_rng(0), []
    for experts in (0, 8):
        for flops in np.geomspace(1e18, 3e18, 5):
            with float64():
                loss = float(DENSE(Design(flops=np.float64(flops))))
            rows.append({"num_experts": experts, "flops": flops, "loss": loss * np.exp(0.002 * random.normal())})
    table = write(rows, tmp_path / "runs.csv")
    assert main(["leverage", f"{table}:num_experts > 0", f"{table}:num_experts == 0"]) == 0
    said = capsys.readouterr()
    assert "The data do not determine" in said.out
    options = {flag_of(LeverageCommand, field.name) for field in dataclasses.fields(LeverageCommand) if field.metadata}
    assert set(re.findall(r"--[a-z]+(?:-[a-z]+)*", said.out + said.err)) <= options


def test_rows_that_are_in_both_families_are_counted_and_flops_that_follow_are_offered(table, tmp_path, capsys):
    assert main(["leverage", str(table), f"{table}:num_experts == 0"]) == 0
    assert "5 runs with equal FLOPs and loss are in both A and B" in capsys.readouterr().out
    rows = [{"params_active": n, "tokens": 20 * n, "loss": 3 - n / 1e9} for n in (1e7, 2e7, 4e7, 8e7)]
    sizes = write(rows, tmp_path / "sizes.csv")
    assert main(["leverage", str(sizes), str(sizes)]) == 2
    assert "--map 'flops=6 * params_active * tokens'" in capsys.readouterr().err


def test_families_whose_flops_are_counted_otherwise_are_said(tmp_path, capsys):
    rows = [
        {"kind": kind, "params_active": n, "tokens": 20 * n, "flops": times * 120 * n**2, "loss": 2 + 400 / n**0.34}
        for kind, times in (("a", 3.0), ("b", 6.0))
        for n in (1e7, 2e7, 4e7, 8e7, 1.6e8)
    ]
    runs = write([{**row, "flops": row["flops"] / 6} for row in rows], tmp_path / "runs.csv")
    assert main(["leverage", f"{runs}:kind == 'a'", f"{runs}:kind == 'b'", "--trust-units"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "A's FLOPs are 0.5 times 6·params_active·tokens and B's 1 times" in said
    assert "A: no budget has three sizes near its lowest loss" in said


def test_budgets_that_took_no_part_are_named(tmp_path, capsys):
    rows = []
    for experts, gain in ((0, 1.0), (8, 2.0)):
        for size in 2e7 * 2.0 ** np.arange(6):
            for ratio in 5 * 2.0 ** np.arange(6):
                tokens = size * ratio
                loss = 1.7 + 400 / (gain * size) ** 0.34 + 410 / tokens**0.28
                row = {"num_experts": experts, "top_k": min(experts, 1), "params_active": size, "tokens": tokens}
                rows.append(row | {"flops": 6 * size * tokens, "loss": loss})
    grid = write(rows, tmp_path / "grid.csv")
    assert main(["leverage", f"{grid}:num_experts > 0", f"{grid}:num_experts == 0", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["leverage"]
    # Twice the effective parameters at every size: twice the FLOPs at equal loss, less the tokens' share.
    assert np.ptp([row["leverage"] for row in said]) < 0.2
    assert all(row["low"] < row["leverage"] < row["high"] for row in said)
    assert main(["leverage", f"{grid}:num_experts > 0", f"{grid}:num_experts == 0"]) == 0
    assert "because the best size is outside the trained sizes" in capsys.readouterr().out
