"""Reading a table reports every suspicion and lets no row vanish."""

import ast
import re

import numpy as np
import pandas as pd
import pytest

from moejax.errors import UserError
from moejax.fit.tables import column_names
from moejax.fit.tables.read_runs import read_runs
from moejax.laws.budget.hyperparameters import Hyperparameters
from moejax.laws.dense.chinchilla import Chinchilla
from moejax.laws.dense.loss_compute import LossCompute
from moejax.laws.design import design_from
from moejax.laws.mixtures.effective_params import EffectiveParams

FRAME = pd.DataFrame(
    {
        "params_active": [1e8, 2e8, 4e8, 8e8],
        "params_total": [1e8, 4e8, 8e8, 9e8],
        "tokens": [1e9, 2e9, 3e9, 4e9],
        "loss": [3.5, 3.2, 3.0, 2.8],
    }
)


def with_cell(row, column, value):
    frame = FRAME.astype(object)
    frame.loc[row, column] = value
    return frame


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (with_cell(1, "loss", np.nan), r"loss is empty or not finite in 1 of 4 rows \(row 2\)"),
        (with_cell(1, "loss", np.inf), r"loss is empty or not finite in 1 of 4 rows \(row 2\)"),
        (with_cell(0, "loss", -1.0), r"loss is not above 0 in 1 of 4 rows \(row 1\)"),
        (with_cell(2, "params_active", 0), r"params_active is not above 0 in 1 of 4 rows \(row 3\)"),
        (with_cell(3, "params_active", 1e9), r"params_active exceeds params_total in 1 of 4 rows \(row 4\)"),
        (with_cell(3, "tokens", "lots"), r"tokens is not a number \(such as 'lots' in row 4\) in 1 of 4 rows"),
        (FRAME.assign(loss=np.nan), r"loss is empty or not finite in 4 of 4 rows \(rows 1, 2, 3, 4\)"),
        (FRAME.rename(columns={"params_active": "param_active"}), "did you mean param_active.*mapping={.params_active"),
        (FRAME.drop(columns="params_active"), "no column params_active"),
    ],
)
def test_a_row_that_cannot_be_is_named_and_counted(frame, words):
    with pytest.raises(ValueError, match=words):
        read_runs(frame, EffectiveParams)


def test_invalid_rows_are_dropped_on_request_and_the_others_keep_their_numbers():
    for frame, row in ((with_cell(1, "loss", np.nan), 2), (with_cell(2, "tokens", "lots"), 3)):
        read = read_runs(frame, EffectiveParams, drop_invalid=True)
        assert read.rows.tolist() == [one for one in (1, 2, 3, 4) if one != row]
        assert any("Dropped" in note and f"row {row}" in note for note in read.notes)
        with pytest.raises(ValueError, match=rf"row {row}"):
            read_runs(frame, EffectiveParams, where=["params_active > 150000000"])
    with pytest.raises(ValueError, match="No row is left"):
        read_runs(FRAME.assign(loss=np.nan), EffectiveParams, drop_invalid=True)


def test_text_in_a_column_that_the_law_does_not_read_leaves_the_column_unread():
    read = read_runs(FRAME.assign(top_k=["some", "2", "2", "4"]), EffectiveParams)
    assert read.runs.design.top_k is None
    assert read.notes == ("Column top_k is not read: it holds 'some' in row 1.",)


def test_exact_duplicates_are_kept_or_dropped_and_named():
    twice = pd.concat([FRAME, FRAME[:1]])
    kept, dropped = (read_runs(twice, Chinchilla, drop_duplicates=drop) for drop in (False, True))
    assert len(kept.runs) == 5
    assert any("Row 5 (1 in all) repeat the sizes and loss of an earlier row exactly" in note for note in kept.notes)
    assert dropped.rows.tolist() == [1, 2, 3, 4]
    assert dropped.notes == ("Dropped: row 5 (1 in all), which repeat the sizes and loss of an earlier row exactly.",)
    assert not read_runs(FRAME, Chinchilla, drop_duplicates=True).notes


def test_two_losses_of_one_configuration_are_replicates():
    read = read_runs(pd.concat([FRAME, FRAME[:2].assign(loss=3.3)]), Chinchilla)
    assert len(read.runs) == 6
    assert any("Rows 5, 6 (2 in all)" in note and "replicates" in note for note in read.notes)


def test_columns_that_never_vary_are_named():
    notes = read_runs(FRAME.assign(tokens=1e9), Chinchilla).notes
    assert any(note.startswith("Equal in all rows: tokens.") for note in notes)
    assert not read_runs(FRAME, Chinchilla).notes


def test_a_column_whose_name_is_nearly_ours_is_pointed_out():
    notes = read_runs(FRAME.assign(num_expert=8, remark="x"), Chinchilla).notes
    assert notes == (
        'Column num_expert is not read. If it is num_experts, pass mapping={"num_experts": "num_expert"}.',
    )


def test_numbers_as_people_write_them_are_numbers_in_arithmetic_and_conditions():
    frame = FRAME.drop(columns="params_active").assign(Na=["100M", "200M", "0.4B", "8e8"])
    read = read_runs(frame, Chinchilla, mapping={"params_active": "Na / 2"}, where=["Na > 150000000"])
    assert read.runs.design.params_active.tolist() == [1e8, 2e8, 4e8]
    assert len(read.frame) == 3


def test_text_is_compared_as_text():
    frame = FRAME.assign(name=["1e5", "100000", "b", "c"])
    assert len(read_runs(frame, Chinchilla, where=["name == '1e5'"]).runs) == 1


def test_a_weight_comes_from_a_column():
    read = read_runs(FRAME.assign(count=[1, 2, 0, "3"]), Chinchilla, weight="count")
    assert read.runs.weight.tolist() == [1, 2, 0, 3]
    out, counted = read.notes
    assert out == "1 of 4 rows have a count of 0 and are excluded."
    assert "mean of count runs (1 to 3); prediction intervals are for one run" in counted


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ([1, -1, 1, 1], r"the weight count is below 0 in 1 of 4 rows \(row 2\)"),
        ([1, np.nan, 1, 1], r"count is empty or not finite in 1 of 4 rows \(row 2\)"),
        ([0, 0, 0, 0], "count is 0 in every row"),
    ],
)
def test_a_weight_that_cannot_be_is_a_sentence(weights, words):
    with pytest.raises(ValueError, match=words):
        read_runs(FRAME.assign(count=weights), Chinchilla, weight="count")


