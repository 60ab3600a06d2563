"""How long a training step takes on one chip: at least, by its roofline, and as its compiled program says.

The roofline takes products at the chip's peak, and bytes at the bandwidth of memory and links. What overlaps is
assumed, not known. Products and the chip's own memory always do. Weights and gradients, which travel along
``dcn_data``, ``data`` and ``fsdp``, do not wait for the layer before and so hide behind the work of other layers, as
far as it lasts. Tokens that travel along ``expert`` and ``tensor`` are waited for: their time is added.

``compiler_seconds`` and ``stated_seconds`` add up the compiled program's kernels instead, each by what XLA or the
kernel states of itself. XLA's cycles for a kernel without products are several times what its bytes take at the
memory's bandwidth, and a grouped product states all rows that there is room for. So there is a count between the two:
``at_bandwidth`` takes bytes for such kernels, and ``rows`` the share of rows that a balanced routing fills. What runs
only where a condition says so is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from moejax.laws.accounting import flops_per_token, mtp_params, params
from moejax.laws.chips import Chip
from moejax.laws.memory import training_memory
from moejax.laws.named_activations import named_activations
from moejax.model.runtime import kept_names
from moejax.sharding import DATA, DCN_DATA, FSDP
from moejax.train.collectives import bytes_of_arrays
from moejax.train.program_text import Instruction, instructions
from moejax.train.training import Training

HIDDEN_AXES = {DCN_DATA, DATA, FSDP}
"""Mesh axes along which weights and gradients travel."""


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """Seconds of one training step on one chip."""

    compute_seconds: float
    """All products, those computed again included, at the peak of their type."""
    memory_seconds: float
    """Estimated bytes between the chip and its memory, at its bandwidth."""
    link_seconds: dict[str, float]
    """Between chips, by mesh axes joined with a plus."""

    @property
    def hidden_seconds(self) -> float:
        """Between chips, behind the work; links of a slice and those between slices work at once."""
        inside = (s for axes, s in self.link_seconds.items() if _is_hidden(axes) and axes != DCN_DATA)
        return max(sum(inside, 0.0), self.link_seconds.get(DCN_DATA, 0.0))

    @property
    def exposed_seconds(self) -> float:
        """Between chips, waited for."""
        return sum((s for axes, s in self.link_seconds.items() if not _is_hidden(axes)), 0.0)

    @property
    def step_seconds(self) -> float:
        """With the overlap that is assumed."""
        return max(self.compute_seconds, self.memory_seconds, self.hidden_seconds) + self.exposed_seconds

    @property
    def step_seconds_without_overlap(self) -> float:
        """If nothing on the links overlapped with anything."""
        return max(self.compute_seconds, self.memory_seconds) + sum(self.link_seconds.values(), 0.0)

    @property
    def limited_by(self) -> str:
        """What takes longest: "compute", "memory", or the mesh axes whose links do."""
        parts = {"compute": self.compute_seconds, "memory": self.memory_seconds}
        parts |= {f"links along {axes}": seconds for axes, seconds in self.link_seconds.items()}
        return max(parts, key=lambda part: parts[part])


def _is_hidden(axes: str) -> bool:
    return bool(HIDDEN_AXES & set(axes.split("+")))


def model_flops(training: Training) -> float:
    """FLOPs of one step that the model needs: three forward passes, the masked half of the scores left out."""
    per_token = flops_per_token(training.architecture, training.recipe.data.sequence_length)
    return float(per_token.training_causal * training.recipe.batch_tokens)


def step_flops(training: Training) -> float:
    """FLOPs of one step as it is computed: with what remat and the count of a batch's loads compute again."""
    recipe, architecture = training.recipe, training.architecture
    part = flops_per_token(architecture, recipe.data.sequence_length)
    layers = part.forward_causal - part.unembedding
    spared = named_activations(architecture, recipe.data.sequence_length)
    names = kept_names(recipe.runtime.remat)
    again = {
        "none": 0.0,
        # Projections are kept; scores and experts, which are no plain products, are not.
        "dots": part.attention_scores_causal + part.routed_experts,
    }.get(recipe.runtime.remat, layers - sum(spared[name].flops for name in names))
    counted = layers * training.counted_share
    return float((part.training_causal + again + counted) * recipe.batch_tokens)


def quantized_flops(training: Training) -> float:
    """Those of ``step_flops`` that are products of 8-bit numbers (``Runtime.matmul_quantization``): of projections,
    feed-forwards and routed experts, forwards, computed again, and for gradients of rows."""
    recipe = training.recipe
    if recipe.runtime.matmul_quantization == "none":
        return 0.0
    part = flops_per_token(training.architecture, recipe.data.sequence_length)
    others = part.attention_scores_causal + part.router + part.unembedding
    # All passes through the layers but that of the gradients of matrices; the rest is never of 8 bits.
    names = kept_names(recipe.runtime.remat)
    spared = named_activations(training.architecture, recipe.data.sequence_length)
    quantized = part.forward_causal - others
    again = {"none": 0.0, "dots": part.routed_experts}.get(
        recipe.runtime.remat, quantized - sum(spared[name].flops for name in names if name != "attn_out")
    )
    return float((2 * quantized + again + training.counted_share * quantized) * recipe.batch_tokens)


