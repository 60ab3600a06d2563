"""What a process is set to before it trains: threads, so that numbers do not depend on its cores, and memory."""

import dataclasses
import os
import platform
import subprocess
import sys
from types import SimpleNamespace

import jax
import pytest
from command import assert_same_training, environment, write_config

from moejax.train import host, loop, opening
from moejax.train.directory import row
from moejax.train.directory.attempts import AttemptRecorder, read_attempts
from moejax.train.host import DETERMINISTIC, THREADS, computes_on_cpu, of_all, processor
from moejax.train.mesh import MeshShape

ON = "import os, sys; os.sched_setaffinity(0, map(int, sys.argv[1].split(','))); os.execv(sys.argv[2], sys.argv[2:])"
"""Run a command on some cores. It sets them itself, for a process with JAX should not be forked."""
CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
LARGER = ["--config.recipe.batch_tokens=2048", "--config.recipe.checkpoint_tokens=4096"]
LARGER += ["--config.recipe.budgets_tokens=8192"]
"""Batches whose loops XLA shares among threads: with 1 and 2 threads, the arrays below differ."""


def on(cores, words, env):
    """Run Python on some cores."""
    command = [sys.executable, "-c", ON, ",".join(map(str, cores)), sys.executable, *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


@pytest.fixture
def train(tmp_path):
    """Train on so many cores; programs are compiled anew, since what was compiled knows its number of threads."""
    config = write_config(tmp_path)

    def trained(name, cores, *words):
        words = ["-m", "moejax", "train", f"--config={config}", "--out", str(tmp_path / name), *words]
        # Compiled as users do: without the MLIR emitters, as other tests compile, bits depend on the cores.
        done = on(cores, words, environment(tmp_path / f"cache-{name}-{len(cores)}") | {"XLA_FLAGS": ""})
        assert done.returncode == 0, done.stderr
        return done.stderr

    return trained


@pytest.mark.skipif(len(CORES) < 2, reason="one core")
@pytest.mark.parametrize(
    "words", [[], pytest.param(["--cpu-devices", "2"], marks=pytest.mark.slow)], ids=["one device", "two devices"]
)
@pytest.mark.slow
def test_one_core_and_two_give_the_same_bits(tmp_path, train, words):
    train("one", CORES[:1], *LARGER, *words)
    train("two", CORES[:2], *LARGER, *words)
    assert_same_training(tmp_path / "one", tmp_path / "two")
    versions = [attempt.versions for name in ("one", "two") for attempt in read_attempts(tmp_path / name)]
    assert versions[0] == versions[1]
    assert versions[0]["threads"] == str(THREADS)
    assert versions[0]["processor"] == processor()


BEGIN = """
import jax
from moejax.train.host import fix_threads, rounding, unfixed
{first}
{second}
print(rounding()["threads"], unfixed())
"""


@pytest.mark.skipif(len(CORES) < 2, reason="one core")
@pytest.mark.parametrize(
    ("lines", "threads", "said"),
    [
        (("fix_threads()", "jax.devices()"), THREADS, "None"),
        (("fix_threads(3)", "fix_threads()"), 3, "None"),
        (("jax.devices()", "fix_threads()"), 2, "JAX was initialized before this training run began, with 2 threads"),
    ],
    ids=["before", "of one's own", "too late"],
)
def test_jax_has_as_many_threads_everywhere_unless_it_began_before(tmp_path, lines, threads, said):
    done = on(CORES[:2], ["-c", BEGIN.format(first=lines[0], second=lines[1])], environment(tmp_path))
    assert done.stdout.startswith(f"{threads} {said}")


def test_training_from_python_fixes_the_threads_and_says_once_where_it_cannot(tmp_path, monkeypatch, training):
    class Enough(Exception):
        pass

    def enough(*_):
        raise Enough

    asked, said = [], []
    monkeypatch.delenv("NPROC")
    monkeypatch.setattr(loop, "fix_threads", lambda: asked.append(True))
    monkeypatch.setattr(opening, "open_data", enough)
    with pytest.raises(Enough):
        loop.train(training, tmp_path, log=said.append)
    assert asked == [True]
    assert [text for text in said if "fix_threads() before JAX is used, or set NPROC=4." in text] == said


EPYC = {"processor": "AMD EPYC, avx512f", "threads": "4", "jax": "1"}
FLAG, TUNED = DETERMINISTIC.partition("=")[0], "--xla_gpu_autotune_level=0"
H100, H200 = ({"device": f"NVIDIA {name}", "deterministic": "yes", "jax": "1"} for name in ("H100", "H200"))


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (EPYC, EPYC, None),
        (EPYC, EPYC | {"processor": "Intel Xeon, avx2"}, "processor was AMD EPYC, avx512f, is Intel Xeon, avx2."),
        (
            of_all([EPYC, EPYC]),
            of_all([EPYC, EPYC | {"processor": "Intel Xeon"}]),
            "processor was AMD EPYC, avx512f, is 1 × AMD EPYC, avx512f, then 1 × Intel Xeon.",
        ),
        (EPYC, of_all([EPYC] * 3), None),
        (H100, H100, None),
        (H100, H200, "device was NVIDIA H100, is NVIDIA H200."),
        (
            H100,
            EPYC,
            "device was NVIDIA H100, is not recorded; deterministic was yes, is not recorded; processor was not",
        ),
        (H100, H100 | {"deterministic": "no"}, f"only if XLA_FLAGS contains {DETERMINISTIC}"),
        (H100 | {"deterministic": "no"}, H100 | {"deterministic": "no"}, f"only if XLA_FLAGS contains {DETERMINISTIC}"),
    ],
)
def test_a_restart_where_numbers_are_rounded_otherwise_says_so(tmp_path, before, now, said):
    heard = []
    for versions in (before, before | now if said is None else now):
        recorder = AttemptRecorder(tmp_path, metadata={"versions": dict(versions)}, log=heard.append)
        recorder.log_rounding_changes()
        recorder.write()
    assert len(heard) == (said is not None)
    assert said is None or (said in heard[0] and "not bit for bit: " in heard[0])


