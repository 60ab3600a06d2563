"""Extras that a user installs together are pinned to versions that can be installed together."""

import re
import shutil
import subprocess
import tomllib
from itertools import combinations
from pathlib import Path

import pytest

PYTHONS = sorted(Path("constraints").glob("python*.txt"))
TOGETHER = ("docs", "browser", "notebooks", "parity")
"""Beside one file of a Python's version; the engines have an environment of their own."""
EXTRAS = tomllib.loads(Path("pyproject.toml").read_text())["project"]["optional-dependencies"]
PARITY = [
    "torch",
    "transformers",
    "accelerate",
    "lm-eval",
    "tokamax",
    "wandb",
    "mlflow-skinny",
    "sqlalchemy",
    "alembic",
]
"""What the Makefile installs beside the extra dev, to compare with."""


def resolves(python, extras, packages=(), constraints=()):
    """Let uv choose versions for Linux on x86-64, with the constraints of one Python and more of them."""
    requirements = "\n".join(["."] + [f".[{extra}]" for extra in extras] + list(packages))
    files = [python, *(Path("constraints", f"{name}.txt") for name in constraints)]
    command = ["uv", "pip", "compile", "--quiet", "-", "--python-platform", "x86_64-manylinux_2_31", "--python-version"]
    command += [python.stem.removeprefix("python"), *(word for file in files for word in ("-c", str(file)))]
    done = subprocess.run(command, input=requirements, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return dict(re.findall(r"^([\w.-]+)==(\S+)", done.stdout, re.M))


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


def test_the_makefile_installs_what_parity_is_resolved_with():
    assert f"{' '.join(PARITY)} -c" in Path("Makefile").read_text()


@pytest.mark.parametrize("is_editable", [True, False])
def test_make_installs_again_what_a_copy_has_replaced(tmp_path, is_editable):
    (tmp_path / ".installed").touch()
    if is_editable:
        site = tmp_path / "lib" / "python3.11" / "site-packages"
        site.mkdir(parents=True)
        (site / "_moejax.pth").touch()
    command = ["make", "--dry-run", f"VENV={tmp_path}", f"{tmp_path}/.installed"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert ("pip install" in said) == (not is_editable)


def test_pages_install_a_checkout_editable():
    pages = [Path("README.md"), *Path("docs").glob("*.md")]
    lines = [line for page in pages if page.name != "log.md" for line in page.read_text().splitlines()]
    assert not [line for line in lines if re.search(r"pip install '?\.", line)]


@pytest.mark.resolve
@pytest.mark.parametrize("python", PYTHONS, ids=lambda path: path.stem)
class TestResolving:
    """Whether one installation can hold what a user asks for, with our constraints."""

    @pytest.fixture(autouse=True)
    def needs_uv(self):
        if shutil.which("uv") is None:
            pytest.skip("uv is not on the path: make resolve")

    @pytest.mark.parametrize("extra", EXTRAS)
    def test_every_extra_resolves_with_the_newest_jax_of_the_constraints(self, python, extra):
        assert resolves(python, [extra])["jax"] == pins(python)["jax"]

    def test_a_tpu_and_plans_for_it_resolve_with_everything_but_a_gpu(self, python):
        chosen = resolves(python, [extra for extra in EXTRAS if extra != "cuda13"], PARITY, TOGETHER)
        assert chosen["libtpu"] == resolves(python, ["plan"])["libtpu"]

    def test_a_gpu_resolves_with_what_trains(self, python):
        programs = resolves(python, ["dev", "cuda13"], constraints=("cuda", "parity"))
        assert programs["jax-cuda13-plugin"] == programs["jax"]
        chosen = resolves(python, ["cuda13", "cpu", "hf", "tensorboard", "wandb", "slurm", "eval"])
        assert chosen["jax-cuda13-plugin"] == chosen["jax"]
