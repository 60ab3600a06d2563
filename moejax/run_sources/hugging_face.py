"""Read tables of runs that are Hugging Face data sets, on the Hub or saved to a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from moejax.errors import UserError
from moejax.run_sources.tracked_run import library
from moejax.wording import says


def is_file(path: Path) -> bool:
    """Return whether ``save_to_disk`` stores the state of a data set in this file."""
    return path.name == "dataset_dict.json" or (
        path.name == "state.json" and (path.parent / "dataset_info.json").exists()
    )


def read(text: str) -> Any:
    """Return the data set as a pandas DataFrame: its only split, or the split named after ``#``.

    Raises:
      UserError: datasets is not installed, the data set or split does not exist, or the split is ambiguous.
    """
    datasets = library("datasets", "Hugging Face data sets", "hf")
    name, _, split = text.partition("#")
    is_saved = Path(name).is_dir() and any(map(is_file, Path(name).iterdir()))
    try:
        data = datasets.load_from_disk(name) if is_saved else datasets.load_dataset(name)
    except Exception as error:
        raise UserError(
            f"The data set {name} cannot be read ({says('datasets', error)}). Give OWNER/NAME on the Hub, or a folder "
            f"written by save_to_disk."
        ) from error
    if isinstance(data, datasets.DatasetDict):
        if not split and len(data) > 1:
            raise UserError(f"{name} has the splits {', '.join(data)}; choose one: 'hf:{name}#{next(iter(data))}'.")
        split = split or next(iter(data))
        if split not in data:
            raise UserError(f"{name} has no split {split}; choose one of its splits: {', '.join(data)}.")
        data = data[split]
    frame = data.to_pandas()
    frame.attrs["notes"] = (f"Hugging Face datasets: {len(frame):,} rows of {name}.",)
    return frame
