"""Estimate the time of a compiled program on one chip from its kernels and links.

There are two estimates:

- By XLA's cycles: each of XLA's own kernels takes the cycles of the TPU compiler's cost model, which overestimates
plain additions by a factor of several. Grouped matmuls use all rows of their buffers.
- At least (``floor_seconds``): kernels without a matmul take no longer than their bytes at the memory bandwidth, and
grouped matmuls use the rows that a balanced routing fills. If the chip's clock is unknown, as for all GPUs, only this
estimate exists; matmuls then take their time at the chip's peak or at the bandwidth, whichever is longer. It is not a
strict bound: XLA's cycles for matmuls are estimates, and the overlap with communication on TPUs is assumed.

In both, Pallas kernels and attention compute at the chip's peak. Grouped matmuls count the FLOPs that they state; on
GPUs they state none, so the shapes of their arrays determine the FLOPs. Attention counts the scores that its kernels
compute: on a TPU whole blocks, including the masked half of diagonal blocks. Code that runs only if a buffer overflows
is excluded.

Collectives on GPUs run one after another in the order of their starts. They overlap with the kernels between their
start and their end in the program's schedule. XLA's TPU compiler fuses them into kernels instead, so TPUs use the
overlap that the roofline assumes (``moejax.plan.step_time``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from moejax.laws.chips import Chip
from moejax.plan.collectives import bytes_of_arrays
from moejax.plan.program_text import Instruction, instructions
from moejax.plan.step_time import OverlappedLinks
from moejax.train.training import Training


@dataclass(frozen=True, kw_only=True)
class ProgramTime(OverlappedLinks):
    """Seconds of one run of a compiled program on one device."""

    xla_seconds: float
    """Seconds of the kernels that XLA's TPU compiler generates, from its cycle estimates; 0 if the cycles or the clock
    are unknown.
    """
    xla_seconds_at_bandwidth: float
    """Seconds of XLA's own kernels, with kernels without a matmul at the memory bandwidth. If the clock is unknown,
    matmuls run at the chip's peak.
    """
    pallas_seconds: float
    """Seconds of Pallas and attention kernels, with all rows of the experts' buffers."""
    pallas_seconds_of_rows: float
    """Seconds of Pallas and attention kernels, with the rows that a balanced routing fills."""
    link_seconds: dict[str, float]
    """Seconds of communication, keyed by mesh axes joined with a plus."""
    flops: float = 0.0
    """FLOPs of all matmuls; experts count the rows that a balanced routing fills."""
    waited_seconds: float | None = None
    """Seconds of communication that overlaps with no kernel in the program's schedule; None if the overlap is
    assumed.
    """
    kernels: int = 0
    """Minimum number of kernels launched on a GPU."""
    launch_seconds: float = 0.0
    """Time to launch kernels and collectives. Neither estimate includes it, because launches overlap with earlier
    kernels.
    """
    once_counted: int = 0
    """Number of kernels in loops with an unknown trip count. They count once, so both estimates are too short."""

    @property
    def cycles_seconds(self) -> float:
        """Seconds by XLA's cycles; NaN if the cycles or the clock are unknown."""
        return self.beside(self.xla_seconds + self.pallas_seconds) if self.xla_seconds else math.nan

    @property
    def floor_seconds(self) -> float:
        """Seconds with each kernel at the peak of its limiting resource, and matmuls by XLA's cycles if known."""
        work = self.xla_seconds_at_bandwidth + self.pallas_seconds_of_rows
        return self.beside(work) if self.waited_seconds is None else work + self.waited_seconds


KERNEL_LAUNCH_SECONDS, EXCHANGE_LAUNCH_SECONDS = 1e-6, 5e-6
"""Launch times of a GPU kernel and of an NCCL kernel in XLA's cost model: ``gpu_performance_model_base.h``, read on
2026-11-25. CUDA graphs, which XLA uses for parts of a program, take less.
"""


@dataclass(frozen=True)
class CompiledKernel:
    """A launched kernel, or another instruction that calls no others."""

    run: Instruction
    parts: tuple[Instruction, ...]
    """The instruction itself and the instructions fused into it."""

    @property
    def times(self) -> int:
        """Number of executions in one run of the program."""
        return self.run.times


