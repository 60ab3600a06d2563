"""Read the options of a ``config.json``. Each is used, known not to affect the model's function, or rejected."""

from __future__ import annotations

import typing
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from moejax.errors import UserError
from moejax.wording import some

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

CHECKPOINT_ONLY = frozenset(
    {
        "architectures",
        "model_type",
        "transformers_version",
        "torch_dtype",
        "dtype",
        "name_or_path",
        "auto_map",
    }
)
"""Options that belong to one checkpoint and are not copied to another one of the same model."""

IGNORED = CHECKPOINT_ONLY | frozenset(
    {
        "attn_implementation",
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
        # These affect training but not the function of the model; moejax has its own settings.
        "attention_dropout",
        "router_aux_loss_coef",
        "pretraining_tp",
        # Arguments of generation and of other tasks, which releases of transformers before 5 stored in config.json.
        "max_length",
        "min_length",
        "do_sample",
        "early_stopping",
        "num_beams",
        "num_beam_groups",
        "num_return_sequences",
        "diversity_penalty",
        "temperature",
        "top_k",
        "top_p",
        "typical_p",
        "repetition_penalty",
        "length_penalty",
        "no_repeat_ngram_size",
        "encoder_no_repeat_ngram_size",
        "bad_words_ids",
        "begin_suppress_tokens",
        "suppress_tokens",
        "exponential_decay_length_penalty",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "decoder_start_token_id",
        "sep_token_id",
        "output_scores",
        "return_dict_in_generate",
        "remove_invalid_values",
        "task_specific_params",
        "finetuning_task",
        "prefix",
        "torchscript",
        "use_bfloat16",
        "tf_legacy_loss",
    }
)
"""Options of every family that do not affect the function of the model."""

BOOKKEEPING = ("_", "unsloth_")
"""Prefixes of options that transformers and other tools write for internal use."""


class Options:
    """Options as given, with the defaults of transformers for missing ones.

    ``switches`` maps options to the option that enables them. An option is null if its switch is off.
    """

    def __init__(
        self,
        given: Mapping[str, Any],
        defaults: Mapping[str, Any],
        where: str,
        switches: Mapping[str, str] = MappingProxyType({}),
    ):
        self.where = where
        self._given, self._defaults, self._switches = given, defaults, switches
        self._taken: set[str] = set()

    def take(self, name: str, kind: Any) -> Any:
        """Return an option of a type (such as ``int`` or ``str | None``), and mark it as used.

        Raises:
          UserError: the option is missing or has another type.
        """
        self._taken.add(name)
        if name in self._switches and not self.take(self._switches[name], bool):
            return None
        value = self._given.get(name, self._defaults.get(name, _MISSING))
        if value is _MISSING:
            raise UserError(f"{self.where} lacks {name}. The file may be incomplete; fetch it again.")
        kinds = typing.get_args(kind) or (kind,)
        if not isinstance(value, kind) or (isinstance(value, bool) and bool not in kinds):
            names = " or ".join(_NAMES[kind] for kind in kinds)
            raise UserError(f"{self.where}: {name} is {value!r}; it must be {names}.")
        return value

    def require(self, name: str, only: Any) -> None:
        """Check an option that moejax supports with one value only, and mark it as used.

        Raises:
          UserError: the option has another value.
        """
        self._taken.add(name)
        value = self._given.get(name)
        if value is not None and value != only:
            raise UserError(f"{self.where}: {name} is {value!r}; moejax supports only {only!r}.")

    def finish(self, ignored: Collection[str]) -> None:
        """Reject options that are set, were not used, and may not be ignored.

        Raises:
          UserError: there are such options. The message lists all of them.
        """
        off = {name for name, switch in self._switches.items() if not self.take(switch, bool)}
        unknown = [
            f"{name} is {value!r}"
            for name, value in self._given.items()
            if value and name not in {*self._taken, *ignored, *off} and not name.startswith(BOOKKEEPING)
        ]
        if unknown:
            raise UserError(
                f"{self.where}: {some(unknown, most=20)}. moejax does not know these options, which may change the "
                f"model's function. Remove options that do not change it from the file."
            )
