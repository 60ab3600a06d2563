"""How long a compiled program takes on one chip: its kernels one after another, beside its links.

Two counts, a long one and a short one:

- By XLA's cycles: each of XLA's own kernels as long as the cost model of its TPU compiler says, which gives plain
  additions several times what their bytes need; grouped products with all rows that there is room for.
- At least (``floor_seconds``): kernels without a product no longer than their bytes at the bandwidth of the chip's
  memory, and grouped products with the rows that a balanced routing fills. Where nobody states the chip's clock, as of
  any GPU, there is this count alone, with products at the chip's peak or their bytes, whichever takes longer. It is no
  strict bound: XLA's cycles of products are estimates, and what overlaps with exchanges on TPUs is assumed.

In both, kernels of Pallas and attention compute at the chip's peak: grouped products what they state or, as on GPUs
they state nothing, what their arrays say; attention the scores that its kernels meet: on a TPU whole blocks, of which
the masked half of a block on the diagonal is a part. What runs only where a buffer is too small is left out.

Exchanges on GPUs overlap with what stands between their beginning and their end in the program's schedule, one after
another in the order in which they begin. XLA's TPU compiler weaves them into kernels instead, so that for TPUs the
roofline's overlap is assumed (``moejax.plan.step_time``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from moejax.laws.chips import Chip
from moejax.plan.step_time import OverlappedLinks
from moejax.train.collectives import bytes_of_arrays
from moejax.train.program_text import Instruction, instructions
from moejax.train.training import Training


@dataclass(frozen=True, kw_only=True)
class ProgramTime(OverlappedLinks):
    """Seconds of one run of a compiled program on one device."""

    xla_seconds: float
    """Kernels that XLA's TPU compiler writes itself, by its cycles; 0 where nobody states these, or the clock."""
    xla_seconds_at_bandwidth: float
    """XLA's own kernels, without products at the bandwidth of the chip's memory; where nobody states the clock, with
    products at the chip's peak."""
    pallas_seconds: float
    """Kernels of Pallas and of attention, with all rows of experts that there is room for."""
    pallas_seconds_of_rows: float
    """The same with the rows that a balanced routing fills."""
    link_seconds: dict[str, float]
    """Between chips, by mesh axes joined with a plus."""
    flops: float = 0.0
    """Of all products, of experts with the rows that a balanced routing fills."""
    waited_seconds: float | None = None
    """Between chips, without any work beside it by the program's schedule; None where the overlap is assumed."""
    kernels: int = 0
    """How many kernels a GPU is given at least."""
    launch_seconds: float = 0.0
    """To launch these and the exchanges; in neither count, as it goes on beside the kernels before."""
    once_counted: int = 0
    """Kernels in loops of which the program does not say how often they turn: counted once, they make both counts too
    short."""

    @property
    def cycles_seconds(self) -> float:
        """By XLA's cycles; NaN where nobody states these, or the clock."""
        return self.beside(self.xla_seconds + self.pallas_seconds) if self.xla_seconds else math.nan

    @property
    def floor_seconds(self) -> float:
        """Kernels at the peak of what limits them, products by XLA's cycles where there are any."""
        work = self.xla_seconds_at_bandwidth + self.pallas_seconds_of_rows
        return self.beside(work) if self.waited_seconds is None else work + self.waited_seconds


KERNEL_LAUNCH_SECONDS, EXCHANGE_LAUNCH_SECONDS = 1e-6, 5e-6
"""What XLA's own cost model takes to launch a kernel on a GPU, and one of NCCL: ``gpu_performance_model_base.h``, read
on 2026-11-25. CUDA's graphs, which XLA makes of parts of a program, take less."""


@dataclass(frozen=True)
class CompiledKernel:
    """What a program launches, or another of its instructions that calls no others."""

    run: Instruction
    parts: tuple[Instruction, ...]
    """What it is made of: itself, and the instructions that are fused in it."""

    @property
    def times(self) -> int:
        """How often it runs in one run of the program."""
        return self.run.times


