"""Kernels: every part once, on any threads and devices, in programs that another process compiled."""

import ctypes
import json
import os
import runpy
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import no_type_check

import jax
import jax.numpy as jnp
import numpy as np
import pytest

numba = pytest.importorskip("numba")

from llvmlite import binding  # noqa: E402

from moejax.kernels import cpu  # noqa: E402
from moejax.kernels.cpu import compiled  # noqa: E402
from moejax.kernels.cpu import custom_call as calls  # noqa: E402
from moejax.kernels.cpu.custom_call import (  # noqa: E402
    argument,
    custom_call,
    floats2,
    kernel,
    result,
    sched_yield,
)
from moejax.kernels.cpu.memory import add, address_of, load  # noqa: E402

MOST_PARTS = 1000
COUNTS = (ctypes.c_int64 * MOST_PARTS)()
MET = (ctypes.c_int64 * 1)()
binding.add_symbol("moejax_test_counts", ctypes.addressof(COUNTS))
binding.add_symbol("moejax_test_met", ctypes.addressof(MET))


@kernel("moejax_test_sums")
@no_type_check
def _sums(frame, i):
    """Row i, summed up from its left, and the number of times that part i was computed."""
    x, y = floats2(argument(frame, 0)), floats2(result(frame, 0))
    total = np.float32(0)
    for j in range(x.shape[1]):
        total += x[i, j]
        y[i, j] = total
    add(address_of("moejax_test_counts") + 8 * i, 1)
    return 0


@kernel("moejax_test_meet")
@no_type_check
def _meet(frame, i):
    """1 if another part was begun before this one ended, which waits for that, but not for ever."""
    y, met = floats2(result(frame, 0)), address_of("moejax_test_met")
    add(met, 1)
    turns = 0
    while add(met, 0) < 2 and turns < 20_000_000:
        sched_yield()
        turns += 1
    y[i, 0] = 1 if load(met) >= 2 else 0
    return 0


def sums(x):
    return custom_call("moejax_test_sums", x.shape[0], jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def meet(x):
    return custom_call("moejax_test_meet", x.shape[0], jax.ShapeDtypeStruct(x.shape, x.dtype), x)


@pytest.fixture
def all_threads_help():
    """Every device's calls are helped by all of XLA's threads, of which there is one per device here."""

    def compiled(function, *arguments):
        program = jax.jit(function).lower(*arguments).compile()
        calls.DEVICES.value = 1  # what a trace finds is the number of devices
        return program

    yield compiled
    calls.DEVICES.value = jax.local_device_count("cpu")


@pytest.mark.parametrize(("parts", "times"), [(1, 20), (2, 300), (7, 300), (MOST_PARTS, 40)])
@pytest.mark.parametrize("devices", [1, 8])
def test_every_part_is_computed_once_on_any_threads_and_devices(all_threads_help, parts, times, devices):
    mesh = jax.make_mesh((devices,), ("data",), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:devices])
    x = np.random.default_rng(0).normal(size=(devices * parts, 40)).astype(np.float32)
    spread = jax.device_put(x, jax.NamedSharding(mesh, jax.P("data")))
    local = jax.shard_map(sums, mesh=mesh, in_specs=jax.P("data"), out_specs=jax.P("data"), check_vma=False)
    program = all_threads_help(local, spread)
    ctypes.memset(COUNTS, 0, ctypes.sizeof(COUNTS))
    found = [program(spread) for _ in range(times)]
    for one in found:
        np.testing.assert_allclose(one, np.cumsum(x, axis=1), atol=1e-4)
    assert list(COUNTS[:parts]) == [devices * times] * parts
    assert not any(COUNTS[parts:])


def test_parts_are_computed_by_several_threads_at_a_time(all_threads_help):
    x = jnp.zeros((2, 1))
    program = all_threads_help(meet, x)
    MET[0] = 0
    assert np.asarray(program(x)).tolist() == [[1.0], [1.0]]


def test_vmap_computes_one_member_after_another():
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    np.testing.assert_array_equal(jax.jit(jax.vmap(sums))(x), np.cumsum(x, axis=2))


def test_a_kernel_runs_within_a_loop():
    def body(x, _):
        return sums(x), None

    x = np.eye(3, 5, dtype=np.float32)
    found = jax.jit(lambda x: jax.lax.scan(body, x, length=3)[0])(x)
    np.testing.assert_array_equal(found, np.cumsum(np.cumsum(np.cumsum(x, axis=1), axis=1), axis=1))


