"""Expert parallelism computes what one device computes, on every mesh, with every dispatcher on the devices."""

import jax
import pytest
from routing_draws import assert_close, draw_experts, draw_logits, draw_tokens, outputs_and_gradients

from moejax.routing import DISPATCHERS, ROUTERS
from moejax.routing.dispatch_dense import dense
from moejax.routing.expert_parallel import EXCHANGES, expert_parallel

MESHES = {
    "experts over 8": {"expert": 8},
    "experts over 4, tokens over 2": {"data": 2, "expert": 4},
    "all four axes": {"data": 1, "fsdp": 2, "expert": 2, "tensor": 2},
    "tokens only": {"data": 4, "fsdp": 2},
}


def make_mesh(sizes):
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=(jax.sharding.AxisType.Auto,) * len(sizes))


def check(mesh, dispatcher, router, *, skew=0.3, **options):
    routing = ROUTERS[router](draw_logits(64, 8, skew=skew), top_k=2)
    inputs = draw_tokens(64, 16), routing, draw_experts(8, 16, 24, biases=True)
    expected = outputs_and_gradients(dense, *inputs)
    given = outputs_and_gradients(expert_parallel(DISPATCHERS[dispatcher], make_mesh(MESHES[mesh]), **options), *inputs)
    assert_close(given, expected, 1e-5)


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("mesh", MESHES)
def test_every_mesh_gives_the_result_of_one_device(mesh, exchange):
    check(mesh, "grouped", "softmax_topk", exchange=exchange)


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("dispatcher", DISPATCHERS)
def test_every_dispatcher_may_be_the_local_one(dispatcher, exchange):
    check("all four axes", dispatcher, "softmax_topk", exchange=exchange)


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_entries_need_not_lie_in_the_order_of_tokens(exchange):
    check("all four axes", "grouped", "expert_choice", exchange=exchange)


@pytest.mark.parametrize("skew", [0.0, 1.0, 20.0], ids=["balanced", "skewed", "all to the first experts"])
@pytest.mark.parametrize("buffer_factor", [1.0, 2.0])
def test_nothing_is_dropped_however_full_the_buffers(skew, buffer_factor):
    check(
        "experts over 4, tokens over 2",
        "grouped",
        "softmax_topk",
        skew=skew,
        exchange="all_to_all",
        buffer_factor=buffer_factor,
    )


def test_rows_travel_where_they_fit_and_tokens_are_gathered_where_not():
    mesh = make_mesh(MESHES["experts over 4, tokens over 2"])

    def taken(skew):
        seen = []

        def noting(x, routing, experts):
            jax.debug.callback(lambda rows=x.shape[0]: seen.append(rows))
            return dense(x, routing, experts)

        routing = ROUTERS["softmax_topk"](draw_logits(64, 8, skew=skew), top_k=2)
        dispatch = expert_parallel(noting, mesh, exchange="all_to_all", buffer_factor=3.0)
        jax.block_until_ready(jax.jit(dispatch)(draw_tokens(64, 16), routing, draw_experts(8, 16, 24)))
        jax.effects_barrier()
        return set(seen)

    # Of 8 tokens a device sends 16 rows in 4 buffers of 12, or else it sees the 32 tokens of its group.
    assert taken(0.0) == {48}
    assert taken(20.0) == {32}


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
