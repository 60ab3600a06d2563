"""``moejax next``."""

import json

import numpy as np
import pytest

import moejax as mj
from moejax.__main__ import main
from moejax.cli.commands.next import _swept
from moejax.cli.config_file import load
from moejax.experimental_design.summary import names_of
from moejax.fit.runs import runs_from
from moejax.fit.search.starts import Sobol
from moejax.fit.selection.metrics import predict
from moejax.laws.accounting import design_of, flops_per_token
from moejax.laws.catalogue import find
from moejax.laws.chips import CHIPS, flops_per_hour
from moejax.laws.dense.chinchilla import HOFFMANN_2022, Chinchilla
from moejax.laws.design import Design
from moejax.run_table import read, write
from moejax.stored import read_json
from moejax.study.analysis import warnings
from moejax.study.study import Study

SIZES = [(n, d) for n in (5e7, 1e8, 2e8) for d in (1e9, 2e9, 4e9)]
LARGE = "loss:params_active=70B,tokens=1.4T"


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    active, tokens = np.asarray(SIZES).T
    design = Design(params_active=active, tokens=tokens)
    losses = predict(HOFFMANN_2022, runs_from(design, np.ones(9))) * np.exp(
        0.003 * np.random.default_rng(0).normal(size=9)
    )
    rows = [{"params_active": n, "tokens": d, "loss": loss} for (n, d), loss in zip(SIZES, losses, strict=True)]
    return write(rows, tmp_path_factory.mktemp("runs") / "runs.csv")


def words(table, *more):
    return ["next", str(table), "--law", "chinchilla", "--flops", "1e20", "--k", "4", "--starts", "128", *more]


def test_the_runs_that_are_proposed_are_a_study(table, tmp_path, capsys):
    assert main(words(table, "--target", LARGE, "--arch", "dense-6.1b", "--json", "--out", str(tmp_path))) == 0
    said = json.loads(capsys.readouterr().out)
    assert said == read_json(tmp_path / "next.json", dict, remedy="")
    assert 1 <= len(said["runs"]) <= 4
    assert said["flops"] <= 1e20
    (title,) = said["deviation_of_log_after"]
    assert said["deviation_of_log_after"][title] < said["deviation_of_log_before"][title]
    study = load(Study, str(tmp_path / "study.py"), [])
    study.check()
    assert warnings(study) == [], "the runs extend a table, so the study fits no laws"
    trained = {
        (float(design_of(t.architecture, 1.0).params_active), float(budget))
        for t in study.trainings()
        for budget in t.recipe.budgets_tokens
    }
    assert {(run["params_active"], run["tokens"]) for run in said["runs"]} == trained


def test_runs_that_are_mostly_vocabulary_for_lack_of_others_are_named_as_such(table, tmp_path, capsys):
    warned = []
    for vocabulary in (4_000_000, 256):
        config = tmp_path / f"mine_{vocabulary}.py"
        config.write_text(
            "def get_config():\n"
            "    from ml_collections import ConfigDict\n"
            "    heads = dict(num_heads=4, num_kv_heads=4, head_dim=32)\n"
            "    dense = dict(num_layers=4, model_dim=128, dense_hidden=512, num_experts=0, top_k=0, **heads)\n"
            f"    dense['vocab_size'] = {vocabulary}\n"
            "    return ConfigDict(dict(architecture=dense))\n"
        )
        assert main(words(table, "--target", LARGE, "--config", str(config))) == 0
        warned.append("more than half of the active parameters belong to the vocabulary" in capsys.readouterr().out)
    assert warned == [True, False]


