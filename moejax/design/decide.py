"""The whole answer for one law: the optimum, what limits are worth, how flat it is, what to build."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from moejax.architecture import Architecture
from moejax.design.build import Built, build, spend
from moejax.design.measures import Setting
from moejax.design.problem import Limit, Optimum, Problem, optimise
from moejax.design.repeats import Repeats, repeats
from moejax.design.sensitivity import Flat, Price, flat_region, prices
from moejax.design.shapes import Shapes
from moejax.laws.catalogue import CATALOGUE
from moejax.laws.door import predict
from moejax.laws.published import Published

MIXTURE, DENSE = "glm-4.5-air", "dense-6.1b"
"""Published models whose proportions a design takes where a law is silent and nothing else is given."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What to train, and why."""

    optimum: Optimum
    prices: Sequence[Price]
    flat: Sequence[Flat]
    within: float
    repeats: Repeats | None = None
    """None where no law prices them, or unique tokens are not limited."""
    shape: Optimum | None = None
    """The optimum among architectures, counted exactly."""
    built: Built | None = None
    not_built: str = ""
    """Why there is none."""
    published: Mapping[str, Built] = field(default_factory=dict)
    """Published models under the same limits, as far as those end their training."""


def customary(law: Any) -> Architecture:
    """A dense model for a law that knows only dense ones, else a mixture."""
    dense = {"params_total", "num_experts", "top_k", "expert_hidden"}.isdisjoint(law.inputs)
    return CATALOGUE[DENSE if dense else MIXTURE].architecture


def decide(problem: Problem, *, like: Architecture | None = None, within: float = 0.001, known: Any = None) -> Decision:
    """Everything about a problem's optimum.

    Args:
      like: the architecture whose proportions stay where the law is silent.
      within: nats by which the loss may rise in the flat region.
      known: the law's published set of constants, whose fitted ranges predictions are held against.

    Raises:
      ValueError: as ``optimise``.
    """
    optimum = optimise(problem)
    decision = Decision(
        optimum=optimum,
        prices=prices(optimum),
        flat=flat_region(optimum, within),
        within=within,
        repeats=repeats(optimum),
    )
    try:
        shape = optimum if isinstance(problem.space, Shapes) else optimise(of_shapes(problem, like))
        built = build(shape, known)
    except ValueError as why:
        return replace(decision, not_built=str(why))
    if built is None:
        said = "No whole-numbered shape near the optimum keeps the limits; give a smaller --like, or looser limits."
        return replace(decision, shape=shape, not_built=said)
    return replace(decision, shape=shape, built=built, published=_published(shape.problem, known))


def _published(problem: Problem, known: Any) -> dict[str, Built]:
    found = {}
    for name, model in CATALOGUE.items():
        try:
            one = spend(problem, model.architecture, known)
        except ValueError:
            continue  # A law of mixtures is not asked about a dense model.
        if one is not None:
            found[name] = one
    return found


def of_shapes(problem: Problem, like: Architecture | None = None) -> Problem:
    """The same problem among architectures."""
    like = customary(problem.law) if like is None else like
    chosen = {c.name for c in problem.space.coordinates}
    inputs = tuple(name for name in problem.law.inputs if name != "unique_tokens" or name in chosen)
    space = Shapes(like, inputs, problem.setting.sequence_length)
    return replace(problem, space=space)


def side_by_side(laws: Mapping[str, Any], limits: Sequence[Limit], make: Any) -> dict[str, Optimum | str]:
    """The optimum under every law, or the sentence why there is none; ``make(law, limits)`` is the problem."""
    found: dict[str, Optimum | str] = {}
    for name, law in laws.items():
        try:
            found[name] = optimise(make(law, limits))
        except ValueError as why:
            found[name] = str(why)
    return found


def beyond(optimum: Optimum, known: Published) -> Mapping[str, float]:
    """How far an optimum lies outside what a published set of constants was fitted to, by variable."""
    values = {coordinate.name: optimum.values[coordinate.name] for coordinate in optimum.problem.program.coordinates}
    return predict(known, optimum.problem.space.candidate(values).design).extrapolated


__all__ = ["Decision", "Setting", "beyond", "customary", "decide", "of_shapes", "side_by_side"]
