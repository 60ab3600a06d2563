"""The transformer: counted twice, causal, and the same function whatever the runtime and the mesh."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moejax.architecture import Architecture
from moejax.laws import accounting
from moejax.model import transformer
from moejax.model.loss import LossWeights, auxiliary, token_costs
from moejax.model.runtime import REMAT_POLICIES, Runtime
from moejax.routing import DISPATCHERS

SMALL = Architecture(
    vocab_size=64,
    model_dim=16,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    num_dense_layers=1,
    dense_hidden=32,
    num_experts=4,
    top_k=2,
    expert_hidden=8,
    num_shared_experts=1,
    qk_norm=True,
)
DENSE = SMALL.replace(num_experts=0, top_k=0, num_shared_experts=0, num_dense_layers=0, expert_hidden=0)


@st.composite
def architectures(draw):
    kv_heads = draw(st.integers(1, 3))
    experts = draw(st.integers(0, 6))
    layers = draw(st.integers(1, 4))
    moe = experts > 0
    return Architecture(
        vocab_size=draw(st.integers(2, 99)),
        model_dim=draw(st.integers(1, 40)),
        num_layers=layers,
        num_heads=kv_heads * draw(st.integers(1, 3)),
        num_kv_heads=kv_heads,
        head_dim=2 * draw(st.integers(1, 8)),
        dense_hidden=draw(st.integers(1, 50)),
        num_dense_layers=draw(st.integers(0, layers - 1)) if moe else 0,
        num_experts=experts,
        top_k=draw(st.integers(1, experts)) if moe else 0,
        expert_hidden=draw(st.integers(1, 30)) if moe else 0,
        num_shared_experts=draw(st.integers(0, 2)) if moe else 0,
        shared_hidden=draw(st.integers(0, 30)) if moe else 0,
        qk_norm=draw(st.booleans()),
        attention_bias=draw(st.booleans()),
        tied_embeddings=draw(st.booleans()),
    )


@settings(deadline=None, max_examples=40)
@given(architectures())
def test_the_built_model_has_as_many_parameters_as_the_accounting_says(architecture):
    counts, formula = transformer.count(architecture), accounting.params(architecture)
    assert counts == (formula.total, formula.active, formula.vocabulary)


def test_two_models_are_counted_by_hand():
    # Attention 16·(4·8) + 2·16·(2·8) + (4·8)·16, its qk-norms 2·8, two norms of 16 per layer, the final norm.
    attention, norms = 512 + 512 + 512 + 16, 32
    dense_layer, expert = 3 * 16 * 32, 3 * 16 * 8
    moe_layer = 16 * 4 + 4 * expert + expert
    total = 64 * 16 + 3 * (attention + norms) + dense_layer + 2 * moe_layer + 16
    assert transformer.count(SMALL) == (total, total - 2 * 2 * expert, 64 * 16)
    dense_total = 64 * 16 + 3 * (attention + norms + dense_layer) + 16
    assert transformer.count(DENSE) == (dense_total, dense_total, 64 * 16)


@pytest.mark.parametrize("architecture", [SMALL, DENSE], ids=["mixture", "dense"])
def test_no_position_sees_a_later_token(architecture):
    params = transformer.init(architecture, jax.random.key(0))
    tokens = jax.random.randint(jax.random.key(1), (2, 12), 0, 64)
    changed = tokens.at[:, 7:].set((tokens[:, 7:] + 1) % 64)
    run = jax.jit(lambda t: transformer.forward(architecture, Runtime(), params, t))
    before, after = run(tokens), run(changed)
    np.testing.assert_allclose(before[:, :7], after[:, :7], atol=1e-5)
    assert not np.allclose(before[:, 7:], after[:, 7:], atol=1e-3)


RUNTIMES = [
    Runtime(),
    Runtime(scan_layers=True),
    *(Runtime(dispatcher=name) for name in DISPATCHERS),
    *(Runtime(remat=name, scan_layers=True) for name in REMAT_POLICIES),
]


def _loss_and_gradients(runtime):
    tokens = jax.random.randint(jax.random.key(1), (4, 16), 0, 64)

    def loss(params):
        output = transformer.apply(SMALL, runtime, params, tokens[:, :-1])
        weighted, _ = auxiliary(output.routing, LossWeights(balance=1.0, router_z=1.0))
        return token_costs(SMALL, params, output.hidden, tokens[:, 1:]).mean() + weighted

    return jax.jit(jax.value_and_grad(loss))(transformer.init(SMALL, jax.random.key(0)))


@pytest.fixture(scope="module")
def reference():
    return _loss_and_gradients(Runtime(dispatcher="dense"))


@pytest.mark.parametrize(
    "runtime", RUNTIMES, ids=lambda r: f"{r.dispatcher}-{'scan' if r.scan_layers else 'unrolled'}-{r.remat}"
)
def test_no_runtime_changes_the_loss_or_its_gradients(runtime, reference):
    loss, gradients = _loss_and_gradients(runtime)
    np.testing.assert_allclose(loss, reference[0], rtol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), gradients, reference[1])


def test_bfloat16_stays_close_to_float32():
    params = transformer.init(SMALL, jax.random.key(0))
    tokens = jax.random.randint(jax.random.key(1), (2, 16), 0, 64)
    exact = transformer.forward(SMALL, Runtime(), params, tokens)
    rounded = transformer.forward(SMALL, Runtime(compute_dtype="bfloat16"), params, tokens)
    assert rounded.dtype == jnp.float32
    assert float(jnp.abs(exact - rounded).max()) < 0.2


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"top_k": 9}, "top_k is 9 and num_experts is 4"),
        ({"num_kv_heads": 3}, "num_kv_heads must divide num_heads"),
        ({"head_dim": 7}, "must be even"),
        ({"num_dense_layers": 3}, "so no layer has the 4 experts"),
        ({"expert_hidden": 0}, "expert_hidden is 0"),
        ({"dense_hidden": 0}, "dense_hidden is 0"),
        ({"model_dim": 1.5}, "whole numbers"),
        ({"num_experts": 0}, "a dense model has neither"),
    ],
)
def test_an_impossible_architecture_is_refused_in_a_sentence(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        transformer.count(SMALL.replace(**change))
