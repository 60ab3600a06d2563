"""Measure training steps of OLMoE's shape with fewer layers: speed, memory, XLA flags, compilation, and a profile.

The program is the same as in ``moejax train``, on random tokens. MFU is defined as in its log: the model's FLOPs,
without recomputation, as a share of the chip's stated bfloat16 peak.
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
import os
import re
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from accelerator_stages.cases import Cases, LeftOut, Row
from accelerator_stages.shapes import check_accepts, kernels, only
from accelerator_stages.timing import is_alive
from moejax.architecture import Architecture
from moejax.data.config import DataConfig
from moejax.errors import UserError
from moejax.kernels.attention import check_attention
from moejax.kernels.platform import platform
from moejax.kernels.table import TABLE
from moejax.laws.accounting import params
from moejax.laws.catalogue import CATALOGUE
from moejax.laws.memory import training_memory
from moejax.model.runtime import COMPUTE_DTYPES, REMAT_POLICIES, Runtime
from moejax.train.devices import CHIP_OF_DEVICE, Speed, check_quantization, memory
from moejax.train.mesh import MeshShape, batch_sharding, make_mesh
from moejax.train.program import StepsInFlight, make_program
from moejax.train.schedule import Schedule, WarmupStableDecay
from moejax.train.training import Recipe, Training

SEQUENCE, SEQUENCES = 4096, 8
LONGEST = 30
"""Maximum number of kernels kept from a profile."""


@dataclass(frozen=True)
class Variant:
    """Options of a step; the first value of each option is the baseline."""

    remat: str = "attn_qkv+attn_out+moe_gate_up"
    attention: str = "auto"
    backend: str = "auto"
    """A kernel of ``experts``, followed by a slash and a kernel of ``grouped_matmul`` if it uses one."""
    packing: str = "windows"
    is_scanned: bool = False
    """True if layers are scanned, so that one layer is compiled."""
    quantization: str = "none"

    @property
    def name(self) -> str:
        others = f"{', documents' * (self.packing == 'documents')}{', scanned layers' * self.is_scanned}"
        return f"remat {self.remat}, attention {self.attention}, experts {self.backend}{others}"

    def differences(self) -> int:
        """Return the number of options that differ from the baseline."""
        return sum(getattr(self, name) != getattr(Variant(), name) for name in vars(self))


def variants() -> list[Variant]:
    """Return all combinations, fewest differences first, because time may be short."""
    backends = ["auto"]
    for kernel in kernels("experts"):
        grouped = kernels("grouped_matmul") if TABLE["experts"][kernel].platform == platform() else []
        backends += [f"{kernel}/{one}" for one in grouped] or [kernel]
    every = itertools.product((Variant.remat, *REMAT_POLICIES), ("auto", *kernels("attention")), backends)
    found = [Variant(*one) for one in every]
    found[1:1] = [Variant(packing="documents"), Variant(is_scanned=True)]
    return sorted(found, key=Variant.differences)


def main(cases: Cases) -> None:
    """Measure every variant, or the first few in a rehearsal."""
    cases = replace(cases, is_alive=is_alive)
    for variant in variants()[: 4 if cases.is_dry else None]:
        cases.measure(variant.name, partial(time_step, cases, variant))


def flags(cases: Cases) -> None:
    """Measure the baseline step with this process's XLA flags."""
    row = partial(time_step, cases, Variant())
    cases.measure(cases.case, lambda: row() | {"flags": os.environ.get("XLA_FLAGS", "")})


def start(cases: Cases) -> None:
    """Measure the time of the baseline step before its second execution, with the environment's compilation cache."""
    cases.measure(cases.case, partial(time_step, cases, Variant(), seconds=0.0))


def architecture(is_dry: bool) -> Architecture:
    """Return OLMoE's shape with a number of layers that leaves half of the memory for activations."""
    full = CATALOGUE["olmoe-1b-7b"].architecture
    if is_dry:
        return full.replace(
            vocab_size=257, model_dim=32, num_layers=2, num_heads=4, num_kv_heads=4, head_dim=8, num_experts=4,
            top_k=2, expert_hidden=16,
        )  # fmt: skip
    limit = (jax.devices()[0].memory_stats() or {}).get("bytes_limit", 2**35)
    for layers in (16, 12, 8, 6, 4, 2):
        found = full.replace(num_layers=layers)
        held = training_memory(found, 0)
        if float(held.total) <= limit / 2:
            return found
    return full.replace(num_layers=1)