def test_a_weight_that_is_not_there_is_named_with_the_nearest():
    with pytest.raises(ValueError, match=r"no column cuont; did you mean count"):
        read_runs(FRAME.assign(count=1), Chinchilla, weight="cuont")


def test_all_columns_that_are_missing_are_named_at_once():
    frame = pd.DataFrame({"n": [1e7], "d": [1e9], "y": [3.0]})
    with pytest.raises(ValueError, match=r'mapping=\{"params_active": "COLUMN", "tokens": .*"loss": "COLUMN"}'):
        read_runs(frame, Chinchilla)


def test_a_table_of_losses_alone_is_read_without_doubts_about_repeats():
    frame = pd.DataFrame({"loss": [3.0, 3.0, 2.5]})
    read = read_runs(frame, (), drop_duplicates=True)
    assert len(read.runs) == 3


@pytest.mark.parametrize(("share", "said"), [(1.0, False), (0.9, True)])
def test_flops_that_are_counted_otherwise_than_decisions_count_them_are_said(share, said):
    frame = pd.DataFrame({"params_active": [1e7, 2e7], "tokens": [1e9, 3e9], "loss": [3.0, 2.8]})
    frame["flops"] = 6 * share * frame["params_active"] * frame["tokens"]
    assert any("0.90 to 0.90 times 6" in note for note in read_runs(frame, Chinchilla).notes) == said
    one_unknown = frame.assign(flops=[frame["flops"][0], np.nan])
    assert any("0.90 to 0.90 times 6" in note for note in read_runs(one_unknown, Chinchilla).notes) == said


@pytest.mark.parametrize("column", ["flops", "params_total"])
def test_a_column_that_the_law_does_not_read_may_be_empty(column):
    frame = pd.DataFrame({"params_active": [1e7, 2e7], "tokens": [1e9, 3e9], "loss": [3.0, 2.8]})
    assert len(read_runs(frame.assign(**{column: np.nan}), Chinchilla).runs) == 2


def grid(**columns):
    """Dense runs over a grid of sizes and tokens, in plain counts."""
    n, d = (a.ravel() for a in np.meshgrid(np.geomspace(5e7, 7e9, 6), np.geomspace(1e9, 2e11, 5)))
    loss = 1.7 + 400 / n**0.34 + 400 / d**0.28
    return pd.DataFrame({"params_active": n, "tokens": d, "loss": loss}).assign(**columns)


THIRD = np.arange(30) % 3 == 0


@pytest.mark.parametrize("column", ["params_active", "tokens"])
@pytest.mark.parametrize(("rows", "words"), [(np.ones(30, bool), "between"), (THIRD, r"in 10 of 30 rows \(rows 1, 4")])
def test_counts_in_billions_are_asked_about_and_the_printed_remedy_mends_them(column, rows, words):
    right = grid()
    wrong = right.assign(**{column: np.where(rows, right[column] / 1e9, right[column])})
    with pytest.raises(
        ValueError, match=rf"{column} lies? between .*{words}.*Are these billions.*trust_units=True|{words}"
    ) as e:
        read_runs(wrong, Chinchilla)
    read = read_runs(wrong, Chinchilla, mapping=dict(remedies(e)[:1]))
    np.testing.assert_allclose(getattr(read.runs.design, column), right[column], rtol=1e-12)
    assert len(read_runs(wrong, Chinchilla, trust_units=True).runs) == 30


def large():
    """Runs of which no size is below what toy models have, when it is written in millions."""
    n, d = (a.ravel() for a in np.meshgrid(np.geomspace(2e9, 7e10, 6), np.geomspace(2e10, 2e12, 5)))
    return pd.DataFrame({"params_active": n, "params_total": 4 * n, "tokens": d, "loss": 1.7 + 400 / n**0.34})


@pytest.mark.parametrize(
    ("size", "tokens", "words"),
    [
        (1e6, 1e6, "toy models, or another unit. Are params_active millions"),
        (1e6, 1.0, "tokens per parameter at the median is not plausible. Are params_active millions"),
        (1.0, 1e6, r"1\.7e-05 tokens per parameter at the median is not plausible. Are tokens millions"),
    ],
)
def test_sizes_and_tokens_that_do_not_go_together_are_asked_about_and_the_printed_remedy_mends_them(
    size, tokens, words
):
    right = large()
    wrong = right.assign(**{name: right[name] / size for name in right if name.startswith("params")})
    wrong["tokens"] = right["tokens"] / tokens
    with pytest.raises(ValueError, match=words) as e:
        read_runs(wrong, EffectiveParams)
    read = read_runs(wrong, EffectiveParams, mapping=dict(remedies(e)))
    for name in ("params_active", "params_total", "tokens"):
        np.testing.assert_allclose(getattr(read.runs.design, name), right[name], rtol=1e-12)
    assert len(read_runs(wrong, EffectiveParams, trust_units=True).runs) == 30


def remedies(error):
    """Return the names and expressions of every ``mapping`` in a message."""
    found = re.findall(r"mapping=({.*?})", str(error.value))
    return [[*item] for text in found for item in ast.literal_eval(text).items()]


@pytest.mark.parametrize(
    ("size", "tokens"),
    [
        (("params (M)", 1e6), ("tokens (B)", 1e9)),
        (("params_millions", 1e6), ("seen_b", 1e9)),
        (("params, B", 1e9), ("tokens, trillion", 1e12)),
        (("it's one size (M)", 1e6), ("tokens [B]", 1e9)),
    ],
)
@pytest.mark.parametrize("written", ["`{}`", "{}"])
def test_the_unit_that_a_columns_name_says_is_the_one_that_is_proposed(size, tokens, written):
    right = grid()
    frame = pd.DataFrame(
        {size[0]: right["params_active"] / size[1], tokens[0]: right["tokens"] / tokens[1], "loss": right["loss"]}
    )
    bare = {"params_active": written.format(size[0]), "tokens": written.format(tokens[0])}
    with pytest.raises(ValueError, match="tokens lie between") as e:
        read_runs(frame, Chinchilla, mapping=bare)
    assert len(remedies(e)) == 2
    design = read_runs(frame, Chinchilla, mapping=dict(remedies(e))).runs.design
    np.testing.assert_allclose(design.params_active, right["params_active"])
    np.testing.assert_allclose(design.tokens, right["tokens"])


