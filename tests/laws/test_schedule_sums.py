"""Sums of a schedule: few entries for each step give what an entry for every update gives, for both laws of curves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moejax.float64 import float64
from moejax.laws.curves.momentum import Momentum
from moejax.laws.curves.multi_power import PUBLISHED
from moejax.laws.curves.schedule_sums import sums_at, sums_of_curve
from moejax.laws.design import Design

MOMENTUM = Momentum(irreducible=2.6, sum_scale=0.6, sum_exponent=0.5, drop_scale=470.0, memory_steps=600.0)
LAWS = (PUBLISHED["luo-2025-100m"].law, MOMENTUM)
PEAK = 3e-4


def schedule(kind, steps=24_000, warmup=2_160):
    at = np.linspace(0, 1, steps - warmup)
    shares = {
        "cosine": 0.1 + 0.45 * (1 + np.cos(np.pi * at)),
        "wsd": np.clip((1 - at) / 0.2, 0.0, 1.0),
        "drop": np.where(at < 0.4, 1.0, 0.1),
        "up_again": np.where(at < 0.4, 1.0, np.where(at < 0.7, 0.2, 0.6)),
    }
    return PEAK * np.concatenate([np.linspace(0, 1, warmup), shares[kind]])


@pytest.mark.parametrize("law", LAWS, ids=lambda law: type(law).__name__)
@pytest.mark.parametrize("kind", ["cosine", "wsd", "drop", "up_again"])
def test_few_entries_give_the_losses_of_an_entry_for_every_update(law, kind):
    rates, steps = schedule(kind), np.array([3_000, 10_896, 10_900, 14_000, 20_500, 24_000])
    with float64():
        every = [float(law(sums_at(jnp.asarray(rates[:step])))) for step in steps]
        few = jax.vmap(law)(Design(columns=sums_of_curve(rates, steps)))
    np.testing.assert_allclose(few, every, atol=5e-5)


def test_the_columns_are_what_their_definitions_say():
    rates = np.array([1.0, 2.0, 2.0, 1.5, 1.5, 1.0])
    with float64():
        read = sums_at(jnp.asarray(rates)).columns
    np.testing.assert_allclose(read["rate_sum"], 9.0)
    np.testing.assert_allclose(read["drop"], [0.0, -1.0, 0.0, 0.5, 0.0, 0.5])
    np.testing.assert_allclose(read["drop_sum"], [9.0, 8.0, 6.0, 4.0, 2.5, 1.0])
    np.testing.assert_allclose(read["drop_steps"], [6, 5, 4, 3, 2, 1])


def test_the_final_loss_has_a_gradient_in_every_rate_that_finite_differences_agree_with():
    law, rates = LAWS[0], schedule("cosine", 400, 40) + 1e-6

    def loss(rates):
        return law(sums_at(rates))

    with float64():
        slope = jax.grad(loss)(jnp.asarray(rates))
        for update in (10, 200, 399):
            step = np.zeros(400)
            step[update] = 1e-9
            by_hand = (loss(jnp.asarray(rates + step)) - loss(jnp.asarray(rates - step))) / 2e-9
            assert float(slope[update]) == pytest.approx(float(by_hand), rel=1e-4)
