"""Configure how the model is computed. No setting changes the loss beyond the rounding of the chosen types."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from moejax.config import check_fields
from moejax.errors import UserError
from moejax.kernels.attention import BACKENDS
from moejax.kernels.linear import ProductTypes
from moejax.kernels.quantization import QUANTIZATIONS
from moejax.kernels.saved_names import SAVED_NAMES, keep
from moejax.ranges import Multiple
from moejax.routing import DISPATCHERS
from moejax.routing.communication import COMMUNICATION

COMPUTE_DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}

REMAT_POLICIES = {
    "none": None,
    "dots": jax.checkpoint_policies.save_from_both_policies(
        jax.checkpoint_policies.dots_with_no_batch_dims_saveable, keep()
    ),
    "full": keep(),
}
"""Policies of ``jax.checkpoint`` by name; None saves everything. The others save at least the routers' choices."""


def kept_names(remat: str) -> tuple[str, ...]:
    """Return the activations named by a value of ``Runtime.remat``; none for a key of ``REMAT_POLICIES``."""
    return () if remat in REMAT_POLICIES else tuple(remat.split("+"))


def remat_policy(remat: str) -> Callable[..., Any] | None:
    """Return the ``jax.checkpoint`` policy for a value of ``Runtime.remat``; None if nothing is recomputed."""
    names = kept_names(remat)
    return keep(*names) if names else REMAT_POLICIES[remat]


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """Types, memory and kernels of a training or inference program."""

    compute_dtype: str = "float32"
    """Type of activations and of weights in products with them; master weights and the router are float32. With
    "float32" a TPU multiplies in bfloat16 and a GPU in TF32, as JAX does by default, and both accumulate in float32;
    the experts' Triton kernels are an exception. ``JAX_DEFAULT_MATMUL_PRECISION=highest`` makes them multiply in
    float32."""
    reduce_dtype: str = "float32"
    """Type in which devices add up gradients of the layers' matrices. "bfloat16" sends half the bytes and rounds at
    every addition. Gradients of all other parameters, and sums within one device, are added in float32. Layer outputs
    and their input gradients, which devices add up along ``expert`` and ``tensor``, are added in ``compute_dtype``."""
    matmul_quantization: str = "none"
    """"fp8" (E4M3) or "int8" computes projections of attention and feed-forwards and products of routed experts with
    8-bit numbers, in the forward pass and for gradients of their inputs (``moejax.kernels.quantization``). The router,
    attention scores, embedding, output head, norms and gradients of matrices keep their types; stored weights are
    float32. On an H200 it is no faster than "none"."""
    dispatcher: str = "grouped"
    """A key of ``moejax.routing.DISPATCHERS``."""
    expert_communication: str = "all_gather"
    """Method that brings tokens to experts on other devices: a key of ``moejax.routing.communication.COMMUNICATION``.
    The ragged one is for TPUs."""
    buffer_factor: Multiple = 1.25
    """Size of the row buffer of each device along the expert axis, as a multiple of the rows of a balanced routing.
    Rows that exceed it are computed in further chunks or gathered; no result depends on it."""
    scan_layers: bool = False
    """Compile one layer and loop over it. Compilation is faster; steps are slightly slower on a CPU, and on an H200 8
    to 14 % slower with 20 % more memory."""
    remat: str = "none"
    """A key of ``REMAT_POLICIES``, or the activations that layers save besides their inputs: names of
    ``moejax.kernels.saved_names`` joined by ``+``, such as "attn_out+moe_gate_up"."""
    attention: str = "auto"
    """A key of ``moejax.kernels.attention.BACKENDS``. "auto" selects "splash" on a TPU; "cudnn" on a GPU in bfloat16
    for shapes that cuDNN supports; "numba" on a CPU in float32 if that package is installed; else "tiled"."""

    xla_options: str = "auto"
    """"auto" compiles with the options of ``moejax.train.xla_options`` for the chip, "none" without options."""

    @property
    def product_types(self) -> ProductTypes:
        """Types in which projections are computed."""
        return ProductTypes(self.reduce_dtype, self.matmul_quantization)

    def check(self) -> None:
        """Raise ``UserError`` if a name is unknown, listing the known choices, or if a number is outside its range."""
        check_fields(self, "runtime")
        known = {
            "compute_dtype": tuple(COMPUTE_DTYPES),
            "reduce_dtype": tuple(COMPUTE_DTYPES),
            "matmul_quantization": QUANTIZATIONS,
            "dispatcher": tuple(DISPATCHERS),
            "expert_communication": tuple(COMMUNICATION),
            "attention": BACKENDS,
            "xla_options": ("auto", "none"),
        }
        for name, choices in known.items():
            if getattr(self, name) not in choices:
                raise UserError(f"{name} is {getattr(self, name)!r}; known are {', '.join(choices)}.")
        if set(kept_names(self.remat)) - set(SAVED_NAMES):
            raise UserError(
                f"remat is {self.remat!r}; known are {', '.join(REMAT_POLICIES)}, or what layers keep, joined by +: "
                f"{', '.join(SAVED_NAMES)}."
            )
        if len(set(names := kept_names(self.remat))) < len(names):
            raise UserError(f"remat is {self.remat!r}, which names something twice; name each once.")
