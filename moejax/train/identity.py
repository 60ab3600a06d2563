"""What decides the numbers of a training, and what only decides how they are computed.

A folder belongs to one training. How it is computed may change whenever it goes on; what decides its numbers may not,
unless its owner says so, and then the folder's history tells; what the saved state itself depends on may never.
"""

from __future__ import annotations

import contextlib
import copy
import datetime
import hashlib
import itertools
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from moejax.config import convert, dump
from moejax.errors import UserError
from moejax.folder import changes, has_writer
from moejax.stored import Damaged, Unreadable, as_read, check_writable, claim, parse_json, read_json, write_json
from moejax.train.manifest import PHASE, STEP, finished_steps, saved_beside
from moejax.wording import some, told

T = TypeVar("T")

TRAINING, HISTORY, INITIAL_WEIGHTS = "training.json", "history.json", "initial_weights.json"

CORPUS = "corpus.json"
"""The text that a training reads, by its hash."""

DATA = "data"
"""In the folder of a training, the tokens that it prepared, if no other place was named."""

RUNS = "runs"
"""In the folder of a training with ``vmap`` axes, the one that holds its runs' folders."""

DIVERGED = "diverged.json"
"""In the folder of a run that diverged among others, and why. Without it, the run is tried again."""

_TRAINED = "training"
"""What is saved beside a state: the training that it is a state of."""

REMEDY = "bring back a copy, or give the training's config with --config"
"""What can be done about a ``training.json`` that cannot be read."""

RESUMABLE = (
    "vmap",
    "recipe.mesh",
    "recipe.runtime",
    "recipe.hyperparameters",
    "recipe.log_every_steps",
    "recipe.evaluate_tokens",
    "recipe.checkpoint_tokens",
    "recipe.keep_checkpoints",
    "recipe.keep_every_tokens",
    "recipe.keep_best",
    "recipe.hang_seconds",
    "recipe.loggers",
    "recipe.data.source",
    "recipe.data.tokenizer",
    "recipe.data.corrupt_share",
)
"""Settings, or groups of them, that change no number beyond rounding. Of texts and tokenizers, their hash decides, not
the place where they lie."""

SEMANTIC = (
    "recipe.runtime.compute_dtype",
    "recipe.runtime.matmul_quantization",
    "recipe.runtime.reduce_dtype",
)
"""Exceptions: settings in a group of ``RESUMABLE`` that decide numbers all the same."""

FROZEN = (
    "architecture",
    "seed",
    "recipe.batch_tokens",
    "recipe.batch_ramp",
    "recipe.data",
    "recipe.loss.balance_loads",
    "recipe.initialisation",
    "recipe.initial_weights",
    "recipe.optimizer.name",
)
"""What a saved state and its place in the data depend on, so that nothing could go on with another."""


@runtime_checkable
class Settings(Protocol):
    """A training, as far as this file needs it: a frozen dataclass with plain data. The class itself needs JAX, and
    whoever reads a folder's status must not."""

    def as_json(self) -> dict[str, Any]: ...


_ENTRY = {"at": str, "changes": dict[str, list]}


def fingerprint(training: Mapping[str, Any]) -> str:
    """Hash of all that decides a training's numbers, from its plain data."""
    return hashlib.sha256(json.dumps(_decisive(_leaves(training)), sort_keys=True).encode()).hexdigest()[:16]


def own(
    folder: Path, training: Settings, *, accept: bool = False, log: Callable[[str], None] = lambda text: None
) -> None:
    """Make a folder that of ``training``, or go on with the one that it is of; ``training.json`` is as it is now.

    A folder in which no step was logged or saved, as after a start that was refused, belongs to nobody yet. What has
    changed since a training began is appended to ``history.json``: ``{"at": time, "changes": {path: [old, new]}}``.

    Raises:
      UserError: the folder cannot be written, or belongs to a training of which this is no continuation.
    """
    path = folder / TRAINING
    saved = _saved(path, type(training), log)
    if saved is None:
        if (folder / "checkpoints").is_dir():
            # Whatever is restored from there is compared with this training (``check_state``).
            check_writable(folder)
            write_json(path, training.as_json())
        else:
            claim(folder, TRAINING, training.as_json())
        return
    check_writable(folder)
    changed = changes(saved, as_read(training.as_json()))
    if not _has_begun(folder) and not has_writer(folder):
        # What its text and weights were is noted anew, and text that was chosen otherwise is prepared anew.
        for name in (CORPUS, INITIAL_WEIGHTS):
            (folder / name).unlink(missing_ok=True)
        if any(place.startswith("recipe.data") for place in changed):
            shutil.rmtree(folder / DATA, ignore_errors=True)
        write_json(path, training.as_json())
        return
    _check(folder, _decisive(changed), accept)
    if not changed:
        return
    log(f"{folder} goes on with changes: {_shown(changed)}.")
    history = read_history(folder)
    plain = {place: list(pair) for place, pair in changed.items()}
    if not history or history[-1]["changes"] != plain:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        write_json(folder / HISTORY, [*history, {"at": now, "changes": plain}])
    write_json(path, training.as_json())


