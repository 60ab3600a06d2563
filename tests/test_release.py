"""Files that a release needs agree with each other."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import moejax

PROJECT = tomllib.loads(Path("pyproject.toml").read_text())["project"]
WORKFLOWS = sorted(Path(".github/workflows").glob("*.yml"))


def test_the_citation_and_the_changelog_name_the_version():
    citation = yaml.safe_load(Path("CITATION.cff").read_text())
    assert citation["version"] == moejax.__version__
    assert citation["license"] == PROJECT["license"]
    assert citation["repository-code"] == PROJECT["urls"]["Repository"]
    assert f"## {moejax.__version__}" in Path("CHANGELOG.md").read_text()


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_calls_targets_of_the_makefile_and_nothing_else(workflow):
    targets = set(re.findall(r"^([a-z-]+):", Path("Makefile").read_text(), re.M))
    jobs = yaml.safe_load(workflow.read_text())["jobs"]
    called = [step["run"].split() for job in jobs.values() for step in job["steps"] if "run" in step]
    assert called
    assert all(words[0] == "make" and words[1] in targets for words in called)


def test_every_python_of_the_classifiers_has_constraints_and_is_tested():
    named = {words[-1] for words in (one.split(" :: ") for one in PROJECT["classifiers"]) if "3." in words[-1]}
    assert named == {path.stem.removeprefix("python") for path in Path("constraints").glob("python*.txt")}
    job = yaml.safe_load(Path(".github/workflows/test.yml").read_text())["jobs"]["test"]
    assert named == set(job["strategy"]["matrix"]["python"])
