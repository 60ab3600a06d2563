"""Check the numeric arguments of functions of ``moejax``, as commands check their options."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from typing import Annotated, ParamSpec, TypeVar

import numpy as np

from moejax.config import convert
from moejax.ranges import NumberRange

P = ParamSpec("P")
R = TypeVar("R")


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Convert and check the arguments that are annotated with a type of ``moejax.ranges``, such as ``level: Level``.

    Raises:
      UserError: an argument is not a number or is not allowed. The message gives its name, its value and the allowed
        values.
    """
    signature = inspect.signature(function)
    parameters = signature.parameters

    @functools.cache
    def ranged() -> dict[str, object]:
        hints = typing.get_type_hints(function, include_extras=True)
        return {name: hints[name] for name in parameters if name in hints and _has_range(hints[name])}

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        given = signature.bind(*args, **kwargs)
        for name, hint in ranged().items():
            if name not in given.arguments:
                continue
            value = given.arguments[name]
            if parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
                given.arguments[name] = {key: convert(hint, _plain(one), key) for key, one in value.items()}
            else:
                given.arguments[name] = convert(hint, _plain(value), name)
        return function(*given.args, **given.kwargs)

    return call


def _has_range(hint: object) -> bool:
    if typing.get_origin(hint) is Annotated:
        return isinstance(typing.get_args(hint)[1], NumberRange)
    return any(map(_has_range, typing.get_args(hint)))


def _plain(value: object) -> object:
    is_scalar = isinstance(value, np.generic) or (hasattr(value, "ndim") and value.ndim == 0)  # type: ignore[attr-defined]
    return value.item() if is_scalar else value  # type: ignore[attr-defined]
