"""Held-out runs take no part in a fit, and test it."""

import dataclasses

import numpy as np
import pytest
from known_fit import known_runs, sweep

from moejax.fit.search.fit_law import Search, fit_law
from moejax.fit.search.starts import Sobol
from moejax.fit.selection.holdout import (
    SplitErrors,
    folds,
    hold_out,
    largest,
    pooled,
    split_errors,
    warnings,
)
from moejax.fit.summary import held_out
from moejax.laws.dense.chinchilla import HOFFMANN_2022, Chinchilla

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


@pytest.mark.parametrize(("options", "words"), [({"above": 1.0}, "no runs on one side"), ({"above": 1e20}, "no runs")])
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
        errors, fitted = (rmse and dataclasses.replace(fit.metrics, rmse=rmse) for rmse in (far, near))
        return SplitErrors(name=name, errors=errors, fitted=fitted, law={}, converged=True)

    (sentence,) = warnings([split("a", 0.02, 0.01), split("b", 0.05, 0.01), split("c", 0.01, 0.01)], 0.01)
    assert "Held-out RMSE 0.05000 nats/token (b) is 5 times the fitted 0.01000" in sentence
    assert warnings([split("a", 0.0149, 0.01)], 0.01) == []
    assert "3 times the fitted 0.02000" in warnings([split("old", 0.06, None)], 0.02)[0]
