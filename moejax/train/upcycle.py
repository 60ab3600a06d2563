"""A dense model's weights as the start of a mixture (sparse upcycling, Komatsuzaki et al. 2023).

Each expert is a copy of the layer's feed-forward, and the router is new. Where the weights of a token's experts sum to
a constant, the mixture computes what the dense model did, whatever the router chooses. Experts that are a G-th as wide
take the slices of the feed-forward in turn, and the router's columns are repeated for the G experts of a whole, so that
all slices of one copy are chosen together (virtual groups, He et al. 2024). Shared experts start with an output of
zero.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from moejax.architecture import Architecture
from moejax.errors import UserError
from moejax.model.moe import router_arguments
from moejax.model.transformer import MTP_LAYERS
from moejax.routing import ROUTERS
from moejax.routing.routers import router_options

Read = Callable[[str], np.ndarray]
"""A parameter by its dotted name."""

OF_THE_MIXTURE = frozenset(
    {
        *("dense_hidden", "num_dense_layers", "num_last_dense_layers", "num_experts", "top_k", "expert_hidden"),
        *("num_shared_experts", "shared_hidden", "layer_pattern", "router", "norm_topk_prob", "routed_scaling_factor"),
        *("router_bias", "expert_bias", "capacity_factor", "activation", "expert_mlp_bias", "shared_expert_gate"),
        *(option for router in ROUTERS for option in router_options(router)),
    }
)
"""Fields of an Architecture in which a mixture may differ from the dense model that it starts from."""


def upcycled(dense: Architecture, mixture: Architecture, read: Read, fresh: Read, *, noise: float, seed: int) -> Read:
    """The parameters of a mixture from those of a dense model, and from ``fresh`` random ones of its own.

    Raises:
      UserError: the two models do not fit together.
    """
    copies = check_upcycled(dense, mixture)
    block = f"{MTP_LAYERS}.block"
    # For each stack of layers, the dense model's that it is made of, and which of these.
    stacks = {
        "moe_layers": ("dense_layers", [i for i, experts in enumerate(mixture.has_experts) if experts]),
        "dense_layers": ("dense_layers", [i for i, experts in enumerate(mixture.has_experts) if not experts]),
        block: (block, list(range(mixture.num_mtp_layers))),
    }
    slices = dense.dense_hidden // mixture.expert_hidden
    # Each copy is a G-th of the sum of its slices' weights; the weights of all copies sum to ``total``.
    scale = slices / (_sum_of_gates(mixture) or 1.0)

    def find(name: str) -> np.ndarray:
        stack = next((stack for stack in stacks if name.startswith(f"{stack}.")), None)
        if stack is None:
            return read(name)
        source, order = stacks[stack]
        rest = name.removeprefix(f"{stack}.")
        part = rest.removeprefix("feed_forward.")
        if stack == "dense_layers" or part == rest:
            return read(f"{source}.{rest}")[order]
        if part == "router":
            # The first columns, each for all slices of a copy.
            return np.repeat(fresh(name)[..., :copies], slices, axis=-1)
        if part == "shared.down":
            return np.zeros_like(fresh(name))
        if part not in ("gate_up", "down"):
            return fresh(name)
        wholes = [
            read(f"{source}.feed_forward.{matrix}")[order]
            for matrix in (("gate", "up") if part == "gate_up" else ("down",))
        ]
        sliced = [_sliced(whole, slices, hidden=1 if part == "down" else 2) for whole in wholes]
        experts = np.stack(sliced, axis=2) if part == "gate_up" else sliced[0] * np.float32(scale)
        experts = np.tile(experts, (1, copies, *(1 for _ in experts.shape[2:])))
        if noise:
            draw = np.random.default_rng([seed, zlib.crc32(name.encode())]).standard_normal(experts.shape, np.float32)
            experts = experts + np.float32(noise * experts.std()) * draw
        return experts

    return find


def preserves(mixture: Architecture) -> bool:
    """Whether a mixture without noise computes what the dense model did: whether weights sum to a constant."""
    return _sum_of_gates(mixture) is not None and mixture.capacity_factor is None


def _sliced(whole: np.ndarray, slices: int, *, hidden: int) -> np.ndarray:
    """(layers, slices, in, out) from (layers, in, out), cut along the hidden axis."""
    return np.stack(np.split(whole, slices, axis=hidden), axis=1)


def _sum_of_gates(mixture: Architecture) -> float | None:
    """What the weights of any token sum to, or None if that depends on the token: tried on random logits."""
    tokens = 64
    logits = jax.random.normal(jax.random.key(0), (tokens, mixture.num_experts), jnp.float32)
    found = ROUTERS[mixture.router](logits, top_k=mixture.top_k, **router_arguments(mixture))
    sums = np.asarray(jax.ops.segment_sum(found.combine_weight, found.token, tokens))
    return float(sums.mean()) if np.ptp(sums) < 1e-5 * sums.mean() else None


def check_upcycled(dense: Architecture, mixture: Architecture) -> int:
    """Copies of the feed-forward among the experts of a layer."""
    if mixture.activation != Architecture.activation or dense.is_moe:
        raise UserError(
            f"Only a dense model starts a mixture, and its experts are SwiGLU as its feed-forward is; activation is "
            f"{mixture.activation} and the source has {dense.num_experts} experts."
        )
    width, expert = dense.dense_hidden, mixture.expert_hidden
    if mixture.dense_hidden not in (0, width):
        raise UserError(f"dense_hidden is {mixture.dense_hidden}, and the dense model's {width}; they must be equal.")
    if width % expert:
        raise UserError(
            f"expert_hidden is {expert}, and the dense model's feed-forward is {width} wide; experts are copies or "
            f"equal slices of it: give a divisor."
        )
    slices = width // expert
    if mixture.num_experts % slices or mixture.top_k % slices:
        raise UserError(
            f"num_experts is {mixture.num_experts} and top_k {mixture.top_k}; experts of {expert} are one of {slices} "
            f"slices of the dense feed-forward of {width}, so both must be multiples of {slices}."
        )
    return mixture.num_experts // slices
