"""Packages that can be called: ``moejax.fit(…)`` beside ``moejax.fit.bootstrap``, as the one name means both."""

from __future__ import annotations

import functools
import importlib
import sys
from types import ModuleType
from typing import Any


def make_callable(package: str, function: str) -> None:
    """Let a call of ``package`` be one of ``function``, ``module.name``, which is imported when it is needed."""

    class Callable(ModuleType):
        def __call__(self, *given: Any, **options: Any) -> Any:
            return self.__wrapped__(*given, **options)

        @functools.cached_property
        def __wrapped__(self) -> Any:
            # Where inspect.signature, and help in a notebook, look for a signature.
            module, _, name = function.rpartition(".")
            return getattr(importlib.import_module(module), name)

    sys.modules[package].__class__ = Callable
