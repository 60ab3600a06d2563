"""Define the entry of a law. Each law's file ends with its entries, and ``moejax.laws`` collects them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from moejax.laws.claim import Claim
from moejax.laws.decision import DecisionRule
from moejax.laws.published import Published


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
    """Claims with published constants, by the function that makes them; ``moejax.laws.claims`` collects them."""
    not_searched: str = ""
    """Reason why the fitting engine does not search for the coefficients, if they are determined otherwise."""
