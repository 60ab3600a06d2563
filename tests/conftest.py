"""Every test runs on 8 fake CPU devices, which must be asked for before jax is imported.

Programs here are compiled for seconds and run for milliseconds, so LLVM is told not to optimize them and, where XLA has
both ways, fused loops are written without its MLIR emitters: less than half of a test's time is left. XLA's passes over
the program are those of any run. ``MOEJAX_TEST_OPTIMIZED=1`` compiles as users do. Tests that compile the same program
share it through JAX's cache on disk, in a folder of this run of the tests.
"""

import gc
import os
import sys
import tempfile
import warnings
from collections import defaultdict
from pathlib import Path

import pytest

from moejax.cli.process import quick_flags

os.environ["JAX_PLATFORMS"] = "cpu"
# Python's readline, imported by the process that started pytest's workers, leaves them the width of a terminal.
os.environ.pop("COLUMNS", None)
# Every training in this process finds JAX begun, with threads that do not depend on the machine's cores.
os.environ["NPROC"] = "4"
# Each process that a test starts would compile moejax to bytecode, which takes a third of a second.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Of processes that tests start, which have no fake devices.
os.environ["MOEJAX_TEST_XLA_FLAGS"] = "" if os.environ.get("MOEJAX_TEST_OPTIMIZED") else quick_flags(optimized=False)
os.environ["XLA_FLAGS"] = " ".join(
    [os.environ.get("XLA_FLAGS", ""), "--xla_force_host_platform_device_count=8", os.environ["MOEJAX_TEST_XLA_FLAGS"]]
)

# Processes that a test starts and pytest's workers inherit the folder from the process that makes it and removes it.
if "MOEJAX_TEST_PROGRAMS" not in os.environ:
    PROGRAMS = tempfile.TemporaryDirectory(prefix="moejax-test-programs-")
    os.environ["MOEJAX_TEST_PROGRAMS"] = os.environ["JAX_COMPILATION_CACHE_DIR"] = PROGRAMS.name
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

with warnings.catch_warnings():
    # jaxopt announces at import that it is no longer maintained.
    warnings.simplefilter("ignore", DeprecationWarning)
    import jaxopt  # noqa: F401

import hypothesis
import jax

# How long an example takes says how busy the machine is.
hypothesis.settings.register_profile("without a clock", deadline=None)
hypothesis.settings.load_profile("without a clock")

# Traced programs are millions of objects that live on: looking through all of them for cycles again and again took a
# twentieth of the time.
gc.set_threshold(50_000, 20, 100)

jax.config.update("jax_numpy_dtype_promotion", "strict")


def pytest_addoption(parser):
    parser.addoption(
        "--part", metavar="I/N", help="run every N-th of the tests that were selected, from the I-th on (from 0)"
    )


def pytest_configure():
    """Keep the bytecode of test files and of modules with checked shapes for the next run."""
    sys.dont_write_bytecode = False


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config, items):
    """Mark as slow all but some cases of a test that is marked ``matrix``; after the selection, keep one part of it.

    Neighbors go to different parts, so that parts take about as long. Files whose tests take longest come first, so
    that both of two workers have something to do until the end.
    """
    items.sort(key=lambda item: item.path.parent.name not in ("train", "study"))
    matrices = defaultdict(list)
    for item in items:
        if item.get_closest_marker("matrix"):
            matrices[item.nodeid.partition("[")[0]].append(item)
    for cases in matrices.values():
        (kept,) = cases[0].get_closest_marker("matrix").args
        # Spread over all cases, the first and the last among them.
        shown = {round(place * (len(cases) - 1) / max(kept - 1, 1)) for place in range(kept)}
        for number, item in enumerate(cases):
            if number not in shown:
                item.add_marker(pytest.mark.slow)
    yield
    if config.option.part:
        part, parts = map(int, config.option.part.split("/"))
        left_out = [item for number, item in enumerate(items) if number % parts != part]
        items[:] = items[part::parts]
        config.hook.pytest_deselected(items=left_out)


def pytest_collection_finish():
    """What was imported and collected lives until the end: no collection of garbage need look through it."""
    gc.freeze()


def pytest_sessionfinish():
    """Neither need pytest and Python, which collect garbage three times as they end, look through all programs."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def float32_by_default():
    """No test may leave the process in 64 bits for the next one."""
    yield
    assert not jax.config.jax_enable_x64


@pytest.fixture(autouse=True, scope="module")
def few_mappings():
    """Drop the compiled programs of a module before Linux's limit is near.

    A process may map 65,530 pieces of memory, a program compiled for a CPU takes three, and XLA crashes at the limit.
    """
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > 40_000:
        jax.clear_caches()
        gc.collect()
