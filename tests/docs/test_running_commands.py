"""Commands that pages, help texts and configs show are run, in a folder that has what they name.

What other tests run stands in ``ELSEWHERE``; commands of ``docs/laws`` and of the walkthroughs have tests of their own.
"""

import ast
import dataclasses
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from test_commands import code, commands

from moejax.__main__ import main
from moejax.cli import COMMANDS, command_module
from moejax.cli.config_file import load
from moejax.laws.design import Design
from moejax.laws.mixtures.effective_params import CHAPTER_002
from moejax.plan.topology import has_cuda_plugin
from moejax.routing.routers import ROUTERS
from moejax.study.outcomes import try_outcomes
from moejax.study.run import materialize
from moejax.study.study import Study
from moejax.wording import install_command

ROOT = Path.cwd()
SHOWN = {page.stem: commands(code(page)) for page in [Path("README.md"), *sorted(Path("docs").glob("*.md"))]}
SHOWN["help"] = [line for name in COMMANDS for line in commands(command_module(name).EXAMPLE)]
SHOWN["configs"] = [line for page in sorted(Path("configs").rglob("*.py")) for line in commands(code(page))]

ELSEWHERE = {
    r"^moejax curves": "cli/test_curves.py::test_a_table_is_fitted_held_out_asked_and_written",
    r"^moejax leverage V=1": "cli/test_leverage.py::test_a_column_of_a_formula_has_a_leverage_with_an_interval",
    r"^moejax eval": "parity/test_harness.py::ours",
    r"--submit --wait": "study/test_slurm.py::test_a_training_on_two_nodes_meets_through_slurms_variables",
    r"train --config=configs/moe_1b.py": "test_configs.py::"
    "test_the_config_to_train_is_rehearsed_on_its_mesh_with_smaller_sizes",
    r"train .*--processes": "train/test_processes.py::test_two_processes_train_what_one_does",
    r"mlflow.db": "parity/test_trackers_own_stores.py::"
    "test_runs_that_mlflow_logged_are_read_and_its_store_is_not_changed",
    r"prepare hf:": "data/test_hugging_face.py::test_a_data_set_is_read_from_the_files_it_is_kept_in",
    r"named_mixture=": "data/test_corpus.py::"
    "test_a_named_mixture_has_its_papers_weights_and_names_the_parts_that_are_absent",
    r"--recipe zhao": "fit/test_recipe_zhao.py::test_the_command_runs_the_whole_procedure",
    r"--recipe tian": "fit/test_recipe_tian.py::test_the_command_writes_fits_tables_and_figures",
    r"--recipe abnar": "papers/test_recipe_abnar.py::test_the_command_runs_the_whole_procedure_from_the_published_grid",
}
"""What runs a command, or its like, by a part of it: it needs an engine, other machines, an extra, the network or
minutes."""

COMPILED = r"plan .*--topology [vh]"
"""What needs libtpu or, for GPUs, JAX's CUDA plugin: without it, a command is run up to the compilation, and must name
the extra that has it."""

LESS = {
    r"data.source=PATH": ["--dry-run"],
    r"compare runs\.(parquet|csv --hold-out flops)": ["--laws", "chinchilla,effective_params"],
    COMPILED: [f"--config.architecture.{size}" for size in ("num_layers=4", "model_dim=256", "vocab_size=1024")],
    r"plan .*--search": ["--compile", "1"],
    r"^moejax explore": ["--no-browser"],
    r"config=(my_moe|continued/configs/mixtral_8x7b_v0_1).py": [
        "--config.recipe.budgets_tokens=16384",
        "--config.recipe.batch_tokens=4096",
        "--config.recipe.optimizer.warmup_tokens=4096",
        "--config.recipe.data.sequence_length=64",
    ],
    r"config=my_moe.py": [
        *(f"--config.architecture.{size}" for size in ("num_layers=2", "model_dim=64", "num_heads=4")),
        "--config.recipe.evaluate_tokens=8192",
        "--config.recipe.runtime.compute_dtype=float32",
    ],
    # Another page prepares the set of this config.
    r"mesh.fsdp=4 --config.recipe.mesh.expert=2": [
        "--cpu-devices=8",
        "--config.recipe.data.source=texts/",
        "--config.architecture.vocab_size=257",
    ],
    r"studies/staged.py": ["--config.recipe.budgets_tokens=32768,65536"],
    r"--config.vmap": ["--config.recipe.budgets_tokens=4096", "--config.recipe.optimizer.warmup_tokens=1024"],
}
"""What is added to a command that would take long, or a port that may be in use."""

INSTEAD = {"/shared/": "shared/", "gs://": "memory://", "s3://": "memory://s3-"}
"""Places here for those of others."""

FIRST: dict[str, str] = {}
for _source, _lines in SHOWN.items():
    for _line in _lines:
        FIRST.setdefault(_line, _source)


