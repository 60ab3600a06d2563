"""Sample tokens from a model with a key-value cache."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from moejax.architecture import Architecture
from moejax.config import check_fields
from moejax.errors import UserError
from moejax.model import transformer
from moejax.model.cache import empty_cache
from moejax.model.runtime import Runtime
from moejax.ranges import Copies, PositiveShare, Scale
from moejax.routing import is_causal

COLDEST = 1e-6
"""Temperature below which sampling is greedy, because nearly all probability is then on the most likely token."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Settings for sampling a token from the model's probabilities."""

    temperature: Scale = 1.0
    """Divisor of the logits. 0, or a value below ``COLDEST``, selects the most likely token."""
    top_k: Copies = 0
    """Number of most likely tokens to sample from; 0 means all."""
    top_p: PositiveShare = 1.0
    """Sample from the smallest set of most likely tokens whose total probability reaches this value."""

    def check(self) -> None:
        """Raise ``UserError`` if a value is outside its range."""
        check_fields(self)


def sample_token(logits: Float[Array, "batch vocab"], key: Key[Array, ""], sampling: Sampling) -> Int[Array, " batch"]:
    """Sample one token per row."""
    if sampling.temperature < COLDEST:
        return jnp.argmax(logits, axis=1).astype(jnp.int32)
    logits = logits / sampling.temperature
    if sampling.top_k:
        least = jax.lax.top_k(logits, min(sampling.top_k, logits.shape[1]))[0][:, -1:]
        logits = jnp.where(logits < least, -jnp.inf, logits)
    if sampling.top_p < 1:
        ordered = jnp.sort(logits, axis=1, descending=True)
        before = jnp.cumsum(jax.nn.softmax(ordered, axis=1), axis=1) - jax.nn.softmax(ordered, axis=1)
        least = jnp.where(before < sampling.top_p, ordered, jnp.inf).min(axis=1, keepdims=True)
        logits = jnp.where(logits < least, -jnp.inf, logits)
    return jax.random.categorical(key, logits, axis=1).astype(jnp.int32)


def generate(
    architecture: Architecture,
    runtime: Runtime,
    params: transformer.Params,
    prompts: Int[Array, "batch length"],
    key: Key[Array, ""],
    *,
    tokens: int,
    **options: Any,
) -> Int[Array, "batch tokens"]:
    """Generate ``tokens`` tokens for each prompt; ``options`` are passed to ``generate_in_parts``."""
    parts = generate_in_parts(architecture, runtime, params, prompts, key, tokens=tokens, at_once=tokens, **options)
    return jnp.concatenate(list(parts), axis=1)


def generate_in_parts(
    architecture: Architecture,
    runtime: Runtime,
    params: transformer.Params,
    prompts: Int[Array, "batch length"],
    key: Key[Array, ""],
    *,
    tokens: int,
    at_once: int,
    sampling: Sampling | None = None,
    padding_mask: Array | None = None,
    expert_bias: Float[Array, "moe_layers experts"] | None = None,
) -> Iterator[Int[Array, "batch part"]]:
    """Generate ``tokens`` tokens for each prompt: first one token, then ``at_once`` at a time, so that callers can stop
    early.

    Pad prompts of different lengths on the left; ``padding_mask`` (Bool[batch, length]) is False for padding. The
    architecture's capacity factor is ignored, so no tokens are dropped.

    Raises:
      UserError: the router is not causal: the routing of a token depends on later tokens.
    """
    sampling = sampling or Sampling()
    sampling.check()
    if not is_causal(architecture.router):
        raise UserError(
            f"Router {architecture.router!r} uses later tokens to route earlier tokens, so its model cannot be sampled "
            f"token by token; train with a token-choice router."
        )
    padding_mask = jnp.ones(prompts.shape, bool) if padding_mask is None else padding_mask
    fixed = (architecture.replace(capacity_factor=None), runtime, sampling)
    first_key, *keys = jax.random.split(key, tokens)
    parts = [keys[i : i + at_once] for i in range(0, len(keys), at_once)]
    cache = empty_cache(fixed[0], runtime, len(prompts), prompts.shape[1] + tokens, segments=True)
    cache, token = _first(fixed, params, cache, prompts, padding_mask, first_key, expert_bias)
    yield token[:, None]
    for part in parts:
        cache, generated = _more(fixed, params, cache, token, jnp.stack(part), expert_bias)
        token = generated[:, -1]
        yield generated


@functools.partial(jax.jit, static_argnums=0)
def _first(fixed, params, cache, prompts, padding_mask, key, expert_bias):
    cache, logits = _step(fixed, params, cache, prompts, padding_mask, expert_bias)
    return cache, sample_token(logits, key, fixed[2])


@functools.partial(jax.jit, static_argnums=0)
def _more(fixed, params, cache, token, keys, expert_bias):
    def another(carry, key):
        cache, token = carry
        cache, logits = _step(fixed, params, cache, token[:, None], jnp.ones((len(token), 1), bool), expert_bias)
        token = sample_token(logits, key, fixed[2])
        return (cache, token), token

    (cache, _), generated = jax.lax.scan(another, (cache, token), keys)
    return cache, generated.T


def _step(fixed, params, cache, these, padding_mask, expert_bias):
    architecture, runtime, _ = fixed
    output = transformer.apply(
        architecture,
        runtime,
        params,
        these,
        segments=padding_mask.astype(jnp.int32),
        padding_mask=padding_mask,
        expert_bias=expert_bias,
        cache=cache,
    )
    return output.cache, transformer.unembed(architecture, params, output.hidden[:, -1])
