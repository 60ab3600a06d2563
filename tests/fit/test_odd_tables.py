"""Tables that people have and that no reader expects: what cannot be read is a sentence, and nothing is guessed."""

import json

import numpy as np
import pandas as pd
import pytest

import moejax
from moejax.__main__ import main
from moejax.curves.read_curves import read_curves
from moejax.errors import UserError
from moejax.fit.fit_result import FitResult
from moejax.fit.tables.read_runs import read_runs
from moejax.quantities import parse

FORMULA = "loss = E + A/N^alpha + B/D^beta"


def table(count=12):
    chance = np.random.default_rng(0)
    n, d = 10 ** chance.uniform(7, 9, count), 10 ** chance.uniform(9, 11, count)
    return pd.DataFrame({"params_active": n, "tokens": d, "loss": 1.7 + 400 / n**0.34 + 410 / d**0.28})


def written(frame, path):
    path.write_text("\n".join(json.dumps(row) for row in frame.to_dict("records")) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("index", ["params_active", ["params_active", "tokens"]])
def test_an_index_with_a_name_is_a_column(index, tmp_path):
    frame = table().set_index(index)
    for given in (frame, tmp_path / "runs.parquet"):
        frame.to_parquet(tmp_path / "runs.parquet")
        read = read_runs(given, FORMULA)
        np.testing.assert_array_equal(np.sort(read.runs.design.params_active), np.sort(table()["params_active"]))
        np.testing.assert_array_equal(np.sort(read.runs.design.tokens), np.sort(table()["tokens"]))


@pytest.mark.parametrize(("name", "meant"), [("N", "params_active"), ("D", "tokens"), ("C", "flops")])
def test_a_letter_that_the_table_has_no_column_for_is_no_coefficient(name, meant):
    frame = table().rename(columns={"params_active": "width", "tokens": "depth"})
    with pytest.raises(UserError, match=f"{name} in the formula .* means {meant}, but the table has no {meant}"):
        read_runs(frame, f"loss = E + A/width^a + {name}/depth^b")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([1, 2], "Runs are read from a file or a pandas DataFrame"),
        (pd.Series([1.0]), "Runs are read from a file or a pandas DataFrame"),
        (pd.concat([table(), table()[["loss"]]], axis=1), "several columns named loss"),
        (table().assign(loss=True), "loss is not a number .such as True"),
    ],
)
def test_what_is_no_table_of_numbers_is_a_sentence(given, words):
    with pytest.raises(UserError, match=words):
        read_runs(given, FORMULA)


def test_cells_that_hold_lists_can_be_grouped_by_and_held_out(tmp_path, capsys):
    frame = table().assign(cfg=[[i // 3] for i in range(12)])
    path = str(written(frame, tmp_path / "n.jsonl"))
    assert len(set(read_runs(path, FORMULA, group="cfg").runs.group)) == 4
    assert main(["fit", path, "--form", FORMULA, "--group", "cfg", "--each", "cfg", "--starts", "32"]) == 0
    assert "cfg = [0]" in capsys.readouterr().out


@pytest.mark.parametrize("column", ["lr", "loss", "step", "run"])
@pytest.mark.parametrize("cell", [[1], {"a": 1}, 10**400, True], ids=["list", "mapping", "huge", "true"])
def test_a_curve_with_a_cell_that_is_no_number_is_a_sentence(column, cell):
    rows = [{"step": i + 1, "lr": 1e-3, "loss": 4 - 0.1 * i, "run": "a"} for i in range(6)]
    rows[3][column] = cell
    # A name may be anything; of one row no curve is made.
    words = "a curve needs at least 3" if column == "run" else rf"{column} is .* in row 4"
    with pytest.raises(UserError, match=words):
        read_curves(pd.DataFrame(rows))


def test_a_comma_after_a_zero_is_no_mark_of_thousands():
    assert parse("1,050") == 1050
    for text in ("0,050", "00,050", "0,5"):
        with pytest.raises(ValueError, match="commas separate thousands only"):
            parse(text)


def test_sizes_in_millions_and_tokens_in_billions_are_among_what_is_asked():
    frame = table().assign(params_active=np.geomspace(10, 1000, 12), tokens=np.geomspace(0.05, 200, 12))
    with pytest.raises(UserError) as error:
        read_runs(frame, FORMULA)
    for option in ("params_active * 1e6", "params_active * 1e9", "tokens * 1e9", "tokens * 1e12"):
        assert option in str(error.value)


def test_a_row_that_cannot_be_is_named_as_its_run_is():
    frame = table().assign(run=[f"seed-{i}" for i in range(12)])
    frame.loc[5, "loss"] = np.nan
    with pytest.raises(UserError, match=r"in 1 of 12 rows \(row 6: seed-5\)"):
        read_runs(frame, FORMULA)


def test_options_that_name_nothing_are_sentences(tmp_path, capsys):
    path = str(written(table(), tmp_path / "n.jsonl"))
    for words, said in (
        (["fit", path, "--form", FORMULA, "--best-by", " , "], "--best-by ' , ' contains no name"),
        (["fit", "s3://bucket/runs.csv", "--law", "chinchilla"], "s3://bucket/runs.csv is not a local file"),
        (["fit", "mlflow:", "--law", "chinchilla"], "mlflow: has nothing after the colon; write mlflow:PLACE"),
        (
            ["next", path, "--law", "./nope", "--target", "loss:tokens=1e9", "--flops", "1e20"],
            "There is no file ./nope",
        ),
    ):
        assert main(words) == 2
        assert said in capsys.readouterr().err


def test_a_fit_is_not_saved_over_something_else(tmp_path):
    fit = moejax.fit(table(), FORMULA, starts=64)
    path = fit.save(tmp_path / "fit.json")
    assert fit.save(path) == path
    assert fit.save(tmp_path / "new" / "folder" / "fit.json").exists()
    refused = (("precious.json", "is not a fit"), ("", "is a folder"), ("precious.json/fit.json", "cannot be created"))
    for place, words in refused:
        (tmp_path / "precious.json").write_text('{"years": 3}')
        with pytest.raises(UserError, match=words):
            fit.save(tmp_path / place)
    assert (tmp_path / "precious.json").read_text() == '{"years": 3}'


def test_a_missing_fit_is_an_error_about_the_path_only(tmp_path, capsys):
    missing = str(tmp_path / "missing.json")
    with pytest.raises(UserError, match=r"^There is no fit \S*missing.json; give the file that .* wrote\.$"):
        FitResult.load(missing)
    assert main(["predict", "--law", missing, "--arch", "olmoe-1b-7b", "--tokens", "100B"]) == 2
    assert "There is no fit" in capsys.readouterr().err


@pytest.mark.parametrize(("options", "words"), [({"starts": "many"}, "got 'many'"), ({"fixed": {"E": "x"}}, "E is")])
def test_options_of_another_type_are_sentences(options, words):
    with pytest.raises(UserError, match=words):
        moejax.fit(table(), FORMULA, **options)
