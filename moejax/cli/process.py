"""What a process settles before JAX is imported: its platform and its core."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import MutableMapping
from pathlib import Path

from moejax.errors import UserError
from moejax.wording import says

ACCELERATORS = ("accel*", "vfio/[0-9]*", "nvidia*", "dxg", "kfd")
"""Below ``/dev``, what libtpu opens on machines with TPUs, and what drivers of GPUs make."""

GPU_MEMORY_SHARE = 0.94
"""Of what CUDA sees, which leaves a data sheet's bytes; the rest is for CUDA and NCCL."""


def keep_libtpu_quiet(environment: MutableMapping[str, str] = os.environ, devices: Path = Path("/dev")) -> None:
    """Have JAX compute on the CPU where libtpu is installed and there is nothing else; what the user has set stays.

    Without a TPU, JAX is not let ask libtpu for one: libtpu then writes pages to stderr, and the command waits for it.
    It is installed to compile for TPUs that nobody has (``moejax[plan]``), which needs none of this.
    """
    if "JAX_PLATFORMS" in environment or "JAX_FORCE_TPU_INIT" in environment:
        return
    if importlib.util.find_spec("libtpu") is None:
        return
    if not any(list(devices.glob(name)) for name in ACCELERATORS):
        environment["JAX_PLATFORMS"] = "cpu"


def take_gpu_memory(environment: MutableMapping[str, str] = os.environ) -> None:
    """Have JAX take ``GPU_MEMORY_SHARE`` of a GPU's memory, where it takes 75 % by itself; what the user has set stays.

    It is what plans count with. XLA refuses to start if both names are set.
    """
    if not {"XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"} & environment.keys():
        environment["XLA_CLIENT_MEM_FRACTION"] = str(GPU_MEMORY_SHARE)


def check_flags(environment: MutableMapping[str, str] = os.environ) -> None:
    """Raise ``UserError`` for ``XLA_FLAGS`` that are neither flags nor a file of them: XLA would end the process.

    Blanks around them are removed: XLA takes what begins with one for the name of a file.
    """
    if "XLA_FLAGS" not in environment:
        return
    flags = environment["XLA_FLAGS"] = environment["XLA_FLAGS"].strip()
    if flags and not flags.startswith("--") and not Path(flags).is_file():
        raise UserError(f"XLA_FLAGS is {flags!r}; give flags such as --xla_NAME=VALUE, or a file of them, or unset it.")


def refused_variable(error: Exception) -> str:
    """The sentence for a variable of the environment with which JAX cannot start, if that is why a command failed."""
    named = [name for name in os.environ if name.startswith("JAX_") and name in str(error)]
    if not named and "JAX_PLATFORMS" in os.environ and "jax" in sys.modules and not _has_devices():
        named = ["JAX_PLATFORMS"]
    if not named:
        return ""
    given = os.environ[named[0]]
    return f"JAX cannot start with {named[0]}={given} ({says('JAX', error)}); set it to what is here, or unset it."


def _has_devices() -> bool:
    try:
        return bool(sys.modules["jax"].devices())
    except Exception:
        # Where no platform has a plugin, JAX fails an assertion of its own.
        return False


def compile_quickly(environment: MutableMapping[str, str] = os.environ, *, optimised: bool = True) -> None:
    """Have XLA's CPU compile sooner, if JAX is to come; what the user has set stays.

    Commands that fit or design compile programs that run for a second: without XLA's emitters of fused loops that takes
    half as long, and half as long again without LLVM's optimisation (not ``optimised``), which many fits are worth.
    Numbers differ from other programs' in the last digits.
    """
    if "jax" not in sys.modules:
        environment["XLA_FLAGS"] = quick_flags(environment.get("XLA_FLAGS", ""), optimised=optimised)
        keep_programs(environment)


def keep_programs(environment: MutableMapping[str, str] = os.environ) -> None:
    """Have JAX keep what it compiles in the user's cache, so that the second fit of a table begins at once.

    Each processor has a folder of its own (``moejax.compilation_cache``). A program has some 20 KB, and a fit of a new
    law or table about 16 of them. Nothing is kept where the folder cannot be written, and the oldest are removed when
    there are many. A ``JAX_COMPILATION_CACHE_DIR`` that is set stays, and
    ``JAX_ENABLE_COMPILATION_CACHE=false`` keeps nothing.
    """
    if "JAX_COMPILATION_CACHE_DIR" in environment:
        return
    # Only here, as it takes a tenth of the time of --help.
    from moejax.compilation_cache import pass_over_damage, processor_mark, remove_oldest
    from moejax.folder import user_cache

    try:
        folder = user_cache(environment) / "programs" / processor_mark()
        folder.mkdir(parents=True, exist_ok=True)
        remove_oldest(folder)
    except (OSError, RuntimeError):
        # No home, no right to write there, or another command removes the same: compiled as if nothing were kept.
        return
    if os.access(folder, os.W_OK):
        environment["JAX_COMPILATION_CACHE_DIR"] = str(folder)
        environment.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.02")
        environment.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
        pass_over_damage()


def quick_flags(flags: str = "", *, optimised: bool = True) -> str:
    """``XLA_FLAGS`` with those by which a CPU's programs are soonest compiled; what is set in ``flags`` stays.

    Bits of large arrays may then depend on how many cores the process sees: not for trainings.
    """
    # Only here, as it takes a third of the time of --help.
    from importlib.metadata import version

    wanted = [] if optimised else ["xla_backend_optimization_level=0"]
    # An unknown flag ends the process, and later XLAs have the emitters alone.
    if version("jaxlib").startswith("0.10."):
        # Code in 32 parts, as XLA splits it otherwise, is 32 small modules of LLVM, most of whose time is their number.
        wanted += ["xla_cpu_use_fusion_emitters=false", "xla_cpu_parallel_codegen_split_count=2"]
    added = [f"--{flag}" for flag in wanted if flag.partition("=")[0] not in flags]
    return " ".join([*flags.split(), *added])


def stay_on(core: int | None) -> None:
    """Keep this process on one core, so that XLA starts one thread and neighbours do not disturb each other."""
    if core is not None and sys.platform == "linux":
        os.sched_setaffinity(0, {core})
