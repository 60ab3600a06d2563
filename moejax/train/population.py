"""Which trainings are the members of a population: models of one architecture that one program trains, a lane each.

Members differ in seed, learning rate and weight decay, which are arguments of a training's functions; all else is in
the compiled program. Each is a training of its own, with its own folder, rows and checkpoints.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from moejax.errors import UserError

if TYPE_CHECKING:
    from moejax.train.training import Training

MEMBERS = "members"
"""In a population's folder, the one that holds its members' folders."""


@dataclass(frozen=True, kw_only=True)
class Population:
    """Axes along which a training is made several: every combination is a member. An empty axis has the training's own
    value alone."""

    seeds: tuple[int, ...] = ()
    """They decide initialisation, noise and, unless ``data.order_seed`` is set, the order of the data."""
    learning_rates: tuple[float, ...] = ()
    weight_decays: tuple[float, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.seeds or self.learning_rates or self.weight_decays)

    def check(self) -> None:
        """Raise ``UserError`` with value, rule and remedy if an axis names a member twice."""
        for axis in ("seeds", "learning_rates", "weight_decays"):
            values = getattr(self, axis)
            if len(set(values)) != len(values):
                raise UserError(f"population.{axis} is {list(values)}; each value is a member: list it once.")


def members(training: Training) -> list[Training]:
    """The members of a training's population, named after what they differ in; the training itself if it has none."""
    axes = training.population
    if not axes:
        return [training]
    found = []
    for seed, rate, decay in itertools.product(
        axes.seeds or (None,), axes.learning_rates or (None,), axes.weight_decays or (None,)
    ):
        own = {"seed": seed, "lr": rate, "wd": decay}
        optimizer = training.recipe.optimizer
        optimizer = replace(
            optimizer,
            learning_rate=optimizer.learning_rate if rate is None else rate,
            weight_decay=optimizer.weight_decay if decay is None else decay,
        )
        member = replace(
            training,
            name="-".join([training.name, *(f"{sign}{value}" for sign, value in own.items() if value is not None)]),
            seed=training.seed if seed is None else seed,
            recipe=replace(training.recipe, optimizer=optimizer),
            population=Population(),
        )
        found.append(member)
    return found


def shared(training: Training) -> Training:
    """What the members of a population have in common: equal for trainings that can be members of one."""
    optimizer = replace(training.recipe.optimizer, learning_rate=1.0, weight_decay=0.0)
    return replace(training, name="", seed=0, recipe=replace(training.recipe, optimizer=optimizer))


def packed(trainings: Sequence[Training], most: int) -> list[list[Training]]:
    """Trainings in populations of at most ``most``, in the order of their first members."""
    groups: dict[Training, list[list[Training]]] = {}
    for training in trainings:
        of_kind = groups.setdefault(shared(training), [])
        if not of_kind or len(of_kind[-1]) == most:
            of_kind.append([])
        of_kind[-1].append(training)
    order = {training.name: number for number, training in enumerate(trainings)}
    return sorted((group for of_kind in groups.values() for group in of_kind), key=lambda group: order[group[0].name])
