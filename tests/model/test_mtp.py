"""Multi-token prediction: losses and gradients of the paper's equations, and nothing of it where nothing is trained."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from known_architectures import DENSE, MIXTURE

from moejax.model import transformer
from moejax.model.loss import LossWeights, token_loss
from moejax.model.runtime import Runtime
from moejax.sharding import MESH_AXES
from moejax.train.optimizer import OptimizerConfig
from moejax.train.program import make_program
from moejax.train.training import DataConfig, Recipe, Training, phases

LENGTH, DEPTH, WEIGHT = 12, 2, 0.3
TOKENS = np.random.default_rng(0).integers(0, MIXTURE.vocab_size, (2, LENGTH + 1)).astype(np.int32)
ONE_LAYER = MIXTURE.replace(num_layers=1, num_dense_layers=0)
"""What comes before the modules decides how long a program is compiled, and nothing else here."""
AHEAD = ONE_LAYER.replace(tied_embeddings=False, num_mtp_layers=DEPTH)
NO_AUXILIARY = LossWeights(balance=0.0, router_z=0.0, mtp=WEIGHT)


def rms_norm(np, x, weight, epsilon=1e-6):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight


def softmax(np, x):
    shares = np.exp(x - x.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


def rotated(np, x, theta=10_000.0):
    """Pairs of channels as complex numbers, turned by position times frequency."""
    half = x.shape[-1] // 2
    position, pair = (np.arange(number, dtype=np.float32) for number in (x.shape[1], half))
    angle = position[:, None, None] * theta ** (-pair / half)
    real, imaginary = x[..., :half], x[..., half:]
    turned = real * np.cos(angle) - imaginary * np.sin(angle), real * np.sin(angle) + imaginary * np.cos(angle)
    return np.concatenate(turned, -1).astype(x.dtype)


def swiglu(np, x, gate, up, down):
    gated = x @ gate
    return (gated / (1 + np.exp(-gated)) * (x @ up)) @ down


def block(np, p, x):
    """Causal attention and a mixture of experts, each after a norm and added to its input."""
    attention, experts = p["attention"], p["feed_forward"]
    normed = rms_norm(np, x, p["attention_norm"])
    query, key, value = (np.einsum("btd,dhk->bthk", normed, attention[n]) for n in ("query", "key", "value"))
    query = rotated(np, rms_norm(np, query, attention["query_norm"]))
    key = rotated(np, rms_norm(np, key, attention["key_norm"]))
    groups = query.shape[2] // key.shape[2]
    scores = np.einsum("bthk,bshk->bhts", query, np.repeat(key, groups, 2)) / query.shape[-1] ** 0.5
    scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    mixed = np.einsum("bhts,bshk->bthk", softmax(np, scores), np.repeat(value, groups, 2))
    x = x + np.einsum("bthk,hkd->btd", mixed, attention["output"])
    normed = rms_norm(np, x, p["feed_forward_norm"])
    shared = experts["shared"]
    y = swiglu(np, normed, shared["gate"], shared["up"], shared["down"])
    probability = softmax(np, normed @ experts["router"])
    chosen = probability >= np.sort(probability, -1)[..., -MIXTURE.top_k, None]
    weights = np.where(chosen, probability, 0.0)
    weights = weights / weights.sum(-1, keepdims=True)
    gated, upward = (np.einsum("btd,edf->btef", normed, experts["gate_up"][:, i]) for i in range(2))
    hidden = gated / (1 + np.exp(-gated)) * upward
    return x + y + np.einsum("bte,btef,efd->btd", weights, hidden, experts["down"])


def losses_ahead(np, params, tokens, hidden):
    """Eqs. 21 to 24 on sequences of one document: the cross-entropies of every target of each depth."""
    found, length = [], tokens.shape[1] - 1
    for depth in range(1, DEPTH + 1):
        p = jax.tree.map(lambda leaf, i=depth - 1: leaf[i], params["mtp_layers"])
        hidden = hidden[:, : length - depth]
        embedded = params["embedding"][tokens[:, depth:length]]
        embedded = rms_norm(np, embedded, p["embedding_norm"])
        joined = np.concatenate([embedded, rms_norm(np, hidden, p["hidden_norm"])], -1)
        hidden = block(np, p["block"], joined @ p["projection"].reshape(-1, joined.shape[-1] // 2))
        hidden = rms_norm(np, hidden, p["final_norm"])
        probability = softmax(np, hidden @ params["unembedding"])
        targets = tokens[:, depth + 1 :]
        found.append(-np.log(np.take_along_axis(probability, targets[..., None], -1))[..., 0])
    return found


@jax.jit
def hidden_states(params, tokens, segments):
    return transformer.apply(AHEAD, Runtime(), params, tokens, segments=segments).hidden


def training(architecture, loss=NO_AUXILIARY, packing="windows", runtime=None, **optimizer):
    return Training(
        name="ahead",
        architecture=architecture,
        recipe=Recipe(
            budgets_tokens=(100 * 2 * LENGTH,),
            batch_tokens=2 * LENGTH,
            data=DataConfig(source="", sequence_length=LENGTH, packing=packing),
            optimizer=OptimizerConfig(**{"learning_rate": 3e-3, "clip_norm": 0.0, **optimizer}),
            loss=loss,
            runtime=runtime or Runtime(),
        ),
    )


@functools.cache
def program_of(training):
    return make_program(
        training, jax.make_mesh((1, 1, 1, 1), MESH_AXES, (AxisType.Auto,) * 4, devices=jax.devices()[:1])
    )


def steps(training, batch, number=1, start=None):
    """The parameters before some steps on one batch, the state after them, and the metrics of each."""
    program = program_of(training)
    with jax.set_mesh(program.mesh):
        state, found = program.init(0), []
        if start is not None:
            state = dataclasses.replace(state, params=jax.tree.map(jnp.asarray, start))
        start = jax.tree.map(np.asarray, state.params)
        for _ in range(number):
            state, metrics = program.step(state, batch, phases(training)[0].schedule)
            found.append(jax.tree.map(np.asarray, metrics))
    return start, state, found


def gradients(state):
    """Adam's first moment after one step is a tenth of the gradient."""
    return jax.tree.map(lambda leaf: np.asarray(leaf) / (1 - OptimizerConfig().beta1), state.optimizer[1][0].mu)