def _has_begun(folder: Path) -> bool:
    """Return whether a training, or a run of one with ``vmap`` axes, logged or saved anything."""
    kept = ("metrics.jsonl", "branch-*.json", "checkpoints/*/*")
    return any(any(place.glob(name)) for place in (folder, *folder.glob(f"{RUNS}/*")) for name in kept)


def _saved(path: Path, kind: type[Settings], log: Callable[[str], None]) -> Any:
    """The training that a folder is of, as plain data; None if it does not say so. A file that is damaged is moved
    aside where there are checkpoints, which know their training too, and that is said."""
    if not path.exists():
        return None
    try:
        # Settings that are newer than the folder have their defaults there.
        return dump(read_json(path, kind, remedy=REMEDY))
    except Unreadable:
        raise
    except Damaged as problem:
        if not (path.parent / "checkpoints").is_dir():
            raise
        names = (path.with_name(f"{path.stem}.damaged-{number}{path.suffix}") for number in itertools.count(1))
        aside = path.rename(next(name for name in names if not name.exists()))
        log(f"{told(problem).removesuffix(f'; {REMEDY}.')}; it is now {aside}, and the settings that were given stand "
            f"in its place.")  # fmt: skip
        return None


def read_history(folder: Path) -> list[dict[str, Any]]:
    """The changes with which a folder was gone on with, oldest first."""
    path = folder / HISTORY
    return parse_history(path.read_bytes(), path) if path.exists() else []


def parse_history(content: bytes | str, path: object) -> list[dict[str, Any]]:
    """The changes that such a file tells of.

    Raises:
      Damaged: it tells of none.
    """
    remedy = "bring back a copy: without it nothing says how the numbers of this folder came about"
    return parse_json(content, list[_ENTRY], path, remedy=remedy)


@dataclass(frozen=True)
class TrainingInputs:
    """What a training's numbers come from beside its settings, as far as it is known."""

    corpus: str = ""
    """SHA-256 of the text."""
    tokenizer: str = ""
    """SHA-256."""
    initial_weights: str = ""
    """SHA-256 of the parameters that it began with, if they are another model's."""
    changes: tuple[dict[str, Any], ...] = ()
    """Those of ``history.json`` that decide numbers."""


_INPUTS = "inputs"
_SAVED = {_TRAINED: dict, PHASE: str, STEP: int, "seconds": float, _INPUTS: TrainingInputs}
_FILES = {"corpus": CORPUS, "tokenizer": CORPUS, "initial_weights": INITIAL_WEIGHTS}


def origin(training: Settings, inputs: TrainingInputs, phase: str, step: int) -> dict[str, Any]:
    """What is saved beside a state, for ``check_state``."""
    return {_TRAINED: training.as_json(), _INPUTS: dump(inputs), PHASE: phase, STEP: step}


def saved_inputs(folder: Path) -> TrainingInputs | None:
    """Those of some checkpoint of a training; None if there is none that tells."""
    for phase in sorted((folder / "checkpoints").glob("*/")):
        for step in finished_steps(phase):
            with contextlib.suppress(UserError):
                return convert(TrainingInputs, saved_beside(phase / str(step)).get(_INPUTS), "inputs")
    return None


