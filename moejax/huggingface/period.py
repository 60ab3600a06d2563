"""Patterns of layers, as short as they can be written."""

from __future__ import annotations


def period(letters: str) -> str:
    """The shortest pattern that, repeated, gives the letters."""
    sizes = range(1, len(letters) + 1)
    return next((letters[:n] for n in sizes if (letters[:n] * len(letters)).startswith(letters)), letters)
