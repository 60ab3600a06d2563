"""Rotary positions in a ``config.json``: the base, and a scaling with its kind's own options."""

from __future__ import annotations

from typing import Any

from moejax.architecture import Architecture, RopeScaling
from moejax.config import unknown
from moejax.errors import UserError
from moejax.huggingface.aspect import Aspect
from moejax.huggingface.options import Options

_THEIRS = {"original_length": "original_max_position_embeddings"}
"""Fields of a RopeScaling that have another name there."""

_FIELDS = {
    "linear": ("factor",),
    "llama3": ("factor", "original_length", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor", "original_length", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
}
"""What each kind reads."""

_READ_BY_SOME_KIND = {str(_THEIRS.get(name, name)) for names in _FIELDS.values() for name in names} - {"mscale_all_dim"}
"""Options that transformers passes over where the kind is another; but one it reads for every kind."""

_KINDS: dict[type, Any] = {bool: bool, int: int, float: float | int}


def _read(options: Options) -> dict[str, Any]:
    # Releases before 5 write rope_theta and rope_scaling, later ones both in rope_parameters.
    given = options.take("rope_scaling", dict | None) or options.take("rope_parameters", dict | None) or {}
    options.take("rope_parameters", dict | None)
    inner = Options(given, {"rope_theta": options.take("rope_theta", float | int)}, f"{options.where}: rope scaling")
    theta = float(inner.take("rope_theta", float | int))
    kind = given.get("rope_type", given.get("type", "default"))
    for name in ("rope_type", "type"):
        inner.demand(name, kind)
    inner.demand("partial_rotary_factor", 1.0)
    inner.demand("attention_factor", None)
    if kind == "default":
        scaling = None
    elif kind not in _FIELDS:
        raise UserError(unknown(f"{options.where}: rope type {kind!r}", str(kind), ["default", *_FIELDS]))
    else:
        scaling = _read_scaling(kind, given, inner, options)
    inner.finish(_READ_BY_SOME_KIND)
    return {"rope_theta": theta, "rope_scaling": scaling}


def _read_scaling(kind: str, given: dict[str, Any], inner: Options, options: Options) -> RopeScaling:
    defaults = RopeScaling(kind=kind, factor=1.0)
    values: dict[str, Any] = {}
    for name in _FIELDS[kind]:
        theirs = _THEIRS.get(name, name)
        default = getattr(defaults, name)
        # None there means what is the default here.
        value = inner.take(theirs, _KINDS[type(default)] | None) if theirs in given else None
        values[name] = default if value is None else type(default)(value)
    if "original_length" in values and not values["original_length"]:
        values["original_length"] = options.take("max_position_embeddings", int)
    if given.get("factor") is None:
        if kind != "yarn":
            raise UserError(f"{options.where}: the rope scaling {kind!r} has no factor; it needs one.")
        values["factor"] = options.take("max_position_embeddings", int) / values["original_length"]
    return RopeScaling(kind=kind, **values)


def _write(architecture: Architecture) -> dict[str, Any]:
    scaling, theta = architecture.rope_scaling, architecture.rope_theta
    if scaling is None:
        return {"rope_theta": theta, "rope_scaling": None}
    written = {_THEIRS.get(name, name): getattr(scaling, name) for name in _FIELDS[scaling.kind]}
    unset = [name for name in ("mscale", "mscale_all_dim") if not written.get(name, True)]
    return {
        "rope_theta": theta,
        "rope_scaling": {"rope_type": scaling.kind} | {k: v for k, v in written.items() if k not in unset},
    }


def _write_always(architecture: Architecture) -> dict[str, Any]:
    written = _write(architecture)
    return written | {"rope_scaling": written["rope_scaling"] or {"rope_type": "default"}}


ROPE = Aspect(_read, _write)
ROPE_ALWAYS_WRITTEN = Aspect(_read, _write_always)
"""For a family that assumes a scaling where none is named."""
