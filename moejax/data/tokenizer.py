"""Turn text into tokens with a tokenizer: ``bytes``, ``ids:VOCAB:END`` for tokens of unknown text, or any Hugging Face
``tokenizer.json``.

This module decides which tokens precede a text, for training, evaluation, samples and exports. A model trained here
reads the end-of-document token before every document, so ``as_in_training`` puts that token before a text. A converted
model keeps the template of its ``tokenizer.json``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from moejax.errors import UserError
from moejax.folder import write_text
from moejax.json_text import parse
from moejax.stored import Missing, foreign_json, read_bytes
from moejax.wording import says


class Tokenizer:
    """A tokenizer. Its subclasses are final."""

    name: str
    """Name given by the user."""
    sha256: str
    """Hash of everything that determines the tokens."""
    vocab_size: int
    """Largest token id plus one."""
    end_of_document: int
    """Token that follows the last token of a document."""
    opening: tuple[int, ...]
    """Tokens before a text, such as ``<s>`` in Mixtral's template; ``encode`` omits them."""

    def as_in_training(self) -> Tokenizer:
        """Return the tokenizer for a model trained by moejax: the end-of-document token precedes a text."""
        return self

    def encode(self, texts: Sequence[bytes]) -> list[np.ndarray | None]:
        """Return the tokens of each text without the end-of-document token; None for a text that cannot be
        tokenized."""
        raise NotImplementedError

    def decode(self, tokens: np.ndarray) -> str:
        """Return the text of tokens, or a description of the tokens if their text is unknown."""
        raise NotImplementedError

    def vocabulary(self) -> Mapping[int, str] | None:
        """Return the learned tokens by id, or None if unknown."""
        return None

    def bytes_per_token(self) -> np.ndarray | None:
        """Return Int32 (vocab_size): the number of text bytes of each token, 0 for tokens without text. None if
        unknown.
        """
        return None

    def save(self, folder: Path) -> str:
        """Write the required files into ``folder``; return the name with which ``open_tokenizer`` loads it."""
        return self.name


@dataclass(frozen=True)
class BytesTokenizer(Tokenizer):
    """A tokenizer in which token b is the byte b; token 256 ends a document."""

    name: str = "bytes"
    vocab_size: int = 257
    end_of_document: int = 256
    opening: tuple[int, ...] = (256,)
    sha256: str = hashlib.sha256(b"bytes, then 256").hexdigest()

    def encode(self, texts: Sequence[bytes]) -> list[np.ndarray | None]:
        """Encode as uint8."""
        return [np.frombuffer(text, np.uint8) for text in texts]

    def decode(self, tokens: np.ndarray) -> str:
        """Decode; replace invalid UTF-8 and omit end-of-document tokens."""
        return tokens[tokens < 256].astype(np.uint8).tobytes().decode(errors="replace")

    def vocabulary(self) -> dict[int, str]:
        """Return the spelling of each byte."""
        return {byte: f"<0x{byte:02X}>" for byte in range(256)}

    def bytes_per_token(self) -> np.ndarray:
        """Return 1 for each byte and 0 for the end-of-document token."""
        return np.append(np.ones(256, np.int32), np.int32(0))


class TokenIds(Tokenizer):
    """Token ids of unknown text, ``ids:VOCAB:END``: the vocabulary size and the end-of-document token."""

    def __init__(self, name: str):
        words = name.split(":")
        if len(words) != 3 or not all(word.isdecimal() for word in words[1:]):
            raise UserError(f"The tokenizer {name} is invalid; write ids:VOCAB:END, such as ids:50257:50256.")
        self.name = name
        self.vocab_size, self.end_of_document = int(words[1]), int(words[2])
        if self.end_of_document >= self.vocab_size:
            raise UserError(f"{name} ends documents with a token outside its vocabulary; END must be below VOCAB.")
        self.opening = (self.end_of_document,)
        self.sha256 = hashlib.sha256(name.encode()).hexdigest()

    def encode(self, texts: Sequence[bytes]) -> list[np.ndarray | None]:
        """Raise an error, because text cannot be encoded.

        Raises:
          UserError: always.
        """
        raise UserError(f"The tokenizer {self.name} cannot encode text; give its tokenizer.json.")

    def decode(self, tokens: np.ndarray) -> str:
        """Return the ids as text."""
        return " ".join(map(str, tokens.tolist()))


ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "<|im_end|>", "[EOS]", "[SEP]")
"""End-of-document tokens of well-known tokenizers, tried in this order."""