def run_here(source):
    """What is run of a source, in its order: what it shows first, and what leaves a folder for another line of it."""
    shown = list(dict.fromkeys(SHOWN[source]))
    used = [any(re.search(rf"{out}\b", other) for other in shown if other != line) for line, out in map(_out, shown)]
    lines = [line for line, needed in zip(shown, used, strict=True) if needed or FIRST[line] == source]
    return [line for line in lines if not any(re.search(part, line) for part in ELSEWHERE)]


def _out(line):
    """The folder that it writes; what is nowhere, if it writes none."""
    return line, re.escape(next(iter(re.findall(r"--out (\S+)", line)), "no folder"))


CONFIG = """
from ml_collections import ConfigDict
def get_config():
    shape = dict(vocab_size=257, model_dim=32, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=16)
    dense, mixture = shape | dict(dense_hidden=64), shape | dict(num_experts=4, top_k=2, expert_hidden=32)
    config = ConfigDict()
    config.name = "mine"
    {what}
    data = dict(source="web", sequence_length=64, validation_tokens=4096)
    config.recipe = dict(budgets_tokens={budgets}, batch_tokens=4096, data=data, optimizer=dict(warmup_tokens=8192))
    config.recipe.ema_decay = {ema}
    return config
"""
TITLED = re.compile(r"^```python title=\"([^\"]+)\"\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHOWN_FILES = {
    name: text
    for page in (Path("CONTRIBUTING.md"), *sorted(Path("docs").glob("*.md")))
    for name, text in TITLED.findall(page.read_text())
}
"""Configs that a page shows whole, by the name that it gives them."""
FILES = {
    **SHOWN_FILES,
    "dense.py": CONFIG.format(what="config.architecture = dense", budgets=[16_384], ema=0.0),
    "mixture.py": CONFIG.format(what="config.architecture = mixture", budgets=[65_536], ema=0.99),
    "FILE.py": CONFIG.format(
        what="config.models = dict(dense=dense, E4=mixture)", budgets=[262_144, 524_288, 1_048_576], ema=0.0
    ),
}
"""Configs of the reader's."""

PARTS = {"my_study.py": ("", ":tiny")}
"""Arguments that such a config takes."""

STAND_INS = {
    "sbatch": "echo Submitted batch job 7",
    "squeue": "",
    "srun": "",
    "kubectl": """case $1 in get) echo '{"items": []}';; apply) cat;; esac""",
    "sky": "",
}
"""Engines that take everything, and what they say."""


