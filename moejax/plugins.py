"""Add the laws, routers and Hugging Face families that other installed packages declare as entry points."""

from __future__ import annotations

import contextlib
import functools
import re
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import TypeVar, cast

from moejax.errors import UserError
from moejax.wording import told

NAME = re.compile("[a-z][a-z0-9_]*")
"""Pattern of the names of plugins."""
K = TypeVar("K")
V = TypeVar("V")


class LazyDict(MutableMapping[K, V]):
    """A dictionary that a function fills at the first use, so that plugins can import moejax before it is filled."""

    def __init__(self, make: Callable[[], dict[K, V]]) -> None:
        self._make = make

    @functools.cached_property
    def _filled(self) -> dict[K, V]:
        return self._make()

    def __getitem__(self, key: K) -> V:
        return self._filled[key]

    def __setitem__(self, key: K, value: V) -> None:
        self._filled[key] = value

    def __delitem__(self, key: K) -> None:
        del self._filled[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._filled)

    def __len__(self) -> int:
        return len(self._filled)

    def forget(self) -> None:
        """Fill the dictionary again at the next use, after packages were installed."""
        vars(self).pop("_filled", None)


def with_plugins(own: Mapping[str, V], group: str, kind: type[V] | None = None) -> dict[str, V]:
    """Return moejax's own entries and those of a group of entry points, keyed by name.

    ``kind`` is the class of the entries, whose ``name`` must equal the entry point's name; None for functions.

    Raises:
      UserError: a plugin has an invalid or existing name, cannot be imported, or is not an object of this kind.
    """
    # The import takes longer than moejax --help.
    from importlib.metadata import entry_points

    merged = dict(own)
    for point in entry_points(group=group):
        package = f"{point.dist.name} {point.dist.version}" if point.dist else point.value
        where, remedy = f"Entry point {point.name!r} of package {package} ({group})", "Fix or uninstall the package."
        if not NAME.fullmatch(point.name):
            raise UserError(f"{where} has an invalid name; use lower-case letters, digits and underscores. {remedy}")
        if point.name in merged:
            raise UserError(f"{where} has the name of another plugin or of a built-in entry. {remedy}")
        try:
            # A package may print during its import, but stdout is for results. It may also exit.
            with contextlib.redirect_stdout(sys.stderr):
                found = point.load()
        except (Exception, SystemExit) as error:
            raise UserError(f"{where} cannot be imported ({told(error)}). {remedy}") from error
        fits = callable(found) and not isinstance(found, type) if kind is None else isinstance(found, kind)
        if not fits:
            wanted = "a function" if kind is None else f"a {kind.__name__}"
            raise UserError(f"{where} is a {type(found).__name__} and must be {wanted}. {remedy}")
        if kind is not None and (name := getattr(found, "name", "")) != point.name:
            raise UserError(f"{where} loads an object with the name {name!r}; both names must be equal. {remedy}")
        merged[point.name] = cast(V, found)
    return merged


def plugin_versions(group: str) -> dict[str, str]:
    """Return the versions of the packages that declare entry points of a group, without importing them."""
    from importlib.metadata import entry_points

    return {point.dist.name: point.dist.version for point in entry_points(group=group) if point.dist}
