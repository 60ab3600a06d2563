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
      ValueError: it is not JSON, or (as ``UserError``) nested more than ``MOST_DEPTH`` levels deep.
    """
    try:
        value = json.loads(text, **options)
    except RecursionError:
        value = None
    else:
        if sum(map(text.count, "[{")) <= MOST_DEPTH or not is_deep(value):
            return value
    raise UserError(f"it is nested more than {MOST_DEPTH} levels deep")


def is_deep(value: object, most: int = MOST_DEPTH) -> bool:
    """Return whether lists and mappings are nested more than ``most`` levels deep."""
    if not isinstance(value, list | tuple | Mapping):
        return False
    return not most or any(is_deep(one, most - 1) for one in (value.values() if isinstance(value, Mapping) else value))


def json_text(value: Any, *, indent: int | None = 2, **options: Any) -> str:
    """Return a value as JSON without a final line break; ``options`` are those of ``json.dumps``. NaN becomes null.

    Raises:
      UserError: a number is infinite; the message names its path.
    """
    known = plain(value)
    for place, number in _infinite(known):
        raise UserError(
            f"{place or 'The result'} is {number}, which JSON cannot represent, because the input is outside the range "
            f"that can be computed. Give realistic sizes and counts."
        )
    return json.dumps(known, indent=indent, allow_nan=False, **options)


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
    """Return ``plain`` data without infinite numbers, which become None."""
    return plain(value, infinite=False)


def plain(value: Any, *, infinite: bool = True) -> Any:
    """Return data that JSON can represent. NaN becomes None; infinite numbers also do, unless ``infinite``.

    Dataclasses become dictionaries of their fields, or what their method ``to_json`` returns; arrays become lists,
    tables lists of rows.
    """
    if isinstance(value, str | int | None):
        return value
    if isinstance(value, float):
        return None if math.isnan(value) or not (infinite or math.isfinite(value)) else float(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item, infinite=infinite) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, infinite=infinite) for item in value]
    if dataclasses.is_dataclass(value):
        to_json = getattr(value, "to_json", None)
        return plain(fields(value) if to_json is None else to_json(), infinite=infinite)
    # These checks do not import NumPy or pandas.
    if type(value).__module__ == "numpy":
        return plain(value.tolist(), infinite=infinite)
    if hasattr(value, "to_dict"):
        return plain(value.to_dict("records"), infinite=infinite)
    return value


def fields(value: Any, *without: str) -> dict[str, Any]:
    """Return the fields of a dataclass, keyed by name, except ``without``. A ``to_json`` method can start from them."""
    names = [field.name for field in dataclasses.fields(value) if field.name not in without]
    return {name: getattr(value, name) for name in names}
