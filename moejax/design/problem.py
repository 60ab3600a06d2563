"""Define a design problem from a law, a search space, constraints and a goal, and find its optimum."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from moejax.config import unknown
from moejax.design.constraint import Constraint, restated
from moejax.design.coordinates import DIMENSIONS, Coordinate, Sizes, Space
from moejax.design.measures import MEASURES, CostAssumptions, in_units
from moejax.design.solve import CompiledProblem, Lane, Solved, local, output_of, solve
from moejax.errors import UserError
from moejax.float64 import float64
from moejax.laws.active_params import ActiveParams
from moejax.laws.law import Law
from moejax.minimize import sobol
from moejax.wording import argument, listed, option_hint

STARTS = 8
SAME = 1e-6
"""Tolerance of the objective within which a search counts as reaching the lowest value."""
NOTHING = 1e-9
"""Size of a multiplier, in nats per e-fold, below which it is rounding error."""
AT_THE_END = 1e-3
"""Distance from a bound of the search, in e-folds, within which an optimum counts as at the bound."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A design problem."""

    law: Law
    constraints: tuple[Constraint, ...]
    goal: str = "loss"
    """Objective: ``loss``, or a key of ``MEASURES`` if a constraint bounds the loss."""
    space: Space
    assumptions: CostAssumptions = field(default_factory=CostAssumptions)

    @property
    def program(self) -> CompiledProblem:
        """Return the compiled form of the problem."""
        chosen = {c.name for c in self.space.coordinates}
        asked = [*self.merged_constraints(), self.goal]
        measured = [name for name in MEASURES if name in asked and name not in chosen]
        return CompiledProblem(self.space, self.assumptions, tuple(measured), output_of(self.law))

    @property
    def goal_name(self) -> str:
        """Return the objective's key in an optimum's values: the law's output if the goal is the loss."""
        return self.program.output if self.goal == "loss" else self.goal

    def check(self) -> None:
        """Raise ``UserError`` for unknown or contradictory constraints, and for constraints that cannot be measured."""
        program = self.program
        known = [*program.names, *(name for name in MEASURES if name not in program.names)]
        dimensions = {one.name for one in DIMENSIONS} - set(program.names)
        reads = f"{type(self.law).__name__} reads {', '.join(self.law.inputs)}"
        if not program.coordinates:
            raise UserError(f"{reads}, so a design has nothing to choose; give another law.")
        may_be_0 = {"loss", *(c.name for c in program.coordinates if c.linear)}
        for constraint in self.constraints:
            if constraint.name in dimensions:
                if isinstance(self.space, Sizes):
                    remedy = f"constrains a dimension of the shape; search over shapes ({argument('shape', True)})"
                else:
                    remedy = (
                        f"bounds a dimension that the law does not read, so an end of the range would be chosen; fix "
                        f"its value ({argument('hold', {constraint.name: 'VALUE'})})"
                    )
                raise UserError(f"{constraint} {remedy}.")
            if constraint.name not in known:
                raise UserError(unknown(constraint.name, constraint.name, known))
            above = constraint.high > 0 or (constraint.high == 0 and constraint.name in may_be_0)
            if math.isnan(constraint.low) or not above:
                raise UserError(f"No positive number satisfies {constraint}; give a positive bound.")
            bounds = next((c for c in program.coordinates if c.name == constraint.name), None)
            if bounds is not None and bounds.least and constraint.high < bounds.low:
                raise UserError(
                    f"{constraint} is impossible: {bounds.name} ({bounds.meaning}) is at least {bounds.low:g}; give "
                    f"{bounds.low:g} or more."
                )
            if bounds is not None and (constraint.high < bounds.low or constraint.low > bounds.high):
                low, high = in_units(bounds.name, bounds.low), in_units(bounds.name, bounds.high)
                raise UserError(f"{constraint} is outside the range of the search; give a value from {low} to {high}.")
        for constraint in self.merged_constraints().values():
            if constraint.low > constraint.high:
                raise UserError(
                    f"{constraint.name} cannot be at least {constraint.low:g} and at most {constraint.high:g}; drop a "
                    "bound."
                )
        if self.goal != "loss" and self.goal not in MEASURES:
            raise UserError(unknown(f"objective {self.goal!r}", self.goal, ["loss", *MEASURES]))
        if self.goal != "loss" and not any(constraint.name == "loss" for constraint in self.constraints):
            bound = option_hint("--target-loss NATS") or 'Constraint(name="loss", high=NATS)'
            raise UserError(f"Minimizing {self.goal} requires an upper bound on the loss; add {bound}.")
        spends = [c.name for c in self.constraints if c.name in ("flops", "lifetime_flops", "chip_hours")]
        held = any(c.name == "tokens" and c.low > 0 for c in self.constraints)
        if spends and not held and {"tokens", "flops"}.isdisjoint(self.law.inputs):
            raise UserError(
                f"{reads} but not tokens, so it cannot split {spends[0]} between size and tokens; fix the tokens, or "
                f"choose another law."
            )
        middle = {c.name: float(c.plain(sum(c.scaled(s) for s in c.starts) / 2)) for c in program.coordinates}
        with float64():
            candidate = self.space.candidate(middle)
            for name in program.measured:
                if MEASURES[name].of(candidate, self.assumptions) is None:
                    asked = next((c.said for c in self.constraints if c.name == name and c.said), name)
                    chosen = listed([c.name for c in program.coordinates], "or")
                    # Only unique tokens determine the epochs.
                    of_shape = isinstance(self.space, Sizes) and name != "epochs"
                    shape = f", or search over shapes ({argument('shape', True)})" if of_shape else ""
                    raise UserError(
                        f"{asked} cannot be constrained: {reads}, and these do not determine it. Constrain {chosen} "
                        f"instead{shape}."
                    )

    def merged_constraints(self) -> dict[str, Constraint]:
        """Return one constraint per name, which combines all constraints with this name."""
        merged = {name: Constraint(name=name, low=low) for name, low in self.space.at_least.items()}
        for constraint in self.constraints:
            known = merged.get(constraint.name, constraint)
            low, high = max(known.low, constraint.low), min(known.high, constraint.high)
            said = constraint.said if (low, high) == (constraint.low, constraint.high) else ""
            merged[constraint.name] = Constraint(name=constraint.name, low=low, high=high, said=said)
        return merged

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the lower and upper bounds of all measures of the program, on the scale of the search."""
        program, constraints = self.program, self.merged_constraints()
        coordinates = {c.name: c for c in program.coordinates}
        low, high = np.full(len(program.names), -np.inf), np.full(len(program.names), np.inf)
        for i, name in enumerate(program.names):
            if name in coordinates:
                low[i], high[i] = (
                    coordinates[name].scaled(coordinates[name].low),
                    coordinates[name].scaled(coordinates[name].high),
                )
            if name in constraints:
                low[i] = max(low[i], self.searched(name, constraints[name].low))
                high[i] = min(high[i], self.searched(name, constraints[name].high))
        return low, high

    def searched(self, name: str, value: float) -> float:
        """Return a bound on the scale of the search."""
        if name == "loss":
            return value if value > 0 else -math.inf
        linear = any(c.linear for c in self.space.coordinates if c.name == name)
        return value if linear else math.log(value) if 0 < value < math.inf else math.copysign(math.inf, value - 1)

    def weight(self) -> np.ndarray:
        """Return the weights of the measures: 1 for the goal, else 0."""
        return np.asarray([float(name == self.goal) for name in self.program.names])


@dataclass(frozen=True, kw_only=True)
class Optimum:
    """The optimum of a problem."""

    problem: Problem
    point: np.ndarray
    values: Mapping[str, float]
    """Coordinates, measures and the loss, as plain numbers."""
    multipliers: Mapping[str, float]
    """Decrease of the goal if a binding constraint is loosened by one e-fold (or nat); negative for a lower bound."""
    unidentified: tuple[str, ...]
    """Coordinates that affect neither the goal nor the constraints."""
    agreeing: float
    """Share of the initial guesses from which the search converged to this optimum."""


class Unbounded(UserError):
    """Error for a law without an optimum under the given constraints."""


def of_sizes(
    law: Law, constraints: Sequence[Constraint], *, active_params: ActiveParams | None = None, **options: Any
) -> Problem:
    """Return the problem whose search space is the sizes that a law reads.

    Constraints may use the letters of the law's paper. ``active_params`` is the active-parameter convention
    (``laws/active_params.py``) for a law that reads the number of experts; None for the default.

    For a law without repetition, a constraint on unique tokens becomes a constraint on tokens. For a law with
    repetition, tokens are not repeated unless unique tokens are constrained.
    """
    constrained = any(constraint.name == "unique_tokens" for constraint in constraints)
    if constrained and "unique_tokens" not in law.inputs:
        constraints = [
            replace(constraint, name="tokens") if constraint.name == "unique_tokens" else constraint
            for constraint in constraints
        ]
    inputs = tuple(name for name in law.inputs if name != "unique_tokens" or constrained)
    space = Sizes(inputs) if active_params is None else Sizes(inputs, active_params)
    constraints = tuple(restated(constraint, law, space) for constraint in constraints)
    return Problem(law=law, constraints=constraints, space=space, **options)


def lanes_of(problems: Sequence[Problem]) -> Lane:
    """Stack problems of one program, so that they are solved together."""
    bounds = [problem.bounds() for problem in problems]
    with float64():
        laws = jax.tree.map(lambda *leaves: np.asarray(leaves, np.float64), *[problem.law for problem in problems])
    return {
        "law": laws,
        "weight": np.stack([problem.weight() for problem in problems]),
        "low": np.stack([low for low, _ in bounds]),
        "high": np.stack([high for _, high in bounds]),
    }


def optimize(problem: Problem, *, starts: int = STARTS, seed: int = 0) -> Optimum:
    """Return the problem's optimum, found from several starting points.

    Raises:
      UserError: constraints are unknown or contradict each other.
      Unbounded: the goal still falls at a bound of the search, so the law has no optimum under these constraints.
    """
    problem.check()
    program = problem.program
    points = _starts(problem, starts, seed)
    lanes = lanes_of([problem] * starts)
    unidentified = _unidentified(program, points, lanes)
    points[:, unidentified] = points[0, unidentified]
    lanes["low"][:, : len(unidentified)][:, unidentified] = points[:, unidentified]
    lanes["high"][:, : len(unidentified)][:, unidentified] = points[:, unidentified]
    solved = solve(program, points, lanes)
    if not solved.holds.any():
        raise UserError(_conflict(problem, solved))
    values = np.where(solved.holds, solved.values, np.inf)
    best = int(np.argmin(values))
    optimum = read(problem, solved, best, agreeing=float(np.mean(values < values[best] + SAME)))
    left_open = {program.names[i] for i in np.flatnonzero(unidentified)}
    optimum = replace(optimum, unidentified=tuple(c.name for c in program.coordinates if c.name in left_open))
    if ends := at_the_end(optimum):
        raise Unbounded(_endless(optimum, ends))
    return optimum


def read(problem: Problem, solved: Solved, lane: int, *, agreeing: float = 1.0) -> Optimum:
    """Return one solution as an optimum."""
    program = problem.program
    point, measures = solved.points[lane], solved.measures[lane]
    with float64():
        values = {
            c.name: within_bounds(problem, c, float(c.plain(point[i]))) for i, c in enumerate(program.coordinates)
        }
        values |= {name: math.exp(measures[len(point) + i]) for i, name in enumerate(program.measured)}
        candidate = problem.space.candidate(values)
        for name, measure in MEASURES.items():
            if name not in values and (value := measure.of(candidate, problem.assumptions)) is not None:
                values[name] = float(value)
    goal = float(measures[-1])
    values[program.output] = goal if program.output == "loss" else math.exp(-goal)
    multipliers = dict(zip(program.names, solved.multipliers[lane].tolist(), strict=True))
    return Optimum(
        problem=problem,
        point=point,
        values=values,
        multipliers={name: value for name, value in multipliers.items() if abs(value) > NOTHING},
        unidentified=(),
        agreeing=agreeing,
    )


def within_bounds(problem: Problem, coordinate: Coordinate, value: float) -> float:
    """Return a coordinate's value without the rounding error by which it is outside its bounds."""
    bound = problem.merged_constraints().get(coordinate.name, Constraint(name=coordinate.name))
    # A logarithmic coordinate is never 0.
    low = max(bound.low, coordinate.low if coordinate.linear else 0.0)
    return min(max(value, low), bound.high)


