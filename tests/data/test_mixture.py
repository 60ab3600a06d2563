"""Sets interleaved by weight: each has its share of every stretch of rows, and is read in its own order."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from moejax.data.batches import PERIOD, DecayWeights, Mixed, pattern, rows_of_each

weights = st.lists(st.floats(0.01, 1), min_size=1, max_size=6)


class Numbered:
    """Row i of set s is (s, i)."""

    def __init__(self, number):
        self.number = number

    def __getitem__(self, index):
        return self.number, index


@settings(max_examples=30)
@given(weights=weights)
def test_a_period_has_each_set_by_its_weight(weights):
    of_row, counts = pattern(weights)
    assert counts.sum() == len(of_row) == PERIOD
    np.testing.assert_array_equal(np.bincount(of_row, minlength=len(weights)), counts)
    np.testing.assert_allclose(counts / PERIOD, np.array(weights) / sum(weights), atol=1 / PERIOD)


@settings(max_examples=30)
@given(weights=weights, start=st.integers(0, PERIOD), length=st.integers(1, 500))
def test_any_stretch_has_each_set_by_its_weight(weights, start, length):
    of_row, counts = pattern(weights)
    stretch = np.take(of_row, np.arange(start, start + length), mode="wrap")
    found = np.bincount(stretch, minlength=len(weights))
    assert np.abs(found - counts / PERIOD * length).max() <= len(weights) + 1


@settings(max_examples=10)
@given(weights=weights)
def test_each_set_is_read_in_its_order_without_gaps(weights):
    mixed = Mixed([Numbered(i) for i in range(len(weights))], weights)
    seen = [0] * len(weights)
    for row in range(3 * PERIOD // 2):
        number, index = mixed[row]
        assert index == seen[number]
        seen[number] += 1


two = st.integers(2, 5).flatmap(lambda n: st.tuples(*[st.lists(st.floats(0.01, 1), min_size=n, max_size=n)] * 2))


@settings(max_examples=20)
@given(weights=weights, first=st.integers(0, 3 * PERIOD))
def test_the_same_weights_again_for_the_decay_change_nothing(weights, first):
    sets = [Numbered(i) for i in range(len(weights))]
    plain, again = Mixed(sets, weights), Mixed(sets, weights, DecayWeights([3 * w for w in weights], first))
    assert [plain[row] for row in range(first, first + 200)] == [again[row] for row in range(first, first + 200)]


@settings(max_examples=20)
@given(both=two, absent=st.integers(0, 1), first=st.integers(0, 3 * PERIOD))
def test_from_the_decay_on_each_set_goes_on_where_the_rows_before_ended(both, absent, first):
    before, decay = (list(weights) for weights in both)
    # One set that the decay alone reads, or the trunk alone.
    (before, decay)[absent][0] = 0.0
    sets = [Numbered(i) for i in range(len(before))]
    mixed, changed = Mixed(sets, before), Mixed(sets, before, DecayWeights(decay, first))
    seen = np.zeros(len(before), int)
    # All rows before, counted one by one.
    for row in range(first % PERIOD):
        seen[mixed[row + first // PERIOD * PERIOD][0]] += 1
    seen += first // PERIOD * pattern(before)[1]
    np.testing.assert_array_equal(seen, rows_of_each(before, first))
    for row in range(first, first + 500):
        number, index = changed[row]
        assert decay[number] > 0
        assert index == seen[number]
        seen[number] += 1
