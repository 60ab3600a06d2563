"""A published model: an architecture, and the sizes that its authors state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from moejax.architecture import Architecture
from moejax.laws.accounting import Params, params
from moejax.ranges import Number


def everything(counts: Params) -> tuple[Number, Number]:
    """Total and active parameters as ``accounting`` counts them."""
    return counts.total, counts.active


def unembedding_active(counts: Params) -> tuple[Number, Number]:
    """The embedding, a look-up, is not active; the unembedding is."""
    return counts.total, counts.active - counts.embedding


def no_vocabulary(counts: Params) -> tuple[Number, Number]:
    """Embedding and unembedding do not count."""
    return counts.total - counts.vocabulary, counts.active - counts.vocabulary


@dataclass(frozen=True, kw_only=True)
class PublishedModel:
    """A model, and what its authors say of its size."""

    architecture: Architecture
    params_total: float
    """Total parameters as stated."""
    params_active: float
    """Active parameters as stated."""
    source: str
    counted: Callable[[Params], tuple[Number, Number]] = everything
    """Which parameters the authors' totals count."""
    note: str = ""
    """Parts that the architecture leaves out, and the reason for stated figures that differ by more than 1 %."""

    def computed(self) -> tuple[Number, Number]:
        """Total and active parameters of the architecture, counted as the authors do."""
        return self.counted(params(self.architecture))
