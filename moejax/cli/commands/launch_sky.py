"""``moejax launch sky``: what its options ask for, as tasks and an engine."""

from __future__ import annotations

import argparse
import math

from moejax.cli.commands.launch_gke import tpu_resources
from moejax.config import unknown
from moejax.errors import UserError
from moejax.laws.chips import find
from moejax.plan.topology import parse
from moejax.say import say
from moejax.study.cloud import GKE_ACCELERATORS, mounted
from moejax.study.estimate import estimate
from moejax.study.executor import Task
from moejax.study.resources import ResourceRequest, chips_for, gpu_sizes, minutes_for
from moejax.study.sky import SkyEngine
from moejax.study.study import Study

GPUS = {"a100": "A100-80GB", "h100": "H100", "h200": "H200"}
"""Chips by the names that SkyPilot has for them."""


def prepare(arguments: argparse.Namespace, study: Study, out: str) -> tuple[SkyEngine, list[Task]]:
    """The engine, and all trainings with what they take.

    Raises:
      UserError: what was asked for makes no sense, or a training fits on no number of chips.
    """
    mount, folder = mounted(out)
    chip = (arguments.topology or arguments.chip or "h100").lower().partition(":")[0]
    if arguments.topology and parse(arguments.topology).slices > 1:
        raise UserError(
            f"--topology is {arguments.topology}; SkyPilot is asked for one slice, and moejax launch gke for several."
        )
    if arguments.topology or chip in GKE_ACCELERATORS:
        resources = tpu_resources(arguments, study, chip)
    elif chip in GPUS:
        resources = _gpu_resources(arguments, study, chip)
    else:
        raise UserError(unknown(f"chip {chip!r}", chip, [*GPUS, *GKE_ACCELERATORS]))
    engine = SkyEngine(
        study_name=study.name,
        accelerator=GPUS.get(chip, ""),
        image=arguments.image,
        mount=mount,
        infra=arguments.infra,
        spot=not arguments.on_demand,
    )
    if engine.lacks and not arguments.submit:
        say(f"moejax: {engine.lacks}")
    return engine, [Task(training=one, study=folder, resources=resources[one.name]) for one in study.trainings()]


def _gpu_resources(arguments: argparse.Namespace, study: Study, chip: str):
    by_name = {one.model: one for one in estimate(study, find(chip), mfu=arguments.mfu).trainings}
    found = {}
    for training in study.trainings():
        one = by_name[training.name]
        chips = chips_for(training, one, gpu_sizes(arguments.chips_per_node))
        nodes = math.ceil(chips / arguments.chips_per_node)
        # One process on each machine has all its GPUs.
        found[training.name] = ResourceRequest(
            chips=chips, nodes=nodes, processes=nodes, minutes=minutes_for(one, chips)
        )
    return found
