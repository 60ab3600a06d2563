"""Continue a prompt with a trained or converted model."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from moejax.data.tokenizer import BytesTokenizer, prompt_tokens
from moejax.errors import UserError
from moejax.evaluation.load_model import load_model
from moejax.model.generate import Sampling, generate
from moejax.model.runtime import Runtime


def continuations(
    path: Path,
    prompt: str,
    samples: int,
    sampling: Sampling,
    *,
    tokens: int,
    seed: int = 0,
    tokenizer: str | None = None,
    dtype: str = "float32",
) -> list[str]:
    """Return ``samples`` continuations of a prompt by the model in a folder, each up to the end of its document or
    ``tokens`` tokens.

    Raises:
      UserError: the model or a setting is invalid, or the tokenizer cannot encode the prompt.
    """
    sampling.check()
    model = load_model(path, tokenizer)
    weights, known = model.weights, model.tokenizer or BytesTokenizer()
    start = prompt_tokens(known, prompt.encode(), model.first_token)
    if start is None:
        raise UserError("The tokenizer cannot encode this prompt; give plain text.")
    rows = generate(
        weights.architecture,
        Runtime(compute_dtype=dtype),
        weights.params,
        jnp.asarray(np.tile(np.array(start, np.int32), (samples, 1))),
        jax.random.key(seed),
        tokens=tokens,
        sampling=sampling,
        expert_bias=weights.expert_bias,
    )
    texts = []
    for row in np.asarray(rows):
        ends = (row == known.end_of_document).nonzero()[0]
        texts.append(known.decode(row[: ends[0]] if len(ends) else row))
    return texts
