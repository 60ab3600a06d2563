"""Likelihoods and continuations of many texts at once are those of each alone, in batches of few shapes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_model import SMALL

from moejax.evaluation.language_model import AT_ONCE, SHORTEST, LanguageModel, batches, padded
from moejax.model import transformer
from moejax.model.generate import Sampling
from moejax.model.runtime import Runtime
from moejax.weights.folder import Weights

ARCHITECTURE = SMALL.replace(vocab_size=40, num_layers=1, capacity_factor=1.0)
GREEDY = Sampling(temperature=0.0)


@functools.cache
def weights():
    params = transformer.init(ARCHITECTURE, jax.random.key(0))
    # Far from ties.
    return Weights(ARCHITECTURE, jax.tree.map(lambda p: 3 * p, params), None)


def model(longest=96, batch_tokens=200):
    return LanguageModel(weights(), Runtime(), longest=longest, batch_tokens=batch_tokens)


def texts(*sizes, seed=0):
    random = np.random.default_rng(seed)
    return [random.integers(0, 40, size).tolist() for size in sizes]


@functools.partial(jax.jit, static_argnums=0)
def logits(architecture, params, tokens):
    return transformer.forward(architecture, Runtime(), params, tokens)[0]


def log_probabilities(tokens):
    """Of every token but the first after those before it, and the likeliest ones after each."""
    filled = jnp.asarray([[*tokens, *[0] * (96 - len(tokens))]])
    found = logits(ARCHITECTURE.replace(capacity_factor=None), weights().params, filled)[: len(tokens)]
    chosen = jnp.take_along_axis(jax.nn.log_softmax(found[:-1]), jnp.asarray(tokens)[1:, None], axis=1)
    return np.asarray(chosen)[:, 0], np.asarray(found.argmax(1))


def test_a_likelihood_is_the_sum_of_the_models_own_cross_entropy():
    contexts, continuations = texts(1, 7, 30, 33, 60), texts(5, 1, 2, 31, 4, seed=1)
    found = model().log_likelihoods(list(zip(contexts, continuations, strict=True)))
    for context, continuation, likelihood in zip(contexts, continuations, found, strict=True):
        expected, _ = log_probabilities([*context, *continuation])
        assert likelihood.log == pytest.approx(float(expected[len(context) - 1 :].sum()), rel=1e-5)


@pytest.mark.slow
def test_only_the_likeliest_continuation_is_greedy():
    (context,) = texts(9)
    tokens = list(context)
    for _ in range(3):
        tokens.append(int(log_probabilities(tokens)[1][-1]))
    likeliest = tokens[len(context) :]
    other = [*likeliest[:2], (likeliest[2] + 1) % 40]
    found = model().log_likelihoods([(context, likeliest), (context, other), (context, likeliest[:1])])
    assert [likelihood.greedy for likelihood in found] == [True, False, True]


def test_choices_after_one_context_are_one_row(monkeypatch):
    rows = []
    read = LanguageModel._read
    monkeypatch.setattr(LanguageModel, "_read", lambda self, *given: rows.append(given[1]) or read(self, *given))
    (context,), (word, other) = texts(9), texts(3, 3, seed=1)
    choices = [[*word, 5], [*word, 7], other, [*word, 5], [*word, 7, 1], [5], []]
    together = model().log_likelihoods([(context, choice) for choice in choices])
    assert sum((ends > 1).sum() for ends in rows) == 4
    alone = [model().log_likelihoods([(context, choice)])[0] for choice in choices]
    np.testing.assert_allclose([found.log for found in together], [found.log for found in alone], rtol=1e-5)
    assert together[-1] == (0.0, True)
    assert together[0] == together[3]


def test_of_a_text_that_is_too_long_the_last_tokens_are_read():
    (context,), (continuation,) = texts(80), texts(4, seed=1)
    short = model(longest=32)
    assert short.log_likelihoods([(context, continuation)]) == short.log_likelihoods([(context[-29:], continuation)])
    with pytest.raises(ValueError, match="A continuation has 80 tokens, but at most 32 are allowed"):
        short.log_likelihoods([(continuation, context)])


def test_prompts_of_many_lengths_are_continued_as_if_alone():
    prompts, new = texts(3, 20), AT_ONCE + 5
    found = model(longest=128).continuations(
        prompts, tokens=new, enough=lambda row: False, sampling=GREEDY, key=jax.random.key(0)
    )
    for prompt, row in zip(prompts, found, strict=True):
        assert len(row) == new
        _, likeliest = log_probabilities([*prompt, *row.tolist()])
        np.testing.assert_array_equal(likeliest[len(prompt) - 1 : -1], row)


def test_generation_stops_when_every_row_has_enough():
    asked = []

    def enough(row):
        asked.append(len(row))
        return len(row) > 1

    found = model(longest=128).continuations(
        texts(3, 4), tokens=2 * AT_ONCE, enough=enough, sampling=GREEDY, key=jax.random.key(0)
    )
    assert [len(row) for row in found] == [1 + AT_ONCE] * 2
    assert max(asked) == 1 + AT_ONCE


def test_what_cannot_be_is_a_sentence():
    with pytest.raises(ValueError, match="Router 'expert_choice' lets later tokens affect"):
        LanguageModel(
            weights()._replace(architecture=ARCHITECTURE.replace(router="expert_choice", capacity_factor=None)),
            Runtime(),
            longest=32,
            batch_tokens=64,
        ).check()
    with pytest.raises(ValueError, match="pass a larger --max-length"):
        model(longest=32).continuations(
            texts(3), tokens=32, enough=lambda row: True, sampling=GREEDY, key=jax.random.key(0)
        )
    with pytest.raises(ValueError, match="The maximum length is 1"):
        model(longest=1).check()


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
