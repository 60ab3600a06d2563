"""``moejax fit`` from a file to an answer, and from a mistake to a sentence."""

import json
import re
import shlex

import numpy as np
import pandas as pd
import pytest

from moejax.__main__ import main
from moejax.cli.commands.compare import CompareCommand
from moejax.cli.commands.fit import RECIPES
from moejax.cli.options import check
from moejax.cli.parser import parse_command
from moejax.errors import UserError
from moejax.fit.answers import asked_of
from moejax.fit.fit_result import FitResult
from moejax.fit.tables.read_runs import read_runs
from moejax.fit.uncertainty import bootstrap
from moejax.laws.dense.chinchilla import HOFFMANN_2022
from moejax.laws.design import Design
from moejax.laws.law import coefficients
from moejax.wording import in_command


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A table in somebody else's words: sizes in millions, steps instead of tokens."""
    rng = np.random.default_rng(0)
    active, steps = np.exp(rng.uniform(np.log([10, 2e3]), np.log([1e4, 2e6]), (60, 2))).T
    loss = HOFFMANN_2022(Design(params_active=active * 1e6, tokens=steps * 520_000.0)) * np.exp(
        rng.normal(0, 0.003, 60)
    )
    path = tmp_path_factory.mktemp("runs") / "theirs.csv"
    lines = [f"{a:.6f}M,{s:.3f},{x:.6f},{seed}" for a, s, x, seed in zip(active, steps, loss, range(60), strict=True)]
    path.write_text("\n".join(["Na,step,val,seed", *lines]) + "\n")
    return path


ALL_FIXED = [f"--fix={name}=1" for name in coefficients(HOFFMANN_2022)]
MAPPED = ["--map", "params_active=Na", "--map", "tokens=step * 520000", "--map", "loss=val"]


def test_a_table_of_any_words_is_fitted_and_written(table, tmp_path, capsys):
    out = tmp_path / "fit"
    options = ["--where", "seed < 50", "--bootstrap", "20", "--hold-out", "tokens", "--out", str(out)]
    assert main(["fit", str(table), "--law", "hoffmann", *MAPPED, *options]) == 0
    shown = capsys.readouterr()
    assert "50 of 60 rows meet 'seed < 50'" in shown.err
    assert "tokens_exponent" in shown.out
    assert (out / "summary.txt").read_text() == shown.out
    assert FitResult.load(out / "fit.json").law.tokens_exponent == pytest.approx(0.2849, rel=0.2)
    assert len((out / "predictions.csv").read_text().splitlines()) == 51
    tested = json.loads((out / "fit.json").read_text())["held_out_runs"]
    kept = pd.read_csv(out / "held_out.csv")
    assert list(kept["row"]) == [one["row"] for one in tested["runs"]]
    assert (kept["low"] < kept["predicted"]).all()
    assert (kept["predicted"] < kept["high"]).all()
    assert tested["said"] in " ".join(shown.out.split())
    assert (
        main(
            ["plot", "held-out-ranges", "--runs", str(out / "held_out.csv"), "--out", str(tmp_path), "--format", "svg"]
        )
        == 0
    )


def test_a_saved_mapping_is_used_without_map_unless_map_gives_another(table, tmp_path, capsys):
    copy = tmp_path / "theirs.csv"
    copy.write_bytes(table.read_bytes())
    law = ("params_active", "tokens")
    parse_command("fit", [str(copy), "--law=hoffmann", *MAPPED, "--save-mapping"]).read(copy, law)
    assert f"Saved the mapping of {copy} as {tmp_path / 'theirs.toml'}" in capsys.readouterr().err
    plain = parse_command("compare", [str(copy)]).read(copy, law)
    assert "theirs.toml: params_active from Na, tokens from step * 520000, loss from val." in capsys.readouterr().err
    again = parse_command("fit", [str(copy), "--law=hoffmann", "--map", "tokens=step * 260000"]).read(copy, law)
    assert np.allclose(plain.runs.design.tokens, 2 * again.runs.design.tokens)
    assert "tokens from" not in capsys.readouterr().err
    assert len(read_runs(copy, law).runs) == 60
    parse_command("next", [str(copy), "--law=hoffmann", "--target=a", "--flops=1", "--save-mapping"]).read(copy, law)


