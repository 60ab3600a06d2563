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

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SAID = re.compile(r"^print\(.*?\)  # (-?[\d.]+)", re.MULTILINE)


def table():
    """Twenty runs whose losses a law gives: the reader's ``runs.csv``."""
    active, tokens = (a.ravel() for a in np.meshgrid(np.geomspace(1e8, 1e9, 5), np.geomspace(2e9, 4e10, 4)))
    exact = [float(HOFFMANN_2022(Design(params_active=n, tokens=d))) for n, d in zip(active, tokens, strict=True)]
    noise = np.exp(0.003 * np.random.default_rng(0).normal(size=len(exact)))
    return pd.DataFrame({"params_active": active, "tokens": tokens, "loss": np.asarray(exact) * noise})


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
    table().to_csv("runs.csv", index=False)
    names: dict = {}
    for text in blocks:
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(compile(text, page, "exec"), names)
        assert said.getvalue().strip()
        for number in SAID.findall(text):
            assert any(line.startswith(number[:-1]) for line in said.getvalue().splitlines()), number