def test_candidates_have_the_vocabulary_that_is_given(table, tmp_path, capsys):
    assert main(words(table, "--target", LARGE, "--vocab-size", "256", "--out", str(tmp_path))) == 0
    printed = capsys.readouterr()
    assert "belong to the vocabulary" not in printed.out
    assert "a vocabulary of" not in printed.err
    study = load(Study, str(tmp_path / "study.py"), [])
    assert {one.architecture.vocab_size for one in study.trainings()} == {256}
    assert main(words(table, "--target", LARGE)) == 0
    printed = capsys.readouterr()
    assert "(at most 50% of the table's smallest model); choose others" in " ".join(printed.err.split())
    if "No choice" in printed.out:
        assert "Other candidates (--candidates, --vocab-size or --sequence-length)" in " ".join(printed.out.split())
    assert main(words(table, "--target", LARGE, "--vocab-size", "256", "--candidates", str(table))) != 0
    assert "exclude each other" in capsys.readouterr().err


def test_runs_are_chosen_from_a_table_of_what_could_be_trained(table, tmp_path, capsys):
    rows = [{"params_active": n, "tokens": d, "flops": 6 * n * d} for n in (3e7, 4e8) for d in (1e9, 8e9)]
    candidates = write(rows, tmp_path / "could.csv")
    asked = ["--target", LARGE, "--target", "N*:flops=1e23", "--target", "N*:flops=1e24"]
    assert main(words(table, *asked, "--candidates", str(candidates))) == 0
    said = capsys.readouterr().out
    assert "row " in said
    assert said.count("these runs are expected to leave") == 3
    assert "optimal_params_active (N*) at flops = 1e+23: these" in said
    assert "Budget: 1e+20 FLOPs. These runs:" in said
    assert "chip-hours of NVIDIA H100 SXM at 40%" in said
    assert "the candidates' FLOPs" in said


def test_proposals_from_a_table_of_candidates_say_how_to_train_them(table, tmp_path, capsys):
    rows = [{"params_active": n, "tokens": d, "flops": 6 * n * d} for n in (3e7, 4e8) for d in (1e9, 8e9)]
    candidates = str(write(rows, tmp_path / "could.csv"))
    assert main(words(table, "--target", LARGE, "--candidates", candidates, "--out", str(tmp_path / "next"))) == 0
    assert "write a config with their architectures for moejax study (docs/studies.md)" in capsys.readouterr().err
    target = {"loss": {"params_active": 70e9, "tokens": 1.4e12}}
    proposal = mj.next_runs(str(table), "chinchilla", target, flops=1e20, candidates=candidates, starts=Sobol(128))
    assert {"flops", "flops_cumulative"} <= {*proposal.to_frame()}


def test_uncertainties_name_their_method(table, tmp_path, capsys):
    rows = [{"params_active": n, "tokens": d, "flops": 6 * n * d} for n in (3e7, 4e8) for d in (1e9, 8e9)]
    asked = ["--target", LARGE, "--candidates", str(write(rows, tmp_path / "could.csv"))]
    for more, method in (
        ([], "Standard errors of the answer's logarithm: CR2 sandwich"),
        (["--around", "hoffmann-2022", "--noise", "0.01"], "a Laplace approximation around published constants"),
    ):
        assert main(words(table, *asked, *more)) == 0
        assert method in " ".join(capsys.readouterr().out.split())


def test_only_runs_with_a_sweep_are_called_the_best_of_a_sweep():
    assert not list(_swept("lr", [Chinchilla], np.array([1, 1])))
    (some,) = _swept("lr", [Chinchilla], np.array([1, 3, 3, 1]))
    assert "2 of 4 runs of the table are the best of a sweep over lr" in some
    assert "A sweep of 3 runs, as in the table, costs 3 times these FLOPs." in some
    (every,) = _swept("lr", [Chinchilla], np.array([2, 4]))
    assert every.startswith("Every run of the table is the best of a sweep over lr")


def test_no_candidate_above_the_largest_run_is_proposed(table, tmp_path, capsys):
    candidates = write([{"params_active": 3e7, "tokens": 1e9, "flops": 1.8e17}], tmp_path / "could.csv")
    assert main(words(table, "--target", LARGE, "--candidates", str(candidates), "--largest", "1e10")) == 2
    assert "the smallest has 1.8e+17); raise the budget or --largest" in capsys.readouterr().err


