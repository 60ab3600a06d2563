"""Answer a design problem for one law: the optimum, prices of constraints, flat region, value of repetition, and the
model to build.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from moejax.architecture import Architecture
from moejax.design.build import (
    Built,
    OnTopology,
    build,
    config_text,
    max_tokens_within,
    trained,
    training_settings,
)
from moejax.design.constraint import Constraint, restated
from moejax.design.coordinates import EXPANSIONS, OF_EXPERTS, SET_BY, UNIQUE_TOKENS, Shapes
from moejax.design.problem import Optimum, Problem, optimize
from moejax.design.sensitivity import Flat, Price, flat_region, prices, undecided, under_laws
from moejax.errors import UserError
from moejax.float64 import float64
from moejax.interval import OPEN, Interval, check_level
from moejax.laws.accounting import design_of
from moejax.laws.catalogue import CATALOGUE
from moejax.laws.design import Design
from moejax.laws.law import Law, Published
from moejax.laws.predict import Ranged, check_experts, predict
from moejax.result import Result, Shown, imported
from moejax.wording import argument, told


@dataclass(frozen=True, kw_only=True)
class Repeats:
    """The value of repeating tokens under a law that models repetition."""

    unique_tokens: float
    """Maximum number of unique tokens under the constraints."""
    once: Optimum | None
    """Optimum without repeated tokens; None if no design satisfies the constraints without repetition."""
    endless: Optimum | None
    """Optimum with unlimited unique tokens."""
    endless_epochs: float | None = None
    """Epochs of the ``endless`` optimum if it is trained on ``unique_tokens``; None if the goal is not the loss."""
    endless_loss: float | None = None
    """Loss of this training run."""


def repeats(optimum: Optimum) -> Repeats | None:
    """Return the value of repetition; None if unique tokens are not a constrained coordinate."""
    problem = optimum.problem
    constraint = problem.merged_constraints().get(UNIQUE_TOKENS.name)
    if constraint is None or UNIQUE_TOKENS.name not in (c.name for c in problem.space.coordinates):
        return None
    others = tuple(one for one in problem.constraints if one.name != UNIQUE_TOKENS.name)
    once = _optimum(
        replace(problem, constraints=(*problem.constraints, Constraint(name="tokens", high=constraint.high)))
    )
    endless = _optimum(
        replace(problem, constraints=(*others, Constraint(name=UNIQUE_TOKENS.name, high=UNIQUE_TOKENS.high)))
    )
    result = Repeats(unique_tokens=constraint.high, once=once, endless=endless)
    if endless is None or problem.goal != "loss":
        return result
    here = problem.space.candidate({**endless.values, UNIQUE_TOKENS.name: constraint.high})
    assert here.epochs is not None  # The unique tokens are given.
    with float64():
        return replace(result, endless_epochs=float(here.epochs), endless_loss=float(problem.law(here.design)))


def _optimum(problem: Problem) -> Optimum | None:
    try:
        return optimize(problem)
    except ValueError:
        return None


MIXTURE, DENSE = "glm-4.5-air", "dense-6.1b"
"""Published models whose proportions are used where a law does not read them."""


@runtime_checkable
class Likely(Protocol):
    """Laws drawn from the uncertainty of a fit, and intervals of answers under them."""

    @property
    def laws(self) -> Law:
        """Return a law whose coefficients have one entry per draw."""
        ...

    @property
    def probes(self) -> Any:
        """Return perturbed laws that fit equally well (``fit.uncertainty.undetermined.Probes``).

        A number that differs between them is not determined. None if the runs determine every coefficient.
        """
        ...

    @property
    def method(self) -> str:
        """Return the method of the intervals, as text after the level."""
        ...

    def interval_of(self, answers: Sequence[float], level: float) -> Interval:
        """Return the interval of a number from its values under the laws, which are NaN where undefined."""
        ...


@dataclass(frozen=True, kw_only=True, repr=False)
class DesignResult(Shown):
    """A model to train, and the analysis of its optimum."""

    optimum: Optimum
    prices: Sequence[Price]
    flat: Sequence[Flat]
    within: float
    undecided: tuple[str, ...] = ()
    """Coordinates that can change by more than a factor of ten at the same loss (``sensitivity.undecided``)."""
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    """Intervals of the optimum's values from a fit's uncertainty; empty for published constants."""
    level: float = 0.9
    """Coverage of the intervals."""
    by: str = ""
    """Method of the intervals, as text after the level; empty without intervals."""
    without_intervals: str = ""
    """Warning that the runs of a fit are too few for intervals; empty if they suffice."""
    repeats: Repeats | None = None
    """Value of repetition; None if the law does not model it, or unique tokens are not constrained."""
    shape: Optimum | None = None
    """Optimum among architectures, with exact counts."""
    built: Built | None = None
    not_built: str = ""
    """Reason why no model was built."""
    built_interval: tuple[float, float] | None = None
    """Prediction interval of the loss of ``built``, by the fit; None for published constants, or if there is none."""
    on_topology: OnTopology | None = None
    """Mesh, remat policy and microbatches for the chips of the design; None without a topology."""
    beyond: Mapping[str, float] = field(default_factory=dict)
    """Factors by which the optimum exceeds the range of the fitted runs; for published constants, only if no model was
    built."""
    fitted: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Fitted range of each variable; empty if unknown."""
    fitted_convention: str = ""
    """Convention of the FLOPs of a fit's runs; empty if unknown."""
    published: Mapping[str, Built] = field(default_factory=dict)
    """Published models trained under the same constraints, if these limit the tokens."""

    @property
    def chosen(self) -> Design:
        """The model to train as input of a law: the built model, or the optimum if none was built."""
        if self.built is None or self.shape is None:
            return self.optimum.problem.space.candidate(self.optimum.values).design
        return trained(self.shape.problem, self.built.architecture, self.built.tokens).design

    def summary(self) -> Result:
        """Return the model to train, prices of constraints, value of repetition, and published models."""
        return imported("design.summary").summary(type(self.optimum.problem.law).__name__, self)

    def config(self, name: str = "designed") -> str:
        """Return the text of a config file for ``moejax train --config``, which trains the built model.

        Raises:
          UserError: no model was built.
        """
        problem = self.optimum.problem
        says = f"Designed under the law {type(problem.law).__name__}: {', '.join(map(str, problem.constraints))}."
        if self.on_topology is not None:
            says += f"\n\nThe mesh, remat and microbatches are for {self.on_topology.topology}, by estimates."
        return config_text(self._built("config"), self.training(name), says)

    def training(self, name: str = "designed") -> dict[str, Any]:
        """Return a config dictionary that trains the built model, for ``moejax.plan`` and ``moejax.train``.

        The batch and the learning rate are "auto"; add the data.

        Raises:
          UserError: no model was built.
        """
        length = self.optimum.problem.assumptions.sequence_length
        return training_settings(self._built("training"), name, length, self.on_topology)

    def _built(self, wanted: str) -> Built:
        if self.built is None:
            raise UserError(f"No model was built, so there is no {wanted}. {self.not_built}")
        return self.built


