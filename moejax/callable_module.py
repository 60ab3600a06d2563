"""Make packages callable: ``moejax.fit`` is both a function and a package with modules such as ``fit_result``."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from types import ModuleType
from typing import Any


def make_callable(package: str, function: str) -> None:
    """Make ``package`` callable; calls run ``function``, given as ``module.name`` and imported on first use."""

    class Callable(ModuleType):
        def __call__(self, *given: Any, **options: Any) -> Any:
            return self.__wrapped__(*given, **options)

        @functools.cached_property
        def __wrapped__(self) -> Any:
            # inspect.signature and notebook help read the signature from this attribute.
            module, _, name = function.rpartition(".")
            return getattr(importlib.import_module(module), name)

        @property
        def __doc__(self) -> str:  # type: ignore[override]
            # help() describes a module by this text alone.
            about = f"{package.rpartition('.')[2]}{inspect.signature(self.__wrapped__)}"
            return f"{about}\n\n{inspect.getdoc(self.__wrapped__)}\n\n{vars(self)['__doc__']}"

    sys.modules[package].__class__ = Callable
