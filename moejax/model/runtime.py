"""How the function is computed. Nothing here may change the loss, beyond rounding of the types that are chosen."""

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
"""Policies of ``jax.checkpoint`` by name; None saves everything. The others save the routers' choices at least."""


def kept_names(remat: str) -> tuple[str, ...]:
    """The activations that a choice of ``Runtime.remat`` names; none for a key of ``REMAT_POLICIES``."""
    return () if remat in REMAT_POLICIES else tuple(remat.split("+"))


def remat_policy(remat: str) -> Callable[..., Any] | None:
    """The policy of ``jax.checkpoint`` for a choice of ``Runtime.remat``; None where nothing is computed again."""
    names = kept_names(remat)
    return keep(*names) if names else REMAT_POLICIES[remat]


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """Types, memory and kernels of a training or inference program."""

    compute_dtype: str = "float32"
    """Type of activations and of the weights they meet; master weights and the router are float32. With "float32" a
    TPU multiplies in bfloat16 and a GPU in TF32, but for experts' Triton kernels, as JAX does by default, and adds in
    float32; ``JAX_DEFAULT_MATMUL_PRECISION=highest`` has them multiply in float32."""
    reduce_dtype: str = "float32"
    """Type in which devices add up their gradients of layers' matrices; "bfloat16" sends half the bytes and rounds at
    every addition. Gradients of all other parameters are added in float32, and so are sums of one device. Layers'
    outputs and the gradients to their inputs, which devices add up along ``expert`` and ``tensor``, are added in
    ``compute_dtype``."""
    matmul_quantization: str = "none"
    """"fp8" (E4M3) or "int8": projections of attention and feed-forwards and the products of routed experts are of
    8-bit numbers, forwards and for gradients of their inputs (``moejax.kernels.quantization``). The router, attention's
    scores, embedding, output head, norms, and gradients of matrices keep their types; stored weights are float32. On an
    H200 no faster than "none"."""
    dispatcher: str = "grouped"
    """A key of ``moejax.routing.DISPATCHERS``."""
    expert_communication: str = "all_gather"
    """How tokens reach experts on other devices: a key of ``moejax.routing.communication.COMMUNICATION``. The ragged
    one is for TPUs."""
    buffer_factor: Multiple = 1.25
    """Room for rows on each device along the expert axis, as a multiple of what a balanced routing needs. What exceeds
    it is computed in further chunks, or gathered: no result depends on it."""
    scan_layers: bool = False
    """Compile one layer and loop over it: faster compilation, slightly slower steps on a CPU, and on an H200 8 to 14 %
    slower ones with a fifth more memory."""
    remat: str = "none"
    """A key of ``REMAT_POLICIES``, or what layers keep beside their inputs: names of
    ``moejax.kernels.saved_names``, joined by ``+``, as "attn_out+moe_gate_up"."""
    attention: str = "auto"
    """A key of ``moejax.kernels.attention.BACKENDS``. "auto" takes "splash" on a TPU, on a GPU in bfloat16 "cudnn" for
    what cuDNN computes, "numba" on a CPU in float32 where that package is installed, and else "tiled"."""

    xla_options: str = "auto"
    """"auto" compiles with the options of ``moejax.train.xla_options`` for the chip, "none" without any."""

    @property
    def product_types(self) -> ProductTypes:
        """What projections are computed in."""
        return ProductTypes(self.reduce_dtype, self.matmul_quantization)

    def check(self) -> None:
        """Raise ``UserError``, naming the known choices, if a name is unknown, or a number outside its range."""
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
