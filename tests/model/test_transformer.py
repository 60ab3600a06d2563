"""The transformer: counted twice, causal, and the same function whatever the runtime."""

import re
import zlib
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from known_architectures import DENSE, KNOWN, MIXTURE, NOT_CAUSAL, QUICK, forward, params_of

from moejax.architecture import Architecture, RopeScaling
from moejax.errors import UserError
from moejax.kernels.attention import BACKENDS
from moejax.kernels.cpu import available
from moejax.kernels.saved_names import SAVED_NAMES
from moejax.laws import accounting
from moejax.laws.catalogue import CATALOGUE
from moejax.laws.memory import named_activations
from moejax.model import transformer
from moejax.model.loss import LossWeights, auxiliary, token_loss, weighted_losses
from moejax.model.parameter import Initialisation
from moejax.model.runtime import REMAT_POLICIES, Runtime
from moejax.routing import ACTIVATIONS, DISPATCHERS, ROUTERS
from moejax.weights.folder import flat
from moejax.wording import install_command


@st.composite
def architectures(draw):
    latent, dense = draw(st.booleans()), draw(st.booleans())
    kv_heads, layers = draw(st.integers(1, 3)), draw(st.integers(1, 6))
    heads = kv_heads * (1 if latent else draw(st.integers(1, 3)))
    a = Architecture(
        vocab_size=draw(st.integers(2, 99)),
        model_dim=draw(st.integers(1, 40)),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=2 * draw(st.integers(1, 8)),
        value_head_dim=draw(st.integers(0, 9)),
        dense_hidden=draw(st.integers(1, 50)),
        attention_bias=draw(st.booleans()),
        attention_output_bias=draw(st.booleans()),
        attention_sinks=draw(st.booleans()),
        tied_embeddings=draw(st.booleans()),
        num_mtp_layers=draw(st.integers(0, 3)),
    )
    if latent:
        a = a.replace(
            query_latent_dim=draw(st.integers(0, 9)),
            kv_latent_dim=draw(st.integers(1, 9)),
            rope_head_dim=2 * draw(st.integers(1, 4)),
        )
    else:
        a = a.replace(qk_norm=draw(st.booleans()))
        a = a.replace(qk_norm_all_heads=a.qk_norm and draw(st.booleans()))
    if dense:
        return a
    experts, shared = draw(st.integers(1, 6)), draw(st.integers(0, 2))
    first = draw(st.integers(0, layers - 1))
    return a.replace(
        num_dense_layers=first,
        num_last_dense_layers=draw(st.integers(0, layers - 1 - first)),
        layer_pattern=draw(st.sampled_from(["E", "ED", "EDD", "EED"])),
        num_experts=experts,
        top_k=draw(st.integers(1, experts)),
        expert_hidden=draw(st.integers(1, 30)),
        num_shared_experts=shared,
        shared_hidden=draw(st.integers(0, 30)) if shared else 0,
        shared_expert_gate=bool(shared) and draw(st.booleans()),
        router_bias=draw(st.booleans()),
    )


@settings(max_examples=60)
@given(architectures())
def test_the_built_model_has_as_many_parameters_as_the_accounting_says(architecture):
    counts, formula = transformer.count(architecture), accounting.params(architecture)
    assert counts == (formula.total, formula.active, formula.vocabulary)
    modules, formula = transformer.count_mtp(architecture), accounting.mtp_params(architecture)
    assert modules == (formula.total, formula.active, 0)


@settings(max_examples=25)
@given(architectures())
def test_products_that_named_activations_spare_are_those_of_the_built_models_matrices(architecture):
    sizes = {name: array.size for name, array in flat(transformer.abstract_params(architecture))}

    def products(*ends):
        return 2 * sum(size for name, size in sizes.items() if name.endswith(ends))

    spared = {name: one.flops for name, one in named_activations(architecture, 64).items()}
    shared = products("shared.gate", "shared.up")
    dense = products("feed_forward.gate", "feed_forward.up")
    assert spared == {
        "attn_qkv": products("attention.query", "attention.key", "attention.value"),
        "attn_out": accounting.flops_per_token(architecture, 64).attention_scores_causal,
        "moe_gate_up": products("gate_up") * architecture.top_k // max(architecture.num_experts, 1),
        "ffn_gate_up": dense + shared,
    }
    assert tuple(spared) == SAVED_NAMES


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_published_model_is_built_with_the_parameters_of_the_accounting(name):
    architecture = CATALOGUE[name].architecture
    formula = accounting.params(architecture)
    assert transformer.count(architecture) == (formula.total, formula.active, formula.vocabulary)