def program_time(
    text: str, chip: Chip, rows: float, link_seconds: dict[str, float], exchanges: Mapping[str, float]
) -> ProgramTime:
    """The time of a program by its text; ``rows`` is the share of the room for rows of experts that is filled, and
    ``exchanges`` has the seconds of one run of each collective, by its instruction's name."""
    found = kernels(text)
    # Attention has all its rows.
    attention = sum(one.times * attention_seconds(one, chip) for one in found)
    is_gpu = not chip.torus_dimensions
    launched = sum(one.times for one in found if _is_launched(one)) if is_gpu else 0
    exchanged = sum(one.times for one in found if one.run.name in exchanges) if is_gpu else 0
    return ProgramTime(
        xla_seconds=compiler_seconds(found, chip),
        xla_seconds_at_bandwidth=compiler_floor_seconds(found, chip),
        pallas_seconds=pallas_seconds(found, chip) + attention,
        pallas_seconds_of_rows=pallas_seconds(found, chip, rows=rows) + attention,
        link_seconds=link_seconds,
        flops=sum(one.times * kernel_flops(one, rows) for one in found),
        waited_seconds=waited_seconds(found, chip, rows, exchanges) if is_gpu else None,
        kernels=launched,
        launch_seconds=launched * KERNEL_LAUNCH_SECONDS + exchanged * EXCHANGE_LAUNCH_SECONDS,
        once_counted=sum(_is_launched(one) and not one.run.times_known for one in found),
    )


def filled_rows(training: Training, mesh: Mapping[str, int]) -> float:
    """Share of the room for rows of experts that a balanced routing fills.

    Along ``expert`` there is room for more, up to all rows of the group's devices (``moejax.routing.communication``).
    """
    return 1 / min(training.recipe.runtime.buffer_factor, mesh["expert"])


def kernels(text: str) -> list[CompiledKernel]:
    """What runs in every step, in the order in which it is written."""
    found: list[tuple[Instruction, list[Instruction]]] = []
    for run in instructions(text):
        if run.is_rare:
            continue
        if run.fusion:
            found[-1][1].append(run)
        else:
            found.append((run, [run]))
    return [CompiledKernel(run, tuple(parts)) for run, parts in found]


_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
UNKNOWN_CYCLES = 2**62
"""From here on a number of cycles is the compiler's word for not knowing."""


def compiler_seconds(kernels: Sequence[CompiledKernel], chip: Chip) -> float:
    """Seconds of the kernels that XLA's TPU compiler writes itself: the cycles it expects, at the chip's clock; 0 where
    nobody states it. Collectives and kernels of Pallas have no cycles.
    """
    return sum(one.times * _cycles_seconds(one, chip) for one in kernels if not one.run.is_offloaded)


def compiler_floor_seconds(kernels: Sequence[CompiledKernel], chip: Chip) -> float:
    """Seconds of XLA's own kernels at least, each by ``floor_seconds``; all of them no shorter than what they move,
    and what copies and SparseCores, which run beside them, do.
    """
    total, of_memory = 0.0, _bytes_moved_beside(kernels) / chip.memory_bytes_per_second
    for one in _own_kernels(kernels):
        seconds = floor_seconds(one, chip)
        total += one.times * seconds
        of_memory += one.times * min(seconds, bytes_moved(one) / chip.memory_bytes_per_second)
    return max(total, of_memory)


def floor_seconds(kernel: CompiledKernel, chip: Chip) -> float:
    """Seconds of one run of one of XLA's own kernels at least: without a product no longer than what it reads and
    writes at the bandwidth of the chip's memory.

    Where nobody states the clock, products at the chip's peak, or their bytes if these take longer.
    """
    seconds, at_bandwidth = _cycles_seconds(kernel, chip), bytes_moved(kernel) / chip.memory_bytes_per_second
    if not seconds:
        return max(sum(_product_seconds(part, chip) for part in kernel.parts), at_bandwidth)
    return seconds if any(map(_is_product, kernel.parts)) else min(seconds, at_bandwidth)


def _bytes_moved_beside(kernels: Iterable[CompiledKernel]) -> int:
    """What copies between the chip's memory and what is on the chip move, whatever of their two ends lies there; and
    what SparseCores read and write."""
    return sum(
        one.times * (_bytes(one.run.type) if one.run.opcode == "copy-start" else bytes_moved(one))
        for one in kernels
        if one.run.opcode == "copy-start" or (one.run.is_offloaded and _is_launched(one))
    )


def _cycles(kernel: CompiledKernel) -> int:
    """Cycles that XLA's TPU compiler states of a kernel; 0 where it states none."""
    stated = _CYCLES.search(kernel.run.rest)
    return int(stated[1]) if stated is not None and int(stated[1]) < UNKNOWN_CYCLES else 0


def _cycles_seconds(kernel: CompiledKernel, chip: Chip) -> float:
    return _cycles(kernel) / chip.cycles_per_second if chip.cycles_per_second else 0.0