def customary_model(inputs: Iterable[str], *, dense: bool = False) -> str:
    """Return the name of the published model with default proportions, which is dense for laws of dense models, and if
    ``dense``."""
    of_dense = {"params_total", "num_experts", "top_k", "expert_hidden"}.isdisjoint(inputs)
    return DENSE if dense or of_dense else MIXTURE


def decide(
    problem: Problem,
    *,
    like: Architecture | None = None,
    within: float = 0.001,
    known: Ranged | None = None,
    exact: bool = False,
    resampled: Likely | None = None,
    level: float = 0.9,
) -> DesignResult:
    """Solve a problem and analyse its optimum.

    The intervals of a fit are those of ``moejax fit --decide``: from the fit's bootstrap, or else from its standard
    errors. With several inequality constraints, which may bind under some of the likely laws only, they are from laws
    drawn from the covariance instead.

    Args:
      like: architecture that gives the proportions that the law does not read.
      within: increase of the loss in nats that defines the flat region.
      exact: True to also try the integers nearest to the optimum, instead of only hardware-friendly multiples.
      known: the law's published set of constants, or its fit, whose fitted ranges are checked.
      resampled: bootstrap of the fit ``known`` for the intervals; by default the one that is stored with it, if any.
      level: coverage of the intervals.

    Raises:
      UserError: like ``optimize``, or the level is not between 0 and 1.
    """
    check_level(level)
    optimum = optimize(problem)
    flat = flat_region(optimum, within)
    open_ones = undecided(optimum, flat)
    # Of the laws with ranges, only a fit has an uncertainty.
    of_fit = getattr(known, "likely", None)
    likely = None if of_fit is None else of_fit(resampled, drawn=_may_bind(problem) > 1)
    intervals = {} if likely is None else _intervals(optimum, likely, level)
    decision = DesignResult(
        optimum=optimum,
        prices=prices(optimum),
        flat=flat,
        within=within,
        undecided=open_ones,
        intervals={name: OPEN if name in open_ones else one for name, one in intervals.items()},
        level=level,
        by="" if likely is None else likely.method,
        without_intervals="" if likely is not None else getattr(known, "without_intervals", ""),
        repeats=repeats(optimum),
        fitted={} if known is None else known.fitted,
        fitted_convention=getattr(known, "flops_convention", ""),
    )
    far = {} if known is None else beyond(known, optimum)
    without_model = replace(decision, beyond=far)
    # Of published constants, the range is checked for the built model.
    decision = decision if of_fit is None else without_model
    try:
        shape = optimum if isinstance(problem.space, Shapes) else optimize(of_shapes(problem, like))
        built = build(shape, known, exact=exact)
    except ValueError as why:
        return replace(without_model, not_built=told(why))
    if built is None:
        said = (
            f"No integer shape near the optimum satisfies all constraints; give a smaller model "
            f"({argument('like')}), or loosen the constraints."
        )
        return replace(without_model, shape=shape, not_built=said)
    return replace(
        decision,
        shape=shape,
        built=built,
        built_interval=_prediction_interval(shape.problem, built, known, level),
        published=_published(shape.problem, known),
    )


