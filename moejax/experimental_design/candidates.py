"""Generate candidate runs: architectures with given proportions, in sizes around a table's range."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from moejax.architecture import Architecture
from moejax.design.build import integer_shape
from moejax.design.coordinates import Coordinate, Shapes, Sizes
from moejax.errors import UserError
from moejax.fit.runs import Runs
from moejax.fit.uncertainty.extrapolation import flops_convention
from moejax.laws.accounting import design_of, flops_per_token, params
from moejax.laws.dense.chinchilla import FLOPS_PER_PARAM_AND_TOKEN
from moejax.laws.design import DERIVED, FIELDS, Design, design_from, known
from moejax.minimize import sobol
from moejax.wording import argument, option_hint

COUNT = 1024
"""Maximum number of candidates."""
DRAWN = 4096
"""Number of shapes to draw for each given architecture."""
BEYOND = 0.25
"""Distance beyond a range, as a share of its width, up to which points are drawn before clipping to the range."""
REACH = 4.0
"""Maximum factor by which a candidate's sizes exceed the table's largest sizes. Ratios, such as total / active or
tokens per active parameter, are within the square root of this factor of the table's range."""
SIZES = ("params_active", "params_total", "tokens", "flops")
"""Fields that are not smaller than in the table. Laws fail for smaller runs, and the criterion would prefer cheap runs.
"""
VOCABULARIES = (256, 1_024, 4_096, 8_192, 16_384, 32_000, 50_304, 100_352, 128_256)
"""Customary vocabulary sizes, from bytes to Llama 3; a candidate's published model adds its own."""
MOST_VOCABULARY = 0.5
"""Largest share of embedding and unembedding in the active parameters of a model that informs about a law."""
WIDTHS = tuple(int(16 * 2 ** (i / 2)) for i in range(21))
"""Search grid for widths whose parameter counts match the table."""


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """Runs that could be trained next."""

    design: Design
    """Fields with an entry per candidate."""
    flops: Float[np.ndarray, " candidates"]
    """Training FLOPs of each candidate."""
    causal_flops: Float[np.ndarray, " candidates"]
    """Training FLOPs without masked attention scores, the basis of MFU; ``flops`` if architectures are unknown."""
    architectures: tuple[Architecture, ...] = ()
    """Architecture of each candidate, if known."""
    labels: tuple[str, ...] = ()
    """Name of each candidate in the user's table; empty for an architecture that is not in the table."""

    def __len__(self) -> int:
        return len(self.flops)

    def cost(self, causal: bool) -> Float[np.ndarray, " candidates"]:
        """Return the FLOPs that count towards a budget; without masked attention scores if ``causal``."""
        return self.causal_flops if causal else self.flops

    def only(self, kept: Sequence[int] | np.ndarray) -> Candidates:
        """Return the candidates with these indices."""
        numbers = [int(i) for i in np.asarray(kept)]
        return Candidates(
            design=design_from({name: np.asarray(v)[numbers] for name, v in known(self.design).items()}),
            flops=self.flops[numbers],
            causal_flops=self.causal_flops[numbers],
            architectures=tuple(self.architectures[i] for i in numbers) if self.architectures else (),
            labels=tuple(self.labels[i] for i in numbers) if self.labels else (),
        )


def of_table(runs: Runs, labels: Iterable[str]) -> Candidates:
    """Return the rows of a table as candidates, ignoring losses.

    Raises:
      UserError: the table has neither FLOPs, nor active parameters and tokens.
    """
    design = runs.design
    if design.flops is not None:
        flops = design.flops
    elif design.params_active is not None and design.tokens is not None:
        flops = FLOPS_PER_PARAM_AND_TOKEN * design.params_active * design.tokens
    else:
        raise UserError("The candidates have no cost; add a column flops, or columns params_active and tokens.")
    flops = np.asarray(flops, float)
    return Candidates(design=design, flops=flops, causal_flops=flops, labels=tuple(labels))