def program_time(
    text: str, chip: Chip, rows: float, link_seconds: dict[str, float], exchanges: Mapping[str, float]
) -> ProgramTime:
    """Return the time of a program from its text.

    ``rows`` is the filled share of the experts' buffers. ``exchanges`` maps the instruction name of each collective to
    its seconds per execution.
    """
    executed = kernels(text)
    # All rows of attention count, because they do not depend on the routing.
    attention = sum(one.times * attention_seconds(one, chip) for one in executed)
    is_gpu = not chip.torus_dimensions
    launched = sum(one.times for one in executed if _is_launched(one)) if is_gpu else 0
    exchanged = sum(one.times for one in executed if one.run.name in exchanges) if is_gpu else 0
    return ProgramTime(
        xla_seconds=compiler_seconds(executed, chip),
        xla_seconds_at_bandwidth=compiler_floor_seconds(executed, chip),
        pallas_seconds=pallas_seconds(executed, chip) + attention,
        pallas_seconds_of_rows=pallas_seconds(executed, chip, rows=rows) + attention,
        link_seconds=link_seconds,
        flops=sum(one.times * kernel_flops(one, rows) for one in executed),
        waited_seconds=waited_seconds(executed, chip, rows, exchanges) if is_gpu else None,
        kernels=launched,
        launch_seconds=launched * KERNEL_LAUNCH_SECONDS + exchanged * EXCHANGE_LAUNCH_SECONDS,
        once_counted=sum(_is_launched(one) and not one.run.times_known for one in executed),
    )


def filled_rows(training: Training, mesh: Mapping[str, int]) -> float:
    """Return the share of the experts' buffers that a balanced routing fills.

    Along ``expert``, the buffers have more space, up to all rows of the group's devices
    (``moejax.routing.communication``).
    """
    return 1 / min(training.recipe.runtime.buffer_factor, mesh["expert"])


def kernels(text: str) -> list[CompiledKernel]:
    """Parse a compiled program's HLO text into kernels, in program order.

    Instructions of a fusion form one kernel. Instructions that run only in rare cases are left out.
    """
    groups: list[tuple[Instruction, list[Instruction]]] = []
    for run in instructions(text):
        if run.is_rare:
            continue
        if run.fusion:
            groups[-1][1].append(run)
        else:
            groups.append((run, [run]))
    return [CompiledKernel(run, tuple(parts)) for run, parts in groups]


_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
UNKNOWN_CYCLES = 2**62
"""Smallest number of cycles by which the compiler means "unknown"."""


def compiler_seconds(kernels: Sequence[CompiledKernel], chip: Chip) -> float:
    """Return the seconds of the kernels that XLA's TPU compiler generates, from its cycles and the chip's clock.

    The result is 0 if the clock is unknown. Collectives and Pallas kernels have no cycles.
    """
    return sum(one.times * _cycles_seconds(one, chip) for one in kernels if not one.run.is_offloaded)


def compiler_floor_seconds(kernels: Sequence[CompiledKernel], chip: Chip) -> float:
    """Return the sum of ``floor_seconds`` over all executions of XLA's own kernels.

    The result is at least the time of all memory traffic, including the traffic of copies and SparseCores, which run
    concurrently.
    """
    total, of_memory = 0.0, _bytes_moved_beside(kernels) / chip.memory_bytes_per_second
    for one in _own_kernels(kernels):
        seconds = floor_seconds(one, chip)
        total += one.times * seconds
        of_memory += one.times * min(seconds, bytes_moved(one) / chip.memory_bytes_per_second)
    return max(total, of_memory)


def floor_seconds(kernel: CompiledKernel, chip: Chip) -> float:
    """Return the minimum seconds of one execution of one of XLA's own kernels.

    A kernel without a matmul takes no longer than its bytes at the memory bandwidth. If the clock is unknown, a matmul
    takes its time at the chip's peak or at the bandwidth, whichever is longer.
    """
    seconds, at_bandwidth = _cycles_seconds(kernel, chip), bytes_moved(kernel) / chip.memory_bytes_per_second
    if not seconds:
        return max(sum(_product_seconds(part, chip) for part in kernel.parts), at_bandwidth)
    return seconds if any(map(_is_product, kernel.parts)) else min(seconds, at_bandwidth)


def _bytes_moved_beside(kernels: Iterable[CompiledKernel]) -> int:
    """Return the bytes moved by copies between the chip's memory and on-chip memory, and by SparseCores."""
    return sum(
        one.times * (_bytes(one.run.type) if one.run.opcode == "copy-start" else bytes_moved(one))
        for one in kernels
        if one.run.opcode == "copy-start" or (one.run.is_offloaded and _is_launched(one))
    )


def _cycles(kernel: CompiledKernel) -> int:
    stated = _CYCLES.search(kernel.run.rest)
    return int(stated[1]) if stated is not None and int(stated[1]) < UNKNOWN_CYCLES else 0


