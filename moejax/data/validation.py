"""The fixed rows on which a training is measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from moejax.data.rows import Row, Rows
from moejax.errors import UserError


@dataclass(frozen=True)
class ValidationPart:
    """What the validation rows of one set come to."""

    name: str
    targets: int
    """Targets that count."""
    bytes: float | None
    """Bytes of text that those targets stand for; None if the text is not known."""
    in_loss: bool = True
    """Whether they are a part of the loss; those of a set of weight 0 are measured by themselves."""


@dataclass(frozen=True, eq=False)
class Validation:
    """Held-out rows, the same for every batch size, mesh and step."""

    rows: Row
    """Arrays (rows, length + 1)."""
    source: np.ndarray
    """Int (rows): number of the set that each row comes from."""
    parts: tuple[ValidationPart, ...]
    """The sets."""

    @property
    def tokens(self) -> int:
        """Tokens that the rows of the loss may hold."""
        width = self.rows["tokens"].shape[1]
        return int(self.in_loss[self.source].sum()) * (width - 1)

    @property
    def in_loss(self) -> np.ndarray:
        """Bool (sets): which sets are a part of the loss."""
        return np.array([part.in_loss for part in self.parts])

    @property
    def targets(self) -> int:
        """Targets that count in the loss."""
        return sum(part.targets for part in self.parts if part.in_loss)

    @property
    def bytes(self) -> float | None:
        """Bytes of text that those targets stand for; None if that of a set is not known."""
        parts = [part for part in self.parts if part.in_loss]
        known = [part.bytes for part in parts if part.bytes is not None]
        return sum(known) if len(known) == len(parts) else None


def chosen(rows: Rows, count: int) -> Row:
    """``count`` rows spread evenly; fewer if there are not so many.

    Raises:
      UserError: there is no row at all.
    """
    if not len(rows):
        raise UserError("The validation text is shorter than one row; lower sequence_length or give more text.")
    numbers = np.unique(np.linspace(0, len(rows) - 1, min(count, len(rows))).astype(int))
    picked = [rows[int(number)] for number in numbers]
    return {name: np.stack([row[name] for row in picked]) for name in picked[0]}


def shares(weights: Sequence[float], count: int) -> list[int]:
    """Rows per set, at least one each, by weight."""
    return [max(1, round(count * weight / sum(weights))) for weight in weights]
