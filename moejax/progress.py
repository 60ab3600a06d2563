"""Define callbacks that report the progress of long work."""

from __future__ import annotations

from collections.abc import Callable

ProgressCallback = Callable[[float, str], None]
"""``update(share, text)``: the finished share, and the current activity."""

CountCallback = Callable[[int, int], None]
"""``progress(done, total)``."""

StageCallback = Callable[[str, int, int], None]
"""``progress(stage, done, total)``: the current stage, and the finished part of the total."""