def _cycles_seconds(kernel: CompiledKernel, chip: Chip) -> float:
    return _cycles(kernel) / chip.cycles_per_second if chip.cycles_per_second else 0.0


def _own_kernels(kernels: Sequence[CompiledKernel]) -> list[CompiledKernel]:
    """Return XLA's own kernels, without offloaded kernels.

    If the compiler states cycles, return the kernels with cycles, because others are fused into collectives. On a GPU,
    return all launched kernels except Pallas and attention kernels.
    """
    kernels = [one for one in kernels if not one.run.is_offloaded]
    return [one for one in kernels if _cycles(one)] or [
        one for one in kernels if _is_launched(one) and not _is_pallas(one) and not attention_flops(one)
    ]


def kernel_flops(kernel: CompiledKernel, rows: float = 1.0) -> float:
    """Return the matmul FLOPs of one execution of a kernel. ``rows`` is the share of a grouped matmul's rows that
    count.
    """
    if _is_pallas(kernel):
        stated = _STATED.search(kernel.run.rest)
        return rows * (int(stated["flops"]) if stated else grouped_flops(kernel.run))
    return attention_flops(kernel) or sum(product_flops(part) for part in kernel.parts if _is_product(part))


_NOT_LAUNCHED = re.compile(
    r"(parameter|constant|tuple|get-tuple-element|bitcast|after-all|opt-barrier|partition-id|replica-id|domain"
    r"|all-.*|collective-.*|reduce-scatter.*|ragged-all-to-all.*|.*-done|copy-start|async-.*|send|recv)$"
)
"""Opcodes that launch no kernel: opcodes that only rename values, and transfers over links or concurrent with
kernels.
"""


def _is_launched(kernel: CompiledKernel) -> bool:
    return _NOT_LAUNCHED.match(kernel.run.opcode) is None


def waited_seconds(kernels: Iterable[CompiledKernel], chip: Chip, rows: float, exchanges: Mapping[str, float]) -> float:
    """Return the seconds in which no kernel runs because the next one waits for a collective.

    Kernels run one after another in program order. Collectives also run one after another, each after its start. A
    loop's body appears once for all its iterations, so each collective that starts in it also ends in it.
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
    """Return the minimum seconds of one execution of a kernel; 0 for other instructions."""
    if not _is_launched(kernel):
        return 0.0
    if _is_pallas(kernel):
        return _pallas_kernel_seconds(kernel, chip, rows)
    return attention_seconds(kernel, chip) or floor_seconds(kernel, chip)


_IN_PART = ("dynamic-slice", "slice", "gather")
"""Opcodes that read only a part of their first operand."""
_ALIKE = ("bitcast", "reshape", "convert", "copy", "transpose")
"""Opcodes whose result holds the operand's numbers, so that a part of the result is a part of the operand."""


def bytes_moved(kernel: CompiledKernel) -> int:
    """Return the bytes of the chip's memory that a kernel reads and writes.

    Operands and results count if they are in the chip's memory. If a kernel reads or writes only slices or rows of an
    array, only these slices or rows count.
    """
    run = kernel.run
    read, written = [0.0] * len(run.operands), _bytes(_WORKSPACE.sub("", run.type) if _is_library(run) else run.type)
    for part, operands, is_result in _uses(kernel):
        for place, operand in enumerate(operands):
            if operand is None:
                continue
            whole, update = _bytes(run.operands[operand]), _written_in_place(part) if is_result else ""
            if place == 0 and update and whole == _size(part.type):
                # The rest of the array is neither read nor written.
                written -= whole - _size(update)
            elif place == 0 and part.opcode in _IN_PART:
                read[operand] += whole * _size(part.type) / max(_size(part.operands[0]), 1)
            else:
                read[operand] += whole
    return int(sum(min(some, _bytes(type_)) for some, type_ in zip(read, run.operands, strict=True))) + max(written, 0)


def _uses(kernel: CompiledKernel) -> Iterator[tuple[Instruction, Sequence[int | None], bool]]:
    """Yield each instruction of a kernel, the kernel operand behind each of its operands (or None), and whether it is a
    result of the kernel.
    """
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
    """Return the parts of a fusion that other parts use, and the parts that are its results, possibly under another
    name. Each part is identified by its fusion and its own name.
    """
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
    if one.opcode == "dynamic-update-slice":
        return one.operands[1]
    return one.operands[2] if one.opcode == "scatter" and len(one.operands) == 3 else ""


_ELSEWHERE = re.compile(r"\w+\[[\d,<=]*\]\{[^{}]*S\(\d+\)[^{}]*\}")
"""Pattern of an array whose layout names a memory space: ``S(1)`` is a TPU's on-chip memory; other spaces are host
memory.
"""
_WORKSPACE = re.compile(r"\b[su]8\[\d+\]\{0\}")
"""Pattern of the workspace of NVIDIA's libraries in a result type."""