def test_two_models_are_counted_by_hand():
    # Attention 16·(4·8) + 2·16·(2·8) + (4·8)·16, its qk-norms 2·8, two norms of 16 per layer, the final norm.
    attention, norms = 512 + 512 + 512 + 16, 32
    dense_layer, expert = 3 * 16 * 32, 3 * 16 * 8
    moe_layer = 16 * 4 + 4 * expert + expert
    total = 64 * 16 + 3 * (attention + norms) + dense_layer + 2 * moe_layer + 16
    assert transformer.count(MIXTURE) == (total, total - 2 * 2 * expert, 64 * 16)
    dense_total = 64 * 16 + 3 * (attention + norms + dense_layer) + 16
    assert transformer.count(DENSE) == (dense_total, dense_total, 64 * 16)


FLOP_SIZES = {"vocab_size": 512, "model_dim": 128, "num_heads": 4, "head_dim": 32, "dense_hidden": 512}


@pytest.mark.parametrize(
    "architecture",
    [
        DENSE.replace(**FLOP_SIZES),
        DENSE.replace(**FLOP_SIZES, num_kv_heads=4, qk_norm=False, kv_latent_dim=32, rope_head_dim=16),
        MIXTURE.replace(**FLOP_SIZES, expert_hidden=256, shared_hidden=128, router="balanced"),
        DENSE.replace(**FLOP_SIZES, num_layers=1, num_mtp_layers=2),
    ],
    ids=["dense", "latent", "mixture", "multi-token prediction"],
)
def test_the_compiler_counts_the_flops_of_the_accounting(architecture):
    # The dense dispatcher computes every expert for every token.
    runtime, length = Runtime(dispatcher="dense", attention="reference"), 64
    tokens = jax.ShapeDtypeStruct((2, length), jnp.int32)

    def run(params, tokens):
        output = transformer.apply(architecture, runtime, params, tokens, mtp=True)
        return [transformer.unembed(architecture, params, hidden) for hidden in (output.hidden, *output.mtp_hidden)]

    compiled = jax.jit(run).lower(transformer.abstract_params(architecture), tokens).compile()
    cost = compiled.cost_analysis()
    expected = accounting.flops_per_token(architecture.replace(top_k=architecture.num_experts), length)
    assert cost["flops"] / (2 * length) == pytest.approx(expected.forward, rel=0.02)


def run(name, tokens, segments=None):
    """Logits of two rows of 16 tokens; every call of a name has one shape, and is compiled once."""
    segments = jnp.ones((2, 16), jnp.int32) if segments is None else segments
    return forward(KNOWN[name], QUICK, params_of(name), tokens, segments=segments)


CAUSAL = sorted(set(KNOWN) - NOT_CAUSAL - {"mixture", "olmoe", "sigmoid", "noisy"})


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.matrix(3)
def test_no_position_sees_a_later_token(name):
    tokens = jax.random.randint(jax.random.key(1), (2, 16), 0, 64)
    changed = tokens.at[:, 7:].set((tokens[:, 7:] + 1) % 64)
    before, after = run(name, tokens), run(name, changed)
    np.testing.assert_allclose(before[:, :7], after[:, :7], atol=1e-5)
    assert not np.allclose(before[:, 7:], after[:, 7:], atol=1e-3)


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.matrix(3)
def test_documents_of_a_row_do_not_see_each_other(name):
    first, second = jax.random.randint(jax.random.key(1), (2, 2, 8), 0, 64)
    row = jnp.concatenate([first, second], axis=1)
    together = run(name, row, segments=jnp.repeat(jnp.array([[1, 2], [1, 2]]), 8, axis=1))
    np.testing.assert_allclose(together[:, :8], run(name, row)[:, :8], atol=2e-5)
    # Rotary, ALiBi and windows depend on distances alone, so a document may stand anywhere in a row.
    alone = run(name, jnp.concatenate([second, first], axis=1))
    np.testing.assert_allclose(together[:, 8:], alone[:, :8], atol=2e-5)


