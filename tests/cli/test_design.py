"""``moejax design``."""

import dataclasses
import json
import re

import numpy as np
import pytest

from moejax.__main__ import main
from moejax.cli.config_file import load
from moejax.design.constraint import Constraint
from moejax.design.decide import decide
from moejax.design.measures import CostAssumptions
from moejax.design.problem import of_sizes
from moejax.design.summary import _cost, summary, with_chips
from moejax.fit.runs import runs_from
from moejax.fit.selection.metrics import predict
from moejax.interval import Interval
from moejax.laws.dense.chinchilla import HOFFMANN_2022, optimal_split
from moejax.laws.design import Design
from moejax.plan.analytic_estimate import analytic_estimate as estimated
from moejax.plan.search import ROOM, candidates
from moejax.plan.step_time import mfu_of_step
from moejax.plan.topology import parse
from moejax.quantities import format_bytes
from moejax.report import render
from moejax.result import Result
from moejax.run_table import write
from moejax.train.training import Training, choose_hyperparameters

BUDGET = ("design", "--law", "chinchilla", "--flops", "1e21")


def test_a_budget_becomes_a_design_and_a_config_that_trains_it(capsys, tmp_path):
    assert main([*BUDGET, "--chips", "8", "--json", "--out", str(tmp_path)]) == 0
    said = json.loads(capsys.readouterr().out)
    split = optimal_split(HOFFMANN_2022, 1e21)
    assert said["optimum"]["values"]["params_active"] == pytest.approx(split["params_active"], rel=1e-6)
    assert said == json.loads((tmp_path / "design.json").read_text())
    training = choose_hyperparameters(load(Training, str(tmp_path / "config.py"), [])).training
    # As its cost assumes.
    assert (training.recipe.runtime.compute_dtype, training.recipe.mesh.fsdp) == ("bfloat16", -1)
    training.architecture.check()
    training.recipe.check()
    assert (tmp_path / "loss-vs-compute.pdf").read_bytes().startswith(b"%PDF")
    assert said["learning_rate"]["value"] == training.recipe.optimizer.learning_rate
    assert training.recipe.budgets_tokens[0] == pytest.approx(said["built"]["tokens"], abs=4096)
    assert said["built"]["measures"]["flops"] <= 1e21 * (1 + 1e-9)
    each = said["on_chips"]
    assert each["memory_bytes_a_chip"] == said["built"]["measures"]["memory_bytes"] / 8
    assert said["published"]["dense-6.1b"]["measures"]["flops"] == pytest.approx(1e21)
    # What experts gain a law of dense models does not know, and so compares no mixtures.
    assert set(said["published"]) == {"dense-6.1b"}


def test_a_sweep_has_the_dense_models_of_the_same_budget_beside_it(capsys, tmp_path):
    words = ("--law", "zhao", "--params-total", "1T", "--sweep", "flops=1e23:1e24")
    assert main(["design", *words, "--json", "--out", str(tmp_path)]) == 0
    said = json.loads(capsys.readouterr().out)
    points = said["points"]
    # The dearest lies farthest beyond the law's runs, of up to 50B tokens.
    assert said["extrapolated"]["tokens"] == pytest.approx(points[-1]["best"]["values"]["tokens"] / 50e9)
    assert (tmp_path / "frontier.png").stat().st_size > 1000
    losses = [point["best"]["values"]["loss"] for point in points]
    assert losses == sorted(losses, reverse=True)
    for point in points:
        values, equal = point["best"]["values"], point["dense_of_equal_params_and_flops"]
        assert values["loss"] < point["dense"]["values"]["loss"] < equal["loss"]
        assert equal["token_multiplier"] == pytest.approx(values["params_total"] / values["params_active"])
        assert 6 * values["params_total"] * equal["tokens"] == pytest.approx(point["budget"])


@pytest.mark.parametrize("limit", [100e9, 140e9, None])
def test_state_that_leaves_little_memory_is_flagged(limit):
    found = {"chips": 2, "days": 1.0, "memory_bytes_a_chip": 78e9, "memory_limit_bytes_a_chip": limit}
    result = with_chips(Result(data={}), found, CostAssumptions())
    flagged = limit == 100e9
    ((said,), others) = (result.warnings, result.notes) if flagged else (result.notes, result.warnings)
    assert not others
    assert ("The state takes 78% of the memory" in said) == flagged


