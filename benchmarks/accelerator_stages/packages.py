"""Which packages this Python lacks, and how to bring them to a machine without network. Imports no JAX."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

USED_IF_THERE = {
    "tokamax": "grouped products on NVIDIA GPUs",
    "numba": "kernels of the CPU",
    "torch": "Hugging Face's side",
    "transformers": "Hugging Face's side",
}
"""Packages that some cases need, and which."""


def version(package: str) -> str | None:
    """The installed version, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def required(pyproject: Path) -> list[str]:
    """Names of the packages that moejax requires."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    return [re.split(r"[<>=!~;\[ ]", requirement)[0] for requirement in project["dependencies"]]


def missing(pyproject: Path) -> list[str]:
    """Required packages, and those that some cases need, that are not installed."""
    return [name for name in (*required(pyproject), *USED_IF_THERE) if version(name) is None]


def advice(lacking: Iterable[str]) -> str:
    """What is missing, and the commands that bring it."""
    lacking = list(lacking)
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    if not lacking:
        return f"Python {python}: every package is here."
    optional = "; ".join(f"{name} for {USED_IF_THERE[name]}" for name in lacking if name in USED_IF_THERE)
    names = " ".join(name for name in lacking if name not in ("torch", "transformers"))
    return "\n".join(
        [
            f"Python {python} lacks {', '.join(lacking)}{f' ({optional})' if optional else ''}.",
            "Cases that need them are left out. To bring them, where there is a network:",
            f"  pip download --only-binary=:all: --no-deps --python-version {python} --implementation cp "
            f"--platform manylinux_2_28_{platform.machine()} --platform manylinux2014_{platform.machine()} "
            f"-d wheels {names}",
            "and here:",
            "  pip install --no-index --no-deps --target site wheels/*.whl; export PYTHONPATH=site",
        ]
    )
