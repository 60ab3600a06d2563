"""Memory that a process has freed is there for its next step."""

import platform
import subprocess
import sys

import pytest

from moejax.train import allocator
from moejax.train.allocator import computes_on_cpu

PROGRAM = """
import resource, threading
from moejax.train.allocator import keep_memory
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
from moejax.train.allocator import keep_memory, release_memory
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
from moejax.train.allocator import keep_memory
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
    monkeypatch.setattr(allocator, "_has_plugin", lambda: True)
    if device:
        (tmp_path / device).parent.mkdir(exist_ok=True)
        (tmp_path / device).touch()
    assert computes_on_cpu(tmp_path) is expected


def test_jax_without_a_plugin_for_the_accelerator_computes_on_the_cpu(tmp_path, monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS")
    (tmp_path / "nvidia0").touch()
    for has, expected in ((True, False), (False, True)):
        monkeypatch.setattr(allocator, "_has_plugin", lambda has=has: has)
        assert computes_on_cpu(tmp_path) is expected


TRAIN = """
from moejax.train import allocator
allocator.keep_memory = lambda devices: print("kept")
from moejax.__main__ import main
main(["train", "--out", {out!r}])
"""


@pytest.mark.parametrize(("platform", "said"), [("cpu", "kept"), ("cuda", "")])
@pytest.mark.matrix(1)
def test_memory_is_kept_only_where_the_cpu_computes(tmp_path, monkeypatch, platform, said):
    monkeypatch.setenv("JAX_PLATFORMS", platform)
    command = [sys.executable, "-c", TRAIN.format(out=str(tmp_path / "nothing"))]
    assert subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() == said
