"""Share code between cloud engines: mounts of a study's folder, names of TPU slices, XLA environment, YAML."""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from moejax.data.config import DataConfig
from moejax.data.prepared import MANIFEST
from moejax.errors import UserError
from moejax.plan.topology import Topology, slices
from moejax.study.executor import Task
from moejax.train.devices import options_of
from moejax.train.training import Training


@dataclass(frozen=True)
class Mount:
    """A bucket or volume and its mount path."""

    source: str
    """``gs://BUCKET``, or the name of a Kubernetes volume claim."""
    path: PurePosixPath
    """Mount path on every machine."""

    @property
    def bucket(self) -> str | None:
        """Name of the bucket; None for a volume claim."""
        return self.source.partition("://")[2] if "://" in self.source else None


@dataclass(frozen=True, kw_only=True)
class CloudEngine:
    """A service whose machines see the study's folder at a mount path."""

    study_name: str
    mount: Mount

    def name(self, task: Task) -> str:
        """Return the service's name for a training run. A second submission of the same run has the same name."""
        return kubernetes_name(f"{task.job_name(self.study_name)}-{self._mark(task.study, task.name)}")

    def study_label(self, task: Task) -> str:
        """Return the service's label for a study. Studies with the same name in different folders have different
        labels.
        """
        return kubernetes_name(f"{self.study_name}-{self._mark(task.study)}")

    def _mark(self, *parts: object) -> str:
        return hashlib.sha256(" ".join(map(str, (self.mount.source, *parts))).encode()).hexdigest()[:6]


_LONGEST_NAME = 40
"""Maximum length of a name. JobSet adds suffixes to form pod names, which have at most 63 characters."""


def kubernetes_name(text: str) -> str:
    """Return a valid Kubernetes name of lower-case letters, digits and '-'. A hash marks changed or shortened names."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if plain == text and len(plain) <= _LONGEST_NAME and plain[0].isalpha():
        return plain
    mark = hashlib.sha256(text.encode()).hexdigest()[:8]
    plain = plain if plain[:1].isalpha() else f"m-{plain}"
    return f"{plain[: _LONGEST_NAME - len(mark) - 1].strip('-')}-{mark}"


def mounted(out: str) -> tuple[Mount, PurePosixPath]:
    """Return the mount of a folder in an object store, and the folder's path on machines: ``gs://b/zhao`` is
    ``/b/zhao``.

    Raises:
      UserError: the folder is local to this machine.
    """
    protocol, separator, rest = out.partition("://")
    bucket, _, folder = rest.strip("/").partition("/")
    if not separator or not bucket or protocol == "file":
        raise UserError(
            f"--out is {out}; cloud machines cannot read it. Give a folder in a bucket, such as gs://BUCKET/STUDY."
        )
    path = PurePosixPath("/", bucket)
    return Mount(f"{protocol}://{bucket}", path), path / folder


def holds_corpus(mount: Mount, data: DataConfig) -> bool:
    """Return whether the mount holds the corpus, so that it need not be prepared on this machine.

    Raises:
      UserError: a part of the corpus is outside the mount, where the machines cannot read it.
    """
    sources = [part.source for part in data.parts] or [data.source]
    tokenizer = (data.tokenizer or "").partition("#")[0]
    there = [PurePosixPath(source).is_relative_to(mount.path) for source in sources]
    here = [source for source in sources if (Path(source).expanduser() / MANIFEST).is_file()]
    here += [tokenizer] if Path(tokenizer).is_file() and not PurePosixPath(tokenizer).is_relative_to(mount.path) else []
    if here or (any(there) and not all(there)):
        wrong = [*here, *(source for source, is_there in zip(sources, there, strict=True) if not is_there)][0]
        raise UserError(
            f"{wrong} is only on this machine. Copy it into {mount.source} and give its path on the cloud machines, "
            f"{mount.path}/…; or give a text source, which is prepared on this machine and copied."
        )
    return all(there)


GKE_ACCELERATORS = {
    "v4": "tpu-v4-podslice",
    "v5e": "tpu-v5-lite-podslice",
    "v5p": "tpu-v5p-slice",
    "v6e": "tpu-v6e-slice",
    "tpu7x": "tpu7x",
}
"""Values of the node label ``cloud.google.com/gke-tpu-accelerator`` (documentation of GKE, "Plan TPUs in GKE")."""

_CORES_IN_NAME = ("v4", "v5p", "tpu7x")
"""Chips for which Cloud TPU's names count TensorCores, two per chip."""


def run(command: Sequence[str], refused: str, given: str | None = None) -> str:
    """Run a service's command and return its output.

    Raises:
      UserError: the command fails; the message begins with ``refused``.
    """
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = " ".join(done.stderr.split())[-500:].rstrip(".")
        raise UserError(f"{refused}: {reason}. Correct the cause, and run the command again.")
    return done.stdout


def chips_per_host(topology: Topology) -> int:
    """Return the number of chips per machine: four, except for single-machine slices with one chip or, on a 2D torus,
    eight.
    """
    alone = (1, 4, 8) if len(topology.shape) == 2 else (4,)
    return topology.chips_of_slice if topology.chips_of_slice in alone else 4


def rentable(chip: str) -> list[Topology]:
    """Return the available slices in ascending size. Slices consist of whole machines."""
    every = [Topology(chip, shape) for shape in slices(chip)]
    return [one for one in every if one.chips % chips_per_host(one) == 0]


def cloud_tpu_type(topology: Topology) -> str:
    """Return Cloud TPU's name for a slice size: ``v5p-128`` has 64 chips, ``v5litepod-16`` has 16."""
    if topology.chip_name in _CORES_IN_NAME:
        return f"{topology.chip_name}-{2 * topology.chips_of_slice}"
    return f"{'v5litepod' if topology.chip_name == 'v5e' else topology.chip_name}-{topology.chips_of_slice}"


def xla_environment(training: Training, topology: Topology) -> dict[str, str]:
    """Return the environment variable, keyed by its name, with the chip's XLA options for all programs except the
    training step.
    """
    options = options_of(topology.chip_name, training.recipe.runtime)
    return {"LIBTPU_INIT_ARGS": " ".join(f"--{name}={value}" for name, value in options.items())} if options else {}


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def as_yaml(documents: Sequence[Any]) -> str:
    """Return several documents as one YAML file."""
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=120)
