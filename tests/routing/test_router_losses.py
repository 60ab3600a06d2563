"""Losses and statistics of routing: what they are in balance and out of it, and that no cut of the batch matters."""

import dataclasses
import math
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, PartitionSpec
from routing_draws import draw_logits, route

from moejax.routing import ROUTERS
from moejax.routing.layout import expert_capacity, limit_capacity
from moejax.routing.sums import (
    RoutingSums,
    balance_loss,
    router_z_loss,
    routing_sums,
    sequence_balance_loss,
    statistics,
)
from moejax.sharding import MESH_AXES

TOKENS, EXPERTS = 48, 8

limited_to = jax.jit(limit_capacity, static_argnums=1)
statistics_of = jax.jit(statistics)


def mesh_of(sizes):
    kinds = (AxisType.Auto,) * len(MESH_AXES)
    return jax.make_mesh(sizes, MESH_AXES, kinds, devices=jax.devices()[: math.prod(sizes)])


@partial(jax.jit, static_argnames=("top_k", "router", "sequences"))
def sums_of(logits, top_k=2, router="softmax_topk", **options):
    return routing_sums(ROUTERS[router](logits, top_k=top_k), **options)


@pytest.mark.parametrize("top_k", [1, 2, 4, 8])
@pytest.mark.matrix(2)
def test_balance_loss_is_one_when_experts_share_equally(top_k):
    """OLMoE #40, #45."""
    sums = sums_of(draw_logits(TOKENS, EXPERTS), top_k, "balanced", sequences=6)
    assert np.isclose(balance_loss(sums), 1.0)
    assert np.isclose(sequence_balance_loss(sums), 1.0)


def test_balance_loss_is_the_number_of_experts_when_one_takes_all():
    assert np.isclose(balance_loss(sums_of(draw_logits(TOKENS, EXPERTS, skew=100.0), top_k=1)), EXPERTS)


def test_balance_loss_lowers_the_probability_of_crowded_experts():
    """NeMo Automodel #1408."""
    logits = draw_logits(TOKENS, EXPERTS, skew=0.5)
    gradient = jax.grad(lambda x: balance_loss(sums_of(x)))(logits).sum(0)
    assert gradient[0] > 0 > gradient[-1]


