"""Counts of architectures against hand counts in plain integers, written from the published shapes."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from moejax.architecture import Architecture
from moejax.float64 import float64
from moejax.laws.accounting import Flops, Params, design_of, flops_per_token, matrices, params, params_active_served
from moejax.laws.catalogue import find

DENSE = Architecture(
    vocab_size=1000, model_dim=64, num_layers=3, num_heads=4, num_kv_heads=2, head_dim=16, dense_hidden=160
)
QWEN3_30B = find("qwen3-30b-a3b").architecture
DEEPSEEK_V3 = find("deepseek-v3.1").architecture.replace(router_bias=True)
EVERY_SWITCH = QWEN3_30B.replace(
    num_dense_layers=2,
    dense_hidden=5000,
    num_shared_experts=3,
    shared_hidden=512,
    shared_expert_gate=True,
    attention_bias=True,
    attention_output_bias=True,
    attention_sinks=True,
    router_bias=True,
    expert_mlp_bias=True,
)


def test_a_small_dense_model_counted_by_hand():
    # embedding 1000·64; per layer q 64·64, k and v 64·32 each, o 64·64, three of 64·160, two norms; a last norm.
    per_layer = 64 * 64 + 2 * 64 * 32 + 64 * 64 + 3 * 64 * 160 + 2 * 64
    assert params(DENSE).total == params(DENSE).active == 64_000 + 3 * per_layer + 64


def test_qwen3_30b_counted_by_hand():
    attention = 2048 * 4096 + 2 * 2048 * 512 + 4096 * 2048
    expert = 2048 * 768 + 2048 * 768 + 768 * 2048
    norms = 2048 + 2048 + 128 + 128
    outside = 2 * 151936 * 2048 + 2048 + 48 * (attention + 2048 * 128 + norms)
    assert params(QWEN3_30B).total == outside + 48 * 128 * expert == 30_532_122_624
    assert params(QWEN3_30B).active == outside + 48 * 8 * expert
    assert params(QWEN3_30B).vocabulary == 622_329_856


def test_deepseek_v3_with_latent_attention_counted_by_hand():
    queries = 7168 * 1536 + 1536 + 1536 * 128 * 192
    keys_values = 7168 * 576 + 512 + 512 * 128 * 256
    attention = queries + keys_values + 128 * 128 * 7168
    expert = 3 * 7168 * 2048
    mixture = 257 * expert + 7168 * 256 + 256
    dense = 3 * 7168 * 18432
    total = 2 * 129280 * 7168 + 7168 + 61 * (attention + 2 * 7168) + 3 * dense + 58 * mixture
    assert params(DEEPSEEK_V3).total == total
    assert params(DEEPSEEK_V3).active == total - 58 * 248 * expert


def test_every_switch_adds_what_it_says():
    switches = [f.name for f in dataclasses.fields(Architecture) if getattr(EVERY_SWITCH, f.name) is True]
    plain = params(EVERY_SWITCH.replace(**dict.fromkeys(switches, False)))
    full = params(EVERY_SWITCH)
    layers, mixtures = 48, 46
    assert full.attention_biases - plain.attention_biases == layers * (4096 + 2 * 512 + 2048 + 32)
    assert full.router - plain.router == mixtures * 128
    assert full.shared_experts - plain.shared_experts == mixtures * (2048 + 3 * (512 + 512 + 2048))
    assert full.routed_experts - plain.routed_experts == mixtures * 128 * (768 + 768 + 2048)
    assert full.routed_experts_active - plain.routed_experts_active == mixtures * 8 * (768 + 768 + 2048)
    assert full.norms - plain.norms == layers * 2 * 128


def test_tying_saves_one_vocabulary_matrix_and_no_flops():
    untied, tied = QWEN3_30B, QWEN3_30B.replace(tied_embeddings=True)
    assert params(untied).total - params(tied).total == 151936 * 2048
    assert flops_per_token(untied, 512) == flops_per_token(tied, 512)


def test_flops_of_a_small_dense_model_counted_by_hand():
    flops = flops_per_token(DENSE, sequence_length=128)
    layer = 64 * 64 + 2 * 64 * 32 + 64 * 64 + 3 * 64 * 160
    # Each of 4 heads multiplies a query of 16 with 128 keys, and 128 weights with values of 16.
    scores = 3 * 4 * 128 * (16 + 16)
    assert flops.forward == 2 * (3 * layer + scores + 64 * 1000)
    assert flops.training == 3 * flops.forward
    assert flops.forward_causal == flops.forward - scores


def test_flops_are_two_per_active_matrix_entry_beside_the_scores():
    for architecture in (DENSE, QWEN3_30B, DEEPSEEK_V3, EVERY_SWITCH):
        entries = matrices(architecture)
        flops = flops_per_token(architecture, 1024)
        active = sum(dataclasses.asdict(entries).values()) - entries.routed_experts_idle
        assert flops.forward - flops.attention_scores == 2 * active


def test_latent_attention_scores_use_the_turned_and_the_plain_part_of_a_head():
    assert flops_per_token(DEEPSEEK_V3, 4096).attention_scores == 2 * 61 * 4096 * 128 * (128 + 64 + 128)


@pytest.mark.parametrize("architecture", [DENSE, QWEN3_30B, DEEPSEEK_V3, EVERY_SWITCH])
def test_whole_numbers_in_give_whole_numbers_out(architecture):
    counts = [*dataclasses.asdict(params(architecture)).values()]
    counts += dataclasses.asdict(flops_per_token(architecture, 2048)).values()
    assert all(type(count) is int for count in counts)


@pytest.mark.parametrize("architecture", [DENSE, QWEN3_30B, DEEPSEEK_V3, EVERY_SWITCH])
def test_counts_of_a_traced_architecture_are_the_counts(architecture):
    with float64():
        floats = jax.tree.map(float, architecture)
        traced_params: Params = jax.jit(params)(floats)
        traced_flops: Flops = jax.jit(flops_per_token)(floats, 2048.0)
        assert float(traced_params.total) == params(architecture).total
        assert float(traced_params.active) == params(architecture).active
        assert float(traced_flops.training) == flops_per_token(architecture, 2048).training


def test_the_gradient_of_a_count_is_its_change():
    with float64():
        gradient = jax.jit(jax.grad(lambda a: params(a).total))(jax.tree.map(float, DEEPSEEK_V3))
        # The count is linear in each of these, so one more of it adds exactly the gradient.
        for name in ("vocab_size", "num_layers", "num_experts", "expert_hidden", "kv_latent_dim", "num_dense_layers"):
            more = DEEPSEEK_V3.replace(**{name: getattr(DEEPSEEK_V3, name) + 1})
            assert float(getattr(gradient, name)) == params(more).total - params(DEEPSEEK_V3).total, name


def test_many_architectures_are_counted_at_once():
    widths = jnp.array([256.0, 512.0, 768.0])
    totals = jax.vmap(lambda w: params(QWEN3_30B.replace(expert_hidden=w)).total)(widths)
    for width, total in zip(widths, totals, strict=True):
        assert float(total) == pytest.approx(params(QWEN3_30B.replace(expert_hidden=int(width))).total, rel=1e-6)


def test_a_design_carries_the_counts():
    design = design_of(QWEN3_30B, tokens=10**12, sequence_length=4096)
    assert design.params_total == params(QWEN3_30B).total
    assert design.params_active == params(QWEN3_30B).active
    assert design.params_total_nonembedding == params(QWEN3_30B).total - params(QWEN3_30B).vocabulary
    assert design.flops == 10**12 * flops_per_token(QWEN3_30B, 4096).training
    assert (design.num_experts, design.top_k, design.expert_hidden) == (128, 8, 768)
    assert design_of(QWEN3_30B, tokens=1).flops is None
    assert design_of(DENSE, tokens=1).expert_hidden == 160


def test_laws_read_a_shared_expert_by_its_width_and_not_by_how_it_is_cut():
    whole = QWEN3_30B.replace(num_shared_experts=1, shared_hidden=2 * QWEN3_30B.expert_hidden)
    cut = QWEN3_30B.replace(num_shared_experts=2)
    one, two = design_of(whole, 1e9), design_of(cut, 1e9)
    assert one.params_active == two.params_active
    for name in ("active_experts", "shared_share", "activation_ratio", "granularity"):
        assert float(getattr(one, name)) == float(getattr(two, name)), name


def test_a_dense_model_has_no_shared_experts_however_wide_they_would_be():
    assert design_of(DENSE, 1e9).num_shared_experts == 0
    assert design_of(DENSE.replace(shared_hidden=64), 1e9).num_shared_experts == 0


@pytest.mark.parametrize("architecture", [QWEN3_30B, DEEPSEEK_V3, EVERY_SWITCH])
def test_half_of_the_assignments_dropped_leave_the_active_parameters_of_half_as_many_experts(architecture):
    half = architecture.replace(top_k=architecture.top_k // 2)
    assert params_active_served(architecture, 0.5) == params(half).active
    assert params_active_served(architecture, 0.0) == params(architecture).active
