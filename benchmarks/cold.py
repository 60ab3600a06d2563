"""Measure the time of a user's first commands, including compilation, each in its own process.

    python benchmarks/cold.py                              some six minutes
    python benchmarks/cold.py --only fit design --rounds 7
    python benchmarks/cold.py --also OTHER/.venv/bin/python        also another checkout, for a comparison of versions

Each command runs cold, with an empty compilation cache, and a second time with the filled cache. Rounds alternate
between the commands, ``import scipy.optimize, pandas`` and ``import jax``. The table has medians over rounds of the
processor time of all threads (user and system) and of wall time. If other work shares the machine, use the processor
time, and consider the printed load.

The run table has 16 runs and 11 columns, by Chinchilla's law with the effect of experts by chapter 002's law and 0.3 %
noise. ``compare`` compares fifteen laws, ``compare-all`` all laws that can be fitted to these columns.
"""

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from moejax.fit.runs import runs_from
from moejax.fit.selection.metrics import predict
from moejax.laws.design import Design
from moejax.laws.mixtures.effective_params import CHAPTER_002

PAPERS = (
    "chinchilla,data_constrained,five_factor,four_factor,three_factor,two_factor,marginal_active,marginal_experts,"
    "marginal_shared,sparsity,granularity,expert_count,routed,dense_to_moe,effective_params"
)
"""Fifteen loss laws of sizes and tokens, from the five papers and their sources."""
COMMANDS = {
    "predict": "predict --law all --arch qwen3-30b-a3b --tokens 10T",
    "fit": "fit runs.csv --law effective_params",
    "design": "design --law zhao --flops 1e24 --chips 512 --days 30 --memory 80G",
    "compare": f"compare runs.csv --laws {PAPERS}",
    "compare-all": "compare runs.csv",
}
IMPORTS = {"import scipy.optimize, pandas": "import scipy.optimize, pandas", "import jax": "import jax"}


class Seconds(NamedTuple):
    """Processor seconds of all threads, and wall seconds."""

    processor: float
    clock: float


def runs(count: int = 16) -> pd.DataFrame:
    """Return a table of MoE runs with the columns that loss laws read."""
    rng = np.random.default_rng(0)
    experts, top_k = 2.0 ** rng.integers(3, 7, count), 2.0 ** rng.integers(0, 3, count)
    active, tokens = np.exp(rng.uniform(np.log([2e7, 5e8]), np.log([1e9, 2e10]), (count, 2))).T
    design = Design(params_active=active, params_total=active * (1 + 0.7 * (experts / top_k - 1)), tokens=tokens)
    table = {
        "params_active": active,
        "params_total": design.params_total,
        "tokens": tokens,
        "unique_tokens": tokens / rng.choice([1, 2, 4], count),
        "flops": 6 * active * tokens,
        "num_experts": experts,
        "top_k": top_k,
        "num_shared_experts": rng.integers(0, 2, count),
        "model_dim": 64 * np.round((active / 2e5) ** 0.4),
        "expert_hidden": 128 * np.round((active / 1e5) ** 0.4),
        "num_layers": np.round(4 + 3 * rng.random(count) + np.log(active / 2e7)),
    }
    exact = predict(CHAPTER_002, runs_from(design, np.ones(count)))
    return pd.DataFrame({**table, "loss": exact * np.exp(0.003 * rng.normal(size=count))})


def timed(words: list[str], folder: Path, environment: dict[str, str]) -> Seconds:
    """Return the seconds of a process.

    Raises:
      RuntimeError: the process failed; the message has its output.
    """
    with tempfile.TemporaryFile() as said:
        began = time.perf_counter()
        process = subprocess.Popen(words, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=said)
        _, status, used = os.wait4(process.pid, 0)
        clock = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            said.seek(0)
            raise RuntimeError(f"{' '.join(words)} ended with {process.returncode}: {said.read().decode()}")
    return Seconds(used.ru_utime + used.ru_stime, clock)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    parser.add_argument("--also", action="append", default=[], metavar="PYTHON", help="Python of another checkout")
    options = parser.parse_args()
    pythons = {"": sys.executable} | {f" of {python}": python for python in options.also}
    usual = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_", "PYTHON"))}
    taken: dict[str, list[Seconds]] = {}
    loads = [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        runs().to_csv(folder / "runs.csv", index=False)
        for number in range(options.rounds):
            for name, code in IMPORTS.items():
                words = [sys.executable, "-c", code]
                taken.setdefault(name, []).append(timed(words, folder, usual))
            for name in options.only:
                for which, python in pythons.items():
                    words = [python, "-m", "moejax", *COMMANDS[name].split()]
                    environment = {**usual, "XDG_CACHE_HOME": str(folder / f"{name}-{number}-{Path(python).parts[-4]}")}
                    for time_of_day in ("first", "second"):
                        seconds = timed(words, folder, environment)
                        taken.setdefault(f"{name}{which}, {time_of_day}", []).append(seconds)
                        print(name, which, time_of_day, *map("{:.2f}".format, seconds), file=sys.stderr, flush=True)
            loads.append(os.getloadavg()[0])
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {min(loads):.1f} to "
          f"{max(loads):.1f}; {options.rounds} rounds; medians, and from the least to the most.\n")  # fmt: skip
    print("| command | processor, s | by the clock, s |\n|---|---|---|")
    for name, found in taken.items():
        cells = []
        for of_kind in zip(*found, strict=True):
            cells.append(f"{statistics.median(of_kind):.2f} ({min(of_kind):.2f} to {max(of_kind):.2f})")
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