@pytest.mark.parametrize("shift", [0.0, -20.0, -45.0, -60.0, -80.0])
def test_balance_of_sigmoid_scores_is_that_of_scores_normalized_in_float64(shift):
    """Megatron-LM #1545; OLMo-core #255."""
    logits = np.asarray(draw_logits(TOKENS, EXPERTS, skew=0.3), np.float64)
    # Tokens of low scores weigh as much as the others.
    logits[: TOKENS // 2] += shift
    scores = np.exp(-np.logaddexp(0.0, -logits))
    load = np.bincount(np.argsort(-logits, axis=1)[:, :2].ravel(), minlength=EXPERTS) / (2 * TOKENS)
    exact = EXPERTS * load @ (scores / scores.sum(1, keepdims=True)).mean(0)
    sums = sums_of(jnp.asarray(logits, jnp.float32), router="sigmoid_topk")
    np.testing.assert_allclose(balance_loss(sums), exact, rtol=1e-5)


def test_balance_within_sequences_implies_balance_of_the_batch_and_not_the_reverse():
    one_expert_each = jnp.repeat(100.0 * jnp.eye(EXPERTS), TOKENS // EXPERTS, axis=0)
    sums = sums_of(one_expert_each, top_k=1, sequences=EXPERTS)
    assert np.isclose(balance_loss(sums), 1.0)
    assert np.isclose(sequence_balance_loss(sums), EXPERTS)


def test_sequences_without_a_token_are_none_of_those_that_are_averaged():
    """Padding, and in modules of multi-token prediction rows of documents without a token so far ahead."""
    logits, real = draw_logits(TOKENS, EXPERTS, skew=1.0), jnp.arange(TOKENS) < TOKENS // 2
    found = sums_of(logits, sequences=4, padding_mask=real)
    alone = sums_of(logits[: TOKENS // 2], sequences=2)
    assert found.sequences == 2
    assert np.isclose(sequence_balance_loss(found), sequence_balance_loss(alone), rtol=1e-6)
    assert sequence_balance_loss(sums_of(logits, sequences=4, padding_mask=jnp.zeros(TOKENS, bool))) == 0


def test_z_loss_is_the_mean_square_of_logsumexp():
    logits = draw_logits(TOKENS, EXPERTS)
    expected = np.mean(np.log(np.exp(np.asarray(logits, np.float64)).sum(1)) ** 2)
    assert np.isclose(router_z_loss(sums_of(logits)), expected, rtol=1e-6)


@jax.jit
def values(sums):
    return {
        "balance": balance_loss(sums),
        "sequence": sequence_balance_loss(sums),
        "z": router_z_loss(sums),
    } | statistics(sums)


@pytest.mark.parametrize(("cut", "router"), [(1, "softmax_topk"), (2, "sigmoid_topk"), (5, "softmax_topk")])
@pytest.mark.matrix(1)
def test_microbatches_add_up_to_the_batch(cut, router):
    """swiss-ai Megatron-LM #136."""
    logits, at = draw_logits(TOKENS, EXPERTS, skew=0.2), 8 * cut
    whole = sums_of(logits, router=router, sequences=6)
    parts = sums_of(logits[:at], router=router, sequences=cut) + sums_of(logits[at:], router=router, sequences=6 - cut)
    assert np.array_equal(whole.counts, parts.counts)
    for name, value in values(whole).items():
        assert np.isclose(value, values(parts)[name], rtol=1e-5), name


def test_the_mesh_does_not_matter():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    sharded = jax.device_put(draw_logits(TOKENS, EXPERTS), jax.NamedSharding(mesh, jax.P("data")))
    once, eight = (jax.jit(lambda x: values(sums_of(x)))(x) for x in (draw_logits(TOKENS, EXPERTS), sharded))
    for name in once:
        assert np.isclose(once[name], eight[name], rtol=1e-5), name


@pytest.mark.slow
def test_with_the_counts_of_the_whole_step_gradients_of_microbatches_add_up_too():
    logits = draw_logits(TOKENS, EXPERTS, skew=0.5)
    counts = sums_of(logits).counts
    whole = jax.grad(lambda x: balance_loss(sums_of(x)))(logits)
    halves = [jax.grad(lambda x: balance_loss(sums_of(x), counts))(half) for half in jnp.split(logits, 2)]
    assert np.allclose(jnp.concatenate(halves) / 2, whole, atol=1e-7)


def test_padding_counts_for_nothing():
    logits = draw_logits(TOKENS, EXPERTS)
    real = jnp.arange(TOKENS) < 40
    expected, given = values(sums_of(logits[:40])), values(sums_of(logits, padding_mask=real))
    for name in expected:
        assert np.isclose(given[name], expected[name], rtol=1e-5), name


def test_statistics_of_a_layer_in_balance():
    found = statistics_of(sums_of(draw_logits(TOKENS, EXPERTS), router="balanced"), bias=jnp.array([-1.0, 3.0]))
    expected = {"load_min": 1, "load_max": 1, "load_cv": 0, "max_violation": 0, "load_entropy": 1, "dead_experts": 0}
    expected |= {"dropped_share": 0, "bias_range": 4}
    for name, value in expected.items():
        assert np.isclose(found[name], value, atol=1e-6), name


def test_statistics_of_a_layer_that_collapsed_onto_one_expert():
    found = statistics_of(sums_of(draw_logits(TOKENS, EXPERTS, skew=100.0), top_k=1))
    expected = {"load_min": 0, "load_max": 8, "max_violation": 7, "load_entropy": 0, "dead_experts": 7}
    expected |= {"load_cv": np.std([8, 0, 0, 0, 0, 0, 0, 0])}
    for name, value in expected.items():
        assert np.isclose(found[name], value, atol=1e-6), name


def test_logit_rms_is_that_of_the_logits():
    logits = draw_logits(TOKENS, EXPERTS)
    assert np.isclose(statistics_of(sums_of(logits))["logit_rms"], np.sqrt(np.mean(np.square(logits))), rtol=1e-6)


def test_statistics_of_many_layers_are_those_of_each():
    layers = [sums_of(draw_logits(TOKENS, EXPERTS, skew=skew)) for skew in (0.0, 1.0)]
    stacked = statistics_of(jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers))
    for index, layer in enumerate(layers):
        for name, value in statistics_of(layer).items():
            assert np.isclose(stacked[name][index], value), name


@pytest.mark.parametrize("factor", [0.5, 1.0, 1.5])
def test_no_expert_exceeds_its_capacity_and_none_drops_below_it_needlessly(factor):
    routing = route(draw_logits(TOKENS, EXPERTS, skew=0.5))
    limited = limited_to(routing, factor)
    capacity = factor * TOKENS * 2 / EXPERTS
    assert np.array_equal(limited.counts(), np.minimum(routing.counts(), capacity))
    sums = routing_sums(routing, limited)
    dropped = 1 - np.minimum(routing.counts(), capacity).sum() / (TOKENS * 2)
    assert np.isclose(statistics_of(sums)["dropped_share"], dropped, atol=1e-6)
    assert np.array_equal(sums.counts, routing.counts())


def test_the_first_tokens_are_kept():
    routing = route(draw_logits(TOKENS, EXPERTS, skew=0.5))
    kept = np.asarray(limited_to(routing, 0.5).valid)
    rank = -np.asarray(routing.token)
    for expert in range(EXPERTS):
        mine = np.asarray(routing.expert) == expert
        if (mine & ~kept).any():
            assert rank[mine & kept].min() >= rank[mine & ~kept].max()


@pytest.mark.parametrize("sizes", [(8, 1, 1, 1), (2, 1, 4, 1), (1, 3, 1, 2), (1, 1, 1, 8)], ids=str)
@pytest.mark.parametrize("is_padded", [False, True])
def test_a_mesh_drops_the_tokens_that_one_device_drops(sizes, is_padded):
    routing, real = route(draw_logits(TOKENS, EXPERTS, skew=0.5)), jnp.arange(TOKENS) % 5 > 0
    if is_padded:
        routing = routing.masked(real[routing.token])
    mask = real if is_padded else None
    expected = limited_to(routing, 0.7, padding_mask=mask)
    with jax.set_mesh(mesh_of(sizes)):
        limited = jax.jit(limit_capacity, static_argnums=1)(routing, 0.7, padding_mask=mask)
    assert np.array_equal(limited.expert, expected.expert)
    assert np.array_equal(limited.combine_weight, expected.combine_weight)


def test_devices_exchange_counts_for_a_capacity_and_no_assignments():
    mesh, routing = mesh_of((8, 1, 1, 1)), route(draw_logits(512, EXPERTS, skew=0.5))
    with jax.set_mesh(mesh):
        split = jax.NamedSharding(mesh, PartitionSpec("data"))
        program = jax.jit(limit_capacity, static_argnums=1).lower(jax.device_put(routing, split), 1.0).compile()
    text = str(program.as_text())
    gathered = re.findall(r"= s32\[([\d,]*)\]\S* all-gather", text)
    sorted_sizes = re.findall(r"= s32\[(\d+)\]\S* sort", text)
    assert {math.prod(map(int, shape.split(","))) for shape in gathered} == {8 * (EXPERTS + 1)}
    assert sorted_sizes == [str(512 * 2 // 8)]


@pytest.mark.parametrize("router", ["softmax_topk", "expert_choice"])
@pytest.mark.parametrize("factor", [0.5, 1.1])
def test_padding_adds_nothing_to_a_capacity(factor, router):
    logits, real = draw_logits(TOKENS, EXPERTS, skew=0.5), jnp.arange(TOKENS) < 37
    alone = limited_to(route(logits[:37], 2, router), factor)
    mask = {"padding_mask": real} if router == "expert_choice" else {}
    routing = route(logits, 2, router, **mask)
    limited = limited_to(routing.masked(real[routing.token]), factor, padding_mask=real)
    assert np.array_equal(limited.counts(), alone.counts())
    assert alone.valid.sum() < (37 * 2 if router == "softmax_topk" else 81)


@given(
    assignments=st.integers(0, 2**31 - 1),
    experts=st.integers(1, 512),
    factor=st.integers(1, 800).map(lambda n: n / 100) | st.floats(1e-3, 1e3),
)
@settings(max_examples=200)
def test_a_count_in_a_program_has_the_capacity_of_one_on_the_host(assignments, experts, factor):
    exact = expert_capacity(assignments, experts, factor)
    assert int(expert_capacity(jnp.asarray(assignments, jnp.int32), experts, factor)) == exact
    assert exact == pytest.approx(math.ceil(min(factor, experts) * assignments / experts), rel=1e-4, abs=1)


def test_a_capacity_is_exact_where_the_factor_is_a_decimal():
    assert [expert_capacity(100, 10, factor) for factor in (0.7, 1.0, 1.1, 1.25, 1.3, 2.0)] == [7, 10, 11, 13, 13, 20]


def test_without_a_factor_nothing_is_dropped():
    routing = route(draw_logits(TOKENS, EXPERTS, skew=9.0))
    assert limit_capacity(routing, None) is routing


def test_nothing_is_dropped_where_nothing_was_however_many_assignments():
    """Beyond 2^24 of them a float32 does not hold the counts."""
    counts = jnp.asarray(np.random.default_rng(0).integers(500_000, 600_000, (4, 64)), jnp.int32)
    others = {one.name for one in dataclasses.fields(RoutingSums)} - {"tokens", "counts", "served"}
    served = counts.sum(-1)
    sums = RoutingSums(
        tokens=served // 8,
        counts=counts,
        served=served - jnp.asarray([0, 0, 0, 1]),
        **dict.fromkeys(others, jnp.zeros((4, 64), jnp.float32)),
    )
    dropped = statistics(sums)["dropped_share"]
    assert dropped[:3].tolist() == [0.0, 0.0, 0.0]
    assert dropped[3] == pytest.approx(1 / served[3].item(), rel=1e-3)
