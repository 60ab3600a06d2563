"""Train a tokenizer: byte-level byte-pair encoding (Sennrich et al. 2016; on bytes, Radford et al. 2019)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from moejax.data.document import Document
from moejax.data.json_tokenizer import JsonTokenizer
from moejax.data.source import Part, Reading
from moejax.data.sources import parts_of
from moejax.errors import UserError
from moejax.folder import whole

END = "<|endoftext|>"

SPLIT = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""Merges stay within these: words with the space in front of them, runs of at most three digits, signs, spaces."""

LEAST_VOCAB = 257


def train_tokenizer(
    source: str,
    path: Path,
    *,
    vocab_size: int,
    text_field: str = "text",
    max_bytes: int = 10**9,
    update: Callable[[float, str], None] = lambda share, text: None,
    unread: Callable[[str], None] = lambda name: None,
) -> JsonTokenizer:
    """Learn ``vocab_size`` tokens from at most ``max_bytes`` of a source's text, and write ``tokenizer.json``.

    Parts are read from all over the source, so that less than all of it still is a sample of it. The tokenizer
    changes no text: what it decodes is what it was given, byte for byte. ``unread`` is
    called with the name of every document that is none to learn from, and why.

    Raises:
      UserError: the vocabulary is smaller than the bytes and the end of a document, or there is no text.
    """
    if vocab_size < LEAST_VOCAB:
        raise UserError(f"The vocabulary is {vocab_size} tokens; the 256 bytes and {END} need {LEAST_VOCAB}.")
    parts = parts_of(source, Reading(text_field))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(  # type: ignore[assignment]
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = _texts(parts, max_bytes, update, unread)
    first = next(texts, None)
    if first is None:
        raise UserError(f"{source} holds no text to learn from; name one that does.")
    tokenizer.train_from_iterator(itertools.chain([first], texts), trainer)
    with whole(path) as partial:
        partial.write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
    return JsonTokenizer(path)


def _texts(
    parts: list[Part], max_bytes: int, update: Callable[[float, str], None], unread: Callable[[str], None]
) -> Iterator[str]:
    """Text of parts from all over the source, the same share of each."""
    total = sum(part.size_bytes for part in parts)
    share = min(1.0, max_bytes / max(total, 1))
    done = 0
    for part in parts:
        size = 0
        for found in part.documents():
            if not isinstance(found, Document):
                unread(f"{found.name}: {found.why}")
                continue
            if not isinstance(found.content, bytes):
                unread(f"{found.name}: tokens, and no text")
                continue
            # A document that ends a part's share is the last that is taken of it.
            yield found.content.decode(errors="ignore")
            size += len(found.content)
            if size >= share * part.size_bytes or done + size >= max_bytes:
                break
        done += size
        update(min(1.0, done / max(1.0, share * total)), f"{done / 1e6:,.0f} MB read")
        if done >= max_bytes:
            return
