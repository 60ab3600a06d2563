"""Extras that a user installs together are pinned to versions that can be installed together."""

import re
import tomllib
from itertools import combinations
from pathlib import Path

import pytest

PYTHONS = sorted(Path("constraints").glob("python*.txt"))
TOGETHER = ("docs", "explore", "referees")
"""Beside one file of a Python's version; the engines have an environment of their own."""


def pins(path):
    return {
        re.sub(r"[-_.]+", "-", name).lower(): version
        for name, version in re.findall(r"^([\w.-]+)==(\S+)", path.read_text(), re.M)
    }


@pytest.mark.parametrize("python", PYTHONS, ids=lambda path: path.stem)
def test_no_package_is_pinned_at_two_versions(python):
    files = [pins(path) for path in (python, *(Path("constraints", f"{name}.txt") for name in TOGETHER))]
    for one, other in combinations(files, 2):
        assert {name: one[name] for name in one.keys() & other.keys()} == {
            name: other[name] for name in one.keys() & other.keys()
        }


@pytest.mark.parametrize("python", PYTHONS, ids=lambda path: path.stem)
def test_what_is_installed_with_the_kernels_of_a_cpu_is_pinned(python):
    named = tomllib.loads(Path("pyproject.toml").read_text())["project"]["optional-dependencies"]["cpu"]
    assert pins(python).keys() >= {re.match(r"[\w-]+", name)[0] for name in named} | {"llvmlite"}