TWO_KERNELS = """
import json, sys
from typing import no_type_check

import jax
from moejax.kernels.cpu.custom_call import argument, custom_call, floats2, kernel, result


@no_type_check
def double(frame, i):
    x, y = floats2(argument(frame, 0)), floats2(result(frame, 0))
    for j in range(x.shape[1]):
        y[i, j] = 2 * x[i, j]
    return 0


@no_type_check
def triple(frame, i):
    x, y = floats2(argument(frame, 0)), floats2(result(frame, 0))
    for j in range(x.shape[1]):
        y[i, j] = 3 * x[i, j]
    return 0


made = {name: kernel(name)(globals()[name]) for name in sys.argv[1:]}
found = []
jax.monitoring.register_event_listener(lambda event, **_: found.append(event))
kind = jax.ShapeDtypeStruct((2, 3), "float32")
x = jax.numpy.ones((2, 3))
y = jax.jit(lambda x: custom_call("double", 2, kind, x) + 10 * custom_call("triple", 2, kind, x))(x)
print(json.dumps({
    "value": float(y[1, 2]),
    "kernels_from_disk": sum(function.cache_hits for function in made.values()),
    "programs_from_disk": found.count("/jax/compilation_cache/cache_hits"),
}))
"""


@pytest.mark.slow
def test_a_program_runs_in_a_process_where_kernels_came_in_another_order(tmp_path):
    script = tmp_path / "two_kernels.py"
    script.write_text(TWO_KERNELS)
    kept = {"NUMBA_CACHE_DIR": str(tmp_path / "numba"), "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "jax")}
    kept["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    found = []
    for order in (["double", "triple"], ["triple", "double"]):
        command = [sys.executable, str(script), *order]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **kept})
        found.append(json.loads(done.stdout))
    assert [one["value"] for one in found] == [32.0, 32.0]
    assert [one["kernels_from_disk"] for one in found] == [0, 2]
    assert found[0]["programs_from_disk"] == 0 < found[1]["programs_from_disk"]


def test_a_kernel_is_compiled_again_when_what_kernels_share_has_changed(tmp_path, monkeypatch):
    """Numba looks at the file of a kernel alone."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))

    def hits():
        @no_type_check
        def part(frame, i):
            return 0

        return kernel(f"moejax_test_{calls.TABLE[0]}")(part).cache_hits

    assert [hits(), hits()] == [0, 1]
    monkeypatch.setattr(compiled, "SHARED_CODE", compiled.SHARED_CODE ^ 1)
    assert hits() == 0


@pytest.fixture
def kept_in(tmp_path, monkeypatch):
    """Return a folder for numba's files, and compile a kernel as a new process would."""

    def hits():
        compiled._checked.cache_clear()

        @no_type_check
        def part(frame, i):
            return frame + i

        function = calls.compiled(calls.PART, part)
        assert function.ctypes(40, 2) == 42
        return function.cache_hits

    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "kernels"))
    return tmp_path / "kernels", hits