def _is_library(run: Instruction) -> bool:
    return 'custom_call_target="__cu' in run.rest


def _bytes(type_: str) -> int:
    """Return the bytes of a type's arrays in the chip's memory."""
    return _size(_ELSEWHERE.sub("", type_))


def _size(type_: str) -> int:
    return sum(bytes_of_arrays(type_))


def _is_product(part: Instruction) -> bool:
    return part.opcode in ("convolution", "dot") or 'custom_call_target="__cublas' in part.rest


def _product_seconds(part: Instruction, chip: Chip) -> float:
    if not _is_product(part):
        return 0.0
    factors = part.operands[:2]
    return product_flops(part) * _passes(part, chip) / _peak(chip, factors)


_IN_BFLOAT16 = re.compile(r"dot_bf16_bf16_f32_x(\d)", re.IGNORECASE)
_PRECISION = re.compile(r"operand_precision=\{(\w+)")


def _passes(product: Instruction, chip: Chip) -> int:
    """Return the minimum number of bfloat16 matmuls that take the same time as this matmul."""
    if several := _IN_BFLOAT16.search(product.rest):
        return int(several[1])
    if not all(type_.startswith("f32") for type_ in product.operands[:2]):
        return 1
    if not chip.torus_dimensions:
        # GPUs use TF32, at half the bfloat16 peak in NVIDIA's data sheets.
        return 2
    precision = _PRECISION.search(product.rest)
    return {"high": 3, "highest": 6}.get(precision[1], 1) if precision else 1


_DIMENSIONS = re.compile(r"dim_labels=(?P<input>\w+)_(?P<kernel>\w+)->(?P<output>\w+)")
_WINDOW = re.compile(r"window=\{(?P<window>[^}]*)\}")


_CONTRACTED = re.compile(r'lhs_contracting_dim(?:ension)?s"?[=:][{\[](?P<places>["\d,]*)[}\]]')


def product_flops(product: Instruction) -> float:
    """Return the FLOPs of a matmul: two for each pair of numbers that are multiplied.

    XLA's TPU compiler writes a matmul as a convolution, whose padding and dilation holes do not count. Its GPU compiler
    writes ``dot`` or a call to cuBLAS.
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
    return tuple(int(size) for size in type_.partition("[")[2].partition("]")[0].split(",") if size)


_STATED = re.compile(r'"cost_estimate":\{"flops":"(?P<flops>\d+)".*?"bytes_accessed":"(?P<bytes>\d+)"')
_OF_A_GPU = ("mosaic_gpu_v2", "__gpu$xla.gpu.triton", "triton_kernel_call", "triton_kernel_call_ffi")
"""Targets of custom calls of Pallas and ``jax_triton`` on GPUs. XLA's own Triton kernels are fusions."""


def pallas_seconds(kernels: Iterable[CompiledKernel], chip: Chip, *, rows: float = 1.0) -> float:
    """Return the seconds of all Pallas kernels except attention: the larger of each kernel's compute and memory times.

    TPU kernels state FLOPs and bytes; on a GPU, array shapes determine them. Grouped matmuls read all rows of their
    buffers, including rows that a balanced routing leaves empty. ``rows`` is the share of rows whose FLOPs count.
    """
    return sum(one.times * _pallas_kernel_seconds(one, chip, rows) for one in kernels if _is_pallas(one))


def _is_pallas(kernel: CompiledKernel) -> bool:
    """Return whether a kernel is a Pallas kernel other than attention. On a TPU, attention states no cost."""
    targets = (f'custom_call_target="{target}"' for target in _OF_A_GPU)
    return _STATED.search(kernel.run.rest) is not None or any(target in kernel.run.rest for target in targets)


def _pallas_kernel_seconds(kernel: CompiledKernel, chip: Chip, rows: float) -> float:
    stated = _STATED.search(kernel.run.rest)
    bytes_ = int(stated["bytes"]) if stated else bytes_moved(kernel)
    passes = 2 if not chip.torus_dimensions and _is_in_float32(kernel.run) else 1
    at_peak = kernel_flops(kernel, rows) * passes / _peak(chip, _factors(kernel.run))
    return max(at_peak, bytes_ / chip.memory_bytes_per_second)


def _is_in_float32(run: Instruction) -> bool:
    """Return whether a kernel's largest arrays are float32. GPUs compute them at the TF32 peak, half of bfloat16's."""
    largest = sorted(run.operands, key=_size)[-2:]
    return bool(largest) and all(type_.startswith("f32") for type_ in largest)


