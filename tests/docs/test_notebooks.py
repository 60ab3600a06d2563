"""The notebooks run, what their stored outputs state still holds, and the README opens them in Colab."""

import copy
import json
import os
import re
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

NOTEBOOKS = sorted(Path("notebooks").glob("*.ipynb"))
REPOSITORY = tomllib.loads(Path("pyproject.toml").read_text())["project"]["urls"]["Repository"]
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
LARGEST_BYTES = 300_000
VARIES = "varies"
"""Tag of a cell whose output depends on the machine: times, speeds, the losses and texts of a training."""
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
UNSTABLE = re.compile(r"\d+\.\d+\.\d+[\w.+]*|\b[0-9a-f]{12,}\b|[─━-]{3,}")
"""Versions, hashes, and rules as wide as a table."""

pytestmark = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def code_cells(notebook):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


@pytest.mark.docs
def test_a_notebook_has_its_outputs_is_small_and_names_no_machine(path):
    text = path.read_text()
    assert len(text) <= LARGEST_BYTES
    assert not re.search(r"/(root|home|tmp|work|Users|usr)/|site-packages|T\d\d:\d\d", text)
    notebook = json.loads(text)
    assert notebook["metadata"] == METADATA
    first, *others = code_cells(notebook)
    assert f"git+{REPOSITORY}" in "".join(first["source"])
    assert [cell["execution_count"] for cell in (first, *others)] == list(range(1, 2 + len(others)))
    for cell in others:
        assert cell["metadata"] in ({}, {"tags": [VARIES]})
        for output in cell["outputs"]:
            assert output["output_type"] == "stream" or "".join(output["data"]["text/plain"])
        assert len(cell["source"]) <= 20
    assert sum(bool(cell["outputs"]) for cell in others) > len(others) / 2


@pytest.mark.docs
def test_a_notebook_opens_in_colab_from_the_readme(path):
    address = REPOSITORY.replace("https://github.com", "https://colab.research.google.com/github")
    assert f"({address}/blob/main/{path})" in Path("README.md").read_text()
    assert f"({REPOSITORY}/blob/main/{path})" in Path("docs/notebook.md").read_text()


def told(cell):
    """What a cell's outputs state, as words with gaps for numbers, and the numbers."""
    streams = {"stdout": "", "stderr": ""}
    for output in cell["outputs"]:
        if output["output_type"] == "stream":
            streams[output["name"]] += output["text"]
        else:
            streams["stdout"] += output["data"]["text/plain"] + "\n"
    text = UNSTABLE.sub("", "\n".join(streams.values()))
    numbers = [float(number.replace(",", "")) for number in NUMBER.findall(text)]
    return NUMBER.sub("#", text).split(), numbers


@pytest.mark.notebooks
@pytest.mark.filterwarnings("default")
def test_a_notebook_runs_and_what_its_outputs_state_holds(path, tmp_path, monkeypatch):
    """``make notebooks WRITE=1`` stores the outputs instead."""
    import nbclient
    import nbformat

    # A user's kernel has no fake devices.
    monkeypatch.setenv("XLA_FLAGS", os.environ["MOEJAX_TEST_XLA_FLAGS"])
    monkeypatch.delenv("NPROC")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    stored = nbformat.read(path, as_version=4)
    fresh = copy.deepcopy(stored)
    nbclient.NotebookClient(
        fresh,
        kernel_name="python3",
        timeout=None,
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(tmp_path)}},
    ).execute()
    if os.environ.get("MOEJAX_WRITE_NOTEBOOKS"):
        fresh.metadata = nbformat.from_dict(METADATA)
        nbformat.write(fresh, path)
        return
    for old, new in zip(code_cells(stored), code_cells(fresh), strict=True):
        if VARIES in old["metadata"].get("tags", ()):
            assert bool(old["outputs"]) == bool(new["outputs"]), new["source"]
            continue
        (words, numbers), (now, found) = told(old), told(new)
        assert now == words, new["source"]
        np.testing.assert_allclose(found, numbers, rtol=0.02, atol=1e-3, err_msg=new["source"])