def like(
    architectures: Sequence[Architecture],
    inputs: Sequence[str],
    runs: Runs,
    *,
    most_flops: float,
    sequence_length: int,
    causal: bool = False,
    reach: float = REACH,
    count: int = COUNT,
    least_tokens: float = 1.0,
    seed: int = 0,
) -> Candidates:
    """Return shapes with the given architectures' proportions, at most ``reach`` times as large as the table's largest
    run.

    Parameters and tokens are not smaller than in the table. Tokens per active parameter, total / active parameters and
    the number of experts are within a factor of √``reach`` of the table's range. Shapes whose vocabulary has more than
    half of the active parameters are left out unless no others are affordable. Inputs of the laws are varied as in
    ``moejax design`` (``design.shapes``): the width always, and the number of experts, top-k, expert width and shared
    experts if they are in ``inputs``. Other sizes keep their ratio to the width. Unique tokens do not exceed the
    table's maximum.

    FLOPs are 6 per active parameter and token if those of the runs are, or are unknown; else they are counted exactly.

    Args:
      causal: True if ``most_flops`` limits ``causal_flops``.

    Raises:
      UserError: no candidate is within the budget, or an input is not part of a shape.
    """
    if other := [name for name in inputs if name not in FIELDS and name not in DERIVED]:
        raise UserError(
            f"The law reads {', '.join(other)}, which an architecture does not determine. Use params_active, "
            f"params_total, tokens or other sizes instead"
            f"{option_hint(', or list the candidate runs with --candidates')}."
        )
    names = tuple(name for name in inputs if name != "unique_tokens")
    spaces = {c.name: c for c in Sizes(names).coordinates}
    box = {name: _around(c, _sizes(runs.design, name)[runs.weight > 0], reach) for name, c in spaces.items()}
    # Several varied sizes multiply their reach, so dependent sizes get the same bounds as varied sizes.
    for name in ("params_active", "params_total"):
        if name not in box and getattr(runs.design, name) is not None:
            own = _sizes(runs.design, name)[runs.weight > 0]
            box[name] = float(own.min()), float(own.max()) * reach
    if runs.design.params_active is not None and runs.design.tokens is not None:
        own = _sizes(runs.design, "tokens_per_param")[runs.weight > 0]
        box["tokens_per_param"] = float(own.min()) / reach**0.5, float(own.max()) * reach**0.5
    if runs.design.num_experts is not None and (most := _sizes(runs.design, "num_experts")[runs.weight > 0].max()):
        box["num_experts"] = 0.0, float(most) * reach**0.5
    seen: dict[tuple[Architecture, float], None] = {}
    for number, given in enumerate(architectures):
        for architecture, tokens in _drawn(given, names, runs, box, reach, seed + number):
            if tokens >= least_tokens:
                seen[architecture, tokens] = None
    designs = [design_of(a, tokens, sequence_length) for a, tokens in seen]
    design = Design(**{name: np.asarray([getattr(d, name) for d in designs], float) for name in FIELDS})
    if "unique_tokens" in inputs:
        design = replace(design, unique_tokens=np.minimum(design.tokens, runs.design.unique_tokens.max()))
    if flops_convention(runs):
        # Without FLOPs in the table, or with 6 N D, the budget counts the same.
        design = replace(design, flops=FLOPS_PER_PARAM_AND_TOKEN * design.params_active * design.tokens)
    flops = np.asarray(design.flops, float)
    without_mask = [flops_per_token(a, sequence_length).training_causal * tokens for a, tokens in seen]
    causal_flops = np.asarray(without_mask, float)
    cost = causal_flops if causal else flops
    inside = np.ones(len(designs), bool)
    for name, (low, high) in box.items():
        sizes = _sizes(design, name)
        inside &= (sizes >= low * (1 - 1e-9)) & (sizes <= high * (1 + 1e-9))
    if not inside.any():
        raise UserError(
            f"No shape with the given proportions is within {reach:g} times the sizes of the table's runs; give an "
            f"architecture closer to the table ({argument('like')}), or a larger {argument('reach')}."
        )
    cheapest = cost[inside].min()
    inside &= cost <= most_flops
    if not inside.any():
        raise UserError(
            f"No run within {reach:g} times the sizes of the table's runs costs {most_flops:.3g} FLOPs or less (the "
            f"cheapest candidate costs {cheapest:.3g}); give a larger budget or {argument('reach')}."
        )
    shapes, kept = tuple(a for a, _ in seen), np.flatnonzero(inside)
    kept = np.array([i for i in kept if not is_mostly_vocabulary(shapes[i])] or kept)
    if len(kept) > count:
        kept = np.random.default_rng(seed).choice(kept, count, replace=False)
    drawn = Candidates(design=design, flops=flops, causal_flops=causal_flops, architectures=shapes)
    return drawn.only(np.sort(kept))


def spread(dimensions: int, count: int, seed: int) -> Float[np.ndarray, "count dimensions"]:
    """Return points spread evenly over a unit cube and its faces.

    The most informative runs are at the bounds of the ranges, which interior points rarely approach. A sixth of the
    points is at each bound of each range.
    """
    cube = sobol(dimensions, count, seed)
    return np.clip((1 + 2 * BEYOND) * cube - BEYOND, 0.0, 1.0)


