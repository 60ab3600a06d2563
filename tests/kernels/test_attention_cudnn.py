"""Which attention cuDNN computes, and how it is told of a row's documents."""

import itertools
from collections import Counter
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.ad_checkpoint import saved_residuals
from jax._src.cudnn import fused_attention_stablehlo
from jax.sharding import AbstractDevice, AbstractMesh, AxisType

from moejax.architecture import Architecture
from moejax.kernels.attention import AttentionMask
from moejax.kernels.attention import cudnn as attention_cudnn
from moejax.kernels.attention.cudnn import _documents, cudnn, most_documents, supports
from moejax.kernels.private_api import tracing_for_gpu
from moejax.laws.memory import named_activations
from moejax.model.runtime import remat_policy
from moejax.plan.topology import TARGETS


def on(chip):
    device = AbstractDevice(device_kind=TARGETS[chip].description, num_cores=1, platform="gpu")
    mesh = AbstractMesh((1,), ("data",), axis_types=(AxisType.Auto,), abstract_device=device)
    return jax.sharding.use_abstract_mesh(mesh)


def given(query_width=128, value_width=128, dtype=jnp.bfloat16, **mask):
    heads = jax.ShapeDtypeStruct((2, 64, 4, query_width), dtype)
    value = jax.ShapeDtypeStruct((2, 64, 4, value_width), dtype)
    return heads, heads, value, AttentionMask(**mask)


def documents():
    segments = jax.ShapeDtypeStruct((2, 64), jnp.int32)
    return {"query_segments": segments, "key_segments": segments}


@pytest.mark.parametrize(
    ("chips", "arguments"),
    [
        ("a100 h100 b200", given()),
        ("a100 h100 b200", given(dtype=jnp.float16)),
        ("", given(dtype=jnp.float32)),
        ("a100 h100 b200", given(window=16)),
        ("h100 b200", given(**documents())),
        ("", given(window=16, **documents())),
        ("h100", given(256, 256)),
        ("h100 b200", given(192, 128)),
        ("", given(192, 128, **documents())),
        ("", given(96, 64)),
        ("", given(100, 100)),
    ],
    ids=[
        "plain",
        "float16",
        "float32",
        "window",
        "documents",
        "both",
        "wide heads",
        "DeepSeek's latent",
        "DeepSeek's latent with documents",
        "another latent",
        "a width that is no multiple of 8",
    ],
)
def test_what_cudnn_does_not_compute_is_left_to_others(chips, arguments):
    found = []
    for chip in ("a100", "h100", "b200"):
        with on(chip):
            found += [chip] if supports(*arguments) else []
    assert found == chips.split()


def test_neither_sinks_nor_slopes():
    with on("h100"):
        assert not supports(*given(), sinks=jnp.ones(4))
        assert not supports(*given(), slopes=jnp.ones(4))


def test_off_a_gpu_it_is_refused_in_a_sentence():
    x = jnp.zeros((1, 8, 2, 16), jnp.float32)
    with pytest.raises(ValueError, match=r"value width 16 in float32 with a window on this GPU; choose 'auto'"):
        cudnn(x, x, x, AttentionMask(window=4), scale=1.0)


def test_documents_are_told_by_where_they_begin_and_how_long_they_are():
    rows = [[1] * 3 + [2] * 4 + [3] * 1, [1] * 5 + [0] * 3, [1] * 8]
    found = _documents(jnp.asarray(rows, jnp.int32))
    assert found.are_few
    for row, starts, lengths in zip(rows, found.starts, found.lengths, strict=True):
        expected = [len(list(run)) for _, run in itertools.groupby(row)]
        assert lengths[: len(expected)].tolist() == expected
        assert starts[: len(expected)].tolist() == [0, *np.cumsum(expected)[:-1]]
        assert set(starts[len(expected) :].tolist()) == set(lengths[len(expected) :].tolist()) == {-1}
    assert found.starts.shape == (3, most_documents(8) + 1)
    # The kernel numbers documents over all rows, without those that are not there.
    assert found.number.tolist() == [[0] * 3 + [1] * 4 + [2], [3] * 5 + [4] * 3, [5] * 8]
    assert found.place.tolist() == [[0, 1, 2, 0, 1, 2, 3, 0], [0, 1, 2, 3, 4, 0, 1, 2], list(range(8))]


