"""Measure an accelerator: its peak rates, the correctness of moejax's kernels, and the speed of training steps.

    python benchmarks/accelerator.py --out runs/first_gpu
    python benchmarks/accelerator.py --dry
    python benchmarks/accelerator.py --only machine correctness grouped --minutes 5 --out runs/kernels
    python benchmarks/accelerator.py --hf-python ~/hf/bin/python
    python benchmarks/accelerator.py --join runs/first_gpu runs/kernels

Each stage runs in its own processes and within its share of the minutes. A case that crashes or hangs is recorded as an
error, and the stage continues with the next case. OUT/rows.jsonl gets each row when it is measured, OUT/log.txt the
output of the processes, and OUT/table.md the tables after every stage. ``--dry`` rehearses all stages with tiny shapes
on a CPU; its times are meaningless. No network is needed. docs/accelerators.md lists the requirements of a machine.

The exit status is 1 if a case ended with an error, 2 if nothing can be measured here.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import signal
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Import the package next to this folder, whether it is installed or not.
sys.path.insert(1, str(HERE.parent))

from accelerator_stages.cases import ROWS, Cases, Row, append, read, sentence  # noqa: E402
from accelerator_stages.packages import advice, missing  # noqa: E402
from accelerator_stages.processes import Limits, Runner, Stage  # noqa: E402
from accelerator_stages.summary import current, summary  # noqa: E402

from moejax.cli.process import quick_flags, take_gpu_memory  # noqa: E402
from moejax.data.workers import end_with  # noqa: E402
from moejax.report import render  # noqa: E402

FLAGS = {
    "XLA's own": "",
    "no Triton products": "--xla_gpu_enable_triton_gemm=false",
    "no command buffers": "--xla_gpu_enable_command_buffer=",
    "latency-hiding scheduler": "--xla_gpu_enable_latency_hiding_scheduler=true",
}
"""Flags that MaxText and NVIDIA's JAX-Toolbox set for H100, measured one at a time; flags for several GPUs are left
out."""
STAGES = {
    "machine": Stage("accelerator_stages.machine:main", 8),
    "ceilings": Stage("accelerator_stages.ceilings:main", 7),
    # XLA's autotuning of float32 matmuls alone takes minutes.
    "correctness": Stage("accelerator_stages.correctness:main", 16, {"": {"XLA_FLAGS": "--xla_gpu_autotune_level=0"}}),
    "grouped": Stage("accelerator_stages.grouped:main", 18),
    "attention": Stage("accelerator_stages.attention:main", 8),
    "steps": Stage("accelerator_stages.steps:main", 18),
    "hugging_face": Stage("accelerator_stages.hugging_face:main", 8),
    # In a command buffer, kernels have the buffer's name instead of the names of their instructions.
    "profile": Stage("accelerator_stages.steps:profile", 4, {"": {"XLA_FLAGS": "--xla_gpu_enable_command_buffer="}}),
    "compile": Stage("accelerator_stages.steps:start", 6, {"cold": {}, "warm": {}}),
    "resume": Stage("accelerator_stages.resume:main", 7),
    "eight_bits": Stage("accelerator_stages.eight_bits:main", 8),
    "flags": Stage("accelerator_stages.steps:flags", 8, {name: {"XLA_FLAGS": flags} for name, flags in FLAGS.items()}),
}
"""Stages in order of importance."""
DRY_MINUTES = 8.0
"""Minutes for a rehearsal, several times its usual duration."""
SILENCE_SECONDS = 150.0


def run(out: Path, names: list[str], minutes: float, is_dry: bool, hf_python: str) -> int:
    """Run the given stages and always the first, and print their tables."""
    lacking = missing(HERE.parent / "pyproject.toml")
    print(advice(lacking), flush=True)
    began = int(time.time())
    append(out / ROWS, {"run": began, "stage": "packages", "case": "missing", "packages": lacking, "is_dry": is_dry})
    print(f"Rows: {out / ROWS}; output of the processes: {out / 'log.txt'}.", flush=True)

    def after(name: str) -> bool:
        rows = [row for row in read(out / ROWS) if row["run"] == began and row["stage"] == name and "begun" not in row]
        for row in rows:
            print(f"{name:<12} {row['case']:<44} {_told(row)}", flush=True)
        _write_tables(out)
        return is_dry or not _has_only_a_cpu(rows)

    with tempfile.TemporaryDirectory() as cache:
        _set_environment(cache, is_dry)
        stages = {name: stage for name, stage in STAGES.items() if name in ("machine", *names)}
        if "hugging_face" in stages:
            stages["hugging_face"] = replace(stages["hugging_face"], python=hf_python)
        if "flags" in stages and is_dry:
            stages["flags"] = replace(stages["flags"], processes=dict(list(stages["flags"].processes.items())[1:2]))
        if "compile" in stages:
            own = {"JAX_COMPILATION_CACHE_DIR": f"{cache}/own"}
            stages["compile"] = replace(stages["compile"], processes=dict.fromkeys(("cold", "warm"), own))
        limits = Limits(60 * minutes, SILENCE_SECONDS)
        Runner(out, began, limits, HERE / "accelerator.py", ["--dry"] if is_dry else []).stages(stages, after)
    rows = read(out / ROWS)
    mine = [row for row in current(rows) if row["run"] == began]
    # The rows were printed above; end with the most important table.
    result = summary(rows, only_limits=True)
    print()
    render.show(result) if importlib.util.find_spec("rich") else print(render.markdown(result))
    print(f"\nThe tables: {out / 'table.md'}. {time.time() - began:.0f} s.")
    if not is_dry and _has_only_a_cpu(mine):
        print("JAX finds no accelerator here, so nothing was measured; --dry rehearses on a CPU.", file=sys.stderr)
        return 2
    return int(any("error" in row for row in mine))


def _has_only_a_cpu(rows: list[Row]) -> bool:
    """Return whether the stage ``machine`` found no accelerator; False if the stage was stopped early."""
    return any(row.get("platform") == "cpu" for row in rows)


def _told(row: Row) -> str:
    """Summarize a row in one line."""
    if why := row.get("error") or row.get("left_out"):
        return f"{'ERROR' if 'error' in row else 'left out'}: {why}"
    values = {name: value for name, value in row.items() if name not in ("run", "stage", "case")}
    return ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in values.items()
        if not isinstance(value, list | dict)
    )[:200]


def _write_tables(out: Path) -> None:
    (out / "table.md").write_text(render.markdown(summary(read(out / ROWS)), level=2), encoding="utf-8")


def _set_environment(cache: str, is_dry: bool) -> None:
    """Set environment variables for the stages' processes."""
    if is_dry:
        os.environ["JAX_PLATFORMS"] = "cpu"
        # Programs take longer to compile than to run.
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {quick_flags(optimized=False)}"
    elif platforms := os.environ.get("JAX_PLATFORMS"):
        # Checks compare with results of the host's CPU.
        os.environ["JAX_PLATFORMS"] = platforms if "cpu" in platforms else f"{platforms},cpu"
    # On the CPU, use plain JAX: the CPU kernels do not run on accelerators and take half a minute to compile.
    os.environ["NUMBA_DISABLE_JIT"] = "1"
    take_gpu_memory()
    # Use one GPU; communication between GPUs is not measured.
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")
    # Stages reuse each other's compiled programs; compile times are measured with separate caches.
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", cache)
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.5"
    os.environ["PYTHONUNBUFFERED"] = "1"