class JsonTokenizer(Tokenizer):
    """A ``tokenizer.json`` file. Special tokens in a text are encoded as ordinary text; there is no truncation or
    padding. ``text``, if not None, is used as the file's content.
    """

    def __init__(self, path: Path, end: str = "", text: str | None = None):
        self._path = path
        self._text = _read(path) if text is None else text
        self.name = f"{path}#{end}" if end else str(path)
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(self._text)
        # The Rust library raises a bare Exception.
        except Exception as error:
            raise UserError(
                f"{path} is not a readable tokenizer.json ({says('tokenizers', error)}); copy it again."
            ) from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
        self.end = _end_of_document(self._tokenizer, path, end)
        self.opening = _opening(self._tokenizer)
        self.end_of_document = self._tokenizer.get_vocab(with_added_tokens=True)[self.end]
        self.vocab_size = max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1
        self.sha256 = hashlib.sha256(f"{self._text}\0{self.end}".encode()).hexdigest()

    def as_in_training(self) -> JsonTokenizer:
        """Return the tokenizer with a template that puts the end-of-document token before a text."""
        if self.opening == (self.end_of_document,):
            return self
        return JsonTokenizer(self._path, self.end, _with_template(self._text, self.end, self.end_of_document))

    def encode(self, texts: Sequence[bytes]) -> list[np.ndarray | None]:
        """Encode as int32; None for text that is not UTF-8."""
        decoded = [_utf8(text) for text in texts]
        given = [text for text in decoded if text is not None]
        encoded = iter(self._tokenizer.encode_batch_fast(given, add_special_tokens=False))
        return [None if text is None else np.array(next(encoded).ids, np.int32) for text in decoded]

    def decode(self, tokens: np.ndarray) -> str:
        """Decode without special tokens."""
        return self._tokenizer.decode(tokens.tolist(), skip_special_tokens=True)

    def vocabulary(self) -> dict[int, str]:
        """Return the learned tokens, keyed by id. Added tokens are omitted, because users rename them."""
        added = self._tokenizer.get_added_tokens_decoder()
        learned = self._tokenizer.get_vocab(with_added_tokens=False)
        return {number: token for token, number in learned.items() if number not in added}

    def number(self, token: str) -> int | None:
        """Return the id of a token by its spelling; None for an unknown token."""
        return self._tokenizer.token_to_id(token)

    def bytes_per_token(self) -> np.ndarray:
        """Return the number of text bytes of each token. It is exact for byte-level and byte-fallback tokenizers. For
        others, it is the length of the separately decoded token.
        """
        token = {"id": int, "special": bool}
        shape = {"added_tokens": list[token]}  # type: ignore[valid-type]
        described = foreign_json(self._text, self.name, shape=shape, remedy="copy it again")
        special = {token["id"] for token in described["added_tokens"] if token["special"]}
        added = {token["id"] for token in described["added_tokens"]}
        kinds = _kinds(described.get("decoder"))
        lengths = np.zeros(self.vocab_size, np.int32)
        for token, number in self._tokenizer.get_vocab(with_added_tokens=True).items():
            if number in special or number == self.end_of_document:
                continue
            if number in added:
                lengths[number] = len(token.encode())
            elif "ByteLevel" in kinds:
                # Byte-level vocabularies spell every byte as one character.
                lengths[number] = len(token)
            elif "ByteFallback" in kinds and _is_byte(token):
                lengths[number] = 1
            elif "Replace" in kinds or "Metaspace" in kinds:
                lengths[number] = len(token.replace("▁", " ").encode())
            else:
                lengths[number] = len(self._tokenizer.decode([number]).encode())
        return lengths

    def save(self, folder: Path) -> str:
        """Write a copy of the file and return its name."""
        write_text(folder / "tokenizer.json", self._text)
        return f"tokenizer.json#{self.end}"