def test_every_plausible_unit_of_tokens_is_printed_with_its_remedy():
    right = grid().query("params_active < 2e9 and tokens < 4e10")
    billions = right.assign(tokens=right["tokens"] / 1e9)
    with pytest.raises(ValueError, match="Are these billions\\?") as e:
        read_runs(billions, Chinchilla)
    assert remedies(e) == [["tokens", "tokens * 1e9"]]
    with pytest.raises(ValueError, match=r"tokens lie between 1 and .*Are these billions or trillions") as e:
        read_runs(billions.assign(params_active=right["params_active"] / 1e6), Chinchilla)
    assert {(name, f"{name} * {unit}") for name, unit in (("tokens", "1e12"), ("params_active", "1e6"))} < {
        tuple(one) for one in remedies(e)
    }


def test_toy_models_whose_flops_are_plain_are_believed_and_so_are_small_models_trained_long():
    toy = large().assign(**{name: lambda f, name=name: f[name] / 1e6 for name in ("params_active", "tokens")})
    toy["flops"] = 6 * toy["params_active"] * toy["tokens"]
    assert len(read_runs(toy, Chinchilla).runs) == 30
    assert len(read_runs(grid(tokens=lambda f: f["params_active"] * 5e4), Chinchilla).runs) == 30


def test_flops_that_say_sizes_and_tokens_are_both_in_millions_are_mended_in_both():
    right = large().assign(flops=lambda f: 6 * f["params_active"] * f["tokens"])
    wrong = right.assign(**{n: right[n] / 1e6 for n in ("params_active", "params_total", "tokens")})
    with pytest.raises(ValueError, match="params_active in millions and params_total in millions and tokens in") as e:
        read_runs(wrong, Chinchilla)
    read = read_runs(wrong, Chinchilla, mapping=dict(remedies(e)))
    np.testing.assert_allclose(read.runs.design.tokens, right["tokens"])


def test_a_column_that_does_not_vary_is_said_to_be_one_number():
    with pytest.raises(ValueError, match="tokens are 7 in all rows, but a run has at least 10000 tokens"):
        read_runs(grid(tokens=7.0), Chinchilla)


def test_flops_in_another_unit_are_refused_where_they_are_read_and_unread_elsewhere():
    frame = grid(flops=lambda f: 6 * f["params_active"] * f["tokens"] / 1e18)
    with pytest.raises(ValueError, match=r"Are these exaFLOPs\? Pass mapping=..flops.: .flops \* 1e18"):
        read_runs(frame, LossCompute)
    read = read_runs(frame, Chinchilla)
    assert read.runs.design.flops is None
    assert any("Column flops is not read" in note for note in read.notes)


def test_counts_that_contradict_each_other_by_a_thousand_are_refused_and_the_remedy_mends_them():
    right = grid(flops=lambda f: 6 * f["params_active"] * f["tokens"])
    with pytest.raises(ValueError, match=r"flops are 1e\+03 times 6 · params_active · tokens in all rows") as e:
        read_runs(right.assign(tokens=right["tokens"] / 1e3), Chinchilla)
    assert 'mapping={"tokens": "tokens * 1000"}' in str(e.value)
    wrong = right.assign(tokens=np.where(THIRD, right["tokens"] / 1e3, right["tokens"]))
    with pytest.raises(ValueError, match=r"in 10 of 30 rows \(rows 1, 4, 7, 10, 13, …\)"):
        read_runs(wrong, Chinchilla)


@pytest.mark.parametrize("share", [0.2, 1.0, 3.0])
def test_flops_that_are_counted_another_way_are_no_wrong_unit(share):
    frame = grid(flops=lambda f: 6 * share * f["params_active"] * f["tokens"])
    assert len(read_runs(frame, Chinchilla).runs) == 30


@pytest.mark.parametrize(
    ("theirs", "scale"),
    [
        ({"params_active": "active_params", "tokens": "n_tokens", "loss": "val_loss"}, 1.0),
        ({"params_active": "N", "tokens": "D", "loss": "L"}, 1.0),
        ({"params_active": "Model Size", "tokens": "training tokens", "loss": "Validation Loss"}, 1.0),
        ({"params_active": "params_b", "tokens": "tokens (billions)", "loss": "eval/loss"}, 1e-9),
    ],
)
def test_columns_that_the_field_calls_otherwise_are_read_and_said(theirs, scale):
    right = grid()
    frame = right.assign(params_active=right["params_active"] * scale, tokens=right["tokens"] * scale)
    read = read_runs(frame.rename(columns=theirs), Chinchilla)
    np.testing.assert_allclose(read.runs.design.params_active, right["params_active"])
    np.testing.assert_allclose(read.runs.design.tokens, right["tokens"])
    np.testing.assert_allclose(read.runs.loss, right["loss"])
    (said,) = read.notes
    assert said.startswith("Columns under other names:")
    assert all(name in said for name in theirs.values() if "(" not in name)


def test_an_id_names_the_runs_if_no_column_does_and_its_cells_are_distinct_texts():
    names = [f"run-{row}" for row in range(len(grid()))]
    read = read_runs(grid(exp=names), Chinchilla)
    assert list(read.frame["model"]) == names
    assert read.notes == ("Columns under other names: model from exp.",)
    for frame in (grid(exp="sweep"), grid(id=range(len(names)))):
        assert not read_runs(frame, Chinchilla).notes
    assert list(read_runs(grid(run=names, id=names[::-1]), Chinchilla).frame["model"]) == names


def test_a_name_that_two_columns_bear_is_asked_about():
    frame = grid().rename(columns={"loss": "val_loss"}).assign(eval_loss=3.0)
    with pytest.raises(ValueError, match=r"loss could be read from val_loss or eval_loss; choose one: loss=.COLUMN"):
        read_runs(frame, Chinchilla)
    assert (read_runs(frame, Chinchilla, loss="eval_loss").runs.loss == 3.0).all()


@pytest.mark.parametrize(
    "column",
    [
        *({"num_experts": 8}, {"top_k": 2}, {"n_shared_experts": 1}, {"sparsity": 0.9}, {"expansion": 4.0}),
        *({"E": 64}, {"experts per layer": "8x"}, {"is_moe": True}, {"router_type": "top-k"}, {"n_moe_layers": 3}),
        *({"N_act_noembed": 1e7}, {"active (M)": 10}, {"num_experts": np.nan, "top_k": 2}),
        {"experts": 8, "n_experts": 8},
    ],
)
def test_any_sign_of_experts_leaves_the_one_size_to_be_said(column):
    frame = grid(**column).rename(columns={"params_active": "N"})
    with pytest.raises(ValueError, match="N could be params_total or params_active, since ") as e:
        read_runs(frame, Chinchilla)
    assert {"params_active", "params_total"} <= {name for name, _ in remedies(e)}


