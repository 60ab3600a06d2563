"""The host stays a few steps ahead of its devices."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp

from moejax.train import pace


def test_no_more_than_a_few_steps_are_asked_for_at_once_and_the_oldest_is_waited_for(monkeypatch):
    waited = []
    monkeypatch.setattr(pace.jax, "block_until_ready", waited.append)
    followed = pace.Pace()
    for step in range(pace.MOST_AHEAD):
        followed.after(jnp.asarray(step))
    assert waited == []
    for step in range(pace.MOST_AHEAD, 20):
        followed.after(jnp.asarray(step))
    assert [int(step) for step in waited] == list(range(20 - pace.MOST_AHEAD))


def test_a_step_that_needs_much_memory_begins_when_the_one_before_has_given_its_own_back(monkeypatch):
    happened = []
    monkeypatch.setattr(pace.jax, "block_until_ready", lambda loss: happened.append(int(loss)))
    monkeypatch.setattr(pace.time, "sleep", lambda seconds: happened.append("slept"))

    def steps(*working_bytes):
        return [
            SimpleNamespace(memory_analysis=lambda size=size: SimpleNamespace(temp_size_in_bytes=size))
            for size in working_bytes
        ]

    followed = pace.Pace(steps(1, pace.MUCH_MEMORY_BYTES + 1))
    followed.after(jnp.asarray(0))
    followed.after(jnp.asarray(1))
    assert happened == [0, "slept", 1, "slept"]
    happened.clear()
    pace.Pace(steps(1, pace.MUCH_MEMORY_BYTES)).after(jnp.asarray(2))
    assert happened == []


def test_the_working_memory_of_a_compiled_step_is_known():
    program = jax.jit(lambda x: jnp.sort(x @ x.T, axis=0) @ x)
    assert pace._working_bytes(program.lower(jnp.ones((64, 64))).compile()) >= 64 * 64 * 4
