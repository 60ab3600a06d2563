"""Expand trainings into runs that one program trains together by ``jax.vmap``: the same architecture, three different
settings.

Runs differ only in seed, learning rate and weight decay, which are arguments of a training's functions; all other
settings are compiled in. Each run is a training of its own, with its own folder, rows and checkpoints.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from moejax.train.training import Training, VmapAxes


def vmapped_runs(training: Training) -> list[Training]:
    """Return the runs of a training, named by their differences; the training itself if it has no ``vmap`` axes."""
    axes = training.vmap
    if not axes:
        return [training]
    found, optimizer = [], training.recipe.optimizer
    for seed, rate, decay in itertools.product(
        axes.seeds or (training.seed,),
        axes.learning_rates or (optimizer.learning_rate,),
        axes.weight_decays or (optimizer.weight_decay,),
    ):
        own = [(axes.seeds, f"seed{seed}"), (axes.learning_rates, f"lr{rate}"), (axes.weight_decays, f"wd{decay}")]
        name = "-".join([training.name, *(text for axis, text in own if axis)])
        recipe = replace(training.recipe, optimizer=replace(optimizer, learning_rate=rate, weight_decay=decay))
        found.append(replace(training, name=name, seed=seed, recipe=recipe, vmap=VmapAxes()))
    return found


def shared_settings(training: Training) -> Training:
    """Return a training without its name and the settings in which vmapped runs may differ; equal results can be
    vmapped."""
    optimizer = replace(training.recipe.optimizer, learning_rate=1.0, weight_decay=0.0)
    return replace(training, name="", seed=0, recipe=replace(training.recipe, optimizer=optimizer))


def vmap_groups(trainings: Sequence[Training], most: int) -> list[list[Training]]:
    """Group trainings that can be vmapped, at most ``most`` per group, in the order of the groups' first trainings."""
    groups: dict[Training, list[list[Training]]] = {}
    for training in trainings:
        of_kind = groups.setdefault(shared_settings(training), [])
        if not of_kind or len(of_kind[-1]) == most:
            of_kind.append([])
        of_kind[-1].append(training)
    order = {training.name: number for number, training in enumerate(trainings)}
    return sorted((group for of_kind in groups.values() for group in of_kind), key=lambda group: order[group[0].name])
