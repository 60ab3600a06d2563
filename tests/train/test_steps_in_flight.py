"""The host stays a few steps ahead of its devices, and no more."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moejax.train import program
from moejax.train.program import MAX_STEPS_IN_FLIGHT, StepsInFlight, working_bytes


@pytest.fixture
def matmul():
    """A compiled program that needs working memory."""
    return jax.jit(lambda x: jnp.sort(x @ x.T, axis=0) @ x).lower(jnp.ones((64, 64))).compile()


def test_while_a_step_runs_no_more_than_a_few_others_are_launched():
    launched, ahead = [], []

    def run(step):
        ahead.append(len(launched) - int(step))
        return np.zeros((), np.float32)

    @jax.jit
    def step(number, state):
        loss = jax.pure_callback(run, jax.ShapeDtypeStruct((), jnp.float32), number)
        # Each waits for the one before it, as steps of a training do.
        return loss, state + loss

    in_flight, state = StepsInFlight(), jnp.zeros(())
    for number in range(4 * MAX_STEPS_IN_FLIGHT):
        launched.append(number)
        loss, state = step(number, state)
        in_flight.add(loss)
    jax.block_until_ready(state)
    assert len(ahead) == len(launched)
    assert max(ahead) <= MAX_STEPS_IN_FLIGHT + 1


def test_a_step_that_needs_much_memory_is_done_before_the_next_is_launched(monkeypatch, matmul):
    assert working_bytes(matmul) >= 64 * 64 * 4
    monkeypatch.setattr(program, "MUCH_MEMORY_BYTES", 64 * 64 * 4 - 1)
    in_flight = StepsInFlight([matmul])
    for number in range(20):
        loss = matmul(jnp.full((64, 64), float(number)))
        in_flight.add(loss)
        assert loss.is_ready()
