"""Bytes of training and serving."""

import jax

from moejax.architecture import Architecture
from moejax.float64 import float64
from moejax.laws.accounting import mtp_params, params
from moejax.laws.memory import kv_cache_bytes, training_memory

MIXTURE = Architecture(
    vocab_size=1000,
    model_dim=64,
    num_layers=5,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    dense_hidden=200,
    num_dense_layers=1,
    num_experts=8,
    top_k=2,
    expert_hidden=48,
    num_shared_experts=1,
)


def test_adamw_in_float32_takes_sixteen_bytes_a_parameter():
    memory = training_memory(MIXTURE, batch_tokens=0)
    assert memory.total == 16 * params(MIXTURE).total
    assert memory.activations == memory.logits == 0


def test_modules_of_multi_token_prediction_are_trained_with_the_model_and_served_without():
    ahead = MIXTURE.replace(num_mtp_layers=2)
    held, modules = training_memory(ahead, batch_tokens=0), mtp_params(ahead)
    assert held.total == 16 * (params(MIXTURE).total + modules.total)
    assert kv_cache_bytes(ahead, 100) == kv_cache_bytes(MIXTURE, 100)
    # A layer with experts, as counted below; two inputs, both normalized, and the input of the last norm.
    layer = 64 + 64 + 4 * 16 + 2 * 16 + 2 * 16 + 4 * 16 + 64 + 64 + 8 + 2 * (64 + 64 + 3 * 48) + 3 * 48
    more = training_memory(ahead, 100).activations - training_memory(MIXTURE, 100).activations
    assert more == 100 * 2 * 2 * (layer + 2 * 64 + 2 * 64 + 64)


def test_types_are_arguments():
    memory = training_memory(MIXTURE, 0, param_bytes=2, gradient_bytes=2, optimizer_bytes=2)
    assert memory.total == 6 * params(MIXTURE).total


def test_activations_of_a_small_mixture_counted_by_hand():
    attention = 64 + 64 + 4 * 16 + 2 * 16 + 2 * 16 + 4 * 16
    dense = 64 + 64 + 3 * 200
    mixture = 64 + 64 + 8 + 2 * (64 + 64 + 3 * 48) + 3 * 48
    kept = 5 * attention + 1 * dense + 4 * mixture + 64
    assert training_memory(MIXTURE, 100).activations == 100 * 2 * kept
    recomputed = 5 * 64 + attention + mixture + 64
    assert training_memory(MIXTURE, 100, recompute=True).activations == 100 * 2 * recomputed


def test_logits_and_their_gradient_are_float32():
    assert training_memory(MIXTURE, 100).logits == 100 * 1000 * 8


def test_grouped_queries_shrink_the_cache():
    assert kv_cache_bytes(MIXTURE, 1000) == 1000 * 5 * 2 * (2 * 16) * 2
    assert kv_cache_bytes(MIXTURE.replace(num_kv_heads=4), 1000) == 2 * kv_cache_bytes(MIXTURE, 1000)


def test_latent_attention_caches_the_latent_and_one_turned_key():
    latent = MIXTURE.replace(kv_latent_dim=32, rope_head_dim=8)
    assert kv_cache_bytes(latent, 10, value_bytes=1) == 10 * 5 * (32 + 8)


def test_memory_can_be_differentiated():
    with float64():
        floats = jax.tree.map(float, MIXTURE)
        gradient = jax.jit(jax.grad(lambda a: training_memory(a, 1000.0).total))(floats)
        more = training_memory(MIXTURE.replace(num_experts=9), 1000).total - training_memory(MIXTURE, 1000).total
        assert float(gradient.num_experts) == more