@pytest.mark.parametrize(
    "column",
    [
        *({"num_experts": 0, "top_k": 2}, {"num_experts": 1, "router_type": "none"}, {"sparsity": 0.0}),
        *({"is_moe": False}, {"activation": "gelu"}, {"active": 1}, {"E": 1}, {"expert_count": 0}),
    ],
)
def test_dense_models_are_of_one_size_whatever_columns_their_table_has(column):
    frame = grid(**column).rename(columns={"params_active": "N"})
    design = read_runs(frame, EffectiveParams).runs.design
    assert (design.params_active == design.params_total).all()


@pytest.mark.parametrize("name", ["Na", "N_a", "Nact", "N_active", "active params", "na (M)"])
def test_active_parameters_beside_a_size_make_that_the_total(name):
    right = grid()
    unit = 1e6 if "(M)" in name else 1
    frame = right.assign(**{name: right["params_active"] / unit, "N": 4 * right["params_active"]})
    read = read_runs(frame.drop(columns="params_active"), EffectiveParams).runs.design
    np.testing.assert_allclose(read.params_active, right["params_active"])
    np.testing.assert_allclose(read.params_total, 4 * right["params_active"])


def test_active_parameters_under_two_names_are_asked_about_and_not_read_from_the_size():
    frame = grid(Na=1e7, n_active=1e7).rename(columns={"params_active": "N"})
    with pytest.raises(ValueError, match="params_active could be read from Na or n_active") as e:
        read_runs(frame, Chinchilla)
    assert remedies(e) == [["params_active", "Na"], ["params_active", "n_active"]]


def test_experts_that_are_mapped_are_a_sign_as_those_that_the_table_names():
    frame = grid(e=3).rename(columns={"params_active": "N"})
    with pytest.raises(ValueError, match="N could be params_total or params_active"):
        read_runs(frame, Chinchilla, mapping={"num_experts": "2 ** e"})
    assert len(read_runs(frame, Chinchilla, mapping={"num_experts": "0 * e"}).runs) == len(frame)


@pytest.mark.parametrize(("experts", "reason"), [({}, "looks like active parameters"), ({"top_k": 2}, "column top_k")])
def test_a_column_that_looks_like_active_parameters_has_a_remedy_that_reads_it(experts, reason):
    right = grid()
    frame = right.assign(**experts, act_n=right["params_active"] / 1e6, N=3 * right["params_active"])
    frame = frame.rename(columns={"act_n": "act n (M)"}).drop(columns="params_active")
    with pytest.raises(ValueError, match=reason) as e:
        read_runs(frame, EffectiveParams)
    read = read_runs(frame, EffectiveParams, mapping=dict(remedies(e)[:2])).runs.design
    np.testing.assert_allclose(read.params_active, right["params_active"])
    np.testing.assert_allclose(read.params_total, 3 * right["params_active"])


def test_the_one_size_of_models_with_experts_has_a_remedy_for_both_readings_that_a_shell_passes_on():
    right = grid()
    frame = right.assign(params_active=right["params_active"] / 1e6, num_experts=8)
    with pytest.raises(ValueError, match="could be params_total or params_active") as e:
        read_runs(frame.rename(columns={"params_active": "params (M)"}), Chinchilla)
    both = remedies(e)[:2]
    assert [name for name, _ in both] == ["params_active", "params_total"]
    read = read_runs(
        frame.rename(columns={"params_active": "params (M)"}), EffectiveParams, mapping=dict(both)
    ).runs.design
    np.testing.assert_allclose(read.params_active, right["params_active"])
    np.testing.assert_allclose(read.params_total, right["params_active"])


def test_a_count_that_two_columns_may_hold_is_asked_about_with_the_unit_of_each():
    frame = grid(D=1e9).rename(columns={"tokens": "tokens (B)"})
    with pytest.raises(ValueError, match="tokens could be read from") as e:
        read_runs(frame, Chinchilla)
    assert remedies(e) == [["tokens", "`tokens (B)` * 1e9"], ["tokens", "D"]]


def test_a_perplexity_under_another_name_has_a_remedy_that_reads_it():
    right = grid()
    frame = right.rename(columns={"loss": "eval loss"}).assign(**{"eval loss": np.exp(right["loss"])})
    (said,) = [
        note for note in read_runs(frame.assign(**{"eval loss": 50.0}), Chinchilla).notes if "perplexity" in note
    ]
    mapping = ast.literal_eval(re.findall(r"mapping=({.*?})", said)[0])
    np.testing.assert_allclose(read_runs(frame, Chinchilla, mapping=mapping).runs.loss, right["loss"])


@pytest.mark.parametrize("count", [5.0001, -2.0])
def test_a_count_that_is_none_is_refused_where_a_law_reads_it_and_elsewhere_let_be(count):
    frame = grid(num_experts=[count] + 29 * [8.0], params_total=1e10)
    with pytest.raises(ValueError, match=r"num_experts is not (a whole number|at least 0).* in 1 of 30 rows \(row 1\)"):
        read_runs(frame, ("num_experts",))
    assert len(read_runs(frame, ("num_experts",), drop_invalid=True).runs) == 29
    assert len(read_runs(frame, Chinchilla).runs) == 30


def test_a_count_that_stands_for_a_ratio_is_taken_where_it_is_mapped():
    frame = grid(S=0.7, params_total=1e10)
    read = read_runs(frame, ("num_experts",), mapping={"num_experts": "1 / (1 - S)"})
    np.testing.assert_allclose(read.runs.design.num_experts, 1 / 0.3)


def test_more_experts_for_a_token_than_there_are_is_refused_where_a_law_reads_both():
    frame = grid(num_experts=[8.0] * 29 + [1.0], top_k=[16.0] + 29 * [2.0], params_total=1e10)
    with pytest.raises(ValueError, match=r"top_k exceeds num_experts in 1 of 30 rows \(row 1\)"):
        read_runs(frame, ("num_experts", "top_k"))
    assert len(read_runs(frame, Chinchilla).runs) == 30


