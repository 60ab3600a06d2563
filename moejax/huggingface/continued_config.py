"""Write a config that continues the training of a Hugging Face checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from moejax.config import dump
from moejax.huggingface.conversion import Converted

LONGEST = 4096
"""Maximum sequence length of the config, in tokens."""

CONTINUED = '''\
"""Continue the training of {title}, a {family} checkpoint.

Command:  moejax train --config={config} --config.recipe.data.source=TEXTS --exportable hf:{family} --out runs/{name}
Recipe:   a learning rate far below the pretraining rate, which limits forgetting. Mix in text like the pretraining
          text, and compare `moejax eval` before and after.
"""

from pathlib import Path

from ml_collections import ConfigDict

WEIGHTS = Path(__file__).parent.parent / "weights" / "{name}"


def get_config() -> ConfigDict:
    """Return the training run."""
    config = ConfigDict()
    config.name = "{name}"
    config.architecture = dict(
{architecture}
    )
    config.recipe = dict(
        budgets_tokens=[{budget}],
        batch_tokens={batch},
        data=dict(
            source="python_stdlib",  # for a trial; replace it with a folder, a file, hf:NAME or a prepared dataset
            tokenizer={tokenizer},
            sequence_length={length},
        ),
        initial_weights=dict(source=str(WEIGHTS)),
        optimizer=dict(learning_rate=1e-5, warmup_tokens={warmup}),
        mesh=dict(data=1, fsdp=-1),  # parameters over all devices
        runtime=dict(compute_dtype="{dtype}", remat="attn_out+moe_gate_up"),
    )
    return config
'''


def continued_config(done: Converted, options: Mapping[str, object], *, title: str, name: str, config: str) -> str:
    """Return the text of a config file that continues the training of a converted checkpoint.

    Args:
      options: options of the checkpoint's config.json that have no field in an architecture.
      title: name of the checkpoint.
      name: name of the training run, and of the weights folder next to the config's folder.
      config: path of the config file.
    """
    architecture = done.architecture
    defaults = {field.name: field.default for field in dataclasses.fields(architecture)}
    settings = {field: value for field, value in dump(architecture).items() if value != defaults[field]}
    longest = options.get("max_position_embeddings")
    length = min(longest, LONGEST) if isinstance(longest, int) and longest > 1 else LONGEST
    batch = max(2**20 // length, 1) * length
    stored = options.get("dtype") or options.get("torch_dtype")
    return CONTINUED.format(
        title=_in_docstring(title),
        family=done.family,
        config=_in_docstring(config),
        name=name,
        architecture="\n".join(f"        {field}={value!r}," for field, value in settings.items()),
        budget=2**10 * batch,
        batch=batch,
        warmup=16 * batch,
        tokenizer='str(WEIGHTS / "tokenizer.json")' if "tokenizer.json" in done.files else "None",
        length=length,
        dtype="bfloat16" if stored == "bfloat16" else "float32",
    )


def _in_docstring(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode().replace("\\", "/").replace('"', "'")
