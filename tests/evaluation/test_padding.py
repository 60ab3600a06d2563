"""Batches of few shapes hold every text once."""

from hypothesis import given
from hypothesis import strategies as st

from moejax.evaluation.language_model import SHORTEST, batches, padded


@given(st.integers(0, 5000), st.integers(1, 4096))
def test_a_length_is_rounded_up_by_less_than_half_and_never_beyond_the_longest(size, longest):
    found = padded(min(size, longest), longest)
    assert min(size, longest) <= found <= longest
    assert found <= max(SHORTEST, 1.5 * size)


def test_four_thousand_lengths_are_fifteen():
    assert len({padded(size, 4096) for size in range(1, 4097)}) == 15


@given(st.lists(st.integers(1, 300), max_size=60), st.integers(1, 2000))
def test_every_text_is_in_one_batch_that_has_room_for_it_and_each_length_has_one_shape(sizes, batch_tokens):
    found = list(batches(sizes, longest=300, batch_tokens=batch_tokens))
    assert sorted(item for batch in found for item in batch.items) == list(range(len(sizes)))
    assert len({(batch.rows, batch.length) for batch in found}) == len({batch.length for batch in found})
    for batch in found:
        assert len(batch.items) <= batch.rows
        assert batch.rows == 1 or batch.rows * batch.length <= batch_tokens
        assert all(sizes[item] <= batch.length for item in batch.items)
    assert [batch.length for batch in found] == sorted((batch.length for batch in found), reverse=True)