@pytest.mark.parametrize(
    ("words", "content", "says"),
    [
        (["--save-mapping", *MAPPED, "--map=a=seed"], 'table="theirs.csv"\n[map]\nloss="val"', "is not overwritten"),
        (["--save-mapping", *MAPPED], 'name = "somebody else\'s"', "is not overwritten"),
        (["--save-mapping=mine.toml", *MAPPED], "", "theirs.toml; give that name, or --save-mapping without a name"),
        ([], "[map]\nloss = 3", "map must be a table of strings"),
        ([], "[map]\nloss = ", "cannot be read"),
        ([], "[map]\n[units]", "has the unknown key 'units'. A mapping has the keys table, map (a table)"),
    ],
)
def test_a_mapping_that_cannot_be_saved_or_read_is_named_and_stays(table, tmp_path, words, content, says):
    copy, file = tmp_path / "theirs.csv", tmp_path / "theirs.toml"
    copy.write_bytes(table.read_bytes())
    file.write_text(content)
    with pytest.raises(UserError, match=re.escape(says)):
        parse_command("fit", [str(copy), "--law=hoffmann", *words]).read(copy, ("params_active", "tokens"))
    assert file.read_text() == content


def test_ranges_of_an_earlier_fit_are_not_left_beside_another(table, tmp_path):
    fit = ["fit", str(table), "--law", "chinchilla", *MAPPED, "--out", str(tmp_path / "out"), "--starts", "24"]
    assert main([*fit, "--hold-out", "tokens"]) == 0
    assert (tmp_path / "out" / "held_out.csv").exists()
    assert main(fit) == 0
    assert not (tmp_path / "out" / "held_out.csv").exists()
    # A file of that name that is not the one that was written stays, and is named.
    (tmp_path / "out" / "held_out.csv").write_text("mine")
    assert main(fit) == 2