def _read(path: Path) -> str:
    content = read_bytes(path, remedy="name an existing tokenizer.json")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (at byte {error.start:,}); copy it again.") from error


def _with_template(text: str, token: str, number: int) -> str:
    """Return a ``tokenizer.json`` whose template puts a token before a text, and before each text of a pair."""
    described = parse(text)

    def after_token(*names: str) -> list[dict[str, Any]]:
        pieces = [
            ({"SpecialToken": {"id": token, "type_id": i}}, {"Sequence": {"id": name, "type_id": i}})
            for i, name in enumerate(names)
        ]
        return [piece for pair in pieces for piece in pair]

    described["post_processor"] = {
        "type": "TemplateProcessing",
        "single": after_token("A"),
        "pair": after_token("A", "B"),
        "special_tokens": {token: {"id": token, "ids": [number], "tokens": [token]}},
    }
    return json.dumps(described, ensure_ascii=False, indent=2)


def _end_of_document(tokenizer: tokenizers.Tokenizer, path: Path, given: str) -> str:
    if given:
        if tokenizer.token_to_id(given) is None:
            raise UserError(
                f"{path} has no token {given}; after the #, name the token of this tokenizer that ends a document."
            )
        return given
    for token in ENDS:
        if tokenizer.token_to_id(token) is not None:
            return token
    raise UserError(
        f"{path} has none of the tokens {', '.join(ENDS)}; name the token that ends a document, as in {path}#TOKEN."
    )


def _opening(tokenizer: tokenizers.Tokenizer) -> tuple[int, ...]:
    framed, bare = (tokenizer.encode("a", add_special_tokens=wanted).ids for wanted in (True, False))
    start = next((i for i in range(len(framed)) if framed[i : i + len(bare)] == bare), 0)
    return tuple(framed[:start])


def _kinds(decoder: Any) -> set[str]:
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


def prompt_tokens(tokenizer: Tokenizer, text: bytes, first_token: int | None = None) -> list[int] | None:
    """Return the tokens of a text, including its opening tokens, or None if it cannot be tokenized.

    An empty text without opening tokens becomes ``first_token``, by default the end-of-document token, because a model
    needs at least one token.
    """
    tokens = tokenizer.encode([text])[0]
    if tokens is None:
        return None
    return [*tokenizer.opening, *tokens.tolist()] or [tokenizer.end_of_document if first_token is None else first_token]


NAMED: dict[str, Callable[[str], Tokenizer]] = {"bytes": BytesTokenizer, "ids": TokenIds}
"""Tokenizers without files, keyed by the part of their name before the first colon."""


def open_tokenizer(name: str, folder: Path = Path()) -> Tokenizer:
    """Open a tokenizer: ``bytes``; ``ids:VOCAB:END`` for tokens of unknown text; or a ``tokenizer.json``, followed by
    ``#TOKEN`` to name its end-of-document token. Paths are relative to ``folder``.

    Raises:
      UserError: the tokenizer does not exist, or its end-of-document token is unknown.
    """
    make = NAMED.get(name.partition(":")[0])
    if make is not None:
        return make(name)
    file, _, end = name.partition("#")
    path = folder / Path(file).expanduser()
    path = path / "tokenizer.json" if path.is_dir() else path
    if not path.is_file():
        raise Missing(
            f"There is no tokenizer {name or repr(name)}; give bytes, ids:VOCAB:END, or the path of a "
            "tokenizer.json, which moejax data tokenizer can train."
        )
    return JsonTokenizer(path, end)
