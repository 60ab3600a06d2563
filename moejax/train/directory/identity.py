"""Distinguish settings that affect the results of a training run from settings that only affect how it is computed.

A folder belongs to one training run. Settings that do not change numbers may change at every resume. Settings that
change numbers need the user's consent, and the folder's history records them. Settings that a saved state depends on
may never change.
"""

from __future__ import annotations

import datetime
import hashlib
import itertools
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from moejax.config import convert, dump
from moejax.errors import UserError
from moejax.folder import changes, has_writer
from moejax.stored import as_read, check_writable, claim, parse_json, read_json, write_json
from moejax.wording import some

T = TypeVar("T")

TRAINING, HISTORY, INITIAL_WEIGHTS = "training.json", "history.json", "initial_weights.json"

CORPUS = "corpus.json"
"""File with the hash of the text that a training run reads."""

DATA = "data"
"""Folder of the tokens that a training run prepares, unless another place is given."""

RUNS = "runs"
"""Subfolder of a training run with ``vmap`` axes that contains its runs' folders."""

DIVERGED = "diverged.json"
"""File in the folder of a vmapped run that diverged, with the reason. Without it, the run is tried again."""

REMEDY = "restore a copy, or remove it and give the run's config with --config"
"""Remedy for an unreadable ``training.json``."""

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
"""Settings and groups of settings that change numbers only by rounding. Texts and tokenizers are identified by their
hash, not by their path.
"""

SEMANTIC = (
    "recipe.runtime.compute_dtype",
    "recipe.runtime.matmul_quantization",
    "recipe.runtime.reduce_dtype",
)
"""Exceptions: settings that belong to a group of ``RESUMABLE`` but change numbers by more than rounding."""

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
    "recipe.optimizer.moments_dtype",
)
"""Settings that a saved state and its data position depend on; a training run can resume only with equal values."""

BUDGETS = "recipe.budgets_tokens"


@runtime_checkable
class Settings(Protocol):
    """Protocol of the dataclass ``Training``. This module cannot import that class, because it imports JAX, which is
    not needed to read a folder's status.
    """

    def as_json(self) -> dict[str, Any]: ...


_ENTRY = {"at": str, "changes": dict[str, list]}


def fingerprint(training: Mapping[str, Any]) -> str:
    """Return a hash of all settings that affect a training run's results, from its plain data."""
    return hashlib.sha256(json.dumps(_decisive(_leaves(training)), sort_keys=True).encode()).hexdigest()[:16]


def own(
    folder: Path,
    training: Settings,
    *,
    accept: bool = False,
    is_finished: bool = False,
    log: Callable[[str], None] = lambda text: None,
) -> None:
    """Claim a folder for ``training``, or accept that it already belongs to this training run. Update
    ``training.json``.

    A folder without logged or saved steps, as after a rejected start, can be claimed by any training run. Changes since
    a training run began are appended to ``history.json``: ``{"at": time, "changes": {path: [old, new]}}``.

    Args:
      accept: whether settings that affect results may change.
      is_finished: whether all budgets of ``training`` are trained, so that such changes would have no effect.

    Raises:
      UserError: the folder cannot be written, or belongs to a training run with other settings.
    """
    path = folder / TRAINING
    if not path.exists():
        if (folder / "checkpoints").is_dir():
            # Every checkpoint that is restored from this folder is compared with ``training`` (``check_trained``).
            check_writable(folder)
            write_json(path, training.as_json())
        else:
            claim(folder, TRAINING, training.as_json())
        return
    check_writable(folder)
    # Settings added after the folder was written have their defaults.
    saved = dump(read_json(path, type(training), remedy=REMEDY))
    changed = changes(saved, as_read(training.as_json()))
    if not _has_begun(folder) and not has_writer(folder):
        # Record the hashes of text and weights again. Prepare the text again if its tokens change.
        for name in (CORPUS, INITIAL_WEIGHTS):
            (folder / name).unlink(missing_ok=True)
        if _tokens(saved) != _tokens(training.as_json()) and (folder / DATA).exists():
            numbers = itertools.count(1)
            aside = next(place for n in numbers if not os.path.lexists(place := folder / f"{DATA}-old-{n}"))
            log(f"The tokens in {folder / DATA} do not match the new settings; the folder is moved to {aside}.")
            (folder / DATA).rename(aside)
        write_json(path, training.as_json())
        return
    _check(folder, _decisive(changed), accept, is_finished)
    if changed:
        log(f"{folder} resumes with changes: {_shown(changed)}.")
        history = read_history(folder)
        plain = {place: list(pair) for place, pair in changed.items()}
        if not history or history[-1]["changes"] != plain:
            now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            write_json(folder / HISTORY, [*history, {"at": now, "changes": plain}])
        write_json(path, training.as_json())


