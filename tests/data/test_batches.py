"""Which tokens a step sees depends on the seed and the step alone: not on processes, restarts or machines."""

import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moejax.data.batches import batches


class Numbered:
    """Rows of tokens that can be told apart."""

    def __init__(self, count, first=0):
        self.count, self.first = count, first

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return {"tokens": np.arange(3, dtype=np.int32) + self.first + 10 * int(index)}


ONE = ([Numbered(99)], [1.0])
THREE = ([Numbered(99), Numbered(500, 10_000), Numbered(40, 100_000)], [0.5, 0.3, 0.2])
READ = {"one set": ONE, "a mixture": THREE}


def share(process, processes, batch=8):
    """Rows of a batch that one of several processes reads."""
    return range(process * batch // processes, (process + 1) * batch // processes)


def read(sets, weights, count, **options):
    iterator = batches(sets, weights, **{"batch": 8, "seed": 0} | options)
    return [next(iterator)["tokens"] for _ in range(count)]


def test_rows_are_read_in_any_choice_and_order():
    every = read(*ONE, 3)
    chosen = read(*ONE, 3, mine=[6, 7, 0])
    np.testing.assert_array_equal(chosen, [batch[[6, 7, 0]] for batch in every])


def test_an_epoch_sees_every_row_once_and_the_next_in_another_order():
    rows = np.concatenate(read(*ONE, 24))[:, 0]
    first, second = rows[:99], rows[99:192]
    assert set(first) == {10 * i for i in range(99)}
    assert len(set(second)) == len(second)
    assert not np.array_equal(first[:93], second)


@pytest.mark.parametrize("name", READ)
def test_seeds_give_different_orders(name):
    assert not np.array_equal(read(*READ[name], 1), read(*READ[name], 1, seed=1))


def test_a_mixture_has_its_weights_in_every_batch():
    for batch in read(*THREE, 20, batch=40):
        kinds = np.digitize(batch[:, 0], [10_000, 100_000])
        np.testing.assert_allclose(np.bincount(kinds, minlength=3) / 40, [0.5, 0.3, 0.2], atol=0.06)


def test_equal_sets_in_a_mixture_are_shuffled_apart():
    rows = np.concatenate(read([Numbered(99), Numbered(99)], [1.0, 1.0], 10))[:, 0]
    assert not np.array_equal(rows[0::2], rows[1::2])


@pytest.mark.parametrize("name", READ)
@settings(max_examples=15)
@given(start=st.integers(0, 40), processes=st.sampled_from([1, 2, 4, 8]))
def test_processes_read_the_rows_of_the_one_global_batch_from_any_step(name, start, processes):
    expected = read(*READ[name], start + 2)[start:]
    parts = [read(*READ[name], 2, start=start, mine=share(p, processes)) for p in range(processes)]
    for step in range(2):
        np.testing.assert_array_equal(np.concatenate([part[step] for part in parts]), expected[step])


@pytest.mark.parametrize("name", READ)
@settings(max_examples=15)
@given(lives=st.lists(st.tuples(st.sampled_from([1, 2, 4]), st.integers(1, 5)), min_size=1, max_size=5))
def test_a_state_saved_by_any_number_of_processes_serves_any_other(name, lives):
    """A run stopped and gone on with on other numbers of hosts sees the batches of one that never stopped: MaxText
    #1760; torchtitan #811, #816."""
    sets, weights = READ[name]
    seen, state = [], None
    for processes, steps in lives:
        readers = [batches(sets, weights, batch=8, seed=0, mine=share(p, processes)) for p in range(processes)]
        for reader in readers:
            if state is not None:
                reader.set_state(state)
        for _ in range(steps):
            seen.append(np.concatenate([next(reader)["tokens"] for reader in readers]))
        states = [json.loads(json.dumps(reader.get_state())) for reader in readers]
        assert all(other == states[0] for other in states)
        state = states[-1]
    np.testing.assert_array_equal(seen, read(sets, weights, len(seen)))


READER = """
import sys
from pathlib import Path
import numpy as np
from moejax.config import build
from moejax.data.config import DataConfig
from moejax.data.corpus import open_corpus
import json
config = build(DataConfig, json.loads(sys.argv[1]))
process, processes, start, steps = map(int, sys.argv[3:7])
reader = open_corpus(config, Path(sys.argv[2])).batches(
    batch=8, seed=5, start=start, mine=range(process * 8 // processes, (process + 1) * 8 // processes)
)
for _ in range(steps):
    batch = next(reader)
    sys.stdout.buffer.write(b"".join(batch[name].tobytes() for name in sorted(batch)))
"""


@pytest.mark.slow
def test_real_processes_read_what_one_reads(text_folder, tmp_path):
    """Each opens the corpus and reads its own rows; 1, then 2, then 4 processes go on where the last stopped."""
    parts = [{"name": n, "source": str(text_folder), "weight": w} for n, w in (("a", 3.0), ("b", 1.0))]
    config = {"mixture": parts, "packing": "documents", "sequence_length": 32, "validation_share": 0.3}
    config["validation_tokens"] = 64

    def read_by(processes, first, steps):
        words = [json.dumps(config), str(tmp_path)]
        readers = [
            subprocess.Popen(
                [sys.executable, "-c", READER, *words, *map(str, (process, processes, first, steps))],
                stdout=subprocess.PIPE,
            )
            for process in range(processes)
        ]
        found = [np.frombuffer(reader.communicate()[0], np.int32) for reader in readers]
        # Of each step, the segments and then the tokens.
        return np.concatenate([part.reshape(steps, 2, 8 // processes, 33) for part in found], axis=2)

    alone = read_by(1, 0, 9)
    np.testing.assert_array_equal(read_by(2, 3, 3), alone[3:6])
    np.testing.assert_array_equal(read_by(4, 6, 3), alone[6:9])
    assert len(np.unique(alone[:, 1].reshape(-1, 33), axis=0)) > 20


def test_what_cannot_fill_a_batch_is_refused():
    with pytest.raises(
        ValueError, match="has 99 rows of this sequence_length, fewer than the 800 rows that one batch needs"
    ):
        batches(*ONE, batch=800, seed=0)
    with pytest.raises(
        ValueError, match=r"has 99 rows .* fewer than the 150 rows that one batch needs; .* the weight of"
    ):
        batches(*THREE, batch=300, seed=0)
