"""A machine with libtpu and without a TPU computes on its CPU; a prediction compiles without optimizing."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from moejax.cli.commands import predict
from moejax.cli.process import check_flags, compile_quickly, keep_libtpu_quiet, keep_programs, take_gpu_memory
from moejax.compilation_cache import MOST_PROGRAMS
from moejax.errors import UserError
from moejax.laws.dense.chinchilla import HOFFMANN_2022
from moejax.laws.design import Design


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A libtpu, and a folder of devices."""
    (tmp_path / "libtpu.py").touch()
    (tmp_path / "dev" / "vfio").mkdir(parents=True)
    (tmp_path / "dev" / "vfio" / "vfio").touch()
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "dev"


def platforms(devices, **environment):
    keep_libtpu_quiet(environment, devices)
    return environment.get("JAX_PLATFORMS")


def test_without_an_accelerator_jax_computes_on_the_cpu(installed):
    assert platforms(installed) == "cpu"


@pytest.mark.parametrize("device", ["accel0", "vfio/0", "nvidia0", "kfd"])
def test_where_there_is_an_accelerator_jax_chooses(installed, device):
    (installed / device).touch()
    assert platforms(installed) is None


def test_what_the_user_has_set_stays(installed):
    assert platforms(installed, JAX_PLATFORMS="tpu,cpu") == "tpu,cpu"
    assert platforms(installed, JAX_FORCE_TPU_INIT="1") is None


def test_without_libtpu_nothing_is_set(installed, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert platforms(installed) is None


@pytest.mark.slow
def test_formulas_compiled_without_optimizing_give_the_same_numbers_to_the_bit():
    words = predict.EXAMPLE.split()[1:]
    # A process that has JAX already compiles as XLA does by itself.
    said = [
        subprocess.run(
            [sys.executable, "-c", f"{first}; from moejax.__main__ import main; main(sys.argv[1:])", *words, "--json"],
            env={name: value for name, value in os.environ.items() if name != "XLA_FLAGS"},
            check=True,
            capture_output=True,
        ).stdout
        for first in ("import sys", "import sys, jax")
    ]
    assert said[0] == said[1]


def test_what_is_set_of_the_compiler_stays(monkeypatch):
    monkeypatch.delitem(sys.modules, "jax")
    flags = "--xla_backend_optimization_level=2 --xla_dump_to=here"
    environment = {"XLA_FLAGS": flags, "JAX_COMPILATION_CACHE_DIR": ""}
    compile_quickly(environment, optimized=False)
    assert environment["XLA_FLAGS"].startswith(flags)
    assert environment["XLA_FLAGS"].count("optimization_level") == 1


@pytest.mark.parametrize("set_already", ["XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"])
def test_a_training_takes_of_a_gpu_what_its_plan_counts_with_unless_the_user_has_said_how_much(set_already):
    ours, theirs = {}, {set_already: "0.5"}
    take_gpu_memory(ours)
    take_gpu_memory(theirs)
    assert ours == {"XLA_CLIENT_MEM_FRACTION": "0.94"}
    assert theirs == {set_already: "0.5"}


@pytest.mark.parametrize(
    ("name", "value"),
    [("JAX_PLATFORMS", "cuda"), ("JAX_PLATFORMS", "nothing"), ("JAX_ENABLE_X64", "garbage"), ("XLA_FLAGS", "garbage")],
)
def test_a_variable_with_which_jax_cannot_start_is_named_in_a_sentence(name, value):
    # A law with a logarithm, which JAX computes; Chinchilla's needs no device.
    words = ["predict", "--law", "routed", "--params-active", "7B", "--num-experts", "8", "--top-k", "1"]
    command = [sys.executable, "-m", "moejax", *words]
    ended = subprocess.run(command, capture_output=True, text=True, env={**os.environ, name: value}, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("moejax: ")
    assert ended.stderr.count("\n") == 1
    assert name in ended.stderr
    assert "or unset " in ended.stderr


def test_programs_are_kept_in_the_users_cache_where_it_can_be_written(tmp_path, monkeypatch):
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    keep_programs(environment)
    folder = Path(environment["JAX_COMPILATION_CACHE_DIR"])
    assert folder.parent == tmp_path / "moejax" / "programs"
    for number in range(MOST_PROGRAMS + 3):
        os.utime(_touched(folder / f"{number}-cache"), (number, number))
    os.utime(_touched(folder / "mine"), (0, 0))
    keep_programs({"XDG_CACHE_HOME": str(tmp_path)})
    assert {path.name for path in folder.iterdir()} == {"mine", *(f"{3 + n}-cache" for n in range(MOST_PROGRAMS))}
    own = {"JAX_COMPILATION_CACHE_DIR": "mine"}
    keep_programs(own)
    assert own == {"JAX_COMPILATION_CACHE_DIR": "mine"}
    (tmp_path / "file").touch()
    relative = {"XDG_CACHE_HOME": "cache"}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    keep_programs(relative)
    assert relative["JAX_COMPILATION_CACHE_DIR"].startswith(str(tmp_path / "home" / ".cache"))
    nowhere = {"XDG_CACHE_HOME": str(tmp_path / "file")}
    keep_programs(nowhere)
    assert nowhere == {"XDG_CACHE_HOME": str(tmp_path / "file")}


def _touched(path):
    path.touch()
    return path


@pytest.mark.slow
def test_a_fit_by_programs_that_were_kept_is_the_same_to_the_bit(tmp_path):
    """Also where one was half written."""
    sizes, tokens = np.geomspace(1e7, 1e9, 8), np.tile([1e9, 4e9], 4)
    loss = np.asarray(HOFFMANN_2022(Design(params_active=sizes, tokens=tokens)), np.float64)
    pd.DataFrame({"params_active": sizes, "tokens": tokens, "loss": loss}).to_csv(tmp_path / "runs.csv", index=False)
    environment = {name: value for name, value in os.environ.items() if "CACHE" not in name}
    environment["XDG_CACHE_HOME"] = str(tmp_path / "cache")
    words = [sys.executable, "-m", "moejax", "fit", str(tmp_path / "runs.csv"), "--law", "chinchilla", "--json"]
    said = []
    for _ in range(3):
        found = subprocess.run(words, env=environment, check=True, capture_output=True, text=True)
        said.append((found.stdout, "persistent" in found.stderr))
        kept = sorted(path for path in (tmp_path / "cache").rglob("*") if path.is_file())
        kept[0].write_bytes(kept[0].read_bytes()[:50])
    assert len(kept) > 3
    assert said == [said[0]] * 3
    assert not said[0][1]


@pytest.mark.parametrize(("given", "left"), [(" ", ""), (" --xla_a=1 ", "--xla_a=1"), ("", "")])
def test_blanks_are_no_flags_and_no_file_of_them(given, left):
    environment = {"XLA_FLAGS": given}
    check_flags(environment)
    assert environment == {"XLA_FLAGS": left}


def test_what_is_neither_flags_nor_a_file_is_named():
    with pytest.raises(UserError, match="XLA_FLAGS is 'xla_a=1'; give flags such as"):
        check_flags({"XLA_FLAGS": "xla_a=1"})
    environment = {}
    check_flags(environment)
    assert not environment


def test_work_continues_when_nobody_reads_its_messages(tmp_path):
    reading, writing = os.pipe()
    os.close(reading)
    code = "import sys; from moejax.say import say; say('lost'); say('lost too'); print('done')"
    with os.fdopen(writing, "wb") as nobody:
        done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=nobody, check=True)
    assert done.stdout == b"done\n"
