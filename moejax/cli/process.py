"""Configure a process before JAX is imported: platform, GPU memory, CPU core and compilation."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import MutableMapping
from pathlib import Path

from moejax.errors import UserError
from moejax.wording import says

GPU_MEMORY_SHARE = 0.94
"""Share of the GPU memory that JAX may use; the rest is for CUDA and NCCL. The memory size that CUDA reports is close
to the data sheet's."""


def keep_libtpu_quiet(environment: MutableMapping[str, str] = os.environ, devices: Path = Path("/dev")) -> None:
    """Make JAX use the CPU if libtpu is installed and there is no accelerator. Variables set by the user take
    precedence.

    On such a machine, JAX would try to initialize a TPU through libtpu, which writes many lines to stderr and takes
    time. The extra ``moejax[plan]`` installs libtpu on machines without a TPU, because compilation for TPUs needs it.
    """
    chosen = {"JAX_PLATFORMS", "JAX_FORCE_TPU_INIT"} & environment.keys()
    if chosen or importlib.util.find_spec("libtpu") is None:
        return
    # The import is local, because it would take time of every command.
    from moejax.train.host import has_accelerator

    if not has_accelerator(devices):
        environment["JAX_PLATFORMS"] = "cpu"


def take_gpu_memory(environment: MutableMapping[str, str] = os.environ) -> None:
    """Make JAX preallocate ``GPU_MEMORY_SHARE`` of a GPU's memory instead of 75 %. Variables set by the user take
    precedence.

    Plans assume this share. XLA refuses to start if both names are set.
    """
    if not {"XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"} & environment.keys():
        environment["XLA_CLIENT_MEM_FRACTION"] = str(GPU_MEMORY_SHARE)


def check_flags(environment: MutableMapping[str, str] = os.environ) -> None:
    """Raise ``UserError`` if ``XLA_FLAGS`` is neither flags nor a file of flags, since XLA would abort the process.

    Surrounding spaces are removed, since XLA interprets text with a leading space as a file name.
    """
    if "XLA_FLAGS" not in environment:
        return
    flags = environment["XLA_FLAGS"] = environment["XLA_FLAGS"].strip()
    if flags and not flags.startswith("--") and not Path(flags).is_file():
        raise UserError(
            f"XLA_FLAGS is {flags!r}; give flags such as --xla_NAME=VALUE, or the name of a file with flags, or "
            "unset the variable."
        )


def refused_variable(error: Exception) -> str:
    """Return a message about the environment variable that keeps JAX from starting, or an empty string if another cause
    is more likely.
    """
    named = [name for name in os.environ if name.startswith("JAX_") and name in str(error)]
    if not named and "JAX_PLATFORMS" in os.environ and "jax" in sys.modules and not _has_devices():
        named = ["JAX_PLATFORMS"]
    if not named:
        return ""
    given = os.environ[named[0]]
    return (
        f"JAX cannot start with {named[0]}={given} ({says('JAX', error)}); set it to a platform of this machine, or "
        f"unset it."
    )


def _has_devices() -> bool:
    try:
        return bool(sys.modules["jax"].devices())
    except Exception:
        # If no platform has a plugin, JAX fails an internal assertion.
        return False


def compile_quickly(environment: MutableMapping[str, str] = os.environ, *, optimized: bool = True) -> None:
    """Reduce the compile time of XLA's CPU backend, if JAX is not imported yet. Flags set by the user take precedence.

    Fits and designs compile programs that run for a second. Compilation takes half the time without XLA's fusion
    emitters, and a quarter of the time without LLVM's optimization too (``optimized=False``). Optimization pays off if
    a command runs many fits. The last digits of results may differ from normally compiled programs.
    """
    if "jax" not in sys.modules:
        environment["XLA_FLAGS"] = quick_flags(environment.get("XLA_FLAGS", ""), optimized=optimized)
        keep_programs(environment)


def keep_programs(environment: MutableMapping[str, str] = os.environ) -> None:
    """Keep compiled programs in the user's cache, so that a second fit of the same law starts immediately.

    Each processor has its own folder (``moejax.compilation_cache``). A program takes about 20 KB, and a fit of a new
    law or table compiles about 16 programs. If the folder is not writable, no program is kept; if there are many
    programs, the oldest are removed. ``JAX_COMPILATION_CACHE_DIR`` takes precedence, and
    ``JAX_ENABLE_COMPILATION_CACHE=false`` disables the cache.
    """
    if "JAX_COMPILATION_CACHE_DIR" in environment:
        return
    # The import is local, since it would take a tenth of the time of --help.
    from moejax.compilation_cache import pass_over_damage, processor_mark, remove_oldest
    from moejax.folder import user_cache

    try:
        folder = user_cache(environment) / "programs" / processor_mark()
        folder.mkdir(parents=True, exist_ok=True)
        remove_oldest(folder)
    except (OSError, RuntimeError):
        # There is no home folder, no permission, or another command is removing the same files. Compile without a
        # cache.
        return
    if os.access(folder, os.W_OK):
        environment["JAX_COMPILATION_CACHE_DIR"] = str(folder)
        environment.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.02")
        environment.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
        pass_over_damage()


def quick_flags(flags: str = "", *, optimized: bool = True) -> str:
    """Return ``XLA_FLAGS`` for the fastest compilation of CPU programs. Flags already in ``flags`` take precedence.

    With these flags, rounding in large arrays may depend on the number of visible cores, so training does not use them.
    """
    # The import is local, since it would take a third of the time of --help.
    from importlib.metadata import version

    wanted = [] if optimized else ["xla_backend_optimization_level=0"]
    # An unknown flag ends the process, and later versions of XLA only have the emitters.
    if version("jaxlib").startswith("0.10."):
        # By default XLA splits code into 32 small LLVM modules, whose number dominates the time.
        wanted += ["xla_cpu_use_fusion_emitters=false", "xla_cpu_parallel_codegen_split_count=2"]
    added = [f"--{flag}" for flag in wanted if flag.partition("=")[0] not in flags]
    return " ".join([*flags.split(), *added])


def stay_on(core: int | None) -> None:
    """Bind this process to one core, so that XLA starts one thread and processes do not compete for cores."""
    if core is not None and sys.platform == "linux":
        os.sched_setaffinity(0, {core})
