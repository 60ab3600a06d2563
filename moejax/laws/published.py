"""Define a published set of constants: the law, its source, how far it was checked, and its fitted ranges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PROVENANCE = {
    "verified": "recomputed from the authors' data or configuration, or held to their own printed results",
    "read": "read in the document itself, not recomputed",
    "secondary": "known from other documents that quote it",
}
"""Kinds of provenance of a set of constants."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """Constants of one law from one document."""

    law: Any
    """Law with these constants."""
    source: str
    """Document, equation or table."""
    provenance: str
    """A key of ``PROVENANCE``."""
    data: str = ""
    """Data on which the loss was measured, as far as stated."""
    fitted: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    """Smallest and largest value of each variable in the fitted data, by its name in ``Design``."""
    dense: bool = False
    """True if the constants were fitted to dense models only and do not model the gain of experts."""
    remark: str = ""
    """Remark to read before trusting a number."""
