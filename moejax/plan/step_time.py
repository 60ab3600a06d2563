"""Compute the roofline of a training step on one chip.

The roofline assumes matmuls at the chip's peak, and bytes at the bandwidth of memory and links. The overlap is an
assumption. Matmuls always overlap with memory traffic. Weights and gradients travel along ``dcn_data``, ``data`` and
``fsdp``. They do not depend on the previous layer, so they overlap with the work of other layers. Tokens that travel
along ``expert`` and ``tensor`` do not overlap, so their time is added. The result is not a bound, because XLA may
overlap a part of this communication.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from moejax.laws.chips import Chip
from moejax.model.runtime import kept_names
from moejax.plan.counts import flops_per_token, mtp_params, named_activations, params, training_memory
from moejax.plan.topology import Topology
from moejax.sharding import DATA, DCN_DATA, FSDP
from moejax.train.step import moment_bytes
from moejax.train.training import Training

HIDDEN_AXES = {DCN_DATA, DATA, FSDP}
"""Mesh axes along which weights and gradients travel."""


class OverlappedLinks:
    """The assumed overlap of communication (``link_seconds``) with work."""

    link_seconds: dict[str, float]

    @property
    def hidden_seconds(self) -> float:
        """Seconds of communication that overlap with work. Links within a slice and between slices work at the same
        time.
        """
        inside = (s for axes, s in self.link_seconds.items() if _is_hidden(axes) and axes != DCN_DATA)
        return max(sum(inside, 0.0), self.link_seconds.get(DCN_DATA, 0.0))

    @property
    def exposed_seconds(self) -> float:
        """Seconds of communication that do not overlap with work."""
        return sum((s for axes, s in self.link_seconds.items() if not _is_hidden(axes)), 0.0)

    def beside(self, work_seconds: float) -> float:
        """Return the total seconds of work and communication with the assumed overlap."""
        return max(work_seconds, self.hidden_seconds) + self.exposed_seconds


@dataclass(frozen=True, kw_only=True)
class Roofline(OverlappedLinks):
    """Seconds of one training step on one chip."""

    compute_seconds: float
    """Seconds of all matmuls at the peak of their type, recomputation included."""
    memory_seconds: float
    """Seconds of the estimated memory traffic at the chip's memory bandwidth."""
    link_seconds: dict[str, float]
    """Seconds of communication, keyed by mesh axes joined with a plus."""

    @property
    def work_seconds(self) -> float:
        """Seconds without communication."""
        return max(self.compute_seconds, self.memory_seconds)

    @property
    def step_seconds(self) -> float:
        """Seconds of a step with the assumed overlap."""
        return self.beside(self.work_seconds)

    @property
    def step_seconds_without_overlap(self) -> float:
        """Seconds of a step if communication overlapped with nothing."""
        return self.work_seconds + sum(self.link_seconds.values(), 0.0)

    @property
    def limited_by(self) -> str:
        """The largest part: "compute", "memory", or the mesh axes of the slowest links."""
        parts = {"compute": self.compute_seconds, "memory": self.memory_seconds}
        parts |= {f"links along {axes}": seconds for axes, seconds in self.link_seconds.items()}
        return max(parts, key=lambda part: parts[part])


def _is_hidden(axes: str) -> bool:
    return bool(HIDDEN_AXES & set(axes.split("+")))


def model_flops(training: Training) -> float:
    """Return the FLOPs that the model needs for a step: three forward passes, without the masked half of the scores."""
    per_token = flops_per_token(training.architecture, training.recipe.data.sequence_length)
    return float(per_token.training_causal * training.recipe.batch_tokens)


def mfu_of_step(training: Training, topology: Topology, seconds: float) -> float:
    """Return the model FLOPs utilization of a step that takes ``seconds``."""
    return model_flops(training) / (seconds * topology.chips * topology.known_chip.flops_per_second)


def step_flops(training: Training) -> float:
    """Return the FLOPs that one step executes, including recomputation by remat and the extra forward pass that counts
    expert loads.
    """
    recipe, architecture = training.recipe, training.architecture
    part = flops_per_token(architecture, recipe.data.sequence_length)
    layers = part.forward_causal - part.unembedding
    spared = named_activations(architecture, recipe.data.sequence_length)
    names = kept_names(recipe.runtime.remat)
    again = {
        "none": 0.0,
        # Projections are kept. Scores and routed experts are not plain dot products and are computed again.
        "dots": part.attention_scores_causal + part.routed_experts,
    }.get(recipe.runtime.remat, layers - sum(spared[name].flops for name in names))
    counted = layers * training.counted_share
    return float((part.training_causal + again + counted) * recipe.batch_tokens)


def quantized_flops(training: Training) -> float:
    """Return the part of ``step_flops`` in 8-bit matmuls (``Runtime.matmul_quantization``).

    These are projections, feed-forward layers and routed experts, in forward passes, recomputation and gradients of
    activations. Multi-token-prediction modules are included.
    """
    recipe = training.recipe
    quantized = _quantized_per_token(training)
    if not quantized:
        return 0.0
    # All passes through the layers except the weight gradients, which are never computed in 8 bits.
    names = kept_names(recipe.runtime.remat)
    spared = named_activations(training.architecture, recipe.data.sequence_length)
    part = flops_per_token(training.architecture, recipe.data.sequence_length)
    again = {"none": 0.0, "dots": part.routed_experts}.get(
        recipe.runtime.remat, quantized - sum(spared[name].flops for name in names if name != "attn_out")
    )
    return float((2 * quantized + again + training.counted_share * quantized) * recipe.batch_tokens)


