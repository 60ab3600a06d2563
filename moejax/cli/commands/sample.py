"""Generate text with a model."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from moejax.cli.options import Command, argument, option
from moejax.cli.shared import Seed
from moejax.errors import UserError
from moejax.json_text import json_text
from moejax.ranges import whole
from moejax.wording import printable

EXAMPLE = """\
  moejax sample runs/tiny --prompt "def main("
  moejax sample runs/tiny/checkpoints/branch-65536 --prompt "import " --samples 3
  moejax sample weights/mixtral --prompt "Sparse models" --tokens 50 --temperature 0"""


@dataclass(frozen=True, kw_only=True)
class SampleCommand(Command, name="sample"):
    """Continue a prompt with a trained or converted model."""

    model: str = argument("folder of a training run, a checkpoint in it, or a folder of weights", metavar="DIR")
    prompt: str = option("", "text to continue (default: the start of a document)")
    tokens: Annotated[int, whole(1, 1_000_000)] = option(200, "maximum number of tokens", metavar="N")
    samples: Annotated[int, whole(1, 10_000)] = option(1, "number of continuations", metavar="N")
    temperature: float = option(1.0, "temperature; 0 chooses the most probable token", metavar="T")
    top_k: Annotated[int, whole(0, 10_000_000)] = option(
        0, "sample from the K most probable tokens; 0 for all", metavar="K"
    )
    top_p: float = option(1.0, "sample from the most probable tokens whose probabilities sum to P", metavar="P")
    seed: Seed = option(0, "seed of the sampling", metavar="NUMBER")
    tokenizer: str | None = option(None, "bytes or a tokenizer.json (default: the model's own)", metavar="NAME")
    dtype: str = option("float32", "data type of the computation", choices=("float32", "bfloat16"))

    def run(self) -> None:
        import jax
        import jax.numpy as jnp
        import numpy as np

        from moejax.data.tokenizer import BytesTokenizer, prompt_tokens
        from moejax.evaluation.load_model import load_model
        from moejax.model.generate import Sampling, generate
        from moejax.model.runtime import Runtime

        sampling = Sampling(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)
        sampling.check()
        model = load_model(Path(self.model), self.tokenizer)
        weights, tokenizer = model.weights, model.tokenizer or BytesTokenizer()
        prompt = prompt_tokens(tokenizer, self.prompt.encode(), model.first_token)
        if prompt is None:
            raise UserError("The tokenizer cannot encode this prompt; give plain text.")
        rows = generate(
            weights.architecture,
            Runtime(compute_dtype=self.dtype),
            weights.params,
            jnp.asarray(np.tile(np.array(prompt, np.int32), (self.samples, 1))),
            jax.random.key(self.seed),
            tokens=self.tokens,
            sampling=sampling,
            expert_bias=weights.expert_bias,
        )
        texts = []
        for row in np.asarray(rows):
            ends = (row == tokenizer.end_of_document).nonzero()[0]
            texts.append(tokenizer.decode(row[: ends[0]] if len(ends) else row))
        if self.json:
            print(json_text({"prompt": self.prompt, "continuations": texts}))
            return
        text = "\n\n".join(self.prompt + text for text in texts)
        # A model's output may contain control sequences of a terminal. Files get the output unchanged.
        print(printable(text) if sys.stdout.isatty() else text)