def training(cases: Cases, variant: Variant) -> Training:
    length, sequences = (32, 4) if cases.is_dry else (SEQUENCE, SEQUENCES)
    dtype = "float32" if cases.is_dry else "bfloat16"
    recipe = Recipe(
        budgets_tokens=(1000 * length * sequences,),
        batch_tokens=length * sequences,
        data=DataConfig(source="", sequence_length=length, packing=variant.packing),
        runtime=Runtime(
            compute_dtype=dtype,
            scan_layers=variant.is_scanned,
            remat=variant.remat,
            attention=variant.attention,
            matmul_quantization=variant.quantization,
        ),
    )
    return Training(name="step", architecture=architecture(cases.is_dry), recipe=recipe)


class Step:
    """A compiled step with its state and a batch."""

    def __init__(self, given: Training) -> None:
        self.mesh = make_mesh(MeshShape())
        program = make_program(given, self.mesh)
        began = time.perf_counter()
        lowered = program.step.lower(*program.step_shapes())
        self.lower_seconds = time.perf_counter() - began
        self.compiled = lowered.compile()
        self.compile_seconds = time.perf_counter() - began - self.lower_seconds
        self.state = jax.block_until_ready(program.init(0))
        recipe = given.recipe
        shape = (recipe.batch_sequences, recipe.data.sequence_length + 1)
        drawn = np.random.default_rng().integers(0, int(given.architecture.vocab_size), shape)
        arrays = {"tokens": drawn.astype(np.int32)}
        if "segments" in program.batch:
            arrays["segments"] = np.broadcast_to(1 + np.arange(shape[1]) * 4 // shape[1], shape).astype(np.int32)
        self.batch = jax.device_put(arrays, batch_sharding(self.mesh))
        rate = WarmupStableDecay(peak=1e-4, warmup_steps=10.0, decay_start=1e6, decay_steps=10.0, final_share=0.1)
        self.schedule = Schedule(learning_rate=rate, weight_decay=0.1)

    def take(self, steps: int) -> float:
        """Return the mean seconds per step over consecutive steps."""
        began, in_flight = time.perf_counter(), StepsInFlight([self.compiled])
        loss = jnp.nan
        for _ in range(steps):
            self.state, metrics = self.compiled(self.state, self.batch, self.schedule)
            in_flight.add(loss := metrics["loss"])
        if not np.isfinite(float(loss)):
            raise ArithmeticError(f"the loss is {float(loss)}")
        return (time.perf_counter() - began) / steps

    @property
    def program_bytes(self) -> int:
        """Return the total bytes of the program's arguments, results and temporaries."""
        m: Any = self.compiled.memory_analysis()
        together = m.argument_size_in_bytes + m.output_size_in_bytes + m.temp_size_in_bytes
        return together - m.alias_size_in_bytes


@contextlib.contextmanager
def chosen(backend: str) -> Iterator[None]:
    """Make programs traced in this context compute experts by this backend."""
    # Earlier traces used other kernels.
    jax.clear_caches()
    kernel, _, grouped = backend.partition("/")
    with contextlib.ExitStack() as stack:
        if kernel != "auto":
            stack.enter_context(only("experts", kernel))
        if grouped:
            stack.enter_context(only("grouped_matmul", grouped))
        yield


def time_step(cases: Cases, variant: Variant, *, seconds: float | None = None) -> Row:
    """Measure tokens per second, MFU, memory and compilation time of a variant."""
    given = training(cases, variant)
    runtime, tokens = given.recipe.runtime, given.recipe.batch_tokens
    try:
        check_attention(given.architecture, runtime.attention, runtime.compute_dtype)
        check_quantization(given.architecture, runtime, CHIP_OF_DEVICE.get(jax.devices()[0].device_kind, ""))
    except UserError as error:
        raise LeftOut(str(error)) from error
    _check_backend(variant.backend, given)
    seconds = (0.2 if cases.is_dry else 2.0) if seconds is None else seconds
    before = memory()["memory_peak_bytes"]
    with jax.set_mesh(make_mesh(MeshShape())), chosen(variant.backend):
        step = Step(given)
        first = step.take(1)
        once = step.take(1)
        times = [step.take(max(1, round(seconds / 3 / once))) for _ in range(3)]
    middle, peak = sorted(times)[1], memory()["memory_peak_bytes"]
    shape, speed = params(given.architecture), Speed(given).of(tokens, middle)
    # With packed documents, attention computes fewer scores than MFU and Hugging Face's step count.
    alike: Row = {"same_as": "step"} if variant.packing == "windows" else {"mfu": None}
    return {
        "milliseconds": 1e3 * middle,
        "spread": (max(times) - min(times)) / middle,
        **speed,
        **alike,
        "program_gigabytes": step.program_bytes / 1e9,
        # The process's peak memory is this program's only if no earlier program needed more.
        "peak_gigabytes": peak / 1e9 if peak > before else None,
        "lower_seconds": step.lower_seconds,
        "compile_seconds": step.compile_seconds,
        "first_step_seconds": first,
        **calls(step.compiled.as_text() or ""),
        "layers": int(given.architecture.num_layers),
        "params": float(shape.total),
        "params_active": float(shape.active),
        "batch_tokens": tokens,
    }


def _check_backend(backend: str, given: Training) -> None:
    """Raise ``LeftOut`` if this device's kernel cannot compute the grouped matmuls of a case."""
    _, _, grouped = backend.partition("/")
    if grouped:
        a, dtype = given.architecture, COMPUTE_DTYPES[given.recipe.runtime.compute_dtype]
        rows = jax.ShapeDtypeStruct((given.recipe.batch_tokens * int(a.top_k), int(a.model_dim)), dtype)
        matrices = jax.ShapeDtypeStruct((int(a.num_experts), int(a.model_dim), int(a.expert_hidden)), dtype)
        check_accepts("grouped_matmul", grouped, rows, matrices)


def calls(text: str) -> Row:
    """Return the counts of custom calls, by name, and of loops in a compiled program, which show the kernels that
    "auto" chose.
    """
    targets = Counter(re.findall(r'custom_call_target="([^"]+)"', text))
    return {"calls": dict(targets.most_common()), "while_loops": len(re.findall(r" while\(", text))}


def profile(cases: Cases) -> None:
    """Profile two baseline steps with JAX's profiler, and keep the longest kernels."""
    cases = replace(cases, is_alive=is_alive)
    cases.measure("two steps", partial(_profile, cases))


def _profile(cases: Cases) -> Row:
    with jax.set_mesh(make_mesh(MeshShape())), tempfile.TemporaryDirectory() as folder:
        step = Step(training(cases, Variant()))
        step.take(2)
        with jax.profiler.trace(folder):
            step.take(2)
        (path,) = Path(folder).rglob("*.xplane.pb")
        kernels = longest(jax.profiler.ProfileData.from_file(str(path)), operations(step.compiled.as_text() or ""))
    # Operations of the instruction names.
    with gzip.open(cases.out / "step.hlo.txt.gz", "wt", encoding="utf-8") as file:
        file.write(step.compiled.as_text() or "")
    if not kernels:
        raise LeftOut("the profiler saw no kernel of the device")
    return {"kernels": kernels}


def operations(text: str) -> dict[str, str]:
    """Return the JAX operation of each instruction of a compiled program."""
    return dict(re.findall(r'^\s*(?:ROOT )?%?([\w.-]+) = .*?op_name="([^"]+)"', text, re.MULTILINE))


def longest(data: Any, operations: dict[str, str]) -> list[Row]:
    """Return kernels by name with the largest total time: in a GPU's streams, a TPU's ops, or XLA's CPU threads."""
    planes = [plane for plane in data.planes if plane.name.startswith("/device:") and "CUSTOM" not in plane.name]
    lines = [line for plane in planes for line in plane.lines]
    streams = [line for line in lines if line.name.startswith(("Stream", "XLA Ops"))]
    host = [line for plane in data.planes if plane.name == "/host:CPU" for line in plane.lines]
    nanoseconds: dict[tuple[str, str], float] = defaultdict(float)
    calls: dict[tuple[str, str], int] = defaultdict(int)
    for line in streams or lines or [line for line in host if "XLA" in line.name]:
        for event in line.events:
            # A library kernel has the same name at every call.
            instruction = str(dict(event.stats).get("hlo_op", ""))
            nanoseconds[event.name, instruction] += event.duration_ns
            calls[event.name, instruction] += 1
    total = sum(nanoseconds.values())
    keys = sorted(nanoseconds, key=lambda key: -nanoseconds[key])[:LONGEST]
    return [
        {"name": key[0][:120], "instruction": key[1], "operation": operations.get(key[1], "")[-120:],
         "calls": calls[key], "milliseconds": nanoseconds[key] / 1e6, "share": nanoseconds[key] / total}
        for key in keys
    ]  # fmt: skip