def at_the_end(optimum: Optimum) -> list[tuple[str, float]]:
    """Return the coordinates at a bound of the search that is not a constraint, with this bound."""
    constraints = optimum.problem.merged_constraints()
    ends = []
    for i, c in enumerate(optimum.problem.space.coordinates):
        low, high = c.scaled(c.low), c.scaled(c.high)
        asked = constraints.get(c.name, Constraint(name=c.name))
        if c.name in optimum.unidentified:
            continue
        if optimum.point[i] > high - AT_THE_END and asked.high > c.high:
            ends.append((c.name, c.high))
        if optimum.point[i] < low + AT_THE_END and asked.low < c.low and not c.least:
            ends.append((c.name, c.low))
    return ends


def _starts(problem: Problem, count: int, seed: int) -> np.ndarray:
    """Return Sobol points within the coordinates' ranges of initial guesses, clipped to the constraints."""
    coordinates = problem.space.coordinates
    low, high = (bound[: len(coordinates)] for bound in problem.bounds())
    drawn = sobol(len(coordinates), 1 << max(count - 1, 1).bit_length(), seed)[:count]
    ends = np.asarray([[c.scaled(end) for end in c.starts] for c in coordinates])
    points = np.clip(ends[:, 0] + drawn * (ends[:, 1] - ends[:, 0]), low, high)
    return np.where([c.starts_at_high for c in coordinates], high, points)


