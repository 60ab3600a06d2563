"""The ways of computing causal attention, and what each of them cannot compute."""

from __future__ import annotations

import importlib
from typing import Any

from jaxtyping import Array, Float

from moejax.architecture import Architecture
from moejax.errors import UserError
from moejax.model.attention_cudnn import cudnn
from moejax.model.attention_plain import plain
from moejax.model.attention_splash import splash
from moejax.model.attention_tiled import tiled
from moejax.model.sharding import can_split
from moejax.model.sight import Sight
from moejax.native import available, can_hold
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
    is_whole = sight.is_whole(query.shape[1], key.shape[1])
    if platform() == "tpu" and slopes is None:
        attend = splash
    elif platform() == "cpu" and is_whole and can_hold(query, key, value) and can_split(query.shape[0]):
        attend = native
    else:
        attend = tiled
    return attend(query, key, value, sight, slopes=slopes, **options)


def native(
    query: Float[Array, "B T H K"],
    key: Float[Array, "B S G K"],
    value: Float[Array, "B S G V"],
    sight: Sight,
    **options: Any,
) -> Float[Array, "B T H V"]:
    """The kernel for CPU cores, in float32, which needs numba. Queries that continue a cache go through ``plain``."""
    if platform() != "cpu":
        raise UserError(
            f"runtime.attention 'native' is for CPUs, and this program is for a {platform()}; choose 'auto'."
        )
    if not sight.is_whole(query.shape[1], key.shape[1]):
        return plain(query, key, value, sight, **options)
    kernel = importlib.import_module("moejax.model.attention_native").native
    return kernel(query, key, value, sight, **options)


ATTENTION = {"auto": auto, "native": native, "tiled": tiled, "plain": plain, "splash": splash, "cudnn": cudnn}
"""``attend(query, key, value, sight, scale, slopes, sinks)``, by ``Runtime.attention``."""


def check_attention(architecture: Architecture, backend: str, compute_dtype: str) -> None:
    """Raise ``UserError`` if a backend cannot compute an architecture's attention."""
    a = architecture
    alibi = {"positions = 'alibi'": a.positions == "alibi"}
    beyond = {
        "native": {f"compute_dtype = {compute_dtype!r}": compute_dtype != "float32"},
        "splash": alibi,
        "cudnn": {
            # The kernel exists in 16 bits alone.
            f"compute_dtype = {compute_dtype!r} (it computes in 'bfloat16')": compute_dtype != "bfloat16",
            "attention_sinks": a.attention_sinks,
            **alibi,
            "latent attention": bool(a.kv_latent_dim),
        },
    }.get(backend, {})
    if any(beyond.values()):
        names = ", ".join(name for name, has in beyond.items() if has)
        raise UserError(f"runtime.attention {backend!r} knows no {names}; choose another of {', '.join(ATTENTION)}.")
    if backend == "native" and not available():
        raise UserError(
            "runtime.attention 'native' needs the package numba, which is not installed or does not work here; "
            "pip install 'moejax[cpu]', or choose 'auto'."
        )
