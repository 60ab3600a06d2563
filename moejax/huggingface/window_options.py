"""Which layers have a sliding window, in a ``config.json``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from moejax.architecture import Architecture
from moejax.errors import UserError
from moejax.huggingface.aspect import Aspect
from moejax.huggingface.options import Options
from moejax.huggingface.period import period

_WINDOWED = {"sliding_attention": "W", "full_attention": "F"}


def window_fields(sliding_window: int, has_window: Sequence[bool]) -> dict[str, Any]:
    """The fields of an Architecture that say which layers have a window."""
    if not sliding_window or not any(has_window):
        return {"sliding_window": 0, "window_pattern": "W"}
    letters = "".join("W" if window else "F" for window in has_window)
    return {"sliding_window": sliding_window, "window_pattern": period(letters)}


def _read_one_window(options: Options) -> dict[str, Any]:
    return window_fields(options.take("sliding_window", int | None) or 0, [True])


def _write_one_window(architecture: Architecture) -> dict[str, Any]:
    return {"sliding_window": architecture.sliding_window or None}


ONE_WINDOW = Aspect(_read_one_window, _write_one_window)
"""A window in every layer, or in none (Mixtral)."""


def _read_switched_window(options: Options) -> dict[str, Any]:
    used = options.take("use_sliding_window", bool)
    return window_fields((options.take("sliding_window", int | None) or 0) if used else 0, [True])


def _write_switched_window(architecture: Architecture) -> dict[str, Any]:
    window = architecture.sliding_window
    return {"use_sliding_window": bool(window), "sliding_window": window or None}


SWITCHED_WINDOW = Aspect(_read_switched_window, _write_switched_window)
"""A window in every layer that a switch turns on (Qwen3-MoE)."""


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
    types, used = _layer_types(options), options.take("use_sliding_window", bool)
    if not used:
        return window_fields(0, [])
    if types is None:
        raise UserError(
            f"{options.where}: use_sliding_window is True, but there are no layer_types, and releases of transformers "
            f"disagree about which layers then have the window; name them in layer_types."
        )
    return window_fields(options.take("sliding_window", int | None) or 0, types)


def _write_named_windows(architecture: Architecture) -> dict[str, Any]:
    return _write_switched_window(architecture) | {"layer_types": _written_layer_types(architecture)}


NAMED_WINDOWS = Aspect(_read_named_windows, _write_named_windows)
"""A window, turned on by a switch, in the layers that are named (Qwen2-MoE)."""


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


ALTERNATING_WINDOWS = Aspect(_read_alternating_windows, _write_alternating_windows)
"""A window in the layers that are named, by default in every other one from the first (gpt-oss)."""
