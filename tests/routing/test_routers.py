"""What every router promises, and what each promises of its own."""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from routing_draws import draw_logits

from moejax.architecture import FOR_DEBUGGING, Architecture
from moejax.routing.routers import INPUT_NOISE, ROUTERS, group_limited, noisy_topk, router_options, update_bias
from moejax.routing.sums import balance_loss, router_z_loss, routing_sums, sequence_balance_loss

TOKENS, EXPERTS = 48, 8


class Promise(NamedTuple):
    """What holds for a router."""

    top_k: int = 2
    causal: bool = True
    learns: bool = True
    """Whether the choice depends on the logits."""
    weights_sum_to_one: bool = True
    serves_all: bool = True
    """Whether every token gets top_k experts."""
    noisy: bool = False


PROMISES = {
    "softmax_topk": Promise(),
    "topk_softmax": Promise(),
    "sigmoid_topk": Promise(),
    "group_limited": Promise(),
    "switch": Promise(top_k=1, weights_sum_to_one=False),
    "noisy_topk": Promise(noisy=True),
    "expert_choice": Promise(causal=False, weights_sum_to_one=False, serves_all=False),
    "top_p": Promise(weights_sum_to_one=False, serves_all=False),
    "balanced": Promise(learns=False),
    "random": Promise(learns=False, noisy=True),
}
LEARNING = [name for name, promise in PROMISES.items() if promise.learns]
CHOOSING = [name for name in LEARNING if PROMISES[name].causal]


@pytest.mark.parametrize("router", ROUTERS)
def test_a_routers_options_are_fields_of_an_architecture(router):
    assert set(router_options(router)) <= {field.name for field in dataclasses.fields(Architecture)}


@functools.partial(jax.jit, static_argnames=("name", "norm_topk_prob", "routed_scaling_factor"))
def route(name, logits, **options):
    return ROUTERS[name](logits, top_k=PROMISES[name].top_k, **options)


def weights(routing):
    """The routing as a matrix tokens x experts."""
    matrix = np.zeros((routing.num_tokens, routing.num_experts + 1))
    np.add.at(matrix, (np.asarray(routing.token), np.asarray(routing.expert)), np.asarray(routing.combine_weight))
    return matrix[:, :-1]


def test_every_router_has_its_promises_written_down():
    assert set(ROUTERS) <= set(PROMISES), f"add lines to PROMISES for {sorted(set(ROUTERS) - set(PROMISES))}"
    assert set(PROMISES) <= set(ROUTERS), "PROMISES has routers that are no more"


@pytest.mark.parametrize("name", ROUTERS)
def test_assignments_are_distinct_and_in_range(name):
    routing = route(name, draw_logits(TOKENS, EXPERTS), key=jax.random.key(0))
    served = np.asarray(routing.valid)
    pairs = np.stack([np.asarray(routing.token), np.asarray(routing.expert)])[:, served]
    assert (pairs >= 0).all()
    assert (pairs[0] < TOKENS).all()
    assert np.unique(pairs, axis=1).shape == pairs.shape
    assert (np.asarray(routing.combine_weight)[served] > 0).all()
    assert (np.asarray(routing.combine_weight)[~served] == 0).all()
    assert np.allclose(routing.probabilities.sum(1), 1.0, atol=1e-6)


@pytest.mark.parametrize("name", ROUTERS)
def test_tokens_get_as_many_experts_and_as_much_weight_as_promised(name):
    matrix = weights(route(name, draw_logits(TOKENS, EXPERTS), key=jax.random.key(0)))
    promise = PROMISES[name]
    assert ((matrix > 0).sum(1) == promise.top_k).all() == promise.serves_all
    assert np.allclose(matrix.sum(1), 1.0, atol=1e-6) == promise.weights_sum_to_one


