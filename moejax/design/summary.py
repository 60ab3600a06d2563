"""Summarize designs as a ``Result``: the optimum, the model to train, prices of constraints, the flat region."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from moejax.config import dump
from moejax.design.build import HELD, Built, missed
from moejax.design.constraint import Constraint, restated
from moejax.design.coordinates import Shapes
from moejax.design.decide import DesignResult, Repeats
from moejax.design.frontier import Landscape, Point
from moejax.design.measures import CostAssumptions, in_units
from moejax.design.problem import Optimum, Problem
from moejax.design.sensitivity import Flat
from moejax.errors import UserError
from moejax.interval import in_percent
from moejax.json_text import finite
from moejax.laws.budget.peak_rate import PeakRate, counted, peak_rate
from moejax.laws.catalogue import CATALOGUE
from moejax.laws.predict import AS_DENSE, beyond_in_words
from moejax.quantities import format, format_bytes
from moejax.result import BLANK, LOW_HIGH, Column, Result, Table, Written
from moejax.wording import argument, listed, option_hint

SHORT = {"params_total": "total", "params_active": "active", "active_experts": "experts", "shared_share": "shared"}
"""Short names for tables with many columns."""
SIDE_BY_SIDE = (
    *("params_total", "params_active", "expansion", "active_experts", "shared_share", "granularity"),
    *("tokens", "epochs"),
)
"""Sizes in tables of several optima."""


def _columns(*names: str) -> list[Column]:
    return [Column(SHORT.get(name, name), format) for name in names]


def summary(name: str, decision: DesignResult) -> Result:
    """Summarize a design: the model to train, prices of constraints, value of repetition, and published models."""
    optimum, built, shape = decision.optimum, decision.built, decision.shape
    notes = _to_train(decision)
    if optimum.unidentified:
        notes.append(
            f"Neither the goal nor the constraints depend on {', '.join(optimum.unidentified)}, so no value is chosen."
        )
    if optimum.agreeing < 1:
        notes.append(f"The search reached this optimum from {optimum.agreeing:.0%} of the initial guesses.")
    warnings = [decision.without_intervals] if decision.without_intervals else []
    if decision.undecided:
        warnings.append(
            f"The law does not determine {listed(decision.undecided)}: values that differ by more than a factor of ten "
            f"have the same loss, because the others adapt. The values below are the starting values of the search."
        )
    if built is not None and (far := built.prediction.extrapolated):
        warnings.append(f"The model to train is outside the law's fitted range: {', '.join(beyond_in_words(far))}.")
    if built is not None and built.prediction.as_dense:
        warnings.append(AS_DENSE)
    warnings += _within_fitted(decision)
    warnings += _better_published(decision)
    rate = _rate(decision)
    notes += [f"{rate.sentence} In the config, learning_rate is auto, which uses this rate."] if rate else []
    notes += _on_topology(decision)
    constraints = "; ".join(map(str, optimum.problem.constraints))
    intervals = {
        key: finite(asdict(one) | {"uninformative": one.uninformative, "by": decision.by, "level": decision.level})
        for key, one in decision.intervals.items()
    }
    result = Result(
        title=f"law: {name}; constraints: {constraints}; objective: {optimum.problem.goal_name}",
        warnings=warnings,
        tables=[_optimum(decision, notes), _prices(decision), *_repeats(decision), *_published(decision)],
        data={
            "law": name,
            "optimum": _optimum_data(optimum),
            "prices": [finite(asdict(price)) for price in decision.prices],
            "within": decision.within,
            "undecided": list(decision.undecided),
            "flat_region": [finite(asdict(one)) for one in decision.flat],
            "intervals": intervals,
            "repeats": decision.repeats and _repeats_data(decision.repeats),
            "shape": shape and _optimum_data(shape),
            "built": None if built is None else {**_built_data(built), "architecture": dump(built.architecture)},
            "not_built": decision.not_built,
            "learning_rate": rate and rate.to_json(),
            "on_topology": decision.on_topology and asdict(decision.on_topology),
            "built_interval": decision.built_interval,
            "published": {key: _built_data(one) for key, one in decision.published.items()},
        },
    )
    return with_extrapolation(result, "The optimum over sizes lies", decision.beyond)


def _within_fitted(decision: DesignResult) -> list[str]:
    """Return a warning with the options that keep extrapolated sizes and proportions in the law's fitted range."""
    problem = decision.optimum.problem
    ranges: dict[str, tuple[float, float]] = {}
    for name in {**(decision.built.prediction.extrapolated if decision.built else {}), **decision.beyond}:
        # Tokens and FLOPs follow from the budget. All parameters bound those without embeddings.
        bounded = name.removesuffix("_nonembedding")
        if name not in decision.fitted or bounded in ("tokens", "unique_tokens", "epochs", "flops", "loss"):
            continue
        low, high = map(float, decision.fitted[name])
        try:
            constraint = restated(Constraint(name=bounded, low=low, high=high), problem.law, problem.space)
            replace(problem, constraints=(*problem.constraints, constraint)).check()
        except UserError:
            # The problem does not allow this constraint, or contradicts it.
            continue
        ranges[bounded] = low, high
    if not ranges:
        return []
    in_command = option_hint(" ".join(f"--range {n}={format(low)}:{format(high)}" for n, (low, high) in ranges.items()))
    return [
        f"To keep sizes and proportions within the fitted range, add {in_command or f'range={ranges}'}. Tokens and "
        "FLOPs follow from the budget."
    ]