def test_a_design_for_a_topology_fits_by_the_estimates_and_has_their_mesh(capsys, tmp_path):
    words = ("--law", "zhao", "--flops", "1e22", "--topology", "h100:2x8", "--json", "--out", str(tmp_path))
    assert main(["design", *words]) == 0
    said = json.loads(capsys.readouterr().out)
    on = said["on_topology"]
    training = choose_hyperparameters(load(Training, str(tmp_path / "config.py"), [])).training
    topology = parse("h100:2x8")
    assert estimated(training, topology).memory.total == pytest.approx(on["memory_bytes"])
    assert on["memory_bytes"] <= ROOM * on["device_memory_bytes"]
    assert on["roofline_mfu"] >= 0.4
    larger = ["design", "--law", "zhao", "--flops", "1e22", "--chips", "16", "--json", "--memory"]
    assert main([*larger, str(said["built"]["measures"]["memory_bytes"] / 16 * 1.1), "--out", str(tmp_path / "b")]) == 0
    capsys.readouterr()
    training = choose_hyperparameters(load(Training, str(tmp_path / "b/config.py"), [])).training
    every = [mfu_of_step(one.training, topology, one.seconds_without_overlap) for one in candidates(training, topology)]
    assert max(every, default=0.0) < 0.4


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--topology", "cpu:8"), "The memory and speed of cpu:8 are unknown"),
        (("--topology", "h100:8", "--chips", "8"), "exclude each other"),
        (("--topology", "h100:8", "--sweep", "flops=1e21:1e22"), "--topology designs one model"),
        (("--days", "30"), "--days needs --topology or --chips"),
        (("--topology", "h100:8", "--mfu", "0.99"), "No design reaches the assumed MFU of 99% on h100:8"),
        (("--hold", "expansion=20000"), "expansion = 20000 is outside the range of the search"),
        (("--range", "tokens=1e19:1e20"), "is outside the range of the search"),
    ],
)
def test_a_topology_that_cannot_be_designed_for_is_refused(words, sentence, capsys):
    assert main(["design", "--law", "zhao", "--flops", "1e22", *words]) == 2
    assert sentence in capsys.readouterr().err


SHORT_OF_TEXT = ("--flops", "1e22", "--unique-tokens", "25B")


