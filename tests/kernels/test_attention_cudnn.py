"""Which attention cuDNN computes, and how it is told of a row's documents."""

import itertools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo
from jax.sharding import AbstractDevice, AbstractMesh, AxisType

from moejax.kernels.attention import AttentionMask
from moejax.kernels.attention_cudnn import MOST_DOCUMENTS, _documents, cudnn, supports
from moejax.model.runtime import remat_policy
from moejax.plan.absent_gpu import standing_in
from moejax.plan.gpu_target import TARGETS


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
    with pytest.raises(ValueError, match=r"16 numbers a head in float32 with a window on this GPU; choose 'auto'"):
        cudnn(x, x, x, AttentionMask(window=4), scale=1.0)


def test_documents_are_told_by_where_they_begin_and_how_long_they_are():
    rows = [[1] * 3 + [2] * 4 + [3] * 1, [1] * 5 + [0] * 3, [1] * 8]
    found, are_few = _documents(jnp.asarray(rows, jnp.int32))
    assert are_few
    for row, starts, lengths in zip(rows, found.starts, found.lengths, strict=True):
        expected = [len(list(run)) for _, run in itertools.groupby(row)]
        assert lengths[: len(expected)].tolist() == expected
        assert starts[: len(expected)].tolist() == [0, *np.cumsum(expected)[:-1]]
        assert set(starts[len(expected) :].tolist()) == set(lengths[len(expected) :].tolist()) == {-1}
    assert found.starts.shape == (3, MOST_DOCUMENTS + 1)


def test_a_row_with_too_many_documents_is_noticed():
    most = jnp.repeat(jnp.arange(MOST_DOCUMENTS, dtype=jnp.int32), 2)[None]
    assert _documents(most)[1]
    assert not _documents(jnp.concatenate([most, most[:, -1:] + 1], axis=1))[1]


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
    (starts, lengths), _ = _documents(jnp.asarray([[1] * 3 + [2] * 5, [1] * 8], jnp.int32))
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

    with on("h100"), standing_in(SimpleNamespace(compute_capability="9.0")):
        program = str(jax.make_jaxpr(jax.grad(squares, argnums=(0, 1, 2)))(heads, heads, heads))
    assert program.count("dot_product_attention_fwd_wrapper[") == calls
    assert program.count("dot_product_attention_bwd_wrapper[") == 1
