"""Copy and read tokenizer files, which are stored with a model's weights."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from moejax.stored import foreign_json, read_bytes

GENERATION = "generation_config.json"
"""File of generation defaults, which names the first and last tokens of a generated text."""
TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
"""Special tokens named in ``config.json`` and ``generation_config.json``."""

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
    GENERATION,
)
"""Files that Hugging Face writes."""


def carry_tokenizer(source: Path, target: Path) -> list[str]:
    """Copy the tokenizer files that exist, and return their names."""
    names = [name for name in TOKENIZER_FILES if (source / name).is_file()]
    for name in names:
        shutil.copyfile(source / name, target / name)
    return names


def generation_token_ids(folder: Path) -> dict[str, Any]:
    """Return the special tokens of ``generation_config.json``, None for those that it does not name."""
    path = folder / GENERATION
    remedy = "copy it again, or remove it"
    named = foreign_json(read_bytes(path, remedy=remedy), path, shape=dict, remedy=remedy) if path.is_file() else {}
    return {name: named.get(name) for name in TOKEN_IDS}


def special_token(folder: Path, name: str) -> str | None:
    """Return an entry of ``tokenizer_config.json`` such as ``bos_token``; None if it is missing."""
    path = folder / "tokenizer_config.json"
    if not path.is_file():
        return None
    remedy = "copy it again, or remove it"
    token = foreign_json(read_bytes(path, remedy=remedy), path, shape=dict, remedy=remedy).get(name)
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None
