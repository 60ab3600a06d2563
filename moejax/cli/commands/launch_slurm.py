"""``moejax launch slurm``: what its options ask for, as tasks and an executor."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from moejax.errors import UserError
from moejax.laws.chips import find
from moejax.storage import is_remote
from moejax.study.estimate import estimate
from moejax.study.executor import Task
from moejax.study.resources import MOST_MINUTES, ResourceRequest, chips_for, gpu_sizes, minutes_for
from moejax.study.slurm import SlurmExecutor
from moejax.study.study import Study


def prepare(arguments: argparse.Namespace, study: Study, out: str) -> tuple[SlurmExecutor, list[Task]]:
    """The executor, and all trainings with what they take.

    Raises:
      UserError: what was asked for makes no sense, or a training fits on no number of chips.
    """
    if is_remote(out):
        raise UserError(f"--out is {out}; Slurm's jobs need a folder that all nodes see.")
    settings = dict(pair.split("=", 1) if "=" in pair else (pair, "") for pair in arguments.set)
    if "" in settings.values():
        raise UserError(f"--set {next(k for k, v in settings.items() if not v)} has no value; give KEY=VALUE.")
    folder = Path(out).absolute()
    resources = _resources(arguments, study)
    tasks = [Task(training=one, study=folder, resources=resources[one.name]) for one in study.trainings()]
    executor = SlurmExecutor(grace_seconds=arguments.grace, at_a_time=arguments.at_a_time, settings=settings)
    return executor, tasks


def _resources(arguments: argparse.Namespace, study: Study):
    memory = int(arguments.memory or 0)
    if arguments.chip == "cpu":
        nodes = arguments.nodes or 1
        one = ResourceRequest(
            nodes=nodes,
            processes=nodes,
            cores=arguments.cores or 1,
            memory_bytes=memory,
            minutes=arguments.minutes or MOST_MINUTES,
        )
        return dict.fromkeys(study.models, one)
    per_node, found = arguments.chips_per_node, {}
    sizes = [arguments.nodes * per_node] if arguments.nodes else gpu_sizes(per_node)
    by_name = {one.model: one for one in estimate(study, find(arguments.chip or "h100"), mfu=arguments.mfu).trainings}
    for training in study.trainings():
        chips = chips_for(training, by_name[training.name], sizes)
        found[training.name] = ResourceRequest(
            chips=chips,
            nodes=math.ceil(chips / per_node),
            # JAX's processes under Slurm have one GPU each.
            processes=chips,
            cores=arguments.cores or 8,
            memory_bytes=memory,
            minutes=arguments.minutes or minutes_for(by_name[training.name], chips),
        )
    return found
