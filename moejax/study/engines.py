"""Create the engine (a job-submission backend: Slurm, GKE or SkyPilot) and a study's tasks from the options of
``moejax launch``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath, PurePosixPath
from posixpath import normpath

from moejax.config import unknown
from moejax.errors import UserError
from moejax.laws.chips import Chip, find
from moejax.plan.topology import parse
from moejax.say import say
from moejax.storage import is_remote
from moejax.study.cloud import GKE_ACCELERATORS, Mount, chips_per_host, mounted, rentable
from moejax.study.estimate import (
    MOST_MINUTES,
    EstimatedTraining,
    ResourceRequest,
    chips_for,
    estimate,
    gpu_sizes,
    mesh_axes,
    minutes_for,
    remat_with_fewer_chips,
)
from moejax.study.executor import Task
from moejax.study.gke import GkeEngine, GkeOptions, check_name
from moejax.study.sky import SkyEngine, SkyOptions
from moejax.study.slurm import SlurmExecutor, SlurmOptions
from moejax.study.study import Study

GPUS = {"a100": "A100-80GB", "h100": "H100", "h200": "H200"}
"""SkyPilot's names of GPUs, keyed by moejax's name of the chip."""

_RESOURCES = "--nodes and --chips-per-node"
SET_BY_LAUNCH = {
    **dict.fromkeys(("nodes", "ntasks", "ntasks-per-node", "gpus", "gpus-per-node", "gpus-per-task"), _RESOURCES),
    **dict.fromkeys(("requeue", "no-requeue", "output", "error", "open-mode", "wrap"), "launch itself"),
    "cpus-per-task": "--cores",
    "mem": "--memory",
    "time": "--minutes",
    "signal": "--grace",
    "array": "--at-a-time",
}
"""Options of sbatch that ``--set`` rejects, with the moejax option that sets them. Moejax checks the mesh for the
devices that these options request.
"""


def slurm(options: SlurmOptions, study: Study, out: str) -> tuple[SlurmExecutor, list[Task]]:
    """Return Slurm's executor, and all training runs with their resources.

    Raises:
      UserError: the options are invalid, or no number of chips fits a training run.
    """
    if is_remote(out):
        raise UserError(f"--out is {out}; Slurm jobs cannot write there. Give a folder that all nodes share.")
    folder = Path(out).absolute()
    tasks = _tasks(study, folder, _slurm_resources(options, study))
    executor = SlurmExecutor(study_name=study.name, options=options, settings=_sbatch_settings(options.set))
    executor.check_limits(tasks)
    return executor, tasks


def _tasks(study: Study, folder: PurePath, resources: Mapping[str, ResourceRequest]) -> list[Task]:
    return [Task(training=one, study=folder, resources=resources[one.name]) for one in study.trainings()]


def _sbatch_settings(pairs: Sequence[str]) -> dict[str, str]:
    settings = {}
    for pair in pairs:
        key, _, value = pair.partition("=")
        name = key.removeprefix("--").replace("_", "-")
        if not value:
            raise UserError(f"--set {key} has no value; give KEY=VALUE.")
        if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
            raise UserError(f"--set {pair}: {key!r} is not an sbatch option; give KEY=VALUE, such as partition=gpu.")
        if name in SET_BY_LAUNCH:
            raise UserError(f"--set {pair}: {name} is set by {SET_BY_LAUNCH[name]}; {_instead(name, value)}.")
        if name in settings:
            raise UserError(f"--set {name} was given twice; give it once.")
        settings[name] = value
    return settings


def _instead(name: str, value: str) -> str:
    """Return the remedy for a setting of ``SET_BY_LAUNCH``, with the value if the moejax option has the same unit."""
    option = SET_BY_LAUNCH[name]
    if not option.startswith("--"):
        return "leave it out"
    has_value = name in ("time", "cpus-per-task") and re.fullmatch("[1-9][0-9]*", value)
    return f"use {option} {value}" if has_value else f"use {option}"


def _slurm_resources(options: SlurmOptions, study: Study) -> dict[str, ResourceRequest]:
    memory = int(options.memory or 0)
    if options.chip == "cpu":
        nodes = options.nodes or 1
        for training in study.trainings():
            try:
                # Each of JAX's processes under Slurm has one device.
                mesh_axes(training, nodes)
            except UserError as error:
                raise UserError(f"{training.name} on --nodes {nodes}: {error}") from error
        one = ResourceRequest(
            nodes=nodes,
            processes=nodes,
            cores=options.cores or 1,
            memory_bytes=memory,
            minutes=options.minutes or MOST_MINUTES,
        )
        return dict.fromkeys(study.models, one)
    if (options.chip or "").lower() in GKE_ACCELERATORS:
        raise UserError(
            f"{options.chip} is a TPU, but Slurm jobs train on NVIDIA GPUs; name a GPU with --chip, or give --chip cpu."
        )
    return {
        # Each of JAX's processes under Slurm has one GPU.
        name: replace(
            one,
            processes=one.chips,
            cores=options.cores or 8,
            memory_bytes=memory,
            minutes=options.minutes or one.minutes,
        )
        for name, one in _gpu_resources(options, study, options.chip or "h100").items()
    }


def gke(options: GkeOptions, study: Study, out: str) -> tuple[GkeEngine, list[Task]]:
    """Return the engine for Google Kubernetes Engine, and all training runs with their slices.

    Raises:
      UserError: the options are invalid, or no slice fits a training run.
    """
    if options.volume:
        claim, _, path = options.volume.partition(":")
        if not claim or not path.startswith("/") or not PurePosixPath(normpath(out)).is_relative_to(normpath(path)):
            raise UserError(
                f"--volume is {options.volume} and --out {out}; give --volume CLAIM:PATH and an --out below PATH. "
                "The volume must also be mounted at PATH on this machine."
            )
        mount, folder = Mount(claim, PurePosixPath(normpath(path))), PurePosixPath(normpath(out))
    else:
        mount, folder = mounted(out)
        if mount.source.startswith("s3"):
            raise UserError(
                f"--out is {out}; GKE mounts Google Cloud Storage buckets, so give gs://BUCKET/STUDY, or --volume."
            )
    for option in ("namespace", "service_account", "queue"):
        check_name(f"--{option.replace('_', '-')}", getattr(options, option))
    tasks = _tasks(study, folder, _tpu_resources(options, study, options.chip or "v5p"))
    return GkeEngine(study_name=study.name, mount=mount, options=options), tasks


def _tpu_resources(options: GkeOptions | SkyOptions, study: Study, chip: str) -> dict[str, ResourceRequest]:
    """Return each training run's slice, keyed by model: the requested slice, or the smallest that holds the run."""
    asked = parse(options.topology) if options.topology else None
    if asked and options.chip and options.chip.lower() != asked.chip_name:
        raise UserError(
            f"--topology is {asked.name} and --chip {options.chip}; a topology already names its chip, so leave out "
            "--chip."
        )
    name = asked.chip_name if asked else chip.lower()
    if name not in GKE_ACCELERATORS:
        raise UserError(f"{name} is not a TPU that GKE offers; choose {', '.join(GKE_ACCELERATORS)}.")
    if asked and replace(asked, slices=1) not in rentable(name):
        raise UserError(
            f"{asked.name} does not consist of whole machines; give another slice, at least {rentable(name)[0].name}."
        )
    topologies = [asked] if asked else rentable(name)
    sizes = [topology.devices for topology in topologies]

    def slice_of(devices: int, one: EstimatedTraining) -> ResourceRequest:
        # Among shapes of equal size, the one nearest to a cube has the shortest paths.
        topology = min((one for one in topologies if one.devices == devices), key=lambda one: max(one.shape))
        hosts = topology.chips // chips_per_host(topology)
        minutes = minutes_for(one, devices)
        return ResourceRequest(
            chips=topology.chips, chip=name, topology=topology.name, nodes=hosts, processes=hosts, minutes=minutes
        )

    return _requests(study, find(name).device, options.mfu, sizes, slice_of, asked.slices if asked else 1)


