"""Open storage: a local folder, or a remote one that fsspec supports (``gs://``, ``s3://``)."""

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
from moejax.wording import install_command, says

T = TypeVar("T")

CONTACT_SECONDS = 30.0
"""Time limit for a store's first response. Storage clients have limits of minutes."""


_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs"}
"""Extra of moejax that installs the client of each protocol."""

_SUPPORTED = "give s3://BUCKET/FOLDER, gs://BUCKET/FOLDER or a folder"


def is_remote(url: str | PathLike[str]) -> bool:
    """Return whether a URL is remote storage.

    Raises:
      UserError: the URL lacks a slash or a bucket.
    """
    if re.fullmatch(r"[a-z][a-z0-9+.-]+:/*", str(url)):
        raise UserError(f"{url} names no bucket; {_SUPPORTED}.")
    if missing := re.match(r"([a-z][a-z0-9+.-]+):/(?!/)", str(url)):
        raise UserError(f"{url} has only one slash; write {missing[1]}://{str(url)[missing.end() :]} for a store.")
    return "://" in str(url)


def open_storage(url: str | PathLike[str]) -> DirFileSystem:
    """Return the file system whose root is the given folder.

    Raises:
      UserError: the protocol is unknown, its package is not installed, or the store denies access or does not respond.
    """

    def contact() -> DirFileSystem:
        system, root = _remote(str(url)) if is_remote(url) else fsspec.core.url_to_fs(str(url))
        system.exists(root)
        return DirFileSystem(root, system)

    with reaching(url):
        return within(CONTACT_SECONDS, contact) if is_remote(url) else contact()


def _remote(url: str) -> tuple[Any, str]:
    protocol = url.partition("://")[0].rpartition("::")[2]
    try:
        fsspec.get_filesystem_class(protocol)
    except ValueError:
        small = f"{protocol.lower()}://"
        remedy = f"write {small}" if small != f"{protocol}://" else _SUPPORTED
        raise UserError(
            f"{url} cannot be reached from here: the protocol {protocol}:// is not supported; {remedy}."
        ) from None
    except ImportError as error:
        extra = _EXTRAS.get(protocol)
        remedy = f"run {install_command(extra)}" if extra else f"install it, or {_SUPPORTED}"
        why = says("fsspec", error)
        raise UserError(f"{url} cannot be reached from here: a package is missing ({why}); {remedy}.") from error
    try:
        # Without the listing cache, files of other writers are visible at once.
        return fsspec.core.url_to_fs(url, use_listings_cache=False)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"{url} cannot be reached from here: the URL is incomplete for {protocol}://; {_SUPPORTED}."
        ) from error


@contextlib.contextmanager
def reaching(url: object) -> Iterator[None]:
    """Convert errors of a store to ``UserError``."""
    try:
        yield
    except UserError:
        raise
    # Every store's client has its own exceptions.
    except Exception as error:
        raise UserError(
            f"{url} cannot be reached from here ({says('the storage client', error)}); correct the URL or your "
            f"access to it, or give a folder."
        ) from error


def within(seconds: float, work: Callable[[], T]) -> T:
    """Return the result of ``work``, which runs in a thread that is abandoned after the time limit.

    Raises:
      TimeoutError: the work exceeds the time limit.
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
    """Return a file's text, or None if it does not exist."""
    try:
        check_regular(storage, path)
        return storage.cat_file(path).decode(errors="replace")
    except FileNotFoundError:
        return None


def check_regular(storage: DirFileSystem, path: str) -> None:
    """Raise ``Damaged`` if a path is not a regular file: reading a pipe would block."""
    # Object stores have only regular files, and this check would need another request for every file.
    if isinstance(storage.fs, LocalFileSystem) and storage.info(path)["type"] == "other":
        raise Damaged(f"{path} is not a regular file; remove it, or restore a copy.")


def matching(storage: DirFileSystem, pattern: str) -> list[str]:
    """Return sorted paths that match a pattern such as ``models/*/*.json``."""
    return sorted(map(str, storage.glob(pattern)))
