"""The Python of pages about deciding runs as it stands, block after block, and prints the numbers beside it."""

import ast
import contextlib
import io
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from moejax.laws.dense.chinchilla import HOFFMANN_2022
from moejax.laws.design import Design
from moejax.laws.mixtures.effective_params import CHAPTER_002

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SAID = re.compile(r"^print\(.*?\)  # (-?[\d.]+)", re.MULTILINE)


def table(page):
    """Twenty runs of a law: the reader's ``runs.csv``. On the page ``notebook``, half of them are MoE models."""
    active, tokens = (a.ravel() for a in np.meshgrid(np.geomspace(1e8, 1e9, 5), np.geomspace(2e9, 4e10, 4)))
    sizes, law = {"params_active": active}, HOFFMANN_2022
    if page == "notebook":
        sizes["params_total"], law = active * np.where(np.arange(len(active)) % 2, 8.0, 1.0), CHAPTER_002
    exact = np.asarray(law(Design(**sizes, tokens=tokens)))
    noise = np.exp(0.003 * np.random.default_rng(0).normal(size=len(exact)))
    return pd.DataFrame({**sizes, "tokens": tokens, "loss": exact * noise})


@pytest.mark.docs
@pytest.mark.parametrize("page", sorted(Path("docs").glob("*.md")), ids=lambda page: page.stem)
def test_what_the_python_of_a_page_imports_exists(page):
    for text in BLOCK.findall(page.read_text()):
        for statement in ast.parse(text).body:
            if isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith("moejax"):
                exec(compile(ast.Module([statement], []), page.name, "exec"), {})


@pytest.mark.slow
@pytest.mark.parametrize("page", ["next", "notebook"])
def test_the_python_of_a_page_runs_and_prints_what_stands_beside_it(page, tmp_path, monkeypatch):
    blocks = BLOCK.findall(Path(f"docs/{page}.md").read_text())
    assert blocks
    monkeypatch.chdir(tmp_path)
    table(page).to_csv("runs.csv", index=False)
    names: dict = {}
    for text in blocks:
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(compile(text, page, "exec"), names)
        assert said.getvalue().strip()
        for number in SAID.findall(text):
            assert any(line.startswith(number[:-1]) for line in said.getvalue().splitlines()), number