def test_candidates_and_sizes_have_the_names_of_the_table_and_a_budget_may_be_of_hours(table, tmp_path, capsys):
    rows = read(table).rename(columns={"params_active": "N_act"})
    mine = tmp_path / "mine.csv"
    rows.to_csv(mine, index=False)
    could = [{"model": f"mine-{n:g}", "N_act": n, "tokens": 8e9, "flops": 6 * n * 8e9} for n in (3e7, 4e8)]
    candidates = write(could, tmp_path / "could.csv")
    asked = ["--target", LARGE, "--candidates", str(candidates), "--map", "params_active=N_act", "--starts", "128"]
    budget = ["--chip-hours", "100", "--chip", "v5p", "--mfu", "0.5"]
    assert main(["next", str(mine), "--law", "chinchilla", "--k", "2", *budget, *asked]) == 0
    said = capsys.readouterr().out
    assert "N_act" in said
    assert "mine-4e+08" in said
    assert "Budget: 100 chip-hours. These runs:" in said
    assert "chip-hours of TPU v5p at 50%" in said


def test_chip_hours_are_those_of_the_study_that_trains_the_runs(table, tmp_path, capsys):
    asked = ["--target", LARGE, "--arch", "dense-6.1b", "--json", "--out", str(tmp_path), "--starts", "128"]
    budget = ["--chip-hours", "50", "--chip", "h100", "--mfu", "0.4"]
    assert main(["next", str(table), "--law", "chinchilla", "--k", "4", *budget, *asked]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["budget_chip_hours"] == pytest.approx(50)
    assert said["chip_hours"] <= 50
    study = load(Study, str(tmp_path / "study.py"), [])
    chip = CHIPS["h100"]
    of_runs = {(run["params_active"], run["tokens"]) for run in said["runs"]}
    causal = sum(
        float(flops_per_token(t.architecture, t.recipe.data.sequence_length).training_causal) * budget
        for t in study.trainings()
        for budget in t.recipe.budgets_tokens
        if (float(design_of(t.architecture, 1.0).params_active), float(budget)) in of_runs
    )
    assert said["chip_hours"] == pytest.approx(causal / flops_per_hour(chip.flops_per_second, 0.4))
    assert said["flops"] > causal


def test_architectures_of_the_table_keep_its_names():
    small = find("dense-6.1b").architecture
    large = small.replace(num_layers=2 * small.num_layers)
    assert names_of([small, large, small], ["proxy-a", "", "proxy-a"]) == ["proxy-a", names_of([large])[0], "proxy-a"]


@pytest.mark.slow
def test_runs_are_proposed_for_a_law_by_formula_with_columns_and_a_budget_of_its_own(tmp_path, capsys):
    sizes = [(n, d, w) for n in (1e8, 2e8, 4e8) for d in (1e9, 2e9, 4e9) for w in (512.0, 1024.0)]
    chance = np.random.default_rng(0).normal(size=len(sizes))
    made = {(n, d, w): 1.7 + 400 / n**0.34 + 410 / d**0.28 + 3 / w for n, d, w in sizes}
    rows = [
        {"params": n, "tokens": d, "width": w, "loss": loss * np.exp(0.002 * luck)}
        for ((n, d, w), loss), luck in zip(made.items(), chance, strict=True)
    ]
    runs = write(rows, tmp_path / "runs.csv")
    could = write([{"params": n, "tokens": d, "width": w} for n, d, w in sizes if n < 4e8], tmp_path / "could.csv")
    form = [
        "next",
        str(runs),
        "--form",
        "loss = E + A/N^a + B/D^b + k/width",
        "--budget",
        "C = 6*N*D",
        "--flops",
        "1e20",
    ]
    asked = ["--target", "N*:flops=1e22,width=2048", "--target", "loss:params_active=1e10,tokens=1e11,width=2048"]
    assert main([*form, *asked, "--k", "3", "--starts", "128", "--candidates", str(could), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert 1 <= len(said["runs"]) <= 3
    assert {run["width"] for run in said["runs"]} <= {512.0, 1024.0}
    assert all(said["deviation_of_log_after"][t] < before for t, before in said["deviation_of_log_before"].items())
    assert main([*form, *asked]) == 2
    assert "The law reads width, which an architecture does not determine" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--target", "deepseek-v3.1"), "deepseek-v3.1:tokens="),
        (("--target", "M*:flops=1e23"), "chinchilla has no coefficient or decision M*"),
        (("--target", "N*:flops=1e23,params_total=3e10"), "as the target: loss:params_active=…,tokens=…"),
        (("--target", LARGE, "--around", "nobody"), "nobody"),
        (("--target", LARGE, "--around", "hoffmann-2022"), "give --noise"),
        (("--target", LARGE, "--flops", "1e9", "--arch", "dense-6.1b"), "larger budget or --reach"),
    ],
)
def test_mistakes_are_sentences(table, capsys, more, says):
    assert main(words(table, *more)) == 2
    assert says in capsys.readouterr().err


def test_shapes_that_cannot_be_as_small_as_the_table_s_are_not_called_too_dear(table, tmp_path, capsys):
    tiny = write([{"params_active": n / 1e4, "tokens": d / 1e4, "loss": 3.0} for n, d in SIZES], tmp_path / "tiny.csv")
    around = ("--around", "hoffmann-2022", "--noise", "0.01", "--trust-units")
    assert main(words(tiny, "--target", LARGE, "--arch", "dense-6.1b", *around)) == 2
    assert "give an architecture closer" in capsys.readouterr().err


@pytest.mark.slow
def test_too_few_runs_for_a_fit_are_planned_by_modes_or_around_published_constants(tmp_path, capsys):
    few = write([{"params_active": 1e8, "tokens": 1e9, "loss": 3.2}], tmp_path / "few.csv")
    more = ("--target", "N*:flops=1e23", "--arch", "dense-6.1b")
    assert main(words(few, *more)) == 0
    captured = capsys.readouterr()
    assert "uses all modes of the law's posterior" in " ".join((captured.err + captured.out).split())
    assert main(words(few, *more, "--around", "hoffmann-2022", "--noise", "0.003")) == 0
    assert "do not identify" in capsys.readouterr().out


def test_a_coefficient_below_0_is_asked_by_its_size(table, capsys):
    form = ["next", str(table), "--form", "loss = k*N^a*D^b", "--flops", "1e20", "--k", "2", "--starts", "64"]
    assert main([*form, "--target", "a", "--arch", "dense-6.1b", "--json"]) == 0
    said = capsys.readouterr()
    (law,) = json.loads(said.out)["laws"].values()
    assert law["answers"]["|a| (|a|)"] > 0
    assert "does not determine" not in said.err


def test_tokens_per_parameter_of_what_is_proposed_are_near_the_tables(table, capsys):
    assert main(words(table, "--target", LARGE, "--arch", "dense-6.1b", "--json", "--reach", "2")) == 0
    ratios = [run["tokens"] / run["params_active"] for run in json.loads(capsys.readouterr().out)["runs"]]
    known = [d / n for n, d in SIZES]
    assert min(known) / 2 <= min(ratios)
    assert max(ratios) <= max(known) * 2


def test_every_mode_of_a_posterior_is_planned_for_and_said_to_be(table, capsys):
    assert main(words(table, "--target", LARGE, "--arch", "dense-6.1b", "--json", "--modes")) == 0
    said = json.loads(capsys.readouterr().out)
    assert sum(law["share_of_posterior"] for law in said["laws"].values()) == pytest.approx(1)
    assert next(iter(said["laws"])) == "chinchilla"