def _requests(
    study: Study,
    chip: Chip,
    mfu: float,
    sizes: Sequence[int],
    request: Callable[[int, EstimatedTraining], ResourceRequest],
    slices: int = 1,
) -> dict[str, ResourceRequest]:
    """Return a request for each training run, keyed by model, with the smallest number of chips in ``sizes`` that holds
    the run.
    """
    by_name = {one.model: one for one in estimate(study, chip, mfu=mfu).trainings}
    chips = {one.name: chips_for(one, by_name[one.name], chip, sizes, slices) for one in study.trainings()}
    for one in study.trainings():
        if fewer := remat_with_fewer_chips(one, by_name[one.name], chip, sizes, chips[one.name], slices):
            say(
                f"moejax: {one.name}: {chips[one.name]:,} devices hold a step with recipe.runtime.remat="
                f"{one.recipe.runtime.remat}; with --config.recipe.runtime.remat={fewer[0]}, {fewer[1]:,} suffice."
            )
            # Models of a study mostly share this setting.
            break
    return {name: request(chips[name], by_name[name]) for name in chips}


def sky(options: SkyOptions, study: Study, out: str) -> tuple[SkyEngine, list[Task]]:
    """Return the engine for SkyPilot, and all training runs with their resources.

    Raises:
      UserError: the options are invalid, no number of chips fits a training run, or the machines could not install
        moejax.
    """
    mount, folder = mounted(out)
    chip = (options.topology or options.chip or "h100").lower().partition(":")[0]
    if options.topology and parse(options.topology).slices > 1:
        raise UserError(
            f"--topology is {options.topology}, but moejax launch sky can request only one slice; use moejax launch "
            "gke for several."
        )
    if options.topology or chip in GKE_ACCELERATORS:
        if options.nodes:
            raise UserError(
                f"--nodes is {options.nodes} and the chip is {chip}, but --nodes counts GPU machines. Give the TPU "
                "slice with --topology, or a GPU with --chip."
            )
        resources = _tpu_resources(options, study, chip)
    elif chip in GPUS:
        resources = _gpu_resources(options, study, chip)
    else:
        raise UserError(unknown(f"chip {chip!r}", chip, [*GPUS, *GKE_ACCELERATORS]))
    engine = SkyEngine(study_name=study.name, mount=mount, options=options, accelerator=GPUS.get(chip, ""))
    engine.check_installable()
    return engine, _tasks(study, folder, resources)


def _gpu_resources(options: SlurmOptions | SkyOptions, study: Study, name: str) -> dict[str, ResourceRequest]:
    """Return the GPUs of each training run, keyed by model: all GPUs of ``--nodes``, or the smallest number that holds
    the run.
    """
    per_node = options.chips_per_node

    def machines(chips: int, one: EstimatedTraining) -> ResourceRequest:
        nodes = math.ceil(chips / per_node)
        # One process per machine has all its GPUs.
        minutes = minutes_for(one, chips)
        return ResourceRequest(chips=chips, chip=chip.name, nodes=nodes, processes=nodes, minutes=minutes)

    sizes, chip = [options.nodes * per_node] if options.nodes else gpu_sizes(per_node), find(name)
    return _requests(study, chip, options.mfu, sizes, machines)