def _prediction_interval(
    problem: Problem, built: Built, known: Ranged | None, level: float
) -> tuple[float, float] | None:
    """Return the prediction interval of a built model's loss; None without a fit, or if its runs determine none."""
    fit: Any = known
    if not getattr(getattr(fit, "uncertainty", None), "axes", None):
        return None
    predicted = fit.prediction_intervals(trained(problem, built.architecture, built.tokens).design, level)
    low, high = float(predicted.low[0]), float(predicted.high[0])
    return None if predicted.unknown[0] or not math.isfinite(high - low) else (low, high)


def _may_bind(problem: Problem) -> int:
    """Return the number of inequality constraints; a quantity that is held fixed binds under every law."""
    return sum(one.low != one.high for one in problem.merged_constraints().values())


def _intervals(optimum: Optimum, likely: Likely, level: float) -> dict[str, Interval]:
    """Return intervals of all identified coordinates and of the goal, keyed by name.

    A law without an optimum counts as undefined. A quantity that the runs do not determine has an open interval.
    """
    optima = under_laws(optimum, likely.laws)
    aside = [] if likely.probes is None else under_laws(optimum, likely.probes.laws)
    names = [c.name for c in optimum.problem.space.coordinates if c.name not in optimum.unidentified]

    def of(name: str, among: Sequence[Optimum | None]) -> list[float]:
        return [math.nan if one is None else one.values[name] for one in among]

    chosen = {}
    for name in [*names, optimum.problem.goal_name]:
        interval = likely.interval_of(of(name, optima), level)
        is_open = likely.probes is not None and likely.probes.moved(of(name, aside), interval)
        chosen[name] = OPEN if is_open else interval
    return chosen


def _published(problem: Problem, known: Ranged | None) -> dict[str, Built]:
    published = {}
    for name, model in CATALOGUE.items():
        if isinstance(known, Published) and known.dense and model.architecture.is_moe:
            continue  # Constants of dense models do not model the gain of experts.
        try:
            one = max_tokens_within(problem, model.architecture, known)
        except ValueError:
            continue  # An MoE law cannot be evaluated at a dense model.
        if one is not None:
            published[name] = one
    return published


