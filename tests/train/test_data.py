"""Which tokens a step sees depends on the seed and the step alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moejax.train import corpus, data


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("corpus")
    tokens = np.arange(1000, dtype=np.uint16)
    np.save(where / "train.npy", tokens)
    np.save(where / "validation.npy", tokens[:200])
    return where


def batches(folder, count, **options):
    iterator = data.training_batches(folder, batch=8, length=10, **{"seed": 0} | options)
    return [next(iterator) for _ in range(count)]


def test_a_window_is_followed_by_its_next_token(folder):
    for batch in batches(folder, 3):
        assert batch.shape == (8, 11)
        np.testing.assert_array_equal(batch[:, 1:] - batch[:, :-1], 1)


def test_an_epoch_sees_every_window_once(folder):
    windows = np.concatenate(batches(folder, 12))[:, 0]
    assert len(set(windows)) == len(windows) == 96


def test_seeds_give_different_orders(folder):
    assert not np.array_equal(batches(folder, 1), batches(folder, 1, seed=1))


@settings(deadline=None, max_examples=15)
@given(start=st.integers(0, 40), processes=st.sampled_from([1, 2, 4, 8]))
def test_processes_read_the_rows_of_the_one_global_batch_from_any_step(folder, start, processes):
    expected = batches(folder, start + 2)[start:]
    parts = [batches(folder, 2, start=start, process=p, processes=processes) for p in range(processes)]
    for step in range(2):
        np.testing.assert_array_equal(np.concatenate([part[step] for part in parts]), expected[step])


def test_a_saved_position_goes_on_with_the_next_batch(folder):
    iterator = data.training_batches(folder, batch=8, length=10, seed=0)
    next(iterator)
    state = iterator.get_state()
    expected = next(iterator)
    again = data.training_batches(folder, batch=8, length=10, seed=0)
    again.set_state(state)
    np.testing.assert_array_equal(next(again), expected)


def test_the_validation_windows_are_spread_and_fixed(folder):
    found = data.validation_windows(folder, length=10, windows=5)
    np.testing.assert_array_equal(found[:, 0], [0, 40, 90, 130, 180])


def test_a_corpus_shorter_than_a_batch_is_refused(folder):
    with pytest.raises(ValueError, match="fewer than one batch of 800"):
        data.training_batches(folder, batch=800, length=10, seed=0)
    with pytest.raises(ValueError, match="cannot be shared by 3 processes"):
        data.training_batches(folder, batch=8, length=10, seed=0, processes=3)
    with pytest.raises(ValueError, match="shorter than one window"):
        data.validation_windows(folder, length=500, windows=1)


def test_documents_end_with_their_own_token():
    assert corpus.END_OF_DOCUMENT == corpus.VOCAB_SIZE - 1 == 256
