"""Convert a real-valued shape to an architecture with integers, hardware-friendly multiples and exact counts, and write
its config file."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moejax.architecture import Architecture
from moejax.design.constraint import Constraint
from moejax.design.coordinates import SCALED, Candidate, Shapes, trained_on
from moejax.design.measures import MEASURES
from moejax.design.problem import Optimum, Problem
from moejax.laws.accounting import design_of
from moejax.laws.predict import Prediction, Ranged, predict

MULTIPLES = {
    "model_dim": 128,
    "num_layers": 1,
    "num_experts": 8,
    "top_k": 1,
    "expert_hidden": 128,
    "num_shared_experts": 1,
    "shared_hidden": 128,
    "dense_hidden": 128,
}
"""Multiples for large enough dimensions; they fit the tiles of matrix units and experts per mesh axis."""
HEADS_MULTIPLE = 8
"""Multiple for large enough numbers of heads, which tensor parallelism splits among devices."""
HELD = 0.05
"""Relative tolerance of an integer shape's measures for equality constraints and lower bounds. A directly bounded
dimension of the shape stays within its bounds if they contain an integer."""

SMALL_MISS = 0.001
"""Relative difference below which a missed constraint is not reported."""


@dataclass(frozen=True, kw_only=True)
class Built:
    """An architecture with the largest training length that the constraints allow."""

    architecture: Architecture
    tokens: float
    measures: Mapping[str, float]
    prediction: Prediction
    broken: tuple[str, ...]
    """Constraints that are violated even with the fewest tokens."""

    def whole_tokens(self, sequence_length: int) -> int:
        """Return the tokens, rounded to whole sequences."""
        return round(self.tokens / sequence_length) * sequence_length

    def goal(self, problem: Problem) -> float:
        """Return the value of the problem's objective, to rank designs (lower is better)."""
        if problem.goal != "loss":
            return self.measures[problem.goal]
        return self.prediction.values[problem.program.output] * (1 if problem.program.output == "loss" else -1)


def max_tokens_within(problem: Problem, architecture: Architecture, published: Ranged | None = None) -> Built | None:
    """Return an architecture with the maximum tokens under a problem's constraints, or with the fewest tokens that
    reach the required loss.

    Return None if no constraint limits the tokens, or if the loss is never reached. ``published`` is a published set of
    the law's constants, or a fit, whose fitted range is checked.
    """
    constraints = problem.merged_constraints()
    if "loss" in constraints:
        tokens = _tokens_for_loss(problem, architecture, constraints["loss"].high)
    else:
        tokens = min(
            (_tokens_within(problem, architecture, constraint) for constraint in constraints.values()), default=math.inf
        )
    if not math.isfinite(tokens):
        return None
    measures = measured(problem, architecture, tokens)
    broken = [
        str(constraint)
        for constraint in constraints.values()
        if constraint.name in measures and not _kept(constraint, measures)
    ]
    return Built(
        architecture=architecture,
        tokens=tokens,
        measures=measures,
        prediction=predict(published or problem.law, trained(problem, architecture, tokens).design),
        broken=tuple(broken),
    )


def measured(problem: Problem, architecture: Architecture, tokens: float) -> dict[str, float]:
    """Return every measure, and the dimensions of the shape."""
    candidate = trained(problem, architecture, tokens)
    measures = {name: measure.of(candidate, problem.assumptions) for name, measure in MEASURES.items()}
    shape = {name: getattr(architecture, name) for name in MULTIPLES}
    return {name: float(value) for name, value in {**measures, **shape}.items() if value is not None}


def trained(problem: Problem, architecture: Architecture, tokens: float) -> Candidate:
    """Return an architecture as a candidate, trained on all unique tokens that the constraints allow. Its FLOPs follow
    the convention of the problem's assumptions."""
    constraint = problem.merged_constraints().get("unique_tokens")
    unique_tokens = None if constraint is None else constraint.high
    candidate = trained_on(design_of(architecture, tokens), unique_tokens, architecture)
    flops = MEASURES["flops"].of(candidate, problem.assumptions)
    return dataclasses.replace(candidate, design=dataclasses.replace(candidate.design, flops=flops))


def build(optimum: Optimum, published: Ranged | None = None, *, exact: bool = False) -> Built | None:
    """Return the best integer shape near an optimum of shapes; None if no shape satisfies the constraints.

    Every shape is trained on as many tokens as the constraints allow. Shapes use hardware-friendly multiples
    (``integer_shape``). With ``exact``, the integers nearest to the optimum are tried too, so that the result is never
    worse, unless only the integers hold a fixed value exactly.
    """
    return _best(optimum.problem, [_nearest(optimum, published, exact=one) for one in {False, exact}])


