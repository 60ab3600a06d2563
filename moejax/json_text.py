"""Write JSON with finite numbers, since the format has neither NaN nor Infinity, and parse JSON of any origin."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from moejax.errors import UserError

MOST_DEPTH = 100
"""Maximum depth of nesting, since later code may recurse once per level."""


def parse(text: str, **options: Any) -> Any:
    """Parse JSON of any origin; ``options`` are those of ``json.loads``.

    Raises:
      ValueError: it is not JSON, or (as ``UserError``) nested more than ``MOST_DEPTH`` deep.
    """
    try:
        value = json.loads(text, **options)
    except RecursionError:
        value = None
    else:
        if sum(map(text.count, "[{")) <= MOST_DEPTH or not is_deep(value):
            return value
    raise UserError(f"it is nested more than {MOST_DEPTH} deep")


def is_deep(value: Any, most: int = MOST_DEPTH) -> bool:
    """Return whether lists and mappings are nested more than ``most`` deep."""
    if not isinstance(value, list | tuple | Mapping):
        return False
    return not most or any(is_deep(one, most - 1) for one in (value.values() if isinstance(value, Mapping) else value))


def json_text(value: Any, *, indent: int | None = 2, **options: Any) -> str:
    """Return a value as JSON without a final line break; ``options`` are those of ``json.dumps``. NaN becomes null.

    Raises:
      UserError: a number is infinite; the message names its path.
    """
    known = _without_nan(value)
    for place, number in _infinite(known):
        raise UserError(
            f"{place or 'The result'} would be {number}, which JSON cannot hold: what was given lies outside what can "
            f"be computed. Give sizes and counts that a model could have."
        )
    return json.dumps(known, indent=indent, allow_nan=False, **options)


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nan(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(inner) for inner in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def _infinite(value: Any, place: str = "") -> Iterator[tuple[str, float]]:
    """Yield infinite numbers with their paths: ``predictions[0].values.loss``."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _infinite(inner, f"{place}.{key}" if place else str(key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _infinite(inner, f"{place}[{number}]")
    elif isinstance(value, float) and math.isinf(value):
        yield place, value


def finite(value: Any) -> Any:
    """Return data that JSON can hold: dataclasses as dicts, NumPy scalars as Python's, non-finite numbers as None."""
    if dataclasses.is_dataclass(type(value)):
        return {field.name: finite(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    # This avoids an import of NumPy for data without its numbers.
    value = value.item() if type(value).__module__ == "numpy" else value
    return None if isinstance(value, float) and not math.isfinite(value) else value
