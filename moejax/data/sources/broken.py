"""A file that could not even be opened to list what it holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from moejax.data.document import Corrupt, Document
from moejax.data.source import File


@dataclass(frozen=True)
class Broken:
    """Stands for the file's parts."""

    file: File
    why: str

    @property
    def name(self) -> str:
        """The file's."""
        return self.file.name

    @property
    def size_bytes(self) -> int:
        """The whole file."""
        return self.file.size

    def documents(self) -> Iterator[Document | Corrupt]:
        """The whole file, lost."""
        yield Corrupt(self.name, self.why, self.file.size)
