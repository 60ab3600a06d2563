"""``moejax plan`` on the command line: tables, JSON, and mistakes as sentences."""

import functools
import json
from dataclasses import replace
from pathlib import Path

import pytest

from moejax.__main__ import main
from moejax.cli.config_file import load
from moejax.plan import process
from moejax.plan.plan import check_plan, measure, mesh_sizes
from moejax.plan.topology import parse
from moejax.train.training import Training

TINY = Path(__file__).parent.parent.parent / "configs" / "tiny.py"


def run(*words):
    return main(["plan", f"--config={TINY}", "--config.recipe.batch_tokens=4096", *words])


@functools.cache
def compiled():
    return measure(load(Training, str(TINY), ["--config.recipe.batch_tokens=4096"]), parse("cpu:8"))


def planned(training, topology, text_to=""):
    """A plan without a compilation of its own: what is asked for, with the measures of one that was compiled."""
    check_plan(training, topology)
    recipe, mesh = training.recipe, mesh_sizes(training, topology)
    return replace(compiled(), mesh=mesh, remat=recipe.runtime.remat, microbatches=recipe.microbatches)


@pytest.fixture(autouse=True)
def one_compilation(monkeypatch):
    monkeypatch.setattr(process, "plan", planned)


def test_a_plan_is_tables_and_json(capsys, tmp_path):
    words = ["--topology", "cpu:8", "--mesh", "fsdp=2,expert=2,tensor=2", "--remat", "full", "--out", str(tmp_path)]
    assert run(*words) == 0
    said = capsys.readouterr().out
    for part in ("tiny on cpu:8: 8 chips, fsdp=2 expert=2 tensor=2", "optimizer state", "all-reduce", "remat full"):
        assert part in said
    assert run(*words, "--json") == 0
    data = json.loads(capsys.readouterr().out)
    assert data["memory"]["total"] > data["memory"]["parameters"] > 0
    assert {"kind", "axes", "bytes_sent"} <= set(data["communication"][0])
    assert json.loads((tmp_path / "plan.json").read_text())["mesh"] == {"data": 1, "fsdp": 2, "expert": 2, "tensor": 2}


def test_an_estimated_search_compiles_nothing(capsys, monkeypatch):
    monkeypatch.setattr(process, "plan", None)
    words = ["--topology", "v5e:4x4", "--search", "--estimate"]
    assert run(*words) == 0
    said = capsys.readouterr().out
    assert "estimated candidates" in said
    assert "the config's" in said
    assert run(*words, "--price", "2", "--json") == 0
    data = json.loads(capsys.readouterr().out)
    assert data["step_seconds"] <= min(one["step_seconds"] for one in data["others"])
    assert data["cost"] > 0
    assert run("--topology", "cpu:8", "--search", "--estimate") == 0
    assert "the number of microbatches" in " ".join(capsys.readouterr().out.split())
    assert run(*words, "--compile", "2") == 2
    assert "exclude each other" in capsys.readouterr().err


def test_a_search_ranks_what_it_compiled(capsys):
    assert run("--topology", "cpu:8", "--mesh", "fsdp=8", "--search", "--compile", "2", "--json") == 0
    data = json.loads(capsys.readouterr().out)
    assert len(data["others"]) == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--topology", "v5e:3x4"], "There is no slice v5e:3x4"),
        # Before libtpu is asked for.
        (["--topology", "v5e:4x4", "--mesh", "fsdp=3"], "which does not fit 16 devices"),
        (["--topology", "cpu:8", "--mesh", "experts=8"], "did you mean expert"),
        (["--topology", "cpu:8", "--mesh", "expert"], "has no size; write expert=8"),
        (["--topology", "cpu:8", "--remat", "some"], "choose from none, dots, full"),
        (["--topology", "cpu:8", "--mesh", "expert=²"], "has no size; write expert=8"),
        (["--topology", "cpu:8", "--mesh", "expert=--1"], "has no size; write expert=8"),
        (["--topology", "cpu:8", "--mesh", "expert=4,expert=2"], "names expert twice; give each axis one size"),
        (["--topology", "cpu:8", "--mesh", ""], "--mesh axis ''"),
        (["--topology", "cpu:8", "--remat", ""], "choose from none, dots, full"),
        (["--topology", "cpu:8", "--remat", "attn_out+attn_out"], "contains a name twice"),
        (["--topology", "cpu:2", "--price", "2"], "moejax does not estimate for cpu:2"),
    ],
)
def test_a_mistake_is_a_sentence(capsys, words, sentence):
    assert run(*words) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert "Traceback" not in said


def test_a_mesh_that_is_named_leaves_how_many_slices_there_are(capsys):
    words = ["--topology", "cpu:8", "--config.recipe.mesh.dcn_data=2"]
    assert run(*words, "--mesh", "fsdp=2,expert=2", "--json") == 0
    assert json.loads(capsys.readouterr().out)["mesh"] == {"data": 2, "fsdp": 2, "expert": 2, "tensor": 1}
    assert run(*words, "--mesh", "fsdp=2,expert=4") == 2
    assert "does not fit" in capsys.readouterr().err


def test_what_does_not_fit_says_by_how_much_and_what_does(capsys, monkeypatch):
    def tight(training, topology, text_to=""):
        plan = planned(training, topology)
        fits = training.recipe.microbatches > 1 or training.recipe.runtime.remat == "full"
        memory = replace(plan.memory, limit=plan.memory.total * 2 if fits else plan.memory.total // 2)
        return replace(plan, memory=memory, does_not_fit="" if fits else "Used 2G of 1G")

    monkeypatch.setattr(process, "plan", tight)
    assert run("--topology", "cpu:8", "--mesh", "fsdp=8", "--config.recipe.batch_tokens=8192") == 2
    said = capsys.readouterr().err
    assert "tiny does not fit cpu:8: it needs" in said
    assert "more than the" in said
    assert said.count("--mesh") == 3


def test_an_estimate_needs_no_compiler(capsys, monkeypatch):
    monkeypatch.setattr("moejax.plan.topology.importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(process, "plan", lambda *_, **__: pytest.fail("something was compiled"))
    words = ["--topology", "v5e:2x4", "--mesh", "fsdp=4,expert=2", "--estimate"]
    assert run(*words, "--price", "2") == 0
    said = capsys.readouterr().out
    for part in ("estimated memory of one chip", "optimizer state", "links along expert", "MFU", "at 2 an hour"):
        assert part in said
    assert run(*words, "--json") == 0
    data = json.loads(capsys.readouterr().out)
    memory = data["memory"]
    assert memory.pop("total") == pytest.approx(sum(memory.values()))
    assert data["step_seconds"] > data["roofline"]["compute_seconds"] > 0
    assert run("--topology", "cpu:8", "--estimate") == 0
    assert "roofline" not in capsys.readouterr().out
