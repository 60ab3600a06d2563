"""Expert parallelism computes what one device computes, on every mesh, with every dispatcher on the devices."""

import jax
import pytest
from routing_draws import assert_close, draw_experts, draw_logits, draw_tokens, outputs_and_gradients

from moejax.routing import DISPATCHERS, ROUTERS
from moejax.routing.dispatch_dense import dense
from moejax.routing.expert_parallel import expert_parallel

MESHES = {
    "experts over 8": {"expert": 8},
    "experts over 4, tokens over 2": {"data": 2, "expert": 4},
    "all four axes": {"data": 1, "fsdp": 2, "expert": 2, "tensor": 2},
    "tokens only": {"data": 4, "fsdp": 2},
}


def make_mesh(sizes):
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=(jax.sharding.AxisType.Auto,) * len(sizes))


def check(mesh, dispatcher, router):
    routing = ROUTERS[router](draw_logits(64, 8, skew=0.3), top_k=2)
    inputs = draw_tokens(64, 16), routing, draw_experts(8, 16, 24, biases=True)
    expected = outputs_and_gradients(dense, *inputs)
    given = outputs_and_gradients(expert_parallel(DISPATCHERS[dispatcher], make_mesh(MESHES[mesh])), *inputs)
    assert_close(given, expected, 1e-5)


@pytest.mark.parametrize("mesh", MESHES)
def test_every_mesh_gives_the_result_of_one_device(mesh):
    check(mesh, "grouped", "softmax_topk")


@pytest.mark.parametrize("dispatcher", DISPATCHERS)
def test_every_dispatcher_may_be_the_local_one(dispatcher):
    check("all four axes", dispatcher, "softmax_topk")


def test_entries_need_not_lie_in_the_order_of_tokens():
    check("all four axes", "grouped", "expert_choice")


def test_the_mesh_may_be_the_one_that_is_set():
    routing = ROUTERS["softmax_topk"](draw_logits(64, 8), top_k=2)
    inputs = draw_tokens(64, 16), routing, draw_experts(8, 16, 24)
    with jax.set_mesh(make_mesh(MESHES["experts over 8"])):
        y = jax.jit(expert_parallel(dense))(*inputs)
    assert_close(y, dense(*inputs), 1e-5)


@pytest.mark.parametrize(("tokens", "experts", "what"), [(60, 8, "60 tokens"), (64, 6, "6 experts")])
def test_what_the_mesh_does_not_divide_is_named(tokens, experts, what):
    routing = ROUTERS["softmax_topk"](draw_logits(tokens, experts), top_k=2)
    dispatch = expert_parallel(dense, make_mesh(MESHES["experts over 8"]))
    with pytest.raises(ValueError, match=f"{what} cannot be split over 8"):
        dispatch(draw_tokens(tokens, 16), routing, draw_experts(experts, 16, 24))
