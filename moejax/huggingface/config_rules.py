"""Convert options of a ``config.json`` that belong together to fields of an Architecture, and back.

The rules cover attention heads and biases, rotary positions, sliding windows, and the choice of layers with experts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from moejax.architecture import Architecture, RopeScaling
from moejax.config import unknown
from moejax.errors import UserError
from moejax.huggingface.options import Options


class ConfigRule(NamedTuple):
    """A pair of inverse conversions between options and fields."""

    read: Callable[[Options], dict[str, Any]]
    """Return fields of an Architecture from the options."""
    write: Callable[[Architecture], dict[str, Any]]
    """Return options from an architecture. Fields that the options cannot express differ when they are read back."""
    switches: Mapping[str, str] = MappingProxyType({})
    """Mapping from an option to the switch that enables it. transformers ignores the option if its switch is off."""


def _read_heads(options: Options) -> dict[str, Any]:
    heads = options.take("num_attention_heads", int)
    if heads < 1:
        raise UserError(f"{options.where}: num_attention_heads is {heads}; it must be at least 1.")
    kv_heads, head_dim = options.take("num_key_value_heads", int | None), options.take("head_dim", int | None)
    return {
        "num_heads": heads,
        "num_kv_heads": heads if kv_heads is None else kv_heads,
        "head_dim": options.take("hidden_size", int) // heads if head_dim is None else head_dim,
    }


def _write_heads(architecture: Architecture) -> dict[str, Any]:
    a = architecture
    return {"num_attention_heads": a.num_heads, "num_key_value_heads": a.num_kv_heads, "head_dim": a.head_dim}


HEADS = ConfigRule(_read_heads, _write_heads)
"""Heads of grouped-query attention and their width, by default the model width divided by the number of heads."""


def _read_split_heads(options: Options) -> dict[str, Any]:
    fields = _read_heads(options)
    split = options.take("hidden_size", int) // fields["num_heads"]
    if fields["head_dim"] != split:
        raise UserError(
            f"{options.where}: head_dim is {fields['head_dim']}; it must be hidden_size / heads = {split} here."
        )
    return fields


SPLIT_HEADS = ConfigRule(_read_split_heads, _write_heads)
"""Heads whose width is always the model width divided by their number (OLMoE)."""


def _read_biases(options: Options) -> dict[str, Any]:
    biased = options.take("attention_bias", bool)
    return {"attention_bias": biased, "attention_output_bias": biased}


BIASES = ConfigRule(_read_biases, lambda architecture: {"attention_bias": architecture.attention_bias})
"""Biases in all projections of attention, or in none."""


_ROPE_NAMES = {"original_length": "original_max_position_embeddings"}
"""Fields of RopeScaling whose names in config.json differ."""

_ROPE_FIELDS = {
    "linear": ("factor",),
    "llama3": ("factor", "original_length", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor", "original_length", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
}
"""Fields that each kind of scaling reads."""

_READ_BY_SOME_KIND = {str(_ROPE_NAMES.get(name, name)) for names in _ROPE_FIELDS.values() for name in names} - {
    "mscale_all_dim"
}
"""Options that transformers ignores unless the kind reads them. It reads ``mscale_all_dim`` for every kind."""

_ROPE_KINDS: dict[type, Any] = {bool: bool, int: int, float: float | int}


def _read_rope(options: Options) -> dict[str, Any]:
    # Releases of transformers before 5 write rope_theta and rope_scaling; later releases write both in rope_parameters.
    given = options.take("rope_scaling", dict | None) or options.take("rope_parameters", dict | None) or {}
    options.take("rope_parameters", dict | None)
    inner = Options(given, {"rope_theta": options.take("rope_theta", float | int)}, f"{options.where}: rope scaling")
    theta = float(inner.take("rope_theta", float | int))
    kind = given.get("rope_type", given.get("type", "default"))
    for name in ("rope_type", "type"):
        inner.require(name, kind)
    inner.require("partial_rotary_factor", 1.0)
    inner.require("attention_factor", None)
    if kind == "default":
        scaling = None
    elif kind not in _ROPE_FIELDS:
        raise UserError(unknown(f"{options.where}: rope type {kind!r}", str(kind), ["default", *_ROPE_FIELDS]))
    else:
        scaling = _read_scaling(kind, given, inner, options)
    inner.finish(_READ_BY_SOME_KIND)
    return {"rope_theta": theta, "rope_scaling": scaling}


def _read_scaling(kind: str, given: dict[str, Any], inner: Options, options: Options) -> RopeScaling:
    defaults = RopeScaling(kind=kind, factor=1.0)
    values: dict[str, Any] = {}
    for name in _ROPE_FIELDS[kind]:
        theirs = _ROPE_NAMES.get(name, name)
        default = getattr(defaults, name)
        # None in config.json means the default.
        value = inner.take(theirs, _ROPE_KINDS[type(default)] | None) if theirs in given else None
        values[name] = default if value is None else type(default)(value)
    if "original_length" in values and not values["original_length"]:
        values["original_length"] = options.take("max_position_embeddings", int)
    if given.get("factor") is None:
        if kind != "yarn":
            raise UserError(f"{options.where}: rope scaling {kind!r} has no factor; add one.")
        values["factor"] = options.take("max_position_embeddings", int) / values["original_length"]
    return RopeScaling(kind=kind, **values)


def _write_rope(architecture: Architecture) -> dict[str, Any]:
    scaling, theta = architecture.rope_scaling, architecture.rope_theta
    if scaling is None:
        return {"rope_theta": theta, "rope_scaling": None}
    written = {_ROPE_NAMES.get(name, name): getattr(scaling, name) for name in _ROPE_FIELDS[scaling.kind]}
    unset = [name for name in ("mscale", "mscale_all_dim") if not written.get(name, True)]
    return {
        "rope_theta": theta,
        "rope_scaling": {"rope_type": scaling.kind} | {k: v for k, v in written.items() if k not in unset},
    }


def _write_rope_always(architecture: Architecture) -> dict[str, Any]:
    written = _write_rope(architecture)
    return written | {"rope_scaling": written["rope_scaling"] or {"rope_type": "default"}}


ROPE = ConfigRule(_read_rope, _write_rope)
ROPE_ALWAYS_WRITTEN = ConfigRule(_read_rope, _write_rope_always)
"""Rotary positions for a family that assumes a scaling if none is given."""


_WINDOWED = {"sliding_attention": "W", "full_attention": "F"}


def window_fields(sliding_window: int, has_window: Sequence[bool]) -> dict[str, Any]:
    """Return the Architecture fields that describe which layers have a window, keyed by name."""
    if not sliding_window or not any(has_window):
        return {"sliding_window": 0, "window_pattern": "W"}
    letters = "".join("W" if window else "F" for window in has_window)
    return {"sliding_window": sliding_window, "window_pattern": period(letters)}


def _read_one_window(options: Options) -> dict[str, Any]:
    return window_fields(options.take("sliding_window", int | None) or 0, [True])


def _write_one_window(architecture: Architecture) -> dict[str, Any]:
    return {"sliding_window": architecture.sliding_window or None}


ONE_WINDOW = ConfigRule(_read_one_window, _write_one_window)
"""A window in every layer, or in none (Mixtral)."""


_WINDOW_SWITCH: dict[str, str] = dict.fromkeys(
    ("sliding_window", "max_window_layers", "layer_types"), "use_sliding_window"
)


def _write_switched_window(architecture: Architecture) -> dict[str, Any]:
    window = architecture.sliding_window
    return {"use_sliding_window": bool(window), "sliding_window": window or None}


SWITCHED_WINDOW = ConfigRule(_read_one_window, _write_switched_window, _WINDOW_SWITCH)
"""A window in every layer, enabled by a switch (Qwen3-MoE)."""


def _layer_types(options: Options) -> list[bool] | None:
    types = options.take("layer_types", list | None)
    if types is None:
        return None
    layers = options.take("num_hidden_layers", int)
    strange = [name for name in types if name not in _WINDOWED]
    if strange or len(types) != layers:
        raise UserError(
            f"{options.where}: layer_types is {types}; it must name {' or '.join(_WINDOWED)} for each of the {layers} "
            f"layers."
        )
    return [_WINDOWED[name] == "W" for name in types]


def _written_layer_types(architecture: Architecture) -> list[str]:
    return ["sliding_attention" if window else "full_attention" for window in architecture.has_window]


def _read_named_windows(options: Options) -> dict[str, Any]:
    types = _layer_types(options)
    if types is None and options.take("use_sliding_window", bool):
        raise UserError(
            f"{options.where}: use_sliding_window is True without layer_types. The layers with a window then depend on "
            f"the release of transformers; add layer_types."
        )
    return window_fields(options.take("sliding_window", int | None) or 0, types or [])


def _write_named_windows(architecture: Architecture) -> dict[str, Any]:
    return _write_switched_window(architecture) | {"layer_types": _written_layer_types(architecture)}


NAMED_WINDOWS = ConfigRule(_read_named_windows, _write_named_windows, _WINDOW_SWITCH)
"""A window in the listed layers, enabled by a switch (Qwen2-MoE)."""


def _read_alternating_windows(options: Options) -> dict[str, Any]:
    types = _layer_types(options)
    if types is None:
        types = [layer % 2 == 0 for layer in range(options.take("num_hidden_layers", int))]
    return window_fields(options.take("sliding_window", int | None) or 0, types)


def _write_alternating_windows(architecture: Architecture) -> dict[str, Any]:
    return {
        "sliding_window": architecture.sliding_window or None,
        "layer_types": _written_layer_types(architecture),
    }


ALTERNATING_WINDOWS = ConfigRule(_read_alternating_windows, _write_alternating_windows)
"""A window in the listed layers, by default in every second layer beginning with the first (gpt-oss)."""


def period(letters: str) -> str:
    """Return the shortest pattern whose repetition gives the letters."""
    sizes = range(1, len(letters) + 1)
    return next((letters[:n] for n in sizes if (letters[:n] * len(letters)).startswith(letters)), letters)


def expert_fields(has_experts: Sequence[bool]) -> dict[str, Any]:
    """Return the Architecture fields that describe which layers have experts, keyed by name."""
    letters = "".join("E" if experts else "D" for experts in has_experts)
    between = letters.strip("D")
    first = len(letters) - len(letters.lstrip("D"))
    last = len(letters) - first - len(between) if between else 0
    return {"num_dense_layers": first, "num_last_dense_layers": last, "layer_pattern": period(between) or "E"}


def _read_dense_layers(options: Options) -> dict[str, Any]:
    layers, step = options.take("num_hidden_layers", int), options.take("decoder_sparse_step", int)
    dense = options.take("mlp_only_layers", list | None) or []
    if step < 1:
        raise UserError(f"{options.where}: decoder_sparse_step is {step}; it must be at least 1.")
    experts = [layer not in dense and (layer + 1) % step == 0 for layer in range(layers)]
    return {"dense_hidden": options.take("intermediate_size", int)} | expert_fields(experts)


def _write_dense_layers(architecture: Architecture) -> dict[str, Any]:
    return {
        "decoder_sparse_step": 1,
        "mlp_only_layers": [layer for layer, experts in enumerate(architecture.has_experts) if not experts],
        "intermediate_size": architecture.dense_hidden or architecture.expert_hidden,
    }


DENSE_LAYERS = ConfigRule(_read_dense_layers, _write_dense_layers)
"""Dense layers given by a step and a list (Qwen)."""