def test_dense_models_with_more_active_than_total_parameters_get_the_mapping_that_counts_them_once():
    named = {"params_active": "active_params_M", "params_total": "total_params_M", "num_experts": "n_experts"}
    frame = grid(num_experts=[0] * 5 + [8] * 25).assign(params_total=lambda f: f["params_active"] * 4)
    frame.loc[:4, "params_total"] = 0.98 * frame["params_active"][:5]
    own = frame.assign(params_active=frame["params_active"] / 1e6, params_total=frame["params_total"] / 1e6)
    own = own.rename(columns=named)
    with pytest.raises(
        UserError, match=r"exceeds params_total in 5 of 30 rows.* All of these are dense models"
    ) as refused:
        read_runs(own, EffectiveParams)
    option = re.search(r"mapping=(\{.*?\})", str(refused.value))[1]
    assert option == '{"params_active": "where(n_experts == 0, total_params_M * 1e6, active_params_M * 1e6)"}'
    design = read_runs(own, EffectiveParams, mapping=ast.literal_eval(option)).runs.design
    np.testing.assert_allclose(design.params_active[:5], design.params_total[:5])
    np.testing.assert_allclose(design.params_active[5:], frame["params_active"][5:])
    with pytest.raises(UserError, match="exceeds params_total") as refused:
        read_runs(own.assign(n_experts=8), EffectiveParams)
    assert "dense" not in str(refused.value)


def test_a_group_that_is_no_column_lists_the_columns():
    with pytest.raises(
        UserError, match="no column architecture to group runs by; choose from params_active, "
    ) as refused:
        read_runs(FRAME, Chinchilla, group="architecture")
    assert "mapping" not in str(refused.value)


def test_a_loss_with_a_comma_is_refused_and_counts_with_commas_are_read():
    right = grid()
    frame = right.assign(tokens=[f"{tokens:,.0f}" for tokens in right["tokens"]])
    np.testing.assert_allclose(read_runs(frame, Chinchilla).runs.design.tokens, right["tokens"], rtol=1e-8)
    with pytest.raises(
        ValueError,
        match=r"column val_loss has '3,874' in rows 1, .*, whose comma would be read as a thousands separator",
    ):
        read_runs(right.drop(columns="loss").assign(val_loss="3,874"), Chinchilla, loss="val_loss")


def test_a_column_of_ours_is_not_offered_for_another():
    with pytest.raises(ValueError, match=r"no column flops .*; the columns are params_active, tokens, loss\."):
        read_runs(grid(), LossCompute)


@pytest.mark.parametrize(
    ("columns", "units", "remedy"),
    [
        ({"params_active": "active_params", "tokens": "toks"}, (1, 1), "6 * active_params * toks"),
        ({"params_active": "N", "tokens": "D"}, (1, 1), "6 * N * D"),
        ({"params_active": "N (M)", "tokens": "D (B)"}, (1e6, 1e9), "6 * (`N (M)` * 1e6) * (`D (B)` * 1e9)"),
    ],
)
def test_missing_flops_are_computed_from_the_tables_own_columns_and_units(columns, units, remedy):
    frame = grid().drop(columns="flops", errors="ignore")
    right = 6 * frame["params_active"] * frame["tokens"]
    for name, unit in zip(columns, units, strict=True):
        frame[name] = frame[name] / unit
    frame = frame.rename(columns=columns)
    with pytest.raises(ValueError, match="flops can be computed from the other columns") as e:
        read_runs(frame, LossCompute)
    assert dict(remedies(e)) == {"flops": remedy}
    read = read_runs(frame, LossCompute, mapping=dict(remedies(e)))
    np.testing.assert_allclose(read.runs.design.flops, right, rtol=1e-12)
    mixtures = frame.assign(experts=8)
    if columns["params_active"] != "active_params":
        with pytest.raises(ValueError, match="counts active parameters, flops can be computed") as e:
            read_runs(mixtures, LossCompute)
        assert remedy in str(e.value)


def test_fields_that_follow_from_what_a_table_derived_of_them_have_a_remedy_that_reads_them():
    right = pd.DataFrame({"top_k": [3.0, 8.0, 5.0], "num_shared_experts": [1.0, 0.0, 2.5], "model_dim": 64.0})
    right = right.assign(params_active=[1e8, 2e8, 3e8], params_total=[3e8, 2e8, 9e8], expert_hidden=[32.0, 64.0, 16.0])
    right = right.assign(tokens=[2e9, 4e9, 1e10], flops=lambda f: 6 * f["params_active"] * f["tokens"])
    design = design_from({name: right[name].to_numpy() for name in right})
    named = {*re.findall(r"[a-z_]{3,}", " ".join(map(str, column_names._INVERSES))), "loss"} - {"round"}
    every = right.assign(loss=3.0, **{name: getattr(design, name) for name in named - {*right, "loss"}})
    for each in column_names._INVERSES:
        table = every.drop(columns=[*each])
        with pytest.raises(ValueError, match="can be computed from the other columns") as e:
            read_runs(table, tuple(each))
        read = read_runs(table, tuple(each), mapping=dict(remedies(e)))
        for name in each:
            np.testing.assert_allclose(read.frame[name], right[name], rtol=1e-12)


def mixed():
    """Dense models, and mixtures of the active parameters and tokens of some of them."""
    dense = FRAME.assign(params_total=FRAME["params_active"], num_experts=0, top_k=0)
    dense = pd.concat([dense, dense.assign(tokens=dense["tokens"] * 2, loss=dense["loss"] - 0.1)])
    mixtures = dense[:3].assign(params_total=lambda f: 4 * f["params_active"], num_experts=8, top_k=2)
    return pd.concat([dense, mixtures.assign(loss=lambda f: f["loss"] - 0.05)])


def test_mixtures_are_no_replicates_of_dense_models_to_a_law_that_reads_neither_experts_nor_totals():
    (said,) = [note for note in read_runs(mixed(), Chinchilla).notes if "repeat" in note]
    assert "count as replicates" not in said
    assert "they differ in num_experts, top_k and params_total, which chinchilla does not read" in said
    assert 'MoE models); keep the dense models with where=["num_experts == 0"] or fit effective_' in said
    assert not any("repeat" in note for note in read_runs(mixed(), Chinchilla, where=["num_experts == 0"]).notes)
    assert not any("repeat" in note for note in read_runs(mixed(), EffectiveParams).notes)


@pytest.mark.parametrize(
    ("frame", "there", "missing"),
    [
        (mixed().drop(columns="params_total"), "num_experts == 0", "effective_params"),
        (mixed().drop(columns=["num_experts", "top_k"]), "params_total <= params_active", "num_experts"),
        (mixed().assign(num_experts=lambda f: f["num_experts"].replace(0, 1)), "num_experts <= 1", "=="),
        (mixed()[6:].assign(tokens=1e9, params_active=1e8), "fit effective_params", "where="),
    ],
)
def test_what_to_do_about_mixtures_is_only_what_the_table_supports(frame, there, missing):
    (said,) = [note for note in read_runs(frame, Chinchilla).notes if "not replicates" in note]
    assert there in said
    assert missing not in said


