"""Read tables of runs that are Hugging Face data sets, on the hub or saved to a folder."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

from moejax.errors import UserError
from moejax.wording import says


def is_file(path: Path) -> bool:
    """Return whether the file is one in which ``save_to_disk`` stores the state of a data set."""
    return path.name in ("state.json", "dataset_dict.json") and (
        path.name == "dataset_dict.json" or (path.parent / "dataset_info.json").exists()
    )


def read(text: str) -> Any:
    """Return the data set as a pandas DataFrame: its only split, or the split named after ``#``.

    Raises:
      UserError: datasets is not installed, the data set or split does not exist, or the split is ambiguous.
    """
    if importlib.util.find_spec("datasets") is None:
        raise UserError("Data sets of Hugging Face need datasets, which is not installed: pip install 'moejax[hf]'.")
    datasets: Any = importlib.import_module("datasets")
    name, _, split = text.partition("#")
    try:
        found = datasets.load_from_disk(name) if _is_saved(Path(name)) else datasets.load_dataset(name)
    except Exception as error:
        raise UserError(
            f"The data set {name} cannot be read ({says('datasets', error)}); name OWNER/NAME of the hub, or a folder "
            f"of save_to_disk."
        ) from error
    if isinstance(found, datasets.DatasetDict):
        if not split and len(found) > 1:
            raise UserError(f"{name} has the splits {', '.join(found)}; name one: 'hf:{name}#{next(iter(found))}'.")
        split = split or next(iter(found))
        if split not in found:
            raise UserError(f"{name} has no split {split}; it has {', '.join(found)}.")
        found = found[split]
    frame = found.to_pandas()
    frame.attrs["notes"] = (f"Hugging Face datasets: {len(frame):,} rows of {name}.",)
    return frame


def _is_saved(path: Path) -> bool:
    return path.is_dir() and any(map(is_file, path.iterdir()))
