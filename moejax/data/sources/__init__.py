"""List the sources that can be read: a key of ``NAMED``, ``hf:NAME``, or a file or folder. The suffix of a file
determines its format; for a compressed file, this is the suffix before ``.gz`` or ``.zst``.

A format is a function ``input_shards(files, root, options)``; add one here and in ``docs/data.md``.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from moejax.data.source import Broken, File, InputShard, SourceOptions, file
from moejax.data.sources import (
    array_record,
    hugging_face,
    json_lines,
    megatron,
    parquet,
    text_files,
    token_files,
)
from moejax.errors import UserError
from moejax.input_file import check_text, inner_suffix, is_compressed
from moejax.storage import is_remote
from moejax.wording import says, some

NAMED: dict[str, Callable[[SourceOptions], Iterable[InputShard]]] = {"python_stdlib": text_files.python_stdlib}
"""Named sources."""

Format = Callable[[Sequence[File], Path, SourceOptions], Iterable[InputShard]]

FORMATS: dict[str, Format] = {
    ".txt": text_files.input_shards,
    ".text": text_files.input_shards,
    ".md": text_files.input_shards,
    ".rst": text_files.input_shards,
    ".tex": text_files.input_shards,
    ".html": text_files.input_shards,
    ".py": text_files.input_shards,
    ".jsonl": json_lines.input_shards,
    ".ndjson": json_lines.input_shards,
    ".json": json_lines.input_shards,
    ".parquet": parquet.input_shards,
    ".arrayrecord": array_record.input_shards,
    ".array_record": array_record.input_shards,
    ".bin": token_files.input_shards,
    ".npy": token_files.input_shards,
}
"""Formats by suffix. A ``.bin`` file with an ``.idx`` file of the same name is in Megatron's format."""

COMPRESSIBLE: tuple[Format, ...] = (text_files.input_shards, json_lines.input_shards)
"""Formats that may be compressed as ``.gz`` or ``.zst``; the other formats compress internally or are memory-mapped."""


KNOWN = f"known suffixes are {', '.join(FORMATS)}; text formats can also have .gz or .zst"

CHOICES = "choices.json"
"""Name of the file that marks a folder as a prepared set; such folders inside a source are skipped."""


def input_shards_of(source: str, options: SourceOptions) -> list[InputShard]:
    """Return the input shards of a source, in order.

    Raises:
      UserError: the source does not exist or has no readable files.
    """
    if source in NAMED:
        return list(NAMED[source](options))
    if source.startswith(hugging_face.PREFIX):
        return list(hugging_face.input_shards(source, options))
    files, path = _readable(source), path_of(source)
    root = path if path.is_dir() else path.parent
    options = replace(options, single_file=options.held_out and len(files) == 1)
    shards: list[InputShard] = []
    for read, group in groupby(files, _format):
        assert read is not None
        whole: list[File] = []
        for path in group:
            try:
                one = file(path)
            except OSError as error:
                shards.append(Broken(File(str(path.absolute()), 0, 0), f"unreadable ({says('the system', error)})"))
                continue
            if read in COMPRESSIBLE:
                check_text(path)
            if one.size or not is_compressed(path):
                whole.append(one)
            else:
                shards.append(Broken(one, "it is empty, but a compressed file has at least a header"))
        shards += read(whole, root.absolute(), options)
    return shards


def is_there(source: str) -> bool:
    """Return whether a source is a known name or an existing file or folder. Sources on the Hugging Face Hub and in
    object stores are not checked.

    Raises:
      UserError: the source is an empty string.
    """
    return source in NAMED or source.startswith(hugging_face.PREFIX) or is_remote(source) or path_of(source).exists()


def check_source(source: str) -> None:
    """Raise ``UserError`` if a source is missing, or is a file or folder without readable files."""
    if source not in NAMED and not source.startswith(hugging_face.PREFIX) and not is_remote(source):
        _readable(source)


def _readable(source: str) -> list[Path]:
    if not is_there(source):
        raise UserError(
            f"There is no file or folder {source} to read. Give an existing one, {' or '.join(NAMED)}, or "
            f"{hugging_face.PREFIX}NAME for a data set of the Hugging Face Hub."
        )
    files, skipped = _files(path_of(source))
    if not files:
        seen = f" (only {skipped.kinds})" if skipped.files else ""
        raise UserError(f"{source} contains no readable file{seen}; name another source ({KNOWN}).")
    return files


def path_of(source: str) -> Path:
    """Return the path of a source that is a file or folder.

    Raises:
      UserError: the source is an empty string, which Python would interpret as the working directory.
    """
    if not source.strip():
        raise UserError(f"The data source is empty; name a file, a folder, hf:NAME or {' or '.join(NAMED)}.")
    return Path(source).expanduser()


@dataclass(frozen=True)
class Skipped:
    """Files of a folder that are not read."""

    read: int
    """Number of files that are read."""
    files: tuple[str, ...] = ()
    """Files of unknown format, relative to the folder."""
    hidden: tuple[str, ...] = ()
    """Files whose names begin with a dot."""
    prepared: tuple[str, ...] = ()
    """Folders that are prepared sets."""

    @property
    def by_suffix(self) -> Counter[str]:
        """Return the number of ``files`` with each suffix."""
        return Counter(Path(name).suffix for name in self.files)

    @property
    def kinds(self) -> str:
        """Return ``by_suffix`` as text for a message."""
        return some([f"{count:,} {suffix or 'without a suffix'}" for suffix, count in self.by_suffix.most_common()])

    def __str__(self) -> str:
        """Return a message; empty if nothing was skipped."""
        sentences = []
        if self.files:
            every = self.read + len(self.files)
            sentences.append(
                f"{self.read:,} of {every:,} files are read. Files with an unknown suffix are skipped: {self.kinds} "
                f"({some(self.files)}); {KNOWN}."
            )
        if self.hidden:
            sentences.append(f"Hidden files are skipped: {len(self.hidden):,} ({some(self.hidden)}).")
        if self.prepared:
            sentences.append(f"Prepared sets are skipped: {some(self.prepared)}.")
        return " ".join(sentences)


def skipped(source: str) -> Skipped | None:
    """Return the files of a folder that are not read; None for other sources."""
    path = path_of(source)
    if source in NAMED or source.startswith(hugging_face.PREFIX) or not path.is_dir():
        return None
    return _files(path)[1]


def _files(path: Path) -> tuple[list[Path], Skipped]:
    every, hidden, prepared = [], [], []
    # Opening a pipe or a device raises an error that names it.
    if not path.is_dir():
        every = [path]
    for folder, folders, names in os.walk(path):
        if CHOICES in names:
            folders.clear()
            prepared.append(Path(folder))
            continue
        every += [Path(folder, name) for name in names if name[0] != "."]
        hidden += [Path(folder, name) for name in names if name[0] == "."]

    def below(paths: Iterable[Path]) -> tuple[str, ...]:
        return tuple(sorted(one.relative_to(path).as_posix() if one != path else one.name for one in paths))

    known = [one for one in every if _format(one) is not None]
    unknown = [one for one in every if _format(one) is None and one.suffix != ".idx"]
    order = sorted(known, key=lambda one: one.relative_to(path).as_posix())
    return order, Skipped(len(known), below(unknown), below(hidden), below(prepared))


def _format(path: Path) -> Format | None:
    read = FORMATS.get(inner_suffix(path))
    if is_compressed(path) and read not in COMPRESSIBLE:
        return None
    return megatron.input_shards if read is token_files.input_shards and megatron.index_of(path).exists() else read