def _nearest(optimum: Optimum, published: Ranged | None, *, exact: bool) -> Built | None:
    problem = optimum.problem
    assert isinstance(problem.space, Shapes), "only shapes are built"
    like = problem.space.like
    names, bounds = [c.name for c in problem.space.coordinates], problem.merged_constraints()
    for steps in ((0, 1), (-1, 0), (-2, -1)):
        candidates = []
        for shape in _rounded(optimum.values, names, bounds, steps, exact=exact):
            architecture = integer_shape(like, shape, exact=exact)
            if architecture.top_k > architecture.num_experts:
                continue
            built = max_tokens_within(problem, architecture, published)
            if built is not None and not built.broken and built.tokens >= 1:
                candidates.append(built)
        if candidates:
            return _best(problem, candidates)
    return None


def _best(problem: Problem, candidates: Sequence[Built | None]) -> Built | None:
    """Return the best candidate, among those that hold fixed values exactly if there are any."""
    built = [one for one in candidates if one is not None]
    # Integers can reach some fixed values exactly, such as no shared experts.
    built = [one for one in built if _holds_exactly(problem, one)] or built
    return min(built, key=lambda one: one.goal(problem), default=None)


def _holds_exactly(problem: Problem, built: Built) -> bool:
    fixed = [one for one in problem.merged_constraints().values() if one.low == one.high]
    return all(math.isclose(built.measures[one.name], one.low) for one in fixed if one.name in built.measures)


def integer_shape(like: Architecture, shape: Mapping[str, int], *, exact: bool = False) -> Architecture:
    """Return an architecture with the proportions of ``like`` and an integer shape, in hardware-friendly multiples.

    Large enough widths are multiples of ``MULTIPLES``. The number of key-value heads is a power of two. The number of
    heads is a multiple of this power and, if large enough, of ``HEADS_MULTIPLE``; the head width is unchanged. With
    ``exact``, widths and key-value heads are the integers nearest to the ratios of ``like``, and the number of heads is
    the nearest multiple of the key-value heads. If a token has only one routed expert, its weight is not normalized, so
    that the router can be trained.
    """
    wider = shape["model_dim"] / like.model_dim
    scaled = {name: _near(getattr(like, name) * wider, name, exact) for name in SCALED if getattr(like, name)}
    changed = like.replace(**{**scaled, **_heads(like, wider, exact), **shape})
    changed = changed.replace(shared_expert_gate=like.shared_expert_gate and changed.num_shared_experts > 0)
    return changed.with_plain_weights if changed.fault_in_training else changed


def _heads(like: Architecture, wider: float, exact: bool) -> dict[str, int]:
    heads, key_heads = like.num_heads * wider, like.num_kv_heads * wider
    if like.num_kv_heads == like.num_heads:
        even = _near(heads, "num_heads", exact)
        return {"num_kv_heads": even, "num_heads": even}
    keys = max(1, round(key_heads)) if exact else 2 ** max(0, round(math.log2(key_heads)))
    step = keys if exact else math.lcm(keys, _multiple(heads, HEADS_MULTIPLE))
    return {"num_kv_heads": keys, "num_heads": max(1, round(heads / step)) * step}


def _near(value: float, name: str, exact: bool) -> int:
    largest = HEADS_MULTIPLE if name == "num_heads" else MULTIPLES.get(name, 1)
    multiple = 1 if exact else _multiple(value, largest)
    return max(1, round(value / multiple)) * multiple


def _rounded(
    values: Mapping[str, float],
    names: Sequence[str],
    bounds: Mapping[str, Constraint],
    steps: Sequence[int],
    *,
    exact: bool,
) -> Iterator[dict[str, int]]:
    """Yield shapes whose dimensions are multiples near the values and within their bounds, or integers if no multiple
    is within bounds."""
    choices = {}
    for name in names:
        if name in MULTIPLES:
            multiple = 1 if exact else _multiple(values[name], MULTIPLES[name])
            least = 0 if name == "num_shared_experts" else 1
            below = math.floor(values[name] / multiple + 1e-9)
            near = sorted({max(least, below + step) * multiple for step in steps})
            choices[name] = _bounded(near, values[name], bounds.get(name))
    for numbers in itertools.product(*choices.values()):
        yield dict(zip(choices, numbers, strict=True))


def _bounded(multiples: list[int], value: float, bound: Constraint | None) -> list[int]:
    """Return the multiples within a bound, else the nearest integer within the bound, else all multiples."""
    low, high = (-math.inf, math.inf) if bound is None else (bound.low * (1 - 1e-9), bound.high * (1 + 1e-9))
    at = min(max(value, low), high)
    whole = sorted((math.floor(at), math.ceil(at)), key=lambda number: abs(number - at))
    within, nearest = ([n for n in numbers if low <= n <= high] for numbers in (multiples, whole))
    return within or nearest[:1] or multiples


def _multiple(value: float, largest: int) -> int:
    """Return the largest power of two, up to ``largest``, that changes a value by at most 1/16 when rounding."""
    multiple = largest
    while multiple > 1 and multiple > value / 8:
        multiple //= 2
    return multiple


def _tokens_within(problem: Problem, architecture: Architecture, constraint: Constraint) -> float:
    """Return an architecture's maximum tokens under a constraint; every measure is linear in tokens."""
    one = 1e12
    none, some = (measured(problem, architecture, tokens).get(constraint.name, 0.0) for tokens in (0.0, one))
    slope = (some - none) / one
    return (constraint.high - none) / slope if slope > 0 else math.inf


