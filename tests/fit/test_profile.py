"""A profile interval ends where the best fit that is held to a value becomes too bad."""

from functools import cache

import numpy as np
import pytest
import scipy.stats
from known_fit import known_runs

from moejax.fit.answers import Answers, Profiled
from moejax.fit.search.fit_law import fit_law
from moejax.fit.search.objective import Squared
from moejax.fit.search.starts import WarmStart
from moejax.fit.summary import tables
from moejax.fit.uncertainty.derivatives import derivatives
from moejax.fit.uncertainty.profile import profile
from moejax.laws.dense.chinchilla import Chinchilla
from moejax.laws.mixtures.effective_params import EffectiveParams
from moejax.result import Written


@cache
def squared_fit():
    return fit_law(EffectiveParams, known_runs(), penalty=Squared())


def exponent(law):
    return law.tokens_exponent


@pytest.mark.slow
def test_at_its_ends_a_fit_with_the_coefficient_fixed_is_worse_by_the_chosen_level():
    found = profile(squared_fit(), known_runs(), exponent, level=0.9)
    allowed = scipy.stats.chi2.ppf(0.9, 1) * derivatives(squared_fit(), known_runs()).dispersion / 2
    assert found.low < squared_fit().law.tokens_exponent < found.high
    for end in (found.low, found.high):
        held = fit_law(
            EffectiveParams,
            known_runs(),
            penalty=Squared(),
            fixed={"tokens_exponent": end},
            starts=WarmStart((squared_fit().law,)),
        )
        assert held.value - squared_fit().value == pytest.approx(allowed, rel=0.01)


def half_of_the_tokens():
    runs = known_runs().only(known_runs().design.tokens > np.median(known_runs().design.tokens))
    return fit_law(Chinchilla, runs), runs


@pytest.mark.slow
def test_a_profile_far_from_a_standard_error_ends_where_fits_with_the_coefficient_fixed_do():
    result, runs = half_of_the_tokens()
    found = profile(result, runs, lambda law: law.irreducible, level=0.5)
    allowed = scipy.stats.chi2.ppf(0.5, 1) * derivatives(result, runs).dispersion / 2
    for end in (found.low, found.high):
        held = fit_law(Chinchilla, runs, fixed={"irreducible": end})
        assert held.value - result.value == pytest.approx(allowed, rel=0.02)


@pytest.mark.slow
def test_an_end_factors_away_is_found():
    result, runs = half_of_the_tokens()
    found = profile(result, runs, lambda law: law.tokens_scale)
    allowed = scipy.stats.chi2.ppf(0.9, 1) * derivatives(result, runs).dispersion / 2
    held = fit_law(Chinchilla, runs, fixed={"tokens_scale": found.high})
    assert found.high > 30 * result.law.tokens_scale
    assert held.value - result.value == pytest.approx(allowed, rel=0.02)


@pytest.mark.slow
def test_an_end_that_the_runs_do_not_set_is_open():
    few = known_runs().only(known_runs().design.tokens > np.quantile(known_runs().design.tokens, 0.7))
    result = fit_law(EffectiveParams, few)
    found = profile(result, few, lambda law: law.irreducible, level=0.999)
    allowed = scipy.stats.chi2.ppf(0.999, 1) * derivatives(result, few).dispersion / 2
    nothing = fit_law(EffectiveParams, few, fixed={"irreducible": 1e-6})
    assert nothing.value - result.value < allowed
    assert np.isneginf(found.low)
    one = Profiled(name="irreducible", symbol="E", given={}, middle=found.middle, high=found.high, level=0.9)
    (table,) = tables(Answers(profiles=(one,)))
    assert table.rows[0][1:] == [
        Written(found.low, "open"),
        found.middle,
        found.high,
        0.9,
        "these runs reject no smaller value",
    ]


@pytest.mark.slow
def test_a_number_at_the_end_of_what_is_searched_has_no_profile():
    few = known_runs().only(known_runs().design.tokens > np.quantile(known_runs().design.tokens, 0.7))
    with pytest.raises(ValueError, match="No fitted coefficient affects this number at the end of the search"):
        profile(fit_law(Chinchilla, few), few, lambda law: law.irreducible)


def test_a_decision_is_profiled_like_a_coefficient():
    found = profile(
        squared_fit(), known_runs(), lambda law: law.tokens_exponent / (law.tokens_exponent + law.params_exponent)
    )
    assert found.low < found.middle < found.high


def test_near_the_optimum_a_profile_is_a_standard_error():
    found = profile(squared_fit(), known_runs(), exponent, level=0.1)
    wanted = np.sqrt(scipy.stats.chi2.ppf(0.1, 1)) * found.deviation
    assert found.high - found.middle == pytest.approx(wanted, rel=0.05)


def test_two_numbers_are_not_profiled_at_once():
    with pytest.raises(ValueError, match="returns one number; got 2 numbers"):
        profile(squared_fit(), known_runs(), lambda law: [law.tokens_exponent, law.irreducible])


def test_a_number_that_no_coefficient_moves_has_no_profile():
    with pytest.raises(ValueError, match="do not determine it"):
        profile(squared_fit(), known_runs(), lambda law: 0.0 * law.irreducible + 1.0)
