"""List missing packages, and the commands that copy them to a machine without network. Imports no JAX."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement

USED_IF_THERE = {
    "tokamax": "grouped products on NVIDIA GPUs",
    "torch": "Hugging Face's side",
    "transformers": "Hugging Face's side",
}
"""Optional packages, with the cases that need them."""


def version(package: str) -> str | None:
    """Return the installed version, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def required(pyproject: Path) -> list[Requirement]:
    """Return the requirements of moejax."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    return [one for text in project["dependencies"] if _applies(one := Requirement(text))]


def used_if_there(pyproject: Path) -> list[Requirement]:
    """Return the optional packages in the versions that moejax's extras require."""
    extras = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    asked = {one.name: one for texts in extras.values() for one in map(Requirement, texts) if _applies(one)}
    return [asked.get(name, Requirement(name)) for name in USED_IF_THERE]


def missing(pyproject: Path) -> list[str]:
    """Return missing or outdated packages among moejax's direct and indirect requirements and the optional packages.
    Requirements of a missing package are unknown until it is installed.
    """
    found: dict[str, str] = {}
    waiting = [*required(pyproject), *used_if_there(pyproject)]
    seen: set[str] = set()
    while waiting:
        one = waiting.pop(0)
        there = version(one.name)
        if there is None or not one.specifier.contains(there, prereleases=True):
            found.setdefault(_plain(one.name), f"{one.name}{one.specifier}")
        elif _plain(one.name) not in seen:
            seen.add(_plain(one.name))
            behind = map(Requirement, importlib.metadata.requires(one.name) or ())
            waiting += [another for another in behind if _applies(another)]
    return list(found.values())


def _applies(requirement: Requirement) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": ""})


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def advice(lacking: Iterable[str]) -> str:
    """Return sentences with the missing packages and the commands that fetch them."""
    lacking = list(lacking)
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    if not lacking:
        return f"Python {python}: every package is installed."
    of = {name: Requirement(name).name for name in lacking}
    optional = "; ".join(
        f"{of[name]} is for {USED_IF_THERE[of[name]]}" for name in lacking if of[name] in USED_IF_THERE
    )
    names = " ".join(f"'{name}'" for name in lacking if name not in ("torch", "transformers"))
    systems = " ".join(f"--platform {kind}_{platform.machine()}" for kind in ("manylinux_2_28", "manylinux2014"))
    says = f"Python {python} lacks {', '.join(lacking)}{f' ({optional})' if optional else ''}."
    if not names:
        return f"{says} Cases that need them are left out."
    return "\n".join(
        [
            says,
            "Cases that need them are left out or fail. On a machine with network, fetch them:",
            f"  pip download --no-deps --only-binary=:all: --python-version {python} {systems} -d wheels {names}",
            "Here, install them, and run this again, since they may have further requirements:",
            "  pip install --no-index --no-deps --target site wheels/*.whl; export PYTHONPATH=$PWD/site",
        ]
    )
