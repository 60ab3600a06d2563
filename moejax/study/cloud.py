"""Shared by engines of a cloud: a study's folder mounted at a path, TPU slices by their services' names, what XLA is
told for them, YAML."""

from __future__ import annotations

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
from moejax.train.training import Training
from moejax.train.xla_options import as_flags, options_of


@dataclass(frozen=True)
class Mount:
    """What is mounted where."""

    source: str
    """``gs://BUCKET``, or the name of a volume claim of Kubernetes."""
    path: PurePosixPath
    """Where every machine finds it."""

    @property
    def bucket(self) -> str | None:
        """Its name, if it is one."""
        return self.source.partition("://")[2] if "://" in self.source else None


def mounted(out: str) -> tuple[Mount, PurePosixPath]:
    """The mount for a folder in an object store, and the folder as machines see it: ``gs://b/zhao`` is ``/b/zhao``.

    Raises:
      UserError: it is a folder of this machine.
    """
    protocol, separator, rest = out.partition("://")
    bucket, _, folder = rest.strip("/").partition("/")
    if not separator or not bucket or protocol == "file":
        raise UserError(f"--out is {out}; machines of a cloud see a bucket, such as gs://BUCKET/STUDY.")
    path = PurePosixPath("/", bucket)
    return Mount(f"{protocol}://{bucket}", path), path / folder


def holds_corpus(mount: Mount, data: DataConfig) -> bool:
    """Whether a corpus lies in what is mounted, and not on this machine, where it would have to be prepared.

    Raises:
      UserError: machines that see the mount alone would not find a part of it.
    """
    sources = [part.source for part in data.parts] or [data.source]
    tokenizer = (data.tokenizer or "").partition("#")[0]
    there = [PurePosixPath(source).is_relative_to(mount.path) for source in sources]
    here = [source for source in sources if (Path(source).expanduser() / MANIFEST).is_file()]
    here += [tokenizer] if Path(tokenizer).is_file() and not PurePosixPath(tokenizer).is_relative_to(mount.path) else []
    if here or (any(there) and not all(there)):
        wrong = [*here, *(source for source, is_there in zip(sources, there, strict=True) if not is_there)][0]
        raise UserError(
            f"{wrong} is on this machine alone; copy it into {mount.source} and name it as all machines see it, "
            f"{mount.path}/…, or give text, which is prepared here and copied."
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
"""Cloud TPU's names of these count TensorCores, of which a chip has two."""


def run(command: Sequence[str], refused: str, given: str | None = None) -> str:
    """What a service's command prints.

    Raises:
      UserError: it fails; ``refused`` begins the sentence.
    """
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"{refused}: {' '.join(done.stderr.split())[-500:]}")
    return done.stdout


def chips_per_host(topology: Topology) -> int:
    """Chips of each machine: four, or all of a slice of one machine with one or, flat, eight."""
    alone = (1, 4, 8) if len(topology.shape) == 2 else (4,)
    return topology.chips_of_slice if topology.chips_of_slice in alone else 4


def rentable(chip: str) -> list[Topology]:
    """Slices that can be rented, from small to large: whole machines."""
    every = [Topology(chip, shape) for shape in slices(chip)]
    return [one for one in every if one.chips % chips_per_host(one) == 0]


def cloud_tpu_type(topology: Topology) -> str:
    """Cloud TPU's name of a slice's size: ``v5p-128`` has 64 chips, ``v5litepod-16`` has 16."""
    if topology.chip_name in _CORES_IN_NAME:
        return f"{topology.chip_name}-{2 * topology.chips_of_slice}"
    return f"{'v5litepod' if topology.chip_name == 'v5e' else topology.chip_name}-{topology.chips_of_slice}"


def xla_environment(training: Training, topology: Topology) -> dict[str, str]:
    """The variable with XLA's options for the chip, for all that the machines compile beside the step."""
    flags = as_flags(options_of(topology.chip_name, training.recipe.runtime))
    return {"LIBTPU_INIT_ARGS": flags} if flags else {}


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def as_yaml(documents: Sequence[Any]) -> str:
    """One file of several documents."""
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=120)