def runs():
    """72 runs of six active sizes, dense and with 8 and 64 times the parameters, whose losses a law gives."""
    size, factor, budget = np.meshgrid(
        np.geomspace(3e7, 2e10, 6), [1, 8, 64], np.geomspace(1e9, 3e10, 4), indexing="ij"
    )
    active, expansion, tokens = size.ravel(), factor.ravel(), budget.ravel()
    number = np.arange(len(active))
    loss = CHAPTER_002(Design(params_active=active, params_total=active * expansion, tokens=tokens))
    return pd.DataFrame(
        {
            "params_active": active,
            "params_total": active * expansion,
            "tokens": tokens,
            "flops": 6 * active * tokens,
            "num_experts": np.where(expansion > 1, 4 * expansion, 0),
            "top_k": np.where(expansion > 1, 1 + number % 3, 1),
            "num_shared_experts": np.where(expansion > 1, number % 2, 0),
            "router_type": np.where(expansion > 1, np.where(number % 3, "Top-K", "S-Base"), "dense"),
            "loss": np.asarray(loss) * np.exp(2e-3 * np.random.default_rng(0).normal(size=len(active))),
            "seed": 42,
            "seeds": 1 + number % 3,
            "run": number // 4,
        }
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a reader's files under the names that are shown."""
    folder = tmp_path_factory.mktemp("reader")
    (folder / "configs").symlink_to(ROOT / "configs")
    shutil.copy("configs/tiny.py", folder)
    # Machines of SkyPilot install what lies there.
    shutil.copy("pyproject.toml", folder)
    for name, text in FILES.items():
        (folder / name).write_text(text)
    _write_tables(folder)
    _write_texts(folder)
    (folder / "docs").mkdir()
    for name in ("errata.md", "gallery.md"):
        shutil.copy(ROOT / "docs" / name, folder / "docs")
    (folder / "bin").mkdir()
    for name, says in STAND_INS.items():
        (folder / "bin" / name).write_text(f"#!/bin/sh\n{says}\n")
        (folder / "bin" / name).chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(ROOT / "tests" / "report")
        patch.syspath_prepend(ROOT / "tests" / "cli")
        _write_studies(folder)
        _write_results(folder)
    return folder


def _write_tables(folder):
    table = runs()
    width = 64 * np.round(table["params_active"] ** 0.2)
    loss = table["loss"]
    sizes = table[["params_active", "params_total", "tokens", "flops", "loss", "seed", "run"]].assign(
        # Seven in ten tokens are of the web, and lose more; nine in a thousand assignments found no room.
        share_web=0.7,
        share_math=0.3,
        loss_web=1.1 * loss,
        loss_math=(1 - 0.77) / 0.3 * loss,
        params_active_served=0.991 * table["params_active"],
        error=0.85 - 2.08 * np.exp(-0.756 * loss),
    )
    sizes.to_parquet(folder / "runs.parquet", index=False)
    named = sizes.assign(N_a=table["params_active"], N=table["params_total"], variant=table["run"] % 2, lr=3e-4)
    for name, kept in {"runs": "run >= 0", "chinchilla": "run >= 0", "proxies": "run != 3"}.items():
        named.query(kept).to_csv(folder / f"{name}.csv", index=False)
    for name, kept in {
        "experts": "run >= 0",
        "mine": "run >= 0",
        "mixtures": "num_experts > 0",
        "dense": "num_experts == 0",
        "pilot": "run == 3",
    }.items():
        table.query(kept).assign(width=width).to_csv(folder / f"{name}.csv", index=False)
    noise = np.exp(2e-3 * np.random.default_rng(1).normal(size=len(table)))
    rate = 0.3 * table["params_active"] ** -0.1 * table["tokens"] ** 0.02 * width**-0.5 * noise
    tried = [sizes.assign(width=width, lr=rate * by, loss=sizes["loss"] + (by - 1) ** 2) for by in (0.5, 1, 2)]
    pd.concat(tried)[["params_active", "tokens", "width", "lr", "loss"]].to_csv(folder / "sweep.csv", index=False)
    accuracy = (0.25 + 0.7 / (1 + np.exp(3 * (table["loss"] - 2.5)))) * noise
    error = (0.85 - 2.1 * np.exp(-0.75 * table["loss"])) * noise
    sizes[["params_active", "tokens", "loss"]].assign(accuracy=accuracy, error=error).to_csv(
        folder / "scores.csv", index=False
    )
    # Seven sizes at each of four budgets.
    budget, ratio = np.meshgrid(np.geomspace(1e18, 1e20, 4), np.geomspace(0.25, 4, 7), indexing="ij")
    active = ratio.ravel() * 0.1 * budget.ravel() ** 0.5
    dense = Design(params_active=active, params_total=active, tokens=budget.ravel() / (6 * active))
    isoflops = pd.DataFrame({"flops": budget.ravel(), "budget": budget.ravel(), "tokens": dense.tokens})
    isoflops.assign(params_active=active, loss=np.asarray(CHAPTER_002(dense))).to_csv(
        folder / "isoflops.csv", index=False
    )
    theirs = table.assign(Na=table["params_active"], step=table["tokens"] / 520_000, val_loss=table["loss"])
    theirs[["Na", "step", "loss", "val_loss", "seed"]].to_csv(folder / "paper.csv", index=False)


def _write_texts(folder):
    """Enough for 32,768 tokens."""
    sources = sorted(Path(os.__file__).parent.glob("*.py"))
    for name in ("texts", "web", "shared/web"):
        (folder / name).mkdir(parents=True)
        for path in sources if name == "texts" else sources[:60]:
            shutil.copy(path, folder / name)
    lines = "".join(json.dumps({"content": path.read_text()}) + "\n" for path in sources[:60])
    (folder / "web.jsonl.zst").write_bytes(pa.Codec("zstd").compress(lines.encode(), asbytes=True))
    documents = np.where(np.arange(100_000) % 500, np.random.default_rng(0).integers(0, 50_256, 100_000), 50_256)
    documents.astype("<u2").tofile(folder / "train.bin")


def _write_studies(folder):
    """Studies that have been trained."""
    from known_study import write_study

    for name, config in {"runs/quickstart": "configs/studies/quickstart.py", "mine": "FILE.py"}.items():
        study = load(Study, config, [])
        write_study(folder / name, study)
        shutil.rmtree(folder / name / "data")
        materialize(study, folder / name)


def _write_results(folder):
    """What the commands of other pages leave."""
    from test_convert import SMALL, write

    write(folder / "Mixtral-8x7B-v0.1", dataclasses.replace(SMALL, vocab_size=300))
    for line in (
        "moejax data tokenizer web/ --vocab-size 300 --out Mixtral-8x7B-v0.1/tokenizer.json",
        "moejax convert --from hf Mixtral-8x7B-v0.1 --out weights/mixtral",
        "moejax train --config=configs/tiny.py --out runs/tiny",
        "moejax train --config=dense.py --out runs/dense",
        "moejax train --config=mixture.py --out runs/mine",
        "moejax plan --config=configs/tiny.py --topology cpu:8 --out plan",
        "moejax fit runs.csv --law effective_params --out fit",
        "moejax fit experts.csv --law five_factor --out five",
        "moejax compare runs.csv --hold-out tokens --laws chinchilla,effective_params --out compared",
    ):
        assert do(line) == 0, line
    shutil.copytree("fit", "runs/fit")
    # What --recipe zhao would leave.
    shutil.copytree("five", "zhao")
    # A page draws Zhao's figures with it.
    shutil.copy("five/fit.json", "fit.json")


def do(line):
    """Its exit status. Trainings are processes of their own, without the tests' fake devices."""
    # Every law that its columns allow is fitted to a table, so those about experts are there where a law reads them.
    if re.search("zhao|five_factor|routed|num_experts|--fit fit.json", line):
        line = re.sub(r"(?<![\w/])runs\.(csv|parquet)", "experts.csv", line)
    for theirs, ours in INSTEAD.items():
        line = line.replace(theirs, ours)
    words = shlex.split(line, comments=True)[1:]
    for part, more in LESS.items():
        words += more if re.search(part, line) else []
    if words[0] == "convert" or "gather" in words:
        # A new folder.
        shutil.rmtree(words[words.index("--out") + 1], ignore_errors=True)
    if words[0] != "train":
        try:
            return main(words)
        except SystemExit as stopped:
            return stopped.code
    alone = os.environ | {"XLA_FLAGS": os.environ["MOEJAX_TEST_XLA_FLAGS"]}
    return subprocess.run([sys.executable, "-m", "moejax", *words], env=alone, check=False).returncode


@pytest.mark.slow
@pytest.mark.parametrize("source", [source for source in SHOWN if run_here(source)])
def test_what_is_shown_does_what_it_says(source, place, tmp_path, monkeypatch, capfd):
    here = shutil.copytree(place, tmp_path / "here", symlinks=True)
    monkeypatch.chdir(here)
    monkeypatch.setenv("PATH", f"{here / 'bin'}:{os.environ['PATH']}")
    # Where a training in a store works.
    monkeypatch.setenv("XDG_CACHE_HOME", str(here / "cache"))
    bucket = fsspec.filesystem("memory")
    bucket.store.clear()
    bucket.put("mine/models/dense/", "/bucket/mine/models/dense/", recursive=True)
    bucket.put("mine/", "/bucket/zhao/", recursive=True)
    # Trainings run in processes of their own, whose memory is not this one's.
    bucket.put("mine/models/dense/", "/s3-bucket/run/", recursive=True)
    failed = {}
    for line in run_here(source):
        status, said = do(line), capfd.readouterr()
        for_gpus = "--topology h" in line
        compiles = has_cuda_plugin() if for_gpus else importlib.util.find_spec("libtpu") is not None
        if re.search(COMPILED, line) and not compiles:
            extra = "cuda13" if for_gpus else "plan"
            status = status != 2 or install_command(extra) not in said.err
        if status or not said.out + said.err:
            failed[line] = status, said.err
    assert not failed


STUDIES = [name for name, text in SHOWN_FILES.items() if "config.models" in text]


@pytest.mark.docs
@pytest.mark.parametrize("config", [f"{name}{part}" for name in STUDIES for part in PARTS.get(name, ("",))])
def test_a_study_that_is_shown_whole_can_be_run(config, tmp_path):
    name, *_ = config.split(":")
    (tmp_path / name).write_text(SHOWN_FILES[name])
    study = load(Study, f"{tmp_path / config}", [])
    study.check()
    found = try_outcomes(study)
    assert found.left == 0
    assert not found.expected.unknown_stages


@pytest.mark.docs
def test_the_guide_for_contributors_names_all_routers_and_files_that_exist():
    text = Path("CONTRIBUTING.md").read_text()
    table = text.partition("| router | source |")[2].partition("##")[0]
    assert re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE))) == list(ROUTERS)
    order = text.partition("## Reading a training step")[2].partition("| router")[0]
    named = re.findall(r"`(moejax/[\w/]+(?:\.py)?)/?`", order)
    assert len(named) > 10
    assert not [path for path in named if not Path(path).exists()]


@pytest.mark.docs
@pytest.mark.parametrize(("part", "test"), ELSEWHERE.items(), ids=ELSEWHERE)
def test_what_is_not_run_here_is_run_by_a_test_that_exists(part, test):
    assert any(re.search(part, line) for line in FIRST)
    file, _, name = test.partition("::")
    assert name in {node.name for node in ast.parse(Path("tests", file).read_text()).body if hasattr(node, "name")}


@pytest.mark.docs
@pytest.mark.parametrize("part", [*LESS, *INSTEAD])
def test_what_is_changed_of_a_command_is_shown(part):
    assert any(re.search(part, line) for line in FIRST)
