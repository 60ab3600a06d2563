"""Define a published model: an architecture and the sizes that its authors state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from moejax.architecture import Architecture
from moejax.laws.accounting import Params, params
from moejax.ranges import Number


def everything(counts: Params) -> tuple[Number, Number]:
    """Return total and active parameters as counted by ``accounting``."""
    return counts.total, counts.active


def unembedding_active(counts: Params) -> tuple[Number, Number]:
    """Count the unembedding as active, but not the embedding, which is a look-up."""
    return counts.total, counts.active - counts.embedding


def no_vocabulary(counts: Params) -> tuple[Number, Number]:
    """Count neither embedding nor unembedding."""
    return counts.total - counts.vocabulary, counts.active - counts.vocabulary


@dataclass(frozen=True, kw_only=True)
class PublishedModel:
    """A model with the sizes that its authors state."""

    architecture: Architecture
    params_total: float
    """Stated total parameters."""
    params_active: float
    """Stated active parameters."""
    source: str
    counted: Callable[[Params], tuple[Number, Number]] = everything
    """Convention of the authors' counts."""
    note: str = ""
    """Parts that the architecture leaves out, and the reason for stated counts that differ by more than 1 %."""

    def computed(self) -> tuple[Number, Number]:
        """Return total and active parameters of the architecture by the authors' convention."""
        return self.counted(params(self.architecture))
