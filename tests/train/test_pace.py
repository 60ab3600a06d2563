"""The host stays a few steps ahead of its devices."""

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
