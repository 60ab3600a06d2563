"""Implement ``moejax sample``: generate text with a model."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from moejax.data.tokenizer import BytesTokenizer, prompt_tokens
from moejax.errors import UserError
from moejax.evaluation.load_model import load_model
from moejax.json_text import json_text
from moejax.model.generate import Sampling, generate
from moejax.model.runtime import Runtime
from moejax.wording import printable


def run(arguments: argparse.Namespace) -> int:
    """Print the continuations."""
    sampling = Sampling(temperature=arguments.temperature, top_k=arguments.top_k, top_p=arguments.top_p)
    sampling.check()
    model = load_model(Path(arguments.model), arguments.tokenizer)
    weights, tokenizer = model.weights, model.tokenizer or BytesTokenizer()
    prompt = prompt_tokens(tokenizer, arguments.prompt.encode(), model.first_token)
    if prompt is None:
        raise UserError("The tokenizer cannot read this prompt; give plain text.")
    rows = generate(
        weights.architecture,
        Runtime(compute_dtype=arguments.dtype),
        weights.params,
        jnp.asarray(np.tile(np.array(prompt, np.int32), (arguments.samples, 1))),
        jax.random.key(arguments.seed),
        tokens=arguments.tokens,
        sampling=sampling,
        expert_bias=weights.expert_bias,
    )
    texts = [tokenizer.decode(_document(row, tokenizer.end_of_document)) for row in np.asarray(rows)]
    if arguments.json:
        print(json_text({"prompt": arguments.prompt, "continuations": texts}))
    else:
        text = "\n\n".join(arguments.prompt + text for text in texts)
        # A model's output may contain control sequences of a terminal. Files get the output unchanged.
        print(printable(text) if sys.stdout.isatty() else text)
    return 0


def _document(tokens, end: int):
    ends = (tokens == end).nonzero()[0]
    return tokens[: ends[0]] if len(ends) else tokens
