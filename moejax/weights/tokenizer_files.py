"""Files of a tokenizer, which travel with a model's weights."""

from __future__ import annotations

import shutil
from pathlib import Path

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "tekken.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
)
"""Those that Hugging Face writes, and the defaults of generation, which name tokens."""


def carry_tokenizer(source: Path, target: Path) -> list[str]:
    """Copy the files of a tokenizer; returns the names of those there were."""
    found = [name for name in TOKENIZER_FILES if (source / name).is_file()]
    for name in found:
        shutil.copyfile(source / name, target / name)
    return found
