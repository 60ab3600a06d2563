"""Generate text with a model."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from moejax.cli.options import Command, argument, option
from moejax.cli.progress import waiting
from moejax.cli.shared import Seed
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
        from moejax.evaluation.sample import continuations
        from moejax.model.generate import Sampling

        sampling = Sampling(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)
        with waiting(f"loading and compiling {self.model}"):
            texts = continuations(
                Path(self.model),
                self.prompt,
                self.samples,
                sampling,
                tokens=self.tokens,
                seed=self.seed,
                tokenizer=self.tokenizer,
                dtype=self.dtype,
            )
        if self.json:
            print(json_text({"prompt": self.prompt, "continuations": texts}))
            return
        headings = [f"--- {number} of {len(texts)} ---\n" for number in range(1, len(texts) + 1)]
        text = "\n\n".join(
            (heading if len(texts) > 1 else "") + self.prompt + text
            for heading, text in zip(headings, texts, strict=True)
        )
        # A model's output may contain control sequences of a terminal. Files get the output unchanged.
        print(printable(text) if sys.stdout.isatty() else text)
