"""Every closed form of the library with published constants, ready to be checked."""

from __future__ import annotations

from collections.abc import Callable

from moejax.laws import ENTRIES
from moejax.laws.claim import Claim

CLAIMS: dict[str, Callable[[], Claim]] = {
    f"{entry.law.__module__.rpartition('.')[2]}.{name}": make
    for entry in ENTRIES
    for name, make in entry.claims.items()
}
"""Claims with published constants by file and function; forms without any are claims too, but not here."""
