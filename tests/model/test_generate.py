"""Sampling: a cache changes the cost of a token and nothing else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from known_architectures import KNOWN, MIXTURE, NOT_CAUSAL, QUICK, forward, params_of

from moejax.model import transformer
from moejax.model.cache import empty_cache
from moejax.model.generate import Sampling, generate, sample_token


@pytest.mark.parametrize("name", sorted(set(KNOWN) - NOT_CAUSAL - {"dense", "olmoe", "sigmoid", "noisy"}))
@pytest.mark.matrix(1)
def test_decoding_token_by_token_gives_the_logits_of_the_full_pass(name):
    a, params = KNOWN[name], params_of(name)
    tokens = jax.random.randint(jax.random.key(1), (2, 10), 0, 64)
    expected = forward(a, QUICK, params, tokens)
    step = jax.jit(lambda cache, part: transformer.apply(a, QUICK, params, part, cache=cache))
    cache, found = empty_cache(a, QUICK, 2, 12), []
    for part in (tokens[:, :8], tokens[:, 8:9], tokens[:, 9:10]):
        output = step(cache, part)
        cache = output.cache
        found.append(transformer.unembed(a, params, output.hidden))
    np.testing.assert_allclose(jnp.concatenate(found, axis=1), expected, atol=2e-5)
    assert int(cache.length) == 10


def test_the_greedy_continuation_is_the_likeliest_token_after_each_prefix():
    params = params_of("mixture", 3)
    prompts = jax.random.randint(jax.random.key(1), (2, 5), 0, 64)
    key = jax.random.key(0)
    found = generate(MIXTURE, QUICK, params, prompts, key, tokens=6, sampling=Sampling(temperature=0.0))
    whole = jnp.concatenate([prompts, found], axis=1)
    likeliest = forward(MIXTURE, QUICK, params, whole).argmax(2)
    np.testing.assert_array_equal(likeliest[:, 4:-1], found)


@pytest.mark.parametrize("name", ["mixture", "alibi", "gpt_oss"])
@pytest.mark.matrix(1)
def test_prompts_of_different_lengths_are_continued_as_if_alone(name):
    a = KNOWN[name]
    params = params_of(name, 3)
    prompt = jax.random.randint(jax.random.key(1), (1, 4), 0, 64)
    greedy, key = Sampling(temperature=0.0), jax.random.key(0)
    alone = generate(a, QUICK, params, prompt, key, tokens=5, sampling=greedy)
    filled = jnp.concatenate([jnp.zeros((1, 3), jnp.int32), prompt], axis=1)
    longer = jax.random.randint(jax.random.key(2), (1, 7), 0, 64)
    both = generate(
        a,
        QUICK,
        params,
        jnp.concatenate([filled, longer]),
        key,
        tokens=5,
        sampling=greedy,
        padding_mask=jnp.array([[False] * 3 + [True] * 4, [True] * 7]),
    )
    np.testing.assert_array_equal(both[:1], alone)


def test_draws_follow_the_probabilities_that_are_left():
    logits = jnp.log(jnp.array([0.5, 0.3, 0.15, 0.05]))[None].repeat(20_000, axis=0)

    def shares(sampling):
        drawn = sample_token(logits, jax.random.key(0), sampling)
        return np.bincount(np.asarray(drawn), minlength=4) / 20_000

    np.testing.assert_allclose(shares(Sampling()), [0.5, 0.3, 0.15, 0.05], atol=0.015)
    np.testing.assert_allclose(shares(Sampling(top_k=2)), [0.625, 0.375, 0, 0], atol=0.015)
    np.testing.assert_allclose(shares(Sampling(top_p=0.9)), np.array([0.5, 0.3, 0.15, 0]) / 0.95, atol=0.015)
    sharper = np.array([0.5, 0.3, 0.15, 0.05]) ** 2
    np.testing.assert_allclose(shares(Sampling(temperature=0.5)), sharper / sharper.sum(), atol=0.015)
    assert shares(Sampling(temperature=0.0))[0] == 1
    for cold in (1e-40, 1e-37, 1e-6):
        assert shares(Sampling(temperature=cold))[0] == 1


def test_a_router_that_sees_the_future_cannot_be_sampled():
    params = params_of("expert_choice")
    with pytest.raises(ValueError, match="train with a token-choice router"):
        generate(KNOWN["expert_choice"], QUICK, params, jnp.zeros((1, 2), jnp.int32), jax.random.key(0), tokens=1)


@pytest.mark.parametrize("sampling", [Sampling(temperature=-1.0), Sampling(top_p=0.0), Sampling(top_k=-1)])
def test_an_impossible_sampling_is_refused(sampling):
    with pytest.raises(ValueError, match=r"give|at least"):
        sampling.check()