@pytest.mark.slow
def test_short_text_is_repeated_at_a_price_beside_the_answers_without(capsys):
    assert main(["design", "--law", "muennighoff", *SHORT_OF_TEXT]) == 0
    said = capsys.readouterr().out
    assert main(["design", "--law", "data_constrained", *SHORT_OF_TEXT, "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert f"{plain['optimum']['values']['epochs']:.3f}" in said
    assert {price["constraint"]["name"] for price in plain["prices"]} == {"flops", "unique_tokens"}
    assert plain["repeats"]["no_token_twice"]["values"]["tokens"] == pytest.approx(25e9)
    assert f"{plain['repeats']['no_token_twice']['values']['loss']:.4f}" in said
    assert f"{plain['repeats']['without_end_on_these']['loss']:.4f}" in said
    assert plain["built"]["measures"]["epochs"] == pytest.approx(plain["built"]["tokens"] / 25e9)


def test_text_without_a_price_for_repeats_is_a_hard_constraint_and_said(capsys):
    assert main(["design", "--law", "chinchilla", *SHORT_OF_TEXT]) == 0
    said = capsys.readouterr().out
    assert "Chinchilla: no model of repeated tokens" in said
    assert said.count("Train the first column: ") == 1
    assert "follow dense-6.1b" in said
    assert "tokens <= 25B" in said


def test_text_is_swept_under_a_law_that_repeats_it(capsys):
    words = ("--law", "data_constrained", "--flops", "1e22", "--sweep", "unique_tokens=10B:1T", "--json")
    assert main(["design", *words]) == 0
    points = [point["best"]["values"] for point in json.loads(capsys.readouterr().out)["points"]]
    epochs = [point["epochs"] for point in points]
    assert epochs == sorted(epochs, reverse=True)
    assert epochs[0] > 10 > 1 > epochs[-1]


@pytest.mark.slow
def test_two_sweeps_are_a_landscape(capsys, tmp_path):
    words = ("--law", "leverage", "--flops", "1e22", "--sweep", "expert_expansion=2:128", "--sweep", "granularity=1:32")
    assert main(["design", *words, "--json", "--out", str(tmp_path)]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (tmp_path / "landscape.png").stat().st_size > 1000
    # 1e22 FLOPs are beyond the 3e20 that the law was fitted to.
    assert said["extrapolated"]["flops"] == pytest.approx(1e22 / 3e20)
    heights = said["efficiency_leverage"]
    assert len(heights) == len(heights[0]) == 9
    best = [row.index(max(row)) for row in heights]
    assert len(set(best)) == 1, "the best granularity does not depend on the activation ratio"
    assert max(heights[-1]) > max(heights[0])


@pytest.mark.slow
def test_a_fit_with_its_runs_gives_intervals_of_what_is_decided(capsys, tmp_path):
    active, tokens = (a.ravel() for a in np.meshgrid(np.geomspace(1e8, 2e9, 6), np.geomspace(2e9, 4e10, 4)))
    noise = np.exp(0.002 * np.random.default_rng(0).normal(size=24))
    losses = predict(HOFFMANN_2022, runs_from(Design(params_active=active, tokens=tokens), np.ones(24))) * noise
    rows = [{"params_active": n, "tokens": d, "loss": loss} for n, d, loss in zip(active, tokens, losses, strict=True)]
    table = str(write(rows, tmp_path / "runs.csv"))
    assert main(["fit", table, "--law", "chinchilla", "--starts", "64", "--out", str(tmp_path / "fit")]) == 0
    fit = str(tmp_path / "fit" / "fit.json")
    capsys.readouterr()
    words = ("--law", fit, "--flops", "1e21", "--runs", table, "--bootstrap", "10", "--json")
    assert main(["design", *words]) == 0
    said = json.loads(capsys.readouterr().out)
    interval = said["intervals"]["params_active"]
    assert interval["low"] < said["optimum"]["values"]["params_active"] < interval["high"]
    assert (interval["by"], interval["level"]) == ("bootstrap of 10 resamples by group", 0.9)
    assert interval["uninformative"] is False
    assert main(["design", "--law", fit, "--flops", "1e24", "--level", "0.999"]) == 0
    shown = capsys.readouterr()
    assert "99.9% interval of sizes alone, from standard errors" in " ".join(shown.out.split())
    assert "! The optimum over sizes lies outside the law's fitted range: flops " in shown.out
    assert "! The model to train is outside the law's fitted range: flops " in shown.out
    assert main(["design", "--law", "chinchilla", "--flops", "1e21", "--runs", table, "--bootstrap", "10"]) == 2
    assert "--runs is for bootstrap intervals of a fit" in capsys.readouterr().err


def test_the_options_in_the_warning_about_extrapolation_keep_sizes_within_the_fitted_range(capsys):
    words = ["design", "--law", "zhao", "--flops", "1e21", "--params-total", "34B"]
    assert main(words) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "expansion, active_experts and tokens, because its parameters and FLOPs are counted exactly; --shape" in said
    options = re.findall(r"--range (\w+)=\S+:\S+(?=[ .])", said)
    assert options == ["params_total", "active_experts"]
    given = re.findall(r"--range \w+=\w+:[\d.]+\w?", said)
    assert main([*words, *(word for one in given for word in one.split())]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert re.search(r"outside the law's fitted range: tokens [\d.]+× above\.", said)
    assert "within the fitted range, add" not in said


def test_one_table_says_what_to_train_and_what_each_restriction_costs_adds_up(monkeypatch):
    shown = []
    monkeypatch.setattr(render, "show", lambda result, **_: shown.append(result))
    assert main(["design", "--law", "zhao", "--flops", "1e22", "--params-total", "1e11"]) == 0
    plain, said = json.loads(render.json(shown[0])), " ".join(render.text(shown[0]).split())
    alone, shape = (plain[key]["values"]["loss"] for key in ("optimum", "shape"))
    built = plain["built"]["predicted"]["loss"]
    assert alone <= shape <= built
    assert said.count("params_active ") == 1
    assert f"loss {built:.5f} {shape:.5f} {alone:.5f}" in said
    assert f"cost {shape - alone:+.5f} nats over sizes alone" in said
    assert f"cost {built - shape:+.5f} nats more" in said
    assert f"{format_bytes(plain['built']['measures']['memory_bytes'])} " in said
    assert "sizes alone, whose FLOPs are 6·N·D. The FLOPs of the other columns follow the convention exact" in said
    assert "9.89e+14 FLOP/s per chip at an MFU of 40%" in said


def test_what_whole_numbers_save_is_no_negative_cost_and_a_dense_models_parameters_are_said_once():
    wide = Interval(low=1e8, middle=1e9, high=1e10, deviation=1e9, undefined=0.0)
    found = decide(of_sizes(HOFFMANN_2022, (Constraint(name="flops", high=1e21),)))
    found = dataclasses.replace(found, intervals={"params_active": wide}, level=0.8, by="from standard errors")
    said = render.text(summary("chinchilla", found), width=200)
    assert re.search(r"Train the first column: [\d.]+B parameters on", said)
    assert "80% interval of sizes alone, from standard errors" in said
    assert "[100M, 10B] (not determined by these runs)" in said
    assert [_cost(2.0, after, "loss") for after in (2.5, 1.5)] == ["cost +0.50000 nats", "save 0.50000 nats"]
    assert _cost(2.0, 1.5, "flops") == "save 25.00%"
    assert str(Constraint(name="memory_bytes", high=40.96e12)) == "memory_bytes <= 40.96 TB"
    assert str(Constraint(name="kv_bytes", low=1e9, high=1e9)) == "kv_bytes = 1 GB"


@pytest.mark.parametrize(
    ("law", "held", "like"),
    [
        ("zhao", {"num_experts": 64}, ""),
        ("effective_params", {"active_experts": 9}, ""),
        ("sparsity", {"top_k": 4, "num_experts": 128}, ""),
        ("chinchilla", {"num_layers": 40}, ""),
        ("chinchilla", {"num_experts": 64}, "glm-4.5-air"),
    ],
)
def test_a_message_about_a_held_dimension_names_options_that_work(capsys, law, held, like):
    words = ["design", "--law", law, "--flops", "1e22", "--params-total", "100B"]
    words += [word for name, value in held.items() for word in ("--hold", f"{name}={value}")]
    assert main(words) == 2
    assert "(--shape)" in capsys.readouterr().err
    words.append("--shape")
    if like:
        assert main(words) == 2
        assert "(--arch or --config)" in capsys.readouterr().err
        words += ["--arch", like]
    assert main([*words, "--json"]) == 0
    built = json.loads(capsys.readouterr().out)["built"]["measures"]
    assert {name: built[name] for name in held} == held


def test_a_held_activation_ratio_counts_the_shared_experts_of_a_shape(capsys):
    words = ["design", "--law", "zhao", "--flops", "1e22", "--shape", "--arch", "qwen3-30b-a3b", "--json"]
    assert main([*words, "--hold", "activation_ratio=0.05"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["shape"]["values"]["activation_ratio"] == pytest.approx(0.05, rel=1e-6)


@pytest.mark.parametrize("minimize", ["--minimize", "--minimise"])
def test_constraints_that_conflict_are_named(capsys, minimize):
    assert main(["design", "--law", "zhao", "--flops", "1e20", "--target-loss", "1.83", minimize, "tokens"]) == 2
    said = capsys.readouterr().err
    assert "cannot all hold" in said
    assert "flops" in said
    assert "loss" in said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--law", "chinchilla"), "Nothing constrains the design"),
        (("--law", "chinchila", "--flops", "1e21"), "no law 'chinchila'"),
        (("--law", "chinchilla", "--flops", "1e21", "--hold", "width=8"), "width is unknown"),
        (("--law", "chinchilla", "--flops", "1e21", "--range", "tokens=5"), "NAME=LOW:HIGH"),
        (("--law", "chinchilla", "--flops", "1e21", "--convention", "tien"), "did you mean tian"),
        (
            ("--law", "leverage", "--params-total", "1e9"),
            "Constrain expert_expansion, granularity or flops",
        ),
        (("--law", "three_factor", "--flops", "1e21"), "No constants are published"),
        (("--law", "zhao", "--flops", "1e21", "--arch", "dense-6.1b", "--shape"), "the number of active experts"),
        (
            ("--law", "abnar", "--flops", "1e21", "--hold", "sparsity=0.5", "--arch", "dense-6.1b", "--shape"),
            "sparsity = 0.5 needs an MoE model",
        ),
        (("--law", "zhao", "--sweep", "a=1:2", "--sweep", "tokens=1:2", "--sweep", "b=1:2"), "3 times"),
        (("--law", "zhao", "--flops", "1e21", "--sweep", "expension=1:2", "--sweep", "tokens=1:2"), "expansion"),
    ],
)
def test_mistakes_are_sentences(capsys, words, says):
    assert main(["design", *words]) == 2
    assert says in capsys.readouterr().err


def test_a_range_of_a_dimension_that_the_law_does_not_read_is_not_searched(capsys):
    words = ["design", "--law", "chinchilla", "--flops", "1e22", "--shape", "--json"]
    assert main([*words, "--range", "num_layers=10:60"]) == 2
    assert "--hold num_layers=VALUE" in capsys.readouterr().err
    words += ["--arch", "glm-4.5-air"]
    built = []
    for more in ([], ["--range", "granularity=1:32"]):
        assert main([*words, *more]) == 0
        built.append(json.loads(capsys.readouterr().out)["built"]["architecture"])
    assert built[0] == built[1]


@pytest.mark.parametrize(
    ("like", "says"),
    [
        ("deepseek-v3.1", "Exports as: DeepseekV3ForCausalLM"),
        ("glm-4.5-air", "nearest family: qwen2_moe cannot express"),
    ],
)
def test_a_design_names_its_class_in_transformers(capsys, like, says):
    assert main(["design", "--law", "zhao", "--flops", "1e22", "--params-total", "100B", "--arch", like]) == 0
    assert says in capsys.readouterr().out