def _tokens_for_loss(problem: Problem, architecture: Architecture, loss: float) -> float:
    def reached(log_tokens: float) -> float:
        return predict(problem.law, trained(problem, architecture, math.exp(log_tokens)).design).loss - loss

    low, high = math.log(1e3), math.log(1e22)
    if reached(high) > 0:
        return math.inf
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if reached(middle) > 0 else (low, middle)
    return math.exp(high)


def missed(problem: Problem, built: Built) -> dict[str, tuple[Constraint, float]]:
    """Return the equality constraints and lower bounds that a built model misses within the tolerance ``HELD``, with
    its values, keyed by measure."""
    return {
        name: (constraint, built.measures[name])
        for name, constraint in problem.merged_constraints().items()
        if name in built.measures
        and not constraint.low * (1 - SMALL_MISS)
        <= built.measures[name]
        <= (constraint.high * (1 + SMALL_MISS) if constraint.low == constraint.high else math.inf)
    }


def _kept(constraint: Constraint, measures: Mapping[str, float]) -> bool:
    value, equal = measures[constraint.name], constraint.low == constraint.high
    above = constraint.high * (1 + (HELD if equal else 1e-9))
    return constraint.low * (1 - HELD) <= value <= above


def changed_options(architecture: Architecture) -> dict[str, Any]:
    """Return the options of an architecture that differ from their defaults, keyed by field, as plain data."""
    changed = {}
    for f in dataclasses.fields(architecture):
        value = getattr(architecture, f.name)
        if value != f.default:
            changed[f.name] = dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value  # type: ignore[arg-type]
    return changed


@dataclass(frozen=True, kw_only=True)
class OnTopology:
    """The estimated way to train a built model on a topology (``moejax.plan.design_that_fits``)."""

    topology: str
    chips: int
    choice: str
    """Mesh, remat policy and microbatches as options of ``moejax plan``."""
    mesh: Mapping[str, int]
    """Sizes of all mesh axes, ``dcn_data`` included."""
    remat: str
    microbatches: int
    batch_tokens: int | None
    """Tokens per batch that divide by the devices; None for the automatic batch."""
    memory_bytes: float
    """Estimated bytes on a device."""
    device_memory_bytes: float
    """Memory of a device."""
    roofline_mfu: float
    """MFU if a step takes the time of its roofline without overlap of communication."""


def training_settings(
    built: Built, name: str, sequence_length: int, on_topology: OnTopology | None = None
) -> dict[str, Any]:
    """Return a config dictionary that trains a built model.

    Batch size and learning rate are "auto", so that the trainer chooses them. The compute type is bfloat16. Without a
    topology, parameters are split over all devices. The user must name the data.
    """
    tokens = built.whole_tokens(sequence_length)
    mesh: dict[str, int] = {"data": 1, "fsdp": -1}
    remat = "attn_out+moe_gate_up" if built.architecture.is_moe else "attn_out"
    batch: int | str = "auto"
    parts = {}
    if on_topology is not None:
        batch = on_topology.batch_tokens or batch
        mesh, remat = dict(on_topology.mesh), on_topology.remat
        parts = {"microbatches": on_topology.microbatches}
    return {
        "name": name,
        "seed": 0,
        "architecture": changed_options(built.architecture),
        "recipe": {
            "budgets_tokens": [tokens],
            "batch_tokens": batch,
            "data": {"source": "", "sequence_length": sequence_length},
            "optimizer": {"learning_rate": "auto", "warmup_tokens": max(1, tokens // 100)},
            **parts,
            "mesh": mesh,
            "runtime": {"compute_dtype": "bfloat16", "remat": remat},
        },
    }


def config_text(built: Built, settings: Mapping[str, Any], says: str) -> str:
    """Return the text of a config file with ``training_settings``; ``says`` is a line about the design's origin."""
    architecture, recipe = (
        "".join(f"        {key}={_written(value)},\n" for key, value in settings[part].items())
        for part in ("architecture", "recipe")
    )
    return f'''"""{says}

Command:  moejax train --config=FILE --config.recipe.data.source=DATA
Cost:     {built.measures["flops"]:.3g} training FLOPs; {built.measures["params_total"]:,.0f} parameters,
          {built.measures["params_active"]:,.0f} of them active.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """Return the config of the training run."""
    config = ConfigDict()
    config.name = "{settings["name"]}"
    config.seed = {settings["seed"]}
    config.architecture = dict(
{architecture}    )
    config.recipe = dict(
{recipe}    )
    return config
'''


def _written(value: Any) -> str:
    if isinstance(value, dict):
        return f"dict({', '.join(f'{key}={_written(one)}' for key, one in value.items())})"
    if isinstance(value, list):
        return f"[{', '.join(map(_written, value))}]"
    if isinstance(value, int) and not isinstance(value, bool) and value >= 10_000:
        return f"{value:_}"
    return f'"{value}"' if isinstance(value, str) else repr(value)
