"""A decision as tables in a terminal, and as plain data."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from moejax.config import dump
from moejax.quantities import format

if TYPE_CHECKING:
    from moejax.design.build import Built
    from moejax.design.decide import Decision
    from moejax.design.frontier import Point
    from moejax.design.problem import Limit, Optimum

Block = str | tuple[str, list[str], list[list[str]], list[str]]
"""A paragraph; or a table's title, columns, rows, and those of its columns that hold words."""

SIDE_BY_SIDE = ("params_total", "params_active", "expansion", "active_experts", "shared_share", "granularity", "tokens")


def show(blocks: Sequence[Block]) -> None:
    """Print."""
    from moejax.cli import table

    for block in blocks:
        if isinstance(block, str):
            print(block + "\n")
        else:
            title, columns, rows, words = block
            table.show(title, columns, rows, words=words)


def text(name: str, decision: Decision, intervals: Mapping[str, Any]) -> list[Block]:
    """The whole answer."""
    optimum = decision.optimum
    goal = optimum.problem.program.output if optimum.problem.goal == "loss" else optimum.problem.goal
    flat = {one.name: one for one in decision.flat}
    rows = []
    for coordinate, value in optimum.values.items():
        if coordinate in optimum.undecided:
            continue
        around = flat.get(coordinate)
        ends = f"{format(around.low)} – {format(around.high)}" if around else ""
        interval = (
            f"[{format(intervals[coordinate].low)}, {format(intervals[coordinate].high)}]"
            if intervals.get(coordinate)
            else ""
        )
        rows.append([coordinate, format(value), ends, interval])
    blocks: list[Block] = [
        f"law: {name}; limits: {'; '.join(map(str, optimum.problem.limits))}; least {goal}",
        ("The optimum", ["", "value", f"within {decision.within:g}", "interval of resamples"], rows, []),
    ]
    if optimum.undecided:
        blocks.append(f"Nothing here depends on {', '.join(optimum.undecided)}: they are not decided.")
    if optimum.agreeing < 1:
        blocks.append(f"{optimum.agreeing:.0%} of the starts ended here.")
    priced = [[str(p.limit), f"{p.multiplier:.5f}", f"{p.resolved:.5f}"] for p in decision.prices]
    unit = (
        "d loss / d log limit" if optimum.problem.goal == "loss" else f"d log {goal} / d log limit (of the loss: / nat)"
    )
    blocks.append(("What the limits are worth", ["limit", unit, "by solving again"], priced, []))
    return blocks + _built(decision)


def _built(decision: Decision) -> list[Block]:
    if decision.built is None or decision.shape is None:
        return [f"No architecture: {decision.not_built}"]
    built, shape = decision.built, decision.shape
    goal = shape.problem.program.output
    continuous = shape.values[goal]
    numbers = {name: value for name, value in built.measures.items() if value}
    rows = [
        [name, format(shape.values[name]) if name in shape.values else "", format(v)] for name, v in numbers.items()
    ]
    rows.append([goal, f"{continuous:.5f}", f"{built.prediction.values[goal]:.5f}"])
    given_up = built.goal(shape.problem) - (
        continuous if goal == "loss" and shape.problem.goal == "loss" else shape.values.get(shape.problem.goal, 0.0)
    )
    blocks: list[Block] = [
        ("To build, counted exactly", ["", "continuous", "built"], rows, []),
        f"Whole numbers cost {format(given_up)} of {shape.problem.goal}, heads and ratios being rounded too."
        if goal == "loss"
        else "",
        f"heads: {built.architecture.num_heads} of {built.architecture.head_dim}, "
        f"{built.architecture.num_kv_heads} for keys and values.",
    ]
    if built.prediction.extrapolated:
        beyond = ", ".join(f"{name} {factor:.3g}×" for name, factor in built.prediction.extrapolated.items())
        blocks.append(f"! Beyond what the law was fitted to: {beyond}.")
    if decision.published:
        others = sorted(decision.published.items(), key=lambda one: one[1].goal(shape.problem))
        rows = [_published(name, one, goal) for name, one in [("this design", built), *others]]
        columns = ["model", "total", "active", "tokens", "flops", goal, "does not keep"]
        blocks.append(("Published models under the same limits", columns, rows, ["does not keep"]))
    return [block for block in blocks if block]


