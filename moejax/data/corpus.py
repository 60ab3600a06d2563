"""Open the training data of a run: one prepared set, or several with weights."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import grain
import numpy as np

from moejax.config import dump, unknown
from moejax.data.batches import DecayWeights, batches
from moejax.data.config import SUMMARY, DataConfig, WeightedSource
from moejax.data.mixtures import rows_of_each
from moejax.data.prepare import prepare
from moejax.data.prepared import MANIFEST, PreparedSet, open_stored_set, summed
from moejax.data.rows import PACKINGS, EvenlySpread, Row, Rows, Validation, ValidationPart, chosen, counted, shares
from moejax.data.sources import NAMED, check_source, is_there, path_of
from moejax.data.tokenizer import Tokenizer, open_tokenizer
from moejax.errors import UserError
from moejax.storage import is_remote
from moejax.stored import Damaged, read_json, write_json
from moejax.wording import some

STORE_THREADS = 16
"""Number of threads that read from an object store. They mostly wait for the store, so the number of cores does not
matter.
"""


@dataclass(frozen=True)
class CorpusSplit:
    """Sizes of one split, over all sets."""

    documents: int
    bytes: int
    tokens: int


@dataclass(frozen=True)
class Summary:
    """A description of a corpus, stored with the results."""

    source: str
    sha256: str
    """SHA-256 of the text; with several sets, SHA-256 of their texts and weights."""
    tokenizer: str
    """SHA-256 of everything that determines the tokens."""
    vocab_size: int
    unigram_entropy: float
    """Entropy of the token frequencies, in nats per token: the loss of a unigram model. The frequencies of
    several sets are averaged by weight.
    """
    train: CorpusSplit
    validation: CorpusSplit
    corrupt_records: int
    """Number of skipped records."""
    corrupt: tuple[str, ...]
    """The first skipped records, each with the reason."""


@dataclass(frozen=True)
class PartRead:
    """Tokens and epochs of one set that a run reads."""

    name: str
    tokens: float
    """Number of different training tokens."""
    epochs: float
    """Number of passes over these tokens."""


def unique_tokens(parts: Sequence[PartRead]) -> int:
    """Return the number of different training tokens. If some sets were repeated while others were not read completely,
    count only the tokens that were read.
    """
    repeated = any(part.epochs > 1 for part in parts)
    return round(math.fsum(part.tokens * (min(part.epochs, 1.0) if repeated else 1.0) for part in parts))


MANY_EPOCHS = 4
"""Number of passes over a text above which a message warns about repetition."""


def repetition_text(read: Sequence[PartRead], above: float = 1.0) -> str:
    """Return a message about the part that the longest budget reads most often; empty if it reads no part more than
    ``above`` times.
    """
    most = max(read, key=lambda part: part.epochs, default=None)
    if most is None or most.epochs <= above:
        return ""
    advice = f" More than about {MANY_EPOCHS} repetitions add little (Muennighoff et al. 2023)."
    return (
        f"The longest budget reads {most.name or 'the text'} {most.epochs:,.3g} times ({most.tokens:,.0f} different "
        f"tokens).{advice if most.epochs > MANY_EPOCHS else ''}"
    )


@dataclass(frozen=True, eq=False)
class Corpus:
    """A corpus opened for training."""

    config: DataConfig
    parts: tuple[WeightedSource, ...]
    sets: tuple[PreparedSet, ...]

    @property
    def weights(self) -> list[float]:
        """Return the weights of the sets."""
        return [part.weight for part in self.parts]

    def decay_weights(self, first_row: int | None) -> DecayWeights | None:
        """Return the weights of the sets during the learning-rate decay, which begins at ``first_row``. None if the
        weights do not change or ``first_row`` is None.
        """
        decay = self.config.decay_mixture
        if first_row is None or not decay:
            return None
        return DecayWeights([decay.get(part.name, 0.0) for part in self.parts], first_row)

    def summary(self) -> Summary:
        """Return the description of the corpus."""
        manifests = [prepared.manifest for prepared in self.sets]
        weights = np.array(self.weights) / sum(self.weights)
        frequency = sum(w * prepared.frequencies for w, prepared in zip(weights, self.sets, strict=True))
        frequency = np.asarray(frequency)[np.asarray(frequency) > 0]
        alone = len(manifests) == 1
        mixed = "".join(f"{m.sha256} {w}\n" for m, w in zip(manifests, weights.tolist(), strict=True))
        return Summary(
            source=manifests[0].source if alone else ", ".join(part.name for part in self.parts),
            sha256=manifests[0].sha256 if alone else hashlib.sha256(mixed.encode()).hexdigest(),
            tokenizer=manifests[0].tokenizer.sha256,
            vocab_size=manifests[0].tokenizer.vocab_size,
            unigram_entropy=-math.fsum(frequency * np.log(frequency)),
            train=self._split_size("train"),
            validation=self._split_size("validation"),
            corrupt_records=sum(manifest.corrupt.records for manifest in manifests),
            corrupt=tuple(record for manifest in manifests for record in manifest.corrupt.named),
        )

    def batches(
        self,
        *,
        batch: int,
        seed: int,
        first_row: int = 0,
        start: int = 0,
        mine: Sequence[int] | None = None,
        threads: int | None = None,
        decay_from: int | None = None,
    ) -> grain.DatasetIterator:
        """Return an endless iterator over training batches, or over the rows that one process reads; see
        ``moejax.data.batches``. With ``decay_from``, return the batches of a branch whose learning rate decays from
        that row on.
        """
        order = seed if self.config.order_seed is None else self.config.order_seed
        return batches(
            self._training_rows,
            self.weights,
            batch=batch,
            seed=order,
            first_row=first_row,
            start=start,
            mine=mine,
            threads=self.reader_threads if threads is None else threads,
            decay=self.decay_weights(decay_from),
        )

    @property
    def reader_threads(self) -> int:
        """Return the number of threads that read batches: one for local files, many for an object store."""
        return STORE_THREADS if any(prepared.stored for prepared in self.sets) else 1

    def read(self, rows: int, decay_from: int) -> list[PartRead]:
        """Return the tokens and epochs of each set that a branch has read after ``rows`` rows. These include the rows
        of the trunk before ``decay_from``.
        """
        first, decay = self.weights, self.decay_weights(decay_from)
        drawn = rows_of_each(first, rows)
        if decay:
            drawn = rows_of_each(first, decay_from) - rows_of_each(decay.weights, decay_from)
            drawn += rows_of_each(decay.weights, rows)
        every = zip(self.parts, self.sets, self._training_rows, drawn.tolist(), strict=True)
        unique, total = self.config.unique_tokens, sum(first)
        return [
            PartRead(
                name=part.name,
                tokens=unique * part.weight / total if unique and part.weight else prepared.manifest.train.tokens,
                epochs=count / len(own),
            )
            for part, prepared, own, count in every
            if count
        ]

    def validation(self) -> Validation:
        """Return the fixed validation rows, taken from each set in proportion to its weight.

        Raises:
          UserError: the held-out text of a set is shorter than one row.
        """
        return self._validation

    @functools.cached_property
    def _validation(self) -> Validation:
        length = self.config.sequence_length
        cut = _packing(self.config)
        # A set of weight 0 has as many rows as an average set, but they are not part of the loss.
        count = self.config.validation_tokens // length
        counts = [
            of_weight if part.weight else max(1, count // len(self.parts))
            for part, of_weight in zip(self.parts, shares(self.weights, count), strict=True)
        ]
        parts = [
            chosen(cut(prepared.split("validation"), length), count)
            for prepared, count in zip(self.sets, counts, strict=True)
        ]
        return joined(
            [
                (source.name, prepared, rows, source.weight > 0)
                for source, prepared, rows in zip(self.parts, self.sets, parts, strict=True)
            ]
        )

    @functools.cached_property
    def _training_rows(self) -> list[Rows]:
        """Return the training rows of each set; packing takes about a second per million documents."""
        cut, length = _packing(self.config), self.config.sequence_length
        rows = [cut(prepared.split("train"), length) for prepared in self.sets]
        if not self.config.unique_tokens:
            return rows
        counts = shares(self.weights, self.config.unique_tokens // length)
        for part, every, count in zip(self.parts, rows, counts, strict=True):
            if part.weight and count > len(every):
                raise UserError(
                    f"data.unique_tokens is {self.config.unique_tokens:,}, which needs {count:,} rows of "
                    f"{part.name}, but its training text has only {len(every):,}; lower data.unique_tokens, or give "
                    "more text."
                )
        return [
            EvenlySpread(every, count) if part.weight else every
            for part, every, count in zip(self.parts, rows, counts, strict=True)
        ]

    def _split_size(self, name: str) -> CorpusSplit:
        return summed(CorpusSplit, [getattr(prepared.manifest, name) for prepared in self.sets])


def joined(parts: Sequence[tuple[str, PreparedSet, Row, bool]]) -> Validation:
    """Join rows of several sets for an evaluation: each set's name, the set, its rows, and whether they are part of the
    mean loss.
    """
    masks = [counted(rows) for _, _, rows, _ in parts]
    sizes = [
        ValidationPart(
            name=name, targets=int(mask.sum()), bytes=prepared.bytes_of(rows["tokens"][:, 1:][mask]), in_loss=in_loss
        )
        for (name, prepared, rows, in_loss), mask in zip(parts, masks, strict=True)
    ]
    return Validation(
        rows={name: np.concatenate([rows[name] for _, _, rows, _ in parts]) for name in parts[0][2]},
        source=np.repeat(np.arange(len(parts)), [len(mask) for mask in masks]),
        parts=tuple(sizes),
    )


def open_corpus(config: DataConfig, folder: Path) -> Corpus:
    """Open the data of a config. If a source is not prepared, tokenize it into ``folder`` first. Write the summary of
    the data to ``folder``.

    Raises:
      UserError: a source does not exist, was prepared with another tokenizer, or cannot be prepared.
    """
    check_sources(config, folder)
    folder.mkdir(parents=True, exist_ok=True)
    placed = _placed(config, folder)
    parts = tuple(part for part, _ in placed)
    sets = tuple(_open(config, part, place) for part, place in placed)
    first = sets[0].manifest.tokenizer
    for part, prepared in zip(parts, sets, strict=True):
        _check_tokenizer(config, part, prepared, first.sha256, parts[0].source)
    corpus = Corpus(config, parts, sets)
    summary = dump(corpus.summary())
    try:
        known = dump(read_summary(folder))
    # A damaged summary is recomputed from the sets.
    except Damaged:
        known = None
    if known != summary:
        write_json(folder / SUMMARY, summary)
    return corpus


def check_sources(config: DataConfig, folder: Path) -> None:
    """Check the sources without a prepared set in ``folder``, before reading any text.

    Raises:
      UserError: such a source is missing or has no readable files.
    """
    _packing(config)
    unread = _unread(config, folder)
    absent = absent_parts(config, folder)
    if absent and config.named_mixture:
        raise UserError(
            f"data.named_mixture {config.named_mixture} has {len(config.parts)} parts, and "
            f"{config.source or 'no folder'} lacks {some([part.name for part in absent], most=10)}; put a prepared "
            "set, folder or file with each of these names into that folder, or set data.source to another folder."
        )
    if absent and config.parts:
        raise UserError(
            f"data.mixture: {some([f'{part.source} ({part.name})' for part in absent])} "
            f"{'is' if len(absent) == 1 else 'are'} missing; give every part a file or folder, hf:NAME or "
            f"{' or '.join(NAMED)}."
        )
    for part in unread:
        if not (path_of(part.source) / MANIFEST).is_file():
            check_source(part.source)


def absent_parts(config: DataConfig, folder: Path) -> list[WeightedSource]:
    """Return the parts that are not on this machine, neither as a source nor as a prepared set in ``folder``."""
    return [part for part in _unread(config, folder) if not is_there(part.source)]


def _unread(config: DataConfig, folder: Path) -> list[WeightedSource]:
    return [part for part, place in _placed(config, folder) if not (place / MANIFEST).is_file()]


def read_of_prepared(config: DataConfig, folder: Path, tokens: int) -> list[PartRead]:
    """Return the tokens and epochs that a budget of ``tokens`` reads of each prepared set on this machine. Other parts
    are left out. The epochs are estimated without packing documents, because that takes time and writes files.
    """
    placed = _placed(config, folder)
    total = sum(part.weight for part, _ in placed)
    reads = []
    for part, place in placed:
        prepared = [path for path in (place, path_of(part.source)) if (path / MANIFEST).is_file()]
        if prepared and part.weight:
            share = part.weight / total
            if unique := config.unique_tokens * share or PreparedSet(prepared[0]).manifest.train.tokens:
                reads.append(PartRead(part.name, unique, tokens * share / unique))
    return reads


def _placed(config: DataConfig, folder: Path) -> list[tuple[WeightedSource, Path]]:
    """Return the parts, each with the folder for its prepared set. A source that is prepared does not use it."""
    if not config.parts:
        return [(WeightedSource(name=config.source, source=config.source, weight=1.0), folder)]
    return [(part, folder / part.name) for part in config.parts]


def tokenizer_of(config: DataConfig, folder: Path) -> Tokenizer | None:
    """Return the tokenizer of a config's first source, prepared or not; None if that source is in an object store and
    not prepared here.
    """
    part, place = _placed(config, folder)[0]
    for prepared in (place, path_of(part.source)):
        if (prepared / MANIFEST).is_file():
            return PreparedSet(prepared).tokenizer
    return None if is_remote(part.source) else open_tokenizer(config.tokenizer or "bytes")


def vocab_size_to_prepare(config: DataConfig, folder: Path) -> int | None:
    """Return the vocabulary size of the tokenizer with which the first source will be prepared; None if that source is
    already prepared or in an object store.
    """
    part, place = _placed(config, folder)[0]
    if is_remote(part.source) or any((path / MANIFEST).is_file() for path in (place, path_of(part.source))):
        return None
    return open_tokenizer(config.tokenizer or "bytes").vocab_size


def read_summary(folder: Path) -> Summary:
    """Read the summary that ``open_corpus`` wrote into a folder."""
    return read_json(folder / SUMMARY, Summary, remedy="restore a copy, or resume the study, which writes it again")


def _open(config: DataConfig, part: WeightedSource, folder: Path) -> PreparedSet:
    if is_remote(part.source):
        return open_stored_set(part.source.rstrip("/"), folder)
    given = path_of(part.source)
    if (given / MANIFEST).is_file():
        return PreparedSet(given)
    return prepare(
        part.source,
        folder,
        tokenizer=config.tokenizer or "bytes",
        validation_share=config.validation_share,
        corrupt_share=config.corrupt_share,
        text_field=config.text_field,
        patience_seconds=_PATIENCE_SECONDS,
    )


def _check_tokenizer(config: DataConfig, part: WeightedSource, prepared: PreparedSet, first: str, other: str) -> None:
    made_with = prepared.manifest.tokenizer
    if config.tokenizer is not None and open_tokenizer(config.tokenizer).sha256 != made_with.sha256:
        raise UserError(
            f"data.tokenizer is {config.tokenizer}, but {part.source} was prepared with the tokenizer "
            f"{made_with.name} ({made_with.vocab_size} tokens). Remove data.tokenizer, or prepare the set again "
            f"with {config.tokenizer}."
        )
    if made_with.sha256 != first:
        raise UserError(
            f"{part.source} and {other} were prepared with different tokenizers; prepare one of them again with the "
            "tokenizer of the other."
        )


_PATIENCE_SECONDS = 3600.0
"""Time for which a run's other processes wait while the first process prepares the data."""


def _packing(config: DataConfig):
    if config.packing not in PACKINGS:
        raise UserError(unknown(f"data.packing {config.packing!r}", config.packing, list(PACKINGS)))
    return PACKINGS[config.packing]
