"""Slices of an IsoFLOP surface: best size at a sparsity, best sparsity at a size, and both at once.

A slice reaches as far as the convex hull of the trained (log N, log 1/(1-S)): a polynomial says nothing beyond.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from moejax.fit.isoflop_optimum import FLAT, SIZE_ENDS, Optimum, end, optimum_of
from moejax.fit.isoflop_surfaces import Surface
from moejax.laws.isoflop_surface import best_active_experts_share, best_params_total

JOINT_SPARSITIES = 129
"""Values of log 1/(1-S), over the hull, among which the best of both is sought."""
SHARE_ENDS: dict[int, str] = {
    -1: "the loss falls up to a sparsity of {high:.4g}, the highest reached",
    1: "the loss rises from a sparsity of {low:.4g} on, the lowest reached",
    FLAT: "the surface does not vary between sparsities of {low:.4g} and {high:.4g}",
}
"""What a share 1-S of experts at its lower or upper end means, in words of sparsity."""


def best_sizes(surface: Surface, level: float = 0.9) -> tuple[Optimum, ...]:
    """N* at every sparsity that was trained (Eq. 3)."""
    levels = np.array(surface.budget.levels)
    size, sparsity = _points(surface)
    low, high = _reach(sparsity, size, -np.log1p(-levels))
    logs, losses, ends = _lowest(best_params_total, surface, 1 - levels, low, high)
    return tuple(
        optimum_of(
            surface.budget.flops,
            {"sparsity": float(at)},
            np.exp(logs[:, i]),
            losses[:, i],
            ends[:, i] == 0,
            SIZE_ENDS.get(int(ends[0, i]), "").format(low=np.exp(low[i]), high=np.exp(high[i])),
            level,
        )
        for i, at in enumerate(levels)
    )


def best_sparsities(surface: Surface, sizes: Sequence[float], level: float = 0.9) -> tuple[Optimum, ...]:
    """S* at every one of these sizes that the hull holds (Eq. 4)."""
    size, sparsity = _points(surface)
    held = np.array([n for n in sizes if size.min() < np.log(n) < size.max()])
    if not len(held):
        return ()
    lowest, highest = _reach(size, sparsity, np.log(held))
    logs, losses, ends = _lowest(best_active_experts_share, surface, held, -highest, -lowest)
    return tuple(
        optimum_of(
            surface.budget.flops,
            {"params_total": float(at)},
            -np.expm1(logs[:, i]),
            losses[:, i],
            ends[:, i] == 0,
            SHARE_ENDS.get(int(ends[0, i]), "").format(low=-np.expm1(-lowest[i]), high=-np.expm1(-highest[i])),
            level,
        )
        for i, at in enumerate(held)
    )


def best_pair(surface: Surface, level: float = 0.9) -> tuple[Optimum, Optimum]:
    """N* and S* together (Eq. 2); neither has a value if either is at an end of what was trained."""
    size, sparsity = _points(surface)
    grid = np.linspace(sparsity.min(), sparsity.max(), JOINT_SPARSITIES)
    low, high = _reach(sparsity, size, grid)
    logs, losses, ends = _lowest(best_params_total, surface, np.exp(-grid), low, high)
    best = np.argmin(np.where(np.isfinite(losses), losses, np.inf), axis=1)
    rows = np.arange(len(best))
    logs, losses, size_ends = logs[rows, best], losses[rows, best], ends[rows, best]
    share_ends = end(-grid[best], -grid[-1], -grid[0])
    why = SHARE_ENDS.get(int(share_ends[0]), "").format(low=-np.expm1(-grid[0]), high=-np.expm1(-grid[-1]))
    why = why or SIZE_ENDS.get(int(size_ends[0]), "").format(low=np.exp(low[best[0]]), high=np.exp(high[best[0]]))
    inside = (share_ends == 0) & (size_ends == 0)
    return (
        optimum_of(surface.budget.flops, {}, np.exp(logs), losses, inside, why, level),
        optimum_of(surface.budget.flops, {}, -np.expm1(-grid[best]), losses, inside, why, level),
    )


def round_sizes(low: float, high: float) -> list[float]:
    """Sizes of one leading digit, 1, 2 or 5, between two sizes."""
    powers = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    every = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    return [size for size in every if low <= size <= high]


def _points(surface: Surface) -> tuple[np.ndarray, np.ndarray]:
    """log N and log 1/(1-S) of the budget's runs."""
    return np.log(surface.budget.size), -np.log1p(-surface.budget.sparsity)


def _reach(x: np.ndarray, y: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Smallest and largest y of the points' convex hull at every one of these x."""
    bounds = []
    for one in at:
        # The hull's ends at one x lie on segments between two points, one on each side of it.
        left, right = np.nonzero((x[:, None] <= one) & (x[None, :] >= one))
        width = x[right] - x[left]
        share = np.where(width > 0, (one - x[left]) / np.where(width > 0, width, 1), 0)
        reached = y[left] + share * (y[right] - y[left])
        bounds.append((reached.min(), reached.max()))
    low, high = np.array(bounds).T
    return low, high


def _lowest(
    search: Callable[..., Any], surface: Surface, at: np.ndarray, low: np.ndarray, high: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logarithm of where the loss is least, that loss, and its end or ``FLAT``; a row per fit, the one to every run
    first."""
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        laws = jax.tree.map(lambda one, many: np.concatenate([[one], many]), surface.law, surface.resampled)
        found, losses = (np.asarray(one) for one in _vmapped(search, laws, at, np.exp(low), np.exp(high)))
        # Between equal bounds the search returns the loss there.
        edges = [np.asarray(_vmapped(search, laws, at, np.exp(one), np.exp(one))[1]) for one in (low, high)]
    logs = np.log(found)
    varies = np.maximum(*edges) - losses > ROUNDING * np.abs(losses)
    return logs, losses, np.where(varies | ~np.isfinite(losses), end(logs, low, high), FLAT)


ROUNDING = 1e-9
"""A surface that varies by less than this share of the loss is flat."""


@functools.partial(jax.jit, static_argnums=0)
def _vmapped(search: Callable[..., Any], laws: Any, at: Any, low: Any, high: Any) -> Any:
    return jax.vmap(lambda law: jax.vmap(functools.partial(search, law))(at, low, high))(
        jax.tree.map(jnp.asarray, laws)
    )