def test_what_a_table_says_of_the_experts_of_dense_models_makes_no_difference():
    frame = FRAME.assign(params_total=FRAME["params_active"], num_experts=0, top_k=0)
    frame = pd.concat([frame, frame.assign(num_experts=1, top_k=1, loss=3.1)])
    (said,) = [note for note in read_runs(frame, Chinchilla).notes if "repeat" in note]
    assert "count as replicates" in said


def test_a_batch_is_read_in_tokens_only_where_its_unit_is_known():
    frame = grid(bs=256)
    assert any(
        note.startswith("bs is 256 in all rows: it counts sequences") for note in read_runs(frame, Chinchilla).notes
    )
    with pytest.raises(ValueError, match=r"Name the columns: mapping=\{.tokens.: .COLUMN"):
        read_runs(frame.drop(columns="tokens"), Chinchilla)
    assert (read_runs(frame.assign(seq_len=2048), Chinchilla).frame["batch_tokens"] == 256 * 2048).all()
    assert (read_runs(frame.assign(bs=2**20), Chinchilla).frame["batch_tokens"] == 2**20).all()


def swept(seeds=1):
    """Every model at nine settings, the best of them known."""
    found = []
    for lr in (1e-4, 1e-3, 1e-2):
        for bs in (64, 128, 256):
            for seed in range(seeds):
                excess = 0.1 * abs(np.log10(lr / 1e-3)) + 0.05 * abs(np.log2(bs / 128)) + 0.001 * seed
                found.append(grid(lr=lr, bs=bs, seed=seed, loss=lambda f, x=excess: f["loss"] + x))
    return pd.concat(found)


def test_a_sweep_of_learning_rates_is_not_taken_for_replicates():
    notes = read_runs(swept(), Chinchilla).notes
    (said,) = [note for note in notes if "sweep" in note]
    assert "240 of 270 rows" in said
    assert "30 groups" in said
    assert 'best_by=["lr", "bs"]' in said
    assert not any("count as replicates" in note for note in notes)


@pytest.mark.parametrize("names", [("lr", "bs"), ("learning_rate", "batch_tokens")])
def test_the_best_of_each_sweep_is_kept_and_the_rest_is_said(names):
    read = read_runs(swept(), Chinchilla, best_by=names)
    np.testing.assert_allclose(np.sort(read.runs.loss), np.sort(grid()["loss"]))
    assert any("Dropped: 240 of 270 rows" in note for note in read.dropped)
    assert not any(re.search("(smallest|largest) tried", note) for note in read.notes)
    assert (read.tried_settings == 9).all()
    rising = swept().assign(loss=lambda f: f["loss"] - 0.3 * np.log10(f["lr"]))
    cut = read_runs(rising, Chinchilla, best_by=names)
    (said,) = [note for note in cut.notes if note.startswith(f"The best {names[0]}, ")]
    assert "is the largest tried in 30 of 30 sweeps; try larger values." in said


def test_a_sweep_of_two_values_asks_for_a_third_that_brackets_the_optimum():
    cut = read_runs(swept(), Chinchilla, best_by=["lr", "bs"], where=["lr < 5e-3", "bs > 100"])
    assert not any(re.search("(smallest|largest) tried", note) for note in cut.notes)
    (said,) = [note for note in cut.notes if "cannot bracket" in note]
    assert "lr in 30, bs in 30 groups" in said
    assert "beyond the better one: bs = 64, lr = 0.01." in said
    assert (cut.tried_settings == 4).all()


def test_runs_without_a_sweep_count_as_tried_once():
    some = swept().query("lr == 1e-3 or tokens > tokens.median()").query("bs == 128")
    tried = read_runs(some, Chinchilla, best_by=["lr"]).tried_settings
    assert set(tried) == {1, 3}


def test_seeds_are_replicates_and_each_keeps_its_best():
    read = read_runs(swept(seeds=3), Chinchilla, best_by=["lr", "bs"])
    assert len(read.runs) == 90
    assert any("count as replicates, although they differ in seed" in note for note in read.notes)


@pytest.mark.parametrize(("name", "words"), [("tokens", "the law reads"), ("color", "no column color for `best_by`")])
def test_a_column_that_cannot_be_swept_is_refused(name, words):
    with pytest.raises(ValueError, match=words):
        read_runs(swept(), Chinchilla, best_by=[name])


def test_the_best_learning_rates_of_a_sweep_are_what_a_law_of_them_is_fitted_to():
    frame = swept().assign(flops=lambda f: 6 * f["params_active"] * f["tokens"], batch_tokens=lambda f: f["bs"] * 2048)
    read = read_runs(frame, Hyperparameters, loss="learning_rate", best_by=["lr", "bs"])
    assert (read.runs.loss == 1e-3).all()
    assert len(read.runs) == frame["flops"].nunique()


@pytest.mark.parametrize("target", ["lr", "learning_rate"])
def test_the_best_of_a_sweep_is_known_to_a_step_of_its_grid(target):
    frame = swept().rename(columns={"lr": target})
    steps = np.log(10) / np.sqrt(12)
    read = read_runs(frame, f"{target} = k*params_active^a", best_by=[target, "bs"])
    np.testing.assert_allclose(read.runs.resolution, steps)
    assert read.runs.coarseness == pytest.approx(steps)
    assert read_runs(frame, Chinchilla, best_by=[target, "bs"]).runs.resolution is None
    batch = frame.assign(batch_tokens=2048 * frame["bs"])
    other = read_runs(batch, "batch_tokens = k*params_active^a", best_by=["bs", target]).runs
    np.testing.assert_allclose(other.resolution, np.log(2) / np.sqrt(12))


def bowls(seeds=2, noise=3e-4, steeper=0.0):
    """Sweeps over a learning rate in factors of two and a batch, of known optima that lie between what was tried."""
    generator, found = np.random.default_rng(0), []
    for size, tokens, offset in [(1e8, 2e9, 0.0), (2e8, 4e9, 0.2), (4e8, 8e9, 0.4), (8e8, 1.6e10, 0.55)]:
        for lr in 2.0 ** np.arange(-13, -5):
            for bs in (32, 64, 128, 256, 512):
                x, y = np.log(lr / 1e-3) + offset, np.log(bs / 150) - offset
                loss = 3 - offset + 0.01 * x**2 + 0.004 * y**2 + 0.002 * x * y + steeper * max(x, 0) ** 4
                for seed in range(seeds):
                    row = {"params_active": size, "tokens": tokens, "lr": lr, "bs": bs, "batch_tokens": 2048 * bs}
                    found.append(row | {"seed": seed, "loss": loss + noise * generator.normal(), "offset": offset})
    return pd.DataFrame(found)