def _better_published(decision: DesignResult) -> list[str]:
    """Return a warning if a published model is better than the built model under the same constraints."""
    if decision.built is None or decision.shape is None:
        return []
    problem = decision.shape.problem
    allowed = {name: one.goal(problem) for name, one in decision.published.items() if not one.broken}
    best = min(allowed, key=allowed.__getitem__, default="")
    if not best or allowed[best] >= decision.built.goal(problem):
        return []
    return [
        f"The published model {best} is better under the same constraints (see the table of published models): the "
        f"proportions of {_likeness(decision.shape)} do not suit this budget. Design with {argument('like', best)}."
    ]


def _on_topology(decision: DesignResult) -> list[str]:
    """Return a note about the training of the built model on the topology for which it was designed."""
    on, built = decision.on_topology, decision.built
    if on is None or built is None:
        return []
    mfu = decision.optimum.problem.assumptions.mfu
    days = built.measures["chip_hours"] / on.chips / 24
    note = (
        f"On {on.topology}, training with {on.choice} needs an estimated {format_bytes(on.memory_bytes, 3)} of the "
        f"{format_bytes(on.device_memory_bytes, 3)} per device. At an MFU of {mfu:.0%}, training takes {days:.3g} "
        f"days; the roofline without overlap allows {on.roofline_mfu:.0%}. Compile the plan before you reserve the "
        "chips."
    )
    if any(price.constraint.name == "memory_bytes" for price in decision.prices):
        note += " The bound of memory_bytes is the largest one tried whose design fits and reaches this MFU."
    return [note]


def _rate(decision: DesignResult) -> PeakRate | None:
    if decision.built is None:
        return None
    length = decision.optimum.problem.assumptions.sequence_length
    return peak_rate(counted(decision.built.architecture, decision.built.whole_tokens(length), length))


