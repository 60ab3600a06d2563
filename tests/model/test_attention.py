"""Attention against loops: who sees whom, positions, sinks, latents."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from known_architectures import DENSE

from moejax.architecture import RopeScaling
from moejax.kernels.attention import AttentionMask, reference
from moejax.model.positions import alibi_slopes, apply_rope, frequencies, score_scale


def looped(query, key, value, *, scale, window, segments, slopes, sinks):
    """Every head, query and key in turn, in float64."""
    batch, length, heads, _ = query.shape
    repeats, out = heads // key.shape[2], np.zeros((*query.shape[:3], value.shape[3]))
    for b in range(batch):
        for h in range(heads):
            for t in range(length):
                seen = [
                    s
                    for s in range(t + 1)
                    if (not window or t - s < window) and (segments is None or segments[b, t] == segments[b, s])
                ]
                scores = [query[b, t, h] @ key[b, s, h // repeats] * scale - slopes[h] * (t - s) for s in seen]
                weights = np.exp(np.array([*scores, *([] if sinks is None else [sinks[h]])]))
                weights = weights / weights.sum()
                out[b, t, h] = sum(weights[i] * value[b, s, h // repeats] for i, s in enumerate(seen))
    return out


@settings(max_examples=20)
@given(
    length=st.integers(1, 9),
    groups=st.integers(1, 2),
    repeats=st.integers(1, 3),
    window=st.integers(0, 5),
    documents=st.booleans(),
    biased=st.booleans(),
    sunk=st.booleans(),
    seed=st.integers(0, 99),
)
def test_attention_is_the_loop_over_heads_queries_and_keys(
    length, groups, repeats, window, documents, biased, sunk, seed
):
    draw = np.random.default_rng(seed)
    heads = groups * repeats
    query, key = draw.normal(size=(2, length, heads, 4)), draw.normal(size=(2, length, groups, 4))
    value = draw.normal(size=(2, length, groups, 3))
    segments = np.sort(draw.integers(1, 4, (2, length)), axis=1) if documents else None
    slopes = np.abs(draw.normal(size=heads)) if biased else np.zeros(heads)
    sinks = draw.normal(size=heads) if sunk else None
    expected = looped(query, key, value, scale=0.7, window=window, segments=segments, slopes=slopes, sinks=sinks)
    f32 = lambda x: None if x is None else jnp.asarray(x, jnp.float32)  # noqa: E731
    numbers = None if segments is None else jnp.asarray(segments, jnp.int32)
    mask = AttentionMask(query_segments=numbers, key_segments=numbers, window=window)
    options = {"scale": 0.7, "slopes": f32(slopes) if biased else None, "sinks": f32(sinks)}
    found = jax.jit(lambda *qkv: reference(*qkv, mask, **options))(f32(query), f32(key), f32(value))
    np.testing.assert_allclose(found, expected, atol=2e-5)


def test_alibi_slopes_are_those_of_the_paper():
    np.testing.assert_allclose(alibi_slopes(8), [2.0**-i for i in range(1, 9)])
    # Twelve heads: those of eight, then every other one of sixteen.
    np.testing.assert_allclose(alibi_slopes(12)[8:], [2.0 ** (-(i + 0.5)) for i in range(4)])


@pytest.mark.parametrize(
    "scaling",
    [
        None,
        RopeScaling(kind="linear", factor=4.0),
        RopeScaling(kind="llama3", factor=8.0, original_length=32),
        RopeScaling(kind="yarn", factor=8.0, original_length=64),
    ],
    ids=lambda s: "none" if s is None else s.kind,
)
def test_rotated_vectors_know_their_distance_and_nothing_else(scaling):
    a = DENSE.replace(rope_scaling=scaling)
    query, key = jax.random.normal(jax.random.key(0), (2, 1, 1, 1, 8))

    def product(at, distance):
        turned = [apply_rope(x, jnp.array([i]), a) for x, i in ((query, at + distance), (key, at))]
        return float((turned[0] * turned[1]).sum())

    assert product(0, 5) == pytest.approx(product(90, 5), abs=1e-4)
    assert product(0, 5) != pytest.approx(product(0, 6), abs=1e-4)


def test_scalings_keep_fast_frequencies_and_stretch_slow_ones():
    plain_frequencies, _ = frequencies(64, 10_000.0, None)
    for kind in ("llama3", "yarn"):
        scaled, scale = frequencies(64, 10_000.0, RopeScaling(kind=kind, factor=16.0, original_length=4096))
        assert scaled[0] == pytest.approx(plain_frequencies[0])
        assert scaled[-1] == pytest.approx(plain_frequencies[-1] / 16)
        assert np.all(np.diff(scaled) < 0)
        # Peng et al. 2023: 0.1·ln(factor) + 1.
        assert scale == pytest.approx(0.1 * math.log(16) + 1 if kind == "yarn" else 1.0)


def test_deepseeks_scaling_moves_the_scale_from_rotated_vectors_to_scores():
    scaling = RopeScaling(kind="yarn", factor=40.0, original_length=4096, mscale=1.0, mscale_all_dim=1.0)
    assert frequencies(64, 10_000.0, scaling)[1] == 1.0
    assert score_scale(scaling) == pytest.approx((0.1 * math.log(40) + 1) ** 2)
    assert score_scale(dataclasses.replace(scaling, mscale_all_dim=0.0)) == 1.0
