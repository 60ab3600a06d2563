"""Call private functions of JAX and tokamax. Other kernel files call only public functions.

JAX has no public function for cuDNN's attention within packed documents, and no public way to trace its GPU kernels
without a GPU. Tokamax has no public function with tile sizes as arguments. ``tests/kernels/test_private_api.py`` fails
if these functions change.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax._src.cudnn import fused_attention_stablehlo as fused
from jaxtyping import Float, Int

from moejax.kernels.grouped_matmul.tiles import MosaicTile
from moejax.kernels.quantization import Quantized


def cudnn_attention(
    query: Float[Array, "B T H K"],
    key: Float[Array, "B S G K"],
    value: Float[Array, "B S G V"],
    *,
    scale: float,
    window: int = 0,
    starts: Int[Array, "B M_and_one"] | None = None,
    lengths: Int[Array, "B M"] | None = None,
    residual: bool = False,
) -> Any:
    """Return cuDNN's causal attention. With ``residual``, also return each document's logsumexps: Float32[B * M, H, T].

    ``starts`` and ``lengths`` describe each row's documents; they are -1 after the last document.
    """
    packed = {} if starts is None or lengths is None else _documents(starts, lengths)
    # JAX relies on type promotion, which the caller may have disabled.
    with jax.numpy_dtype_promotion("standard"):
        return fused.dot_product_attention(
            query,
            key,
            value,
            scale=scale,
            mask_type=fused.MaskType.PADDING_CAUSAL if packed else fused.MaskType.CAUSAL,
            sliding_window_length=window or None,
            return_residual=residual,
            **packed,
        )


def cudnn_attention_gradients(
    query: Float[Array, "B T H K"],
    key: Float[Array, "B T H K"],
    value: Float[Array, "B T H K"],
    *,
    scale: float,
    starts: Int[Array, "B M_and_one"],
    lengths: Int[Array, "B M"],
    logsumexp: Float[Array, "documents H T"],
    mixed: Float[Array, "B T H K"],
    dmixed: Float[Array, "B T H K"],
) -> tuple[Array, Array, Array]:
    """Return the gradients of queries, keys and values for attention within documents."""
    none = jnp.zeros(0, query.dtype)
    saved = {"query": query, "key": key, "value": value, "bias": none, "page_table_k": none, "page_table_v": none}
    saved |= {**_documents(starts, lengths), "score_mod_args": (), "activation": logsumexp, "fwd_output": mixed}
    with jax.numpy_dtype_promotion("standard"):
        dquery, dkey, dvalue, *_ = call_rule(
            fused._dot_product_attention_bwd_rule,
            scale=scale,
            mask_type=fused.MaskType.PADDING_CAUSAL,
            layout=fused.AttentionLayout.BTNH.value,
            res=tuple(saved[name] for name in residuals()),
            grad_output=dmixed,
        )
    return dquery, dkey, dvalue


def _documents(starts: Array, lengths: Array) -> dict[str, Any]:
    return {"q_seqlen": lengths, "kv_seqlen": lengths, "q_offsets": starts, "kv_offsets": starts}


def residuals() -> tuple[str, ...]:
    """Return the names of the residuals of JAX's backward rule for attention, in order.

    Since JAX 0.12, residuals include a score function's arrays.
    """
    own = ("score_mod_args",) if "score_mod" in _parameters(fused._dot_product_attention_bwd_rule) else ()
    sequences = ("q_seqlen", "kv_seqlen", "q_offsets", "kv_offsets", "page_table_k", "page_table_v")
    return "query", "key", "value", "bias", *sequences, *own, "activation", "fwd_output"


def call_rule(rule: Callable[..., Any], **given: Any) -> Any:
    """Call a JAX attention rule with its parameters by name; parameters that are not given have usual values.

    Raises:
      KeyError: the rule of this JAX version has an unknown parameter.
    """
    usual = {"seed": 0, "dropout_rate": 0.0, "variadic_args": (False, False), "sliding_window_length": None}
    usual |= {"score_mod": None, "is_training": True, "return_residual": False}
    usual |= {"cudnn_version": fused.check_cudnn_version()}
    return rule(**{name: {**usual, **given}[name] for name in _parameters(rule)})


def _parameters(rule: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(rule).parameters)


def tokamax_gpu(
    rows: Float[Array, "R D"], matrices: Float[Array, "G D F"], group_sizes: Int[Array, " G"], tile: MosaicTile
) -> Float[Array, "R F"]:
    """Compute grouped matmuls with tokamax's Mosaic kernel for NVIDIA GPUs."""
    flags = importlib.import_module("absl.flags").FLAGS
    if not flags.is_parsed():
        # Otherwise tokamax would parse this process's arguments and reject ours.
        flags.mark_as_parsed()
    kernels = importlib.import_module("tokamax._src.ops.ragged_dot.pallas_mosaic_gpu")
    sides = importlib.import_module("tokamax._src.ops.ragged_dot.pallas_mosaic_gpu_common").MatmulDimension
    config = kernels.Config(
        block_m=tile.rows,
        block_n=tile.columns,
        block_k=min(tile.inner, matrices.shape[1]),
        num_stages=tile.stages,
        split_k=1,
        split_m=tile.split_rows,
        grid_block_n=tile.width,
        persistent=tile.is_persistent,
        collective=tile.is_collective,
        grid_minor_dim=sides[tile.minor],
        grid_tile_width=tile.width,
    )
    with jax.numpy_dtype_promotion("standard"):
        return kernels.PallasMosaicGpuRaggedDot(config=config)(rows, matrices, group_sizes=group_sizes)


