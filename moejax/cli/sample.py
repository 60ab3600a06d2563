"""``moejax sample``: text from a model."""

from __future__ import annotations

import argparse
from pathlib import Path

from moejax.cli.given_model import open_model
from moejax.cli.number import SEEDS, count
from moejax.errors import UserError
from moejax.json_text import json_text

NAME = "sample"
HELP = "Continue a prompt with a trained or converted model."
EXAMPLE = """\
  moejax sample runs/tiny --prompt "def main("
  moejax sample runs/tiny/checkpoints/branch-65536 --prompt "import " --samples 3
  moejax sample weights/mixtral --prompt "Sparse models" --tokens 50 --temperature 0"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("model", metavar="DIR", help="a training's folder, a checkpoint in it, or a folder of weights")
    parser.add_argument("--prompt", default="", help="text to go on from (default: the start of a document)")
    parser.add_argument("--tokens", type=count(0), default=200, metavar="N", help="tokens at most (default: 200)")
    parser.add_argument("--samples", type=count(0, 10_000), default=1, metavar="N", help="continuations (default: 1)")
    parser.add_argument(
        "--temperature", type=float, default=1.0, metavar="T", help="0 takes the likeliest (default: 1)"
    )
    parser.add_argument(
        "--top-k", type=count(0, 10_000_000), default=0, metavar="K", help="draw among so many (default: all)"
    )
    parser.add_argument(
        "--top-p", type=float, default=1.0, metavar="P", help="draw among this probability (default: 1)"
    )
    parser.add_argument("--seed", type=SEEDS, default=0, help="of the draws (default: 0)")
    parser.add_argument("--tokenizer", metavar="NAME", help="bytes or a tokenizer.json (default: the model's own)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="to compute in")
    parser.add_argument("--json", action="store_true", help="print prompt and continuations on stdout as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the continuations."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from moejax.data.tokenizer import BytesTokenizer
    from moejax.model.generate import Sampling, generate
    from moejax.model.runtime import Runtime

    if arguments.tokens < 1 or arguments.samples < 1:
        raise UserError(
            f"--tokens is {arguments.tokens} and --samples {arguments.samples}; ask for at least one of each."
        )
    sampling = Sampling(temperature=arguments.temperature, top_k=arguments.top_k, top_p=arguments.top_p)
    sampling.check()
    model = open_model(Path(arguments.model), arguments.tokenizer)
    weights, tokenizer = model.weights, model.tokenizer or BytesTokenizer()
    prompt = tokenizer.encode([arguments.prompt.encode()])[0]
    if prompt is None:
        raise UserError("The tokenizer cannot read this prompt; give plain text.")
    # A document begins after the end of another.
    prompt = prompt if len(prompt) else np.array([tokenizer.end_of_document])
    found = generate(
        weights.architecture,
        Runtime(compute_dtype=arguments.dtype),
        weights.params,
        jnp.asarray(np.tile(prompt.astype(np.int32), (arguments.samples, 1))),
        jax.random.key(arguments.seed),
        tokens=arguments.tokens,
        sampling=sampling,
        expert_bias=weights.expert_bias,
    )
    texts = [tokenizer.decode(_document(row, tokenizer.end_of_document)) for row in np.asarray(found)]
    if arguments.json:
        print(json_text({"prompt": arguments.prompt, "continuations": texts}))
    else:
        print("\n\n".join(arguments.prompt + text for text in texts))
    return 0


def _document(tokens, end: int):
    ends = (tokens == end).nonzero()[0]
    return tokens[: ends[0]] if len(ends) else tokens
