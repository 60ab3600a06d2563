"""Where a gradient is not JAX's own, it is what JAX's own would be."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from known_architectures import DENSE

from moejax.architecture import RopeScaling
from moejax.model.project import project
from moejax.model.rope import frequencies, rotate

MAPS = {
    "btd,dhk->bthk": ((2, 5, 6), (6, 4, 3)),
    "bthv,hvd->btd": ((2, 5, 4, 3), (4, 3, 6)),
    "btd,dl->btl": ((2, 5, 6), (6, 7)),
}


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

    found = out_and_gradients(lambda x: rotate(x, positions, architecture), x)
    for a, b in zip(found, out_and_gradients(plainly, x), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6)
