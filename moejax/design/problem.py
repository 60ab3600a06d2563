"""A law, a way to choose, limits and a goal; and the optimum under them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
from scipy.stats import qmc

from moejax.config import unknown
from moejax.design.coordinates import Sizes, Space
from moejax.design.measures import MEASURES, Setting, in_units
from moejax.design.program import Lane, Program, jacobian, output_of
from moejax.design.solve import Solved, solve
from moejax.design.variables import restated
from moejax.errors import UserError

STARTS = 8
SAME = 1e-6
"""Starts that end within this of the lowest value agree."""
NOTHING = 1e-9
"""Nats per e-fold: a multiplier below it is rounding."""
AT_THE_END = 1e-3
"""E-folds from an end of the search within which an optimum is at it."""


@dataclass(frozen=True, kw_only=True)
class Limit:
    """What a measure, a coordinate or the loss must keep to; equal ends hold it."""

    name: str
    low: float = 0.0
    high: float = math.inf
    said: str = ""
    """As it was given, where that was in a paper's letter or as a share of experts."""

    def __str__(self) -> str:
        if self.said:
            return self.said
        low, high = (in_units(self.name, end) for end in (self.low, self.high))
        if self.low == self.high:
            return f"{self.name} = {low}"
        return (f"{low} <= " if self.low > 0 else "") + self.name + (f" <= {high}" if math.isfinite(self.high) else "")


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What is asked."""

    law: Any
    limits: tuple[Limit, ...]
    goal: str = "loss"
    """What is minimised: ``loss``, or a key of ``MEASURES`` while a limit holds the loss."""
    space: Space
    setting: Setting = field(default_factory=Setting)

    @property
    def program(self) -> Program:
        """What is compiled for it."""
        chosen = {c.name for c in self.space.coordinates}
        asked = [*self.together(), self.goal]
        measured = [name for name in MEASURES if name in asked and name not in chosen]
        return Program(self.space, self.setting, tuple(measured), output_of(self.law))

    def check(self) -> None:
        """Raise ``UserError`` for limits that say nothing, contradict each other, or that nothing here can measure."""
        program = self.program
        known = [*program.names, *(name for name in MEASURES if name not in program.names)]
        if not program.coordinates:
            raise UserError(f"{type(self.law).__name__} reads {', '.join(self.law.inputs)}: nothing is to be chosen.")
        for limit in self.limits:
            if limit.name not in known:
                raise UserError(unknown(limit.name, limit.name, known))
            free = limit.name == "loss" or limit.name in {c.name for c in program.coordinates if c.linear}
            if math.isnan(limit.low) or math.isnan(limit.high) or limit.high < 0 or (limit.high == 0 and not free):
                raise UserError(f"{limit} cannot be kept by a number above 0; give a limit above 0.")
        for limit in self.together().values():
            if limit.low > limit.high:
                raise UserError(f"{limit.name} is to be at least {limit.low:g} and at most {limit.high:g}; drop one.")
        if self.goal != "loss" and self.goal not in MEASURES:
            raise UserError(unknown(f"{self.goal} to minimise", self.goal, ["loss", *MEASURES]))
        if self.goal != "loss" and not any(limit.name == "loss" for limit in self.limits):
            raise UserError(f"The least {self.goal} is that of no model at all; give the loss it must reach.")
        spends = [limit.name for limit in self.limits if limit.name in ("flops", "lifetime_flops", "chip_hours")]
        silent = {"tokens", "flops"}.isdisjoint(self.law.inputs)
        if spends and silent and not any(limit.name == "tokens" and limit.low > 0 for limit in self.limits):
            raise UserError(
                f"{type(self.law).__name__} reads {', '.join(self.law.inputs)} and not tokens, so it cannot split "
                f"{spends[0]} between size and tokens; hold the tokens, or ask another law."
            )
        middle = {c.name: float(c.plain(sum(c.scaled(s) for s in c.starts) / 2)) for c in program.coordinates}
        with jax.enable_x64(True):
            candidate = self.space.candidate(middle)
            for name in program.measured:
                if MEASURES[name].of(candidate, self.setting) is None:
                    asked = next((limit.said for limit in self.limits if limit.name == name and limit.said), name)
                    raise UserError(
                        f"{asked} cannot be limited: {type(self.law).__name__} reads {', '.join(self.law.inputs)}, and "
                        f"from these alone it does not follow. Choose a shape (--shape), or leave the limit out."
                    )

    def together(self) -> dict[str, Limit]:
        """One limit a name: several of one name must all hold."""
        found = {name: Limit(name=name, low=low) for name, low in self.space.at_least.items()}
        for limit in self.limits:
            known = found.get(limit.name, limit)
            low, high = max(known.low, limit.low), min(known.high, limit.high)
            said = limit.said if (low, high) == (limit.low, limit.high) else ""
            found[limit.name] = Limit(name=limit.name, low=low, high=high, said=said)
        return found

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper limit of every measure of the program, as it is searched."""
        program, limits = self.program, self.together()
        coordinates = {c.name: c for c in program.coordinates}
        low, high = np.full(len(program.names), -np.inf), np.full(len(program.names), np.inf)
        for i, name in enumerate(program.names):
            if name in coordinates:
                low[i], high[i] = (
                    coordinates[name].scaled(coordinates[name].low),
                    coordinates[name].scaled(coordinates[name].high),
                )
            if name in limits:
                low[i] = max(low[i], self.searched(name, limits[name].low))
                high[i] = min(high[i], self.searched(name, limits[name].high))
        return low, high

    def searched(self, name: str, value: float) -> float:
        """A limit's value as the program measures it."""
        if name == "loss":
            return value if value > 0 else -math.inf
        linear = any(c.linear for c in self.space.coordinates if c.name == name)
        return value if linear else math.log(value) if 0 < value < math.inf else math.copysign(math.inf, value - 1)

    def weight(self) -> np.ndarray:
        """1 for what is minimised."""
        return np.asarray([float(name == self.goal) for name in self.program.names])


