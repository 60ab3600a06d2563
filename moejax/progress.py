"""Callbacks by which long work says how far it is."""

from __future__ import annotations

from collections.abc import Callable

ProgressCallback = Callable[[float, str], None]
"""``update(share, text)``: the share that is done, and what is happening."""

CountCallback = Callable[[int, int], None]
"""``progress(done, total)``."""

StageCallback = Callable[[str, int, int], None]
"""``progress(stage, done, total)``: what is in hand, and how much of all is done."""