@pytest.mark.parametrize("length", [64, 512, 32_768])
def test_a_row_with_too_many_documents_is_noticed_and_long_rows_may_have_more(length):
    most = most_documents(length)
    assert most == {64: 32, 512: 32, 32_768: 128}[length]
    whole = jnp.repeat(jnp.arange(most, dtype=jnp.int32), length // most)[None]
    assert _documents(whole).are_few
    assert not _documents(whole.at[0, -1].set(most)).are_few


def test_documents_of_keys_with_fewer_heads_are_read_where_they_lie(monkeypatch):
    given = []

    def attend(*heads, **_):
        given.append(heads)
        return heads[0]

    monkeypatch.setattr(fused_attention_stablehlo, "dot_product_attention", attend)
    query, keys = (jax.ShapeDtypeStruct((2, 8, heads, 64), jnp.bfloat16) for heads in (4, 2))
    segments = jax.ShapeDtypeStruct((2, 8), jnp.int32)
    with on("h100"):
        jax.eval_shape(
            lambda *of, segments: cudnn(*of, AttentionMask(query_segments=segments, key_segments=segments), scale=1.0),
            *(query, keys, keys),
            segments=segments,
        )
    query, key, value = given[0]
    starts, lengths, *_ = _documents(jnp.asarray([[1] * 3 + [2] * 5, [1] * 8], jnp.int32))
    _, _, of_queries, of_keys = fused_attention_stablehlo._fix_seqlen_offsets(
        *(lengths, lengths, starts, starts), query, key
    )
    for array, places in ((query, of_queries), (key, of_keys), (value, of_keys)):
        width = np.prod(array.shape[2:])
        assert places.ravel()[:3].tolist() == [0, 3 * width, 8 * width]


@pytest.mark.parametrize("has_documents", [False, True])
@pytest.mark.parametrize(("remat", "calls"), [("full", 2), ("moe_gate_up", 2), ("attn_out", 1)])
def test_what_attention_puts_out_is_kept_by_name_and_not_computed_again(remat, calls, has_documents, monkeypatch):
    """By how often a gradient's program calls the kernel forwards."""
    monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda: 92_800)
    heads = jax.ShapeDtypeStruct((2, 64, 4, 64), jnp.bfloat16)
    segments = jnp.ones((2, 64), jnp.int32) if has_documents else None
    mask = AttentionMask(query_segments=segments, key_segments=segments)

    def squares(query, key, value):
        layer = jax.checkpoint(lambda *of: jnp.sin(cudnn(*of, mask, scale=1.0)), policy=remat_policy(remat))
        return (layer(query, key, value) ** 2).sum()

    with on("h100"), tracing_for_gpu(SimpleNamespace(compute_capability="9.0")):
        program = str(jax.make_jaxpr(jax.grad(squares, argnums=(0, 1, 2)))(heads, heads, heads))
    assert program.count("dot_product_attention_fwd_wrapper[") == calls
    assert program.count("dot_product_attention_bwd_wrapper[") == 1


def test_of_packed_documents_one_sum_is_kept_for_each_query_and_nothing_of_tiles(monkeypatch):
    monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda: 92_800)
    heads, keys = (jax.ShapeDtypeStruct((2, 512, heads, 64), jnp.bfloat16) for heads in (4, 2))
    segments = jnp.ones((2, 512), jnp.int32)
    mask = AttentionMask(query_segments=segments, key_segments=segments)

    def layer(query, key, value):
        return jax.checkpoint(lambda *of: jnp.sin(cudnn(*of, mask, scale=1.0)), policy=remat_policy("attn_out"))(
            query, key, value
        )

    with on("h100"), tracing_for_gpu(SimpleNamespace(compute_capability="9.0")):
        kept = saved_residuals(layer, heads, keys, keys)
    sizes = Counter((one.dtype.name, one.size) for one, where in kept if "argument" not in where)
    # Beside documents' numbers, if any, which are of integers.
    floating = {size: times for size, times in sizes.items() if "float" in size[0]}
    assert floating == {("bfloat16", 2 * 512 * 4 * 64): 1, ("float32", 2 * 512 * 4): 1}
    # As plans count them.
    shape = Architecture(
        vocab_size=8, model_dim=8, num_layers=1, num_heads=4, num_kv_heads=2, head_dim=64, dense_hidden=8
    )
    counted = named_activations(shape, 512)["attn_out"]
    assert (counted.values, counted.sums) == (4 * 64, 4)


def test_the_kernels_backward_pass_gets_each_sum_where_the_forward_pass_left_it(monkeypatch):
    """With kernels in their place that write down where each query's sum belongs."""
    rows = jnp.asarray([[1] * 3 + [2] * 4 + [3], [1] * 5 + [0] * 3], jnp.int32)
    places, given = _documents(rows), []

    def forward(query, key, value, **_):
        # Of 64 documents of 8 tokens each, 4 heads: a number of its own where a sum is, none where there is none.
        left = jnp.full((64, 4, 8), jnp.nan)
        own = jnp.arange(2 * 8 * 4.0).reshape(2, 8, 4)
        return query, left.at[places.number, :, places.place].set(own)

    def backward(scale, seed, dropout_rate, mask_type, res, grad_output):
        query, key, value, *_, sums, _ = res
        given.append(sums)
        return query, key, value

    monkeypatch.setattr(fused_attention_stablehlo, "dot_product_attention", forward)
    monkeypatch.setattr(fused_attention_stablehlo, "_dot_product_attention_bwd_rule", backward)
    monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda: 92_800)
    monkeypatch.setattr(attention_cudnn, "cond_likely", lambda holds, usual, rare, *operands: usual(*operands))
    query, keys = (jnp.ones((2, 8, heads, 64), jnp.bfloat16) for heads in (4, 2))
    found, back = jax.vjp(partial(attention_cudnn._packed, 1.0, segments=rows), query, keys, keys)
    dquery, dkey, dvalue = back(jnp.ones_like(found))
    (sums,) = given
    expected = np.nan_to_num(forward(query, keys, keys)[1])
    np.testing.assert_array_equal(sums, expected)
    # Two heads of queries for each of keys, whose gradients are added up.
    assert dquery.shape == query.shape
    assert (dkey == 2).all()
    assert (dvalue == 2).all()