@pytest.mark.parametrize(
    ("platform", "flags", "found"),
    [
        ("gpu", "", {"deterministic": "no"}),
        ("gpu", f"{TUNED} {DETERMINISTIC}", {"deterministic": "yes"}),
        ("gpu", FLAG, {"deterministic": "yes"}),
        ("gpu", f"{FLAG}=1", {"deterministic": "yes"}),
        ("gpu", f"{DETERMINISTIC} {FLAG}=false", {"deterministic": "no"}),
        ("gpu", f"{FLAG}=0 {DETERMINISTIC}", {"deterministic": "yes"}),
        ("gpu", f"{FLAG}_of_others", {"deterministic": "no"}),
        ("tpu", "", {}),
        ("tpu", TUNED, {}),
    ],
)
def test_the_kind_of_accelerator_decides_the_bits_too(monkeypatch, platform, flags, found):
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    monkeypatch.setattr(jax, "local_devices", lambda: [SimpleNamespace(device_kind=kind) for kind in "BAB"])
    monkeypatch.setenv("XLA_FLAGS", flags)
    assert host.rounding() == {"device": "A, B", **found, **({"XLA_FLAGS": flags} if flags else {})}


def test_an_accelerators_libraries_decide_the_bits_where_they_are_installed(monkeypatch):
    plain = row.metadata.version
    monkeypatch.setattr(row, "rounding", dict)
    monkeypatch.setattr(row.metadata, "version", lambda name: "9.1" if name == "nvidia-cudnn-cu12" else plain(name))
    assert "nvidia-cudnn-cu12" not in row.versions()
    monkeypatch.setattr(row.jax, "default_backend", lambda: "gpu")
    assert row.versions()["nvidia-cudnn-cu12"] == "9.1"


def test_a_restart_on_another_mesh_is_named(tmp_path, monkeypatch, training):
    class Enough(Exception):
        pass

    def enough(*_):
        raise Enough

    heard = []
    monkeypatch.setattr(opening, "open_data", enough)
    for size in (2, 1):
        mesh = MeshShape(data=jax.device_count() // size, fsdp=size)
        here = dataclasses.replace(training, recipe=dataclasses.replace(training.recipe, mesh=mesh))
        with pytest.raises(Enough):
            loop.train(here, tmp_path, log=heard.append)
    said = next(text for text in heard if "not bit for bit" in text)
    assert "mesh was data=4, fsdp=2, expert=1, tensor=1, is data=8, fsdp=1, expert=1, tensor=1." in said
    assert "processes" not in said


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("cpu family\t: 25\nmodel\t: 17\nmodel name\t: AMD EPYC\nflags\t: avx2 avx512f\n\nprocessor: 1",
         "AMD EPYC, family 25, model 17, avx512f"),
        ("processor\t: 0\nFeatures\t: fp asimd sve\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n", "0x41 0xd40, sve"),
    ],
    ids=["x86", "arm"],
)  # fmt: skip
def test_a_processor_is_known_by_its_type_and_widest_vectors(tmp_path, told, expected):
    (tmp_path / "cpuinfo").write_text(told)
    assert processor(tmp_path / "cpuinfo") == expected
    assert processor(tmp_path / "none")