def _quantized_per_token(training: Training) -> float:
    if training.recipe.runtime.matmul_quantization == "none":
        return 0.0
    part = flops_per_token(training.architecture, training.recipe.data.sequence_length)
    return float(part.forward_causal - part.attention_scores_causal - part.router - part.unembedding)


def memory_traffic(training: Training, mesh: Mapping[str, int], parameter_bytes: int) -> float:
    """Return the estimated bytes that a step moves between one chip and its memory.

    The optimizer reads and writes parameters and moments, and gradients are written and read once. Weights in the
    compute type are written when gathered and read by each matmul. Activations are written, read by the next matmul and
    read by the backward pass. Their gradients are written and read.
    """
    recipe = training.recipe
    again, counted = recipe.runtime.remat != "none", training.counted_share
    weights = _held_weight_bytes(training, mesh) * (5 + 2 * again + 2 * counted) * recipe.microbatches
    weights += _quantizing_bytes(training, mesh) * (2 + again + counted) * recipe.microbatches
    activations, logits = _activation_bytes(training, mesh, recipe.batch_tokens)
    modules = training.architecture.num_mtp_layers
    moments = moment_bytes(recipe.optimizer, training.architecture) / 4
    return 2 * (2 + moments) * parameter_bytes + weights + activations * (5 + 2 * again) + 2 * (1 + modules) * logits


def _held_weight_bytes(training: Training, mesh: Mapping[str, int]) -> float:
    """Return the bytes of the gathered weights, in the compute type, that one chip uses in a training step."""
    counts, modules, split = params(training.architecture), mtp_params(training.architecture), mesh["tensor"]
    routed = counts.routed_experts + modules.routed_experts
    held = routed / (split * mesh["expert"]) + (counts.total + modules.total - routed) / split
    return held * value_bytes(training)


def _quantizing_bytes(training: Training, mesh: Mapping[str, int]) -> float:
    """Return the bytes that ``Runtime.matmul_quantization`` adds to the weight traffic of one pass.

    The pass is a forward pass, or a backward pass to the activations, whose scales are along other axes.

    Each matrix is read twice, for its scales and for rounding, and written in 8 bits; the matmul then reads 8 bits.
    Routed experts are gathered, then quantized. Other matrices are quantized per shard, then gathered, so the gather
    also writes fewer bytes.
    """
    if training.recipe.runtime.matmul_quantization == "none":
        return 0.0
    value, a = value_bytes(training), training.architecture
    part = flops_per_token(a, training.recipe.data.sequence_length)
    # A token's matmul has two FLOPs for each weight.
    others = part.attention_projections + part.shared_experts + part.dense_feed_forward + part.mtp_projections
    others = float(others) / 2 / mesh["tensor"]
    routed = float(params(a).routed_experts + mtp_params(a).routed_experts) / (mesh["tensor"] * mesh["expert"])
    quantize, less = 2 * value + 1, value - 1
    return routed * (quantize - less) + others * (quantize / mesh["fsdp"] - 2 * less)


def _activation_bytes(training: Training, mesh: Mapping[str, int], tokens: int) -> tuple[float, float]:
    """Return the bytes that one chip writes for a batch of ``tokens``: activations, and one prediction's logits."""
    kept = training_memory(training.architecture, tokens, activation_bytes=value_bytes(training))
    chips = math.prod(mesh.values())
    return kept.activations / chips, kept.logits / chips


def value_bytes(training: Training) -> int:
    """Return the bytes of a number of the compute type."""
    return 2 if training.recipe.runtime.compute_dtype == "bfloat16" else 4


def roofline(
    training: Training, mesh: Mapping[str, int], chip: Chip, parameter_bytes: int, link_seconds: dict[str, float]
) -> Roofline:
    """Return the roofline of one training step on a mesh of one kind of chip."""
    return Roofline(
        compute_seconds=_compute_seconds(training, mesh, chip, step_flops(training), quantized_flops(training)),
        memory_seconds=memory_traffic(training, mesh, parameter_bytes) / chip.memory_bytes_per_second,
        link_seconds=link_seconds,
    )


def evaluation_roofline(
    training: Training, mesh: Mapping[str, int], chip: Chip, tokens: int, link_seconds: dict[str, float]
) -> Roofline:
    """Return the roofline of an evaluation batch: one forward pass, which writes and reads weights and activations."""
    # Multi-token prediction modules are used in training only.
    training = replace(training, architecture=training.architecture.replace(num_mtp_layers=0))
    per_token = flops_per_token(training.architecture, training.recipe.data.sequence_length)
    flops, quantized = float(per_token.forward_causal) * tokens, _quantized_per_token(training) * tokens
    activations, logits = _activation_bytes(training, mesh, tokens)
    held, quantizing = _held_weight_bytes(training, mesh), _quantizing_bytes(training, mesh)
    bytes_ = 2 * (activations + logits) + (2 * held + quantizing) * training.recipe.microbatches
    return Roofline(
        compute_seconds=_compute_seconds(training, mesh, chip, flops, quantized),
        memory_seconds=bytes_ / chip.memory_bytes_per_second,
        link_seconds=link_seconds,
    )


def _compute_seconds(
    training: Training, mesh: Mapping[str, int], chip: Chip, flops: float, quantized_flops: float
) -> float:
    quantized_peak = chip.peak(training.recipe.runtime.matmul_quantization)
    # GPUs compute float32 matmuls in TF32, at half the bfloat16 peak in NVIDIA's data sheets. TPUs round float32 to
    # bfloat16.
    passes = 2 if value_bytes(training) == 4 and not chip.torus_dimensions else 1
    seconds = (flops - quantized_flops) * passes / chip.flops_per_second + quantized_flops / quantized_peak
    return seconds / math.prod(mesh.values())
