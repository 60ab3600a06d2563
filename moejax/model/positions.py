"""Encode token positions in attention: rotate queries and keys, or subtract distance penalties from scores.

Rotary position embedding (Su et al., 2021) and its published scalings use the half-split layout of checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from moejax.architecture import Architecture, RopeScaling
from moejax.config import unknown
from moejax.errors import UserError


def apply_rope(
    x: Float[Array, "batch length heads dim"], positions: Int[Array, " length"], architecture: Architecture
) -> Float[Array, "batch length heads dim"]:
    """Rotate the pairs (x[i], x[i + rotary_dim/2]) of the first ``rotary_dim`` channels by position · frequency[i]."""
    rotary_dim = architecture.rotary_dim
    frequency, scale = frequencies(rotary_dim, architecture.rope_theta, architecture.rope_scaling)
    angle = positions[:, None, None].astype(jnp.float32) * frequency
    cos, sin = jnp.cos(angle) * scale, jnp.sin(angle) * scale
    pairs = _rotate(x[..., :rotary_dim], jnp.concatenate([cos, cos], axis=-1), jnp.concatenate([-sin, sin], axis=-1))
    return pairs if rotary_dim == x.shape[-1] else jnp.concatenate([pairs, x[..., rotary_dim:]], axis=-1)


@jax.custom_vjp
def _rotate(
    x: Float[Array, "batch length heads rotary_dim"],
    cos: Float[Array, "length 1 rotary_dim"],
    sin: Float[Array, "length 1 rotary_dim"],
) -> Float[Array, "batch length heads rotary_dim"]:
    """Rotate pairs by angles; ``sin`` has a negative sign in the first half of the channels."""
    wide = x.astype(jnp.float32)
    # Rolling by half the channels gives each channel's partner. On a CPU this is ten times as fast as concatenating
    # halves.
    return (wide * cos + jnp.roll(wide, x.shape[-1] // 2, axis=-1) * sin).astype(x.dtype)


def _rotate_and_save(x: Array, cos: Array, sin: Array) -> tuple[Array, tuple[Array, Array]]:
    return _rotate(x, cos, sin), (cos, sin)


def _rotate_back(angles: tuple[Array, Array], dy: Array) -> tuple[Array, None, None]:
    """Rotate by the opposite angle, the transpose of a rotation. This takes one pass; the transpose of ``jnp.roll``
    takes three."""
    cos, sin = angles
    return _rotate(dy, cos, -sin), None, None


_rotate.defvjp(_rotate_and_save, _rotate_back)


def frequencies(dim: int, theta: float, scaling: RopeScaling | None) -> tuple[Float[np.ndarray, " half"], float]:
    """Return each pair's rotation in radians per token, and a factor for rotated vectors."""
    frequency = theta ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
    if scaling is None:
        return frequency.astype(np.float32), 1.0
    frequency = SCALINGS[scaling.kind](frequency, dim, theta, scaling)
    return frequency.astype(np.float32), _rotation_scale(scaling)


def score_scale(scaling: RopeScaling | None) -> float:
    """Return the factor for attention scores in addition to 1/sqrt(width) (DeepSeek's YaRN)."""
    return 1.0 if scaling is None else _mscale(scaling.factor, scaling.mscale_all_dim) ** 2


def linear(frequency: np.ndarray, dim: int, theta: float, scaling: RopeScaling) -> np.ndarray:
    """Divide every position by ``factor`` (position interpolation, Chen et al., 2023)."""
    return frequency / scaling.factor


def llama3(frequency: np.ndarray, dim: int, theta: float, scaling: RopeScaling) -> np.ndarray:
    """Divide low frequencies by ``factor``, keep high frequencies, and interpolate linearly in between (Llama 3.1)."""
    turns = scaling.original_length * frequency / (2 * np.pi)
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    return _blend(frequency, scaling.factor, np.clip(kept, 0, 1))


def yarn(frequency: np.ndarray, dim: int, theta: float, scaling: RopeScaling) -> np.ndarray:
    """Scale as ``llama3``, but interpolate linearly in the channel index (YaRN, Peng et al., 2023)."""

    def channel(turns: float) -> float:
        return dim * math.log(scaling.original_length / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = channel(scaling.beta_fast), channel(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    passage = np.clip((np.arange(dim // 2) - low) / max(high - low, 1e-3), 0, 1)
    return _blend(frequency, scaling.factor, 1 - passage)


SCALINGS = {"linear": linear, "llama3": llama3, "yarn": yarn}
"""``scaling(frequencies, dim, theta, RopeScaling) -> frequencies``, keyed by ``RopeScaling.kind``."""


def check_scaling(scaling: RopeScaling | None) -> None:
    """Raise ``UserError`` if the kind is unknown or its numbers are inconsistent."""
    if scaling is None:
        return
    if scaling.kind not in SCALINGS:
        raise UserError(unknown(f"rope_scaling.kind {scaling.kind!r}", scaling.kind, list(SCALINGS)))
    if scaling.kind != "linear" and scaling.original_length < 1:
        raise UserError(f"rope_scaling.original_length is {scaling.original_length}; {scaling.kind} needs at least 1.")
    if scaling.kind == "llama3" and scaling.low_freq_factor >= scaling.high_freq_factor:
        raise UserError(
            f"rope_scaling.low_freq_factor is {scaling.low_freq_factor} and high_freq_factor is "
            f"{scaling.high_freq_factor}; high_freq_factor must be the larger of the two."
        )


def _blend(frequency: np.ndarray, factor: float, kept: np.ndarray) -> np.ndarray:
    return frequency / factor * (1 - kept) + frequency * kept


def _mscale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0


def _rotation_scale(scaling: RopeScaling) -> float:
    if scaling.kind != "yarn":
        return 1.0
    if scaling.mscale and scaling.mscale_all_dim:
        return _mscale(scaling.factor, scaling.mscale) / _mscale(scaling.factor, scaling.mscale_all_dim)
    return _mscale(scaling.factor, 1.0)


class Positions(NamedTuple):
    """A position encoding: its effect on queries and keys, and on scores."""

    apply: Callable[[Array, Array, Architecture], Array]
    """``apply(x, positions, architecture)`` for queries and keys."""
    slopes: Callable[[int], Float[np.ndarray, " heads"] | None]
    """Function that returns each head's score penalty per token of distance, or None without penalties."""


def alibi_slopes(heads: int) -> Float[np.ndarray, " heads"]:
    """Return 2^(-8i/heads) for i = 1, 2, … if ``heads`` is a power of two.

    For other numbers of heads, add every other slope of the next power of two (Press et al., 2022)."""
    power = 2 ** math.floor(math.log2(heads))
    slopes = 2.0 ** (-8.0 * np.arange(1, power + 1) / power)
    if power < heads:
        between = 2.0 ** (-4.0 * np.arange(1, 2 * (heads - power), 2) / power)
        slopes = np.concatenate([slopes, between])
    return slopes.astype(np.float32)


def _as_it_is(x: Float[Array, "*shape"], positions: Int[Array, " length"], architecture: Architecture) -> Array:
    return x


def _none(heads: int) -> None:
    return None


POSITIONS = {
    "rope": Positions(apply=apply_rope, slopes=_none),
    "alibi": Positions(apply=_as_it_is, slopes=alibi_slopes),
    "none": Positions(apply=_as_it_is, slopes=_none),
}
"""Position encodings, keyed by ``Architecture.positions``."""
