"""Train a tokenizer: byte-level byte-pair encoding (Sennrich et al. 2016; on bytes, Radford et al. 2019)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from moejax.data.source import Document, InputShard, SourceOptions
from moejax.data.sources import input_shards_of
from moejax.data.tokenizer import JsonTokenizer
from moejax.errors import UserError
from moejax.folder import write_text
from moejax.say import ProgressCallback

END = "<|endoftext|>"

SPLIT = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""Pre-tokenization pattern. Merges stay within a word with its leading space, a group of at most three digits,
punctuation, or spaces.
"""

LEAST_VOCAB = 257


def train_tokenizer(
    source: str,
    path: Path,
    *,
    vocab_size: int,
    text_field: str = "text",
    max_bytes: int = 10**9,
    update: ProgressCallback = lambda share, text: None,
    unread: Callable[[str], None] = lambda name: None,
) -> JsonTokenizer:
    """Learn ``vocab_size`` tokens from at most ``max_bytes`` of a source's text, and write ``tokenizer.json``.

    Text is sampled from all input shards. The tokenizer is lossless: it decodes to the original bytes. ``unread`` is
    called with the name of every skipped document and the reason.

    Raises:
      UserError: the vocabulary is smaller than the bytes plus the end-of-document token, or there is no text.
    """
    if vocab_size < LEAST_VOCAB:
        raise UserError(
            f"The vocabulary has {vocab_size} tokens; give at least {LEAST_VOCAB}, for the 256 bytes and {END}."
        )
    input_shards = input_shards_of(source, SourceOptions(text_field))
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
    texts = _texts(input_shards, max_bytes, update, unread)
    first = next(texts, None)
    if first is None:
        raise UserError(f"{source} holds no text to learn from; name a source with text.")
    tokenizer.train_from_iterator(itertools.chain([first], texts), trainer)
    write_text(path, tokenizer.to_str(pretty=True))
    return JsonTokenizer(path)


def _texts(
    input_shards: list[InputShard], max_bytes: int, update: ProgressCallback, unread: Callable[[str], None]
) -> Iterator[str]:
    """Yield the same share of text from each input shard."""
    total = sum(input_shard.size_bytes for input_shard in input_shards)
    share = min(1.0, max_bytes / max(total, 1))
    done = 0
    for input_shard in input_shards:
        size = 0
        for document in input_shard.documents():
            if not isinstance(document, Document):
                unread(f"{document.name}: {document.why}")
                continue
            if not isinstance(document.content, bytes):
                unread(f"{document.name}: it holds tokens instead of text")
                continue
            # The document that reaches an input shard's share is its last.
            yield document.content.decode(errors="ignore")
            size += len(document.content)
            if size >= share * input_shard.size_bytes or done + size >= max_bytes:
                break
        done += size
        update(min(1.0, done / max(1.0, share * total)), f"{done / 1e6:,.0f} MB read")
        if done >= max_bytes:
            return
