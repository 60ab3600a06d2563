"""``--out DIR``: the folder that results are written to, made if it is not there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def out_folder(folder: Path) -> Iterator[Path]:
    """The folder; what goes wrong while it is made or written to becomes a sentence.

    Raises:
      ValueError: it cannot be made or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
    except OSError as error:
        raise ValueError(f"The results cannot be written to {folder} ({error}); choose another --out.") from error