def _tokens(training: Mapping[str, Any]) -> dict[str, Any]:
    # These settings determine the tokens of the prepared sets.
    data = training["recipe"]["data"]
    parts = {part["name"]: part["source"] for part in data["mixture"]}
    names = ("source", "named_mixture", "tokenizer", "text_field", "validation_share")
    return {"parts": parts, **{name: data[name] for name in names}}


def _has_begun(folder: Path) -> bool:
    kept = ("metrics.jsonl", "branch-*.json", "checkpoints/*/*")
    return any(any(place.glob(name)) for place in (folder, *folder.glob(f"{RUNS}/*")) for name in kept)


def read_history(folder: Path) -> list[dict[str, Any]]:
    """Return the recorded changes of a folder's settings, oldest first."""
    path = folder / HISTORY
    return parse_history(path.read_bytes(), path) if path.exists() else []


def parse_history(content: bytes | str, path: object) -> list[dict[str, Any]]:
    """Parse the content of a ``history.json``.

    Raises:
      Damaged: the content is invalid.
    """
    return parse_json(
        content, list[_ENTRY], path, remedy="restore a copy, because the file explains this folder's numbers"
    )


def decisive_changes(folder: Path, *, until: float = math.inf) -> list[dict[str, Any]]:
    """Return the recorded changes that affect results, up to a Unix time. If there are any, ``training.json`` does not
    fully describe the run.
    """
    history = [one for one in read_history(folder) if datetime.datetime.fromisoformat(one["at"]).timestamp() <= until]
    return list(filter(None, (_decisive(entry["changes"]) for entry in history)))


def check_trained(
    folder: object, history: Sequence[Mapping[str, Any]], now: Settings, then: Mapping[str, Any] | None, what: str
) -> None:
    """Raise if the settings of a checkpoint or row differ from those of its folder.

    Args:
      history: accepted changes of the folder's settings.
      now: settings of the folder.
      then: settings recorded with the checkpoint or row, as plain data; None if an old version recorded none.
      what: name of the checkpoint or row, for messages.

    Raises:
      UserError: the settings differ, and no accepted changes explain the difference.
    """
    if then is None:
        return
    trained = dump(convert(type(now), then, f"The training in {what}"))
    accepted = tuple(path for entry in history for path in entry["changes"])
    different = _decisive(changes(trained, as_read(now.as_json())))
    if different := {path: pair for path, pair in different.items() if not _among(path, accepted)}:
        raise UserError(
            f"{what} in {folder} was trained with settings that differ from {TRAINING}: {_shown(different)}. Restore "
            f"the {TRAINING} of that run, or move files that do not belong to this folder away."
        )


def _decisive(settings: Mapping[str, T]) -> dict[str, T]:
    return {path: value for path, value in settings.items() if not _among(path, RESUMABLE) or _among(path, SEMANTIC)}


def _check(folder: Path, decisive: Mapping[str, tuple[Any, Any]], accept: bool, is_finished: bool) -> None:
    # A state can only be restored if both training runs have an EMA, or neither has one.
    fixed = {
        path: (old, new)
        for path, (old, new) in decisive.items()
        if _among(path, FROZEN) or (path == "recipe.ema_decay" and (old == 0) != (new == 0))
    }
    if fixed:
        raise UserError(
            f"{folder} belongs to another run: {_shown(fixed)}. Its checkpoints do not fit these settings; choose "
            "another --out, or use the same settings."
        )
    # A shorter list of budgets is useful without training: it declares the run finished.
    if is_finished and (idle := [path for path in decisive if path != BUDGETS]):
        raise UserError(
            f"All budgets of {folder} are trained, so a changed {some(idle, most=8)} would train nothing; add a budget "
            f"with --config.{BUDGETS}=…, or train in a new --out."
        )
    if decisive and not accept:
        raise UserError(
            f"{folder} belongs to another run: {_shown(decisive)}. Choose another --out, use the same settings, or "
            "continue from its checkpoints with --accept-changes."
        )


def _among(path: str, groups: tuple[str, ...]) -> bool:
    return any(path == group or path.startswith(f"{group}.") for group in groups)


def _shown(changed: Mapping[str, tuple[Any, Any]]) -> str:
    return some([f"{path} was {old!r}, is {new!r}" for path, (old, new) in changed.items()], most=8, between="; ")


def _leaves(value: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {path: value}
    return {
        place: leaf
        for key, item in value.items()
        for place, leaf in _leaves(item, f"{path}.{key}" if path else str(key)).items()
    }