def test_losses_and_all_gradients_are_those_of_the_papers_equations():
    tokens = jnp.asarray(TOKENS)
    params, state, (metrics,) = steps(training(AHEAD), {"tokens": tokens})

    def reference(params):
        output = transformer.apply(AHEAD, Runtime(), params, tokens[:, :-1])
        of_model = token_loss(AHEAD, params, output.hidden, tokens[:, 1:]).mean()
        further = [losses.mean() for losses in losses_ahead(jnp, params, tokens, output.hidden)]
        return of_model + WEIGHT / DEPTH * sum(further), (of_model, further)

    expected, (of_model, further) = jax.jit(jax.grad(reference, has_aux=True))(params)
    np.testing.assert_allclose(metrics["loss"], of_model, rtol=1e-6)
    np.testing.assert_allclose([metrics["mtp_1_loss"], metrics["mtp_2_loss"]], further, rtol=1e-6)
    found = gradients(state)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-6), found, expected)
    assert all(np.abs(leaf).max() > 1e-4 for leaf in jax.tree.leaves(found["mtp_layers"]))


def test_no_target_and_no_embedding_is_of_another_document():
    segments = np.ones((2, LENGTH + 1), np.int32)
    segments[0, 5:], segments[0, 9:], segments[1, 11:] = 2, 0, 2
    batch = {"tokens": TOKENS, "segments": segments}
    again = Runtime(remat="full", scan_layers=True)
    params, _, (metrics,) = steps(training(AHEAD, packing="documents", runtime=again), batch)
    states = np.asarray(hidden_states(params, TOKENS[:, :-1], segments[:, :-1]))
    found = [[], []]
    # The last document, of two tokens, has no third.
    for row, start, end in ((0, 0, 5), (0, 5, 9), (1, 0, 11)):
        tokens, hidden = TOKENS[row : row + 1, start:end], states[row : row + 1, start : end - 1]
        for of_depth, losses in zip(found, losses_ahead(np, params, tokens, hidden), strict=True):
            of_depth.extend(losses.ravel())
    assert [len(losses) for losses in found] == [3 + 2 + 9, 2 + 1 + 8]
    measured = [metrics["mtp_1_loss"], metrics["mtp_2_loss"]]
    np.testing.assert_allclose(measured, [np.mean(losses) for losses in found], rtol=1e-5)


