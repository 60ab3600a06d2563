"""Export a training run's weights as a weights folder, with one chunk of a checkpoint in memory at a time.

A chunk is the part of an array that one device held when the checkpoint was saved; it is compressed as a unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore

from moejax.config import convert
from moejax.data.prepared import MANIFEST, PreparedSet
from moejax.data.tokenizer import JsonTokenizer, Tokenizer, open_tokenizer
from moejax.errors import UserError
from moejax.folder import atomic_folder, write_json
from moejax.say import StageCallback
from moejax.stored import Missing, foreign_json, read_bytes, read_json
from moejax.train.directory.identity import (
    BUDGETS,
    REMEDY,
    RUNS,
    TRAINING,
    check_trained,
    decisive_changes,
    read_history,
)
from moejax.train.directory.manifest import committed_at, damage, finished_steps, read_metadata
from moejax.train.directory.metrics import TRUNK, branch_name
from moejax.train.directory.row_file import read_row
from moejax.train.training import Training
from moejax.weights.folder import (
    EXPERT_BIAS,
    GENERATION,
    TOKEN_IDS,
    TOKENIZER_FILES,
    parameters,
    special_token,
    weights_writer,
)
from moejax.weights.safetensors import Kind, TensorFileWriter

_REMEDY = "resume the training run, which starts from the previous checkpoint"


@dataclass(frozen=True)
class SavedState:
    """One checkpoint of a training run."""

    training: Training
    """Current settings of the training run."""
    folder: Path
    """Folder of the training run."""
    phase: str
    step: int

    @property
    def place(self) -> Path:
        """Return the folder of the checkpoint."""
        return self.folder / "checkpoints" / self.phase / str(self.step)

    @property
    def state(self) -> Path:
        """Return the folder of Orbax's state."""
        return self.place / "state"

    @property
    def tokens(self) -> int:
        """Return the number of tokens that the training run had read."""
        return self.training.recipe.tokens(self.step)

    @property
    def row(self) -> dict[str, Any]:
        """Return the row of the budget that ends at this checkpoint, keyed by column; an empty dict if no budget ends
        here.
        """
        recipe = self.training.recipe
        ends = {branch_name(budget): budget for budget in recipe.budgets_tokens if recipe.steps(budget) == self.step}
        return (read_row(self.folder, ends[self.phase]) or {}) if self.phase in ends else {}

    @property
    def trained_with(self) -> Training:
        """Return the settings with which this checkpoint was trained; the current ones if it records none."""
        then = read_metadata(self.place).get("training")
        return self.training if then is None else convert(Training, then, f"The training in {self.place}")

    @property
    def changes(self) -> dict[str, list[Any]]:
        """Return the old and new value of settings that changed before this checkpoint, and affect it, keyed by path.
        A setting that changed several times has all its values.
        """
        values: dict[str, list[Any]] = {}
        for entry in decisive_changes(self.folder, until=committed_at(self.place)):
            for path, (old, new) in entry.items():
                values.setdefault(path, [old]).append(new)
        # Further budgets change no other budget's checkpoint.
        values.pop(BUDGETS, None)
        return values


def is_training(path: Path) -> bool:
    """Return whether a path is a training run's folder, or inside one."""
    return _owner(path) is not None


def find_saved_state(path: Path, *, verify: bool = True) -> SavedState:
    """Return the checkpoint at a path: a training run's folder (its longest finished budget, or else the trunk), a
    phase's folder (its newest checkpoint), or a checkpoint's folder. With ``verify``, compare the checkpoint's files
    with their hashes.

    Raises:
      UserError: there is no checkpoint.
    """
    folder = _owner(path)
    if folder is None:
        raise UserError(
            f"{path} is not in the folder of a training run, because neither it nor a parent folder has "
            "a training.json. Give the --out of a run, or a checkpoint in it."
        )
    training = read_json(folder / TRAINING, Training, remedy=REMEDY)
    if training.vmap:
        raise UserError(f"{folder} contains several vmapped runs; name the folder of one of them in {folder / RUNS}.")
    named = path.resolve().relative_to(folder.resolve()).parts
    phases = [branch_name(budget) for budget in reversed(training.recipe.budgets_tokens)] + [TRUNK]
    for phase in phases:
        steps = finished_steps(folder / "checkpoints" / phase)
        if named[:1] == ("checkpoints",):
            steps = [step for step in steps if ("checkpoints", phase, str(step))[: len(named)] == named[:3]]
        if steps:
            saved = SavedState(training, folder, phase, steps[-1])
            if verify:
                check_saved(saved)
            return saved
    raise UserError(f"{path} has no finished checkpoint; resume the training run until it has saved one.")


def check_saved(saved: SavedState, hashes: Mapping[str, str] | None = None) -> None:
    """Raise ``UserError`` if a checkpoint is damaged, or belongs to another training run. ``hashes`` supplies the
    current hashes of its files if they have already been computed.
    """
    if wrong := damage(saved.place, hashes):
        raise UserError(f"{saved.place} differs from what was written: {wrong}; {_REMEDY}.")
    trained, what = read_metadata(saved.place).get("training"), f"The checkpoint of step {saved.step} of {saved.phase}"
    check_trained(saved.folder, read_history(saved.folder), saved.training, trained, what)