def test_the_minimum_of_a_sweep_lies_between_what_was_tried_and_has_its_error():
    frame = read_runs(bowls(), "lr = k*params_active^a", best_by=["learning_rate", "bs"], smooth=True).frame
    assert len(frame) == 4
    np.testing.assert_allclose(frame["batch_tokens"], 2048 * frame["bs"])
    errors = np.log(frame["lr"] / 1e-3) + frame["offset"]
    assert abs(errors).max() < 0.03
    assert (abs(errors) < 4 * frame["lr_standard_error"]).all()
    assert (abs(frame["loss"] - (3 - frame["offset"])) < 5 * frame["loss_standard_error"]).all()
    skewed = read_runs(bowls(steeper=0.001), Chinchilla, best_by=["lr", "bs"], smooth=True).frame
    assert abs(np.log(skewed["lr"] / 1e-3) + skewed["offset"]).max() < 0.06
    best = read_runs(bowls(), Chinchilla, best_by=["lr", "bs"]).frame
    assert abs(np.log(best["lr"] / 1e-3) + best["offset"]).max() > 0.2


def test_a_coarse_grid_whose_steps_are_as_large_as_the_noise_has_a_minimum_all_the_same():
    generator, found = np.random.default_rng(1), []
    for size in 2e7 * 2.0 ** np.arange(6):
        for tokens in size * np.array([10.0, 20, 40]):
            for lr in 3e-4 * 2.0 ** np.arange(6):
                loss = (1.7 + 400 / size**0.34) * np.exp(0.012 * np.log(lr / (12 / size**0.5)) ** 2)
                for seed in range(3):
                    row = {"params_active": size, "tokens": tokens, "lr": lr, "seed": seed}
                    found.append(row | {"loss": loss * np.exp(0.004 * generator.normal())})
    frame = read_runs(pd.DataFrame(found), "lr = k*params_active^a", best_by=["lr"], smooth=True).frame
    assert len(frame) == 18
    errors = np.log(frame["lr"] / 12 * np.sqrt(frame["params_active"]))
    assert errors.std() < 0.15
    assert 0.5 < errors.std() / frame["lr_standard_error"].median() < 2


@pytest.mark.parametrize("smooth", [False, True])
def test_a_sweep_with_a_loss_that_is_empty_is_refused_whatever_is_fitted(smooth):
    frame = bowls()
    frame.loc[3, "loss"] = np.nan
    for law in ("lr = k*params_active^a", Chinchilla):
        with pytest.raises(ValueError, match=r"loss is empty or not finite in 1 of \d+ rows \(row 4\)"):
            read_runs(frame, law, best_by=["lr", "bs"], smooth=smooth)
        read = read_runs(frame, law, best_by=["lr", "bs"], smooth=smooth, drop_invalid=True)
        assert any("row 4" in note for note in read.dropped)


def test_runs_that_differ_in_a_seed_or_a_setting_or_in_their_loss_are_none_listed_twice():
    frame = pd.concat([grid(), grid()], ignore_index=True)
    apart = {"seed": [0] * 30 + [1] * 30, "lr": [1e-3] * 30 + [2e-3] * 30}
    assert any(
        "repeat the sizes and loss of an earlier row exactly" in note for note in read_runs(frame, Chinchilla).notes
    )
    for name, values in apart.items():
        notes = read_runs(frame.assign(**{name: values}), Chinchilla, drop_duplicates=True)
        assert len(notes.runs) == 60
    rates = bowls().assign(seed=0)
    rates["seed"] = np.arange(len(rates)) % 2
    read = read_runs(rates, "lr = k*params_active^a", best_by=["lr", "bs"])
    assert not any("listed twice" in note for note in read.notes)


def test_a_seed_is_no_sweep_and_the_best_of_seeds_is_said_to_be_lucky():
    notes = " ".join(read_runs(bowls(), Chinchilla, best_by=["lr", "bs", "seed"]).notes)
    assert "The best of several seeds is biased low" in notes
    assert "seed in" not in notes


def test_a_setting_is_named_by_its_own_name_or_by_another_in_use():
    frame = bowls().rename(columns={"lr": "learning_rate"})
    assert len(read_runs(frame, Chinchilla, best_by="lr").runs) == len(
        read_runs(frame, Chinchilla, best_by=["learning_rate"]).runs
    )


def test_separate_trainings_that_count_as_one_group_are_said():
    frame = grid().assign(run_name=[f"run{i}" for i in range(30)])
    (note,) = [one for one in read_runs(frame, Chinchilla).notes if 'group="run_name"' in one]
    assert "the column run_name names each row differently" in note
    by_name = read_runs(frame, Chinchilla, group="run_name")
    assert len(np.unique(by_name.runs.group)) == 30
    assert not any("group=" in one for one in by_name.notes)


def test_scores_in_percent_are_said():
    frame = pd.DataFrame({"loss": [3.0, 2.5, 2.2], "accuracy": [25.0, 40.0, 61.0]})
    notes = read_runs(frame, "accuracy_from_loss").notes
    assert any("accuracy is above 1 in 3 of 3 rows" in note and "accuracy / 100" in note for note in notes)
    assert not any(
        "above 1" in one
        for one in read_runs(
            frame, "accuracy_from_loss", where=["loss > 0"], mapping={"accuracy": "accuracy / 100"}
        ).notes
    )


def test_a_law_of_sizes_is_of_the_columns_inside_nested_ones():
    rows = [
        {"config": {"model": {"n_params": n}, "tokens": d}, "metrics": {"val": {"loss": loss}}, "tags": ["a"]}
        for n, d, loss in zip(grid()["params_active"], grid()["tokens"], grid()["loss"], strict=True)
    ]
    read = read_runs(pd.DataFrame(rows), Chinchilla)
    np.testing.assert_allclose(read.runs.loss, grid()["loss"])
    np.testing.assert_allclose(read.runs.design.tokens, grid()["tokens"])


def test_a_law_of_the_best_loss_weighs_sweeps_by_their_precision():
    frame = bowls()
    few = frame[(frame["params_active"] > 1e8) | frame["seed"].eq(0)]
    runs = read_runs(few, Chinchilla, best_by=["lr", "bs"], smooth=True).runs
    assert runs.weight[0] < runs.weight[1:].min()
    assert np.isclose(runs.weight.mean(), 1)


