"""A profile interval ends where the best fit that is held to a value becomes too bad."""

import numpy as np
import pytest
import scipy.stats
from test_fit_law import RUNS

from moejax.fit.fit_law import fit_law
from moejax.fit.objective import Squared
from moejax.fit.optimum import optimum
from moejax.fit.profile import profile
from moejax.fit.starts import Given
from moejax.laws.effective_params import EffectiveParams

RESULT = fit_law(EffectiveParams, RUNS, penalty=Squared())


def exponent(law):
    return law.tokens_exponent


def test_at_its_ends_a_fit_with_the_coefficient_fixed_is_worse_by_the_chosen_level():
    found = profile(RESULT, RUNS, exponent, level=0.9)
    allowed = scipy.stats.chi2.ppf(0.9, 1) * optimum(RESULT, RUNS).dispersion / 2
    assert found.low < RESULT.law.tokens_exponent < found.high
    for end in (found.low, found.high):
        held = fit_law(
            EffectiveParams, RUNS, penalty=Squared(), fixed={"tokens_exponent": end}, starts=Given((RESULT.law,))
        )
        assert held.value - RESULT.value == pytest.approx(allowed, rel=0.01)


def test_a_decision_is_profiled_like_a_coefficient():
    found = profile(RESULT, RUNS, lambda law: law.tokens_exponent / (law.tokens_exponent + law.params_exponent))
    assert found.low < found.middle < found.high


def test_near_the_optimum_a_profile_is_a_standard_error():
    found = profile(RESULT, RUNS, exponent, level=0.1)
    wanted = np.sqrt(scipy.stats.chi2.ppf(0.1, 1)) * found.deviation
    assert found.high - found.middle == pytest.approx(wanted, rel=0.05)


def test_two_numbers_are_not_profiled_at_once():
    with pytest.raises(ValueError, match="one finite number"):
        profile(RESULT, RUNS, lambda law: [law.tokens_exponent, law.irreducible])


def test_a_number_that_no_coefficient_moves_has_no_profile():
    with pytest.raises(ValueError, match="say nothing"):
        profile(RESULT, RUNS, lambda law: 0.0 * law.irreducible + 1.0)