def test_json_is_all_there_is_on_stdout(table, capsys):
    assert main(["fit", str(table), "--law", "chinchilla", *MAPPED, "--fix", "irreducible=1.6", "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["law"]["coefficients"]["irreducible"] == 1.6
    assert plain["converged"]


@pytest.mark.slow
def test_the_search_starts_from_a_published_grid_by_its_name(table, capsys):
    fit = ["fit", str(table), "--law", "chinchilla", *MAPPED, "--json"]
    assert main([*fit, "--starts", "hoffmann"]) == 0
    published = json.loads(capsys.readouterr().out)
    assert main([*fit, "--starts", "24", "--every-start"]) == 0
    ours = json.loads(capsys.readouterr().out)
    assert (published["starts"], published["polished"]) == (4500, 32)
    assert (ours["starts"], ours["polished"]) == (24, 24)
    assert published["value"] == pytest.approx(ours["value"], rel=1e-6)


@pytest.mark.slow
def test_runs_are_held_out_by_any_column_and_weighed_by_one(table, tmp_path, capsys):
    lines = table.read_text().splitlines()
    path = tmp_path / "runs.csv"
    kinds = [f"{line},{'dense' if i % 3 else 'moe'},{1 + i % 2}" for i, line in enumerate(lines[1:])]
    path.write_text("\n".join([f"{lines[0]},kind,seeds", *kinds]))
    options = ["--hold-out", "kind=moe", "--hold-out", "step:1M", "--each", "kind", "--weight", "seeds", "--json"]
    assert main(["fit", str(path), "--law", "chinchilla", *MAPPED, *options]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert [split["name"] for split in plain["held_out"]] == [
        "kind = moe",
        "step ≥ 1e+06",
        "kind = moe",
        "kind = dense",
    ]
    assert [split["errors"]["runs"] for split in plain["held_out"]][::2] == [20, 20]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--law", "chinchila"], "chinchilla"),
        (["--law", "chinchilla"], "no column tokens"),
        (["--law", "effective_params", *MAPPED], "no column params_total"),
        (["--law", "chinchilla", *MAPPED, "--map", "tokens=step"], "gives tokens twice"),
        (["--law", "chinchilla", *MAPPED, "--map", "flops=nothing * 2"], "cannot be computed"),
        (["--law", "chinchilla", *MAPPED, "--where", "seed > 99"], "no row meets"),
        (["--law", "chinchilla", *MAPPED, "--where", "seed =="], "cannot be applied"),
        (["--law", "chinchilla", *MAPPED, "--where", "seed < 3"], "3 runs cannot determine the 5 free coefficients"),
        (["--law", "chinchilla", *MAPPED, "--fix", "irreducible=1", "--fix", "irreducible=2"], "irreducible twice"),
        (["--law", "chinchilla", *MAPPED, "--fix", "irreducible"], "NAME=VALUE"),
        (["--law", "chinchilla", *MAPPED, "--fix", "irreducible=-1"], "must be finite and not below 0"),
        (
            ["--law", "chinchilla", *MAPPED, "--fix", "irreducible=9"],
            "irreducible is fixed at 9, but a run has a loss of",
        ),
        (["--law", "chinchilla", *MAPPED, *ALL_FIXED], "leave at least one to fit"),
        (["--law", "chinchilla", *MAPPED, "--hold-out", "seed:4"], "With seed ≥ 4 held out: 4 runs cannot determine"),
        (["--law", "chinchilla", *MAPPED, "--penalty", "squared", "--delta", "0.1"], "has no --delta"),
        (["--law", "chinchilla", *MAPPED, "--decide", "expansion=8"], "--decide flops=…: optimal_params_active (N*)"),
        (["--law", "chinchilla", *MAPPED, "--decide", "1e24"], "has no name and value; write --decide NAME=VALUE"),
        (["--law", "chinchilla", *MAPPED, "--decide", "flops=many"], "is not a number"),
        (
            ["--law", "chinchilla", *MAPPED, "--fix", "irreducible=1.6", "--profile", "E"],
            "chinchilla has no coefficient or decision E",
        ),
        (["--law", "chinchilla", *MAPPED, "--by", "model"], "--by must be group or run; got model"),
        (["--law", "chinchilla", *MAPPED, "--starts", "hofman"], "one of the grids hoffmann, abnar"),
        (["--law", "chinchilla", *MAPPED, "--starts", "0"], "from 1 to 1,000,000"),
        (
            ["--law", "loss_compute", *MAPPED, "--map", "flops=Na * step * 3120000", "--starts", "hoffmann"],
            "has no values for scale",
        ),
        (["--law", "chinchilla", *MAPPED, "--hold-out", "width"], "have no width"),
        (["--law", "chinchilla", *MAPPED, "--hold-out", "sede=3"], "did you mean seed"),
        (["--law", "chinchilla", *MAPPED, "--each", "sede"], "did you mean seed"),
        (["--law", "chinchilla", *MAPPED, "--weight", "sede"], "did you mean seed"),
        (["--law", "chinchilla", *MAPPED, "--folds", "99"], "got 99"),
        (MAPPED, "A required option is missing; give --law, --form or --recipe"),
        ([*MAPPED, "--recipe", "launch-check"], "give --law NAME"),
        ([*MAPPED, "--recipe", "zhao"], "no column params_total"),
        ([*MAPPED, "--recipe", "tian", "--map", "top_k=1"], "no column num_experts"),
        (["--law", "chinchilla", *MAPPED, "--recipe", "soup"], "choose from 'launch-check'"),
        (
            ["--law", "chinchilla", *MAPPED, "--recipe", "launch-check", "--pilot", "none.csv"],
            "no run table at none.csv",
        ),
    ],
)
def test_a_mistake_is_a_sentence_and_exit_status_2(table, capsys, options, words):
    assert main(["fit", str(table), *options]) == 2
    shown = capsys.readouterr()
    assert words in shown.err
    assert "Traceback" not in shown.err
    assert not shown.out


OPTIONS = {
    "law": ["--law", "chinchilla"],
    "hold_out": ["--hold-out", "tokens"],
    "pilot": ["--pilot", "runs.csv"],
    "correct": ["--correct", "alpha"],
    "shares": ["--shares", "web=1"],
    "starts": ["--starts", "64"],
    "bootstrap": ["--bootstrap", "50"],
    "level": ["--level", "0.8"],
    "fix": ["--fix", "E=1.7"],
    "penalty": ["--penalty", "squared"],
    "every_start": ["--every-start"],
    "by": ["--by", "run"],
    "loss_law": ["--loss-law", "chinchilla"],
}


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("option", OPTIONS)
def test_a_recipe_refuses_an_option_that_it_would_not_read_and_names_those_that_it_reads(recipe, option):
    law = OPTIONS["law"] if "law" in RECIPES[recipe] and option != "law" else []
    fit = parse_command("fit", ["runs.csv", "--recipe", recipe, *law, *OPTIONS[option]])
    if option in RECIPES[recipe]:
        check(fit)
        return
    with pytest.raises(UserError, match=f"--recipe {recipe} does not use {OPTIONS[option][0]}; ") as error:
        check(fit)
    assert all(OPTIONS[name][0] in str(error.value) for name in RECIPES[recipe])


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("", "has no rows"),
        (7 * "1e8,1e9,3\n1e9,1e9,3\n", "The loss is 3 in all 14 runs, so it determines no coefficient"),
        ("1e8,1e9,3\n", "1 run cannot determine the 5 free coefficients"),
        ("1e8,1e9,3\n1e8,1e9,\n", "loss is empty or not finite in 1 of 2 rows (row 2)"),
        ("1e8,1e9,3\n1e8,-5,3\n", "tokens is not above 0 in 1 of 2 rows (row 2)"),
        ("1e8,1e9,3\nabc,1e9,3\n", "'abc' in row 2"),
    ],
)
def test_a_table_that_cannot_be_is_described(tmp_path, capsys, rows, words):
    path = tmp_path / "runs.csv"
    path.write_text("params_active,tokens,loss\n" + rows)
    assert main(["fit", str(path), "--law", "chinchilla"]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("command", [["fit", "--law", "chinchilla"], ["compare"]], ids=["fit", "compare"])
@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("runs.csv", b"", "as a table: "),
        ("runs.csv", b"params_active,tokens,loss\n", "has no rows"),
        ("runs.csv", b"\xff\xfe\x00", "as a table: "),
        ("runs.jsonl", b"{broken", "as a table: "),
        ("runs.parquet", b"not parquet at all", "as a table: "),
        ("runs.xlsx", b"", "its name must end in one of"),
        ("runs.csv", b"params_active,tokens,loss\n1e8,1e9,nan\n", "in 1 of 1 rows (row 1)"),
        ("runs.csv", b"params_active,tokens,los\n1e8,1e9,3\n", "did you mean los"),
    ],
)
def test_a_file_that_holds_no_runs_is_a_sentence_in_every_command(tmp_path, capsys, command, name, content, words):
    (tmp_path / name).write_bytes(content)
    assert main([command[0], str(tmp_path / name), *command[1:]]) == 2
    shown = capsys.readouterr()
    assert words in shown.err
    assert not shown.out


