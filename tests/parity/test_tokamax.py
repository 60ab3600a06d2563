"""On an NVIDIA GPU experts meet their rows in tokamax's kernels: compiled for one, as far as that goes without."""

import jax
import jax.numpy as jnp
import pytest

from moejax.kernels.experts import Experts
from moejax.routing import ROUTERS
from moejax.routing.dispatch import grouped

tokamax = pytest.importorskip("tokamax", reason="tokamax is not installed: make parity")

pytestmark = pytest.mark.filterwarnings("ignore:jax.experimental.pallas.dot was moved:DeprecationWarning")
KERNEL = "__gpu$xla.gpu.triton"


def program(monkeypatch, dtype, loss):
    """The text of ``loss(grouped, tokens, experts)`` for a GPU."""
    monkeypatch.setattr("moejax.kernels.table.platform", lambda: "gpu")
    generator = jax.random.key(0)
    routing = ROUTERS["softmax_topk"](jax.random.normal(generator, (96, 8)), top_k=2)
    matrices = (jnp.ones(shape, dtype) for shape in ((8, 2, 16, 24), (8, 24, 16)))
    given = jnp.ones((96, 16), dtype), Experts(*matrices)

    def of(x, experts):
        return loss(lambda x, experts: grouped(x, routing, experts), x, experts)

    with tokamax.config.cross_compile(True):
        return jax.jit(of).trace(*given).lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_experts_of_a_gpu_are_three_grouped_products_and_two_more_for_each_gradient(monkeypatch, dtype):
    def gradients(dispatch, x, experts):
        return jax.grad(lambda x, experts: dispatch(x, experts).astype(jnp.float32).sum(), argnums=(0, 1))(x, experts)

    forward = program(monkeypatch, dtype, lambda dispatch, x, experts: dispatch(x, experts))
    both = program(monkeypatch, dtype, gradients)
    assert forward.count(KERNEL) == 3
    assert both.count(KERNEL) >= 3 + 2 * 3
    # JAX's own product computes every expert for every row there.
    assert "chlo.ragged_dot" not in forward + both
