"""Read Hugging Face ``datasets`` by name, ``hf:NAME`` or ``hf:NAME:CONFIG``, or a folder written by ``save_to_disk``.

This needs ``pip install 'moejax[hf]'``, and network access the first time. Only the split ``train`` is read; validation
documents are held out from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from moejax.data.source import Corrupt, Document, SourceOptions, WholeFile, file
from moejax.errors import UserError
from moejax.wording import install_command, says

PREFIX = "hf:"


@dataclass(frozen=True)
class ArrowFile(WholeFile):
    """An Arrow file in the cache of ``datasets``."""

    text_field: str

    def documents(self) -> Iterator[Document | Corrupt]:
        """Yield a document per row."""
        number = 0
        try:
            with pa.memory_map(self.file.path) as stream:
                for batch in pa.ipc.open_stream(stream):
                    for value in batch.column(self.text_field):
                        number += 1
                        text = value.as_py()
                        name = f"{self.name}:{number}"
                        if text is None:
                            yield Corrupt(name, f"no value in column {self.text_field!r}")
                        else:
                            yield Document(name, text.encode() if isinstance(text, str) else text)
        except (OSError, pa.ArrowException) as error:
            yield Corrupt(f"{self.name}, after row {number}", f"damaged ({says('pyarrow', error)})", self.file.size)


def input_shards(source: str, options: SourceOptions) -> list[ArrowFile]:
    """Return the Arrow files of a data set, downloading them if necessary.

    Raises:
      UserError: the package is missing, the data set is unknown or cannot be reached, or lacks the text field.
    """
    name, _, config = source.removeprefix(PREFIX).partition(":")
    dataset = _load(name, config)
    if options.text_field not in dataset.column_names:
        raise UserError(
            f"{source} has no column {options.text_field!r}, only {', '.join(dataset.column_names)}; name the "
            "text column."
        )
    return [ArrowFile(file(Path(cached["filename"])), options.text_field) for cached in dataset.cache_files]


def _load(name: str, config: str):
    try:
        import datasets  # type: ignore[import-not-found]
    except ImportError:
        raise UserError(
            f"{PREFIX}{name} needs the package datasets, which is not installed. Run {install_command('hf')}."
        ) from None
    try:
        if Path(name).is_dir():
            dataset = datasets.load_from_disk(name)
            return dataset["train"] if isinstance(dataset, datasets.DatasetDict) else dataset
        return datasets.load_dataset(name, config or None, split="train")
    # The exception without network differs between versions of datasets and of its HTTP client.
    except Exception as error:
        raise UserError(
            f"{PREFIX}{name} could not be loaded ({says('datasets', error)}). Check the name and this machine's "
            f"connection to the Hugging Face Hub. Without a network, load the data set on a connected machine, "
            f"write it with save_to_disk, and give {PREFIX}FOLDER."
        ) from error