def tokamax_tpu(
    rows: Quantized,
    matrices: Quantized,
    group_sizes: Int[Array, " G"],
    *,
    dtype: jnp.dtype,
    tile: tuple[int, int, int],
    interpret: bool,
) -> Float[Array, "R F"]:
    """Compute grouped matmuls of 8-bit rows [R, K] and matrices [G, F, K] with tokamax's kernel for TPUs."""
    kernel = importlib.import_module("tokamax._src.ops.ragged_dot.pallas_mosaic_tpu_kernel")
    quantized_array = importlib.import_module("qwix").QArray
    with jax.numpy_dtype_promotion("standard"):
        return kernel.gmm(
            quantized_array(rows.values, rows.scale),
            quantized_array(matrices.values, matrices.scale),
            group_sizes,
            precision=jax.lax.Precision.DEFAULT,
            out_dtype=dtype,
            tiling=tile,
            transpose_rhs=True,
            interpret=interpret,
        )


@contextlib.contextmanager
def tracing_for_gpu(device: Any) -> Iterator[None]:
    """Answer GPU kernels' device queries with ``device``, a topology's device, while programs are traced.

    Without this context, library kernels query the compute capability and number of multiprocessors of this machine's
    GPU.
    """
    import jax.extend.backend
    from jax.experimental.pallas.ops.gpu import blackwell_ragged_dot_mgpu, transposed_ragged_dot_mgpu

    def version(text: str) -> tuple[int, ...]:
        return tuple(map(int, text.split(".")))

    def is_at_least(capability: str) -> bool:
        return version(device.compute_capability) >= version(capability)

    def is_exactly(capability: str) -> bool:
        return version(device.compute_capability) == version(capability)

    with contextlib.ExitStack() as stack:
        for module, name, answer in (
            # These modules ask ``jax`` for the number of multiprocessors.
            (blackwell_ragged_dot_mgpu, "jax", _JaxWithDevice(device)),
            (transposed_ragged_dot_mgpu, "jax", _JaxWithDevice(device)),
            # These functions decide which features of cuDNN's attention are available.
            (fused, "check_compute_capability", is_at_least),
            (fused, "is_cuda_compute_capability_equal", is_exactly),
            # Tokamax selects its kernels by the default device.
            (jax.extend.backend, "get_default_device", lambda: device),
        ):
            stack.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, answer)
        yield


class _JaxWithDevice(ModuleType):
    def __init__(self, device: Any):
        super().__init__("jax")
        self.devices = self.local_devices = lambda: [device]

    def __getattr__(self, name: str) -> Any:
        return getattr(jax, name)
