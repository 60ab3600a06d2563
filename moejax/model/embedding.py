"""Look up token embeddings in a table whose rows are sharded over the mesh."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from moejax.sharding import TOKEN_AXES, on_many_devices


def look_up(table: Float[Array, "V D"], tokens: Int[Array, "B T"], dtype: Any) -> Float[Array, "B T D"]:
    """Return table rows in the given type, and NaN rows for out-of-vocabulary ids.

    Rows are read, and sent over a mesh, in ``dtype``. Gradients are accumulated in the table's type, because a frequent
    token occurs thousands of times in a batch and a bfloat16 sum stops growing after some hundred terms.
    """
    return _rows(jnp.dtype(dtype).name, table, tokens)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _rows(dtype: str, table: Array, tokens: Array) -> Array:
    return _read(table.astype(dtype), tokens)


def _rows_and_save(dtype: str, table: Array, tokens: Array) -> tuple[Array, tuple[Array, Array]]:
    return _rows(dtype, table, tokens), (table, tokens)


def _gradient(dtype: str, saved: tuple[Array, Array], drows: Array) -> tuple[Array, None]:
    table, tokens = saved
    back = jax.vjp(lambda table: _read(table, tokens), table)[1]
    return *back(drows.astype(table.dtype)), None


_rows.defvjp(_rows_and_save, _gradient)


def _read(table: Float[Array, "V D"], tokens: Int[Array, "B T"]) -> Float[Array, "B T D"]:
    """Read rows on one device or on a mesh. On a mesh, each device looks up its own tokens in its own rows. XLA's
    default layout would move tables and activations in ways that depend on the mesh."""
    if not on_many_devices():
        return table[tokens]
    sizes = jax.sharding.get_abstract_mesh().shape
    vocab, parts = table.shape[0], sizes["tensor"]
    split = "tensor" if vocab % parts == 0 else None
    columns = "fsdp" if table.shape[1] % sizes["fsdp"] == 0 else None

    def local(table: Array, tokens: Array) -> Array:
        if columns:
            # Gathering inside shard_map makes the gradient a reduce-scatter. Outside, XLA's TPU compiler would
            # all-reduce the whole gradient.
            table = jnp.moveaxis(jax.lax.all_gather(table, columns), 0, 1).reshape(table.shape[0], -1)
        row = tokens - (jax.lax.axis_index("tensor") * table.shape[0] if split else 0)
        here = (row >= 0) & (row < table.shape[0])
        # Add zeros for rows on other devices, and NaN for out-of-vocabulary ids.
        other = jnp.where((tokens >= 0) & (tokens < vocab), 0.0, jnp.nan).astype(table.dtype)
        return jnp.where(here[..., None], table.at[row].get(mode="clip"), other[..., None])[None]

    axes = P(TOKEN_AXES)
    rows = jax.shard_map(local, in_specs=(P(split, columns), axes), out_specs=P(split, TOKEN_AXES), check_vma=False)
    return jax.lax.reduce_sum(rows(table, tokens), (0,))
