"""A decision as tables in a terminal, and as plain data."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from moejax.config import dump
from moejax.design.measures import in_units
from moejax.quantities import format, format_bytes

if TYPE_CHECKING:
    from moejax.design.build import Built
    from moejax.design.decide import DesignResult
    from moejax.design.frontier import Landscape, Point
    from moejax.design.measures import CostAssumptions
    from moejax.design.problem import Constraint, Optimum
    from moejax.design.repeats import Repeats

Block = str | tuple[str, list[str], list[list[str]], list[str]]
"""A paragraph; or a table's title, columns, rows, and those of its columns that hold words."""

SHORT = {"params_total": "total", "params_active": "active", "active_experts": "experts", "shared_share": "shared"}
"""Of names, in tables with many columns."""
SIDE_BY_SIDE = (
    *("params_total", "params_active", "expansion", "active_experts", "shared_share", "granularity"),
    *("tokens", "epochs"),
)


HEADS = tuple(SHORT.get(name, name) for name in SIDE_BY_SIDE)


def show(blocks: Sequence[Block]) -> None:
    """Print."""
    from moejax.cli import table

    for block in blocks:
        if isinstance(block, str):
            print(block + "\n")
        else:
            title, columns, rows, words = block
            table.show(title, columns, rows, words=words)


def text(name: str, decision: DesignResult) -> list[Block]:
    """The whole answer."""
    optimum = decision.optimum
    goal = optimum.problem.program.output if optimum.problem.goal == "loss" else optimum.problem.goal
    blocks: list[Block] = [
        f"law: {name}; constraints: {'; '.join(map(str, optimum.problem.constraints))}; least {goal}",
        _table(decision),
        *_to_train(decision),
    ]
    if optimum.unidentified:
        blocks.append(f"Nothing here depends on {', '.join(optimum.unidentified)}: they are not decided.")
    if optimum.agreeing < 1:
        blocks.append(f"{optimum.agreeing:.0%} of the starts ended here.")
    priced = [[str(p.constraint), f"{p.multiplier:.5f}", f"{p.resolved:.5f}"] for p in decision.prices]
    unit = (
        "d loss / d log bound" if optimum.problem.goal == "loss" else f"d log {goal} / d log bound (of the loss: / nat)"
    )
    blocks.append(("What the constraints are worth", ["constraint", unit, "by solving again"], priced, []))
    return [*blocks, *_repeats(decision), *_compared(decision)]


def _table(decision: DesignResult) -> Block:
    """What is to be trained, beside the optima that it is the nearest whole-numbered shape to, and what is near."""
    optimum, built, shape = decision.optimum, decision.built, decision.shape
    flat = {one.name: one for one in decision.flat}
    output = optimum.problem.program.output
    to_train = {} if built is None else {**built.measures, output: built.prediction.values[output]}
    of_sizes = {name: value for name, value in optimum.values.items() if name not in optimum.unidentified}
    of_shape = shape.values if built is not None and shape is not None else {}
    names = [name for name in dict.fromkeys([*of_sizes, *to_train]) if name != output]

    def cell(values: Mapping[str, float], name: str) -> str:
        if not values.get(name, 0.0) and name not in of_sizes:
            return ""
        return "" if name not in values else f"{values[name]:.5f}" if name == output else in_units(name, values[name])

    rows = []
    for name in [*names, output]:
        around, interval = flat.get(name), decision.intervals.get(name)
        written = functools.partial(in_units, name)
        ends = f"{written(around.low)} – {written(around.high)}" if around else ""
        within = interval.ends(written) if interval else ""
        cells = [cell(to_train, name), "" if of_shape is optimum.values else cell(of_shape, name), cell(of_sizes, name)]
        if any(cells):
            rows.append([name, *cells, ends, within])
    likely = f"{100 * decision.level:g}% interval, of sizes alone, by {decision.by}"
    columns = ["", "to train", "its shape, not whole", "sizes alone", f"within {decision.within:g}", likely]
    return ("The optimum", columns, rows, [])