def check_state(
    folder: Path,
    now: Settings,
    metadata: Mapping[str, Any],
    phase: str,
    step: int,
    inputs: TrainingInputs | None = None,
) -> None:
    """Refuse a checkpoint that is of another training than its folder.

    Args:
      now: what the folder says that it is.
      metadata: what was saved beside the state.
      inputs: what the training is to go on with; None where it does not.

    Raises:
      UserError: it was saved as another.
    """
    place = folder / "checkpoints" / phase / str(step)
    try:
        saved = convert(_SAVED, metadata, "It")[_INPUTS]
    except UserError as error:
        raise UserError(
            f"What was saved beside the state in {place} is damaged. {error} Move {place} away; the training then goes "
            f"on from the checkpoint before it."
        ) from None
    what = f"The checkpoint of step {step} of {phase}"
    check_trained(folder, read_history(folder), now, metadata.get(_TRAINED), what)
    if inputs is None:
        return
    for name, file in _FILES.items():
        before, here = getattr(saved, name), getattr(inputs, name)
        if before != here:
            raise UserError(
                f"{what} in {folder} was trained with {name} of SHA-256 {before[:12] or 'nothing'}…, and "
                f"{folder / file} tells of {here[:12] or 'nothing'}…. Bring back a copy of that file, or train anew in "
                f"another --out."
            )
    if list(saved.changes) != list(inputs.changes)[: len(saved.changes)]:
        raise UserError(
            f"{what} in {folder} was trained with changes of its settings that {folder / HISTORY} does not tell of. "
            f"Bring back a copy of that file, or train anew in another --out."
        )


def check_trained(folder: object, history: Sequence[Mapping[str, Any]], now: Settings, then: Any, what: str) -> None:
    """Refuse what was trained as something else than its folder says.

    Args:
      history: the changes that the owner of the folder has accepted.
      now: what the folder says that it is.
      then: what was trained, as plain data, kept with what came of it; None if a version wrote it that kept nothing.
      what: the checkpoint, or the row.

    Raises:
      UserError: it was trained otherwise, and no accepted change leads from there to here.
    """
    if then is None:
        return
    trained = dump(convert(type(now), then, f"The training in {what}"))
    plain = as_read(now.as_json())
    different = _decisive(changes(trained, plain))
    for entry in reversed(history):
        plain = _without(plain, entry["changes"])
        if not _decisive(changes(trained, plain)):
            return
    if different:
        raise UserError(
            f"{what} in {folder} is of another training than {TRAINING} there says: {_shown(different)}. Bring back "
            f"the {TRAINING} that it was trained with, or remove what is not of this folder."
        )


def _decisive(settings: Mapping[str, T]) -> dict[str, T]:
    """Those of some settings, or of their changes, that decide numbers."""
    return {place: what for place, what in settings.items() if not _is_resumable(place)}


def _without(plain: Mapping[str, Any], changed: Mapping[str, Any]) -> dict[str, Any]:
    """What a training was before a change."""
    found = copy.deepcopy(dict(plain))
    for path, (old, _) in changed.items():
        *outer, name = path.split(".")
        group = found
        for part in outer:
            inner = group.get(part)
            group[part] = group = dict(inner) if isinstance(inner, dict) else {}
        group[name] = old
    return found


def decisive_changes(folder: Path) -> list[dict[str, Any]]:
    """Those of the changes that decide numbers: with any, a training is not what its ``training.json`` alone tells."""
    return list(filter(None, (_decisive(entry["changes"]) for entry in read_history(folder))))


def _check(folder: Path, decisive: Mapping[str, tuple[Any, Any]], accept: bool) -> None:
    fixed = {place: pair for place, pair in decisive.items() if _among(place, FROZEN) or _appears(place, *pair)}
    if fixed:
        raise UserError(
            f"{folder} belongs to another run: {_shown(fixed)}. What is saved there cannot go on with that: choose "
            f"another --out, or the same settings."
        )
    if decisive and not accept:
        raise UserError(
            f"{folder} belongs to another run: {_shown(decisive)}. Choose another --out, or the same settings; or go "
            f"on with these from what is saved there by --accept-changes."
        )


def _appears(place: str, old: Any, new: Any) -> bool:
    """An EMA that the saved state does not hold cannot be resumed."""
    return place == "recipe.ema_decay" and (old == 0) != (new == 0)


def _is_resumable(path: str) -> bool:
    return _among(path, RESUMABLE) and not _among(path, SEMANTIC)


def _among(path: str, groups: tuple[str, ...]) -> bool:
    return any(path == group or path.startswith(f"{group}.") for group in groups)


def _shown(changed: Mapping[str, tuple[Any, Any]]) -> str:
    return some([f"{place} was {old!r}, is {new!r}" for place, (old, new) in changed.items()], most=8, between="; ")


def _leaves(value: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {path: value}
    return {
        place: leaf
        for key, item in value.items()
        for place, leaf in _leaves(item, f"{path}.{key}" if path else str(key)).items()
    }
