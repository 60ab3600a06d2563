"""Imports point down the layers, and ``import moejax`` is instant."""

import ast
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "moejax"

BASE = {"architecture", "config", "folder", "minimise", "quantities", "run_table", "target", "wording", "__init__"}
MAY_IMPORT = {
    **dict.fromkeys(BASE, BASE),
    "native": {"native"} | BASE,
    "routing": {"routing", "native"} | BASE,
    "laws": {"laws"} | BASE,
    "model": {"model", "routing", "native"} | BASE,
    "weights": {"weights", "model", "routing"} | BASE,
    "huggingface": {"huggingface", "weights", "model", "routing"} | BASE,
    "evaluation": {"evaluation", "weights", "data", "model", "routing"} | BASE,
    "fit": {"fit", "laws"} | BASE,
    "design": {"design", "laws"} | BASE,
    "next": {"next", "fit", "design", "laws"} | BASE,
    "data": {"data"} | BASE,
    "train": {"train", "data", "weights", "model", "routing", "laws", "native"} | BASE,
    "plan": {"plan", "train", "data", "model", "laws"} | BASE,
    "study": {"study", "plan", "train", "data", "fit", "laws", "model"} | BASE,
    "report": {"report", "reproduce", "plan", "study", "train", "fit", "design", "laws"} | BASE,
    "reproduce": {"reproduce", "fit", "model", "laws"} | BASE,
    "cli": {
        "cli",
        "report",
        "reproduce",
        "plan",
        "study",
        "train",
        "huggingface",
        "evaluation",
        "weights",
        "data",
        "design",
    }
    | {"next", "fit", "model", "routing", "laws"}
    | BASE,
    "__main__": {"cli"} | BASE,
}
"""The parts of moejax that each part may import: docs/architecture.md as a table."""

ONLY_IN = {
    "jaxopt": {"minimise.py"},
    "flax": {"model"},
    "ml_collections": {"cli"},
    "orbax": {"train"},
    "tensorstore": {"train"},
    "grain": {"data", "train"},
    "tokenizers": {"data"},
    "array_record": {"data"},
    "datasets": {"data"},
    "lm_eval": {"evaluation"},
    "fsspec": {"study"},
    "submitit": {"study"},
    "yaml": {"study"},
    "optax": {"train"},
    "matplotlib": {"report"},
    "jinja2": {"report"},
    "PIL": {"report"},
    "marimo": {"report"},
    "uvicorn": {"report"},
    "numba": {"native", "*_native.py"},
    "llvmlite": {"native"},
}
"""Where a library may be imported: a part, or files of any part by their names."""

FILES = sorted(ROOT.rglob("*.py"))


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_imports_point_down(path):
    part = path.relative_to(ROOT).parts[0].removesuffix(".py")
    allowed = MAY_IMPORT[part]
    for name in imports(path):
        words = name.split(".")
        if words[0] == "moejax" and len(words) > 1 and not words[1].startswith("_"):
            assert words[1] in allowed, f"{part} may not import moejax.{words[1]}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_libraries_are_imported_only_where_they_belong(path):
    part = path.relative_to(ROOT).parts[0]
    for name in imports(path):
        places = ONLY_IN.get(name.split(".")[0])
        belongs = places is None or part in places or any(fnmatch(path.name, place) for place in places)
        assert belongs, f"{name} is imported in {part}; it belongs in {places}"


def test_every_part_has_its_row_in_the_table():
    parts = {path.relative_to(ROOT).parts[0].removesuffix(".py") for path in FILES}
    assert parts <= set(MAY_IMPORT)


def test_import_moejax_imports_nothing_else():
    code = "import sys; before = set(sys.modules); import moejax; print(len(set(sys.modules) - before))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(found.stdout) <= 1


def test_help_imports_no_jax():
    code = "import sys; from moejax.__main__ import main; main(['--help']); sys.exit('jax' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
