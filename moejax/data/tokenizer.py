"""Tokenizers: what turns text into tokens, ends documents, and tells how many bytes each token stands for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from moejax.data.bytes_tokenizer import BytesTokenizer
from moejax.data.json_tokenizer import JsonTokenizer
from moejax.data.token_ids import TokenIds
from moejax.errors import UserError


@runtime_checkable
class Tokenizer(Protocol):
    """Final classes of this shape; each in a file of its own."""

    @property
    def name(self) -> str:
        """As named by the user."""
        ...

    @property
    def sha256(self) -> str:
        """Hash of all that decides which tokens come out."""
        ...

    @property
    def vocab_size(self) -> int:
        """One more than the largest token."""
        ...

    @property
    def end_of_document(self) -> int:
        """The token after the last one of a document."""
        ...

    @property
    def opening(self) -> tuple[int, ...]:
        """Tokens that its file wants before a text, as the ``<s>`` of Mixtral's. ``encode`` leaves them out."""
        ...

    def encode(self, texts: Sequence[bytes]) -> list[np.ndarray | None]:
        """Tokens of each text, without the one that ends a document; None for a text that cannot be tokenised."""
        ...

    def decode(self, tokens: np.ndarray) -> str:
        """The text of some tokens, or a description if the text is not known."""
        ...

    def bytes_per_token(self) -> np.ndarray | None:
        """Int32 (vocab_size): bytes of text that each token stands for; 0 for those that stand for none."""
        ...

    def save(self, folder: Path) -> str:
        """Put into ``folder`` what it needs there, and return the name under which it is opened again."""
        ...


NAMED: dict[str, Callable[[str], Tokenizer]] = {"bytes": BytesTokenizer, "ids": TokenIds}
"""Tokenizers that are not files, by the word in front of the first colon."""


def open_tokenizer(name: str, folder: Path = Path()) -> Tokenizer:
    """``bytes``; ``ids:VOCAB:END``, tokens whose text is not known; or a ``tokenizer.json``, followed by ``#TOKEN`` if
    its end-of-document token must be named. Files are looked for in ``folder``.

    Raises:
      UserError: there is no such tokenizer, or no telling which token ends a document.
    """
    make = NAMED.get(name.partition(":")[0])
    if make is not None:
        return make(name)
    file, _, end = name.partition("#")
    path = folder / Path(file).expanduser()
    path = path / "tokenizer.json" if path.is_dir() else path
    if not path.is_file():
        raise UserError(
            f"There is no tokenizer {name}; give bytes, ids:VOCAB:END, or the path of a tokenizer.json (train one "
            f"with moejax data tokenizer)."
        )
    return JsonTokenizer(path, end)
