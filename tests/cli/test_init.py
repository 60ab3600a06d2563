"""moejax's own configs: found by name wherever it is installed, and copied by ``moejax init`` without loss."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from test_convert import SMALL, write

from moejax.__main__ import main
from moejax.cli import COMMANDS, command_module
from moejax.cli.config_file import find, find_packaged, load, packaged_files
from moejax.train.initial_weights import check_initial_weights
from moejax.train.training import Training
from moejax.weights.folder import read_architecture

ROOT = Path(__file__).parents[2]
OWN = {path.relative_to(ROOT).as_posix() for path in (ROOT / "configs").rglob("*.py")}
READERS = {"FILE.py", "dense.py", "mixture.py", "mine.py", "sweep.py", "plan_671b.py"}
READERS |= {"designed/config.py", "runs/next/study.py", "configs/studies/FILE.py"}
READERS |= {"continued/configs/mixtral_8x7b_v0_1.py"}
"""Configs that pages show as the reader's own."""


def shown():
    """Every config that help texts and pages name, but those that a page writes out."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "configs").rglob("*.py"))]
    helps = [Path(command_module(name).__file__) for name in COMMANDS]
    helps.append(ROOT / "moejax" / "cli" / "command_line.py")
    texts = [page.read_text() for page in (*pages, *helps) if page.name != "log.md"]
    named = {name for text in texts for name in re.findall(r"--config[= ]([\w./-]+\.py)", text)}
    return sorted(named - READERS - {name for text in texts for name in re.findall(r'title="(.*?)"', text)})


@pytest.mark.parametrize("name", shown())
def test_a_config_that_is_shown_is_found_in_an_empty_folder(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find(name).is_file()


def test_short_names_are_of_one_config_each():
    stems = [path.stem for path in packaged_files()]
    assert len(set(stems)) == len(stems) == len(OWN)
    for path in packaged_files():
        names = (path.stem, f"{path.stem}.py", str(path), f"configs/{path}", str(path.with_suffix("")))
        assert {find_packaged(name) for name in names} == {ROOT / "configs" / path}
    assert find_packaged("elsewhere/tiny.py") is None


def test_a_readers_own_file_comes_first_and_moejaxs_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["count", "--config=tiny"]) == 0
    assert "tiny does not exist here; reading moejax's own config instead" in capsys.readouterr().err
    shutil.copy(ROOT / "configs" / "tiny.py", tmp_path)
    assert find("tiny.py") == Path("tiny.py")
    assert main(["count", "--config=tiny.py"]) == 0
    assert "moejax's own" not in capsys.readouterr().err


def test_a_name_that_is_nobodys_lists_what_there_is(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--config=tinny"]) == 2
    assert "configs/tiny.py" in capsys.readouterr().err


def test_init_leaves_what_is_there_as_it_is(tmp_path, capsys):
    assert main(["init", str(tmp_path)]) == 0
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.py")} == OWN
    changed, gone = tmp_path / "configs" / "tiny.py", tmp_path / "configs" / "studies" / "zhao.py"
    changed.write_text("mine")
    gone.unlink()
    capsys.readouterr()
    assert main(["init", str(tmp_path), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["written"], said["changed"]) == ([str(gone)], [str(changed)])
    assert changed.read_text() == "mine"
    assert gone.read_bytes() == (ROOT / "configs" / "studies" / "zhao.py").read_bytes()


def test_init_into_a_file_is_a_sentence(tmp_path, capsys):
    (tmp_path / "configs").write_text("")
    assert main(["init", str(tmp_path)]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_a_wheel_has_every_config(tmp_path):
    """Laid out as pyproject.toml says that a wheel is, and run where there is no repository."""
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    for name in wheel["only-include"]:
        to = tmp_path / "site" / wheel["sources"].get(name, name)
        shutil.copytree(ROOT / name, to, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "empty").mkdir()
    command = [sys.executable, "-m", "moejax", "init", "--json"]
    alone = os.environ | {"PYTHONPATH": str(tmp_path / "site"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=tmp_path / "empty", env=alone, capture_output=True, text=True, check=True)
    assert set(json.loads(done.stdout)["written"]) == OWN
    assert {path.relative_to(tmp_path / "empty").as_posix() for path in (tmp_path / "empty").rglob("*.py")} == OWN


def test_the_next_command_is_one_that_a_shell_reads_as_it_was_meant(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["init", "a b; touch p"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("next: "))
    assert shlex.split(line)[1:4] == ["cd", "a b; touch p", "&&"]
    assert main(["init", ""]) == 0
    assert "next: moejax train" in capsys.readouterr().out


def test_a_config_from_a_checkpoint_trains_it_further_and_nothing_is_replaced(tmp_path, monkeypatch, capsys):
    theirs = write(tmp_path / "Tiny-MoE v0.1", SMALL.replace(vocab_size=257))
    described = json.loads((theirs / "config.json").read_text())
    (theirs / "config.json").write_text(json.dumps(described | {"max_position_embeddings": 64}))
    monkeypatch.chdir(tmp_path)
    assert main(["init", "--from", str(theirs), "mine", "--json"]) == 0
    config, weights = json.loads(capsys.readouterr().out)["written"]
    assert (config, weights) == ("mine/configs/tiny_moe_v0_1.py", "mine/weights/tiny_moe_v0_1")
    training = load(Training, config, [])
    training.check()
    assert training.architecture == SMALL.replace(vocab_size=257)
    assert training.recipe.data.sequence_length == 64
    assert read_architecture(Path(training.recipe.initial_weights.source)) == training.architecture
    check_initial_weights(training, None)
    before = Path(config).read_text()
    assert main(["init", "--from", str(theirs), "mine"]) == 2
    assert "is not replaced" in capsys.readouterr().err
    Path(config).unlink()
    assert main(["init", "--from", str(theirs), "mine"]) == 2
    assert "weights/tiny_moe_v0_1 already exists and is not replaced; name another DIR" in capsys.readouterr().err
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "configs").write_text("a file")
    assert main(["init", "--from", str(theirs), "full"]) == 2
    assert not (tmp_path / "full" / "weights").exists()
    assert main(["init", "--from", str(theirs), "other"]) == 0
    shown = capsys.readouterr()
    assert "next: moejax train --config=other/configs/tiny_moe_v0_1.py" in shown.out
    assert "has no tokenizer.json" in shown.err
    assert Path("other/configs/tiny_moe_v0_1.py").read_text() == before.replace("mine/", "other/")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (None, "is not a Hugging Face checkpoint: it has no config.json"),
        ({"model_type": "llama"}, "moejax does not support model_type 'llama'; supported are mixtral"),
    ],
)
def test_what_cannot_be_continued_is_a_sentence_and_nothing_is_written(config, said, tmp_path, capsys):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    if config is not None:
        (theirs / "config.json").write_text(json.dumps(config))
    assert main(["init", "--from", str(theirs), str(tmp_path / "mine")]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "mine").exists()