@pytest.mark.parametrize("kind", ["nbi", "nbc"])
@pytest.mark.parametrize("damage", ["empty", "half", "one byte"])
def test_a_damaged_file_of_the_cache_is_removed_and_compiled_again(kind, damage, kept_in):
    folder, hits = kept_in
    assert [hits(), hits()] == [0, 1]
    (path,) = folder.glob(f"*/*.{kind}")
    content = path.read_bytes()
    broken = {"empty": b"", "half": content[: len(content) // 2], "one byte": bytes([content[0] ^ 255]) + content[1:]}
    path.write_bytes(broken[damage])
    assert [hits(), hits()] == [0, 1]


def test_a_process_that_starts_meanwhile_removes_no_new_file(kept_in, monkeypatch):
    folder, hits = kept_in
    check, record = compiled._checked.__wrapped__, compiled.note
    others = []

    def recorded_late(*given):
        others.append(threading.Thread(target=check, args=(folder,)))
        others[-1].start()
        others[-1].join(0.2)
        record(*given)

    monkeypatch.setattr(compiled, "note", recorded_late)
    assert hits() == 0
    for other in others:
        other.join()
    assert {path.suffix for path in folder.glob("*/*.nb?")} == {".nbi", ".nbc"}
    assert hits() == 1


def test_the_cache_of_kernels_is_the_users_alone(kept_in):
    folder, hits = kept_in
    hits()
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    with pytest.warns(UserWarning, match="others can write to it.*a writable folder that you own"):
        assert hits() == 0


def test_kernels_that_cannot_be_kept_on_disk_are_compiled_all_the_same(monkeypatch):
    def refuse(_):
        raise RuntimeError("cannot cache function 'part': no locator available for file 'part.py'")

    monkeypatch.setattr(numba.core.ccallback.CFunc, "enable_caching", refuse)

    @no_type_check
    def part(frame, i):
        return frame + i

    with pytest.warns(UserWarning, match="every process compiles them.*Set NUMBA_CACHE_DIR to a writable folder"):
        function = calls.compiled(calls.PART, part)
    assert function.ctypes(40, 2) == 42


@pytest.mark.parametrize("reason", ["is not installed", "was told not to compile", "knows no such NumPy"])
def test_there_are_no_kernels_where_numba_does_not_work(reason, monkeypatch):
    if reason == "is not installed":
        monkeypatch.setitem(sys.modules, "numba", None)
    elif reason == "was told not to compile":
        monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    else:

        def refuse(name):
            raise ImportError("Numba needs NumPy 2.5 or less. Got NumPy 2.6.")

        monkeypatch.setattr(cpu.importlib, "import_module", refuse)
    cpu.available.cache_clear()
    try:
        if reason == "knows no such NumPy":
            with pytest.warns(
                UserWarning, match=r"numba does not work here \(numba reported: ImportError: Numba needs NumPy 2.5"
            ):
                assert not cpu.available()
        else:
            assert not cpu.available()
    finally:
        monkeypatch.undo()
        cpu.available.cache_clear()
    assert cpu.available()


def test_the_guide_for_contributors_shows_a_kernel_that_works(tmp_path, capsys):
    shown = Path("CONTRIBUTING.md").read_text().split("```python\n")[1].split("```")[0]
    (tmp_path / "shown.py").write_text(shown)
    runpy.run_path(str(tmp_path / "shown.py"))
    assert capsys.readouterr().out == "[[2. 2. 2. 2.]\n [2. 2. 2. 2.]\n [2. 2. 2. 2.]]\n"


OFFSETS = {
    "EXTENSION": "offsetof(XLA_FFI_CallFrame, extension_start)",
    "API": "offsetof(XLA_FFI_CallFrame, api)",
    "CONTEXT": "offsetof(XLA_FFI_CallFrame, ctx)",
    "ARGUMENTS": "offsetof(XLA_FFI_CallFrame, args) + offsetof(XLA_FFI_Args, args)",
    "RESULTS": "offsetof(XLA_FFI_CallFrame, rets) + offsetof(XLA_FFI_Rets, rets)",
    "ATTRIBUTES": "offsetof(XLA_FFI_CallFrame, attrs) + offsetof(XLA_FFI_Attrs, attrs)",
    "SCALAR_DATA": "offsetof(XLA_FFI_Scalar, value)",
    "BUFFER_DATA": "offsetof(XLA_FFI_Buffer, data)",
    "BUFFER_DIMENSIONS": "offsetof(XLA_FFI_Buffer, dims)",
    "EXTENSION_TYPE": "offsetof(XLA_FFI_Extension_Base, type)",
    "METADATA": "offsetof(XLA_FFI_Metadata_Extension, metadata)",
    "METADATA_VERSION": "offsetof(XLA_FFI_Metadata, api_version)",
    "METADATA_EXTENSION": "XLA_FFI_Extension_Metadata",
    "VERSION_MAJOR": "offsetof(XLA_FFI_Api_Version, major_version)",
    "VERSION_MINOR": "offsetof(XLA_FFI_Api_Version, minor_version)",
    "VERSION_SIZE": "sizeof(XLA_FFI_Api_Version)",
    "ERROR_DESTROY": "offsetof(XLA_FFI_Api, XLA_FFI_Error_Destroy)",
    "SCHEDULE": "offsetof(XLA_FFI_Api, XLA_FFI_ThreadPool_Schedule)",
    "NUM_THREADS": "offsetof(XLA_FFI_Api, XLA_FFI_ThreadPool_NumThreads)",
    "ERROR_DESTROY_SIZE": "sizeof(XLA_FFI_Error_Destroy_Args)",
    "ERROR_DESTROY_ERROR": "offsetof(XLA_FFI_Error_Destroy_Args, error)",
    "SCHEDULE_SIZE": "sizeof(XLA_FFI_ThreadPool_Schedule_Args)",
    "SCHEDULE_CONTEXT": "offsetof(XLA_FFI_ThreadPool_Schedule_Args, ctx)",
    "SCHEDULE_TASK": "offsetof(XLA_FFI_ThreadPool_Schedule_Args, task)",
    "SCHEDULE_DATA": "offsetof(XLA_FFI_ThreadPool_Schedule_Args, data)",
    "NUM_THREADS_SIZE": "sizeof(XLA_FFI_ThreadPool_NumThreads_Args)",
    "NUM_THREADS_CONTEXT": "offsetof(XLA_FFI_ThreadPool_NumThreads_Args, ctx)",
    "NUM_THREADS_RESULT": "offsetof(XLA_FFI_ThreadPool_NumThreads_Args, num_threads)",
    "MAJOR_VERSION": "XLA_FFI_API_MAJOR",
}


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_fields_lie_where_the_header_of_xla_has_them(tmp_path):
    printed = "".join(f'printf("%zu ", (size_t)({offset}));' for offset in OFFSETS.values())
    source = "#include <stddef.h>\n#include <stdio.h>\n#include <xla/ffi/api/c_api.h>\nint main() {" + printed + "}"
    (tmp_path / "offsets.c").write_text(source)
    program = str(tmp_path / "offsets")
    renamed = "-DXLA_FFI_Extension_Base=XLA_FFI_InternalExtension"  # as it is called from jax 0.12 on
    command = ["cc", renamed, f"-I{jax.ffi.include_dir()}", str(tmp_path / "offsets.c"), "-o", program]
    subprocess.run(command, check=True)
    found = subprocess.run([program], capture_output=True, text=True, check=True).stdout.split()
    assert {name: getattr(calls, name) for name in OFFSETS} == dict(zip(OFFSETS, map(int, found), strict=True))