def _to_train(decision: DesignResult) -> list[Block]:
    """Which of the columns to train, and what each restriction costs."""
    if decision.built is None or decision.shape is None:
        return [f"No architecture: {decision.not_built}"]
    built, shape, optimum = decision.built, decision.shape, decision.optimum
    goal = optimum.problem.program.output if optimum.problem.goal == "loss" else optimum.problem.goal
    found = built.prediction.values if optimum.problem.goal == "loss" else built.measures
    values = [*([] if shape is optimum else [optimum.values]), shape.values, found]
    costs = [_cost(before[goal], after[goal], goal) for before, after in itertools.pairwise(values)]
    whole = f"whole numbers, in multiples that hardware likes, {costs[-1]}"
    more = "again" if costs[-1].startswith("save") else "more"
    cost = whole if shape is optimum else f"layers, widths and heads {costs[0]} over sizes alone, and {whole} {more}"
    assumptions = shape.problem.assumptions
    about = (
        ""
        if shape is optimum
        else f" Constraints, ranges and intervals are about sizes alone, whose FLOPs are 6·N·D; those of the "
        f"other columns are counted layer by layer (--convention {assumptions.convention})."
    )
    active, total = (format(built.measures[name]) for name in ("params_active", "params_total"))
    sizes = f"{active} parameters" if active == total else f"{active} of {total} parameters"
    return [
        f"Train the first column: {sizes} on {format(built.tokens)} tokens (--out DIR writes its config.py). "
        f"In {goal}, {cost}.{about}",
        f"chip_hours are of chips of {assumptions.chip_flops:.3g} FLOP/s at {assumptions.mfu:.0%} of it "
        f"(--chip-flops, --mfu); "
        f"memory_bytes are {assumptions.bytes_per_param:g} bytes a parameter"
        + (
            f" and the activations of {format(assumptions.memory_tokens)} tokens." if assumptions.memory_tokens else "."
        ),
        f"heads: {built.architecture.num_heads} of {built.architecture.head_dim}, "
        f"{built.architecture.num_kv_heads} for keys and values. --exact-shape builds the whole numbers nearest to the "
        f"optimum, whatever hardware likes.",
    ]


def _cost(before: float, after: float, goal: str) -> str:
    change = after - before if goal == "loss" else after / before - 1
    much = f"{abs(change):.5f} nats" if goal == "loss" else f"{abs(change):.2%}"
    return f"cost +{much}" if change >= 0 else f"save {much}"


def _repeats(decision: DesignResult) -> list[Block]:
    found, problem = decision.repeats, decision.optimum.problem
    if found is None:
        return []
    chosen = [c.name for c in problem.space.coordinates if c.name != "unique_tokens"]
    goal = [] if problem.goal in ("loss", *chosen) else [problem.goal]

    def row(name: str, values: Mapping[str, float]) -> list[str]:
        return [name, *(format(values[key]) for key in (*chosen, "epochs", *goal)), f"{values['loss']:.4f}"]

    unique = format(found.unique_tokens)
    rows = [row("this answer", decision.optimum.values)]
    if found.once is not None:
        rows.append(row(f"no token twice: tokens <= {unique}", found.once.values))
    if found.endless is not None:
        endless = {**found.endless.values, "epochs": 1.0}
        rows.append(row("all tokens different, without end", endless))
        if found.endless_loss is not None and found.endless_epochs is not None:
            here = {**endless, "epochs": found.endless_epochs, "loss": found.endless_loss}
            rows.append(row(f"the same, on the {unique} there are", here))
    columns = ["", *(SHORT.get(name, name) for name in chosen), "epochs", *goal, "loss"]
    said = [] if found.once is not None else ["Without repeats nothing keeps these constraints."]
    return [("What repeating tokens is worth", columns, rows, []), *said]


def without_repeats(laws: Mapping[str, Any], unique_tokens: float | None) -> list[Block]:
    """What is said where unique tokens are given to laws that have no price for repeats."""
    hard = [name for name, law in laws.items() if "unique_tokens" not in law.inputs]
    if unique_tokens is None or not hard:
        return []
    return [
        f"No price for repeated tokens: {', '.join(hard)}. To these {format(unique_tokens)} unique tokens are a hard "
        f"constraint on tokens; data_constrained has a price."
    ]


def _compared(decision: DesignResult) -> list[Block]:
    """How far what is to be trained lies beyond the law's runs, and published models beside it."""
    if decision.built is None or decision.shape is None:
        return []
    built, problem, blocks = decision.built, decision.shape.problem, []
    if built.prediction.extrapolated:
        blocks.append(
            f"! What to train lies beyond what the law was fitted to: {_beyond(built.prediction.extrapolated)}."
        )
    if decision.published:
        others = sorted(decision.published.items(), key=lambda one: one[1].goal(problem))
        goal = problem.program.output
        rows = [_published(name, one, goal) for name, one in [("this design", built), *others]]
        columns = ["model", "total", "active", "tokens", "flops", goal, "does not keep"]
        blocks.append(("Published models under the same constraints", columns, rows, ["does not keep"]))
    return blocks


