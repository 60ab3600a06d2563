"""The options of a ``config.json``: each is taken, or known to leave the function as it is, or refused by name."""

from __future__ import annotations

import typing
from collections.abc import Collection, Mapping
from typing import Any

from moejax.errors import UserError

_MISSING = object()

_NAMES = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    list: "a list",
    dict: "a group of options",
    type(None): "null",
}

IGNORED = frozenset(
    {
        "architectures",
        "model_type",
        "transformers_version",
        "torch_dtype",
        "dtype",
        "name_or_path",
        "_name_or_path",
        "auto_map",
        "attn_implementation",
        "_attn_implementation",
        "experts_implementation",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "tokenizer_class",
        "max_position_embeddings",
        "initializer_range",
        "use_cache",
        "return_dict",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "chunk_size_feed_forward",
        "id2label",
        "label2id",
        "num_labels",
        "problem_type",
        # These change a training and not the function that is trained; moejax has its own.
        "attention_dropout",
        "router_aux_loss_coef",
        "pretraining_tp",
    }
)
"""Options of every family without a say in what the model computes."""

CHECKPOINT_ONLY = frozenset(
    {
        "architectures",
        "model_type",
        "transformers_version",
        "torch_dtype",
        "dtype",
        "name_or_path",
        "_name_or_path",
        "auto_map",
    }
)
"""Ignored options that belong to one checkpoint, and do not travel to another of the same model."""


class Options:
    """Options as given, with what transformers assumes for those that are not."""

    def __init__(self, given: Mapping[str, Any], defaults: Mapping[str, Any], where: str):
        self.where = where
        self._given, self._defaults = given, defaults
        self._taken: set[str] = set()

    def take(self, name: str, kind: Any) -> Any:
        """An option of a kind (as ``int`` or ``str | None``); it counts as taken.

        Raises:
          UserError: it is missing, or of another kind.
        """
        self._taken.add(name)
        value = self._given.get(name, self._defaults.get(name, _MISSING))
        if value is _MISSING:
            raise UserError(f"{self.where} lacks {name}; it is not whole: fetch it again.")
        kinds = typing.get_args(kind) or (kind,)
        if not isinstance(value, kind) or (isinstance(value, bool) and bool not in kinds):
            names = " or ".join(_NAMES[kind] for kind in kinds)
            raise UserError(f"{self.where}: {name} is {value!r}; it must be {names}.")
        return value

    def require(self, name: str, only: Any) -> None:
        """Take an option that moejax computes for one value alone.

        Raises:
          UserError: it has another.
        """
        self._taken.add(name)
        value = self._given.get(name)
        if value is not None and value != only:
            raise UserError(f"{self.where}: {name} is {value!r}; moejax computes {only!r} alone.")

    def finish(self, ignored: Collection[str]) -> None:
        """Refuse what was neither taken nor is known to be ignored, unless it is off.

        Raises:
          UserError: names such an option.
        """
        for name, value in self._given.items():
            if name in self._taken or name in ignored or not value:
                continue
            raise UserError(
                f"{self.where}: {name} is {value!r}, an option that moejax does not know and that may change the "
                f"function. If it does not, take it out of the file."
            )
