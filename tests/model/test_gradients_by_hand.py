"""Where a gradient is not JAX's own, it is what JAX's own would be."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from known_architectures import DENSE

from moejax.architecture import RopeScaling
from moejax.kernels.linear import project
from moejax.kernels.rms_norm import rms_norm
from moejax.model.positions import apply_rope, frequencies
from moejax.sharding import MESH_AXES

MAPS = {
    "btd,dhk->bthk": ((2, 5, 6), (6, 4, 3)),
    "bthv,hvd->btd": ((2, 5, 4, 3), (4, 3, 6)),
    "btd,dl->btl": ((2, 5, 6), (6, 7)),
}


@functools.partial(jax.jit, static_argnums=0)
def out_and_gradients(function, *inputs):
    out, back = jax.vjp(function, *inputs)
    return out, *back(jax.random.normal(jax.random.key(9), out.shape).astype(out.dtype))


@pytest.mark.parametrize(("dtype", "tolerance"), [(jnp.float32, 1e-5), (jnp.bfloat16, 3e-2)])
@pytest.mark.parametrize("equation", MAPS)
def test_a_projection_is_the_einsum_it_names(equation, dtype, tolerance):
    inputs = [jax.random.normal(jax.random.key(i), shape, dtype) for i, shape in enumerate(MAPS[equation])]
    found = jax.jit(lambda *xs: out_and_gradients(lambda *ys: project(equation, *ys), *xs))(*inputs)
    expected = out_and_gradients(lambda *xs: jnp.einsum(equation, *xs), *(x.astype(jnp.float32) for x in inputs))
    assert [x.dtype for x in found] == [dtype] * 3
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a.astype(jnp.float32), b, atol=tolerance * float(jnp.abs(b).max()))


@pytest.mark.parametrize("shape", [(1, 2500), (8, 1200), (3, 1)])
def test_a_matrix_gradient_sums_over_many_parts_and_devices(shape):
    """A kernel's parts have 1024 tokens or more."""
    x, matrix = jax.random.normal(jax.random.key(0), (*shape, 6)), jax.random.normal(jax.random.key(1), (6, 2, 3))

    def gradients(x, matrix):
        return jax.grad(lambda x, m: (project("btd,dhk->bthk", x, m) ** 2).sum(), argnums=(0, 1))(x, matrix)

    expected = jax.jit(jax.grad(lambda x, m: (jnp.einsum("btd,dhk->bthk", x, m) ** 2).sum(), argnums=(0, 1)))(x, matrix)
    mesh = jax.make_mesh((8, 1, 1, 1), MESH_AXES, (jax.sharding.AxisType.Auto,) * 4)
    found = [jax.jit(gradients)(x, matrix)]
    with jax.set_mesh(mesh):
        found.append(jax.jit(gradients)(x, matrix))
    for one in found:
        for a, b in zip(one, expected, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5 * float(jnp.abs(b).max()))


@pytest.mark.parametrize("shape", [(1, 1, 8), (8, 37, 8), (3, 300, 5)])
def test_a_norm_is_its_formula_on_one_device_and_on_many(shape):
    """A kernel's parts have 128 rows."""
    x, weight = 3 * jax.random.normal(jax.random.key(0), shape), jax.random.normal(jax.random.key(1), shape[-1:])

    def plainly(x, weight):
        return x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * weight

    def by_kernel(x, weight):
        return rms_norm(x, weight, 1e-6)

    expected = out_and_gradients(plainly, x, weight)
    found = [jax.jit(lambda *xs: out_and_gradients(by_kernel, *xs))(x, weight)]
    with jax.set_mesh(jax.make_mesh((8, 1, 1, 1), MESH_AXES, (jax.sharding.AxisType.Auto,) * 4)):
        found.append(jax.jit(lambda *xs: out_and_gradients(by_kernel, *xs))(x, weight))
    for one in found:
        for a, b in zip(one, expected, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5 * float(jnp.abs(b).max()))


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_a_rotation_is_a_complex_product_and_so_is_its_gradient(fraction):
    architecture = DENSE.replace(
        head_dim=8, rotary_fraction=fraction, rope_scaling=RopeScaling(kind="yarn", factor=4.0, original_length=8)
    )
    turned = int(8 * fraction)
    positions = jnp.arange(11)
    x = jax.random.normal(jax.random.key(0), (2, 11, 3, 8))

    def plainly(x):
        frequency, scale = frequencies(turned, architecture.rope_theta, architecture.rope_scaling)
        angle = positions[:, None, None].astype(jnp.float32) * frequency
        cos, sin = jnp.cos(angle) * scale, jnp.sin(angle) * scale
        real, imaginary = x[..., : turned // 2], x[..., turned // 2 : turned]
        halves = real * cos - imaginary * sin, imaginary * cos + real * sin
        return jnp.concatenate([*halves, x[..., turned:]], axis=-1)

    found = out_and_gradients(lambda x: apply_rope(x, positions, architecture), x)
    for a, b in zip(found, out_and_gradients(plainly, x), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6)
