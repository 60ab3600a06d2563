"""The ways of computing causal attention, and what each of them cannot compute."""

from __future__ import annotations

from moejax.architecture import Architecture
from moejax.model.attention_cudnn import cudnn
from moejax.model.attention_plain import plain
from moejax.model.attention_tiled import tiled

ATTENTION = {"tiled": tiled, "plain": plain, "cudnn": cudnn}
"""``attend(query, key, value, sight, scale, slopes, sinks)``, by ``Runtime.attention``."""


def check_attention(architecture: Architecture, backend: str) -> None:
    """Raise ``ValueError`` if a backend cannot compute an architecture's attention."""
    a = architecture
    beyond = {"attention_sinks": a.attention_sinks, "positions = 'alibi'": a.positions == "alibi"}
    beyond["latent attention"] = bool(a.kv_latent_dim)
    if backend == "cudnn" and any(beyond.values()):
        names = ", ".join(name for name, has in beyond.items() if has)
        raise ValueError(f"runtime.attention 'cudnn' knows no {names}; choose another of {', '.join(ATTENTION)}.")
