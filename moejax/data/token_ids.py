"""Tokens whose tokenizer is not at hand: they can be trained on, and their text is not known."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from moejax.errors import UserError


class TokenIds:
    """``ids:VOCAB:END``: how many tokens there are, and which one ends a document."""

    opening = ()

    def __init__(self, name: str):
        words = name.split(":")
        if len(words) != 3 or not all(word.isdigit() for word in words[1:]):
            raise UserError(f"The tokenizer {name} is none; write ids:VOCAB:END, as in ids:50257:50256.")
        self.name = name
        self.vocab_size, self.end_of_document = int(words[1]), int(words[2])
        if self.end_of_document >= self.vocab_size:
            raise UserError(f"{name} ends documents with a token outside its vocabulary; END must be below VOCAB.")
        self.sha256 = hashlib.sha256(name.encode()).hexdigest()

    def encode(self, texts: Sequence[bytes]) -> list[np.ndarray | None]:
        """Nothing can be encoded.

        Raises:
          UserError: always.
        """
        raise UserError(f"The tokenizer {self.name} has no text; give the tokenizer.json to read text with it.")

    def decode(self, tokens: np.ndarray) -> str:
        """The numbers."""
        return " ".join(map(str, tokens.tolist()))

    def bytes_per_token(self) -> None:
        """Not known."""
        return

    def save(self, folder: Path) -> str:
        """Needs no file."""
        return self.name
