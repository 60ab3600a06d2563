"""Numbers of a page, all from one compiled function of a law and a design: curves, optima and practical ranges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from moejax.design.coordinates import EXPANSIONS, PARAMS_ACTIVE, Sizes
from moejax.float64 import float64
from moejax.laws.argmin import argmin_between
from moejax.laws.chinchilla import FLOPS_PER_PARAM_AND_TOKEN
from moejax.laws.design import Design
from moejax.report.explorer.state import KNOBS, STRUCTURE

Values = Mapping[str, Any]
"""``ExplorerState.values``: numbers, or what JAX traces."""

WITHIN = 0.001
"""Nats by which the loss may rise in a practical range, as `moejax design` has it."""
HALVINGS = 45


def design_of(values: Values) -> Design:
    """The design whose tokens spend the FLOPs: 6·N_act·D = C."""
    active = values["params_active"]
    tokens = values["flops"] / (FLOPS_PER_PARAM_AND_TOKEN * active)
    design = Sizes(()).candidate({**values, "tokens": tokens}).design
    unique = jnp.minimum(values["unique_tokens"], tokens)
    return replace(design, unique_tokens=unique, params_embedding=values["embedding_share"] * active)


def dense(values: Values) -> dict[str, Any]:
    """The dense model of as many active parameters."""
    return {**values, **dict.fromkeys(EXPANSIONS, 1.0)}


def curves(law: Any, values: Mapping[str, float], grids: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Everything that is drawn for a law of the loss, in float64.

    Args:
      values: ``ExplorerState.values``.
      grids: where to draw, by the name of a knob: all of ``STRUCTURE``, ``unique_tokens`` and ``flops``; and
        ``cells_active`` and ``cells_expansion``, the columns and rows of the landscape of sizes.

    Returns:
      ``loss`` and ``dense`` of the design, in nats, and ``unrepeated``, if all its tokens were different; ``budgets``
      and ``frontier``, mixture and dense along FLOPs, of this size and of the best; ``slices``, the same along every
      knob of ``STRUCTURE`` and unique tokens; ``optima``, where each is ``best`` with the others held, from where to
      where the loss is within ``WITHIN`` of the ``least``, and the dense model's best size; ``cells``, losses of the
      landscape.
    """
    with float64():
        exact = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), (law, dict(values), dict(grids)))
        return jax.tree.map(np.asarray, _curves(*exact))


@jax.jit
def _curves(law: Any, values: dict[str, Any], grids: dict[str, Any]) -> dict[str, Any]:
    def loss(point: Values) -> Any:
        return law(design_of(point))

    def along(name: str, points: Any) -> dict[str, Any]:
        start = {"mixture": values, "dense": dense(values)}
        return {key: jax.vmap(lambda x, own=own: loss({**own, name: x}))(points) for key, own in start.items()}

    # Every search is a lane of one, so that it is compiled once: each knob, the dense model, and every budget twice.
    one, count = dense(values), len(grids["flops"])
    turned = [*range(len(STRUCTURE)), *[0] * (1 + 2 * count)]
    lanes = {
        "lane": jnp.asarray(turned),
        "flops": jnp.concatenate([jnp.full(len(STRUCTURE) + 1, values["flops"]), *[grids["flops"]] * 2]),
    }
    is_dense = jnp.asarray([False] * len(STRUCTURE) + [True] + [False] * count + [True] * count)
    lanes |= {name: jnp.where(is_dense, one[name], values[name]) for name in values if name != "flops"}
    best, least = jax.vmap(lambda lane: _best(loss, lane))(lanes)
    few = jax.tree.map(lambda x: x[: len(STRUCTURE)], lanes)
    low, high = jax.vmap(lambda lane, b, at: _within(loss, lane, b, at))(
        few, best[: len(STRUCTURE)], least[: len(STRUCTURE)]
    )
    plain = [KNOBS[name].coordinate.plain for name in STRUCTURE]
    optima = {
        name: {"best": plain[i](best[i]), "least": least[i], "low": plain[i](low[i]), "high": plain[i](high[i])}
        for i, name in enumerate(STRUCTURE)
    }
    after, count = len(STRUCTURE), len(grids["flops"])
    optima["dense"] = {"best": plain[0](best[after]), "least": least[after]}

    def cell(active: Any, expansion: Any) -> Any:
        return loss({**values, "params_active": active, **dict.fromkeys(EXPANSIONS, expansion)})

    return {
        "loss": loss(values),
        "dense": loss(one),
        "unrepeated": loss({**values, "unique_tokens": jnp.inf}),
        "slices": {name: along(name, grids[name]) for name in (*STRUCTURE, "unique_tokens")},
        "optima": optima,
        "budgets": along("flops", grids["flops"]),
        "frontier": {"mixture": least[after + 1 : after + 1 + count], "dense": least[after + 1 + count :]},
        "cells": jax.vmap(jax.vmap(cell, (0, None)), (None, 0))(grids["cells_active"], grids["cells_expansion"]),
    }


def _turned(loss: Any, lane: Values) -> tuple[Any, Any, Any]:
    """The loss as a function of the knob whose number is in the lane, as it is searched, and the ends of the search."""
    number = lane["lane"]
    coordinates = [KNOBS[name].coordinate for name in STRUCTURE]
    lows, highs = zip(*[_ends(name) for name in STRUCTURE], strict=True)

    def function(z: Any) -> Any:
        turned = {
            c.name: jnp.where(number == i, c.plain(jnp.where(number == i, z, 0.0)), lane[c.name])
            for i, c in enumerate(coordinates)
        }
        return loss({**lane, **turned})

    return function, jnp.asarray(lows)[number], jnp.asarray(highs)[number]


def _ends(name: str) -> tuple[float, float]:
    """Where the search along a knob begins and ends: a size is searched beyond its slider."""
    knob = KNOBS[name]
    low, high = (PARAMS_ACTIVE.low, PARAMS_ACTIVE.high) if name == "params_active" else (knob.low, knob.high)
    return knob.coordinate.scaled(low), knob.coordinate.scaled(high)


def _best(loss: Any, lane: Values) -> tuple[Any, Any]:
    function, low, high = _turned(loss, lane)
    best = argmin_between(function, low, high)
    return best, function(best)


def _within(loss: Any, lane: Values, best: Any, least: Any) -> tuple[Any, Any]:
    """How far a knob may be turned from its best before the loss has risen by ``WITHIN``; else its end."""
    function, low, high = _turned(loss, lane)

    def edge(end: Any) -> Any:
        def halve(_: Any, bracket: Any) -> Any:
            inside, outside = bracket
            middle = (inside + outside) / 2
            kept = function(middle) <= least + WITHIN
            return jnp.where(kept, middle, inside), jnp.where(kept, outside, middle)

        inside, _ = jax.lax.fori_loop(0, HALVINGS, halve, (best, end))
        return jnp.where(function(end) <= least + WITHIN, end, inside)

    return edge(low), edge(high)