@pytest.mark.parametrize(
    ("where", "words"),
    [
        (["bs < 200"], "no sweep over lr and bs has a minimum within the tried values .bs above the tried values: 4"),
        (["lr > 9e-4", "lr < 1e-3"], "too few runs near the best"),
    ],
)
def test_sweeps_without_a_smooth_minimum_are_said_by_reason(where, words):
    with pytest.raises(ValueError, match=words):
        read_runs(bowls(), Chinchilla, best_by=["lr", "bs"], smooth=True, where=where)


def test_a_smooth_minimum_needs_a_sweep_of_numbers_above_0():
    with pytest.raises(ValueError, match="add best_by="):
        read_runs(bowls(), Chinchilla, smooth=True)
    with pytest.raises(ValueError, match="logarithms of lr"):
        read_runs(bowls().assign(lr=0.0), Chinchilla, best_by=["lr"], smooth=True)


@pytest.mark.parametrize("length", ["steps", "Steps", "epochs", "samples_seen", "iteration"])
def test_checkpoints_of_one_model_are_one_group_whatever_their_length_is_counted_in(length):
    later = FRAME.assign(tokens=2 * FRAME["tokens"], loss=0.95 * FRAME["loss"])
    frame = pd.concat([FRAME, later]).rename(columns={"tokens": length})
    groups = read_runs(frame, f"loss = E + A/params_active^a + B/{length}^b").runs.group
    np.testing.assert_array_equal(groups, [0, 1, 2, 3, 0, 1, 2, 3])


def test_rows_of_one_training_in_several_groups_are_said():
    frame = FRAME.assign(depth=np.arange(len(FRAME)) + 1.0, run=[f"run-{i // 2}" for i in range(len(FRAME))])
    formula = "loss = E + A/params_active^a + B/depth^b"
    said = " ".join(read_runs(frame, formula).notes)
    assert "names in the column run have rows in several groups" in said
    assert 'group="run"' in said
    assert "several groups" not in " ".join(read_runs(frame, formula, group="run").notes)


def test_rows_of_several_data_that_are_fitted_as_one_are_said():
    frame = FRAME.assign(dataset=["c4", "c4", "pile", "pile"])
    (said,) = (note for note in read_runs(frame, Chinchilla).notes if "dataset" in note)
    assert "Column dataset has 2 values, and all rows are fitted together" in said
    assert "where=['dataset == \"c4\"']" in said
    one = read_runs(frame, Chinchilla, where=["dataset == 'c4'"]).notes
    assert not any("fitted together" in note for note in one)
    each = FRAME.assign(dataset=["a", "b", "c", "d"])
    assert not any("fitted together" in note for note in read_runs(each, Chinchilla).notes), "they name rows"


def test_a_group_that_is_the_same_in_all_rows_groups_nothing():
    read = read_runs(FRAME.assign(group="all_data"), Chinchilla)
    assert len(set(read.runs.group)) == 4
    assert any("Column group is the same in all rows" in note for note in read.notes)
    assert len(set(read_runs(FRAME.assign(group="all_data"), Chinchilla, group="group").runs.group)) == 1


def test_no_columns_name_moves_the_terminals_cursor():
    with pytest.raises(ValueError, match=r"has no column tokens") as told:
        read_runs(pd.DataFrame({"\x1b[2Jx": [1.0], "params_active": [1.0], "loss": [1.0]}), "chinchilla")
    assert str(told.value).isprintable()


def test_a_row_says_whether_its_loss_was_measured():
    guessed = FRAME.assign(loss_standard_error=0.01)
    for flags in ([0, 1] * (len(FRAME) // 2), ["false", "True"] * (len(FRAME) // 2)):
        notes = read_runs(guessed.assign(is_predicted=flags), Chinchilla).notes
        assert any(f"{len(FRAME) // 2} of {len(FRAME)} losses were predicted, not measured" in note for note in notes)
    for blank in (None, "yes"):
        flags = pd.Series([1] * (len(FRAME) - 1) + [blank], index=FRAME.index, dtype=object)
        with pytest.raises(UserError, match=rf"Column is_predicted is .* in row {len(FRAME)}.*; write 0 for"):
            read_runs(guessed.assign(is_predicted=flags), Chinchilla)
    with pytest.raises(UserError, match="above 0 and below 1,000,000 in loss_standard_error"):
        read_runs(guessed.assign(is_predicted=1, loss_standard_error=1e300), Chinchilla)
    # Another's column of predicted losses is of nothing that was guessed.
    assert not any("measured" in note for note in read_runs(FRAME.assign(is_predicted=2.7), Chinchilla).notes)


def test_a_column_with_an_empty_cell_is_reported_and_refused_where_models_are_compared_by_it():
    frame = FRAME.assign(num_experts=[8, 64, 8, np.nan], top_k=[2, 2, 2, 2])
    said = "num_experts is empty or not finite in row 4"
    notes = read_runs(frame, Chinchilla).notes
    assert any(note == f"{said}, so runs are not distinguished by num_experts." for note in notes)
    with pytest.raises(UserError, match=f"{said}, but models are compared by num_experts. Fill the cells"):
        read_runs(frame, ("params_active",), also_told_apart_by=("num_experts", "top_k"))
    read_runs(frame.assign(num_experts=np.nan), ("params_active",), also_told_apart_by=("num_experts", "top_k"))


@pytest.mark.parametrize("column", ["num_experts", "top_k"])
def test_a_negative_count_of_experts_is_refused_where_models_are_compared_by_it(column):
    frame = FRAME.assign(**{"num_experts": 8, "top_k": 2, column: [8, -8, 8, 8]})
    with pytest.raises(UserError, match=rf"{column} is not at least 0 in 1 of 4 rows \(row 2\)"):
        read_runs(frame, ("params_active",), also_told_apart_by=("num_experts", "top_k"))


def test_a_negative_count_of_experts_is_not_dense():
    frame = FRAME.assign(num_experts=[8, -8, 8, 8], top_k=[2, np.nan, 2, 2])
    read = read_runs(frame, ("params_active",))
    assert np.isnan(read.frame["top_k"][1])


@pytest.mark.parametrize(("factor", "said"), [(6, False), (7, False), (3, True)])
@pytest.mark.parametrize("cost", ["flops", "price"])
def test_a_budget_that_contradicts_the_column_of_its_name_is_reported(factor, said, cost):
    frame = FRAME.assign(**{cost: 6 * FRAME["params_active"] * FRAME["tokens"]})
    form, budget = "loss = E + A/params_active^a + B/D^b", f"{cost} = {factor}*params_active*D"
    law = column_names.law_of_formula(form, frame, budget=budget)
    words = f"The budget {budget!r} is 0.5 to 0.5 times the column {cost}; decisions use the budget."
    assert (words in read_runs(frame, law).notes) == said
