"""Define the entry of a law: its names, published constants, decisions and claims. Each law's file ends with its
entries, and ``moejax.laws`` collects them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from moejax.laws.claim import Claim
from moejax.laws.decision import DecisionRule

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


@dataclass(frozen=True, kw_only=True)
class LawEntry:
    """A law with its names, published constants, decisions and claims."""

    name: str
    law: type
    """Class made by ``moejax.laws.law.law``."""
    aliases: tuple[str, ...] = ()
    """Aliases, usually the paper's first author."""
    published: Mapping[str, Published] = field(default_factory=dict)
    """Published constants by the name of the set; the first is the default."""
    decides: tuple[DecisionRule, ...] = ()
    """Decisions of ``moejax fit --decide``."""
    claims: Mapping[str, Callable[[], Claim]] = field(default_factory=dict)
    """Claims with published constants, by the function that makes them; ``moejax.laws`` collects them."""
    not_searched: str = ""
    """Reason why the fitting engine does not search for the coefficients, if they are determined otherwise."""
