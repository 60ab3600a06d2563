"""Compare training N vmapped models with training them one by one, in the sizes of the quickstart.

taskset -c 0 python benchmarks/vmapped_runs.py --runs 2 4 8 --sizes dense-32 moe-32 dense-64 moe-64

For each size and N, it prints the processor seconds of compilation and of a step per run, one by one and vmapped in
alternating rounds, and the ratio for a whole run of ``--steps`` steps. One by one, each run compiles its own program,
as separate processes would.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import time
from collections.abc import Callable
from typing import Any

SIZES = {"dense-32": (32, 0), "moe-32": (32, 8), "dense-64": (64, 0), "moe-64": (64, 8), "moe-96": (96, 8)}
"""Width and number of experts (top-2) of the models of ``configs/studies/quickstart.py``."""


def main() -> None:
    """Measure and print a line for each size and number of runs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--sizes", nargs="+", default=["dense-32", "moe-32"], choices=SIZES)
    parser.add_argument("--runs", nargs="+", type=int, default=[4])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=295, help="steps of a whole run (default: the quickstart's)")
    options = parser.parse_args()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from moejax.train.host import keep_memory

    keep_memory()
    print("size      N  compile: one, all  step of a run, ms: alone, at once  at once / alone: steps, training")
    for size in options.sizes:
        for runs in options.runs:
            compiled, steps = measure(*SIZES[size], runs, options.rounds)
            whole = [compiled[0] + options.steps * steps[0], compiled[1] / runs + options.steps * steps[1]]
            print(
                f"{size:9s} {runs}  {compiled[0]:5.1f} s {compiled[1]:5.1f} s      "
                f"{1e3 * steps[0]:6.2f} {1e3 * steps[1]:6.2f}                    {steps[1] / steps[0]:5.2f}  "
                f"{whole[1] / whole[0]:5.2f}",
                flush=True,
            )


def measure(width: int, experts: int, runs: int, rounds: int) -> tuple[list[float], list[float]]:
    """Return processor seconds to compile one model and all models, and the median seconds of a step per run, alone and
    vmapped.
    """
    import jax
    import numpy as np

    from moejax.architecture import Architecture
    from moejax.data.config import DataConfig
    from moejax.train.mesh import MeshShape, make_mesh
    from moejax.train.program import make_program, vmap_program
    from moejax.train.training import Recipe, Training, phases

    shape: dict[str, Any] = {"num_heads": width // 16, "num_kv_heads": width // 32, "head_dim": 16}
    shape |= {"num_experts": experts, "top_k": 2, "expert_hidden": width} if experts else {"dense_hidden": 2 * width}
    architecture = Architecture(vocab_size=257, model_dim=width, num_layers=2, **shape)
    recipe = Recipe(budgets_tokens=(4_096_000,), batch_tokens=4_096, data=DataConfig(sequence_length=128))
    training = Training(name="one", architecture=architecture, recipe=recipe)
    mesh = make_mesh(MeshShape())
    tokens = np.random.default_rng(0).integers(0, 257, (runs, 32, 129)).astype(np.int32)
    schedule = phases(training)[0].schedule
    with jax.set_mesh(mesh):
        # A new function, so that no earlier call has compiled it.
        recipe = dataclasses.replace(recipe, budgets_tokens=(4_096_000 + 4096 * runs,))
        program = make_program(dataclasses.replace(training, recipe=recipe), mesh)
        started = time.process_time()
        one = program.compiled_step()
        compiled = [time.process_time() - started]
        started = time.process_time()
        every = vmap_program(program, runs).compiled_step()
        compiled.append(time.process_time() - started)
        states = [program.init(seed) for seed in range(runs)]
        stacked = jax.tree.map(lambda *leaves: jax.numpy.stack(leaves), *states)
        schedules = jax.tree.map(lambda leaf: np.full(runs, leaf, np.float32), schedule)

        def alone() -> None:
            for number in range(runs):
                states[number], _ = one(states[number], {"tokens": jax.numpy.asarray(tokens[number])}, schedule)
            jax.block_until_ready(states)

        def at_once() -> None:
            nonlocal stacked
            stacked, _ = every(stacked, {"tokens": jax.numpy.asarray(tokens)}, schedules)
            jax.block_until_ready(stacked)

        return compiled, in_turns([alone, at_once], runs, rounds)


def in_turns(ways: list[Callable[[], None]], runs: int, rounds: int) -> list[float]:
    """Return the processor seconds of a step per run in both ways, as medians over alternating rounds of four steps."""
    import numpy as np

    found: list[list[float]] = [[] for _ in ways]
    for way in ways:
        way()
    for _ in range(rounds):
        for seconds, way in zip(found, ways, strict=True):
            started = time.process_time()
            for _ in range(4):
                way()
            seconds.append((time.process_time() - started) / (4 * runs))
    return [float(np.median(seconds)) for seconds in found]


if __name__ == "__main__":
    main()