@pytest.mark.parametrize("name", ROUTERS)
def test_later_tokens_change_nothing_for_earlier_ones_if_the_router_is_causal(name):
    logits = draw_logits(TOKENS, EXPERTS)
    other = logits.at[TOKENS // 2 :].set(5 * logits[: TOKENS // 2])
    before, after = (weights(route(name, x, key=jax.random.key(0)))[: TOKENS // 2] for x in (logits, other))
    assert np.array_equal(before, after) == PROMISES[name].causal


@pytest.mark.parametrize("name", LEARNING)
@settings(max_examples=10)
@given(order=st.permutations(range(EXPERTS)))
def test_renaming_experts_renames_their_assignments(name, order):
    logits = draw_logits(TOKENS, EXPERTS)
    renamed = weights(route(name, logits[:, np.array(order)]))
    assert np.allclose(renamed, weights(route(name, logits))[:, np.array(order)], atol=1e-6)


@pytest.mark.parametrize("name", CHOOSING)
def test_bias_moves_the_choice_and_not_the_weights(name):
    logits = draw_logits(TOKENS, EXPERTS)
    free, biased = route(name, logits), route(name, logits, bias=jnp.zeros(EXPERTS).at[3].set(10.0))
    assert (weights(biased)[:, 3] > 0).all()
    kept = np.sort(free.expert.reshape(TOKENS, -1)) == np.sort(biased.expert.reshape(TOKENS, -1))
    same = kept.all(1)
    assert 0 < same.sum() < TOKENS
    assert np.allclose(weights(free)[same], weights(biased)[same], atol=1e-6)


@pytest.mark.parametrize("name", ROUTERS)
def test_noise_comes_from_the_key_alone(name):
    logits = draw_logits(TOKENS, EXPERTS)
    silent = weights(route(name, logits))
    assert np.array_equal(silent, weights(route(name, logits)))
    assert np.array_equal(silent, weights(route(name, logits, key=jax.random.key(5)))) != PROMISES[name].noisy


OPTIONS = [
    (name, option)
    for name in ROUTERS
    for option in ({"norm_topk_prob": True}, {"norm_topk_prob": False})
    if "norm_topk_prob" in router_options(name) or option["norm_topk_prob"]
]


@pytest.mark.parametrize("top_k", [1, 2])
@pytest.mark.parametrize(("name", "option"), OPTIONS)
def test_an_architecture_says_which_routers_the_loss_trains(name, option, top_k):
    top_k = 1 if name == "switch" else top_k
    given = {key: value for key, value in option.items() if key in router_options(name)}
    small = Architecture(vocab_size=9, model_dim=8, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=8)
    mixture = small.replace(router=name, num_experts=EXPERTS, top_k=top_k, expert_hidden=8, **given)
    logits = draw_logits(TOKENS, EXPERTS)

    def of_weights(logits):
        """A loss of experts with different outputs."""
        routing = ROUTERS[name](logits, top_k=top_k, **given)
        outputs = jnp.cos((routing.token + 7 * routing.expert).astype(jnp.float32))
        return (routing.combine_weight * outputs).sum()

    gradient = np.abs(jax.grad(of_weights)(logits)).max()
    sums = weights(ROUTERS[name](logits, top_k=top_k, **given)).sum(1)
    assert mixture.weights_sum_to_constant == (np.ptp(sums) < 1e-5)
    if PROMISES[name].learns:
        assert (gradient > 1e-6) == (mixture.fault_in_training == "")
    plain = mixture.with_plain_weights
    assert plain.fault_in_training == ""
    assert plain.weights_sum_to_constant == (name in FOR_DEBUGGING)


def test_softmax_before_and_after_the_choice_are_the_same_once_normalized():
    logits = draw_logits(TOKENS, EXPERTS)
    assert np.allclose(weights(route("softmax_topk", logits)), weights(route("topk_softmax", logits)), atol=1e-6)


def test_weights_that_are_not_normalized_are_the_probabilities():
    routing = route("softmax_topk", draw_logits(TOKENS, EXPERTS), norm_topk_prob=False)
    matrix = weights(routing)
    assert np.allclose(matrix[matrix > 0], np.asarray(routing.probabilities)[matrix > 0], atol=1e-6)


@pytest.mark.parametrize("name", ["softmax_topk", "topk_softmax", "sigmoid_topk", "group_limited"])
def test_the_routed_scaling_factor_scales_weights(name):
    logits = draw_logits(TOKENS, EXPERTS)
    assert np.allclose(
        weights(route(name, logits, routed_scaling_factor=2.5)), 2.5 * weights(route(name, logits)), rtol=1e-5
    )


def test_one_group_is_no_limit():
    logits = draw_logits(TOKENS, EXPERTS)
    assert np.array_equal(weights(route("group_limited", logits)), weights(route("sigmoid_topk", logits)))


def test_a_token_uses_no_more_groups_than_allowed():
    routing = group_limited(draw_logits(TOKENS, EXPERTS), top_k=3, num_groups=4, top_k_groups=2)
    groups = (weights(routing).reshape(TOKENS, 4, 2) > 0).any(2).sum(1)
    assert (groups == 2).all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_groups": 3}, "num_groups is 3"),
        ({"num_groups": 4, "top_k_groups": 5}, "top_k_groups is 5"),
        ({"num_groups": 8, "top_k_groups": 1}, "have fewer experts"),
    ],
)
def test_groups_that_cannot_be_are_explained(options, words):
    with pytest.raises(ValueError, match=words):
        group_limited(draw_logits(TOKENS, EXPERTS), top_k=2, **options)


def test_switch_serves_one_expert_only():
    with pytest.raises(ValueError, match="top_k is 2"):
        ROUTERS["switch"](draw_logits(TOKENS, EXPERTS), top_k=2)


def test_switch_jitters_the_routers_input_by_a_hundredth():
    x = jnp.ones((64, 16))
    ratio = INPUT_NOISE["switch"](x, jax.random.key(0))
    assert ratio.min() >= 0.99
    assert ratio.max() <= 1.01
    assert ratio.std() > 0.004


def test_noise_can_be_learnt():
    logits, key = draw_logits(TOKENS, EXPERTS), jax.random.key(0)
    quiet = noisy_topk(logits, top_k=2, key=key, noise_logits=jnp.full_like(logits, -50.0))
    assert np.allclose(weights(quiet), weights(noisy_topk(logits, top_k=2)), atol=1e-6)


def test_expert_choice_gives_every_expert_the_same_load():
    counts = route("expert_choice", draw_logits(TOKENS, EXPERTS, skew=3.0)).counts()
    assert (counts == TOKENS * 2 // EXPERTS).all()


@pytest.mark.parametrize("real", [33, 3])
def test_expert_choice_chooses_among_padding_as_if_it_were_not_there(real):
    logits = draw_logits(TOKENS, EXPERTS, skew=3.0)
    alone = route("expert_choice", logits[:real])
    # Padding that every expert would prefer, in front.
    padded = jnp.concatenate([jnp.full((TOKENS - real, EXPERTS), 9.0), logits[:real]])
    padded = route("expert_choice", padded, padding_mask=jnp.arange(TOKENS) >= TOKENS - real)
    assert np.array_equal(weights(padded)[TOKENS - real :], weights(alone))
    assert not weights(padded)[: TOKENS - real].any()
    assert np.array_equal(padded.counts(), alone.counts())


def test_balanced_gives_every_expert_the_same_load():
    """torchtitan #1670."""
    assert (route("balanced", draw_logits(TOKENS, EXPERTS, skew=3.0)).counts() == TOKENS * 2 // EXPERTS).all()


@pytest.mark.parametrize("threshold", [0.1, 0.4, 0.8])
def test_top_p_takes_the_fewest_experts_that_reach_the_threshold(threshold):
    routing = ROUTERS["top_p"](draw_logits(TOKENS, EXPERTS), top_k=EXPERTS, threshold=threshold)
    taken = weights(routing)
    least = np.where(taken > 0, taken, np.inf).min(1)
    assert (taken.sum(1) >= threshold - 1e-6).all()
    assert (taken.sum(1) - least < threshold + 1e-6).all()


def test_bias_updates_are_centered_and_lift_the_neglected():
    """torchtitan #1506."""
    bias = update_bias(jnp.zeros(4), jnp.array([10, 2, 3, 1]), rate=0.1)
    assert np.isclose(bias.sum(), 0.0, atol=1e-7)
    assert bias[0] < 0 < bias[1] == bias[2] == bias[3]


@pytest.mark.parametrize("experts", [3, 7, 48, 256])
def test_the_bias_of_an_expert_at_the_mean_moves_with_the_mean_alone(experts):
    draw = np.random.default_rng(experts)
    # The last two sums exceed 32 bits, one of them by little.
    for mean in (1, 3, 1023, 2**30 // experts, 2**31 // experts + 1, 2**31 - 2):
        counts = np.full(experts, mean)
        counts[0], counts[1] = mean + 1, mean - 1
        counts += draw.permutation(experts) % 2 * (mean == 1023)
        signs = np.sign([int(counts.sum()) - experts * int(count) for count in counts])
        moved = update_bias(jnp.zeros(experts), jnp.asarray(counts, jnp.int32), rate=1.0)
        np.testing.assert_allclose(moved, signs - signs.mean(), atol=1e-6)


@pytest.mark.parametrize("router", LEARNING)
def test_weights_and_losses_have_finite_gradients_wherever_logits_lie(router):
    @jax.jit
    @functools.partial(jax.value_and_grad, has_aux=True)
    def value(logits):
        routing = route(router, logits)
        sums = routing_sums(routing, sequences=4)
        weights = routing.combine_weight * jnp.arange(float(routing.combine_weight.size))
        losses = balance_loss(sums), sequence_balance_loss(sums), router_z_loss(sums)
        return weights.sum() + sum(losses), routing.probabilities

    for shift in (-80.0, -60.0, -45.0, 0.0, 80.0):
        (_, probabilities), gradient = value(draw_logits(TOKENS, EXPERTS) + shift)
        np.testing.assert_allclose(probabilities.sum(1), 1.0, atol=1e-5, err_msg=f"{shift}")
        assert np.isfinite(gradient).all(), shift


def test_bias_updates_bring_balance_without_a_loss():
    logits = draw_logits(512, EXPERTS, skew=0.3)

    def step(bias, _):
        counts = ROUTERS["sigmoid_topk"](logits, top_k=2, bias=bias).counts()
        return update_bias(bias, counts, rate=0.01), counts.max().astype(jnp.float32) / (512 * 2 / EXPERTS)

    _, violation = jax.jit(lambda: jax.lax.scan(step, jnp.zeros(EXPERTS), length=200))()
    assert violation[0] > 1.8
    assert violation[-20:].mean() < 1.15


def test_one_update_from_all_microbatches_is_not_the_sum_of_theirs():
    one, other = jnp.array([9, 2, 1]), jnp.array([1, 6, 5])
    together = update_bias(jnp.zeros(3), one + other, rate=1.0)
    apart = update_bias(jnp.zeros(3), one, rate=1.0) + update_bias(jnp.zeros(3), other, rate=1.0)
    assert together[2] > 0 > together[0]
    assert not np.allclose(together, apart)