def test_experts_see_no_token_without_another_so_far_ahead():
    segments = jnp.asarray([[1] * 5 + [2] * 4 + [0] * 3, [1] * 12], jnp.int32)

    @jax.jit
    def tokens_of(params, tokens):
        options = {"segments": segments, "padding_mask": segments > 0, "mtp": True}
        return transformer.apply(AHEAD, Runtime(), params, tokens, **options).routing.tokens

    params = jax.tree.map(lambda leaf: np.ones(leaf.shape, np.float32), transformer.abstract_params(AHEAD))
    # One mixture layer of the model; a document of n tokens has n - k with another k ahead.
    assert tokens_of(params, TOKENS[:, :-1]).tolist() == [21, 4 + 3 + 11, 3 + 2 + 10]


def test_without_weight_the_models_gradients_are_those_without_modules():
    """But for the order of a sum over tokens: the unembedding meets those of modules with the model's."""
    loss = LossWeights(balance=0.5, sequence_balance=0.2, router_z=0.3, mtp=0.0)
    ahead = AHEAD.replace(num_mtp_layers=1, router="sigmoid_topk", expert_bias=True)
    start, state, (found,) = steps(training(ahead, loss), {"tokens": TOKENS})
    # Drawn by another program, the same numbers may be rounded otherwise.
    start.pop("mtp_layers")
    _, alone, (expected,) = steps(training(ahead.without_mtp, loss), {"tokens": TOKENS}, start=start)
    moments = gradients(state)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(moments.pop("mtp_layers")))
    equal = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-7)
    jax.tree.map(equal, moments, gradients(alone))
    same = [name for name in expected if not name.startswith("layers/")]
    equal([found[name] for name in same], [expected[name] for name in same])
    # The modules' experts are balanced all the same.
    np.testing.assert_array_equal(state.expert_bias[:1], alone.expert_bias)
    assert np.all(np.any(np.asarray(state.expert_bias[1:]) != 0, axis=1))


LATER = LossWeights(balance=0.1, router_z=0.07, mtp=WEIGHT, mtp_later=0.1, mtp_later_tokens=2 * LENGTH)
"""The weight falls to a third after the first step."""


@pytest.mark.parametrize("architecture", [ONE_LAYER, DENSE.replace(num_layers=1)])
@pytest.mark.matrix(1)
def test_what_comes_after_the_next_token_is_learnt(architecture):
    _, _, found = steps(training(architecture.replace(num_mtp_layers=1), LATER, beta1=0.0), {"tokens": TOKENS}, 30)
    first, last = found[0], found[-1]
    assert last["mtp_1_loss"] < 0.6 * first["mtp_1_loss"]
    assert last["loss"] < 0.6 * first["loss"]
    assert ("mtp_balance_loss" in last) == architecture.is_moe


def test_the_weight_of_a_module_changes_after_its_tokens_also_that_of_its_routers_losses():
    def gradient(number):
        # Adam without momentum keeps the gradient of the last step, and at this rate parameters stay as they are.
        still = training(ONE_LAYER.replace(num_mtp_layers=1), LATER, beta1=0.0, learning_rate=1e-12)
        _, state, _ = steps(still, {"tokens": TOKENS}, number)
        return jax.tree.map(np.asarray, state.optimizer[1][0].mu["mtp_layers"])

    assert np.abs(gradient(1)["block"]["feed_forward"]["router"]).max() > 1e-4
    jax.tree.map(lambda a, b: np.testing.assert_allclose(3 * a, b, rtol=1e-4, atol=1e-8), gradient(2), gradient(1))


def test_an_evaluation_reads_nothing_of_the_modules():
    real, batch = np.ones(2, bool), {"tokens": TOKENS}
    with_modules, without = (program_of(training(a)) for a in (AHEAD, AHEAD.without_mtp))
    with jax.set_mesh(without.mesh):
        params = dict(with_modules.init(0).params)
        modules = jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), params.pop("mtp_layers"))
        nats, sums = with_modules.evaluate(params | {"mtp_layers": modules}, None, batch, real)
        expected, expected_sums = without.evaluate(params, None, batch, real)
    np.testing.assert_array_equal(nats, expected)
    jax.tree.map(np.testing.assert_array_equal, sums, expected_sums)
