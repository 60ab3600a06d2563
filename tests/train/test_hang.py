"""A step that never finishes ends the training in a sentence, and nothing else does."""

import threading

import jax
import jax.numpy as jnp
import numpy as np

from moejax.train.program import StepsInFlight
from moejax.train.stopping import HangWatch


def test_time_counts_while_one_step_is_waited_for_and_at_no_other_time():
    said = []
    watch = HangWatch(3.0, "small", said.append)
    for _ in range(10):
        watch.tick(1.0)
    for _ in range(10):
        # Each step finishes in time.
        with watch.waiting():
            for _ in range(3):
                watch.tick(1.0)
        watch.tick(1.0)
    assert not said
    with watch.waiting():
        for _ in range(4):
            watch.tick(1.0)
    (sentence,) = said
    assert sentence.startswith("No step of small finished for 3 seconds (recipe.hang_seconds)")
    assert "another host is still reading its data" in sentence


def test_0_seconds_wait_for_ever():
    said = []
    with HangWatch(0, "small", said.append) as watch, watch.waiting():
        for _ in range(10):
            watch.tick(1e9)
    assert not said


def test_a_step_that_hangs_on_its_device_is_noticed_by_the_thread():
    noticed = threading.Event()

    def hang(number):
        assert noticed.wait(60)
        return np.zeros((), np.float32)

    step = jax.jit(lambda number: jax.pure_callback(hang, jax.ShapeDtypeStruct((), jnp.float32), number))
    compiled = step.lower(1.0).compile()
    with HangWatch(0.01, "small", lambda sentence: noticed.set()) as watch:
        in_flight = StepsInFlight(watch=watch.waiting)
        # A CPU may run a program at once.
        with watch.waiting():
            in_flight.add(compiled(1.0))
        in_flight.drain()
    assert noticed.is_set()
