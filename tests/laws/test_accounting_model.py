"""Counted twice: by arithmetic on the architecture, and on the arrays of the built model."""

from hypothesis import given, settings
from hypothesis import strategies as st

from moejax.architecture import Architecture
from moejax.kernels.saved_names import SAVED_NAMES
from moejax.laws.accounting import flops_per_token, mtp_params, params
from moejax.laws.memory import named_activations
from moejax.model.transformer import abstract_params, count, count_mtp
from moejax.weights.parameters import flat


@st.composite
def architectures(draw) -> Architecture:
    kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    layers = draw(st.integers(1, 4))
    num_experts = draw(st.sampled_from([0, 2, 5, 8]))
    shared = draw(st.integers(0, 2))
    mixture = {
        "num_experts": num_experts,
        "top_k": draw(st.integers(1, max(1, num_experts))),
        "expert_hidden": draw(st.integers(1, 40)),
        "num_shared_experts": shared,
        "shared_hidden": draw(st.sampled_from([0, 7])) if shared else 0,
        "num_dense_layers": draw(st.integers(0, layers - 1)),
    }
    return Architecture(
        vocab_size=draw(st.integers(2, 99)),
        model_dim=draw(st.integers(1, 50)),
        num_layers=layers,
        num_heads=kv_heads * group,
        num_kv_heads=kv_heads,
        head_dim=2 * draw(st.integers(1, 8)),
        dense_hidden=draw(st.integers(1, 60)),
        qk_norm=draw(st.booleans()),
        attention_bias=draw(st.booleans()),
        tied_embeddings=draw(st.booleans()),
        num_mtp_layers=draw(st.integers(0, 2)),
        **(mixture if num_experts else {}),
    )


@settings(max_examples=25)
@given(architectures())
def test_the_built_model_has_the_parameters_that_were_counted(architecture):
    counted, built = params(architecture), count(architecture)
    assert counted.total == built.total
    assert counted.active == built.active
    assert counted.vocabulary == built.embedding
    further, modules = mtp_params(architecture), count_mtp(architecture)
    assert (further.total, further.active, further.vocabulary) == modules


@settings(max_examples=25)
@given(architectures(), st.booleans())
def test_products_that_named_activations_spare_are_those_of_the_built_models_matrices(architecture, latent):
    if latent:
        heads = architecture.num_heads
        architecture = architecture.replace(num_kv_heads=heads, qk_norm=False, kv_latent_dim=6, rope_head_dim=4)
    sizes = {name: array.size for name, array in flat(abstract_params(architecture))}

    def products(*ends):
        return 2 * sum(size for name, size in sizes.items() if name.endswith(ends))

    spared = {name: one.flops for name, one in named_activations(architecture, 64).items()}
    shared = products("shared.gate", "shared.up")
    dense = products("feed_forward.gate", "feed_forward.up")
    assert spared == {
        "attn_qkv": products("attention.query", "attention.key", "attention.value"),
        "attn_out": flops_per_token(architecture, 64).attention_scores_causal,
        "moe_gate_up": products("gate_up") * architecture.top_k // max(architecture.num_experts, 1),
        "ffn_gate_up": dense + shared,
    }
    assert tuple(spared) == SAVED_NAMES
