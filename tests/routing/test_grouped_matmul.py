"""Grouped products of TPUs and GPUs, interpreted, are products group by group, and programs for a TPU use them."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType
from routing_draws import assert_close, draw_experts, draw_logits, draw_tokens

from moejax.kernels import experts_grouped_matmul
from moejax.kernels.grouped_matmul import REFERENCE, GroupedMatmul, grouped_matmul
from moejax.kernels.grouped_matmul import megablox as grouped_matmul_megablox
from moejax.kernels.grouped_matmul.triton import TRITON
from moejax.routing import ROUTERS
from moejax.routing.dispatch import grouped
from moejax.routing.layout import by_expert

BACKENDS = {"megablox": grouped_matmul_megablox.MEGABLOX, "triton": TRITON, "reference": REFERENCE}


def product(backend, sizes):
    return lambda x, w: grouped_matmul(BACKENDS[backend], x, w, jnp.asarray(sizes, jnp.int32))


def draw(rows, groups, into, out_of, dtype=jnp.float32):
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = [(rows, into), (groups, into, out_of), (rows, out_of)]
    return [jax.random.normal(key, shape, dtype) for key, shape in zip(keys, shapes, strict=True)]


@partial(jax.jit, static_argnums=0)
def value_and_gradients(product, x, matrices, dy):
    y, back = jax.vjp(product, x, matrices)
    return y, *back(dy)


def group_by_group(x, matrices, sizes):
    """Rows behind the last group's are zero."""
    group = np.repeat(np.arange(len(sizes)), sizes)
    y = jnp.einsum("rd,rdf->rf", x[: len(group)], matrices[group], precision="highest")
    return jnp.pad(y, ((0, x.shape[0] - len(group)), (0, 0)))


def exact(sizes):
    return lambda x, w: group_by_group(x, w, sizes)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("rows", "sizes"),
    [
        (256, [100, 3, 0, 153]),
        (300, [0, 300, 0]),
        (200, [0, 0, 57]),
        (130, [0, 0]),
        (1100, [129, 640, 31]),
        (400, [1] * 384),
    ],
    ids=[
        "rows of several groups in a tile",
        "one has all",
        "rows of nobody",
        "none has any",
        "tall tiles",
        "384 groups",
    ],
)
@pytest.mark.matrix(2)
def test_products_and_gradients_are_those_of_each_group(rows, sizes, backend):
    x, matrices, dy = draw(rows, len(sizes), 24, 40)
    # What nobody's rows hold may not matter.
    mine = (jnp.arange(rows) < sum(sizes))[:, None]
    dirty = [jnp.where(mine, given, jnp.nan) for given in (x, dy)]
    y, dx, dmatrices = value_and_gradients(product(backend, sizes), dirty[0], matrices, dirty[1])
    given = jnp.where(mine, y, 0), jnp.where(mine, dx, 0), dmatrices
    assert_close(given, value_and_gradients(exact(sizes), x, matrices, jnp.where(mine, dy, 0)), 1e-5)


@pytest.mark.parametrize("backend", ["megablox", "triton"])
def test_widths_that_no_tile_divides(backend, monkeypatch):
    monkeypatch.setattr(grouped_matmul_megablox, "WIDTH", 128)
    x, matrices, dy = draw(160, 2, 200, 300)
    sizes = [70, 85]
    dy = dy.at[sum(sizes) :].set(0)
    given, expected = (value_and_gradients(f, x, matrices, dy) for f in (product(backend, sizes), exact(sizes)))
    assert_close(*((y[:155], dx[:155], dmatrices) for y, dx, dmatrices in (given, expected)), 1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_in_bfloat16_sums_are_made_in_float32(backend):
    x, matrices, dy = draw(512, 2, 64, 32, jnp.bfloat16)
    sizes = [500, 12]
    wide = [array.astype(jnp.float32) for array in (x, matrices, dy)]
    given = value_and_gradients(product(backend, sizes), x, matrices, dy)
    assert {array.dtype for array in given} == {jnp.dtype(jnp.bfloat16)}
    assert_close(jax.tree.map(lambda a: a.astype(jnp.float32), given), value_and_gradients(exact(sizes), *wide), 5e-3)


def test_a_program_traced_for_a_tpu_has_the_kernels_and_one_for_a_cpu_has_not():
    tpu = AbstractDevice(device_kind="TPU v5p", num_cores=1, platform="tpu")
    mesh = AbstractMesh((1,), ("data",), axis_types=(AxisType.Auto,), abstract_device=tpu)
    routing = ROUTERS["softmax_topk"](draw_logits(96, 8), top_k=2)

    def traced():
        def loss(x, experts):
            return grouped(x, routing, experts).sum()

        return str(jax.make_jaxpr(jax.grad(loss, argnums=(0, 1)))(draw_tokens(96, 16), draw_experts(8, 16, 24)))

    assert "pallas_call" not in traced()
    with jax.sharding.use_abstract_mesh(mesh):
        text = traced()
    assert {kernel for kernel in ("gmm", "tgmm", "ragged_dot") if f"name={kernel}" in text} == {"gmm", "tgmm"}


def test_an_experts_gate_and_up_are_one_product(monkeypatch):
    """Two products forwards, and two for each kind of gradient: gate with up, and down."""
    made = []

    def noting(name):
        def product(*arguments):
            made.append(name)
            return getattr(REFERENCE, name)(*arguments)

        return product

    backend = GroupedMatmul(*(noting(name) for name in GroupedMatmul._fields))
    monkeypatch.setattr(experts_grouped_matmul, "select", lambda *_: backend)
    routing = ROUTERS["softmax_topk"](draw_logits(32, 4), top_k=2)

    def loss(x, experts):
        y = experts_grouped_matmul.experts_grouped_matmul(
            x, routing.combine_weight, lambda padding: by_expert(routing, padding), experts, tokens_per_expert=16
        )
        return (y**2).sum()

    given = draw_tokens(32, 8), draw_experts(4, 8, 8)
    jax.jit(loss).trace(*given)
    assert made == 2 * ["forward"]
    jax.jit(jax.grad(loss, argnums=(0, 1))).trace(*given)
    # Products forwards are traced again with their gradients, and XLA removes those that nothing reads.
    assert [made.count(name) for name in ("rows_gradient", "matrices_gradient")] == [2, 2]