@dataclass(frozen=True, kw_only=True)
class Optimum:
    """Where a problem's goal is least."""

    problem: Problem
    point: np.ndarray
    values: Mapping[str, float]
    """Coordinates and measures in plain numbers, and the loss."""
    multipliers: Mapping[str, float]
    """Per limit that binds: by how much the goal falls per e-fold (or nat) that it is loosened; negative if lower."""
    undecided: tuple[str, ...]
    """Coordinates on which nothing depends."""
    agreeing: float
    """Share of the starts that ended here."""


class Unbounded(UserError):
    """The law has no optimum under these limits."""


def of_sizes(law: Any, limits: Sequence[Limit], *, active_params: Any = None, **options: Any) -> Problem:
    """The problem in the sizes that a law reads.

    Limits may be in the letters of the law's paper. ``active_params`` is the active-parameter convention
    (``laws/active_params.py``) where the law reads the number of experts; None for the default one.

    A limit of unique tokens is one of tokens under a law that has no price for repeats. Under one that has, no token is
    repeated unless unique tokens are limited.
    """
    limited = any(limit.name == "unique_tokens" for limit in limits)
    if limited and "unique_tokens" not in law.inputs:
        limits = [replace(limit, name="tokens") if limit.name == "unique_tokens" else limit for limit in limits]
    inputs = tuple(name for name in law.inputs if name != "unique_tokens" or limited)
    space = Sizes(inputs) if active_params is None else Sizes(inputs, active_params)
    limits = tuple(restated(limit, law, space) for limit in limits)
    return Problem(law=law, limits=limits, space=space, **options)


def lanes_of(problems: Sequence[Problem]) -> Lane:
    """Problems of one program as lanes."""
    bounds = [problem.bounds() for problem in problems]
    with jax.enable_x64(True):
        laws = jax.tree.map(lambda *leaves: np.asarray(leaves, np.float64), *[problem.law for problem in problems])
    return {
        "law": laws,
        "weight": np.stack([problem.weight() for problem in problems]),
        "low": np.stack([low for low, _ in bounds]),
        "high": np.stack([high for _, high in bounds]),
    }


def optimise(problem: Problem, *, starts: int = STARTS, seed: int = 0) -> Optimum:
    """The choice of least goal, from many starts.

    Raises:
      UserError: limits that are unknown or contradict each other, or cannot hold together.
      Unbounded: the goal still falls where the search ends, so that the law has no optimum under these limits.
    """
    problem.check()
    program = problem.program
    points = _starts(problem, starts, seed)
    lanes = lanes_of([problem] * starts)
    undecided = _undecided(program, points, lanes)
    points[:, undecided] = points[0, undecided]
    lanes["low"][:, : len(undecided)][:, undecided] = points[:, undecided]
    lanes["high"][:, : len(undecided)][:, undecided] = points[:, undecided]
    solved = solve(program, points, lanes)
    if not solved.holds.any():
        raise UserError(_conflict(problem, solved))
    values = np.where(solved.holds, solved.values, np.inf)
    best = int(np.argmin(values))
    found = read(problem, solved, best, agreeing=float(np.mean(values < values[best] + SAME)))
    left_open = {program.names[i] for i in np.flatnonzero(undecided)}
    found = replace(found, undecided=tuple(c.name for c in program.coordinates if c.name in left_open))
    if ends := at_the_end(found):
        raise Unbounded(_endless(found, ends))
    return found