def test_padding_reaches_no_expert_and_no_sum():
    tokens = jax.random.randint(jax.random.key(1), (2, 8), 0, 64)
    real = jnp.arange(8) < jnp.array([[8], [5]])
    apply = jax.jit(transformer.apply, static_argnums=(0, 1))
    output = apply(MIXTURE, Runtime(), params_of("mixture"), tokens, padding_mask=real)
    assert output.routing is not None
    assert output.routing.tokens.tolist() == [13, 13]
    assert output.routing.served.tolist() == [26, 26]


RUNTIMES = dict.fromkeys(
    [
        Runtime(),
        Runtime(scan_layers=True),
        *(Runtime(dispatcher=name) for name in DISPATCHERS),
        *(Runtime(attention=name) for name in BACKENDS if name != "cudnn"),
        *(Runtime(remat=name, scan_layers=True) for name in REMAT_POLICIES),
        Runtime(remat="full"),
        Runtime(remat="+".join(SAVED_NAMES), scan_layers=True),
        Runtime(remat="attn_out+moe_gate_up"),
    ]
)
"""Each once."""


def loss_and_gradients(name, runtime):
    architecture = KNOWN[name]
    tokens = jax.random.randint(jax.random.key(1), (4, 16), 0, 64)
    bias = transformer.init_expert_bias(architecture)
    noise = jax.random.key(2)

    def loss(params):
        output = transformer.apply(architecture, runtime, params, tokens[:, :-1], expert_bias=bias, key=noise, mtp=True)
        modules = {"mtp_layers": len(output.mtp_hidden), "mtp_weight": 0.5}
        weighted, _ = auxiliary(output.routing, LossWeights(balance=1.0, router_z=1.0), **modules)
        for further, hidden in enumerate(output.mtp_hidden, start=1):
            ahead = token_loss(architecture, params, hidden[:, :-further], tokens[:, 1 + further :])
            weighted = weighted + 0.5 * ahead.mean()
        return token_loss(architecture, params, output.hidden, tokens[:, 1:]).mean() + weighted

    return jax.jit(jax.value_and_grad(loss))(params_of(name))


@pytest.fixture(scope="module")
def reference():
    found = {}

    def of(name):
        if name not in found:
            found[name] = loss_and_gradients(name, Runtime(dispatcher="dense", attention="reference"))
        return found[name]

    return of


@pytest.mark.parametrize(
    "runtime",
    RUNTIMES,
    ids=lambda r: f"{r.dispatcher}-{r.attention}-{'scan' if r.scan_layers else 'unrolled'}-{r.remat}",
)
@pytest.mark.parametrize("name", ["mixture", *(pytest.param(n, marks=pytest.mark.slow) for n in ("gpt_oss", "latent"))])
@pytest.mark.matrix(4)
def test_no_runtime_changes_the_loss_or_its_gradients(name, runtime, reference):
    """MaxText #4829."""
    if runtime.attention == "numba" and not available():
        pytest.skip("numba is not installed")
    same(loss_and_gradients(name, runtime), reference(name))


@pytest.mark.parametrize("name", ["interleaved", "latent", "alibi", "half_rotated"])
@pytest.mark.matrix(1)
def test_a_scan_over_layers_computes_every_architecture(name, reference):
    """torchtitan #3686."""
    same(loss_and_gradients(name, Runtime(scan_layers=True)), reference(name))


@pytest.mark.parametrize("remat", REMAT_POLICIES)
@pytest.mark.matrix(1)
def test_recomputed_layers_count_their_tokens_once(remat):
    """torchtitan #1593."""
    tokens = jax.random.randint(jax.random.key(1), (2, 9), 0, 64)

    def loss(params):
        output = transformer.apply(MIXTURE, Runtime(remat=remat, scan_layers=True), params, tokens)
        return output.hidden.sum(), output.routing

    routing = jax.jit(jax.grad(loss, has_aux=True))(params_of("mixture"))[1]
    assert routing.tokens.tolist() == [18, 18]
    assert routing.counts.sum(axis=1).tolist() == [36, 36]


@pytest.mark.parametrize(("remat", "calls"), [("full", 2), ("attn_out+moe_gate_up", 1)])
def test_what_is_kept_by_name_is_not_computed_again(remat, calls):
    """By how often the compiled gradient of one layer calls a kernel that works forwards."""
    if not available():
        pytest.skip("numba is not installed")
    one_layer = KNOWN["mixture"].replace(num_layers=1, num_dense_layers=0)
    params = jax.eval_shape(lambda: transformer.init(one_layer, jax.random.key(0)))
    tokens = jax.ShapeDtypeStruct((2, 16), jnp.int32)

    def loss(params, tokens):
        return (transformer.apply(one_layer, Runtime(remat=remat), params, tokens).hidden ** 2).sum()

    text = jax.jit(jax.grad(loss)).lower(params, tokens).compile().as_text()
    kernels = "moejax_attention_forward", "moejax_experts_forward"
    assert [text.count(f"kernel = {zlib.crc32(name.encode())} ") for name in kernels] == [calls, calls]


