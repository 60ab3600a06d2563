"""Configure the computation of the model. Settings change the loss only by the rounding of the chosen types."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp

from moejax.config import Rule, check_fields
from moejax.kernels.attention import BACKENDS
from moejax.kernels.linear import ProductTypes
from moejax.kernels.quantization import QUANTIZATIONS
from moejax.kernels.saved_names import SAVED_NAMES, keep
from moejax.ranges import Multiple, one_of
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
"""Policies of ``jax.checkpoint`` by name; None saves everything. All other policies save the routers' choices."""


def kept_names(remat: str) -> tuple[str, ...]:
    """Return the activations that a value of ``Runtime.remat`` names; no activations for a key of
    ``REMAT_POLICIES``."""
    return () if remat in REMAT_POLICIES else tuple(remat.split("+"))


def remat_policy(remat: str) -> Callable[..., Any] | None:
    """Return the ``jax.checkpoint`` policy for a value of ``Runtime.remat``; None if nothing is recomputed."""
    names = kept_names(remat)
    return keep(*names) if names else REMAT_POLICIES[remat]


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """Types, memory and kernels of a training or inference program."""

    compute_dtype: Annotated[str, one_of(COMPUTE_DTYPES)] = "float32"
    """Type of activations, and of weights in matmuls; master weights and the router are float32. With "float32", JAX by
    default multiplies in bfloat16 on a TPU and in TF32 on a GPU, and accumulates in float32. The experts' Triton
    kernels multiply in float32. ``JAX_DEFAULT_MATMUL_PRECISION=highest`` makes all matmuls do so."""
    reduce_dtype: Annotated[str, one_of(COMPUTE_DTYPES)] = "float32"
    """Type in which devices add up gradients of the layers' matrices. "bfloat16" sends half the bytes and rounds at
    every addition. Gradients of all other parameters, and sums within one device, are added in float32. Along the axes
    ``expert`` and ``tensor``, devices add layer outputs and input gradients in ``compute_dtype``."""
    matmul_quantization: Annotated[str, one_of(QUANTIZATIONS)] = "none"
    """"fp8" (E4M3) or "int8" uses 8-bit numbers in attention and feed-forward projections and in matmuls of routed
    experts: in the forward pass and for gradients of inputs (``moejax.kernels.quantization``). The router, attention
    scores, embedding, output head, norms and gradients of matrices keep their types; stored weights are float32. On an
    H200, 8 bits are not faster than "none"."""
    dispatcher: Annotated[str, one_of(DISPATCHERS)] = "grouped"
    """Function of ``moejax.routing.dispatch`` that computes a device's experts."""
    expert_communication: Annotated[str, one_of(COMMUNICATION)] = "all_gather"
    """Method that sends tokens to experts on other devices (``moejax.routing.communication``). The ragged method is for
    TPUs."""
    buffer_factor: Multiple = 1.25
    """Size of each device's row buffer along the expert axis, as a multiple of its rows in a balanced routing. Rows
    beyond the buffer are computed in further chunks or gathered; results do not depend on the size."""
    scan_layers: bool = False
    """Compile one layer and loop over it. Compilation is faster; steps are slightly slower on a CPU, and on an H200 8
    to 14 % slower with 20 % more memory."""
    remat: str = "none"
    """A key of ``REMAT_POLICIES``, or the activations that layers save in addition to their inputs: names of
    ``moejax.kernels.saved_names`` joined by ``+``, such as "attn_out+moe_gate_up"."""
    attention: Annotated[str, one_of(BACKENDS)] = "auto"
    """Attention kernel. "auto" selects "splash" on a TPU; "cudnn" on a GPU in bfloat16 for shapes that cuDNN supports;
    "numba" on a CPU in float32 if numba is installed; else "tiled"."""

    xla_options: Annotated[str, one_of(("auto", "none"))] = "auto"
    """"auto" compiles with the options of ``moejax.train.devices.XLA_OPTIONS`` for the chip, "none" without options."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            lambda runtime: set(kept_names(runtime.remat)) <= set(SAVED_NAMES),
            f"remat is {{self.remat!r}}; choose from {', '.join(REMAT_POLICIES)}, or join names of saved activations "
            f"with +: {', '.join(SAVED_NAMES)}.",
        ),
        Rule(
            lambda runtime: len(set(names := kept_names(runtime.remat))) == len(names),
            "remat is {self.remat!r}, which contains a name twice; give each name once.",
        ),
    )

    @property
    def product_types(self) -> ProductTypes:
        """Types for the computation of projections."""
        return ProductTypes(self.reduce_dtype, self.matmul_quantization)

    def check(self) -> None:
        """Raise ``UserError`` with the allowed values if a setting is not allowed."""
        check_fields(self, "runtime")
