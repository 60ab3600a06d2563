"""Dropless dispatch: assignments sorted by expert, and every expert's rows through its own matrices alone."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import warnings
from functools import partial

import jax
from jax import Array, lax
from jax.custom_batching import sequential_vmap
from jaxtyping import Float

from moejax.native import can_hold
from moejax.routing import grouped_blocks, grouped_ragged
from moejax.routing.experts import Experts, swiglu
from moejax.routing.grouped_kernel import grouped_dot
from moejax.routing.layout import Layout, arrange, by_expert, collect, cut, spread
from moejax.routing.routing import Routing
from moejax.routing.turns import in_turns
from moejax.target import platform


def grouped(x: Float[Array, "tokens model"], routing: Routing, experts: Experts) -> Float[Array, "tokens model"]:
    """The gated sum over experts, computed for the assignments there are.

    The platform chooses the kernel: on a CPU ``grouped_native``, or blocks where it cannot be used; ``grouped_kernel``
    on a TPU, tokamax's on a GPU if it is installed. A GPU without it runs blocks, one after another, and says so.
    """
    served, padding = _by_kernel, 0
    if not _fits_kernel(x, experts):
        sizes = grouped_blocks.block_sizes(routing.balanced_load, *experts.gate.shape[1:])
        served, padding = partial(_served, sizes), sizes[-1]
    if routing.room is None or routing.room >= routing.expert.shape[0]:
        return served(x, routing, by_expert(routing, padding=padding), experts)
    layout, room = by_expert(routing), routing.room

    def turn(x: Array, gate: Array, experts: Experts, number: Array | int) -> Array:
        part = cut(layout, number * room, room, padding=padding)
        return served(x, dataclasses.replace(routing, gate=gate), part, experts)

    return in_turns(turn, layout.offsets[-1], room, routing.expert.shape[0], x, routing.gate, experts)


def _fits_kernel(x: Array, experts: Experts) -> bool:
    """Whether the kernel for CPU cores is installed and knows such experts."""
    is_plain = experts.activation is swiglu and experts.gate_bias is experts.up_bias is experts.down_bias is None
    return platform() == "cpu" and is_plain and can_hold(x, experts.gate, experts.up, experts.down)


def _by_kernel(x, routing: Routing, layout: Layout, experts: Experts) -> Float[Array, "tokens model"]:
    serve = importlib.import_module("moejax.routing.grouped_native").serve
    return serve(x, arrange(routing.gate, layout), routing, layout, experts)


def _served(sizes, x, routing: Routing, layout: Layout, experts: Experts) -> Float[Array, "tokens model"]:
    rows, weight = spread(x, routing, layout), arrange(routing.gate, layout)
    return collect(_experts(sizes, rows, weight, layout.offsets, experts), routing, layout)


def _gpu_ragged_dot():
    """The ragged product to use on a GPU, or None."""
    if platform() != "gpu":
        return None
    if importlib.util.find_spec("tokamax") is None:
        warnings.warn(
            "tokamax is not installed, so the grouped dispatcher runs its blocks one after another on this GPU, which "
            "is slow; install tokamax (the extra cuda13), or use the capacity dispatcher with a capacity factor.",
            stacklevel=2,
        )
        return None
    tokamax, flags = importlib.import_module("tokamax"), importlib.import_module("absl.flags").FLAGS
    if not flags.is_parsed():
        # Tokamax would read its settings from this process's arguments, and refuse all that are ours.
        flags.mark_as_parsed()
    # Its third implementation, "xla", computes every expert for every row.
    return partial(tokamax.ragged_dot, implementation=("mosaic", "triton"))


def _on_platform(blocks, ragged, *arguments):
    """``ragged(ragged_dot, ...)`` where there is a ragged product, ``blocks(...)`` elsewhere."""
    gpu = _gpu_ragged_dot()
    # Side by side, loops of different lengths would copy all they carry at each turn: one after another is faster.
    blocks = sequential_vmap(blocks)
    # A program traced for a CPU and lowered for a TPU after all is no reason to trace the kernels in every program.
    on_tpu = grouped_dot if platform() == "tpu" else lax.ragged_dot
    return lax.platform_dependent(
        *arguments,
        tpu=sequential_vmap(partial(ragged, on_tpu)),
        default=blocks if gpu is None else partial(ragged, gpu),
        cpu=blocks,
    )


def _run(keep: bool, sizes, arguments) -> tuple[Array, ...]:
    blocks, ragged = partial(grouped_blocks.forward, sizes, keep), partial(grouped_ragged.forward, keep)
    return _on_platform(blocks, ragged, *arguments)


def _outputs(sizes, *arguments) -> Array:
    return _run(False, sizes, arguments)[0]


def _forward(sizes, *arguments):
    y, gate, up = _run(True, sizes, arguments)
    return y, (*arguments, gate, up)


def _backward(sizes, saved, dy):
    dx, dweight, dexperts = _on_platform(partial(grouped_blocks.backward, sizes), grouped_ragged.backward, *saved, dy)
    return dx, dweight, None, dexperts


_experts = jax.custom_vjp(_outputs, nondiff_argnums=(0,))
_experts.defvjp(_forward, _backward)