def serve(options: argparse.Namespace) -> None:
    """Run a stage in this process."""
    given = (options.stage, options.out, options.run, options.deadline, options.dry, options.case)
    module, _, function = options.child.partition(":")
    print(f"--- {options.stage} {options.case}", flush=True)
    try:
        main = getattr(importlib.import_module(module), function)
    except ImportError as error:
        Cases(*given).write(options.case or "imports", error=sentence(error))
        return
    main(Cases(*given))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="folder for rows, log and tables (default: runs/accelerator; runs/accelerator-dry with --dry)",
    )
    parser.add_argument("--minutes", type=float, help=f"for all stages together; 9, or {DRY_MINUTES:g} with --dry")
    parser.add_argument("--only", nargs="+", default=list(STAGES), metavar="STAGE", help=f"of {', '.join(STAGES)}")
    parser.add_argument("--dry", action="store_true", help="rehearse on a CPU with tiny shapes")
    parser.add_argument("--hf-python", default=sys.executable, help="a Python with torch, transformers and moejax's")
    parser.add_argument("--join", type=Path, nargs="+", help="print common tables of the rows in these folders")
    for hidden in ("--child", "--stage", "--case"):
        parser.add_argument(hidden, default="", help=argparse.SUPPRESS)
    parser.add_argument("--run", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--parent", type=int, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--deadline", type=float, default=0.0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        end_with(options.parent)
        serve(options)
        return 0
    if options.join:
        if empty := [folder for folder in options.join if not read(folder / ROWS)]:
            parser.error(f"{empty[0]} has no {ROWS} with rows; give folders that --out named.")
        rows = [row for folder in options.join for row in read(folder / ROWS)]
        print(render.markdown(summary(rows), level=2))
        return 0
    names = [name for word in options.only for name in word.split(",") if name]
    if not names:
        parser.error(f"--only contains no stage; the stages are {', '.join(STAGES)}.")
    if unknown := [name for name in names if name not in STAGES]:
        parser.error(f"unknown stage {', '.join(unknown)}; the stages are {', '.join(STAGES)}.")
    out = options.out or Path("runs", "accelerator-dry" if options.dry else "accelerator")
    minutes = options.minutes if options.minutes is not None else DRY_MINUTES if options.dry else 9.0
    if not minutes > 0:
        parser.error(f"--minutes is {minutes:g}; give a positive number.")
    if out.is_dir() and any(out.iterdir()) and not read(out / ROWS):
        parser.error(f"--out {out} contains files but no rows of this benchmark; name an empty or new folder.")
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / ROWS).open("a", encoding="utf-8").close()
    except OSError as error:
        parser.error(f"--out {out} cannot be written: {error.strerror}; name another folder.")
    # Keep the measurements if the user stops the benchmark or the connection is lost.
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    return run(out, names, minutes, options.dry, options.hf_python)


if __name__ == "__main__":
    sys.exit(main())