def _own_kernels(kernels: Sequence[CompiledKernel]) -> list[CompiledKernel]:
    """XLA's own: where its compiler states cycles, those that have some, as the others are woven into exchanges; on a
    GPU all that is launched and is no kernel of Pallas or of attention. What is offloaded runs beside them."""
    kernels = [one for one in kernels if not one.run.is_offloaded]
    return [one for one in kernels if _cycles(one)] or [
        one for one in kernels if _is_launched(one) and not _is_pallas(one) and not attention_flops(one)
    ]


def kernel_flops(kernel: CompiledKernel, rows: float = 1.0) -> float:
    """FLOPs of the products of one run of a kernel; of grouped ones ``rows`` is the share of the rows that count."""
    if _is_pallas(kernel):
        stated = _STATED.search(kernel.run.rest)
        return rows * (int(stated["flops"]) if stated else grouped_flops(kernel.run))
    return attention_flops(kernel) or sum(product_flops(part) for part in kernel.parts if _is_product(part))


_NOT_LAUNCHED = re.compile(
    r"(parameter|constant|tuple|get-tuple-element|bitcast|after-all|opt-barrier|partition-id|replica-id|domain"
    r"|all-.*|collective-.*|reduce-scatter.*|ragged-all-to-all.*|.*-done|copy-start|async-.*|send|recv)$"
)
"""Opcodes of what is no kernel: names, and what goes over links or beside kernels."""


def _is_launched(kernel: CompiledKernel) -> bool:
    return _NOT_LAUNCHED.match(kernel.run.opcode) is None


def waited_seconds(kernels: Iterable[CompiledKernel], chip: Chip, rows: float, exchanges: Mapping[str, float]) -> float:
    """Seconds in which no kernel runs, as the next one waits for an exchange to end.

    Kernels run one after another as they are written, and so do exchanges, each no sooner than it is begun. A loop's
    body stands once for all its turns: what begins in it ends there.
    """
    worked = linked = waited = 0.0
    ends: dict[str, float] = {}
    for one in kernels:
        name, opcode = one.run.name, one.run.opcode
        if name in exchanges:
            linked = max(linked, worked + waited) + one.times * exchanges[name]
            if opcode.endswith("-start") and '"is_sync":true' not in one.run.rest:
                ends[name] = linked
                continue
            end = linked
        elif opcode.endswith("-done"):
            end = ends.pop(one.run.operand_names[0], 0.0)
        else:
            worked += one.times * launched_seconds(one, chip, rows)
            continue
        waited += max(0.0, end - worked - waited)
    return waited


def launched_seconds(kernel: CompiledKernel, chip: Chip, rows: float) -> float:
    """Seconds of one run of a kernel at least; 0 for what is none."""
    if not _is_launched(kernel):
        return 0.0
    if _is_pallas(kernel):
        return _pallas_kernel_seconds(kernel, chip, rows)
    return attention_seconds(kernel, chip) or floor_seconds(kernel, chip)


_IN_PART = ("dynamic-slice", "slice", "gather")
"""What reads only a part of its first operand."""
_ALIKE = ("bitcast", "reshape", "convert", "copy", "transpose")
"""What has the numbers of its operand, so that a part of it is a part of that."""


def bytes_moved(kernel: CompiledKernel) -> int:
    """Bytes of the chip's memory that a kernel reads and writes: its operands and results that lie there; of an array
    that it takes slices or rows of, or whose slices or rows are its result, those alone."""
    run = kernel.run
    read, written = [0.0] * len(run.operands), _bytes(_WORKSPACE.sub("", run.type) if _is_library(run) else run.type)
    for part, operands, is_result in _uses(kernel):
        for place, operand in enumerate(operands):
            if operand is None:
                continue
            whole, update = _bytes(run.operands[operand]), _written_in_place(part) if is_result else ""
            if place == 0 and update and whole == _size(part.type):
                # Nothing else of it is read, or written.
                written -= whole - _size(update)
            elif place == 0 and part.opcode in _IN_PART:
                read[operand] += whole * _size(part.type) / max(_size(part.operands[0]), 1)
            else:
                read[operand] += whole
    return int(sum(min(some, _bytes(type_)) for some, type_ in zip(read, run.operands, strict=True))) + max(written, 0)