def test_an_interrupted_bootstrap_keeps_the_fit_and_goes_on_to_the_same_numbers(table, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(bootstrap, "BLOCK", 8)
    write, blocks = bootstrap._write, []

    def interrupt(*arguments):
        write(*arguments)
        blocks.append(len(arguments[2]))
        if blocks == [8, 16]:
            raise KeyboardInterrupt

    command = ["fit", str(table), "--law", "chinchilla", *MAPPED, "--bootstrap", "24", "--out"]
    assert main([*command, str(tmp_path / "uninterrupted")]) == 0
    capsys.readouterr()
    monkeypatch.setattr(bootstrap, "_write", interrupt)
    out = tmp_path / "fit"
    command.append(str(out))
    assert main(command) == 130
    assert "run the same command again" in capsys.readouterr().err
    assert FitResult.load(out / "fit.json").converged
    assert main(command) == 0
    assert blocks == [8, 16, 24]
    assert json.loads((out / "fit.json").read_text())["bootstrap"]["resamples"] == 24
    assert (out / "fit.json").read_text() == (tmp_path / "uninterrupted" / "fit.json").read_text()
    assert (out / "summary.txt").read_text() == (tmp_path / "uninterrupted" / "summary.txt").read_text()


def test_a_bootstrap_stopped_without_a_folder_prints_the_fit_and_how_to_keep_one(table, capsys, monkeypatch):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(bootstrap, "_write", interrupt)
    assert main(["fit", str(table), "--law", "chinchilla", *MAPPED, "--bootstrap", "10"]) == 130
    shown = capsys.readouterr()
    assert "--out DIR" in shown.err
    assert "tokens_exponent" in shown.out


def test_a_fit_is_not_drawn_through_other_runs(table, tmp_path, capsys):
    words = [*MAPPED, "--out", str(tmp_path)]
    assert main(["fit", str(table), "--law", "chinchilla", "--starts", "16", *words]) == 0
    drawn = ["plot", "fit", "--fit", str(tmp_path / "fit.json"), "--runs", str(table), *words]
    assert main(drawn) == 0
    assert main([*drawn, "--where", "seed < 30"]) == 2
    assert "The fit was made to other runs (hash" in capsys.readouterr().err


def test_a_split_that_leaves_too_few_runs_keeps_the_fit_of_all(table, tmp_path, capsys):
    out = tmp_path / "fit"
    assert main(["fit", str(table), "--law", "chinchilla", *MAPPED, "--hold-out", "seed:4", "--out", str(out)]) == 2
    assert "With seed ≥ 4 held out" in capsys.readouterr().err
    assert FitResult.load(out / "fit.json").metrics.runs == 60


def test_rows_are_dropped_only_when_asked_and_named(table, tmp_path, capsys):
    path = tmp_path / "runs.csv"
    path.write_text(table.read_text() + "50M,1000,nan,61\n")
    fit = ["fit", str(path), "--law", "chinchilla", *MAPPED]
    assert main(fit) == 2
    dropped = parse_command("fit", [*fit[1:], "--drop-invalid"]).read(path, ("params_active", "tokens"))
    assert len(dropped.runs) == 60
    assert "Dropped" in capsys.readouterr().err


def test_a_run_that_is_listed_twice_is_kept_and_said_and_dropped_only_when_asked(table, tmp_path, capsys):
    path = tmp_path / "runs.csv"
    lines = table.read_text().splitlines()
    path.write_text("\n".join([*lines, lines[3]]))
    for options, runs, said in (([], 61, "pass --drop-duplicates"), (["--drop-duplicates"], 60, "Dropped: row 61")):
        fit = parse_command("fit", [str(path), "--law", "chinchilla", *MAPPED, *options])
        with in_command():
            assert len(fit.read(path, ("params_active", "tokens")).runs) == runs
        assert said in capsys.readouterr().err


ASKED = ["--decide", "flops=1e24", "--predict", "params_active=70B,tokens=1.4T", "--profile", "N*", "--profile", "beta"]
ASKED += ["--profile", "loss", "--influence", "tokens_exponent", "--influence", "N*", "--bootstrap", "40"]


def test_a_fit_is_asked_for_decisions_predictions_profiles_and_the_runs_that_decide(table, tmp_path, capsys):
    fit = ["fit", str(table), "--law", "chinchilla", *MAPPED, *ASKED]
    assert main([*fit, "--json", "--out", str(tmp_path / "out")]) == 0
    plain = json.loads(capsys.readouterr().out)
    exponent, best, data, _ = plain["decisions"]
    assert [one["symbol"] for one in plain["decisions"]] == ["a*", "N*", "D*", "L*"]
    beta, alpha = (plain["law"]["coefficients"][f"{name}_exponent"] for name in ("tokens", "params"))
    assert exponent["value"] == pytest.approx(beta / (alpha + beta))
    assert 0 < exponent["interval"]["low"] < exponent["value"] < exponent["interval"]["high"] < 1
    assert 6 * best["value"] * data["value"] == pytest.approx(1e24)
    assert best["interval"]["low"] < best["value"] < best["interval"]["high"]
    (run,) = plain["predictions"]
    assert run["low"] < HOFFMANN_2022(Design(params_active=70e9, tokens=1.4e12)) < run["high"]
    assert run["by"] == "bootstrap of 40 resamples by group"
    assert [one["name"] for one in plain["profiles"]] == ["optimal_params_active", "tokens_exponent", "loss"]
    assert all(one["low"] < one["middle"] < one["high"] for one in plain["profiles"])
    assert [len(one["rows"]) for one in plain["influence"]] == [3, 3]
    assert plain["standard_errors"]["values"].keys() == coefficients(HOFFMANN_2022).keys()
    page = (tmp_path / "out" / "summary.txt").read_text()
    for words in ("flops = 1e+24", "90% of such runs are", "Profiles", "row ", "std err", "! Extrapolation at"):
        assert words in page
    assert FitResult.load(tmp_path / "out" / "fit.json").converged


def test_what_is_asked_at_one_place_by_two_options_is_answered_once():
    from moejax.laws.mixtures.five_factor import FiveFactor

    decide = [{"params_total": 671e9}, {"flops": 1e24, "params_total": 671e9}]
    found = asked_of(FiveFactor, "loss", (), decide=decide, profile=["r_a*"])
    assert [answer.symbol for answer in found.decisions] == ["G*", "S*", "r_a*", "N_a*", "D*", "L*"]
    assert len(found.profiles) == 1


@pytest.mark.slow
def test_the_runs_that_decide_are_named_by_their_rows_in_the_file(table, tmp_path, capsys):
    lines = table.read_text().splitlines()
    size, steps, _, seed = lines[8].split(",")
    lines[8] = f"{size},{steps},{9.0},{seed}"
    path = tmp_path / "runs.csv"
    path.write_text("\n".join(lines))
    options = ["--where", "seed > 2", "--penalty", "squared", "--influence", "irreducible", "--json"]
    assert main(["fit", str(path), "--law", "chinchilla", *MAPPED, *options]) == 0
    assert json.loads(capsys.readouterr().out)["influence"][0]["rows"][0] == 8


def test_standard_errors_are_of_the_covariance_that_is_named(table, capsys):
    errors = {}
    for kind in ("sandwich", "gauss-newton"):
        assert main(["fit", str(table), "--law", "chinchilla", *MAPPED, "--covariance", kind, "--json"]) == 0
        errors[kind] = json.loads(capsys.readouterr().out)["standard_errors"]["values"]["tokens_exponent"]
    assert errors["sandwich"] != errors["gauss-newton"]
    assert errors["sandwich"] == pytest.approx(errors["gauss-newton"], rel=1.0)


@pytest.mark.slow
def test_a_number_that_has_no_profile_is_said_beside_those_that_have_one(table, capsys):
    few = ["--where", "step > 500000", "--profile", "irreducible", "--profile", "params_exponent"]
    fit = ["fit", str(table), "--law", "chinchilla", *MAPPED, *few]
    assert main(fit) == 0
    page = capsys.readouterr().out
    assert "no profile. No fitted coefficient affects this number" in " ".join(page.split())
    assert page.count("params_exponent (alpha)") == 1
    assert main([*fit, "--json"]) == 0
    nothing, found = json.loads(capsys.readouterr().out)["profiles"]
    assert "reason" in nothing
    assert found["low"] < found["middle"] < found["high"]


def test_a_launch_check_gives_a_verdict_and_takes_no_run_for_two(table, tmp_path, capsys):
    pilot = tmp_path / "pilot.csv"
    pilot.write_text("Na,step,val,seed\n9e9,30000,2.1,0\n")
    options = ["--recipe", "launch-check", "--hold-out", "params_active", "--pilot"]
    check = ["fit", str(table), "--law", "chinchilla", *MAPPED, *options]
    assert main([*check, str(pilot)]) == 0
    assert capsys.readouterr().out.startswith("Launch check: ")
    assert main([*check, str(table)]) == 2
    assert "The pilot contains 60 runs of the run table" in capsys.readouterr().err


def test_compare_prints_the_command_that_fits_the_same_rows_in_the_same_way():
    options = ["my runs.csv", "--where", "seed == 42", "--map", "tokens=step * 2", "--best-by", "lr", "--drop-invalid"]
    comparison = parse_command("compare", [*options, "--penalty", "squared"])
    assert isinstance(comparison, CompareCommand)
    words = shlex.split(comparison.next_command("kaplan"))
    assert words[:2] == ["moejax", "fit"]
    again = parse_command("fit", words[2:])
    assert again.law == "kaplan"
    for name in ("runs", "where", "map", "best_by", "drop_invalid", "penalty", "trust_units", "loss"):
        assert getattr(again, name) == getattr(comparison, name)


@pytest.mark.parametrize(
    ("loss", "weight", "said"),
    [("3", "1e308", "weights overflows"), ("1e-320", "1", "loss is not from 1e-60 to 1e+60 in 1 of 7 rows (row 1)")],
)
def test_what_no_objective_holds_is_named(loss, weight, said, tmp_path, capsys):
    rows = [f"{n},{d},{3 - 0.1 * i}" for i, (n, d) in enumerate((n, d) for n in (1e8, 1e9) for d in (1e9, 1e10, 1e11))]
    lines = ["params_active,tokens,loss,w", f"1e8,1e8,{loss},{weight}", *(f"{row},1" for row in rows)]
    (tmp_path / "runs.csv").write_text("\n".join(lines))
    assert main(["fit", str(tmp_path / "runs.csv"), "--law", "chinchilla", "--weight", "w"]) == 2
    assert said in capsys.readouterr().err