def of_shapes(problem: Problem, like: Architecture | None = None) -> Problem:
    """Return the problem with architectures as its search space.

    Raises:
      UserError: the model that gives the proportions is dense, but the law or a constraint requires experts; or it
        has experts, but a constraint requires a dense model.
    """
    dense = next((one for one in problem.constraints if one.name in EXPANSIONS and one.high <= 1), None)
    like = CATALOGUE[customary_model(problem.law.inputs, dense=bool(dense))].architecture if like is None else like
    if dense and like.is_moe:
        raise UserError(
            f"{dense} needs a dense model, but the model that gives the proportions has experts; give a dense model "
            f"({argument('like', DENSE)})."
        )
    check_experts(problem.law, design_of(like, 1.0))
    chosen = {c.name for c in problem.space.coordinates}
    inputs = tuple(name for name in problem.law.inputs if name != "unique_tokens" or name in chosen)
    space = Shapes(like, inputs, problem.assumptions.sequence_length)
    constraints = tuple(restated(constraint, problem.law, space) for constraint in problem.constraints)
    sets = {one.name: SET_BY[one.name] for one in constraints if one.name in SET_BY}
    sparse = [
        one for one in constraints if sets.get(one.name) in OF_EXPERTS and (one.name not in EXPANSIONS or one.low > 1)
    ]
    if sparse and not like.is_moe:
        raise UserError(
            f"{sparse[0]} needs an MoE model, but the model that gives the proportions has no experts; give a model "
            f"with experts ({argument('like')})."
        )
    # A range of a quantity that the law does not read stays a condition, because the search would choose an end of it.
    # A dense model has no dimensions of experts to search.
    fixed = {sets[one.name] for one in constraints if one.name in sets and one.low == one.high}
    constrained = tuple(sorted(name for name in fixed if like.is_moe or name not in OF_EXPERTS))
    return replace(problem, space=replace(space, constrained=constrained), constraints=constraints)


def on_chips(decision: DesignResult, chips: int) -> dict[str, int | float | None]:
    """Return the built model's training time on ``chips`` chips, and the state per chip if it is spread evenly."""
    if decision.built is None or decision.shape is None:
        return {}
    built, problem = decision.built, decision.shape.problem
    limit = problem.merged_constraints().get("memory_bytes")
    return {
        "chips": chips,
        "days": built.measures["chip_hours"] / chips / 24,
        "memory_bytes_a_chip": built.measures["memory_bytes"] / chips,
        "memory_limit_bytes_a_chip": None if limit is None or math.isinf(limit.high) else limit.high / chips,
    }


def side_by_side(
    laws: Mapping[str, Law],
    constraints: Sequence[Constraint],
    make: Callable[[Law, Sequence[Constraint]], Problem],
) -> dict[str, Optimum | str]:
    """Return the optimum of ``make(law, constraints)`` for every law, or the reason why there is no optimum."""
    optima: dict[str, Optimum | str] = {}
    for name, law in laws.items():
        try:
            optima[name] = optimize(make(law, constraints))
        except ValueError as why:
            optima[name] = told(why)
    return optima


def beyond(known: Ranged, *optima: Optimum | None) -> Mapping[str, float]:
    """Return, for each variable, the largest extrapolation of optima beyond the range of a published set or a fit."""
    farthest: dict[str, float] = {}
    for optimum in filter(None, optima):
        # A value at a bound of its range, such as no shared experts, is exact only up to rounding.
        chosen = optimum.problem.program.coordinates
        values = {one.name: min(max(optimum.values[one.name], one.low), one.high) for one in chosen}
        for name, factor in predict(known, optimum.problem.space.candidate(values).design).extrapolated.items():
            farthest[name] = max(farthest.get(name, 1.0), factor, key=_far)
    return farthest


def _far(factor: float) -> float:
    return abs(math.log(factor)) if factor > 0 else math.inf
