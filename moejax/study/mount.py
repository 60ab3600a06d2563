"""How the machines of a cloud see a study's folder: a bucket, or a volume, mounted at a path."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from moejax.data.config import DataConfig
from moejax.data.prepared import MANIFEST
from moejax.errors import UserError


@dataclass(frozen=True)
class Mount:
    """What is mounted where."""

    source: str
    """``gs://BUCKET``, or the name of a volume claim of Kubernetes."""
    path: PurePosixPath
    """Where every machine finds it."""

    @property
    def bucket(self) -> str | None:
        """Its name, if it is one."""
        return self.source.partition("://")[2] if "://" in self.source else None


def mounted(out: str) -> tuple[Mount, PurePosixPath]:
    """The mount for a folder in an object store, and the folder as machines see it: ``gs://b/zhao`` is ``/b/zhao``.

    Raises:
      UserError: it is a folder of this machine.
    """
    protocol, separator, rest = out.partition("://")
    bucket, _, folder = rest.strip("/").partition("/")
    if not separator or not bucket or protocol == "file":
        raise UserError(f"--out is {out}; machines of a cloud see a bucket, such as gs://BUCKET/STUDY.")
    path = PurePosixPath("/", bucket)
    return Mount(f"{protocol}://{bucket}", path), path / folder


def holds_corpus(mount: Mount, data: DataConfig) -> bool:
    """Whether a corpus lies in what is mounted, and not on this machine, where it would have to be prepared.

    Raises:
      UserError: machines that see the mount alone would not find a part of it.
    """
    sources = [part.source for part in data.mixture] or [data.source]
    tokenizer = (data.tokenizer or "").partition("#")[0]
    there = [PurePosixPath(source).is_relative_to(mount.path) for source in sources]
    here = [source for source in sources if (Path(source).expanduser() / MANIFEST).is_file()]
    here += [tokenizer] if Path(tokenizer).is_file() and not PurePosixPath(tokenizer).is_relative_to(mount.path) else []
    if here or (any(there) and not all(there)):
        wrong = [*here, *(source for source, found in zip(sources, there, strict=True) if not found)][0]
        raise UserError(
            f"{wrong} is on this machine alone; copy it into {mount.source} and name it as all machines see it, "
            f"{mount.path}/…, or give text, which is prepared here and copied."
        )
    return all(there)