def _optimum(decision: DesignResult, notes: Sequence[str]) -> Table:
    optimum, built, shape = decision.optimum, decision.built, decision.shape
    flat = {one.name: one for one in decision.flat}
    output = optimum.problem.program.output
    to_train = {} if built is None else {**built.measures, output: built.prediction.values[output]}
    searched = {name: value for name, value in optimum.values.items() if name not in optimum.unidentified}
    by_shape = isinstance(optimum.problem.space, Shapes)
    of_sizes = {} if by_shape else searched
    of_shape = searched if by_shape else {} if built is None or shape is None else shape.values
    names = [name for name in dict.fromkeys([*searched, *to_train]) if name != output]

    def cell(values: Mapping[str, float], name: str) -> Written:
        value = values.get(name, 0.0)
        if name not in values or not (value or name in searched):
            return BLANK
        return Written(value, f"{value:.5f}" if name == output else in_units(name, value))

    rows = []
    for name in [*names, output]:
        around, interval = flat.get(name), decision.intervals.get(name)
        written = functools.partial(in_units, name)
        near, likely = BLANK, BLANK
        if around:
            # The search for an end of the region may fail.
            ends = ("not found" if math.isnan(end) else written(end) for end in (around.low, around.high))
            near = Written((around.low, around.high), " – ".join(ends))
        if interval:
            likely = Written((interval.low, interval.high), interval.ends(written))
        cells = [cell(values, name) for values in (to_train, of_shape, of_sizes)]
        if any(one is not BLANK for one in cells):
            rows.append([name, *cells, near, likely])
    columns = [
        *map(Column, ("", "to train", "unrounded shape", "sizes alone")),
        Column(f"within {decision.within:g}", keys=("flat_low", "flat_high")),
        Column(
            f"{in_percent(decision.level)} interval of {'shapes' if by_shape else 'sizes alone'}, {decision.by}",
            keys=LOW_HIGH,
        ),
    ]
    return Table("The optimum", columns, rows, notes)


def _to_train(decision: DesignResult) -> list[str]:
    built, shape, optimum = decision.built, decision.shape, decision.optimum
    if built is None or shape is None:
        return [f"No architecture: {decision.not_built}"]
    goal = optimum.problem.goal_name
    trained = built.prediction.values if optimum.problem.goal == "loss" else built.measures
    values = [*([] if shape is optimum else [optimum.values]), shape.values, trained]
    costs = [_cost(before[goal], after[goal], goal) for before, after in itertools.pairwise(values)]
    cost = f"integers {costs[-1]}"
    assumptions, about = shape.problem.assumptions, ""
    if shape is not optimum:
        more = "again" if costs[-1].startswith("save") else "more"
        cost = f"layers, widths and heads {costs[0]} over sizes alone, and {cost} {more}"
        about = (
            " Constraints, ranges and intervals refer to sizes alone, whose FLOPs are 6·N·D. The FLOPs of the other "
            f"columns follow the convention {assumptions.convention}{_as_fitted(decision)}."
        )
        if outside := [one.name for one in decision.flat if _is_outside(one, built.measures.get(one.name))]:
            about += (
                f" The model to train is outside the range within {decision.within:g} in {listed(outside)}, because "
                f"its parameters and FLOPs are counted exactly; {argument('shape', True)} gives the range over shapes."
            )
    active, total = (format(built.measures[name]) for name in ("params_active", "params_total"))
    sizes = f"{active} parameters" if active == total else f"{active} of {total} parameters"
    written, speed = option_hint(" (--out DIR writes its config.py)"), option_hint(" (--chip-flops, --mfu)")
    exact = option_hint(
        " --exact-shape also tries the integers nearest to the optimum, instead of only hardware-friendly multiples."
    )
    return [
        f"Train the first column: {sizes} on {format(built.tokens)} tokens{written}.{_expected(decision)} Effect on "
        f"{goal}: {cost}.{about}",
        *_missed(shape.problem, built),
        f"chip_hours assume {assumptions.chip_flops:.3g} FLOP/s per chip at an MFU of {assumptions.mfu:.0%}{speed}. "
        f"As in plans, they do not count masked attention scores; FLOPs by the convention exact do. "
        f"memory_bytes assume {assumptions.bytes_per_param:g} bytes per parameter.",
        f"Heads: {built.architecture.num_heads} of width {built.architecture.head_dim}, "
        f"{built.architecture.num_kv_heads} for keys and values.{exact}",
        f"Dimensions that the law does not read, such as depth, heads and vocabulary, follow {_likeness(shape)}: they "
        f"keep its ratios to the width, or its values. Choose another architecture with {argument('like')}.",
    ]


