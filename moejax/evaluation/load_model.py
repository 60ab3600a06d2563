"""Load a model from a training run, its checkpoint, a weights folder or Hugging Face, and hash its function."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from moejax.config import dump
from moejax.data.tokenizer import Tokenizer, open_tokenizer
from moejax.errors import UserError
from moejax.huggingface.conversion import ORIGIN, from_huggingface
from moejax.huggingface.family import canonical
from moejax.stored import read_json
from moejax.train.directory.saved_weights import (
    SavedState,
    find_saved_state,
    is_training,
    saved_tokenizer,
    tokenizer_beside,
    write_saved_weights,
)
from moejax.train.training import Training
from moejax.weights.folder import EXPERT_BIAS, Weights, flat, is_weights, load_weights, special_token

DEFAULT_LENGTH = 2048
"""Maximum number of tokens of a text if the model does not specify a maximum. The harness has the same default."""


class LoadedModel(NamedTuple):
    """Weights in memory, with tokenizer and metadata."""

    weights: Weights
    tokenizer: Tokenizer | None
    """The requested tokenizer, or else the model's own tokenizer; None if the model has none."""
    first_token: int | None
    """Token that replaces an empty text, if the model's files name such a token."""
    sequence_length: int | None
    """Sequence length of the training run or of the model's files; None if unknown."""
    origin: dict[str, Any]
    """Origin of the weights, stored with results."""
    training: Training | None = None
    """The training run of the weights, if the folder is a training run."""


def load_model(path: Path, tokenizer: str | None = None) -> LoadedModel:
    """Load the model in a folder. ``tokenizer``, an argument of ``open_tokenizer``, replaces the model's own tokenizer.

    Raises:
      UserError: the model does not exist or is incomplete, or the tokenizer has a larger vocabulary than the model.
    """
    check_model(path)
    if is_weights(path):
        return _of_weights(path, tokenizer, {"kind": "weights"})
    with tempfile.TemporaryDirectory() as between:
        folder = Path(between) / "weights"
        if is_training(path):
            saved = find_saved_state(path)
            write_saved_weights(saved, folder)
            model = _of_weights(folder, tokenizer, _described(saved))
            length = saved.training.recipe.data.sequence_length
            own = model.tokenizer or saved_tokenizer(saved)
            own = own and own.as_in_training()
            return model._replace(
                tokenizer=_fitting(own, model.weights), sequence_length=length, training=saved.training
            )
        done = from_huggingface(path, folder)
        return _of_weights(folder, tokenizer, {"kind": "huggingface", "family": done.family})


def check_model(path: Path) -> None:
    """Raise ``UserError`` if ``load_model`` cannot read the folder."""
    if not path.is_dir():
        raise UserError(
            f"There is no folder {path}; pass the --out of a training run, one of its checkpoints, a weights folder, "
            f"or a Hugging Face checkpoint."
        )
    if not (is_weights(path) or is_training(path) or (path / "config.json").is_file()):
        raise UserError(
            f"{path} has no model. Pass the --out of moejax train, a weights folder of moejax convert, or a Hugging "
            f"Face checkpoint with a config.json."
        )


def _of_weights(folder: Path, named: str | None, origin: dict[str, Any]) -> LoadedModel:
    weights = load_weights(folder)
    own = None if named is not None else tokenizer_beside(folder)
    begin = own and special_token(folder, "bos_token")
    first = own.number(begin) if own and begin else None
    tokenizer = own if named is None else open_tokenizer(named)
    return LoadedModel(weights, _fitting(tokenizer, weights), first, _length(folder), origin)


def load_with_tokenizer(path: Path, tokenizer: str | None = None) -> tuple[LoadedModel, Tokenizer]:
    """Load the model in a folder, as ``load_model`` does, and its tokenizer.

    Raises:
      UserError: as for ``load_model``, or there is no tokenizer.
    """
    model = load_model(path, tokenizer)
    if model.tokenizer is None:
        raise UserError(
            f"{path} contains no tokenizer. Pass the tokenizer that the model was trained with as --tokenizer: "
            "bytes, or the path of a tokenizer.json."
        )
    return model, model.tokenizer


def _fitting(tokenizer: Tokenizer | None, weights: Weights) -> Tokenizer | None:
    if tokenizer is not None and tokenizer.vocab_size > weights.architecture.vocab_size:
        raise UserError(
            f"The tokenizer has {tokenizer.vocab_size} tokens, but the model has {weights.architecture.vocab_size}; "
            "pass "
            f"the tokenizer that the model was trained with as --tokenizer."
        )
    return tokenizer


def _length(folder: Path) -> int | None:
    path = folder / ORIGIN
    if not path.is_file():
        return None
    options = read_json(path, {"options": dict}, remedy="remove it, or convert again")["options"]
    length = options.get("max_position_embeddings")
    return length if isinstance(length, int) else None


def _described(saved: SavedState) -> dict[str, Any]:
    return {
        "kind": "training",
        "name": saved.training.name,
        "training": saved.training.fingerprint(),
        "phase": saved.phase,
        "step": saved.step,
        "tokens": saved.tokens,
    }


def fingerprint(weights: Weights) -> str:
    """Return a hash of the parameters in float32 and of the function that the architecture computes.

    Architectures that compute the same function, such as routers that differ only in training, have the same hash,
    because a transformers checkpoint cannot distinguish them. An expert bias of zeros counts as no expert bias.
    """
    bias = {} if weights.expert_bias is None or not np.any(weights.expert_bias) else {EXPERT_BIAS: weights.expert_bias}
    architecture = canonical(weights.architecture).replace(expert_bias=bool(bias))
    default = {field.name: field.default for field in dataclasses.fields(architecture)}
    changed = {name: value for name, value in dump(architecture).items() if value != default[name]}
    digest = hashlib.sha256(json.dumps(changed, sort_keys=True).encode())
    for name, array in sorted((dict(flat(weights.params)) | bias).items()):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(np.asarray(array, np.float32)).data)
    return digest.hexdigest()[:16]