def _uses(kernel: CompiledKernel) -> Iterator[tuple[Instruction, Sequence[int | None], bool]]:
    """The instructions in a kernel; which of its operands each of theirs is, if it is one; whether it is a result."""
    run = kernel.run
    if run.opcode != "fusion":
        yield run, range(len(run.operands)), True
        return
    of_fusion: dict[str, Sequence[int | None]] = {run.name: range(len(run.operands))}
    places: dict[tuple[str, str], int | None] = {}
    used, results = _used_and_results(kernel)
    for part in kernel.parts[1:]:
        here = part.fusion, part.name
        operands = [places.get((part.fusion, name)) for name in part.operand_names]
        if part.opcode == "parameter":
            number, known = int(part.rest.partition(")")[0]), of_fusion[part.fusion]
            places[here] = known[number] if number < len(known) else None
        elif part.opcode == "fusion":
            of_fusion[part.name] = operands
        elif part.opcode in _ALIKE and here in used:
            places[here] = operands[0] if operands else None
        else:
            yield part, operands, here in results


def _used_and_results(kernel: CompiledKernel) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """Of the parts of a fusion those that others are applied to, and those that are its results, perhaps by another
    name; each by the fusion that it is in and its own name."""
    used: set[tuple[str, str]] = set()
    results: set[tuple[str, str]] = set()
    for part in reversed(kernel.parts[1:]):
        here = part.fusion, part.name
        given = {(part.fusion, name) for name in part.operand_names}
        if part.fusion == kernel.run.name and (here not in used or here in results):
            results.add(here)
            if part.opcode in ("bitcast", "tuple"):
                results |= given
        used |= given
    return used, results


def _written_in_place(one: Instruction) -> str:
    """The type of what is written into an instruction's first operand, in its place; nothing if that is not done."""
    if one.opcode == "dynamic-update-slice":
        return one.operands[1]
    return one.operands[2] if one.opcode == "scatter" and len(one.operands) == 3 else ""


_ELSEWHERE = re.compile(r"\w+\[[\d,<=]*\]\{[^{}]*S\(\d+\)[^{}]*\}")
"""An array whose layout names a space of memory: on the chip, ``S(1)`` on a TPU, or of the host."""
_WORKSPACE = re.compile(r"\b[su]8\[\d+\]\{0\}")
"""What NVIDIA's libraries are lent beside their results."""


def _is_library(run: Instruction) -> bool:
    """Whether a library of NVIDIA is called."""
    return 'custom_call_target="__cu' in run.rest


def _bytes(type_: str) -> int:
    """Bytes of the arrays of a type that lie in the chip's memory."""
    return _size(_ELSEWHERE.sub("", type_))


def _size(type_: str) -> int:
    """Bytes of the arrays of a type."""
    return sum(bytes_of_arrays(type_))


def _is_product(part: Instruction) -> bool:
    return part.opcode in ("convolution", "dot") or 'custom_call_target="__cublas' in part.rest


def _product_seconds(part: Instruction, chip: Chip) -> float:
    """Of an instruction that is a product at the peak of its factors; of any other 0."""
    if not _is_product(part):
        return 0.0
    factors = part.operands[:2]
    return product_flops(part) * _passes(part, chip) / _peak(chip, factors)


_IN_BFLOAT16 = re.compile(r"dot_bf16_bf16_f32_x(\d)", re.IGNORECASE)
_PRECISION = re.compile(r"operand_precision=\{(\w+)")


def _passes(product: Instruction, chip: Chip) -> int:
    """How many products in bfloat16 a product takes the time of at least."""
    if several := _IN_BFLOAT16.search(product.rest):
        return int(several[1])
    if not all(type_.startswith("f32") for type_ in product.operands[:2]):
        return 1
    if not chip.torus_dimensions:
        # In TF32, of which all of NVIDIA's data sheets have half the peak.
        return 2
    precision = _PRECISION.search(product.rest)
    return {"high": 3, "highest": 6}.get(precision[1], 1) if precision else 1


_DIMENSIONS = re.compile(r"dim_labels=(?P<input>\w+)_(?P<kernel>\w+)->(?P<output>\w+)")
_WINDOW = re.compile(r"window=\{(?P<window>[^}]*)\}")


_CONTRACTED = re.compile(r'lhs_contracting_dim(?:ension)?s"?[=:][{\[](?P<places>["\d,]*)[}\]]')