def same(found, expected):
    np.testing.assert_allclose(found[0], expected[0], rtol=2e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=3e-5), found[1], expected[1])


def test_a_router_whose_option_is_no_field_of_an_architecture_is_refused_in_a_sentence(monkeypatch):
    def tempered(logits, *, top_k, bias=None, key=None, temperature=1.0):
        return ROUTERS["softmax_topk"](logits / temperature, top_k=top_k)

    monkeypatch.setitem(ROUTERS, "tempered", tempered)
    with pytest.raises(UserError, match="temperature, which is not a field of Architecture"):
        transformer.check(KNOWN["top_p"].replace(router="tempered", threshold=0.4))


def test_the_known_architectures_use_every_router_activation_and_switch():
    unused = set(ROUTERS) - {"balanced", "random"} - {a.router for a in KNOWN.values()}
    assert not unused, f"add an architecture to KNOWN in known_architectures.py for the routers {sorted(unused)}"
    assert {a.activation for a in KNOWN.values()} == set(ACTIVATIONS)
    default = Architecture(vocab_size=1, model_dim=1, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=1)
    untouched = {n for n, value in vars(default).items() if all(getattr(a, n) == value for a in KNOWN.values())}
    assert untouched <= {"rope_theta", "norm_epsilon"}


@pytest.mark.slow
def test_bfloat16_stays_close_to_float32():
    tokens, segments = jax.random.randint(jax.random.key(1), (2, 16), 0, 64), jnp.ones((2, 16), jnp.int32)
    for name in ("latent", "gpt_oss"):
        rounded = forward(
            KNOWN[name], replace(QUICK, compute_dtype="bfloat16"), params_of(name), tokens, segments=segments
        )
        exact = run(name, tokens)
        assert rounded.dtype == jnp.float32
        assert float(jnp.abs(exact - rounded).max()) < 0.2


def test_matrices_start_at_the_standard_deviation_that_is_asked_for():
    wide, make = MIXTURE.replace(model_dim=256), jax.jit(transformer.init, static_argnums=(0, 2))
    params = make(wide, jax.random.key(0), Initialisation(std=0.006, scale_outputs=False))
    layers = params["moe_layers"]
    # A normal cut at two deviations keeps .88 of them.
    for matrix in (params["embedding"], layers["attention"]["output"], layers["feed_forward"]["gate_up"]):
        assert float(matrix.std()) == pytest.approx(0.88 * 0.006, rel=0.02)
    scaled = make(wide, jax.random.key(0), Initialisation(std=0.006))
    ratio = scaled["moe_layers"]["attention"]["output"].std() / layers["attention"]["output"].std()
    assert float(ratio) == pytest.approx(1 / np.sqrt(2 * 3), rel=1e-5)


def test_a_parameter_that_is_not_a_number_is_seen_in_the_loss():
    """A guard skips what is not a number; kernels of a CPU, whose sums may be reordered, must not hide it."""
    tokens = jax.random.randint(jax.random.key(1), (4, 17), 0, 64)

    @jax.jit
    @jax.value_and_grad
    def loss(params):
        hidden = transformer.apply(MIXTURE, Runtime(), params, tokens[:, :-1]).hidden
        return weighted_losses(MIXTURE, params, (hidden,), (tokens[:, 1:],), (jnp.ones((4, 16)),))[0]

    params, (value, _) = params_of("mixture"), loss(params_of("mixture"))
    assert np.isfinite(value)
    leaves, tree = jax.tree.flatten(params)
    for place, leaf in enumerate(leaves):
        first = leaf.at[(tokens[0, 0] if leaf.shape == (64, 16) else 0,) + (0,) * (leaf.ndim - 1)].set(jnp.nan)
        value, _ = loss(jax.tree.unflatten(tree, [*leaves[:place], first, *leaves[place + 1 :]]))
        assert not np.isfinite(value)


