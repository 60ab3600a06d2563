"""Exchange variable numbers of rows between the devices of a mesh axis, without gaps.

TPUs have a collective for this, ``jax.lax.ragged_all_to_all``. On other platforms all rows are gathered, and each
device selects its own rows: results and gradients are the same, at the cost of a gather. XLA also supports the
collective on GPUs, but it reached only 2 % of NVLink's bandwidth on 8 B200 (openxla/xla issue 33386, October 2025). XLA
does not support it on CPUs.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float, Int

from moejax.kernels.table import select


def ragged_all_to_all(
    rows: Float[Array, "rows ..."], sizes: Int[Array, "devices devices"], buffer_rows: int, axis: str
) -> Float[Array, "buffer_rows ..."]:
    """Return the rows sent to this device, in the order of the source devices, padded with zeros.

    ``sizes[i, j]`` is the number of rows that device i sends to device j, and is the same on all devices. Sent rows
    must be ordered by target device, without gaps. A device may receive at most ``buffer_rows``. A second call with
    ``sizes`` transposed returns the rows to their original order.
    """
    here = lax.axis_index(axis)
    starts, places = jnp.cumsum(sizes, axis=1) - sizes, jnp.cumsum(sizes, axis=0) - sizes
    output = jnp.zeros((buffer_rows, *rows.shape[1:]), rows.dtype)
    arguments = rows, output, starts[here], sizes[here], places[here], sizes[:, here]
    return select("ragged_all_to_all", *arguments)(*arguments, axis_name=axis)


def collective(
    operand: Float[Array, "rows ..."],
    output: Float[Array, "buffer_rows ..."],
    input_offsets: Int[Array, " devices"],
    send_sizes: Int[Array, " devices"],
    output_offsets: Int[Array, " devices"],
    recv_sizes: Int[Array, " devices"],
    *,
    axis_name: str,
) -> Float[Array, "buffer_rows ..."]:
    """Call ``jax.lax.ragged_all_to_all``."""
    offsets_and_sizes = input_offsets, send_sizes, output_offsets, recv_sizes
    return lax.ragged_all_to_all(operand, output, *offsets_and_sizes, axis_name=axis_name)


def reference(
    operand: Float[Array, "rows ..."],
    output: Float[Array, "buffer_rows ..."],
    input_offsets: Int[Array, " devices"],
    send_sizes: Int[Array, " devices"],
    output_offsets: Int[Array, " devices"],
    recv_sizes: Int[Array, " devices"],
    *,
    axis_name: str,
) -> Float[Array, "buffer_rows ..."]:
    """Compute the collective's result by gathering all rows."""
    # Each device has the offsets for its targets; exchange them to get all senders' offsets for this device.
    starts, places = (lax.all_to_all(o, axis_name, 0, 0, tiled=True) for o in (input_offsets, output_offsets))
    slot = jnp.arange(output.shape[0])[:, None]
    arrives = (slot >= places) & (slot < places + recv_sizes)
    sender = arrives.argmax(axis=1)
    row = jnp.clip(slot[:, 0] - places[sender] + starts[sender], 0, operand.shape[0] - 1)
    received = lax.all_gather(operand, axis_name)[sender, row]
    return jnp.where(jnp.expand_dims(arrives.any(axis=1), range(1, output.ndim)), received, output)