def _unidentified(program: CompiledProblem, points: np.ndarray, lanes: Lane) -> np.ndarray:
    """Return a mask of the coordinates that affect neither the goal nor the constraints at any initial guess."""
    slopes = local(program, points, lanes["law"]).jacobian[:, len(program.coordinates) :]
    bound = (np.abs(lanes["weight"]) > 0) | np.isfinite(lanes["low"]) | np.isfinite(lanes["high"])
    matters = bound[:, len(program.coordinates) :, None] & (slopes != 0)
    return ~matters.any(axis=(0, 1))


def _conflict(problem: Problem, solved: Solved) -> str:
    finite = np.where(np.isfinite(solved.outside).all(axis=1), np.abs(solved.outside).max(axis=1), np.inf)
    best = int(np.argmin(finite))
    force = np.abs(solved.multipliers[best])
    names = [name for name, f in zip(problem.program.names, force, strict=True) if f > 1e-3 * force.max()]
    constraints, coordinates = problem.merged_constraints(), {c.name: c for c in problem.space.coordinates}
    if names and all(name in coordinates and coordinates[name].starts_at_high for name in names):
        return (
            f"Under {', '.join(map(str, problem.constraints))}, tokens are repeated so often that "
            f"{type(problem.law).__name__} is flat, and the search did not converge; give a smaller budget, or more "
            f"unique tokens."
        )
    ends = {name: Constraint(name=name, low=c.low, high=c.high) for name, c in coordinates.items()}
    said = [str({**ends, **constraints}[name]) for name in names if name in {**ends, **constraints}]
    if not finite[best] > 1e-5:
        remedy = option_hint("loosen a constraint") or "give more initial guesses (`starts`)"
        return f"The search did not converge under {', '.join(map(str, problem.constraints))}; {remedy}."
    return (
        f"These constraints cannot all hold: {'; '.join(said) or ', '.join(map(str, problem.constraints))}. The "
        f"nearest design violates them by a factor {math.exp(min(float(finite[best]), 50)):.3g}; loosen a constraint."
    )


def _endless(optimum: Optimum, ends: Sequence[tuple[str, float]]) -> str:
    words = " and ".join(f"{name} = {end:g}" for name, end in ends)
    what = optimum.problem.goal_name
    better = "rises" if what == "efficiency_leverage" else "falls"
    names = {name for name, _ in ends}
    return (
        f"Under {type(optimum.problem.law).__name__} the {what} still {better} at the bound of the search, {words}, so "
        f"the law has no optimum within these constraints. Constrain or fix "
        f"{' or '.join(sorted(names))}, or a cost (params_total, memory_bytes, tokens, flops)."
    )
