"""Imports point down the layers, and ``import moejax`` is instant."""

import ast
import graphlib
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from moejax.cli import COMMANDS, command_module
from moejax.cli.options import Command

ROOT = Path(__file__).parent.parent / "moejax"

BASE = {
    "architecture",
    "callable_module",
    "compilation_cache",
    "config",
    "errors",
    "float64",
    "folder",
    "input_file",
    "interval",
    "json_text",
    "minimize",
    "pytree",
    "quantities",
    "ranges",
    "result",
    "say",
    "run_sources",
    "run_table",
    "sharding",
    "storage",
    "stored",
    "table_file",
    "plugins",
    "wording",
    "__init__",
}
MAY_IMPORT = {
    **dict.fromkeys(BASE, BASE),
    "kernels": {"kernels"} | BASE,
    "routing": {"routing", "kernels"} | BASE,
    "laws": {"laws"} | BASE,
    "model": {"model", "routing", "kernels"} | BASE,
    "weights": {"weights", "model", "routing"} | BASE,
    "huggingface": {"huggingface", "weights", "model", "routing"} | BASE,
    "evaluation": {"evaluation", "huggingface", "train", "weights", "data", "model", "routing", "kernels"} | BASE,
    "fit": {"fit", "laws"} | BASE,
    "curves": {"curves", "fit", "laws"} | BASE,
    "design": {"design", "laws"} | BASE,
    "experimental_design": {"experimental_design", "fit", "design", "laws"} | BASE,
    "data": {"data"} | BASE,
    "train": {"train", "data", "weights", "model", "routing", "laws", "kernels"} | BASE,
    "plan": {"plan", "design", "train", "data", "model", "kernels", "laws"} | BASE,
    "study": {"study", "plan", "evaluation", "train", "data", "curves", "fit", "laws", "model", "weights"} | BASE,
    "report": {"report", "experimental_design", "plan", "study", "train", "curves", "fit", "design", "laws"} | BASE,
    "explorer": {"explorer", "fit", "design", "laws"} | BASE,
    "papers": {"papers", "report", "evaluation", "fit", "model", "data", "laws"} | BASE,
    "cli": {
        "cli",
        "report",
        "explorer",
        "reference",
        "papers",
        "plan",
        "study",
        "train",
        "huggingface",
        "evaluation",
        "weights",
        "data",
        "design",
    }
    | {"experimental_design", "curves", "fit", "model", "routing", "laws"}
    | BASE,
    "api": {"api", "papers", "report", "design", "experimental_design", "plan", "study", "train", "fit", "laws"} | BASE,
    "reference": {"reference", "papers", "report", "study", "train", "laws"} | BASE,
    "__main__": {"cli"} | BASE,
}
"""The parts of moejax that each part may import: docs/architecture.md as a table."""

ONLY_IN = {
    "jaxopt": {"minimize.py"},
    "flax": {"model"},
    "ml_collections": {"cli"},
    "orbax": {"train"},
    "tensorstore": {"train"},
    "grain": {"data", "train"},
    "tokenizers": {"data"},
    "array_record": {"data"},
    "datasets": {"data", "run_sources"},
    "mlflow": {"run_sources"},
    "tensorboard": {"run_sources"},
    "lm_eval": {"evaluation"},
    "fsspec": {"data", "study", "storage.py"},
    "submitit": {"study"},
    "yaml": {"evaluation", "run_sources", "study"},
    "optax": {"train"},
    "matplotlib": {"report"},
    "jinja2": {"report"},
    "PIL": {"report"},
    "numba": {"kernels"},
    "llvmlite": {"kernels"},
    "tokamax": {"kernels"},
    "torch": {"modeling_moejax.py"},
    "transformers": {"modeling_moejax.py"},
}
"""Where a library may be imported: a part, or files of any part by their names."""

FILES = sorted(ROOT.rglob("*.py"))


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def module_at(path):
    """The module of a file below moejax."""
    return ".".join(("moejax", *path.with_suffix("").parts)).removesuffix(".__init__")


MODULES = {module_at(path.relative_to(ROOT)) for path in FILES}


def module_of(name):
    """The module of ours that an imported name is or is in; empty for others' names."""
    while name and name not in MODULES:
        name = name.rpartition(".")[0]
    return name


@pytest.fixture(scope="module")
def imported():
    """Every import of every file: the file below moejax, and the name."""
    return [(path.relative_to(ROOT), name) for path in FILES for name in imports(path)]


def test_imports_point_down(imported):
    wrong = []
    for path, name in imported:
        words = name.split(".")
        if words[0] == "moejax" and len(words) > 1 and not words[1].startswith("_"):
            part = path.parts[0].removesuffix(".py")
            if words[1] not in MAY_IMPORT[part]:
                wrong.append(f"{path} imports {name}, and {part} may not import moejax.{words[1]}")
    assert not wrong


def test_no_modules_import_each_other_in_a_circle(imported):
    """Imports inside functions and for type checkers alone count too."""
    below = {}
    for path, name in imported:
        if (module := module_of(name)) and module != module_at(path):
            below.setdefault(module_at(path), set()).add(module)
    try:
        graphlib.TopologicalSorter(below).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" is imported by ".join(error.args[1]))


def test_libraries_are_imported_only_where_they_belong(imported):
    wrong = []
    for path, name in imported:
        places = ONLY_IN.get(name.split(".")[0])
        if places is not None and path.parts[0] not in places and not any(fnmatch(path.name, one) for one in places):
            wrong.append(f"{path} imports {name}; it belongs in {places}")
    assert not wrong


def test_every_part_has_its_row_in_the_table():
    parts = {path.relative_to(ROOT).parts[0].removesuffix(".py") for path in FILES}
    assert parts <= set(MAY_IMPORT)


def test_every_module_that_names_shapes_is_checked_by_them():
    options = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["addopts"]
    *checked, _ = options.partition("--jaxtyping-packages=")[2].split()[0].split(",")
    for path in ROOT.rglob("*.py"):
        if "from jaxtyping import" in path.read_text(encoding="utf-8"):
            module = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
            assert any(f"{module}.".startswith(f"{one}.") for one in checked), module


def test_import_moejax_imports_nothing_else():
    code = "import sys; before = set(sys.modules); import moejax; print(len(set(sys.modules) - before))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(found.stdout) <= 1


PARSERS = """
import importlib, sys
from moejax.__main__ import main
from moejax.cli import COMMANDS
from moejax.cli.parser import parser_of
main(['--help'])
for name in COMMANDS:
    parser_of(name)
sys.exit(', '.join({'jax', 'numpy', 'pandas', 'matplotlib', 'ml_collections', 'rich'} & set(sys.modules)) or 0)
"""


def test_help_and_every_parser_import_no_jax():
    """A typing error is answered at once."""
    done = subprocess.run([sys.executable, "-c", PARSERS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_command_has_a_module_with_an_example():
    for name in COMMANDS:
        module = command_module(name)
        assert f"moejax {name}" in module.EXAMPLE
        assert any(key.split()[0] == name for key in Command.NAMES)
