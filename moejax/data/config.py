"""Configure the training data and how it is cut into rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Annotated, ClassVar

from moejax.config import Rule, check_fields, check_name, unknown
from moejax.data.mixtures import MIXTURES, pattern
from moejax.errors import UserError
from moejax.ranges import INT32, BelowOne, NumberRange, Positive, Scale, Seed, Tokens, one_of, whole

SUMMARY = "corpus.json"
"""Name of the file in the data folder that describes the training data."""


@dataclass(frozen=True, kw_only=True)
class WeightedSource:
    """A part of a mixture."""

    name: str
    """Name of the part in reports, and of its folder in the data folder."""
    source: str
    """Source of the part, in the format of ``DataConfig.source``."""
    weight: Scale
    """Relative weight of the part in the rows of every batch. A part of weight 0 is evaluated but not trained on,
    unless ``DataConfig.decay_mixture`` includes it.
    """


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The training data and how it is cut into rows."""

    source: str = "python_stdlib"
    """A set prepared by ``moejax data prepare``, or any source that it reads: a file, a folder, ``hf:NAME``, or a key
    of ``moejax.data.sources.NAMED``. A source that is not prepared is tokenized when training starts."""
    mixture: tuple[WeightedSource, ...] = ()
    """Several weighted sources, used instead of ``source``."""
    named_mixture: Annotated[str, one_of(("", *MIXTURES))] = ""
    """Name of a mixture in ``moejax.data.mixtures``, which defines parts and weights. The folder ``source`` contains a
    prepared set, folder or file with each part's name. Empty: no named mixture.
    """
    decay_mixture: dict[str, Positive] = field(default_factory=dict, hash=False)
    """Weights, keyed by part name, that branches use during learning-rate decay, for example to read more high-quality
    text. Parts without a weight here are not read during the decay. Empty: the weights of the trunk.
    """
    unique_tokens: Tokens = 0
    """Number of different training tokens, which are repeated as often as needed. They are taken from each set in
    proportion to its weight, spread evenly over its text; a set of weight 0 is used completely. 0: the whole text.
    """
    tokenizer: str | None = None
    """``bytes``, a ``tokenizer.json``, or ``ids:VOCAB:END``. None: the tokenizer of the prepared set, else bytes."""
    text_field: str = "text"
    """Field of a record that contains its text."""
    packing: str = "windows"
    """A key of ``moejax.data.rows.PACKINGS``: windows of the running text, or whole documents with document masks."""
    sequence_length: Annotated[int, whole(2, INT32)] = 256
    validation_share: Annotated[float, NumberRange(0, 1, without_low=True, without_high=True)] = 0.05
    """Share of held-out documents; a prepared set keeps the share that it was prepared with."""
    validation_tokens: Tokens = 65_536
    """Number of tokens of the fixed validation set, rounded to whole sequences."""
    order_seed: Seed | None = None
    """Seed of the row order. None: the seed of the training run."""
    corrupt_share: BelowOne = 0.01
    """Maximum share of unreadable records, by number and by bytes. Unreadable records are skipped."""

    @property
    def parts(self) -> tuple[WeightedSource, ...]:
        """Return the parts of ``mixture`` or ``named_mixture``; none for a single source."""
        if not self.named_mixture:
            return self.mixture
        return tuple(
            WeightedSource(name=name, source=str(PurePath(self.source, name)), weight=weight)
            for name, weight in MIXTURES[self.named_mixture].weights.items()
        )

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            lambda data: data.validation_tokens >= data.sequence_length,
            "data.validation_tokens is {self.validation_tokens}, less than one sequence of {self.sequence_length}; "
            "raise it.",
        ),
        Rule(
            lambda data: not (data.named_mixture and data.mixture),
            "data.mixture and data.named_mixture ({self.named_mixture}) are both given; give one of them.",
        ),
        Rule(
            lambda data: not 0 < data.unique_tokens < data.sequence_length,
            "data.unique_tokens is {self.unique_tokens}, less than one sequence of {self.sequence_length}; raise it, "
            "or give 0 for all tokens.",
        ),
        Rule(
            lambda data: len({part.name for part in data.mixture}) == len(data.mixture),
            "data.mixture has two parts with the same name; give each part a different name.",
        ),
        Rule(
            lambda data: all(part.name != SUMMARY for part in data.mixture),
            f"A part of data.mixture is named {SUMMARY}, like a file in the data folder; give the part another name.",
        ),
        Rule(
            lambda data: not data.mixture or any(part.weight for part in data.mixture),
            "data.mixture has only weights of 0; give at least one part a weight above 0.",
        ),
        Rule(
            lambda data: data.parts or not data.decay_mixture,
            "data.decay_mixture is {self.decay_mixture}, but data.mixture has no parts; list all parts in "
            "data.mixture, with weight 0 for parts that only the decay reads.",
        ),
    )

    def check(self) -> None:
        """Raise ``UserError``, with value, rule and remedy, if a setting is invalid."""
        check_fields(self, "data")
        for number, part in enumerate(self.mixture):
            check_name(part.name, f"data.mixture[{number}].name")
        names = [part.name for part in self.parts]
        for name in self.decay_mixture:
            if name not in names:
                raise UserError(unknown(f"data.decay_mixture: part {name!r}", name, names))
        decay = [self.decay_mixture.get(name, 0.0) for name in names]
        for weights in ([part.weight for part in self.parts], decay):
            if any(weights):
                pattern(weights)
