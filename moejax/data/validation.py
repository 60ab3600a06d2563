"""Select the fixed rows on which a model is evaluated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from moejax.data.rows import Row, Rows
from moejax.errors import UserError


@dataclass(frozen=True)
class ValidationPart:
    """Sizes of the validation rows of one set."""

    name: str
    targets: int
    """Number of targets that count."""
    bytes: float | None
    """Bytes of text of those targets; None if unknown."""
    in_loss: bool = True
    """True if the rows are part of the loss; sets of weight 0 are evaluated separately."""


@dataclass(frozen=True, eq=False)
class Validation:
    """Held-out rows, the same for every batch size, mesh and step."""

    rows: Row
    """Arrays (rows, length + 1)."""
    source: np.ndarray
    """Int (rows): index of the set of each row."""
    parts: tuple[ValidationPart, ...]
    """Parts, one for each set."""

    @property
    def tokens(self) -> int:
        """Return the number of tokens in the rows of the loss, including padding."""
        width = self.rows["tokens"].shape[1]
        return int(self.in_loss[self.source].sum()) * (width - 1)

    @property
    def in_loss(self) -> np.ndarray:
        """Return Bool (sets): whether each set is part of the loss."""
        return np.array([part.in_loss for part in self.parts])

    @property
    def targets(self) -> int:
        """Return the number of targets that count in the loss."""
        return sum(part.targets for part in self.parts if part.in_loss)

    @property
    def bytes(self) -> float | None:
        """Return the bytes of text of those targets; None if unknown for a set."""
        parts = [part for part in self.parts if part.in_loss]
        known = [part.bytes for part in parts if part.bytes is not None]
        return sum(known) if len(known) == len(parts) else None


def chosen(rows: Rows, count: int) -> Row:
    """Return ``count`` evenly spread rows, or all rows if there are fewer.

    Raises:
      UserError: there are no rows.
    """
    if not len(rows):
        raise UserError("The validation text is shorter than one row; lower sequence_length or give more text.")
    numbers = np.unique(np.linspace(0, len(rows) - 1, min(count, len(rows))).astype(int))
    picked = [rows[int(number)] for number in numbers]
    return {name: np.stack([row[name] for row in picked]) for name in picked[0]}


def shares(weights: Sequence[float], count: int) -> list[int]:
    """Return the number of rows of each set by weight, at least one each."""
    return [max(1, round(count * weight / sum(weights))) for weight in weights]
