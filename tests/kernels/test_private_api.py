"""Private functions of JAX and tokamax are as ``moejax.kernels.private_api`` expects."""

import inspect
from types import SimpleNamespace

import jax
import jax.extend.backend
import jax.numpy as jnp
import pytest
from jax._src.cudnn import fused_attention_stablehlo as fused

from moejax.kernels import private_api
from moejax.kernels.private_api import tracing_for_gpu
from moejax.kernels.table import has_tokamax


def test_the_backward_rule_reads_its_residuals_in_the_order_that_we_give_them(monkeypatch):
    """Where JAX's own forward rule leaves each of its arguments, and what it computed."""
    monkeypatch.setattr(fused, "check_cudnn_version", lambda: 92_800)
    names = [n for n in private_api.residuals() if n not in ("activation", "fwd_output")]
    heads, none = jax.ShapeDtypeStruct((2, 64, 4, 64), jnp.bfloat16), jax.ShapeDtypeStruct((0,), jnp.bfloat16)
    lengths, starts = (jax.ShapeDtypeStruct((2, more), jnp.int32) for more in (3, 4))
    arrays = dict.fromkeys(names, none) | dict.fromkeys(("query", "key", "value"), heads)
    arrays |= dict.fromkeys(("q_seqlen", "kv_seqlen"), lengths) | dict.fromkeys(("q_offsets", "kv_offsets"), starts)
    arrays.pop("score_mod_args", None)

    def saved(arrays):
        own = {"score_mod_args": ()} if "score_mod_args" in names else {}
        masked = {"mask_type": fused.MaskType.PADDING_CAUSAL, "layout": 0, "scale": 1.0}
        rule = fused._dot_product_attention_fwd_rule
        return dict(
            zip((*names, "sums", "mixed"), private_api.call_rule(rule, **arrays, **own, **masked)[1], strict=True)
        )

    with tracing_for_gpu(SimpleNamespace(compute_capability="9.0")):
        program, out = jax.make_jaxpr(saved, return_shape=True)(arrays)
    # Dictionaries are flattened in the order of their keys.
    left = dict(zip(sorted([*arrays, "sums", "mixed"]), program.jaxpr.outvars, strict=True))
    assert {name: left[name] for name in arrays} == dict(zip(sorted(arrays), program.jaxpr.invars, strict=True))
    assert out["sums"].dtype == jnp.float32
    assert out["mixed"].shape == heads.shape


def test_a_parameter_of_another_jaxs_rule_is_an_error_and_not_another_argument(monkeypatch):
    monkeypatch.setattr(fused, "check_cudnn_version", lambda: 92_800)
    with pytest.raises(KeyError, match="new"):
        private_api.call_rule(lambda scale, new, seed: None, scale=1.0)


def test_queries_of_a_device_are_answered_only_inside_the_context():
    before = fused.check_compute_capability, jax.extend.backend.get_default_device
    device = SimpleNamespace(compute_capability="9.0", core_count=132)
    with tracing_for_gpu(device):
        assert fused.check_compute_capability("8.0")
        assert not fused.check_compute_capability("10.0")
        assert fused.is_cuda_compute_capability_equal("9.0")
        assert jax.extend.backend.get_default_device() is device
    assert (fused.check_compute_capability, jax.extend.backend.get_default_device) == before


@pytest.mark.skipif(not has_tokamax(), reason="tokamax is not installed: make parity")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:tokamax")
def test_tokamaxs_kernels_take_the_sizes_that_we_name():
    from tokamax._src.ops.ragged_dot import (
        pallas_mosaic_gpu,
        pallas_mosaic_gpu_common,
        pallas_mosaic_tpu_kernel,
    )

    sizes = {"block_m", "block_n", "block_k", "num_stages", "split_k", "split_m", "grid_block_n", "persistent"}
    sizes |= {"collective", "grid_minor_dim", "grid_tile_width"}
    assert sizes <= set(inspect.signature(pallas_mosaic_gpu.Config).parameters)
    assert {"M", "N"} <= set(pallas_mosaic_gpu_common.MatmulDimension.__members__)
    options = {"precision", "out_dtype", "tiling", "transpose_rhs", "interpret"}
    assert options <= set(inspect.signature(pallas_mosaic_tpu_kernel.gmm).parameters)
