"""Compare training speed and peak memory with Hugging Face transformers on the same CPU.

    python -m venv ~/hf && ~/hf/bin/pip install torch transformers
    python benchmarks/training.py --hf-python ~/hf/bin/python
    python benchmarks/training.py --sizes vocabulary --rounds 3

Each contender is a process that trains one model on random tokens with AdamW. Batches, lengths, shapes and loss are the
same; all use float32 and all cores. Rounds of all contenders alternate, and medians of wall and processor time are
compared. If other work shares the machine, pin all processes to one core and use the processor time. Numbers in
brackets are speeds relative to the fastest Hugging Face contender.

Hugging Face runs with each of its CPU implementations of experts, with and without glibc settings that keep freed
memory ("malloc"), which moejax always uses. moejax runs with one data-parallel device per core (``moejax train
--cpu-devices N``) and with a single device.
"""

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

START = time.perf_counter()

HERE = Path(__file__).resolve().parent
KEEP_MEMORY = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**62),
    "MALLOC_TOP_PAD_": str(2**28),
}
"""glibc settings that keep freed memory, like ``moejax.train.host`` for moejax."""


class Size(NamedTuple):
    """A model and batch: fields of an architecture, sequences per batch, and tokens per sequence."""

    shape: dict
    batch: int
    length: int


REFERENCE = {
    "vocab_size": 256,
    "model_dim": 256,
    "num_layers": 4,
    "num_heads": 4,
    "num_kv_heads": 4,
    "head_dim": 64,
    "num_experts": 16,
    "top_k": 2,
    "expert_hidden": 256,
}


def quickstart(width: int, experts: int, top_k: int) -> Size:
    """Return an MoE model of ``configs/studies/quickstart.py``."""
    shape = {
        "vocab_size": 257,
        "model_dim": width,
        "num_layers": 2,
        "num_heads": width // 16,
        "num_kv_heads": width // 32,
        "head_dim": 16,
        "num_experts": experts,
        "top_k": top_k,
        "expert_hidden": 2 * width // top_k,
    }
    return Size(shape, 32, 128)


SIZES = {
    "reference": Size(REFERENCE, 8, 512),
    "shared": Size(REFERENCE | {"num_shared_experts": 1}, 8, 512),
    "quickstart-32": quickstart(32, 8, 2),
    "quickstart-64": quickstart(64, 8, 2),
    "quickstart-64-16": quickstart(64, 16, 2),
    "quickstart-96": quickstart(96, 8, 2),
    "vocabulary": Size(REFERENCE | {"vocab_size": 32_768, "num_shared_experts": 1}, 8, 512),
}


def serve(name: str, devices: int) -> None:
    """Run a moejax contender: the program of ``moejax train`` on random tokens."""
    from moejax.train.host import keep_memory, release_memory

    keep_memory(devices)
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax
    import numpy as np

    jax.config.update("jax_num_cpu_devices", devices)
    from moejax.data.config import DataConfig
    from moejax.train.mesh import MeshShape, batch_sharding, make_mesh
    from moejax.train.program import StepsInFlight, make_program
    from moejax.train.schedule import Schedule, WarmupStableDecay
    from moejax.train.training import Recipe, Training

    size, architecture = SIZES[name], architecture_of(name)
    batch_tokens = size.batch * size.length
    recipe = Recipe(
        budgets_tokens=(1000 * batch_tokens,),
        batch_tokens=batch_tokens,
        data=DataConfig(sequence_length=size.length),
    )
    mesh = make_mesh(MeshShape())
    with jax.set_mesh(mesh):
        program = make_program(Training(name=name, architecture=architecture, recipe=recipe), mesh)
        state = program.init(0)
        drawn = np.random.default_rng(0).integers(0, architecture.vocab_size, (size.batch, size.length + 1))
        batch = jax.device_put({"tokens": drawn.astype(np.int32)}, batch_sharding(mesh))
        step = program.compiled_step()
        release_memory()
        rate = WarmupStableDecay(peak=1e-3, warmup_steps=10.0, decay_start=1e6, decay_steps=10.0, final_share=0.1)
        schedule = Schedule(learning_rate=rate, weight_decay=0.1)

        def take(steps: int) -> float:
            nonlocal state
            in_flight = StepsInFlight([step])
            loss = math.nan
            for _ in range(steps):
                state, metrics = step(state, batch, schedule)
                in_flight.add(loss := metrics["loss"])
            return float(loss)

        first = take(1)
        parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
        facts = {"start_seconds": time.perf_counter() - START, "parameters": parameters, "first_loss": first}
        print(json.dumps(facts), flush=True)
        for line in sys.stdin:
            start = time.perf_counter(), time.process_time()
            take(int(line))
            print(json.dumps([time.perf_counter() - start[0], time.process_time() - start[1]]), flush=True)
    print(json.dumps(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024), flush=True)