def product_flops(product: Instruction) -> float:
    """FLOPs of a product: pairs of numbers of its factors that meet, twice.

    XLA's TPU compiler writes it as a convolution, of which what is padded and spread along windows is no number; its
    GPU compiler as ``dot`` or as a call of cuBLAS.
    """
    if contracted := _CONTRACTED.search(product.rest):
        places = [int(place) for place in re.findall(r"\d+", contracted["places"])]
        met = math.prod(_array(product.operands[0])[place] for place in places)
        return 2.0 * math.prod(_array(product.type)) * met
    labels = _DIMENSIONS.search(product.rest)
    if labels is None:
        return 0.0
    types = (*product.operands[:2], product.type)
    inputs, kernel, output = (
        dict(zip(names, _array(type_), strict=True)) for names, type_ in zip(labels.groups(), types, strict=True)
    )
    said = _WINDOW.search(product.rest)
    words = dict(word.split("=") for word in said["window"].split()) if said else {}
    met = 1
    for place, name in enumerate(sorted(name for name in output if name.isdigit())):
        of = {word: value.split("x")[place] for word, value in words.items()}
        step, spread, apart = (int(of.get(word, 1)) for word in ("stride", "lhs_dilate", "rhs_dilate"))
        before = int(of.get("pad", "0_0").partition("_")[0])
        where = np.arange(output[name])[:, None] * step + np.arange(kernel[name]) * apart - before
        met *= int(((where >= 0) & (where <= (inputs[name] - 1) * spread) & (where % spread == 0)).sum())
    return 2.0 * output["b"] * output["f"] * kernel["i"] * met


def _array(type_: str) -> tuple[int, ...]:
    """Shape of the first array of a type."""
    return tuple(int(size) for size in type_.partition("[")[2].partition("]")[0].split(",") if size)


_STATED = re.compile(r'"cost_estimate":\{"flops":"(?P<flops>\d+)".*?"bytes_accessed":"(?P<bytes>\d+)"')
_OF_A_GPU = ("mosaic_gpu_v2", "__gpu$xla.gpu.triton", "triton_kernel_call", "triton_kernel_call_ffi")
"""Targets of the custom calls of Pallas and of ``jax_triton`` on GPUs; XLA's own kernels in Triton are fusions."""


def pallas_seconds(kernels: Iterable[CompiledKernel], chip: Chip, *, rows: float = 1.0) -> float:
    """Seconds of the kernels of Pallas but attention: their FLOPs at the chip's peak for what they read, or their bytes
    at its memory's bandwidth.

    On a TPU both are what they state, on a GPU what their arrays say. Grouped products have all rows there is room for,
    also those that a balanced routing leaves empty; ``rows`` is the share of them whose FLOPs count.
    """
    return sum(one.times * _pallas_kernel_seconds(one, chip, rows) for one in kernels if _is_pallas(one))


def _is_pallas(kernel: CompiledKernel) -> bool:
    """Whether it is a kernel of Pallas but attention, which states nothing on a TPU."""
    targets = (f'custom_call_target="{target}"' for target in _OF_A_GPU)
    return _STATED.search(kernel.run.rest) is not None or any(target in kernel.run.rest for target in targets)


def _pallas_kernel_seconds(kernel: CompiledKernel, chip: Chip, rows: float) -> float:
    stated = _STATED.search(kernel.run.rest)
    bytes_ = int(stated["bytes"]) if stated else bytes_moved(kernel)
    passes = 2 if not chip.torus_dimensions and _is_in_float32(kernel.run) else 1
    at_peak = kernel_flops(kernel, rows) * passes / _peak(chip, _factors(kernel.run))
    return max(at_peak, bytes_ / chip.memory_bytes_per_second)


def _is_in_float32(run: Instruction) -> bool:
    """Whether a kernel's larger arrays are of float32: on a GPU at most at the peak of TF32, half of bfloat16's."""
    largest = sorted(run.operands, key=_size)[-2:]
    return bool(largest) and all(type_.startswith("f32") for type_ in largest)


