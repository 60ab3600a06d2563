"""Held-out runs take no part in a fit, and test it."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
from known_fit import known_runs, sweep

from moejax.errors import UserError
from moejax.fit.runs import runs_from
from moejax.fit.search.fit_law import Search, fit_law
from moejax.fit.search.starts import Sobol
from moejax.fit.selection.holdout import (
    SplitErrors,
    beyond,
    each_group,
    each_value,
    folds,
    hold_out,
    largest,
    pooled,
    reach_of,
    split_by,
    split_errors,
    split_of,
    warnings,
)
from moejax.fit.summary import held_out
from moejax.fit.tables.read_runs import read_runs
from moejax.laws.dense.chinchilla import HOFFMANN_2022, Chinchilla
from moejax.laws.design import Design
from moejax.laws.mixtures.sparsity import Sparsity

QUICK = {"starts": Sobol(256), "search": Search(screened=16, rounds=((50, 4),))}


def test_the_largest_runs_are_predicted_by_the_law_that_made_them():
    runs = sweep(HOFFMANN_2022)
    (found,) = hold_out(Chinchilla, runs, [largest(runs, "tokens")], **QUICK)
    assert found.metrics.runs == 24
    assert found.fit.metrics.runs == 96
    assert found.metrics.max_relative_error < 1e-6


def test_a_held_out_loss_has_no_influence_on_the_fit():
    split = largest(known_runs(), "params_active")
    spoiled = dataclasses.replace(known_runs(), loss=np.where(split.held_out, 99.0, known_runs().loss))
    (one,), (other,) = (hold_out(Chinchilla, runs, [split], **QUICK) for runs in (known_runs(), spoiled))
    assert one.fit.law == other.fit.law
    assert other.metrics.mae > 50


def test_a_fit_with_weights_of_zero_is_the_fit_without_those_runs():
    kept = np.arange(len(known_runs())) % 3 > 0
    one, other = (
        fit_law(Chinchilla, known_runs().only(kept), **QUICK),
        fit_law(Chinchilla, known_runs().where(kept), **QUICK),
    )
    assert one.value == pytest.approx(other.value, rel=1e-9)
    assert one.coefficients == pytest.approx(other.coefficients, rel=1e-6)


def test_folds_hold_every_run_out_once_and_never_split_a_group():
    splits = list(folds(known_runs(), 4))
    assert (np.sum([s.held_out for s in splits], axis=0) == 1).all()
    for split in splits:
        assert not set(known_runs().group[split.held_out]) & set(known_runs().group[~split.held_out])


def test_folds_do_not_test_extrapolation_and_the_largest_runs_do():
    runs = known_runs()
    split = largest(runs, "tokens")
    factor = runs.design.tokens.max() / runs.design.tokens[~split.held_out].max()
    assert reach_of(runs, [split]) == {"tokens": pytest.approx(factor)}
    assert beyond(runs, folds(runs, 5))
    assert reach_of(runs, folds(runs, 5)) == {}
    assert reach_of(runs, [split, *folds(runs, 5)]) == {}
    assert reach_of(runs, each_group(runs)) == {}


def test_held_out_budgets_reach_as_far_as_their_flops_although_the_table_has_no_flops():
    budgets = np.repeat([1e19, 3e19, 1e20], 5)
    sizes = np.tile(np.geomspace(0.3, 3, 5), 3) * np.sqrt(budgets / 60)
    runs = runs_from(Design(params_active=sizes, tokens=budgets / (6 * sizes)), np.linspace(3, 2, 15))
    split = largest(runs, "flops")
    assert reach_of(runs, [split]) == {"flops": pytest.approx(1e20 / 3e19)}
    assert beyond(runs, [split])["flops"] == pytest.approx(1e20 / 3e19)


def test_an_excess_that_prints_as_a_factor_of_1_is_none():
    runs = runs_from(Design(params_active=np.array([1e9, 1e9, 1e9]), tokens=np.array([1e9, 2e9, 2.009e9])), np.ones(3))
    split = split_of(runs, "the last", np.array([False, False, True]))
    assert beyond(runs, [split]) == reach_of(runs, [split]) == {}


def test_errors_of_folds_together_are_those_of_all_runs_each_predicted_by_the_fold_that_left_it_out():
    found = hold_out(Chinchilla, known_runs(), folds(known_runs(), 3), **QUICK)
    total = pooled(found)
    assert total.runs == len(known_runs())
    misses = np.concatenate([h.predicted - h.runs.loss for h in found])
    assert total.mae == pytest.approx(np.abs(misses).mean())
    assert total.r_squared == pytest.approx(
        1 - np.sum(misses**2) / np.sum((known_runs().loss - known_runs().loss.mean()) ** 2)
    )
    assert total.max_relative_error == max(h.metrics.max_relative_error for h in found)
    counts = [h.metrics.runs for h in found]
    assert total.huber == pytest.approx(np.average([h.metrics.huber for h in found], weights=counts))
    rows = held_out(split_errors(found), total).rows
    assert [row[:3] for row in rows[-1:]] == [["all of these", total.runs, total.mae]]


def test_the_mean_penalty_is_the_fits_objective_per_run():
    fit = fit_law(Chinchilla, known_runs(), **QUICK)
    assert fit.metrics.huber * len(known_runs()) == pytest.approx(fit.value, rel=1e-9)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"above": 1.0}, "leaves no run to fit"), ({"above": 1e20}, "No run is held out")],
)
def test_a_split_with_an_empty_side_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        largest(known_runs(), "tokens", **options)


def test_a_split_by_a_field_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="have no num_layers"):
        largest(known_runs(), "num_layers")


def test_a_quantity_that_is_worked_out_of_fields_is_held_out_in_double_precision():
    runs = known_runs()
    experts = np.where(np.arange(len(runs)) % 4, 5e7, 1e8)
    design = dataclasses.replace(runs.design, num_experts=experts, top_k=np.ones(len(runs)))
    split = largest(dataclasses.replace(runs, design=design), "sparsity")
    np.testing.assert_array_equal(split.held_out, experts == experts.max())


def test_the_split_that_a_law_misses_most_is_a_sentence_with_both_errors():
    fit = fit_law(Chinchilla, known_runs(), **QUICK)

    def split(name, far, near):
        errors, fitted = (dataclasses.replace(fit.metrics, rmse=rmse) for rmse in (far, near))
        return SplitErrors(name=name, errors=errors, fitted=fitted, law={}, converged=True, beyond={"tokens": 2.0})

    (sentence,) = warnings([split("a", 0.02, 0.01), split("b", 0.05, 0.01), split("c", 0.01, 0.01)])
    assert "Held-out RMSE 0.05000 nats/token (b) is 5 times the fitted 0.01000" in sentence
    assert warnings([split("a", 0.0149, 0.01)]) == []


EXPERTS = np.array([8, 16, 50, 50, 64, 8])
FRAME = pd.DataFrame(
    {
        "params_total": np.linspace(1e9, 6e9, 6),
        "tokens": [1e9, 2e9, 3e9, 4e9, 5e9, 5e9],
        "num_experts": EXPERTS,
        "top_k": 1,
        "num_shared_experts": 0,
        "router_type": ["S-Base", "Hash", "S-Base", "RL-R", "Hash", "RL-R"],
        "EL": ["2", "3.5", "6", "7", "8", "5.9"],
        "split": ["fit", "fit", "fit", "validation", "fit", "validation"],
        "note": ["", None, "a", "b", "c", "d"],
        "loss": [3.0, 2.9, 2.8, 2.7, 2.6, 2.5],
    }
)
READ = read_runs(FRAME, Sparsity)


@pytest.mark.parametrize(
    ("text", "held_out"),
    [
        ("tokens", [0, 0, 0, 0, 1, 1]),
        ("tokens:3B", [0, 0, 1, 1, 1, 1]),
        ("EL:6", [0, 0, 1, 1, 1, 0]),
        ("sparsity:0.98", [0, 0, 1, 1, 1, 0]),
        ("sparsity=0.98", [0, 0, 1, 1, 0, 0]),
        ("num_experts=50", [0, 0, 1, 1, 0, 0]),
        ("router_type=S-Base", [1, 0, 1, 0, 0, 0]),
        ("split=validation", [0, 0, 0, 1, 0, 1]),
    ],
)
def test_a_column_or_a_quantity_of_the_design_says_what_is_held_out(text, held_out):
    assert split_by(READ, text).held_out.astype(int).tolist() == held_out


def test_every_value_of_a_column_is_held_out_once():
    splits = list(each_value(READ, "router_type"))
    assert [split.name for split in splits] == ["router_type = S-Base", "router_type = Hash", "router_type = RL-R"]
    assert (np.sum([split.held_out for split in splits], axis=0) == 1).all()


def test_every_architecture_is_held_out_once():
    splits = list(each_value(READ, "group"))
    assert len(splits) == len(set(READ.runs.group)) > 1
    assert (np.sum([split.held_out for split in splits], axis=0) == 1).all()


def test_flops_that_a_table_lacks_are_those_of_sizes_and_tokens():
    rows = [{"params_active": n, "tokens": d, "loss": 3.0} for n in (1e8, 2e8, 4e8) for d in (1e9, 3e9)]
    read = read_runs(pd.DataFrame(rows), "chinchilla")
    assert split_by(read, "flops:7e18").held_out.tolist() == [False, False, False, False, False, True]


@pytest.mark.parametrize(("field", "above"), [("flops", None), ("flops", 3e19), ("tokens", None), ("tokens", 3e19)])
def test_values_that_differ_by_rounding_are_one_budget_that_is_held_out_whole(field, above):
    budgets = np.repeat([1e18, 3e18, 1e19, 3e19], 3) * (1 + 1e-2 * np.tile([-1, 0, 1], 4))
    design = Design(params_active=np.tile([1e8, 2e8, 4e8], 4), tokens=budgets, flops=budgets)
    split = largest(runs_from(design, np.linspace(3.0, 2.5, 12)), field, above=above)
    assert split.held_out.tolist() == [False] * 9 + [True] * 3


def test_rows_without_weight_have_no_split_of_their_own():
    read = read_runs(FRAME.assign(count=[1, 0, 1, 1, 0, 1]), Sparsity, weight="count")
    assert [split.name for split in each_value(read, "router_type")] == ["router_type = S-Base", "router_type = RL-R"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("router_typ=Hash", "no router_typ to hold out by; did you mean router_type"),
        ("sparcity:0.9", "did you mean sparsity"),
        ("width", "no width to hold out by"),
        ("router_type=Bush", "No run has router_type = Bush; give one of S-Base, Hash, RL-R"),
        ("router_type", "it must be a number"),
        ("note:1", "it must be a number"),
        ("tokens:many", "'many' is not a number"),
        ("tokens:1", "leaves no run to fit"),
        ("top_k=1", "leaves no run to fit"),
        ("sparsity=0.5", "No run is held out by sparsity = 0.5"),
    ],
)
def test_a_split_that_cannot_be_is_a_sentence(text, words):
    with pytest.raises(ValueError, match=words):
        split_by(READ, text)


@pytest.mark.parametrize(("column", "words"), [("top_k", "leaves no run to fit"), ("rooter_type", "router_type")])
def test_values_that_cannot_be_taken_in_turn_are_a_sentence(column, words):
    with pytest.raises(ValueError, match=words):
        list(each_value(READ, column))


def test_a_run_without_a_value_cannot_be_held_out_by_it():
    with pytest.raises(UserError, match=r"note is empty in 1 row; hold out by a column without empty cells"):
        list(each_value(READ, "note"))