def architecture_of(name: str):
    from moejax.architecture import Architecture

    return Architecture(**SIZES[name].shape)


class Contender:
    """A process that trains steps on request."""

    def __init__(self, command: list[str], environment: dict[str, str]):
        self.command = command
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | environment
        )
        assert self.process.stdin
        assert self.process.stdout
        self.stdin, self.stdout = self.process.stdin, self.process.stdout
        self.facts = self._answer()
        self.seconds: list[float] = []
        self.cpu_seconds: list[float] = []

    def steps(self, count: int) -> float:
        """Train some steps and record the mean seconds per step."""
        print(count, file=self.stdin, flush=True)
        seconds, cpu_seconds = (value / count for value in self._answer())
        self.seconds.append(seconds)
        self.cpu_seconds.append(cpu_seconds)
        return seconds

    def peak_mebibytes(self) -> float:
        self.stdin.close()
        return self._answer()

    def _answer(self):
        line = self.stdout.readline()
        if not line:
            raise SystemExit(f"A contender ended: {' '.join(self.command)[:300]}")
        return json.loads(line)


def contenders(name: str, hf_python: str | None) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Return the command and environment of each contender, by name."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    found = {}
    for devices in sorted({cores, 1}, reverse=True):
        command = [sys.executable, str(Path(__file__).resolve()), "--serve", name, "--devices", str(devices)]
        found[f"moejax, {devices} device{'s' if devices > 1 else ''}"] = (command, {})
    if hf_python:
        from moejax.config import dump

        size = SIZES[name]
        shape = json.dumps(dump(architecture_of(name)))
        for experts in ("grouped_mm", "batched_mm", "eager"):
            command = [hf_python, str(HERE / "training_hf.py"), shape, str(size.batch), str(size.length), experts]
            found[f"HF {experts}"] = (command, {})
            found[f"HF {experts}, malloc"] = (command, KEEP_MEMORY)
    return found


def compare(name: str, hf_python: str | None, rounds: int, seconds: float, only: list[str]) -> None:
    """Print one line per contender."""
    size = SIZES[name]
    tokens = size.batch * size.length
    print(f"{name}: batch {size.batch} x {size.length}, {size.shape}")
    running = {
        label: Contender(*how)
        for label, how in contenders(name, hf_python).items()
        if not only or any(label.startswith(start) for start in only)
    }
    counts = {label: max(1, round(seconds / one.steps(2))) for label, one in running.items()}
    for _ in range(rounds):
        for label, one in running.items():
            one.steps(counts[label])
    speed = {label: tokens / statistics.median(one.seconds[1:]) for label, one in running.items()}
    cpu_speed = {label: tokens / statistics.median(one.cpu_seconds[1:]) for label, one in running.items()}
    for label, one in running.items():
        print(
            f"  {label:<24}{speed[label]:9.0f} tokens/s {_ratio(speed, label)}"
            f"  {cpu_speed[label]:9.0f} tokens/CPU-s {_ratio(cpu_speed, label)}  peak {one.peak_mebibytes():6.0f} MiB"
            f"  start {one.facts['start_seconds']:5.1f} s  {one.facts['parameters']:,} parameters"
            f"  first loss {one.facts['first_loss']:.3f}",
            flush=True,
        )


def _ratio(speed: dict[str, float], label: str) -> str:
    """Return a contender's speed relative to the fastest Hugging Face contender."""
    best = max((value for name, value in speed.items() if name.startswith("HF")), default=0.0)
    return f"({speed[label] / best:.2f})" if best else ""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--sizes", choices=SIZES, nargs="+", default=list(SIZES))
    parser.add_argument("--hf-python", default=os.environ.get("HF_PYTHON"), help="a Python with torch and transformers")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="approximate seconds per round of a contender")
    parser.add_argument("--only", nargs="+", default=[], help="only contenders whose names begin with this text")
    parser.add_argument("--serve", choices=SIZES, help=argparse.SUPPRESS)
    parser.add_argument("--devices", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.devices)
        return
    if options.hf_python is None:
        print("Hugging Face is left out: give --hf-python, or HF_PYTHON, a Python with torch and transformers.")
    else:
        imports = subprocess.run(
            [options.hf_python, "-c", "import torch, transformers"], capture_output=True, text=True
        )
        if imports.returncode:
            raise SystemExit(
                f"{options.hf_python} lacks torch or transformers: {imports.stderr.strip().splitlines()[-1]}"
            )
    for name in options.sizes:
        compare(name, options.hf_python, options.rounds, options.seconds, options.only)


if __name__ == "__main__":
    main()
