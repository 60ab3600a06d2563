"""What a training reads, and how it is cut into rows."""

from __future__ import annotations

from dataclasses import dataclass

from moejax.errors import UserError


@dataclass(frozen=True, kw_only=True)
class WeightedSource:
    """One part of a mixture."""

    name: str
    """Under which it is reported."""
    source: str
    """As ``DataConfig.source``."""
    weight: float
    """Its share of the rows of every batch, relative to the other weights."""


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """What is read, and how it is cut."""

    source: str = "python_stdlib"
    """A set that ``moejax data prepare`` wrote, or anything that it reads: a file, a folder, ``hf:NAME``, or a name of
    ``moejax.data.sources.NAMED``. What is not prepared yet is tokenised when the training starts."""
    mixture: tuple[WeightedSource, ...] = ()
    """Several sources at once, instead of ``source``."""
    tokenizer: str | None = None
    """``bytes``, a ``tokenizer.json``, or ``ids:VOCAB:END``. None: the one a prepared set was made with, else bytes."""
    text_field: str = "text"
    """Field of a record that holds its text."""
    packing: str = "windows"
    """A key of ``moejax.data.rows.PACKINGS``: windows of the running text, or whole documents with document masks."""
    sequence_length: int = 256
    validation_share: float = 0.05
    """Share of documents held out; a prepared set keeps its own."""
    validation_tokens: int = 65_536
    """Size of the fixed validation set, rounded to whole sequences."""
    order_seed: int | None = None
    """Seed of the order of rows. None: the training's own seed."""
    corrupt_share: float = 0.01
    """Largest share of records, and of bytes, that may be unreadable and left out."""

    def check(self) -> None:
        """Raise ``UserError`` with value, rule and remedy if a choice makes no sense."""
        if self.sequence_length < 2:
            raise UserError(f"data.sequence_length is {self.sequence_length}; give at least 2 tokens.")
        if not 0 < self.validation_share < 1:
            raise UserError(f"data.validation_share is {self.validation_share}; it must lie between 0 and 1.")
        if not 0 <= self.corrupt_share < 1:
            raise UserError(f"data.corrupt_share is {self.corrupt_share}; it must be at least 0 and less than 1.")
        if self.validation_tokens < self.sequence_length:
            raise UserError(
                f"data.validation_tokens is {self.validation_tokens}, less than one sequence of "
                f"{self.sequence_length}; raise it."
            )
        names = [part.name for part in self.mixture]
        if len(set(names)) < len(names) or not all(names):
            raise UserError(f"data.mixture has the names {names}; give each part a name of its own.")
        for part in self.mixture:
            if not 0 < part.weight < float("inf"):
                raise UserError(f"data.mixture: the weight of {part.name} is {part.weight}; it must be above 0.")
