"""Define measures that can be constrained or minimized: FLOPs of training and inference, sizes, memory, chip-hours."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from moejax.design.coordinates import Candidate
from moejax.errors import UserError
from moejax.laws.accounting import flops_per_token, mtp_params, params
from moejax.laws.chips import flops_per_hour
from moejax.laws.conventions import FLOPS
from moejax.laws.dense.chinchilla import FLOPS_PER_PARAM_AND_TOKEN
from moejax.laws.memory import kv_cache_bytes
from moejax.quantities import ASSUMED_MFU, format, format_bytes
from moejax.wording import argument, did_you_mean


@dataclass(frozen=True, kw_only=True)
class CostAssumptions:
    """Assumptions of the measures."""

    convention: str = "exact"
    """Convention for an architecture's FLOPs, a key of ``conventions.FLOPS``; sizes use 6·N_a·D."""
    sequence_length: int = 4096
    context: int = 32_768
    """Number of tokens in the key-value cache when serving."""
    bytes_per_param: float = 16.0
    """Bytes per parameter, including its gradient and AdamW moments in float32."""
    served_tokens: float = 0.0
    """Number of tokens served over the model's lifetime."""
    chip_flops: float = 989e12
    """Peak FLOPs per second of a chip; by default of an H100 in dense bfloat16 (NVIDIA's data sheet)."""
    mfu: float = ASSUMED_MFU
    """Fraction of the peak that training reaches. As in plans and runs, it does not count masked attention scores."""


def checked_convention(name: str | None, known: object = None) -> str:
    """Return the name of a convention for FLOPs; by default that of a fit's runs, if ``known`` is such a fit, else
    "exact".

    Raises:
      UserError: the convention is unknown.
    """
    if name is None:
        return getattr(known, "flops_convention", "") or CostAssumptions.convention
    if name not in FLOPS:
        raise UserError(f"{argument('convention', name)} is unknown; {did_you_mean(name, FLOPS)}")
    return name


@dataclass(frozen=True)
class Measure:
    """A positive number computed from a candidate."""

    meaning: str
    unit: str
    of: Callable[[Candidate, CostAssumptions], Any]
    """Function of candidate and assumptions that returns the measure, or None if it is not determined."""


def training_flops(candidate: Candidate, assumptions: CostAssumptions) -> Any:
    """Return the training FLOPs under the convention of the assumptions."""
    if candidate.architecture is None:
        return candidate.design.flops
    per_token = FLOPS[assumptions.convention].per_token(candidate.architecture, assumptions.sequence_length)
    return per_token * candidate.design.tokens


def inference_flops(candidate: Candidate, assumptions: CostAssumptions) -> Any:
    """Return the FLOPs of serving one token."""
    if candidate.architecture is not None:
        return flops_per_token(candidate.architecture.without_mtp, assumptions.sequence_length).forward
    active = candidate.design.params_active
    return None if active is None else FLOPS_PER_PARAM_AND_TOKEN / 3 * active


def lifetime_flops(candidate: Candidate, assumptions: CostAssumptions) -> Any:
    """Return the FLOPs of training and serving."""
    training, serving = training_flops(candidate, assumptions), inference_flops(candidate, assumptions)
    return None if training is None or serving is None else training + assumptions.served_tokens * serving


def memory_bytes(candidate: Candidate, assumptions: CostAssumptions) -> Any:
    """Return the bytes of parameters, gradients and optimizer state on all chips together."""
    if candidate.architecture is None:
        total = candidate.design.params_total
    else:
        total = params(candidate.architecture).total + mtp_params(candidate.architecture).total
    return None if total is None else assumptions.bytes_per_param * total


def kv_bytes(candidate: Candidate, assumptions: CostAssumptions) -> Any:
    """Return the bytes of keys and values of one sequence."""
    return None if candidate.architecture is None else kv_cache_bytes(candidate.architecture, assumptions.context)


def chip_hours(candidate: Candidate, assumptions: CostAssumptions) -> Any:
    """Return the chip-hours of training at the assumed MFU, which does not count masked attention scores."""
    flops = candidate.design.flops
    if candidate.architecture is not None:
        per_token = flops_per_token(candidate.architecture, assumptions.sequence_length).training_causal
        flops = per_token * candidate.design.tokens
    return None if flops is None else flops / flops_per_hour(assumptions.chip_flops, assumptions.mfu)


def in_units(name: str, value: float) -> str:
    """Format the value of a measure or coordinate; bytes have their own units, because 35 B would mean parameters."""
    is_bytes = name in MEASURES and MEASURES[name].unit == "bytes" and math.isfinite(value)
    return (format_bytes if is_bytes else format)(value)


def _of_shape(read: Callable[[Any], Any]) -> Callable[[Candidate, CostAssumptions], Any]:
    """Return a measure that reads an architecture's design; None if only sizes are chosen."""
    return lambda candidate, _: None if candidate.architecture is None else read(candidate.design)


def _routed_share(candidate: Candidate, _: CostAssumptions) -> Any:
    # The sizes of an MoE model may be traced, and those of a dense model are plain zeros.
    experts = 0 if candidate.architecture is None else candidate.architecture.num_experts
    if isinstance(experts, int | float) and not experts:
        return None
    return candidate.design.top_k / candidate.design.active_experts


MEASURES: dict[str, Measure] = {
    "flops": Measure("training FLOPs", "FLOPs", training_flops),
    "params_total": Measure("all parameters", "parameters", lambda c, _: c.design.params_total),
    "params_active": Measure("parameters that serve a token", "parameters", lambda c, _: c.design.params_active),
    "tokens": Measure("training tokens", "tokens", lambda c, _: c.design.tokens),
    "epochs": Measure("passes through the unique tokens", "", lambda c, _: c.epochs),
    "inference_flops": Measure("FLOPs of serving one token", "FLOPs", inference_flops),
    "lifetime_flops": Measure("FLOPs of training and of serving", "FLOPs", lifetime_flops),
    "memory_bytes": Measure("bytes of parameters, gradients and optimizer state on all chips", "bytes", memory_bytes),
    "kv_bytes": Measure("bytes of keys and values of one sequence", "bytes", kv_bytes),
    "chip_hours": Measure("chip-hours of training", "chip-hours", chip_hours),
    "expansion": Measure("total / active parameters", "", _of_shape(lambda d: d.expansion)),
    "expert_expansion": Measure(
        "routed experts / routed experts that serve a token", "", _of_shape(lambda d: d.expert_expansion)
    ),
    "active_experts": Measure("experts that serve a token", "", _of_shape(lambda d: d.active_experts)),
    "routed_share": Measure("routed experts as a share of the experts that serve a token", "", _routed_share),
    "activation_ratio": Measure(
        "experts that serve a token, including shared experts, as a share of all experts",
        "",
        _of_shape(lambda d: d.activation_ratio),
    ),
    "granularity": Measure("2 · model width / expert width", "", _of_shape(lambda d: d.granularity)),
}
"""Measures by name. All of them are constant or linear in tokens."""
