"""Time attention, forward and with gradients, at 4,096 and 8,192 tokens, causal and with packed documents.

FLOPs count only pairs of tokens that attend to each other: 4 · pairs · heads · width forward, and three times as many
with gradients, without recomputation by the kernel.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from accelerator_stages.cases import Cases, Row
from accelerator_stages.shapes import check_accepts, kernels
from accelerator_stages.timing import bench_seconds, is_alive, normal, time_calls, with_rate
from moejax.kernels.attention import AttentionMask
from moejax.kernels.table import load
from moejax.laws.catalogue import CATALOGUE

SEED = secrets.randbits(31)
TOKENS = 32_768
DOCUMENTS = 8
"""Documents per packed row."""


def main(cases: Cases) -> None:
    cases = replace(cases, is_alive=is_alive)
    models = ("qwen3-30b-a3b",) if cases.is_dry else ("olmoe-1b-7b", "qwen3-30b-a3b")
    lengths = (32, 64) if cases.is_dry else (4096, 8192)
    # Order by kernel first, because plain JAX is slow.
    every = itertools.product(kernels("attention"), models, lengths, ("causal", "documents"), ("forward", "both"))
    for kernel, model, length, mask, part in every:
        run = partial(time_attention, cases, model, length, mask, kernel, part)
        cases.measure(f"{model} {length} {mask} {part}, {kernel}", run)


def time_attention(cases: Cases, model: str, length: int, mask: str, kernel: str, part: str) -> Row:
    """Return the time of a case in bfloat16, or float32 in a rehearsal."""
    a = CATALOGUE[model].architecture
    heads, groups, width = (4, 2, 16) if cases.is_dry else (int(a.num_heads), int(a.num_kv_heads), int(a.head_dim))
    batch, dtype = (2, jnp.float32) if cases.is_dry else (TOKENS // length, jnp.bfloat16)
    shape = (batch, length, heads, width)
    query, key, value, dy = normal(SEED, shape, *[(batch, length, groups, width)] * 2, shape, dtype=dtype)
    lengths, segments = np.full((batch, 1), length), None
    if mask == "documents":
        generator = np.random.default_rng(SEED)
        cuts = np.sort(generator.permuted(np.tile(np.arange(1, length), (batch, 1)), axis=1)[:, : DOCUMENTS - 1])
        lengths = np.diff(cuts, axis=1, prepend=0, append=length)
        segments = jnp.asarray([np.repeat(np.arange(DOCUMENTS), row) + 1 for row in lengths], jnp.int32)
    options = {"scale": width**-0.5, "slopes": None, "sinks": None}
    seen = AttentionMask(query_segments=segments, key_segments=segments)
    check_accepts("attention", kernel, query, key, value, seen, **options)
    function = load("attention", kernel)

    def forward(query, key, value, segments):
        return function(query, key, value, AttentionMask(query_segments=segments, key_segments=segments), **options)

    def both(query, key, value, segments, dy):
        return jax.vjp(lambda *inputs: forward(inputs[0], inputs[1], inputs[2], segments), query, key, value)[1](dy)

    given = (query, key, value, segments)
    timed: tuple[Callable[..., Any], tuple[Any, ...]]
    timed = (forward, given) if part == "forward" else (both, (*given, dy))
    pairs = float((lengths * (lengths + 1) / 2).sum())
    flops = 4.0 * pairs * heads * width * (1 if part == "forward" else 3)
    row = with_rate(time_calls(timed[0], *timed[1], seconds=bench_seconds(cases)), flops)
    return row | {"model": model, "length": length, "mask": mask, "kernel": kernel, "part": part}