def on_chips(decision: DesignResult, chips: int) -> dict[str, int | float | None]:
    """How long what is to be built takes on some chips, and what each holds of its memory, spread evenly."""
    from moejax.design.build import measured

    if decision.built is None or decision.shape is None:
        return {}
    built, problem = decision.built, decision.shape.problem
    tokens = chips * problem.assumptions.sequence_length
    fed = dataclasses.replace(problem, assumptions=dataclasses.replace(problem.assumptions, memory_tokens=tokens))
    constraint = problem.merged_constraints().get("memory_bytes")
    return {
        "chips": chips,
        "days": built.measures["chip_hours"] / chips / 24,
        "memory_bytes_a_chip": built.measures["memory_bytes"] / chips,
        "memory_bytes_a_chip_with_a_sequence_each": measured(fed, built.architecture, built.tokens)["memory_bytes"]
        / chips,
        "memory_limit_bytes_a_chip": None
        if constraint is None or math.isinf(constraint.high)
        else constraint.high / chips,
    }


def chips_in_words(found: Mapping[str, Any], assumptions: CostAssumptions) -> list[Block]:
    """The same as a sentence, and a warning where what is left out of the count does not fit."""
    if not found:
        return []
    held, limit = found["memory_bytes_a_chip"], found["memory_limit_bytes_a_chip"]
    said = (
        f"On {found['chips']:.0f} chips: {found['days']:.3g} days at {assumptions.mfu:.0%} of "
        f"{assumptions.chip_flops:.3g} "
        f"FLOP/s; {format_bytes(held)} a chip at {assumptions.bytes_per_param:g} bytes a parameter"
    )
    if assumptions.memory_tokens:
        return [f"{said}, activations of {format(assumptions.memory_tokens)} tokens included."]
    fed = found["memory_bytes_a_chip_with_a_sequence_each"]
    with_one = (
        f"without activations; with one sequence of {assumptions.sequence_length} tokens on each, {format_bytes(fed)}"
    )
    if limit is None or fed <= limit:
        return [f"{said}, {with_one}."]
    tokens = f"{found['chips'] * assumptions.sequence_length:.0f}"
    return [
        f"! {said}, {with_one}: more than the {format_bytes(limit)} there are. Count them: --memory-tokens {tokens}."
    ]


def beyond_in_words(factors: Mapping[str, float]) -> str:
    """That an optimum lies outside the runs of a fit, and how far."""
    return f"! Sizes alone lie beyond the fitted runs: {_beyond(factors)}."


def _beyond(factors: Mapping[str, float]) -> str:
    return ", ".join(f"{SHORT.get(name, name)} {factor:.3g}×" for name, factor in factors.items())


def _published(name: str, built: Built, goal: str) -> list[str]:
    m = built.measures
    numbers = [format(m[key]) for key in ("params_total", "params_active", "tokens", "flops")]
    return [name, *numbers, f"{built.prediction.values[goal]:.4f}", "; ".join(built.broken)]


def text_laws(
    found: Mapping[str, Optimum | str], constraints: Sequence[Constraint], outside: Mapping[str, Mapping[str, float]]
) -> list[Block]:
    """Every law's optimum, and how far it lies outside what the law was fitted to."""
    rows, silent = [], []
    for name, one in found.items():
        if isinstance(one, str):
            silent.append(f"{name}: {one}")
            continue
        rows.append([name, *(_cell(one, key) for key in SIDE_BY_SIDE), _cell(one, "loss")])
    title = f"Every law under {'; '.join(map(str, constraints))}"
    return [
        (title, ["law", *HEADS, "loss"], rows, []),
        "Losses of different laws are of different data and tokenisers: compare the designs.",
        *(f"! {name}, beyond what it was fitted to: {_beyond(outside[name])}." for name in outside if outside[name]),
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
        [
            format(p.budget),
            *(("",) * (len(SIDE_BY_SIDE) + 1) if p.best is None else _row(p.best)),
            _dense(p),
            *_equal(p),
        ]
        for p in points
    ]
    title = f"The best along {name}, {law}"
    compared = ["loss", "dense", "at equal N, C", "tokens ×"]
    said: list[Block] = [
        (title, [name, *HEADS, *compared], rows, []),
        "dense: the best of the budget. At equal N, C: the dense model as large in all; tokens ×: of the best, per one "
        "of its tokens.",
    ]
    if any(p.best is None for p in points):
        said.append("Where a row is empty the law has no optimum within the constraints.")
    return said


