"""Every test runs on 8 fake CPU devices, which must be asked for before jax is imported.

Programs here are compiled for seconds and run for milliseconds, so LLVM is told not to optimise them, which saves up to
half of a test's time; XLA's own passes are those of any run. ``MOEJAX_TEST_OPTIMISED=1`` compiles as users do. Tests
that compile the same program share it through JAX's cache on disk, in a folder of this run of the tests.
"""

import os
import tempfile

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "")
    + " --xla_force_host_platform_device_count=8"
    + ("" if os.environ.get("MOEJAX_TEST_OPTIMISED") else " --xla_backend_optimization_level=0")
)

import warnings

import pytest

with warnings.catch_warnings():
    # jaxopt announces at import that it is no longer maintained.
    warnings.simplefilter("ignore", DeprecationWarning)
    import jaxopt  # noqa: F401

import jax

jax.config.update("jax_numpy_dtype_promotion", "strict")

# pytest's workers inherit the name from the process that starts them, which removes the folder at its end.
if "MOEJAX_TEST_PROGRAMS" not in os.environ:
    PROGRAMS = tempfile.TemporaryDirectory(prefix="moejax-test-programs-")
    os.environ["MOEJAX_TEST_PROGRAMS"] = PROGRAMS.name
jax.config.update("jax_compilation_cache_dir", os.environ["MOEJAX_TEST_PROGRAMS"])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@pytest.fixture(autouse=True)
def float32_by_default():
    """No test may leave the process in 64 bits for the next one."""
    yield
    assert not jax.config.jax_enable_x64
