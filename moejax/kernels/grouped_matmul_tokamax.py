"""Grouped products on an NVIDIA GPU, by tokamax's kernels."""

from __future__ import annotations

import importlib

import jax
import jax.numpy as jnp
from jax import Array

from moejax.kernels.grouped_matmul import GroupedMatmul

IMPLEMENTATIONS = ("mosaic", "triton")
"""In the order in which tokamax tries them. Its third, "xla", computes every group for every row."""


def _forward(rows: Array, matrices: Array, group_sizes: Array) -> Array:
    tokamax, flags = importlib.import_module("tokamax"), importlib.import_module("absl.flags").FLAGS
    if not flags.is_parsed():
        # Tokamax would read its settings from this process's arguments, and refuse all that are ours.
        flags.mark_as_parsed()
    return tokamax.ragged_dot(
        rows, matrices, group_sizes, preferred_element_type=rows.dtype, implementation=IMPLEMENTATIONS
    )


def _rows_gradient(dy: Array, matrices: Array, group_sizes: Array) -> Array:
    # Tokamax has its gradients in the product's own; this one reads no rows.
    unread = jnp.zeros((dy.shape[0], matrices.shape[1]), dy.dtype)
    return jax.vjp(lambda rows: _forward(rows, matrices, group_sizes), unread)[1](dy)[0]


def _matrices_gradient(rows: Array, dy: Array, group_sizes: Array) -> Array:
    unread = jnp.zeros((group_sizes.shape[0], rows.shape[1], dy.shape[1]), rows.dtype)
    return jax.vjp(lambda matrices: _forward(rows, matrices, group_sizes), unread)[1](dy)[0]


TOKAMAX = GroupedMatmul(_forward, _rows_gradient, _matrices_gradient)
