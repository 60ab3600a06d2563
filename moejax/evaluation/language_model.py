"""Compute likelihoods of continuations and generate text with a model, in batches with few different shapes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from moejax.errors import UserError
from moejax.kernels.cross_entropy import token_loss_and_correct
from moejax.model import transformer
from moejax.model.generate import Sampling, generate_in_parts
from moejax.model.runtime import Runtime
from moejax.routing import is_causal
from moejax.say import CountCallback
from moejax.weights.folder import Weights

Tokens = Sequence[int]

AT_ONCE = 32
"""Number of tokens generated between checks for the end of the answer."""


class Likelihood(NamedTuple):
    """Likelihood of a continuation."""

    log: float
    """Natural logarithm of the continuation's probability after its context."""
    greedy: bool
    """True if each of its tokens is the most likely one."""


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """A model for inference. Even with a capacity factor, it drops no tokens."""

    weights: Weights
    runtime: Runtime
    longest: int
    """Maximum number of tokens of a context and its continuation; earlier tokens are cut off."""
    batch_tokens: int
    """Number of tokens in a batch, including padding."""

    def check(self) -> None:
        """Raise ``UserError`` if a token's probability would depend on later tokens, or if no text fits."""
        router = self.weights.architecture.router
        if self.weights.architecture.is_moe and not is_causal(router):
            raise UserError(
                f"Router {router!r} lets later tokens affect earlier tokens, so the model's likelihoods are "
                "meaningless. Evaluate a model trained with a token-choice router."
            )
        if self.longest < 2 or self.batch_tokens < 1:
            raise UserError(
                f"The maximum length is {self.longest} and the batch has {self.batch_tokens} tokens; the length must "
                "be at least 2, and the batch must have at least 1 token."
            )

    def log_likelihoods(
        self, pairs: Sequence[tuple[Tokens, Tokens]], progress: CountCallback = lambda done, total: None
    ) -> list[Likelihood]:
        """Return the likelihood of each continuation after its context.

        Raises:
          ValueError: a context is empty.
          UserError: a continuation alone is longer than ``longest``.
        """
        for context, continuation in pairs:
            if not len(context):
                raise ValueError("A context is empty; begin it with the end-of-document token.")
            if len(continuation) > self.longest:
                raise UserError(
                    f"A continuation has {len(continuation)} tokens, but at most {self.longest} are allowed; raise "
                    f"--max-length."
                )
        # The last token is a target but not an input, so a row may have ``longest + 1`` tokens. Continuations that
        # differ only in the last token, such as the letters of choices, share one row.
        rows = [[*context, *continuation][-self.longest - 1 :] for context, continuation in pairs]
        alike: dict[tuple[int, ...], list[int]] = {}
        for item, (row, (_, continuation)) in enumerate(zip(rows, pairs, strict=True)):
            if len(continuation):
                alike.setdefault(tuple(row[:-1]), []).append(item)
        inputs = list(alike)
        lasts = [sorted({rows[item][-1] for item in items}) for items in alike.values()]
        room = 1 << (max(map(len, lasts), default=1) - 1).bit_length()
        likelihoods: list[Likelihood] = [Likelihood(0.0, True)] * len(pairs)
        done = 0
        for batch in batches(list(map(len, inputs)), longest=self.longest, batch_tokens=self.batch_tokens):
            tokens = np.zeros((batch.rows, batch.length), np.int32)
            ends, last = np.ones(batch.rows, np.int32), np.zeros((batch.rows, room), np.int32)
            for i, place in enumerate(batch.items):
                tokens[i, : len(inputs[place])] = inputs[place]
                ends[i], last[i, : len(lasts[place])] = len(inputs[place]), lasts[place]
            losses, correct, last_losses, last_correct = map(np.asarray, self._read(tokens, ends, last))
            for i, place in enumerate(batch.items):
                for item in alike[inputs[place]]:
                    which = lasts[place].index(rows[item][-1])
                    before = slice(ends[i] - len(pairs[item][1]), ends[i] - 1)
                    loss = losses[i, before].sum(dtype=np.float64) + last_losses[i, which]
                    is_greedy = bool(correct[i, before].all() and last_correct[i, which])
                    likelihoods[item] = Likelihood(-float(loss), is_greedy)
                    done += 1
            progress(done, len(pairs))
        return likelihoods

    def continuations(
        self,
        prompts: Sequence[Tokens],
        *,
        tokens: int,
        enough: Callable[[np.ndarray], bool],
        sampling: Sampling,
        key: jax.Array,
        progress: CountCallback = lambda done, total: None,
    ) -> list[np.ndarray]:
        """Generate at most ``tokens`` tokens after each prompt. A batch stops when ``enough`` is true for all its rows,
        so a row may have more tokens than it needs.

        Raises:
          UserError: ``tokens`` is less than 1 or leaves no space for a prompt.
        """
        room = self.longest - tokens
        if tokens < 1 or room < 1:
            raise UserError(
                f"Cannot generate {tokens} tokens with a maximum length of {self.longest}; generate at least 1, and "
                f"pass a larger --max-length."
            )
        prompts = [prompt[-room:] for prompt in prompts]
        continuations: list[np.ndarray] = [np.array([], np.int32)] * len(prompts)
        done = 0
        for batch in batches([len(prompt) for prompt in prompts], longest=room, batch_tokens=self.batch_tokens):
            filled = np.zeros((batch.rows, batch.length), np.int32)
            real = np.zeros((batch.rows, batch.length), bool)
            # Every row, even an unused one, needs one real token to continue from.
            real[:, -1] = True
            for i, item in enumerate(batch.items):
                filled[i, batch.length - len(prompts[item]) :] = prompts[item]
                real[i, batch.length - len(prompts[item]) :] = True
            key, of_batch = jax.random.split(key)
            parts = generate_in_parts(
                self.weights.architecture,
                self.runtime,
                self.weights.params,
                jnp.asarray(filled),
                of_batch,
                # All parts except the first have AT_ONCE tokens, so that one compiled program works for all of them.
                tokens=1 + AT_ONCE * -(-(tokens - 1) // AT_ONCE),
                at_once=AT_ONCE,
                sampling=sampling,
                padding_mask=jnp.asarray(real),
                expert_bias=self.weights.expert_bias,
            )
            rows = np.zeros((len(batch.items), 0), np.int32)
            for part in parts:
                rows = np.concatenate([rows, np.asarray(part)[: len(rows)]], axis=1)
                if all(enough(row[:tokens]) for row in rows):
                    break
            for item, row in zip(batch.items, rows, strict=True):
                continuations[item] = row[:tokens]
            done += len(batch.items)
            progress(done, len(prompts))
        return continuations

    def _read(self, tokens: np.ndarray, ends: np.ndarray, last: np.ndarray) -> tuple[jax.Array, ...]:
        w = self.weights
        architecture = w.architecture.replace(capacity_factor=None)
        return _read(architecture, self.runtime, w.params, w.expert_bias, *map(jnp.asarray, (tokens, ends, last)))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _read(architecture, runtime, params, expert_bias, tokens, ends, last):
    """Return the loss in nats of every token except the first, and whether it is the most likely token.

    Then return the same two arrays for the candidates in ``last`` for the token after a row's end.
    """
    real = jnp.arange(tokens.shape[1]) < ends[:, None]
    hidden = transformer.apply(architecture, runtime, params, tokens, padding_mask=real, expert_bias=expert_bias).hidden
    matrix = transformer.unembedding(architecture, params)
    losses, correct = token_loss_and_correct(hidden[:, :-1], matrix, tokens[:, 1:])
    end = jnp.take_along_axis(hidden, ends[:, None, None] - 1, axis=1)
    after = jax.nn.log_softmax(transformer.unembed(architecture, params, end)[:, 0])
    return losses, correct, -jnp.take_along_axis(after, last, axis=1), last == after.argmax(1)[:, None]


SHORTEST = 32
"""Minimum number of tokens of a row."""


class Batch(NamedTuple):
    """A batch of rows that are computed together."""

    items: tuple[int, ...]
    """Indices of the items in the list."""
    rows: int
    """Number of rows; equal for all batches of this length. Rows without an item are empty."""
    length: int
    """Number of tokens per row."""


def padded(size: int, longest: int) -> int:
    """Return the smallest of 32, 48, 64, 96, 128, … that is at least ``size``, and at most ``longest``."""
    length = SHORTEST
    while length < size:
        # Alternate between factors of 3/2 and 4/3, so that every second length is a power of two.
        length = length * 3 // 2 if length & (length - 1) == 0 else length * 4 // 3
    return min(length, longest)


def batches(sizes: Sequence[int], *, longest: int, batch_tokens: int) -> Iterator[Batch]:
    """Yield batches that contain every item once, longest rows first. A batch has at most ``batch_tokens`` tokens, but
    at least one row.
    """
    by_length: dict[int, list[int]] = {}
    for item, size in enumerate(sizes):
        by_length.setdefault(padded(size, longest), []).append(item)
    for length, items in sorted(by_length.items(), reverse=True):
        rows = min(max(1, batch_tokens // length), 1 << (len(items) - 1).bit_length())
        for start in range(0, len(items), rows):
            yield Batch(tuple(items[start : start + rows]), rows, length)
