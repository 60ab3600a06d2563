"""The ways of computing causal attention, and what each of them cannot compute."""

from __future__ import annotations

import importlib
from typing import Any

from jaxtyping import Array, Float

from moejax.architecture import Architecture
from moejax.model.attention_cudnn import cudnn
from moejax.model.attention_plain import plain
from moejax.model.attention_splash import splash
from moejax.model.attention_tiled import tiled
from moejax.model.sight import Sight
from moejax.native import can_hold
from moejax.target import platform


def auto(
    query: Float[Array, "B T H K"],
    key: Float[Array, "B S G K"],
    value: Float[Array, "B S G V"],
    sight: Sight,
    *,
    slopes: Any = None,
    **options: Any,
) -> Float[Array, "B T H V"]:
    """``splash`` on a TPU and ``native`` on a CPU, if they can, else ``tiled``: by the platform that the program is
    traced for."""
    is_new = isinstance(sight.start, int) and not sight.start and query.shape[1] == key.shape[1]
    if platform() == "tpu" and slopes is None:
        attend = splash
    elif platform() == "cpu" and is_new and can_hold(query, key, value):
        attend = native
    else:
        attend = tiled
    return attend(query, key, value, sight, slopes=slopes, **options)


def native(*arguments: Any, **options: Any) -> Array:
    """The kernel for CPU cores, which needs numba."""
    return importlib.import_module("moejax.model.attention_native").native(*arguments, **options)


ATTENTION = {"auto": auto, "tiled": tiled, "plain": plain, "splash": splash, "cudnn": cudnn}
"""``attend(query, key, value, sight, scale, slopes, sinks)``, by ``Runtime.attention``."""


def check_attention(architecture: Architecture, backend: str) -> None:
    """Raise ``ValueError`` if a backend cannot compute an architecture's attention."""
    a = architecture
    alibi = {"positions = 'alibi'": a.positions == "alibi"}
    beyond = {
        "splash": alibi,
        "cudnn": {"attention_sinks": a.attention_sinks, **alibi, "latent attention": bool(a.kv_latent_dim)},
    }.get(backend, {})
    if any(beyond.values()):
        names = ", ".join(name for name, has in beyond.items() if has)
        raise ValueError(f"runtime.attention {backend!r} knows no {names}; choose another of {', '.join(ATTENTION)}.")