PROGRAM = """
import resource, threading
from moejax.train.host import keep_memory
if {keep}:
    keep_memory()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    bytearray(b"x") * 50_000_000
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
found = []
thread = threading.Thread(target=lambda: found.extend(faults() for _ in range(4)))
thread.start()
thread.join()
print(min(found))
"""


def page_faults(keep: bool) -> int:
    command = [sys.executable, "-c", PROGRAM.format(keep=keep)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_memory_freed_in_a_thread_is_used_again_without_page_faults():
    assert page_faults(keep=False) > 10_000
    assert page_faults(keep=True) < 100


HOLES = """
from moejax.train.host import keep_memory, release_memory
keep_memory()
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
pieces = [bytearray(1_000_000) for _ in range(200)]
del pieces[::2]
before = resident()
release_memory()
print(before - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_memory_that_is_free_between_what_is_used_can_be_given_back():
    released = subprocess.run([sys.executable, "-c", HOLES], check=True, capture_output=True, text=True).stdout
    assert int(released) > 50_000_000


ARENAS = """
import ctypes, threading
from moejax.train.host import keep_memory
keep_memory({devices})
here = threading.Barrier(8)
def ask():
    here.wait()
    piece = ctypes.CDLL(None).malloc(5000)
    here.wait()
threads = [threading.Thread(target=ask) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
c = ctypes.CDLL(None)
c.fdopen.restype = ctypes.c_void_p
out = ctypes.c_void_p(c.fdopen(1, b"w"))
c.malloc_info(0, out)
c.fflush(out)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
@pytest.mark.parametrize(("devices", "arenas"), [(1, 1), (2, 3), (4, 5)])
def test_each_of_several_devices_has_memory_for_which_it_does_not_wait(devices, arenas):
    command = [sys.executable, "-c", ARENAS.format(devices=devices)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert said.count("<heap nr=") == arenas


@pytest.mark.parametrize(
    ("asked_for", "device", "expected"),
    [
        ("", None, True),
        ("", "nvidia0", False),
        ("", "nvidiactl", False),
        ("", "accel0", False),
        ("", "vfio/0", False),
        ("cpu", "nvidia0", True),
        ("cuda,cpu", None, False),
        ("tpu", None, False),
    ],
)
def test_a_host_of_accelerators_is_told_apart_before_jax_starts(tmp_path, monkeypatch, asked_for, device, expected):
    monkeypatch.setenv("JAX_PLATFORMS", asked_for)
    monkeypatch.setattr(host, "_has_plugin", lambda: True)
    if device:
        (tmp_path / device).parent.mkdir(exist_ok=True)
        (tmp_path / device).touch()
    assert computes_on_cpu(tmp_path) is expected


def test_jax_without_a_plugin_for_the_accelerator_computes_on_the_cpu(tmp_path, monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS")
    (tmp_path / "nvidia0").touch()
    for has, expected in ((True, False), (False, True)):
        monkeypatch.setattr(host, "_has_plugin", lambda has=has: has)
        assert computes_on_cpu(tmp_path) is expected


TRAIN = """
from moejax.train import host
host.keep_memory = lambda devices: print("kept")
from moejax.__main__ import main
main(["train", "--out", {out!r}])
"""


@pytest.mark.parametrize(("platform", "said"), [("cpu", "kept"), ("cuda", "")])
@pytest.mark.matrix(1)
def test_memory_is_kept_only_where_the_cpu_computes(tmp_path, monkeypatch, platform, said):
    monkeypatch.setenv("JAX_PLATFORMS", platform)
    command = [sys.executable, "-c", TRAIN.format(out=str(tmp_path / "nothing"))]
    assert subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() == said