def attention_flops(training: Training) -> float:
    """Those of ``step_flops`` that are attention's scores and their sums of values."""
    recipe = training.recipe
    part = flops_per_token(training.architecture, recipe.data.sequence_length)
    again = recipe.runtime.remat != "none" and "attn_out" not in kept_names(recipe.runtime.remat)
    passes = 3 + again + training.counted_share
    return float(passes * part.attention_scores_causal * recipe.batch_tokens)


def memory_traffic(training: Training, mesh: Mapping[str, int], parameter_bytes: int) -> float:
    """Bytes that a step moves between one chip and its memory, estimated.

    The optimiser reads and writes parameters and both moments, and gradients once each. Weights of the compute type
    are written when gathered and read by each product that meets them; activations are written, read by the next
    product, read by the backward pass, and their gradients written and read.
    """
    recipe, a = training.recipe, training.architecture
    chips = 1
    for size in mesh.values():
        chips *= size
    again = recipe.runtime.remat != "none"
    value = 2 if recipe.runtime.compute_dtype == "bfloat16" else 4
    counts, modules = params(a), mtp_params(a)
    split, routed = mesh["tensor"], counts.routed_experts + modules.routed_experts
    held = routed / (split * mesh["expert"]) + (counts.total + modules.total - routed) / split
    passes = 5 + 2 * again + 2 * training.counted_share
    weights = held * value * passes * recipe.microbatches
    kept = training_memory(a, recipe.batch_tokens, activation_bytes=value)
    activations = (kept.activations / chips) * (5 + 2 * again)
    activations += 2 * (1 + a.num_mtp_layers) * kept.logits / chips
    return 8.0 * parameter_bytes + weights + activations


def roofline(
    training: Training, mesh: Mapping[str, int], chip: Chip, parameter_bytes: int, link_seconds: dict[str, float]
) -> Roofline:
    """The roofline of one step of a training on a mesh of one kind of chip."""
    chips = 1
    for size in mesh.values():
        chips *= size
    quantized = quantized_flops(training)
    peak = chip.peak(training.recipe.runtime.matmul_quantization)
    return Roofline(
        compute_seconds=((step_flops(training) - quantized) / chip.flops_per_second + quantized / peak) / chips,
        memory_seconds=memory_traffic(training, mesh, parameter_bytes) / chip.memory_bytes_per_second,
        link_seconds=link_seconds,
    )


_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_STATED = re.compile(r'"cost_estimate":\{"flops":"(?P<flops>\d+)".*?"bytes_accessed":"(?P<bytes>\d+)"')
UNKNOWN_CYCLES = 2**62
"""From here on a number of cycles is the compiler's word for not knowing."""


def compiler_seconds(text: str, chip: Chip, *, at_bandwidth: bool = False) -> float:
    """Seconds of the kernels that XLA's TPU compiler writes itself: the cycles it expects, at the chip's clock.

    With ``at_bandwidth``, kernels without a product take no longer than what they read and write at the bandwidth of
    the chip's memory. Collectives and kernels of Pallas have no cycles.
    """
    if not chip.cycles_per_second:
        return 0.0
    total = 0.0
    for run, has_products in _kernels(text):
        cycles = _CYCLES.search(run.rest)
        if cycles is None or int(cycles[1]) >= UNKNOWN_CYCLES:
            continue
        seconds = int(cycles[1]) / chip.cycles_per_second
        if at_bandwidth and not has_products:
            bytes_ = sum(sum(bytes_of_arrays(type_)) for type_ in (run.type, *run.operands))
            seconds = min(seconds, bytes_ / chip.memory_bytes_per_second)
        total += run.times * seconds
    return total


def stated_seconds(text: str, chip: Chip, *, rows: float = 1.0) -> float:
    """Seconds of the kernels of Pallas: the FLOPs they state at the chip's peak for what they read, or the bytes at its
    memory's bandwidth.

    Grouped products state all rows there is room for, also those that a balanced routing leaves empty; ``rows`` is the
    share of them whose FLOPs count. Attention states nothing.
    """
    kernels = ((run, stated) for run, _ in _kernels(text) if (stated := _STATED.search(run.rest)))
    return sum(
        run.times
        * max(rows * int(one["flops"]) / chip.peak(_read(run)), int(one["bytes"]) / chip.memory_bytes_per_second)
        for run, one in kernels
    )


def _read(run: Instruction) -> str:
    """Which of ``Runtime.matmul_quantization`` a kernel's operands are of."""
    words = {"fp8": r"\bf8e4m3fn\[", "int8": r"\bs8\["}
    return next((name for name, word in words.items() if re.search(word, " ".join(run.operands))), "none")


def filled_rows(training: Training, mesh: Mapping[str, int]) -> float:
    """Share of the room for rows of experts that a balanced routing fills: along ``expert`` there is more than that."""
    return 1 / training.recipe.runtime.buffer_factor if mesh["expert"] > 1 else 1.0


def _kernels(text: str) -> Iterator[tuple[Instruction, bool]]:
    """What runs in every step, and whether there is a product in it."""
    kernel: Instruction | None = None
    has_products = False
    for run in instructions(text):
        if run.in_branch:
            continue
        is_product = run.opcode in ("convolution", "dot")
        if run.in_fusion:
            has_products |= is_product
            continue
        if kernel is not None:
            yield kernel, has_products
        kernel, has_products = run, is_product
    if kernel is not None:
        yield kernel, has_products
