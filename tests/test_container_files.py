"""What the container files of ``launch/`` take from the repository is there, and what they install is offered."""

import re
import shlex
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from string import Template

import pytest

CONTAINERS = sorted(Path("launch").glob("*.Dockerfile"))
EXTRAS = {"cpu": ["cpu", "slurm"], "gpu": ["cuda13"], "tpu": ["tpu"]}
"""What each kind of machine needs beside the dependencies of all."""


@pytest.fixture(params=CONTAINERS, ids=lambda path: path.stem)
def container(request):
    return request.param


def instructions(path):
    """Instructions and their words, in their order."""
    lines = path.read_text().replace("\\\n", " ").splitlines()
    return [tuple(line.split(maxsplit=1)) for line in lines if line.strip() and not line.startswith("#")]


def of(path, name):
    return [words for instruction, words in instructions(path) if instruction == name]


def installed(path):
    """The words of each ``pip install``, its arguments at their defaults."""
    defaults = dict(words.split("=") for words in of(path, "ARG"))
    runs = [shlex.split(Template(run).safe_substitute(defaults)) for run in of(path, "RUN")]
    return [words for words in runs if words[:2] == ["pip", "install"]]


def test_there_is_one_for_each_kind_of_machine():
    assert [path.stem for path in CONTAINERS] == sorted(EXTRAS)


def test_what_is_copied_is_there_and_not_ignored(container):
    ignored = Path(".dockerignore").read_text().split()
    for words in of(container, "COPY"):
        for source in shlex.split(words)[:-1]:
            assert Path(source).exists(), f"{container} copies {source}"
            assert not any(fnmatch(source, pattern) for pattern in ignored), f"{source} is in .dockerignore"


def test_the_package_can_be_built_from_what_is_copied_first(container):
    """Its dependencies are installed before its code is there."""
    names = [name for name, _ in instructions(container)]
    first = [words for name, words in instructions(container)[: names.index("RUN")] if name == "COPY"]
    copied = {source for words in first for source in shlex.split(words)[:-1]}
    described = tomllib.loads(Path("pyproject.toml").read_text())
    needed = {"pyproject.toml", described["project"]["readme"], described["tool"]["hatch"]["version"]["path"]}
    assert needed <= copied
    constraints = [words[words.index("-c") + 1] for words in installed(container) if "-c" in words]
    assert len(constraints) == 1
    assert Path(constraints[0]).parent.name in copied
    assert Path(constraints[0]).exists()


def test_the_extras_that_are_installed_are_offered(container):
    named = [names for words in installed(container) for names in re.findall(r"\.\[([\w,]+)\]", " ".join(words))]
    found = [extra for names in named for extra in names.split(",")]
    assert found == EXTRAS[container.stem]
    assert set(found) <= tomllib.loads(Path("pyproject.toml").read_text())["project"]["optional-dependencies"].keys()


def test_the_constraints_are_those_of_its_python(container):
    version = re.match(r"python:(\d+\.\d+)-", of(container, "FROM")[0])[1]
    assert any(f"constraints/python{version}.txt" in words for words in installed(container))


def test_it_is_started_as_engines_start_a_training(container):
    assert of(container, "ENTRYPOINT") == ['["python", "-m", "moejax"]']