def grouped_flops(run: Instruction) -> float:
    """Return the FLOPs of a grouped matmul from its arrays; 0 for another kernel.

    The operands are rows [R, D] and matrices [G, D, F], in either order, and the result is [R, F]. For gradients of
    matrices, the operands are two arrays of rows. Smaller operands hold scales and group sizes. D, F and R each occur
    in two of the three arrays, G in one.
    """
    read = sorted(map(_array, run.operands), key=math.prod)[-2:]
    shapes = [*read, _array(run.type)]
    if sorted(map(len, shapes)) != [2, 2, 3]:
        return 0.0
    (groups,) = (shape[0] for shape in shapes if len(shape) == 3)
    return 2.0 * math.isqrt(math.prod(map(math.prod, shapes)) // groups)


def _factors(run: Instruction) -> list[str]:
    """Return the types of a kernel's 8-bit operands, without their scales; empty if there are none."""
    return [type_ for type_ in run.operands if any(re.match(word, type_) for word in _IN_8_BITS.values())]


_IN_8_BITS = {"fp8": r"f8\w+\[", "int8": r"[su]8\["}
"""Patterns of HLO type prefixes, keyed by ``Runtime.matmul_quantization``."""


def _peak(chip: Chip, factors: Sequence[str]) -> float:
    """Return the peak FLOPs per second of matmuls with these operand types: the 8-bit peak if all are 8-bit."""
    of_8_bits = (name for name, word in _IN_8_BITS.items() if factors and all(re.match(word, one) for one in factors))
    return chip.peak(next(of_8_bits, "none")) or chip.flops_per_second


_SPLASH = re.compile(r"splash_mha_(?P<phase>fwd|dq|dkv)_")
_SPLASH_WIDTHS = {"fwd": (1, 1), "dq": (2, 1), "dkv": (2, 2)}
"""Matmuls per score over the query width and over the value width, keyed by phase of splash attention.

``fwd``: scores and weighted values. ``dq``: recomputed scores, their gradients, gradients of queries. ``dkv``:
recomputed scores, their gradients, gradients of keys and values.
"""


_CUDNN = re.compile(
    r'"__cudnn\$fmhaSoftmax(?P<backward>Backward)?".*?"intermediate_tensor_shape":.*?'
    r'"dimensions": ?\[(?P<scores>[^\]]*)\]'
    r'.*?"mask_type": ?"(?P<mask>\w+)".*?"sliding_window_length": ?"?(?P<window>\d+)'
)
_CUDNN_WIDTHS = {"": (1, 1), "Backward": (3, 2)}
"""Matmuls per score for cuDNN, which has one backward kernel."""


def attention_seconds(kernel: CompiledKernel, chip: Chip) -> float:
    """Return the larger of an attention kernel's compute and memory times per execution; 0 for another kernel."""
    flops = attention_flops(kernel)
    return max(flops / chip.flops_per_second, bytes_moved(kernel) / chip.memory_bytes_per_second) if flops else 0.0


def attention_flops(kernel: CompiledKernel) -> float:
    """Return the FLOPs of one execution of an attention kernel; 0 for another kernel.

    The first floating-point operands are queries, keys and values. Their last axis is their width.
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
    """Return the number of scores of splash attention: whole blocks of queries times the key blocks that they attend
    to.

    A kernel's first operand lists the key blocks of each query block, with shape [1, query blocks, key blocks], limited
    to a window if there is one. Queries are [sequences, heads, tokens, width].
    """
    blocks = next(shape for type_ in run.operands for shape in _shapes(type_, "s"))[-2:]
    *several, length, _ = next(shape for type_ in run.operands for shape in _shapes(type_, "b?f"))
    met = sum(min(keys, min(blocks)) for keys in range(1, max(blocks) + 1))
    return math.prod(several) * (length / max(blocks)) ** 2 * met


def _cudnn_scores(call: re.Match[str]) -> float:
    """Return the number of cuDNN's attention scores, without scores that its causal mask or window removes. Packed
    documents count as one sequence.
    """
    *several, queries, keys = map(int, re.findall(r"\d+", call["scores"]))
    window = int(call["window"]) or keys
    before = range(1, queries + 1) if "CAUSAL" in call["mask"] else [keys] * queries
    return float(math.prod(several) * sum(min(met, window) for met in before))


def _shapes(type_: str, kind: str) -> list[tuple[int, ...]]:
    return [tuple(map(int, shape.split(","))) for shape in re.findall(rf"\b{kind}\d+\[([\d,]+)\]", type_)]
