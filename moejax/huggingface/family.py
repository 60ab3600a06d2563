"""Describe a family of published models: how ``config.json`` and tensors map to an Architecture and its parameters."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from moejax.architecture import Architecture
from moejax.config import build
from moejax.errors import UserError
from moejax.huggingface.config_rules import ConfigRule, expert_fields, window_fields
from moejax.huggingface.options import IGNORED, Options
from moejax.huggingface.weight_mapping import WeightMapping
from moejax.model import transformer
from moejax.wording import told


@dataclass(frozen=True, kw_only=True)
class ModelFamily:
    """A model family: its names, options and tensors in transformers and in moejax. It is used in both directions."""

    name: str
    """``model_type`` in its config.json."""
    model_class: str
    """Name of its class in transformers."""
    fields: Mapping[str, str]
    """Architecture fields, keyed by the option that corresponds to each."""
    always: Mapping[str, Any]
    """Architecture fields with the same value in all models of the family."""
    required: Mapping[str, Any]
    """Options with a single supported value, and this value."""
    always_so: Mapping[str, Any] = field(default_factory=dict)
    """Options of published files that transformers ignores, and the value that it always assumes."""
    least: Mapping[str, int] = field(default_factory=dict)
    """Minimum values of Architecture fields."""
    defaults: Mapping[str, Any]
    """Defaults of transformers for options that are not in the file."""
    rules: tuple[ConfigRule, ...]
    """Rules for groups of options that determine fields jointly."""
    mappings: Callable[[Architecture], list[WeightMapping]]
    ignored: frozenset[str] = frozenset()
    """Options of this family that do not affect the function of the model, in addition to ``IGNORED``."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Names of options, keyed by alias."""
    further_layers: bool = False
    """True if checkpoints may have modules after the model's last layer, which are left out."""

    @property
    def switches(self) -> dict[str, str]:
        """Return the switches of all rules, keyed by the option that each enables."""
        return {name: switch for rule in self.rules for name, switch in rule.switches.items()}

    def architecture(self, config: Mapping[str, Any], where: str = "config.json") -> Architecture:
        """Return the architecture described by a config.json.

        Raises:
          UserError: an option is missing, has a wrong type, or requires a function that moejax lacks.
        """
        given = {self.aliases.get(name, name): value for name, value in config.items()}
        options = Options(given, self.defaults, where, self.switches)
        for name, only in {**self.required, **self.always_so}.items():
            options.require(name, only)
        values = {name: options.take(option, _KINDS[name]) for option, name in self.fields.items()}
        for rule in self.rules:
            values |= rule.read(options)
        options.finish(IGNORED | self.ignored)
        for name, least in self.least.items():
            if values[name] < least:
                option = next(option for option, of in self.fields.items() if of == name)
                raise UserError(f"{where}: {option} is {values[name]}; {self.name} requires at least {least}.")
        architecture = build(Architecture, {**self.always, **values, "rope_scaling": None}, where)
        architecture = architecture.replace(rope_scaling=values.get("rope_scaling"))
        try:
            transformer.check(architecture)
        except ValueError as error:
            raise UserError(f"{where}: {told(error)}") from error
        return architecture

    def config(self, architecture: Architecture) -> dict[str, Any]:
        """Return the options of an architecture's config.json that determine its function, keyed by name.

        Raises:
          UserError: the family cannot express the architecture. The message lists the fields.
        """
        try:
            different = self.differences(architecture)
        except ValueError as error:
            raise UserError(f"{self.name} cannot express this architecture: {told(error)}") from error
        if different:
            raise UserError(f"{self.name} cannot express {', '.join(different)}.")
        return {"model_type": self.name, "architectures": [self.model_class], **self._options(architecture)}

    def differences(self, architecture: Architecture) -> list[str]:
        """List the differences between an architecture and the closest model of this family; empty if there are none.

        Raises:
          UserError: no model of this family is close.
        """
        near = architecture.replace(
            **{name: least for name, least in self.least.items() if getattr(architecture, name) < least}
        )
        back = self.architecture(self._options(near), "the exported options")
        ours, theirs = canonical(architecture), canonical(back)
        if theirs.expert_bias and not ours.expert_bias:
            # A bias of zeros is equivalent to no bias.
            theirs = theirs.replace(expert_bias=False)
        names = [f.name for f in dataclasses.fields(Architecture)]
        different = [name for name in names if getattr(ours, name) != getattr(theirs, name)]
        # The canonical width of shared experts is 0 without any.
        if {"num_shared_experts", "shared_hidden"} <= {*different}:
            different.remove("shared_hidden")
        # Report values as given, unless their canonical form equals the family's.
        written = [architecture if getattr(architecture, name) != getattr(theirs, name) else ours for name in different]
        return [
            f"{name} = {getattr(a, name)!r} (nearest value: {getattr(theirs, name)!r})"
            for name, a in zip(different, written, strict=True)
        ]

    def _options(self, architecture: Architecture) -> dict[str, Any]:
        options = {option: getattr(architecture, name) for option, name in self.fields.items()}
        for rule in self.rules:
            options |= rule.write(architecture)
        return options | dict(self.required)


_HINTS = typing.get_type_hints(Architecture)
_KINDS = {name: {Any: int, float: float | int}.get(hint, hint) for name, hint in _HINTS.items()}
"""Types of the Architecture fields; fields of type Any are integers."""

_SAME_ROUTER: dict[str, dict[str, Any]] = {
    "topk_softmax": {"router": "softmax_topk", "norm_topk_prob": True},
    "switch": {"router": "softmax_topk", "norm_topk_prob": False},
    "sigmoid_topk": {"router": "group_limited", "num_groups": 1, "top_k_groups": 1},
}
"""Routers that, without noise, equal another router with certain options."""


def canonical(architecture: Architecture) -> Architecture:
    """Return the canonical form of an architecture, shared by all architectures with the same inference function."""
    a = architecture
    shared = a.num_shared_experts * a.shared_width if a.num_shared_experts else 0
    changes: dict[str, Any] = dict(_SAME_ROUTER.get(a.router, {}))
    changes |= expert_fields(a.has_experts) | window_fields(a.sliding_window, a.has_window)
    changes |= {
        "dense_hidden": 0 if all(a.has_experts) else a.dense_hidden,
        "num_shared_experts": min(shared, 1),
        "shared_hidden": shared,
        "value_head_dim": a.value_width,
    }
    return a.replace(**changes)
