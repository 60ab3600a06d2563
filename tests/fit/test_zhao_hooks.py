"""Hooks of a, c and h in G are found with their errors, and so is what is not proportional."""

import numpy as np
import pytest

from moejax.fit.runs import runs_from
from moejax.laws.design import Design
from moejax.laws.mixtures.five_factor import ZHAO_2025 as LAW
from moejax.papers.zhao.margins import hooks_of

E, F, ALPHA, BETA = 0.16, 7.2, LAW.params_exponent, LAW.tokens_exponent


def runs(noise=0.0, *, experts=(2.0, 4.0, 8.0, 12.0, 20.0), shared=(0.0, 0.2, 0.5), p=1.0, moved=1.0):
    """Losses of Eq. 9, with a larger effect of N_a than the paper's; ``moved`` moves the hook of h alone."""
    total, share, tokens, count, of_them = (
        axis.ravel()
        for axis in np.meshgrid(
            [2e8, 8e8, 3e9], [0.05, 0.15, 0.4, 0.8], [1e10, 5e10], list(experts), list(shared), indexing="ij"
        )
    )
    active = share * total
    shape, of_h = E * count + F / count, E * count + moved * F / count
    loss = 1.8 + LAW.tokens_scale * tokens**-BETA + 38 * total**-ALPHA + 31 * active**-ALPHA
    loss += shape * (total**-ALPHA + 0.2 * active**-ALPHA) + 0.045 * of_h * active**p / total
    design = Design(
        params_total=total,
        params_active=active,
        tokens=tokens,
        top_k=count * (1 - of_them),
        num_shared_experts=count * of_them,
    )
    return runs_from(design, loss * np.exp(noise * np.random.default_rng(0).normal(size=len(loss))))


def test_hooks_that_follow_equation_9_are_proportional_with_the_coefficients_put_in():
    hooks = hooks_of(LAW, runs(1e-6))
    for one, scale, constant in zip(hooks.hooks, (1.0, 0.2, 0.045), (38.0, 31.0, 0.0), strict=True):
        for part, value in {"e": E * scale, "f": F * scale, "tau": constant}.items():
            found, error = one.coefficients[part]
            assert abs(found - value) < 4 * error
            assert error < 0.1
        assert one.best == pytest.approx(np.sqrt(F / E), rel=0.02)
        assert one.apart < 4
    for value, error in hooks.exponents.values():
        assert abs(value - 1) < 4 * error < 0.01


def test_a_hook_with_another_lowest_point_is_told_from_the_others():
    first, second, third = hooks_of(LAW, runs(1e-5, moved=2.0)).hooks
    assert (first.apart, second.apart < 4, third.apart > 10) == (0.0, True, True)
    assert third.best == pytest.approx(np.sqrt(2) * first.best, rel=0.02)


@pytest.mark.parametrize("p", [0.95, 1.05])
def test_an_exponent_that_is_not_1_is_found(p):
    hooks = hooks_of(LAW, runs(1e-4, p=p))
    value, error = hooks.exponents["p"]
    assert abs(value - p) < 4 * error
    assert abs(value - 1) > 4 * error


def test_standard_errors_grow_with_the_noise():
    quiet, loud = (hooks_of(LAW, runs(noise)) for noise in (1e-4, 1e-3))
    assert loud.exponents["p"][1] == pytest.approx(10 * quiet.exponents["p"][1], rel=0.1)
    for one, other in zip(quiet.hooks, loud.hooks, strict=True):
        assert other.coefficients["e"][1] == pytest.approx(10 * one.coefficients["e"][1], rel=0.1)


def test_without_shared_experts_a_hook_stands_alone():
    assert hooks_of(LAW, runs(1e-6, shared=(0.0,))).hooks[0].best == pytest.approx(np.sqrt(F / E), rel=0.02)


def test_runs_that_set_no_hook_are_refused_with_what_is_missing():
    with pytest.raises(ValueError, match="2 values of G, but a hook needs at least 3"):
        hooks_of(LAW, runs(experts=(4.0, 8.0)))
    one_size = runs()
    with pytest.raises(ValueError, match="vary N, N_a and G independently"):
        hooks_of(LAW, one_size.only(one_size.design.params_total == 8e8))
