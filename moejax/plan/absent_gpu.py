"""Stand in for an absent GPU while programs are traced.

Library kernels query the GPU of this machine during tracing. ``standing_in`` answers with a device of the topology,
which has the compute capability and the number of multiprocessors.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock


class _JaxWithDevices:
    """A proxy of the ``jax`` module that lists other devices."""

    def __init__(self, device: Any):
        self._device = device

    def devices(self) -> list[Any]:
        return [self._device]

    def local_devices(self) -> list[Any]:
        return [self._device]

    def __getattr__(self, name: str) -> Any:
        import jax

        return getattr(jax, name)


@contextlib.contextmanager
def standing_in(device: Any) -> Iterator[None]:
    """Answer device queries of kernels with ``device`` while programs are traced for it."""
    import jax.extend.backend
    from jax._src.cudnn import fused_attention_stablehlo
    from jax.experimental.pallas.ops.gpu import blackwell_ragged_dot_mgpu, transposed_ragged_dot_mgpu

    def version(text: str) -> tuple[int, ...]:
        return tuple(map(int, text.split(".")))

    def is_at_least(capability: str) -> bool:
        return version(device.compute_capability) >= version(capability)

    def is_exactly(capability: str) -> bool:
        return version(device.compute_capability) == version(capability)

    seen = _JaxWithDevices(device)
    with contextlib.ExitStack() as stack:
        for module, name, answer in (
            # These modules ask for the number of multiprocessors.
            (blackwell_ragged_dot_mgpu, "jax", seen),
            (transposed_ragged_dot_mgpu, "jax", seen),
            # These functions decide which features of cuDNN's attention are available.
            (fused_attention_stablehlo, "check_compute_capability", is_at_least),
            (fused_attention_stablehlo, "is_cuda_compute_capability_equal", is_exactly),
            # Tokamax selects its kernels by the default device.
            (jax.extend.backend, "get_default_device", lambda: device),
        ):
            stack.enter_context(mock.patch.object(module, name, answer))
        yield
