"""Initialize an MoE model from a dense model (sparse upcycling, Komatsuzaki et al. 2023).

Each expert is a copy of the layer's feed-forward, and the router is new. If the weights of a token's experts sum to a
constant, the mixture initially computes the same function as the dense model, whatever the router chooses. Experts of
1/G of the width take consecutive slices of the feed-forward. The router's columns are repeated for the G experts of one
copy, so that all its slices are chosen together (virtual groups, He et al. 2024). Shared experts start with zero
output.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from moejax.architecture import Architecture
from moejax.errors import UserError
from moejax.model.parameter import MATRICES
from moejax.model.transformer import MTP_LAYERS
from moejax.routing import ROUTERS
from moejax.routing.routers import router_options

Index = tuple[slice, ...]
"""A block of an array: start and stop of every axis."""

ReadBlock = Callable[[Index], np.ndarray]

Read = Callable[[str, Index], np.ndarray]
"""Function that reads a block of a parameter, given its dotted name, in float32."""

OF_THE_MIXTURE = frozenset(
    {
        *("dense_hidden", "num_dense_layers", "num_last_dense_layers", "num_experts", "top_k", "expert_hidden"),
        *("num_shared_experts", "shared_hidden", "layer_pattern", "router", "norm_topk_prob", "routed_scaling_factor"),
        *("router_bias", "expert_bias", "capacity_factor", "activation", "expert_mlp_bias", "shared_expert_gate"),
        *(option for router in ROUTERS for option in router_options(router)),
    }
)
"""Fields of an Architecture in which an MoE model may differ from its dense source."""


def upcycled(
    dense: Architecture,
    mixture: Architecture,
    read: Read,
    routers: Mapping[str, np.ndarray],
    *,
    noise: float,
    seed: int,
) -> Callable[[str], ReadBlock | None]:
    """Return a function that maps a parameter name of the MoE model to a block reader of the dense model, or to None
    for new parameters.

    The router columns come from ``routers``, the newly initialized routers.

    Raises:
      UserError: the two models are not compatible.
    """
    copies = check_upcycled(dense, mixture)
    block = f"{MTP_LAYERS}.block"
    # Map each stack of layers to its source stack in the dense model, and its layers to layers of the source stack.
    stacks = {
        "moe_layers": ("dense_layers", [i for i, experts in enumerate(mixture.has_experts) if experts]),
        "dense_layers": ("dense_layers", [i for i, experts in enumerate(mixture.has_experts) if not experts]),
        block: (block, list(range(mixture.num_mtp_layers))),
    }
    width, slices = mixture.expert_hidden, dense.dense_hidden // mixture.expert_hidden
    # The slices of a copy each get 1/G of its weight, so their outputs are scaled by G.
    total = mixture.routed_scaling_factor if mixture.weights_sum_to_constant else 1.0
    scale = np.float32(slices / total)

    def layers(name: str, order: Sequence[int], index: Index) -> np.ndarray:
        return np.concatenate([read(name, (slice(layer, layer + 1), *index[1:])) for layer in order[index[0]]])

    def matrix(name: str, layer: int, expert: int, index: Index, draw: Sequence[int]) -> np.ndarray:
        """Return a block of an expert's matrix, which is a slice of a matrix of the dense feed-forward."""
        hidden, first = 0 if name.endswith("down") else 1, expert % slices * width
        # Noise is drawn for the whole matrix, so that it does not depend on the block.
        part = [slice(None)] * 2 if noise else [*index]
        of_hidden = slice(0, width) if noise else index[hidden]
        part[hidden] = slice(first + of_hidden.start, first + of_hidden.stop)
        copy = read(name, (slice(layer, layer + 1), *part))[0]
        if not noise:
            return copy
        drawn = np.random.default_rng(draw).standard_normal(copy.shape, np.float32)
        return (copy + np.float32(noise * copy.std()) * drawn)[index]

    def experts(name: str, source: str, order: Sequence[int], index: Index) -> np.ndarray:
        part = name.rpartition(".")[2]
        names = [f"{source}.feed_forward.{matrix}" for matrix in MATRICES.get(part, (part,))]
        of_layers, of_experts, *of_matrix = index
        which = of_matrix.pop(0) if part in MATRICES else slice(0, 1)
        starts, tag = [at.start for at in (of_layers, of_experts, which)], zlib.crc32(name.encode())
        found = np.empty([at.stop - at.start for at in (of_layers, of_experts, which, *of_matrix)], np.float32)
        for place in np.ndindex(found.shape[:3]):
            layer, expert, kind = (first + at for first, at in zip(starts, place, strict=True))
            draw = (seed, tag, layer, expert, kind)
            found[place] = matrix(names[kind], order[layer], expert, tuple(of_matrix), draw)
        return found if part in MATRICES else found[:, :, 0] * scale

    def find(name: str) -> ReadBlock | None:
        stack = next((stack for stack in stacks if name.startswith(f"{stack}.")), None)
        if stack is None:
            return functools.partial(read, name)
        source, order = stacks[stack]
        rest = name.removeprefix(f"{stack}.")
        part = rest.removeprefix("feed_forward.")
        if stack == "dense_layers" or part == rest:
            return functools.partial(layers, f"{source}.{rest}", order)
        if part == "router":
            # Each of the first columns is repeated for all slices of its copy.
            return np.repeat(routers[name][..., :copies], slices, axis=-1).__getitem__
        if part == "shared.down":
            return lambda index: np.zeros([at.stop - at.start for at in index], np.float32)
        return functools.partial(experts, name, source, order) if part in ("gate_up", "down") else None

    return find


def preserves(mixture: Architecture) -> bool:
    """Return whether an MoE model without noise computes the same function as its dense model."""
    return mixture.weights_sum_to_constant and mixture.capacity_factor is None


def check_upcycled(dense: Architecture, mixture: Architecture) -> int:
    """Check that upcycling is possible, and return the number of copies of the feed-forward among a layer's experts."""
    if mixture.activation != Architecture.activation or dense.is_moe:
        raise UserError(
            f"Only a dense model can be upcycled, and only to SwiGLU experts; activation is "
            f"{mixture.activation} and the source has {dense.num_experts} experts."
        )
    width, expert = dense.dense_hidden, mixture.expert_hidden
    if mixture.dense_hidden not in (0, width):
        raise UserError(f"dense_hidden is {mixture.dense_hidden}, and the dense model's {width}; they must be equal.")
    if width % expert:
        raise UserError(
            f"expert_hidden is {expert}, but the dense model's feed-forward is {width} wide. Experts are copies or "
            f"equal slices of it, so choose a divisor of {width}."
        )
    slices = width // expert
    if mixture.num_experts % slices or mixture.top_k % slices:
        raise UserError(
            f"num_experts ({mixture.num_experts}) and top_k ({mixture.top_k}) must be multiples of {slices}: an expert "
            f"({expert} wide) is 1/{slices} of the dense feed-forward ({width} wide)."
        )
    return mixture.num_experts // slices
