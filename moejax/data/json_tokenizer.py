"""Any Hugging Face ``tokenizer.json``, through the package ``tokenizers``."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from moejax.errors import UserError
from moejax.folder import whole
from moejax.stored import foreign_json, read_bytes
from moejax.wording import says

ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "<|im_end|>", "[EOS]", "[SEP]")
"""Tokens that end documents in well-known tokenizers, tried in this order."""


class JsonTokenizer:
    """Text that looks like a special token is read as text, and nothing is added, cut off or filled up."""

    def __init__(self, path: Path, end: str = ""):
        content = read_bytes(path, remedy="name a tokenizer.json that is there")
        try:
            self._text = content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"{path} is not UTF-8 text (at byte {error.start:,}); copy it again.") from error
        self.name = f"{path}#{end}" if end else str(path)
        try:
            self._tokenizer = Tokenizer.from_str(self._text)
        # The Rust library raises a bare Exception.
        except Exception as error:
            raise UserError(
                f"{path} is no tokenizer.json that can be read ({says('tokenizers', error)}); copy it again."
            ) from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
        self.end = _end(self._tokenizer, path, end)
        self.opening: tuple[int, ...] = _opening(self._tokenizer)
        self.end_of_document: int = self._tokenizer.get_vocab(with_added_tokens=True)[self.end]
        self.vocab_size = max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1
        self.sha256 = hashlib.sha256(f"{self._text}\0{self.end}".encode()).hexdigest()

    def encode(self, texts: Sequence[bytes]) -> list[np.ndarray | None]:
        """Int32; None for what is no UTF-8."""
        decoded = [_utf8(text) for text in texts]
        given = [text for text in decoded if text is not None]
        encoded = iter(self._tokenizer.encode_batch_fast(given, add_special_tokens=False))
        return [None if text is None else np.array(next(encoded).ids, np.int32) for text in decoded]

    def decode(self, tokens: np.ndarray) -> str:
        """Without special tokens."""
        return self._tokenizer.decode(tokens.tolist(), skip_special_tokens=True)

    def number(self, token: str) -> int | None:
        """Of a token by its spelling; None if there is no such."""
        return self._tokenizer.token_to_id(token)

    def bytes_per_token(self) -> np.ndarray:
        """Of byte-level and byte-fallback tokenizers exact; of others as each token decodes by itself."""
        token = {"id": int, "special": bool}
        shape = {"added_tokens": list[token]}  # type: ignore[valid-type]
        described = foreign_json(self._text, self.name, shape=shape, remedy="copy it again")
        special = {token["id"] for token in described["added_tokens"] if token["special"]}
        added = {token["id"] for token in described["added_tokens"]}
        kinds = _kinds(described.get("decoder"))
        found = np.zeros(self.vocab_size, np.int32)
        for token, number in self._tokenizer.get_vocab(with_added_tokens=True).items():
            if number in special or number == self.end_of_document:
                continue
            if number in added:
                found[number] = len(token.encode())
            elif "ByteLevel" in kinds:
                # Byte-level vocabularies spell every byte as one character.
                found[number] = len(token)
            elif "ByteFallback" in kinds and _is_byte(token):
                found[number] = 1
            elif "Replace" in kinds or "Metaspace" in kinds:
                found[number] = len(token.replace("▁", " ").encode())
            else:
                found[number] = len(self._tokenizer.decode([number]).encode())
        return found

    def save(self, folder: Path) -> str:
        """A copy of the file."""
        with whole(folder / "tokenizer.json") as partial:
            partial.write_text(self._text, encoding="utf-8")
        return f"tokenizer.json#{self.end}"


def _end(tokenizer: Any, path: Path, given: str) -> str:
    if given:
        if tokenizer.token_to_id(given) is None:
            raise UserError(f"{path} has no token {given} to end documents with; name one that it has after the #.")
        return given
    for token in ENDS:
        if tokenizer.token_to_id(token) is not None:
            return token
    raise UserError(f"{path} has none of {', '.join(ENDS)}; name the token that ends a document: {path}#TOKEN.")


def _opening(tokenizer: Any) -> tuple[int, ...]:
    framed, bare = (tokenizer.encode("a", add_special_tokens=wanted).ids for wanted in (True, False))
    start = next((i for i in range(len(framed)) if framed[i : i + len(bare)] == bare), 0)
    return tuple(framed[:start])


def _kinds(decoder: Any) -> set[str]:
    """Names of a decoder and of those it is made of."""
    if decoder is None:
        return set()
    return {decoder["type"]}.union(*(_kinds(part) for part in decoder.get("decoders", [])))


def _is_byte(token: str) -> bool:
    return len(token) == 6 and token.startswith("<0x") and token.endswith(">")


def _utf8(text: bytes) -> str | None:
    try:
        return text.decode()
    except UnicodeDecodeError:
        return None