def _published(name: str, built: Built, goal: str) -> list[str]:
    m = built.measures
    numbers = [format(m[key]) for key in ("params_total", "params_active", "tokens", "flops")]
    return [name, *numbers, f"{built.prediction.values[goal]:.4f}", "; ".join(built.broken)]


def text_laws(found: Mapping[str, Optimum | str], limits: Sequence[Limit]) -> list[Block]:
    """Every law's optimum."""
    rows, silent = [], []
    for name, one in found.items():
        if isinstance(one, str):
            silent.append(f"{name}: {one}")
            continue
        rows.append([name, *(_cell(one, key) for key in SIDE_BY_SIDE), _cell(one, "loss")])
    title = f"Every law under {'; '.join(map(str, limits))}"
    return [
        (title, ["law", *SIDE_BY_SIDE, "loss"], rows, []),
        "Losses of different laws are of different data and tokenisers: compare the designs.",
        *silent,
    ]


def _cell(optimum: Optimum, name: str) -> str:
    values = optimum.values
    if name == "expansion" and name not in values and "params_total" in values:
        return format(values["params_total"] / values["params_active"])
    return format(values[name]) if name in values else ""


def text_sweep(law: str, name: str, points: Sequence[Point]) -> list[Block]:
    """The frontier."""
    rows = [
        [format(p.budget), *(("",) * (len(SIDE_BY_SIDE) + 1) if p.best is None else _row(p.best)), _dense(p)]
        for p in points
    ]
    title = f"The best along {name}, {law}"
    said: list[Block] = [(title, [name, *SIDE_BY_SIDE, "loss", "dense"], rows, [])]
    if any(p.best is None for p in points):
        said.append("Where a row is empty the law has no optimum within the limits.")
    return said


def _row(optimum: Optimum) -> list[str]:
    return [*(_cell(optimum, key) for key in SIDE_BY_SIDE), _cell(optimum, optimum.problem.program.output)]


def _dense(point: Point) -> str:
    return "" if point.dense is None else _cell(point.dense, point.dense.problem.program.output)


def plain(name: str, decision: Decision, intervals: Mapping[str, Any]) -> dict[str, Any]:
    """The whole answer as plain data."""
    built = decision.built
    return {
        "law": name,
        "optimum": plain_optimum(decision.optimum),
        "prices": [_finite(dataclasses.asdict(price)) for price in decision.prices],
        "within": decision.within,
        "flat_region": [_finite(dataclasses.asdict(one)) for one in decision.flat],
        "intervals": {key: _finite(dataclasses.asdict(one)) for key, one in intervals.items()},
        "shape": None if decision.shape is None else plain_optimum(decision.shape),
        "built": None if built is None else {**plain_built(built), "architecture": dump(built.architecture)},
        "not_built": decision.not_built,
        "published": {key: plain_built(one) for key, one in decision.published.items()},
    }


def plain_optimum(optimum: Optimum) -> dict[str, Any]:
    """One optimum."""
    problem = optimum.problem
    return {
        "goal": problem.goal,
        "limits": [_finite(dataclasses.asdict(limit)) for limit in problem.limits],
        "values": dict(optimum.values),
        "undecided": list(optimum.undecided),
        "agreeing": optimum.agreeing,
    }


def plain_built(built: Built) -> dict[str, Any]:
    """One architecture trained within the limits."""
    return {
        "tokens": built.tokens,
        "measures": dict(built.measures),
        "predicted": dict(built.prediction.values),
        "extrapolated": dict(built.prediction.extrapolated),
        "broken": list(built.broken),
    }


def plain_laws(found: Mapping[str, Optimum | str]) -> dict[str, Any]:
    """Every law's optimum, or why it has none."""
    return {
        "laws": {name: plain_optimum(one) for name, one in found.items() if not isinstance(one, str)},
        "no_optimum": {name: one for name, one in found.items() if isinstance(one, str)},
    }


def plain_sweep(law: str, name: str, points: Sequence[Point]) -> dict[str, Any]:
    """The frontier."""
    return {
        "law": law,
        "along": name,
        "points": [
            {
                "budget": p.budget,
                "best": None if p.best is None else plain_optimum(p.best),
                "dense": None if p.dense is None else plain_optimum(p.dense),
            }
            for p in points
        ],
    }


def _finite(plain: dict[str, Any]) -> dict[str, Any]:
    """Infinities and NaN as null."""

    def one(value: Any) -> Any:
        if isinstance(value, dict):
            return _finite(value)
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return {key: one(value) for key, value in plain.items()}