def _row(optimum: Optimum) -> list[str]:
    return [*(_cell(optimum, key) for key in SIDE_BY_SIDE), _cell(optimum, optimum.problem.program.output)]


def _dense(point: Point) -> str:
    return "" if point.dense is None else _cell(point.dense, point.dense.problem.program.output)


def _equal(point: Point) -> list[str]:
    return ["", ""] if point.equal is None else [f"{point.equal.loss:.4f}", format(point.equal.token_multiplier)]


def text_landscape(law: str, found: Landscape) -> list[Block]:
    """The law's output by two coordinates."""
    first, second = found.names
    rows = [
        [format(value, 3), *("" if x != x else f"{x:.4g}" for x in heights)]
        for value, heights in zip(found.values[0], found.heights.tolist(), strict=True)
    ]
    columns = [f"{first} \\ {second}", *(format(value, 3) for value in found.values[1])]
    return [(f"The best {found.goal.replace('_', ' ')} by {first} and {second}, {law}", columns, rows, [])]


def plain_landscape(law: str, found: Landscape) -> dict[str, Any]:
    """The same as plain data."""
    heights = [[None if x != x else x for x in row] for row in found.heights.tolist()]
    values = {name: list(values) for name, values in zip(found.names, found.values, strict=True)}
    return {"law": law, "over": values, found.goal: heights}


def plain(name: str, decision: DesignResult) -> dict[str, Any]:
    """The whole answer as plain data."""
    built, likely = decision.built, {"by": decision.by, "level": decision.level}
    return {
        "law": name,
        "optimum": plain_optimum(decision.optimum),
        "prices": [_finite(dataclasses.asdict(price)) for price in decision.prices],
        "within": decision.within,
        "flat_region": [_finite(dataclasses.asdict(one)) for one in decision.flat],
        "intervals": {
            key: _finite(dataclasses.asdict(one) | {"uninformative": one.uninformative} | likely)
            for key, one in decision.intervals.items()
        },
        "repeats": None if decision.repeats is None else _plain_repeats(decision.repeats),
        "shape": None if decision.shape is None else plain_optimum(decision.shape),
        "built": None if built is None else {**plain_built(built), "architecture": dump(built.architecture)},
        "not_built": decision.not_built,
        "published": {key: plain_built(one) for key, one in decision.published.items()},
    }


def _plain_repeats(found: Repeats) -> dict[str, Any]:
    return {
        "unique_tokens": found.unique_tokens,
        "no_token_twice": None if found.once is None else plain_optimum(found.once),
        "without_end": None if found.endless is None else plain_optimum(found.endless),
        "without_end_on_these": {"epochs": found.endless_epochs, "loss": found.endless_loss},
    }


def plain_optimum(optimum: Optimum) -> dict[str, Any]:
    """One optimum."""
    problem = optimum.problem
    return {
        "goal": problem.goal,
        "constraints": [_finite(dataclasses.asdict(constraint)) for constraint in problem.constraints],
        "values": dict(optimum.values),
        "unidentified": list(optimum.unidentified),
        "agreeing": optimum.agreeing,
    }


def plain_built(built: Built) -> dict[str, Any]:
    """One architecture trained within the constraints."""
    return {
        "tokens": built.tokens,
        "measures": dict(built.measures),
        "predicted": dict(built.prediction.values),
        "extrapolated": dict(built.prediction.extrapolated),
        "broken": list(built.broken),
    }


def plain_laws(found: Mapping[str, Optimum | str], outside: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """Every law's optimum, or why it has none."""
    return {
        "laws": {
            name: {**plain_optimum(one), "extrapolated": dict(outside[name])}
            for name, one in found.items()
            if not isinstance(one, str)
        },
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
                "dense_of_equal_params_and_flops": None if p.equal is None else dataclasses.asdict(p.equal),
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
