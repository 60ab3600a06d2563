"""Fit a law to runs: compute the objective at many initial guesses, discard most of them in rounds, and minimize from
the rest until convergence.

Near an optimum, the search continues in coordinates in which all coefficients have equal weight. In centered
coordinates, the directions of the five-factor law still differ by a factor of 1e4 in their effect on the losses. L-BFGS
then makes no progress along the narrow valley: of 200 resamples none finished within 500 steps, and all stayed at their
initial guess.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from moejax import __version__, minimize
from moejax.errors import UserError
from moejax.fit.fit_result import FitResult
from moejax.fit.runs import SHARES, Runs
from moejax.fit.search.objective import Array, FitObjective, Huber, Penalty, data_of, law_at
from moejax.fit.search.starts import Sobol, WarmStart
from moejax.fit.selection.metrics import information_criteria, metrics, predict
from moejax.fit.uncertainty.noise import log_residuals, noise, outliers
from moejax.fit.uncertainty.undetermined import alternatives, identify, slopes_of_log_loss
from moejax.float64 import float64
from moejax.laws import NOT_SEARCHED, called
from moejax.laws.design import value_of
from moejax.laws.law import Law
from moejax.laws.scores.chained_law import ChainedLaw
from moejax.wording import argument, counted, shown

FLATTEST = 1e-6
"""Share of the largest singular value below which a direction is not rescaled further."""


@dataclass(frozen=True)
class Reparametrized:
    """A fit's objective as a function of the offset from an initial guess, along principal directions of the losses'
    Jacobian."""

    objective: FitObjective

    def __call__(self, offset: Array, shared: Mapping[str, Any], weights: Array) -> Any:
        return self.objective(shared["start"] + shared["rotation"] @ offset, shared["data"], weights)


def unchanged(data: Mapping[str, Any], free: int) -> dict[str, Any]:
    """Return the data, keyed by argument name, with which ``Reparametrized`` equals its objective in the original
    coordinates."""
    return {"start": np.zeros(free), "rotation": np.eye(free), "data": data}


def minimize_reparametrized(
    objective: FitObjective,
    start: Float[np.ndarray, " free"],
    data: Mapping[str, Any],
    base: Float[np.ndarray, " runs"],
    weights: Float[np.ndarray, "lanes runs"],
    *,
    tolerance: float,
    max_iterations: int,
) -> minimize.Lanes:
    """Minimize an objective once for every row of ``weights``, each time from ``start``. Points are in the objective's
    coordinates.

    Args:
      base: weights of the runs that determine the principal directions.
    """
    with float64():
        slopes = np.asarray(slopes_of_log_loss(objective, start, data)[1])
    rotation, slopes = np.eye(len(start)), (np.sqrt(base)[:, None] * slopes)[base > 0]
    if np.isfinite(slopes).all() and slopes.any() and len(slopes) >= len(start):
        _, sizes, directions = np.linalg.svd(slopes, full_matrices=False)
        rotation = directions.T / np.maximum(sizes, FLATTEST * sizes[0])
    shared = {"start": start, "rotation": rotation, "data": data}
    nothing = np.zeros((len(weights), len(start)))
    lanes = minimize.minimize_lanes(
        Reparametrized(objective), nothing, shared, weights, tolerance=tolerance, max_iterations=max_iterations
    )
    return minimize.Lanes(start + lanes.points @ rotation.T, lanes.values, lanes.gradient_norms, lanes.iterations)


AGREES = 1e-4
"""Relative difference from the lowest objective below which a local optimum counts as the same."""

EQUAL = 1e-7
"""Relative difference from the lowest objective below which rounding may decide between two optima."""
APART = 1e-2
"""Distance in centered coordinates below which two ends of a search are the same optimum."""

EXACT = 1e-9
"""Objective, as a share of a constant prediction's objective, below which the runs follow the law exactly and optima
count as the same."""

CONVERGED = 1e-6
"""Gradient norm below which a fit has converged, relative to the objective if the objective is above 1."""

Progress = Callable[[str, int, int], None]
"""Callback ``progress(stage, done, total)``."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """A schedule that discards initial guesses in rounds. The search then runs to convergence from the remaining ones
    (``FitResult.polished``)."""

    screened: int | None = 256
    """Number of initial guesses that are kept after computing the objective at each; None keeps all."""
    rounds: tuple[tuple[int, int], ...] = ((25, 96), (75, 32))
    """Rounds of successive halving: number of iterations from each remaining initial guess, and number of guesses kept
    afterwards."""
    max_iterations: int = 2000
    tolerance: float = 1e-6


EVERY_START = Search(screened=None, rounds=())
"""Search that runs to convergence from every initial guess, like the published grid searches."""


def fit_law(
    law: Law | type,
    runs: Runs,
    *,
    penalty: Penalty | None = None,
    starts: Any = None,
    search: Search | None = None,
    fixed: Mapping[str, Any] | None = None,
    output: str | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> FitResult:
    """Find the coefficients of a law that minimize the sum of penalties over runs.

    Args:
      law: a law class, or a law instance, whose coefficients are an additional initial guess.
      penalty: the penalty; by default Huber with delta 1e-3 on log loss.
      starts: a sampler of initial guesses, or their number; by default 2,048 points scaled by the data.
      fixed: coefficients to hold fixed, in the law's own parameterization.
      output: the law's output that ``runs.loss`` holds; by default the output of ``runs``.

    Raises:
      UserError: the runs hold no output of the law or lack an input, a fixed coefficient is unknown, or the objective
        is not finite at any initial guess.
    """
    if not (isinstance(seed, int) and seed >= 0):
        raise UserError(f"seed must be a whole number of at least 0; got {shown(seed)}.")
    if isinstance(starts, int) and starts < 1:
        raise UserError(f"starts must be at least 1; got {starts}.")
    start_at: Any = Sobol(starts, seed=seed) if isinstance(starts, int) else starts or Sobol(seed=seed)
    if not callable(start_at):
        raise UserError(
            f"starts must be an integer or a sampler from moejax.fit.search.starts, such as Sobol(512); got "
            f"{shown(starts)}."
        )
    fixed = {name: _number(name, value) for name, value in dict(fixed or {}).items()}
    cls = law if isinstance(law, type) else type(law)
    if cls in NOT_SEARCHED:
        raise UserError(f"{called(cls)} is not searched: {NOT_SEARCHED[cls]}")
    objective = FitObjective(cls, penalty or Huber(), tuple(sorted(fixed)), output or runs.output)
    _check_law(objective, fixed)
    _check_runs(objective, runs, fixed)
    data = data_of(objective, runs, fixed)
    points = np.asarray(start_at(objective, data))
    if not isinstance(law, type):
        points = np.concatenate([WarmStart((law,))(objective, data), points])
    lanes, began = _search(objective, data, runs, points, search or Search(), progress or (lambda *_: None))
    best = chosen(lanes.points, lanes.values)
    # In a long narrow valley the search stalls in the original coordinates, so it continues in rescaled ones.
    reparametrized = minimize_reparametrized(
        objective, lanes.points[best], data, runs.weight, runs.weight[None], tolerance=1e-8, max_iterations=2000
    )
    near = reparametrized.points[0] if reparametrized.values[0] <= lanes.values[best] else lanes.points[best]
    ended = minimize.polish(objective, near, data, runs.weight, tolerance=CONVERGED)
    return _result(objective, data, runs, fixed, seed, lanes, began[best], ended, len(points))


def chosen(points: Float[np.ndarray, "ends free"], values: Float[np.ndarray, " ends"]) -> int:
    """Return the index of the lowest local optimum that a search reached. Among equally good optima, always select the
    same one.

    Rounding differs between compilers and flags, and so between the command and Python. It must not select one of
    several optima with the same objective, such as two laws with swapped terms. The optimum nearest to the origin is
    selected, and among equally near ones the first in the order of the coordinates.
    """
    lowest = np.min(values)
    left = np.flatnonzero(values <= lowest + EQUAL * abs(lowest))
    for key in (np.linalg.norm(points, axis=1), *points.T):
        left = left[key[left] <= key[left].min() + APART]
    return int(left[np.argmin(values[left])])


def ends(result: FitResult, runs: Runs) -> np.ndarray:
    """Repeat a fit's search, and return the objective that it reaches from each ``polished`` initial guess, in
    ascending order."""
    objective = objective_of(result)
    data = data_of(objective, runs, result.fixed)
    points = Sobol(seed=result.seed)(objective, data)
    lanes, _ = _search(objective, data, runs, points, Search(), lambda *_: None)
    values = np.asarray(lanes.values, np.float64) * float(data["scale"])
    return np.sort(values[np.isfinite(values)])


def objective_of(result: FitResult) -> FitObjective:
    """Return the compiled objective of a fit.

    Raises:
      UserError: the fit is a chain of two fits.
    """
    if isinstance(result.law, ChainedLaw):
        raise UserError(
            f"{type(result.law).__name__} combines a fit of the loss and a fit of the score, and has no objective of "
            f"its own; use the two fits separately."
        )
    return FitObjective(type(result.law), result.penalty, tuple(sorted(result.fixed)), result.output)


def _search(
    objective: FitObjective, data: Mapping[str, Any], runs: Runs, points: np.ndarray, search: Search, progress: Progress
) -> tuple[minimize.Lanes, np.ndarray]:
    """Return the converged solves (vmapped lanes), and the initial guess of each."""
    began = points
    if search.screened is not None and len(points) > search.screened:
        values = minimize.values(objective, points, data, runs.weight, progress=lambda *n: progress("screening", *n))
        order = np.argsort(values)[: search.screened]
        if not np.isfinite(values[order[0]]):
            raise UserError(_no_start(objective, data, runs, points[0]))
        points = began = points[order[np.isfinite(values[order])]]
    for iterations, kept in search.rounds:
        if len(points) > kept:
            ended = _descend(objective, data, runs.weight, points, iterations, search, progress, "first steps")
            order = np.argsort(ended.values)[:kept]
            points, began = ended.points[order], began[order]
    lanes = _descend(objective, data, runs.weight, points, search.max_iterations, search, progress, "polishing")
    if not np.isfinite(lanes.values).any():
        raise UserError(_no_start(objective, data, runs, points[0]))
    return lanes, began


def _descend(
    objective: FitObjective,
    data: Mapping[str, Any],
    weights: np.ndarray,
    points: np.ndarray,
    iterations: int,
    search: Search,
    progress: Progress,
    stage: str,
) -> minimize.Lanes:
    # Use the identity reparametrization, so that the reparametrized search from the best guess reuses the compiled
    # program. Compilation takes most of the time for a small table.
    return minimize.minimize_lanes(
        Reparametrized(objective),
        points,
        unchanged(data, points.shape[1]),
        np.broadcast_to(weights, (len(points), len(weights))),
        tolerance=search.tolerance,
        max_iterations=iterations,
        progress=lambda done, total: progress(stage, done, total),
    )


def _result(
    objective: FitObjective,
    data: Mapping[str, Any],
    runs: Runs,
    fixed: dict[str, float],
    seed: int,
    lanes: minimize.Lanes,
    start: np.ndarray,
    ended: minimize.Minimum,
    count: int,
) -> FitResult:
    point, value, norm = ended.point, ended.value, ended.gradient_norm
    with float64():
        law = jax.tree.map(float, law_at(objective, point, data))
        # Use centered units, because the fitted law may overflow in the table's units.
        centered = np.asarray(objective.predicted(point, data))
    predicted = predict(law, runs, objective.output)
    _check_above_0(objective, centered[runs.weight > 0])
    known = identify(objective, data, runs.weight, point, start)
    errors = metrics(law, runs, objective.output)
    residual = log_residuals(predicted, runs.loss, runs.weight)
    scatter = noise(residual, runs.weight, len(objective.free))
    with float64():
        slopes = np.asarray(slopes_of_log_loss(objective, point, data)[1])
    aicc, bic = information_criteria(residual, slopes, runs.weight, runs.group, scatter)
    return FitResult(
        law=law,
        penalty=objective.penalty,
        output=objective.output,
        value=float(value * data["scale"]),
        gradient_norm=norm,
        converged=norm <= CONVERGED * max(1.0, value),
        starts=count,
        polished=len(lanes.values),
        agreeing=float(np.mean(lanes.values <= min(value, lanes.values.min()) * (1 + AGREES) + EXACT)),
        fixed={name: float(v) for name, v in fixed.items()},
        unidentified=known.unidentified,
        condition_number=known.condition_number,
        unidentified_directions=known.sentences,
        undetermined=known.undetermined,
        is_share=objective.output in SHARES and float(runs.loss[runs.weight > 0].max()) < 1,
        alternatives=alternatives(
            objective, data, point, value, lanes.points, lanes.values, int((runs.weight > 0).sum())
        ),
        aicc=aicc,
        bic=bic,
        metrics=errors,
        data_hash=runs.data_hash,
        seed=seed,
        versions={"moejax": __version__} | {p: importlib.metadata.version(p) for p in ("jax", "jaxopt")},
        noise=max(scatter, runs.coarseness),
        outliers=outliers(predicted, runs.loss, runs.weight, len(objective.free), runs.names),
    )


def _check_above_0(objective: FitObjective, predicted: np.ndarray) -> None:
    """Raise ``UserError`` if a prediction is not positive: errors and intervals are computed from its logarithm."""
    if wrong := int((~(np.isfinite(predicted) & (predicted > 0))).sum()):
        remedy = f"give more initial guesses ({argument('starts')}), or another law"
        if getattr(objective.penalty, "residual", "log") != "log":
            remedy = f"give {argument('residual', 'log')}, which excludes such predictions; or {remedy}"
        raise UserError(
            f"At the end of the search, {called(objective.law)} predicts no {objective.output} above 0 for {wrong} of "
            f"{counted(len(predicted), 'run')}; {remedy}."
        )


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise UserError(f"{name} is fixed at {shown(value)}; give a number.") from error


def _check_law(objective: FitObjective, fixed: Mapping[str, float]) -> None:
    if objective.output not in objective.law.outputs:
        first = next(iter(objective.law.outputs))
        raise UserError(
            f"{called(objective.law)} predicts {' and '.join(objective.law.outputs)}, but the runs have the "
            f"{objective.output}; choose another law, or name a column with one of its outputs "
            f"({argument('loss', first)}, with {argument('mapping', {first: 'COLUMN'})} if the column has another "
            f"name)."
        )
    names = list(objective.signs)
    if unknown := [name for name in fixed if name not in names]:
        raise UserError(f"{called(objective.law)} has no coefficient {unknown[0]}; give one of {', '.join(names)}.")
    rules = {
        "+": ("finite and not below 0", lambda v: v >= 0),
        "-": ("finite and not above 0", lambda v: v <= 0),
        "any": ("finite", np.isfinite),
    }
    for name, value in fixed.items():
        words, holds = rules[objective.signs[name]]
        if not (np.isfinite(value) and holds(value)):
            raise UserError(f"{name} is fixed at {value}, but must be {words} in {called(objective.law)}.")
    if not objective.free:
        raise UserError(f"Every coefficient of {called(objective.law)} is fixed; leave at least one to fit.")


def _check_runs(objective: FitObjective, runs: Runs, fixed: Mapping[str, float]) -> None:
    if missing := [name for name in objective.law.inputs if value_of(runs.design, name) is None]:
        raise UserError(
            f"{called(objective.law)} reads {', '.join(objective.law.inputs)}, but the runs have no "
            f"{', '.join(missing)}. If a column of the table has these values, read it with "
            f"{argument('mapping', dict.fromkeys(missing, 'COLUMN'))}."
        )
    for name in objective.law.inputs:
        values = np.asarray(value_of(runs.design, name))
        # A column may hold several numbers per run, such as the drops of a schedule.
        finite = np.isfinite(values).reshape(len(values), -1).all(axis=1)
        if (wrong := np.flatnonzero(~finite & (runs.weight > 0))).size:
            first = values[wrong[0]].ravel()
            bad = first[~np.isfinite(first)][0]
            raise UserError(
                f"{name} is {bad} in {runs.names[wrong[0]]}, and not finite in {counted(len(wrong), 'run')} in all; "
                f"correct these runs, or leave them out."
            )
    if (wrong := np.flatnonzero(~((runs.loss > 0) & np.isfinite(runs.loss)) & (runs.weight > 0))).size:
        raise UserError(
            f"The {objective.output} is {runs.loss[wrong[0]]} in {runs.names[wrong[0]]}, and not above 0 in "
            f"{counted(len(wrong), 'run')} in all; correct these runs, or leave them out."
        )
    lowest = float(runs.loss[runs.weight > 0].min(initial=np.inf))
    if objective.output == "loss" and fixed.get("irreducible", -np.inf) >= lowest:
        raise UserError(
            f"irreducible is fixed at {fixed['irreducible']:g}, but a run has a loss of {lowest:g}; fix irreducible "
            f"below the lowest loss."
        )
    kept = int((runs.weight > 0).sum())
    if kept > 1 and np.ptp(runs.loss[runs.weight > 0]) == 0:
        raise UserError(
            f"The {objective.output} is {lowest:.6g} in all {kept} runs, so it determines no coefficient; "
            f"name the measured column with {argument('loss', 'COLUMN')}."
        )
    if kept < len(objective.free):
        raise UserError(
            f"{counted(kept, 'run')} cannot determine the {len(objective.free)} free coefficients of "
            f"{called(objective.law)}; add runs, choose a law with fewer coefficients, or fix coefficients."
        )


def _no_start(objective: FitObjective, data: Mapping[str, Any], runs: Runs, point: np.ndarray) -> str:
    """Return the message that explains why the objective is not finite at any initial guess."""
    with float64():
        wrong = np.flatnonzero(~np.isfinite(np.asarray(objective.penalties(point, data))))
    if not len(wrong):
        return (
            "The objective is not finite at any initial guess, because the sum of the runs' weights overflows; give "
            "smaller weights."
        )
    first = wrong[0]
    return (
        f"The objective is not finite at any initial guess: {called(objective.law)} is NaN or infinite for "
        f"{len(wrong)} of {len(runs)} runs, such as {runs.names[first]} with {objective.output} "
        f"{runs.loss[first]:.4g}. Check these runs' sizes and losses, or give initial guesses closer to the optimum."
    )