def _is_outside(flat: Flat, value: float | None) -> bool:
    return value is not None and (value < flat.low or value > flat.high)


def _as_fitted(decision: DesignResult) -> str:
    """Return how the convention of FLOPs compares with that of the fitted runs; empty if this is unknown."""
    chosen, fitted = decision.optimum.problem.assumptions.convention, decision.fitted_convention
    if not fitted:
        return ""
    return ", like those of the fitted runs" if chosen == fitted else f", and those of the fitted runs {fitted}"


def _missed(problem: Problem, built: Built) -> list[str]:
    """Return a note for each constraint that the integers of the built model miss."""
    return [
        f"The model meets {constraint} only within {HELD:.0%}, because its dimensions are integers: its {name} is "
        f"{in_units(name, value)}."
        for name, (constraint, value) in missed(problem, built).items()
    ]


def _expected(decision: DesignResult) -> str:
    if decision.built is None or decision.built_interval is None:
        return ""
    output = decision.optimum.problem.program.output
    low, high = decision.built_interval
    return (
        f" Its {output} is predicted as {decision.built.prediction.values[output]:.4f}, {in_percent(decision.level)} "
        f"prediction interval [{low:.4f}, {high:.4f}]."
    )


def _likeness(shape: Optimum) -> str:
    """Return the name of the published model that gives the proportions, or "the given architecture"."""
    like = getattr(shape.problem.space, "like", None)
    return next((name for name, model in CATALOGUE.items() if model.architecture == like), "the given architecture")


def _cost(before: float, after: float, goal: str) -> str:
    change = after - before if goal == "loss" else after / before - 1
    much = f"{abs(change):.5f} nats" if goal == "loss" else f"{abs(change):.2%}"
    return f"cost +{much}" if change >= 0 else f"save {much}"


def _prices(decision: DesignResult) -> Table:
    goal = decision.optimum.problem.goal
    unit = "d loss / d log bound" if goal == "loss" else f"d log {goal} / d log bound (loss bound: per nat)"
    columns = (Column("constraint"), Column(unit, ".5f"), Column("by solving again", ".5f"))
    rows = [[str(price.constraint), price.multiplier, price.resolved] for price in decision.prices]
    return Table("Prices of the constraints", columns, rows)


def _repeats(decision: DesignResult) -> list[Table]:
    repeats, problem = decision.repeats, decision.optimum.problem
    if repeats is None:
        return []
    chosen = [c.name for c in problem.space.coordinates if c.name != "unique_tokens"]
    names = (*chosen, "epochs", *(() if problem.goal in ("loss", *chosen) else (problem.goal,)))
    unique = format(repeats.unique_tokens)
    shown = {"this design": decision.optimum.values}
    if repeats.once is not None:
        shown[f"no repetition: tokens <= {unique}"] = repeats.once.values
    if repeats.endless is not None:
        endless = {**repeats.endless.values, "epochs": 1.0}
        shown["unlimited unique tokens"] = endless
        if repeats.endless_loss is not None and repeats.endless_epochs is not None:
            here = {"epochs": repeats.endless_epochs, "loss": repeats.endless_loss}
            shown[f"that design, {unique} unique tokens"] = endless | here
    rows = [[name, *(values[key] for key in (*names, "loss"))] for name, values in shown.items()]
    columns = (Column(""), *_columns(*names), Column("loss", ".4f"))
    notes = [] if repeats.once is not None else ["No design without repeated tokens satisfies these constraints."]
    return [Table("Value of repeated tokens", columns, rows, notes)]