def test_weight_decay_falls_on_matrices_and_not_on_norms_and_biases():
    decays = transformer.matrices(KNOWN["gpt_oss"])["moe_layers"]
    assert decays["feed_forward"]["down"]
    assert decays["attention"]["query"]
    names = ("gate_up_bias", "down_bias", "router_bias")
    assert not any(decays["feed_forward"][name] for name in names)
    assert not decays["attention"]["sinks"]
    assert not decays["attention_norm"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"top_k": 9}, "top_k is 9 and num_experts is 4"),
        ({"num_kv_heads": 3}, "num_kv_heads must divide num_heads"),
        ({"head_dim": 7}, "must be even"),
        ({"num_dense_layers": 3}, "no layer of 3 has the 4 experts"),
        ({"num_dense_layers": 2, "num_last_dense_layers": 2}, "lower them"),
        ({"layer_pattern": "X"}, "letters E and D"),
        ({"expert_hidden": 0}, "expert_hidden is 0"),
        ({"dense_hidden": 0}, "dense_hidden is 0"),
        ({"model_dim": 1.5}, "model_dim is 1.5; give a whole number"),
        ({"num_experts": 0}, "a dense model has neither"),
        ({"kv_latent_dim": 8}, "every query head its own"),
        ({"rope_head_dim": 8}, "kv_latent_dim is 0"),
        ({"qk_norm": False, "qk_norm_all_heads": True}, "without qk_norm"),
        ({"num_shared_experts": 0, "shared_expert_gate": True}, "set num_shared_experts or leave the gate out"),
        ({"sliding_window": -1}, "sliding_window is -1"),
        ({"num_shared_experts": 0, "shared_hidden": 5}, "shared_hidden is 5, but num_shared_experts is 0"),
        ({"router": "softmax"}, "did you mean topk_softmax"),
        ({"router": "switch"}, "set top_k to 1"),
        ({"router": "group_limited", "num_groups": 3}, "num_groups is 3; it must divide the number of experts"),
        ({"threshold": 0.5}, "has no option threshold"),
        ({"router": "top_p", "threshold": 0.0}, "threshold is 0.0; give a number above 0"),
        ({"router": "expert_choice", "expert_bias": True}, "remove expert_bias"),
        ({"activation": "gelu"}, "did you mean swiglu"),
        ({"positions": "learned"}, "choose from rope"),
        ({"rope_scaling": RopeScaling(kind="dynamic", factor=2.0)}, "rope_scaling.kind"),
        ({"rope_scaling": RopeScaling(kind="yarn", factor=2.0)}, "yarn needs at least 1"),
        ({"rope_scaling": RopeScaling(kind="linear", factor=0.5)}, "rope_scaling.factor is 0.5; give a number from 1"),
    ],
)
def test_an_impossible_architecture_is_refused_in_a_sentence(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        transformer.count(MIXTURE.replace(**change))


def test_a_kernel_that_does_not_know_a_feature_is_refused():
    for name, feature in (("gpt_oss", "attention_sinks"), ("alibi", "alibi"), ("latent", "latent attention")):
        with pytest.raises(ValueError, match=feature):
            transformer.check(KNOWN[name], Runtime(attention="cudnn", compute_dtype="bfloat16"))
    with pytest.raises(
        ValueError, match=r"'cudnn' does not support compute_dtype = 'float32' \(it computes in 'bfloat16'\); choo"
    ):
        transformer.check(MIXTURE, Runtime(attention="cudnn"))
    transformer.check(MIXTURE, Runtime(attention="cudnn", compute_dtype="bfloat16"))


def test_the_kernels_of_a_cpu_are_refused_where_they_cannot_compute(monkeypatch):
    with pytest.raises(
        ValueError, match=r"'numba' does not support compute_dtype = 'bfloat16'; choose another of auto"
    ):
        transformer.check(MIXTURE, Runtime(attention="numba", compute_dtype="bfloat16"))
    monkeypatch.setattr("moejax.kernels.cpu.attention.platform", lambda: "tpu")
    with pytest.raises(ValueError, match="is for CPUs, but this program is for a tpu; choose 'auto'"):
        loss_and_gradients("mixture", Runtime(attention="numba"))
    monkeypatch.setattr("moejax.kernels.cpu.available", lambda: False)
    with pytest.raises(ValueError, match=rf"needs the package numba.* {re.escape(install_command('cpu'))}"):
        transformer.check(MIXTURE, Runtime(attention="numba"))