def is_mostly_vocabulary(architecture: Architecture) -> bool:
    """Return whether embedding and unembedding exceed ``MOST_VOCABULARY`` of the active parameters."""
    count = params(architecture)
    return bool(count.vocabulary > count.active * MOST_VOCABULARY)


def customary_vocabulary(given: Architecture, smallest: float) -> int:
    """Return the largest customary vocabulary that is at most ``MOST_VOCABULARY`` of the smallest model.

    Args:
      given: proportions of the model; its own vocabulary is the largest choice.
      smallest: active parameters of the smallest model.
    """
    sizes = [size for size in VOCABULARIES if size < given.vocab_size]
    for size in (given.vocab_size, *reversed(sizes)):
        counts = [params(integer_shape(given.replace(vocab_size=size), {"model_dim": width})) for width in WIDTHS]
        active, vocabulary = np.log([[float(one.active), float(one.vocabulary)] for one in counts]).T
        if np.interp(np.log(smallest), active, vocabulary) <= np.log(MOST_VOCABULARY * smallest):
            return size
    return min(VOCABULARIES[0], given.vocab_size)


def _sizes(design: Design, name: str) -> np.ndarray:
    return np.asarray(getattr(design, name), float)


def _around(coordinate: Coordinate, values: np.ndarray, reach: float) -> tuple[float, float]:
    """Return the range of the table's values, extended by ``reach``."""
    if coordinate.linear:
        return coordinate.low, min(coordinate.high, float(values.max()) + 0.25)
    below, above = (1.0, reach) if coordinate.name in SIZES else (reach**0.5, reach**0.5)
    return max(coordinate.low, float(values.min()) / below), min(coordinate.high, float(values.max()) * above)


def _drawn(
    given: Architecture, inputs: tuple[str, ...], runs: Runs, box: Mapping[str, Any], reach: float, seed: int
) -> Iterable[tuple[Architecture, float]]:
    """Yield integer shapes with the given proportions, and tokens, spread evenly in the logarithms of varied sizes."""
    chosen = [c.name for c in Shapes(given, inputs).coordinates if c.name not in ("model_dim", "tokens")]
    ranges = {name: _range(name, given, box) for name in chosen}
    ranges |= {"model_dim": _widths(given, box), "tokens": box.get("tokens", (1.0, 1.0))}
    if "tokens" not in box and runs.design.tokens is not None:
        ranges["tokens"] = (float(runs.design.tokens.min()), float(runs.design.tokens.max()) * reach)
    cube = spread(len(ranges), DRAWN, seed)
    low, high = (np.log([max(r[end], 1e-3) for r in ranges.values()]) for end in (0, 1))
    for point in np.exp(low + cube * (high - low)):
        shape = dict(zip(ranges, point.tolist(), strict=True))
        tokens = float(round(shape.pop("tokens")))
        whole_shape = {name: max(0 if name == "num_shared_experts" else 1, round(v)) for name, v in shape.items()}
        # Widths must be divisible by the head width and efficient on hardware.
        whole_shape["model_dim"] = _tidy(whole_shape["model_dim"])
        architecture = integer_shape(given, whole_shape)
        if architecture.top_k < architecture.num_experts or not architecture.is_moe:
            yield architecture, tokens


def _tidy(width: int) -> int:
    """Round to a multiple of 16, and of 64 or 128 for large widths."""
    step = 16 if width < 512 else 64 if width < 2048 else 128
    return max(step, round(width / step) * step)


def _range(name: str, given: Architecture, box: Mapping[str, Any]) -> tuple[float, float]:
    active = box.get("active_experts", (1.0, 16.0))
    if name == "top_k":
        return 0.6, float(active[1])
    if name == "num_experts":
        most = box.get("expert_expansion", box.get("expansion", (1.0, 32.0)))[1]
        largest = box.get("num_experts", (0.0, 1024.0))[1]
        return 1.0, float(min(largest, max(2.0, 2 * most * max(given.top_k, active[1]))))
    if name == "num_shared_experts":
        return 0.3, 4.4
    value = getattr(given, name)
    return value / 8, value * 8


def _widths(given: Architecture, box: Mapping[str, Any]) -> tuple[float, float]:
    """Return the range of widths that covers the active parameters of ``box``, with a margin on both sides."""
    low, high = box.get("params_active", (0.0, math.inf))
    others = {} if not given.is_moe else {"num_experts": given.num_experts, "top_k": given.top_k}
    sizes = {w: float(params(integer_shape(given, {"model_dim": w, **others})).active) for w in WIDTHS}
    inside = [w for w, size in sizes.items() if low / 4 <= size <= high * 4]
    return (float(inside[0]), float(inside[-1])) if inside else (float(WIDTHS[0]), float(WIDTHS[-1]))