def write_saved_weights(
    saved: SavedState, out: Path, *, ema: bool = False, progress: StageCallback = lambda name, done, total: None
) -> list[str]:
    """Write a checkpoint's parameters and expert bias in float32, and the tokenizer; return the tokenizer's files. With
    ``ema``, write the exponential moving average of the parameters instead.

    Raises:
      UserError: ``out`` exists already, the checkpoint does not match the run's architecture, or has no moving average.
    """
    if ema and not saved.training.recipe.ema_decay:
        raise UserError(
            f"{saved.folder} has no moving average of its parameters, because its recipe.ema_decay is "
            "0; leave out --ema."
        )
    architecture = saved.training.architecture
    arrays = {name: _open(saved.state, name, of="ema" if ema else "params") for name in parameters(architecture)}
    kinds = {name: Kind(np.dtype(np.float32), tuple(array.shape)) for name, array in arrays.items()}
    total, done = sum(kind.nbytes for kind in kinds.values()), 0
    with atomic_folder(out) as partial:
        with weights_writer(partial, architecture, kinds) as file:
            for name, array in arrays.items():
                progress(name, done, total)
                _copy(array, file, name)
                done += kinds[name].nbytes
        return _write_tokenizer(saved, partial)


def read_saved(saved: SavedState, name: str, index: tuple[slice, ...]) -> np.ndarray:
    """Read the block at ``index`` of an array of a checkpoint. ``name`` is a parameter's dotted name, or
    ``EXPERT_BIAS``.
    """
    return np.asarray(_open(saved.state, name)[index].read().result())


def _copy(array: Any, file: TensorFileWriter, name: str) -> None:
    chunk = array.chunk_layout.read_chunk.shape
    counts = [-(-size // part) for size, part in zip(array.shape, chunk, strict=True)]
    for number in np.ndindex(*counts):
        start = tuple(i * part for i, part in zip(number, chunk, strict=True))
        end = tuple(min(at + part, size) for at, part, size in zip(start, chunk, array.shape, strict=True))
        block = array[tuple(slice(a, b) for a, b in zip(start, end, strict=True))].read().result()
        file.write_block(name, start, np.asarray(block))


def _open(state: Path, name: str, of: str = "params") -> Any:
    path = state / "_METADATA"
    metadata = foreign_json(read_bytes(path, remedy=_REMEDY), path, shape=dict, remedy=_REMEDY)
    key = "expert_bias" if name == EXPERT_BIAS else f"{of}.{name}"
    base = f"file://{state.resolve()}/"
    database = {"driver": "ocdbt", "base": base, "path": f"{key}/"}
    files = {"driver": "file", "path": f"{state.resolve()}/{key}/"}
    spec = {
        "driver": "zarr3" if metadata.get("use_zarr3") else "zarr",
        "kvstore": database if metadata.get("use_ocdbt") else files,
        # Disable the cache: every block is read once.
        "context": {"cache_pool": {"total_bytes_limit": 0}},
    }
    try:
        return tensorstore.open(spec, open=True, read=True).result()
    except ValueError as error:
        raise UserError(
            f"{state.parent} has no array {key}, which its architecture requires. It was written by another version "
            "of moejax; convert it with that version."
        ) from error


def _owner(path: Path) -> Path | None:
    candidates = [path, *path.resolve().parents[:4]] if path.is_dir() else []
    return next((folder for folder in candidates if (folder / TRAINING).is_file()), None)


def _write_tokenizer(saved: SavedState, target: Path) -> list[str]:
    # Also write the document delimiter tokens in the format of transformers.
    tokenizer = saved_tokenizer(saved)
    if tokenizer is None:
        return []
    tokenizer = tokenizer.as_in_training()
    tokenizer.save(target)
    write_json(target / GENERATION, dict.fromkeys(TOKEN_IDS, tokenizer.end_of_document))
    if isinstance(tokenizer, JsonTokenizer):
        described = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": tokenizer.end,
            "eos_token": tokenizer.end,
        }
        write_json(target / "tokenizer_config.json", described)
    return [name for name in TOKENIZER_FILES if (target / name).is_file()]


def saved_tokenizer(saved: SavedState) -> Tokenizer | None:
    """Return the tokenizer of the run's prepared tokens, or else the recipe's tokenizer; None if neither exists."""
    for place in _sets(saved):
        if (place / MANIFEST).is_file():
            return PreparedSet(place).tokenizer
    named = saved.training.recipe.data.tokenizer
    try:
        return None if named is None else open_tokenizer(named)
    except Missing:
        return None


def tokenizer_beside(weights: Path) -> JsonTokenizer | None:
    """Return the tokenizer in a weights folder; None if there is none."""
    if not (weights / "tokenizer.json").is_file():
        return None
    return JsonTokenizer(weights / "tokenizer.json", special_token(weights, "eos_token") or "")


def _sets(saved: SavedState) -> list[Path]:
    """Return the folders that may contain the prepared tokens. The training run, its study or the user may have
    prepared them.
    """
    data, study = saved.training.recipe.data, saved.folder.absolute().parent.parent
    folders = [saved.folder / "data", *([study / "data"] if (study / "study.json").is_file() else [])]
    if data.parts:
        return [
            place
            for part in data.parts
            for place in (*(folder / part.name for folder in folders), Path(part.source).expanduser())
        ]
    return [*folders, Path(data.source).expanduser()]
