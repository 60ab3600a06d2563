"""An MoE block computes what one device computes, on every mesh, with every dispatcher on the devices."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from routing_draws import assert_close, draw_experts, draw_logits, draw_tokens, outputs_and_gradients, routing_of

from moejax.kernels.table import load
from moejax.routing import DISPATCHERS, ROUTERS
from moejax.routing.communication import COMMUNICATION
from moejax.routing.dispatch import dense
from moejax.routing.moe_block import moe_block

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
    block = partial(moe_block, dispatch=DISPATCHERS[dispatcher], mesh=make_mesh(MESHES[mesh]), **options)
    given = outputs_and_gradients(block, *inputs)
    assert_close(given, expected, 1e-5)


@pytest.mark.parametrize("communication", COMMUNICATION)
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.matrix(2)
def test_every_mesh_gives_the_result_of_one_device(mesh, communication):
    """marin #4746, #8077; jax #26915."""
    check(mesh, "grouped", "softmax_topk", communication=communication)


@pytest.mark.parametrize("communication", COMMUNICATION)
@pytest.mark.parametrize("dispatcher", DISPATCHERS)
@pytest.mark.matrix(2)
def test_every_dispatcher_may_be_the_local_one(dispatcher, communication):
    check("all four axes", dispatcher, "softmax_topk", communication=communication)


@pytest.mark.parametrize("communication", ["all_to_all", "ragged_all_to_all", "all_gather"])
@pytest.mark.matrix(1)
def test_slots_need_not_lie_in_the_order_of_tokens(communication):
    check("all four axes", "grouped", "expert_choice", communication=communication)


@pytest.mark.parametrize("communication", COMMUNICATION)
@pytest.mark.parametrize("skew", [0.0, 1.0, 20.0], ids=["balanced", "skewed", "all to the first experts"])
@pytest.mark.parametrize("buffer_factor", [1.0, 2.0])
@pytest.mark.matrix(1)
def test_nothing_is_dropped_however_full_the_buffers(skew, buffer_factor, communication):
    check(
        "experts over 4, tokens over 2",
        "grouped",
        "softmax_topk",
        skew=skew,
        communication=communication,
        buffer_factor=buffer_factor,
    )


@pytest.mark.parametrize(
    ("communication", "rows"),
    # Of 8 tokens a device sends 16 rows: in 4 buffers of 12, or to where there is room for 48 in all.
    [("all_to_all", 48), ("ragged_all_to_all", 48)],
)
def test_rows_travel_where_they_fit_and_tokens_are_gathered_where_not(communication, rows):
    mesh, seen = make_mesh(MESHES["experts over 4, tokens over 2"]), []

    def noting(x, routing, experts):
        jax.debug.callback(lambda rows=x.shape[0]: seen.append(rows))
        return dense(x, routing, experts)

    dispatch = jax.jit(partial(moe_block, dispatch=noting, mesh=mesh, communication=communication, buffer_factor=3.0))

    def taken(skew):
        seen.clear()
        routing = ROUTERS["softmax_topk"](draw_logits(64, 8, skew=skew), top_k=2)
        jax.block_until_ready(dispatch(draw_tokens(64, 16), routing, draw_experts(8, 16, 24)))
        jax.effects_barrier()
        return set(seen)

    assert taken(0.0) == {rows}
    # A device sees the 32 tokens of its group.
    assert taken(20.0) == {32}


@pytest.mark.slow
def test_two_devices_may_exchange_more_than_their_share_where_only_arrivals_are_bounded():
    """Each device sends all its rows to one other: no device gets more than in balance, every pair's buffer is full."""
    mesh, target = make_mesh({"expert": 4}), (jnp.arange(32) // 8 + 1) % 4
    routing = routing_of(jnp.stack([2 * target, 2 * target + 1], axis=1), num_experts=8)
    inputs = draw_tokens(32, 16), routing, draw_experts(8, 16, 24)

    def rows(communication):
        seen = []

        def noting(x, routing, experts):
            jax.debug.callback(lambda rows=x.shape[0]: seen.append(rows))
            return dense(x, routing, experts)

        dispatch = partial(moe_block, dispatch=noting, mesh=mesh, communication=communication, buffer_factor=1.0)
        assert_close(jax.jit(dispatch)(*inputs), dense(*inputs), 1e-5)
        jax.effects_barrier()
        return set(seen)

    # 32 tokens gathered, or the 16 rows that a device serves.
    assert rows("all_to_all") == {32}
    assert rows("ragged_all_to_all") == {16}


def test_a_second_chunk_is_only_computed_where_the_first_was_not_enough(monkeypatch):
    mesh = make_mesh(MESHES["experts over 4, tokens over 2"])
    seen, blocks = [], load("experts", "blocks")

    def noting(x, weight, layout_with, experts, **options):
        rows = layout_with(0).source.shape[0]
        jax.debug.callback(lambda: seen.append(rows))
        return blocks(x, weight, layout_with, experts, **options)

    monkeypatch.setattr("moejax.routing.dispatch.select", lambda *_: noting)
    dispatch = jax.jit(partial(moe_block, mesh=mesh, buffer_factor=3.0))

    def chunks(skew):
        seen.clear()
        routing = ROUTERS["softmax_topk"](draw_logits(64, 8, skew=skew), top_k=2)
        jax.block_until_ready(dispatch(draw_tokens(64, 16), routing, draw_experts(8, 16, 24)))
        jax.effects_barrier()
        return len(seen)

    # Of the 64 slots of a group the buffer holds 48; skewed, all are the first device's, in both groups.
    assert chunks(0.0) == mesh.size
    assert set(seen) == {48}
    assert chunks(20.0) == mesh.size + 2


def test_the_mesh_may_be_the_one_that_is_set():
    routing = ROUTERS["softmax_topk"](draw_logits(64, 8), top_k=2)
    inputs = draw_tokens(64, 16), routing, draw_experts(8, 16, 24)
    with jax.set_mesh(make_mesh(MESHES["experts over 8"])):
        y = jax.jit(partial(moe_block, dispatch=dense))(*inputs)
    assert_close(y, dense(*inputs), 1e-5)


@pytest.mark.parametrize(("tokens", "experts", "what"), [(60, 8, "60 tokens"), (64, 6, "6 experts")])
def test_what_the_mesh_does_not_divide_is_named(tokens, experts, what):
    routing = ROUTERS["softmax_topk"](draw_logits(tokens, experts), top_k=2)
    dispatch = partial(moe_block, dispatch=dense, mesh=make_mesh(MESHES["experts over 8"]))
    with pytest.raises(ValueError, match=f"{what} cannot be split equally over 8"):
        dispatch(draw_tokens(tokens, 16), routing, draw_experts(experts, 16, 24))