def read(problem: Problem, solved: Solved, lane: int, *, agreeing: float = 1.0) -> Optimum:
    """One lane as an optimum."""
    program = problem.program
    point, measures = solved.points[lane], solved.measures[lane]
    with jax.enable_x64(True):
        values = {c.name: float(c.plain(point[i])) for i, c in enumerate(program.coordinates)}
        values |= {name: math.exp(measures[len(point) + i]) for i, name in enumerate(program.measured)}
        candidate = problem.space.candidate(values)
        for name, measure in MEASURES.items():
            if name not in values and (value := measure.of(candidate, problem.setting)) is not None:
                values[name] = float(value)
    goal = float(measures[-1])
    values[program.output] = goal if program.output == "loss" else math.exp(-goal)
    found = dict(zip(program.names, solved.multipliers[lane].tolist(), strict=True))
    return Optimum(
        problem=problem,
        point=point,
        values=values,
        multipliers={name: value for name, value in found.items() if abs(value) > NOTHING},
        undecided=(),
        agreeing=agreeing,
    )


def at_the_end(found: Optimum) -> list[tuple[str, float]]:
    """Coordinates at an end of the search that nobody asked for, with that end."""
    limits = found.problem.together()
    ends = []
    for i, c in enumerate(found.problem.space.coordinates):
        low, high = c.scaled(c.low), c.scaled(c.high)
        asked = limits.get(c.name, Limit(name=c.name))
        if c.name in found.undecided:
            continue
        if found.point[i] > high - AT_THE_END and asked.high > c.high:
            ends.append((c.name, c.high))
        if found.point[i] < low + AT_THE_END and asked.low < c.low and not c.least:
            ends.append((c.name, c.low))
    return ends


def _starts(problem: Problem, count: int, seed: int) -> np.ndarray:
    """Sobol points between the coordinates' starts, as far as limits let them."""
    coordinates = problem.space.coordinates
    low, high = (bound[: len(coordinates)] for bound in problem.bounds())
    drawn = qmc.Sobol(len(coordinates), rng=seed).random(1 << max(count - 1, 1).bit_length())[:count]
    ends = np.asarray([[c.scaled(end) for end in c.starts] for c in coordinates])
    points = np.clip(ends[:, 0] + drawn * (ends[:, 1] - ends[:, 0]), low, high)
    return np.where([c.whole for c in coordinates], high, points)


def _undecided(program: Program, points: np.ndarray, lanes: Lane) -> np.ndarray:
    """Which coordinates move neither goal nor limits, at any start."""
    slopes = np.asarray(jacobian(program, points, lanes)[1])[:, len(program.coordinates) :]
    bound = (np.abs(lanes["weight"]) > 0) | np.isfinite(lanes["low"]) | np.isfinite(lanes["high"])
    matters = bound[:, len(program.coordinates) :, None] & (slopes != 0)
    return ~matters.any(axis=(0, 1))


def _conflict(problem: Problem, solved: Solved) -> str:
    finite = np.where(np.isfinite(solved.outside).all(axis=1), np.abs(solved.outside).max(axis=1), np.inf)
    best = int(np.argmin(finite))
    force = np.abs(solved.multipliers[best])
    names = [name for name, f in zip(problem.program.names, force, strict=True) if f > 1e-3 * force.max()]
    limits, coordinates = problem.together(), {c.name: c for c in problem.space.coordinates}
    if names and all(name in coordinates and coordinates[name].whole for name in names):
        return (
            f"Under {', '.join(map(str, problem.limits))} tokens return so often that {type(problem.law).__name__} is "
            f"flat, and the search did not converge; give a smaller budget, or more unique tokens."
        )
    ends = {name: Limit(name=name, low=c.low, high=c.high) for name, c in coordinates.items()}
    said = [str({**ends, **limits}[name]) for name in names if name in {**ends, **limits}]
    if not finite[best] > 1e-5:
        return f"The search did not converge under {', '.join(map(str, problem.limits))}; give more starts."
    return (
        f"These cannot all hold: {'; '.join(said) or ', '.join(map(str, problem.limits))}. The nearest choice misses "
        f"by a factor {math.exp(min(float(finite[best]), 50)):.3g}; loosen one of them."
    )


def _endless(found: Optimum, ends: Sequence[tuple[str, float]]) -> str:
    words = " and ".join(f"{name} = {end:g}" for name, end in ends)
    what = found.problem.program.output if found.problem.goal == "loss" else found.problem.goal
    better = "rises" if what == "efficiency_leverage" else "falls"
    names = {name for name, _ in ends}
    return (
        f"Under {type(found.problem.law).__name__} the {what} still {better} where the search ends, at {words}: within "
        f"these limits the law has no optimum, and a number would be yours and not the law's. Limit or hold "
        f"{' or '.join(sorted(names))}, or what it costs (params_total, memory_bytes, tokens, flops)."
    )