def grouped_flops(run: Instruction) -> float:
    """FLOPs of a grouped product by its arrays: of rows [R, D] with matrices [G, D, F], either way round, to [R, F]; or
    of two arrays of rows to gradients of matrices. 0 for another kernel.

    Beside these two it reads smaller ones: scales, and which rows are whose. D, F and R each stand in two of the three
    arrays, G in one.
    """
    read = sorted(map(_array, run.operands), key=math.prod)[-2:]
    shapes = [*read, _array(run.type)]
    if sorted(map(len, shapes)) != [2, 2, 3]:
        return 0.0
    (groups,) = (shape[0] for shape in shapes if len(shape) == 3)
    return 2.0 * math.isqrt(math.prod(map(math.prod, shapes)) // groups)


def _factors(run: Instruction) -> list[str]:
    """Types of the factors of a kernel's products: what it reads of 8 bits, if it does, beside their scales."""
    return [type_ for type_ in run.operands if any(re.match(word, type_) for word in _IN_8_BITS.values())]


_IN_8_BITS = {"fp8": r"f8\w+\[", "int8": r"[su]8\["}
"""How a type begins that is one of ``Runtime.matmul_quantization``."""


def _peak(chip: Chip, factors: Sequence[str]) -> float:
    """FLOPs per second of products of factors of such types: those of 8 bits where all of them are."""
    of_8_bits = (name for name, word in _IN_8_BITS.items() if factors and all(re.match(word, one) for one in factors))
    return chip.peak(next(of_8_bits, "none")) or chip.flops_per_second


_SPLASH = re.compile(r"splash_mha_(?P<phase>fwd|dq|dkv)_")
_SPLASH_WIDTHS = {"fwd": (1, 1), "dq": (2, 1), "dkv": (2, 2)}
"""How many products over the width of a query and of a value a kernel of splash attention makes of each score: scores
and means of values; scores again, their gradients, and those of queries; or those of keys and of values."""


_CUDNN = re.compile(
    r'"__cudnn\$fmhaSoftmax(?P<backward>Backward)?".*?"intermediate_tensor_shape":.*?'
    r'"dimensions": ?\[(?P<scores>[^\]]*)\]'
    r'.*?"mask_type": ?"(?P<mask>\w+)".*?"sliding_window_length": ?"?(?P<window>\d+)'
)
_CUDNN_WIDTHS = {"": (1, 1), "Backward": (3, 2)}
"""The same of cuDNN, which has one kernel backwards."""


def attention_seconds(kernel: CompiledKernel, chip: Chip) -> float:
    """Seconds of one run of a kernel of attention: products at the chip's peak, or bytes; 0 for another kernel."""
    flops = attention_flops(kernel)
    return max(flops / chip.flops_per_second, bytes_moved(kernel) / chip.memory_bytes_per_second) if flops else 0.0


def attention_flops(kernel: CompiledKernel) -> float:
    """FLOPs of one run of a kernel of attention; 0 for another kernel.

    The first floating arrays that it reads are queries, keys and values, whose last axis is their width.
    """
    run = kernel.run
    if of_tpu := _SPLASH.match(run.name):
        scores, widths = _splash_scores(run), _SPLASH_WIDTHS[of_tpu["phase"]]
    elif of_gpu := _CUDNN.search(run.rest):
        scores, widths = _cudnn_scores(of_gpu), _CUDNN_WIDTHS[of_gpu["backward"] or ""]
    else:
        return 0.0
    (*_, query_width), _, (*_, value_width), *_ = (shape for type_ in run.operands for shape in _shapes(type_, "b?f"))
    of_queries, of_values = widths
    return 2.0 * scores * (of_queries * query_width + of_values * value_width)


def _splash_scores(run: Instruction) -> float:
    """Scores of splash attention: of whole blocks of queries with the blocks of keys that they meet.

    A kernel reads first which blocks meet, an array of [1, blocks of queries, blocks of keys], narrowed to a window if
    there is one; queries are [sequences, heads, tokens, width].
    """
    blocks = next(shape for type_ in run.operands for shape in _shapes(type_, "s"))[-2:]
    *several, length, _ = next(shape for type_ in run.operands for shape in _shapes(type_, "b?f"))
    met = sum(min(keys, min(blocks)) for keys in range(1, max(blocks) + 1))
    return math.prod(several) * (length / max(blocks)) ** 2 * met


def _cudnn_scores(call: re.Match[str]) -> float:
    """Scores of cuDNN's attention, without those that its mask leaves out by their place; of documents packed into a
    sequence, those of the whole."""
    *several, queries, keys = map(int, re.findall(r"\d+", call["scores"]))
    window = int(call["window"]) or keys
    before = range(1, queries + 1) if "CAUSAL" in call["mask"] else [keys] * queries
    return float(math.prod(several) * sum(min(met, window) for met in before))


def _shapes(type_: str, kind: str) -> list[tuple[int, ...]]:
    """Of the arrays of a type whose numbers are of some kind."""
    return [tuple(map(int, shape.split(","))) for shape in re.findall(rf"\b{kind}\d+\[([\d,]+)\]", type_)]
