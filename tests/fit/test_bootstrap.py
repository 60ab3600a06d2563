"""Resamples tell how far an answer hangs on the runs that were trained."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from known_fit import known_fit, known_resamples, known_runs, sweep

from moejax.fit.answers import StandardErrors
from moejax.fit.runs import runs_from
from moejax.fit.search.fit_law import fit_law
from moejax.fit.summary import resampled
from moejax.fit.uncertainty.bootstrap import bootstrap, resample
from moejax.fit.uncertainty.covariance import with_uncertainty
from moejax.interval import interval
from moejax.laws.dense.chinchilla import HOFFMANN_2022, Chinchilla
from moejax.laws.design import Design


@pytest.mark.slow
def test_intervals_hold_the_coefficients_they_are_about():
    for name, found in known_resamples().coefficients(0.98).items():
        assert found.low < known_fit().coefficients[name] < found.high, name
        assert found.deviation > 0


@pytest.mark.slow
def test_more_noise_makes_wider_intervals():
    noisy = sweep(HOFFMANN_2022, noise=0.02)
    quiet = sweep(HOFFMANN_2022, noise=0.002)
    wide, narrow = (bootstrap(fit_law(Chinchilla, runs), runs, 64).coefficients() for runs in (noisy, quiet))
    assert wide["tokens_exponent"].deviation > 3 * narrow["tokens_exponent"].deviation


def test_a_decision_is_resampled_as_any_function_of_the_law():
    def decision(law):
        return {"share": law.tokens_exponent / (law.tokens_exponent + law.params_exponent)}

    found = known_resamples().interval(decision)["share"]
    exponents = known_fit().coefficients
    share = exponents["tokens_exponent"] / (exponents["tokens_exponent"] + exponents["params_exponent"])
    assert found.low < share < found.high


def test_groups_are_drawn_whole():
    design = Design(params_active=np.repeat([1e8, 2e8, 3e8], 4), tokens=np.tile([1e9, 2e9, 3e9, 4e9], 3))
    runs = runs_from(design, np.full(12, 3.0))
    weights = resample(runs, 50, by="group").reshape(50, 3, 4)
    assert (weights == weights[:, :, :1]).all()
    assert (weights[:, :, 0].sum(axis=1) == 3).all()
    alone = resample(runs, 50, by="run")
    assert (alone.sum(axis=1) == 12).all()
    assert not (alone.reshape(50, 3, 4) == alone.reshape(50, 3, 4)[:, :, :1]).all()


def test_runs_that_were_held_out_of_the_fit_are_not_drawn():
    kept = np.arange(len(known_runs())) < 60
    assert (resample(known_runs().only(kept), 20)[:, ~kept] == 0).all()


def test_an_interval_that_spans_everything_says_so():
    assert interval([0.01, 5.0, 300.0]).uninformative
    assert interval([-1.0, 0.5, 1.0]).uninformative
    assert interval([np.nan, 1.0, 1.1]).uninformative
    assert not interval([1.0, 1.1, 1.2]).uninformative
    assert "not determined" in str(interval([0.01, 5.0, 300.0]))
    assert interval([0.01, 5.0, 300.0]).ends(str).endswith(" (not determined by these runs)")
    assert interval([1.0, 1.1, np.nan]).ends("{:.1f}".format).startswith("[1.0, 1.1], no answer for 33% of the laws")


def test_a_decision_without_an_answer_is_counted_not_hidden():
    found = known_resamples().interval(lambda law: jnp.sqrt(-law.irreducible))
    assert found.undefined == 1.0
    assert found.uninformative


@pytest.mark.slow
def test_fixed_coefficients_do_not_move():
    fit = fit_law(Chinchilla, known_runs(), fixed={"irreducible": 1.7})
    assert (bootstrap(fit, known_runs(), 8).laws.irreducible == 1.7).all()


def test_other_runs_than_those_of_the_fit_are_refused():
    with pytest.raises(ValueError, match="fit again"):
        bootstrap(known_fit(), sweep(HOFFMANN_2022), 8)


def test_the_table_has_a_line_per_coefficient():
    short = resampled(known_resamples().stored(0.8), with_intervals=False)
    assert [column.name for column in short.columns] == ["coefficient", "standard deviation", "median", ""]
    table = resampled(known_resamples().stored(0.8))
    assert [row[0] for row in table.rows] == list(known_fit().coefficients)
    assert "80% interval" in [column.name for column in table.columns]
    assert table.title == "Coefficients by bootstrap of 64 resamples by group"


def test_coefficients_have_the_intervals_of_a_stored_bootstrap_wherever_they_are_shown():
    plain = with_uncertainty(known_fit(), known_runs())
    fit = dataclasses.replace(plain, resamples=known_resamples().kept())
    found, standard = fit.conf_int(0.8), plain.conf_int(0.8)
    for name, one in known_resamples().coefficients(0.8).items():
        assert (found.low[name], found.high[name]) == (one.low, one.high)
    assert found.std_err.equals(standard.std_err)
    assert not found.low.equals(standard.low)
    heading = "80% interval, bootstrap of 64 resamples by group"
    table = fit.coefficient_table(0.8)
    assert heading in [column.name for column in table.columns]
    assert "80% interval, from standard errors" in [column.name for column in plain.coefficient_table(0.8).columns]
    latex, low, high = fit.to_latex(0.8), found.low["irreducible"], found.high["irreducible"]
    assert heading.replace("%", r"\%") in latex
    assert rf"[{low:.4g},\ {high:.4g}]" in latex
    assert StandardErrors.of(fit, 0.8) == StandardErrors.of(plain, 0.8)


def test_an_interrupted_bootstrap_goes_on_where_it_stopped_and_ends_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr("moejax.fit.uncertainty.bootstrap.BLOCK", 16)
    kept = tmp_path / "bootstrap.npz"

    def interrupt(stage, done, total):
        if done >= 32:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bootstrap(known_fit(), known_runs(), 64, kept=kept, progress=interrupt)
    seen = []
    resumed = bootstrap(known_fit(), known_runs(), 64, kept=kept, progress=lambda stage, done, total: seen.append(done))
    assert seen == [48, 64]
    np.testing.assert_array_equal(resumed.values, known_resamples().values)
    np.testing.assert_array_equal(resumed.laws.tokens_exponent, known_resamples().laws.tokens_exponent)


def test_kept_resamples_of_another_seed_or_grouping_are_not_taken_for_this_ones(tmp_path):
    expected = bootstrap(known_fit(), known_runs(), 8).values
    alone = dataclasses.replace(known_runs(), group=np.arange(len(known_runs())))
    for runs, seed in ((known_runs(), 1), (alone, 0)):
        kept = tmp_path / f"bootstrap-{seed}.npz"
        bootstrap(known_fit(), runs, 8, seed=seed, kept=kept)
        found = bootstrap(known_fit(), known_runs(), 8, kept=kept)
        np.testing.assert_array_equal(found.values, expected)


def test_kept_resamples_serve_groups_of_other_names(tmp_path):
    kept, seen = tmp_path / "bootstrap.npz", []
    bootstrap(known_fit(), known_runs(), 8, kept=kept)
    renamed = dataclasses.replace(known_runs(), group=100 + known_runs().group)
    bootstrap(known_fit(), renamed, 8, kept=kept, progress=lambda *at: seen.append(at))
    assert seen == []
