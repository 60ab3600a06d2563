"""A group of options that only together are fields of an Architecture, and the other way round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from moejax.architecture import Architecture
from moejax.huggingface.options import Options


class Aspect(NamedTuple):
    """Two functions that undo each other."""

    read: Callable[[Options], dict[str, Any]]
    """Fields of an Architecture from the options."""
    write: Callable[[Architecture], dict[str, Any]]
    """Options from an architecture. What they cannot say shows when they are read back."""
