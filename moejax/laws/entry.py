"""The entry of one law: each law's file ends with its entries, and ``moejax.laws`` collects them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from moejax.laws.claim import Claim
from moejax.laws.decision import DecisionRule
from moejax.laws.published import Published


@dataclass(frozen=True, kw_only=True)
class LawEntry:
    """A law with its names, its published constants, what it decides and what is claimed of it."""

    name: str
    law: type
    """The class, made by ``moejax.laws.law.law``."""
    aliases: tuple[str, ...] = ()
    """Other names, most often the paper's first author."""
    published: Mapping[str, Published] = field(default_factory=dict)
    """Published constants by the name of the set; the first is the default."""
    decides: tuple[DecisionRule, ...] = ()
    """Decisions that ``moejax fit --decide`` offers."""
    claims: Mapping[str, Callable[[], Claim]] = field(default_factory=dict)
    """Claims with published constants, by the function that makes them; ``moejax.laws.claims`` checks each."""
    not_searched: str = ""
    """Why the fitting engine does not search for the coefficients, where there is another way to them."""
