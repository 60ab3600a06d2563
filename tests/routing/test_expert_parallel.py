"""Expert parallelism computes what one device computes, on every mesh, with every dispatcher on the devices."""

import jax
import jax.numpy as jnp
import pytest
from routing_draws import assert_close, draw_experts, draw_logits, draw_tokens, outputs_and_gradients, routing_of

from moejax.routing import DISPATCHERS, ROUTERS, dispatch_grouped
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
    """marin #4746, #8077; jax #26915."""
    check(mesh, "grouped", "softmax_topk", exchange=exchange)


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("dispatcher", DISPATCHERS)
def test_every_dispatcher_may_be_the_local_one(dispatcher, exchange):
    check("all four axes", dispatcher, "softmax_topk", exchange=exchange)


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_entries_need_not_lie_in_the_order_of_tokens(exchange):
    check("all four axes", "grouped", "expert_choice", exchange=exchange)


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("skew", [0.0, 1.0, 20.0], ids=["balanced", "skewed", "all to the first experts"])
@pytest.mark.parametrize("buffer_factor", [1.0, 2.0])
def test_nothing_is_dropped_however_full_the_buffers(skew, buffer_factor, exchange):
    check(
        "experts over 4, tokens over 2",
        "grouped",
        "softmax_topk",
        skew=skew,
        exchange=exchange,
        buffer_factor=buffer_factor,
    )


@pytest.mark.parametrize(
    ("exchange", "rows"),
    # Of 8 tokens a device sends 16 rows: in 4 buffers of 12, or to where there is room for 48 in all.
    [("all_to_all", 48), ("ragged_all_to_all", 48)],
)
def test_rows_travel_where_they_fit_and_tokens_are_gathered_where_not(exchange, rows):
    mesh = make_mesh(MESHES["experts over 4, tokens over 2"])

    def taken(skew):
        seen = []

        def noting(x, routing, experts):
            jax.debug.callback(lambda rows=x.shape[0]: seen.append(rows))
            return dense(x, routing, experts)

        routing = ROUTERS["softmax_topk"](draw_logits(64, 8, skew=skew), top_k=2)
        dispatch = expert_parallel(noting, mesh, exchange=exchange, buffer_factor=3.0)
        jax.block_until_ready(jax.jit(dispatch)(draw_tokens(64, 16), routing, draw_experts(8, 16, 24)))
        jax.effects_barrier()
        return set(seen)

    assert taken(0.0) == {rows}
    # A device sees the 32 tokens of its group.
    assert taken(20.0) == {32}


def test_two_devices_may_exchange_more_than_their_share_where_only_arrivals_are_bounded():
    """Each device sends all its rows to one other: no device gets more than in balance, every pair's buffer is full."""
    mesh, target = make_mesh({"expert": 4}), (jnp.arange(32) // 8 + 1) % 4
    routing = routing_of(jnp.stack([2 * target, 2 * target + 1], axis=1), num_experts=8)
    inputs = draw_tokens(32, 16), routing, draw_experts(8, 16, 24)

    def rows(exchange):
        seen = []

        def noting(x, routing, experts):
            jax.debug.callback(lambda rows=x.shape[0]: seen.append(rows))
            return dense(x, routing, experts)

        dispatch = expert_parallel(noting, mesh, exchange=exchange, buffer_factor=1.0)
        assert_close(jax.jit(dispatch)(*inputs), dense(*inputs), 1e-5)
        jax.effects_barrier()
        return set(seen)

    # 32 tokens gathered, or the 16 rows that a device serves.
    assert rows("all_to_all") == {32}
    assert rows("ragged_all_to_all") == {16}


def test_a_second_turn_is_only_taken_where_the_first_was_not_enough(monkeypatch):
    mesh = make_mesh(MESHES["experts over 4, tokens over 2"])
    seen, served = [], dispatch_grouped._served

    def noting(sizes, x, routing, layout, experts):
        jax.debug.callback(lambda: seen.append(layout.source.shape[0] - sizes[-1]))
        return served(sizes, x, routing, layout, experts)

    monkeypatch.setattr(dispatch_grouped, "can_hold", lambda *_: False)
    monkeypatch.setattr(dispatch_grouped, "_served", noting)

    def turns(skew):
        seen.clear()
        routing = ROUTERS["softmax_topk"](draw_logits(64, 8, skew=skew), top_k=2)
        dispatch = expert_parallel(DISPATCHERS["grouped"], mesh, buffer_factor=3.0)
        jax.block_until_ready(jax.jit(dispatch)(draw_tokens(64, 16), routing, draw_experts(8, 16, 24)))
        jax.effects_barrier()
        return len(seen)

    # Of the 64 entries of a group there is room for 48; skewed, all are the first device's, in both groups.
    assert turns(0.0) == mesh.size
    assert set(seen) == {48}
    assert turns(20.0) == mesh.size + 2


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