def _published(decision: DesignResult) -> list[Table]:
    if decision.built is None or decision.shape is None or not decision.published:
        return []
    problem = decision.shape.problem
    goal, names = problem.program.output, ("params_total", "params_active", "tokens", "flops")
    others = sorted(decision.published.items(), key=lambda one: one[1].goal(problem))
    rows = [
        [name, *(one.measures[key] for key in names), one.prediction.values[goal], "; ".join(one.broken)]
        for name, one in [("this design", decision.built), *others]
    ]
    columns = (Column("model"), *_columns(*names), Column(goal, ".4f"), Column("violates", words=True))
    return [Table("Published models under the same constraints", columns, rows)]


def with_extrapolation(result: Result, designs: str, beyond: Mapping[str, float]) -> Result:
    """Add a warning if ``beyond`` has variables outside the fitted range; ``designs`` begins the sentence."""
    if not beyond:
        return result
    warning = f"{designs} outside the law's fitted range: {', '.join(beyond_in_words(beyond))}."
    return replace(result, warnings=[warning, *result.warnings], data=result.data | {"extrapolated": dict(beyond)})


def with_assumptions(result: Result, problems: Mapping[str, Problem], unique_tokens: float | None) -> Result:
    """Prepend the assumptions about active parameters and about laws without repetition.

    Args:
      problems: solved problems, by name of the law.
      unique_tokens: number of unique tokens, if given.
    """
    assumed = list(dict.fromkeys(one.space.assumes for one in problems.values() if one.space.assumes))
    data = result.data | ({"active_convention": assumed[0]} if assumed else {})
    hard = [name for name, one in problems.items() if "unique_tokens" not in one.law.inputs]
    if unique_tokens is not None and hard:
        assumed.append(
            f"{', '.join(hard)}: no model of repeated tokens, so {format(unique_tokens)} unique tokens limit the "
            f"tokens. The law data_constrained models repetition."
        )
    first = [Table("", notes=assumed)] if assumed else []
    return replace(result, tables=[*first, *result.tables], data=data)


STATE_SHARE = 0.6
"""Share of a chip's memory that parameters, gradients and moments may take without a warning."""


def with_chips(result: Result, on_chips: Mapping[str, Any], assumptions: CostAssumptions) -> Result:
    """Add the results of ``on_chips``, as a warning if the state leaves little of the chips' memory."""
    data = result.data | {"on_chips": on_chips}
    if not on_chips:
        return replace(result, data=data)
    memory, limit = on_chips["memory_bytes_a_chip"], on_chips["memory_limit_bytes_a_chip"]
    said = (
        f"On {on_chips['chips']:.0f} chips: {on_chips['days']:.3g} days at {assumptions.mfu:.0%} of "
        f"{assumptions.chip_flops:.3g} FLOP/s; {format_bytes(memory)} per chip at {assumptions.bytes_per_param:g} "
        f"bytes per parameter, without activations."
    )
    if limit is None or memory <= STATE_SHARE * limit:
        return replace(result, notes=[*result.notes, said], data=data)
    said += (
        f" The state takes {memory / limit:.0%} of the memory, but a step also needs gathered weights and activations, "
        "so this model may not fit. --topology, such as h100:64x8, designs a model that fits."
    )
    return replace(result, warnings=[*result.warnings, said], data=data)


def laws_summary(
    optima: Mapping[str, Optimum | str], constraints: Sequence[Constraint], beyond: Mapping[str, Mapping[str, float]]
) -> Result:
    """Summarize each law's optimum and its extrapolation ``beyond`` the fitted range, or the reason why it has none."""
    decided = {name: one for name, one in optima.items() if not isinstance(one, str)}
    none = {name: one for name, one in optima.items() if isinstance(one, str)}
    table = Table(
        f"Every law under {'; '.join(map(str, constraints))}",
        (Column("law"), *_columns(*SIDE_BY_SIDE, "loss")),
        [[name, *_sizes(one), one.values.get("loss")] for name, one in decided.items()],
        ["The laws' losses refer to different data and tokenizers; compare the designs, not the losses."],
    )
    return Result(
        warnings=[
            f"The optimum of {name} is outside the law's fitted range: {', '.join(beyond_in_words(far))}."
            for name, far in beyond.items()
            if far
        ],
        tables=[table],
        notes=[f"{name}: {why}" for name, why in none.items()],
        data={
            "laws": {n: {**_optimum_data(one), "extrapolated": dict(beyond[n])} for n, one in decided.items()},
            "no_optimum": none,
        },
    )


