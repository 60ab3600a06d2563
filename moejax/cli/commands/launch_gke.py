"""``moejax launch gke``: what its options ask for, as tasks and an engine."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import PurePosixPath
from posixpath import normpath

from moejax.errors import UserError
from moejax.laws.chips import find
from moejax.plan.topology import parse
from moejax.study.cloud import GKE_ACCELERATORS, Mount, chips_per_host, mounted, rentable
from moejax.study.estimate import estimate
from moejax.study.executor import Task
from moejax.study.gke import GkeEngine, XpkEngine
from moejax.study.resources import ResourceRequest, chips_for, minutes_for
from moejax.study.study import Study


def prepare(arguments: argparse.Namespace, study: Study, out: str) -> tuple[GkeEngine | XpkEngine, list[Task]]:
    """The engine, and all trainings with their slices.

    Raises:
      UserError: what was asked for makes no sense, or a training fits on no slice.
    """
    if arguments.volume:
        claim, _, path = arguments.volume.partition(":")
        if not claim or not path.startswith("/") or not PurePosixPath(normpath(out)).is_relative_to(normpath(path)):
            raise UserError(
                f"--volume is {arguments.volume} and --out {out}; give CLAIM:PATH, and a folder below PATH, where this "
                f"machine has it mounted too."
            )
        mount, folder = Mount(claim, PurePosixPath(normpath(path))), PurePosixPath(normpath(out))
    else:
        mount, folder = mounted(out)
    resources = tpu_resources(arguments, study, arguments.chip or "v5p")
    tasks = [Task(training=one, study=folder, resources=resources[one.name]) for one in study.trainings()]
    engine = GkeEngine(
        study_name=study.name,
        image=arguments.image,
        mount=mount,
        namespace=arguments.namespace,
        service_account=arguments.service_account,
        queue=arguments.queue,
        spot=arguments.spot,
    )
    return XpkEngine(gke=engine, cluster=arguments.xpk) if arguments.xpk else engine, tasks


def tpu_resources(arguments: argparse.Namespace, study: Study, chip: str):
    """A slice for every training: the one that is asked for, or the smallest that holds it.

    Raises:
      UserError: no such slice, or none that will do.
    """
    asked = parse(arguments.topology) if arguments.topology else None
    name = asked.chip_name if asked else chip.lower()
    if name not in GKE_ACCELERATORS:
        raise UserError(f"{name} is no TPU that can be rented; take {', '.join(GKE_ACCELERATORS)}.")
    if asked and replace(asked, slices=1) not in rentable(name):
        raise UserError(f"{asked.name} is no whole machine; the smallest slice is {rentable(name)[0].name}.")
    topologies = [asked] if asked else rentable(name)
    slices = asked.slices if asked else 1
    by_name = {one.model: one for one in estimate(study, find(name).device, mfu=arguments.mfu).trainings}
    found = {}
    for training in study.trainings():
        one = by_name[training.name]
        devices = chips_for(training, one, [topology.devices for topology in topologies], slices)
        # Of several shapes, the nearest to a cube has the shortest ways.
        topology = min((one for one in topologies if one.devices == devices), key=lambda one: max(one.shape))
        hosts = topology.chips // chips_per_host(topology)
        minutes = minutes_for(one, devices)
        found[training.name] = ResourceRequest(
            chips=topology.chips, topology=topology.name, nodes=hosts, processes=hosts, minutes=minutes
        )
    return found
