"""Collect the checkable closed forms of the library that have published constants."""

from __future__ import annotations

from collections.abc import Callable

from moejax.laws import ENTRIES
from moejax.laws.claim import Claim

CLAIMS: dict[str, Callable[[], Claim]] = {
    f"{entry.law.__module__.rpartition('.')[2]}.{name}": make
    for entry in ENTRIES
    for name, make in entry.claims.items()
}
"""Claims with published constants by file and function; closed forms without constants are not included."""