def _sizes(optimum: Optimum | None) -> list[float | None]:
    values = {} if optimum is None else dict(optimum.values)
    if "expansion" not in values and "params_total" in values:
        values["expansion"] = values["params_total"] / values["params_active"]
    return [values.get(name) for name in SIDE_BY_SIDE]


def sweep_summary(law: str, name: str, points: Sequence[Point]) -> Result:
    """Summarize, for every budget, the best design, the best dense model, and the dense model of equal size."""

    def output(optimum: Optimum | None) -> float | None:
        return None if optimum is None else optimum.values[optimum.problem.program.output]

    rows = [
        [
            *(p.budget, *_sizes(p.best), output(p.best), output(p.dense)),
            *((None, None) if p.equal is None else (p.equal.loss, p.equal.token_multiplier)),
        ]
        for p in points
    ]
    notes = [
        "dense: the best dense model of the budget. At equal N, C: the dense model with the same total parameters and "
        "FLOPs. tokens ×: tokens of the best design per token of this dense model."
    ]
    if any(p.best is None for p in points):
        notes.append("In rows without sizes, the law has no optimum within the constraints.")
    sizes = _columns(*SIDE_BY_SIDE, "loss", "dense")
    columns = [Column(name, format), *sizes, Column("at equal N, C", ".4f"), Column("tokens ×", format)]
    data = [
        {
            "budget": p.budget,
            "best": p.best and _optimum_data(p.best),
            "dense": p.dense and _optimum_data(p.dense),
            "dense_of_equal_params_and_flops": p.equal and asdict(p.equal),
        }
        for p in points
    ]
    tables = [Table(f"Optima along {name}, {law}", columns, rows, notes)]
    return Result(tables=tables, data={"law": law, "along": name, "points": data})


def landscape_summary(law: str, landscape: Landscape) -> Result:
    """Summarize the law's best output as a table over two coordinates."""
    (first, second), heights = landscape.names, landscape.heights.tolist()
    rows = [[value, *row] for value, row in zip(landscape.values[0], heights, strict=True)]
    head = Column(f"{first} \\ {second}", functools.partial(format, digits=3))
    columns = [head, *(Column(format(value, 3), ".4g") for value in landscape.values[1])]
    title = f"The best {landscape.goal.replace('_', ' ')} by {first} and {second}, {law}"
    over = {name: list(values) for name, values in zip(landscape.names, landscape.values, strict=True)}
    return Result(
        tables=[Table(title, columns, rows)], data={"law": law, "over": over, landscape.goal: finite(heights)}
    )


def _optimum_data(optimum: Optimum) -> dict[str, Any]:
    return {
        "goal": optimum.problem.goal,
        "constraints": [finite(asdict(constraint)) for constraint in optimum.problem.constraints],
        "values": dict(optimum.values),
        "unidentified": list(optimum.unidentified),
        "agreeing": optimum.agreeing,
    }


def _built_data(built: Built) -> dict[str, Any]:
    return {
        "tokens": built.tokens,
        "measures": dict(built.measures),
        "predicted": dict(built.prediction.values),
        "extrapolated": dict(built.prediction.extrapolated),
        "broken": list(built.broken),
    }


def _repeats_data(repeats: Repeats) -> dict[str, Any]:
    return {
        "unique_tokens": repeats.unique_tokens,
        "no_token_twice": repeats.once and _optimum_data(repeats.once),
        "without_end": repeats.endless and _optimum_data(repeats.endless),
        "without_end_on_these": {"epochs": repeats.endless_epochs, "loss": repeats.endless_loss},
    }
