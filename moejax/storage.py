"""Storage: a folder of this machine, or any other that fsspec reaches (``gs://``, ``s3://``)."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from os import PathLike
from typing import Any, TypeVar

import fsspec
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem

from moejax.errors import UserError
from moejax.stored import Damaged
from moejax.wording import says

T = TypeVar("T")

CONTACT_SECONDS = 30.0
"""How long a store may take to answer when it is opened. Its client's own limits are minutes."""


_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs"}
"""By protocol the extra of moejax's with which the package that speaks it is installed."""

_SUPPORTED = "give s3://BUCKET/FOLDER, gs://BUCKET/FOLDER or a folder"


def is_remote(url: str | PathLike[str]) -> bool:
    """Whether storage is not a path of this machine.

    Raises:
      UserError: a slash is missing of what would be a folder named ``s3:`` here.
    """
    if re.fullmatch(r"[a-z][a-z0-9+.-]+:/*", str(url)):
        raise UserError(f"{url} names no bucket; {_SUPPORTED}.")
    if missing := re.match(r"([a-z][a-z0-9+.-]+):/(?!/)", str(url)):
        raise UserError(f"{url} has one slash; write {missing[1]}://{str(url)[missing.end() :]} for a store.")
    return "://" in str(url)


def open_storage(url: str | PathLike[str]) -> DirFileSystem:
    """The file system whose root is that folder.

    Raises:
      UserError: no such protocol, the package that speaks it is not installed, or the store does not let us in or does
        not answer.
    """

    def contact() -> DirFileSystem:
        system, root = _remote(str(url)) if is_remote(url) else fsspec.core.url_to_fs(str(url))
        system.exists(root)
        return DirFileSystem(root, system)

    with reaching(url):
        return within(CONTACT_SECONDS, contact) if is_remote(url) else contact()


def _remote(url: str) -> tuple[Any, str]:
    """A store's client, and the path that it has the address under.

    Raises:
      UserError: no such protocol, the package that speaks it is not installed, or it needs more than an address.
    """
    protocol = url.partition("://")[0].rpartition("::")[2]
    try:
        fsspec.get_filesystem_class(protocol)
    except ValueError:
        small = f"{protocol.lower()}://"
        remedy = f"write {small}" if small != f"{protocol}://" else _SUPPORTED
        raise UserError(f"{url} cannot be reached from here: no store is known by {protocol}://; {remedy}.") from None
    except ImportError as error:
        extra = _EXTRAS.get(protocol)
        remedy = f"pip install 'moejax[{extra}]'" if extra else f"install it, or {_SUPPORTED}"
        why = says("the store's client", error)
        raise UserError(f"{url} cannot be reached from here: a package is missing ({why}); {remedy}.") from error
    try:
        # What others write there is to be seen at once.
        return fsspec.core.url_to_fs(url, use_listings_cache=False)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"{url} cannot be reached from here: it is not all that {protocol}:// needs; {_SUPPORTED}."
        ) from error


@contextlib.contextmanager
def reaching(url: object) -> Iterator[None]:
    """What goes wrong with a store as a sentence."""
    try:
        yield
    except UserError:
        raise
    # Every store's client has exceptions of its own.
    except Exception as error:
        raise UserError(
            f"{url} cannot be reached from here ({says('the store', error)}); give a folder, or mend that."
        ) from error


def within(seconds: float, work: Callable[[], T]) -> T:
    """What ``work`` returns, in a thread that is left alone when it takes longer.

    Raises:
      TimeoutError: it takes longer.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="store", daemon=True).start()
    if not wait([future], seconds).done:
        raise TimeoutError(f"no answer within {seconds:.0f} s")
    return future.result()


def read_text(storage: DirFileSystem, path: str) -> str | None:
    """A file's text, or None if there is none."""
    try:
        check_regular(storage, path)
        return storage.cat_file(path).decode(errors="replace")
    except FileNotFoundError:
        return None


def check_regular(storage: DirFileSystem, path: str) -> None:
    """Raise ``Damaged`` if there is a pipe or the like in a file's place: reading it would wait for who writes it."""
    # Object stores hold nothing of that kind, and would be asked once more for every file.
    if isinstance(storage.fs, LocalFileSystem) and storage.info(path)["type"] == "other":
        raise Damaged(f"{path} is no regular file; remove it, or bring back a copy.")


def matching(storage: DirFileSystem, pattern: str) -> list[str]:
    """Paths that match ``models/*/*.json``, in order."""
    return sorted(map(str, storage.glob(pattern)))
