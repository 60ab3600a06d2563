"""Add the laws, routers and Hugging Face families that other installed packages declare as entry points."""

from __future__ import annotations

import contextlib
import functools
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, TypeVar, cast

from moejax.errors import UserError
from moejax.say import say
from moejax.wording import told

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

NAME = re.compile("[a-z][a-z0-9_]*")
"""Pattern of the names of plugins."""
K = TypeVar("K")
V = TypeVar("V")


_UNUSABLE: dict[tuple[str, str], str] = {}
"""Errors of plugins that cannot be used, keyed by group of entry points and name."""


class LazyDict(MutableMapping[K, V]):
    """A dictionary that a function fills at the first use, so that plugins can import moejax before it is filled.

    With the name of a ``group`` of entry points, looking up a plugin that cannot be used raises ``UserError``.
    """

    def __init__(self, make: Callable[[], dict[K, V]], group: str = "") -> None:
        self._make, self._group = make, group

    @functools.cached_property
    def _filled(self) -> dict[K, V]:
        return self._make()

    def __getitem__(self, key: K) -> V:
        filled = self._filled
        if key not in filled and (error := _UNUSABLE.get((self._group, str(key)))):
            raise UserError(error)
        return filled[key]

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


def with_plugins(
    own: Mapping[str, V],
    group: str,
    kind: type[V] | None = None,
    aliases: Callable[[V], Sequence[str]] = lambda entry: (),
) -> dict[str, V]:
    """Return moejax's own entries and those of a group of entry points, keyed by name.

    Plugins that cannot be used are left out. One message names them, and only a command that asks for one of them
    fails (``LazyDict``).

    Args:
      kind: class of the entries, whose ``name`` must equal the entry point's name; None for functions.
      aliases: function that returns further names of an entry, which must be unique too.
    """
    # The import takes longer than moejax --help.
    from importlib.metadata import entry_points

    merged = dict(own)
    taken = {name for key, entry in own.items() for name in (key, *aliases(entry))}
    for key in [key for key in _UNUSABLE if key[0] == group]:
        del _UNUSABLE[key]
    for point in entry_points(group=group):
        package = f"{point.dist.name} {point.dist.version}" if point.dist else point.value
        try:
            _check_free([point.name], taken)
            found = _load(point, kind)
            _check_free(aliases(found), taken)
        except UserError as error:
            problem = f"The package {package} (entry point {point.name!r} of {group}) {told(error)}"
            _UNUSABLE[group, point.name] = f"{problem}. Fix or uninstall the package."
            continue
        merged[point.name] = found
        taken |= {point.name, *aliases(found)}
    if unusable := [error for key, error in _UNUSABLE.items() if key[0] == group]:
        others = f" {len(unusable) - 1} more cannot be used." if len(unusable) > 1 else ""
        say(f"moejax: {unusable[0]} Until then it is ignored.{others}")
    return merged


def _check_free(names: Sequence[str], taken: Collection[str]) -> None:
    if doubled := next((name for name in names if name in taken), None):
        raise UserError(f"has the name or alias {doubled!r} of another plugin or a built-in one")


def _load(point: EntryPoint, kind: type[V] | None) -> V:
    """Return the object of an entry point; raise ``UserError`` with the end of a sentence if it cannot be used."""
    if not NAME.fullmatch(point.name):
        raise UserError("has an invalid name; use lower-case letters, digits and underscores")
    try:
        # A package may print during its import, but stdout is for results. It may also exit.
        with contextlib.redirect_stdout(sys.stderr):
            found = point.load()
    except (Exception, SystemExit) as error:
        raise UserError(f"cannot be imported ({told(error)})") from error
    fits = callable(found) and not isinstance(found, type) if kind is None else isinstance(found, kind)
    if not fits:
        wanted = "a function" if kind is None else f"a {kind.__name__}"
        raise UserError(f"is a {type(found).__name__} and must be {wanted}")
    if kind is not None and (name := getattr(found, "name", "")) != point.name:
        raise UserError(f"loads an object with the name {name!r}; both names must be equal")
    return cast(V, found)


def plugin_versions(group: str) -> dict[str, str]:
    """Return the versions of the packages that declare entry points of a group, without importing them."""
    from importlib.metadata import entry_points

    return {point.dist.name: point.dist.version for point in entry_points(group=group) if point.dist}
