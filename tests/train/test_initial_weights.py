"""A training starts from other weights: of its own kind, or a mixture from a dense model, whose function it keeps."""

import dataclasses
import functools
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from tokenizers import Tokenizer, models

from moejax.architecture import Architecture
from moejax.data.tokenizer import open_tokenizer
from moejax.errors import UserError
from moejax.model import transformer
from moejax.model.runtime import Runtime
from moejax.sharding import MESH_AXES
from moejax.stored import read_json
from moejax.train import initial_weights as module
from moejax.train.initial_weights import check_initial_weights, initial_weights_sha256, state_from_weights
from moejax.train.loop import train
from moejax.train.mesh import MeshShape
from moejax.train.program import make_program
from moejax.train.training import InitialWeights
from moejax.weights.folder import save_weights

DENSE = Architecture(
    vocab_size=257, model_dim=16, num_layers=3, num_heads=2, num_kv_heads=1, head_dim=8, dense_hidden=16,
    num_mtp_layers=1,
)  # fmt: skip
MIXTURE = DENSE.replace(num_experts=8, top_k=2, expert_hidden=16, dense_hidden=0)
MIXTURES = {
    "copies": MIXTURE,
    "some layers stay dense": MIXTURE.replace(num_dense_layers=1, dense_hidden=16),
    "halves of copies": MIXTURE.replace(expert_hidden=8, top_k=4),
    "sigmoid gates, scaled": MIXTURE.replace(router="sigmoid_topk", routed_scaling_factor=2.5),
    "a shared expert": MIXTURE.replace(num_shared_experts=1),
    "biases": MIXTURE.replace(expert_mlp_bias=True, router_bias=True, expert_bias=True),
}
TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, 257, (2, 12)), jnp.int32)


def with_weights(training, architecture, source, **initial):
    given = InitialWeights(source=str(source), **initial)
    return dataclasses.replace(
        training, architecture=architecture, recipe=dataclasses.replace(training.recipe, initial_weights=given)
    )


def start(training, log=lambda text: None):
    mesh = jax.make_mesh((1, 1, 1, 1), MESH_AXES, (AxisType.Auto,) * 4, devices=jax.devices()[:1])
    return state_from_weights(training, make_program(training, mesh), log)


def logits(architecture, params, expert_bias=None):
    """Of the next token and of the one after, but where there is none."""

    @jax.jit
    def forward(params, expert_bias):
        output = transformer.apply(architecture, Runtime(), params, TOKENS, expert_bias=expert_bias, mtp=True)
        return [transformer.unembed(architecture, params, h[:, :-1]) for h in (output.hidden, *output.mtp_hidden)]

    return np.stack(forward(params, expert_bias))


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights") / "dense"
    params = transformer.init(DENSE, jax.random.key(3))
    save_weights(folder, DENSE, params)
    return folder, params


def test_weights_of_the_same_architecture_are_taken_as_they_are(training, dense):
    folder, params = dense
    state = start(with_weights(training, DENSE, folder))
    jax.tree.map(np.testing.assert_array_equal, state.params, params)
    assert int(state.step) == 0


@pytest.mark.parametrize(
    ("changed", "kept"),
    [({}, True), ({"rope_theta": 1e6, "capacity_factor": 2.0}, True), ({"router": "softmax_topk"}, False)],
    ids=str,
)
def test_an_expert_bias_stays_unless_it_belongs_to_another_router(training, tmp_path, changed, kept):
    source, said = MIXTURE.replace(router="sigmoid_topk", expert_bias=True), []
    bias = np.random.default_rng(0).normal(size=transformer.init_expert_bias(source).shape).astype(np.float32)
    save_weights(tmp_path / "weights", source, transformer.init(source, jax.random.key(3)), bias)
    state = start(with_weights(training, source.replace(**changed), tmp_path / "weights"), said.append)
    np.testing.assert_array_equal(state.expert_bias, bias if kept else 0 * bias)
    assert any("expert bias starts at 0" in text for text in said) != kept


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in ("copies", "biases") else pytest.mark.slow) for name in MIXTURES],
)
@pytest.mark.matrix(1)
def test_a_mixture_upcycled_from_a_dense_model_computes_what_that_did(training, dense, name):
    folder, params = dense
    said = []
    state = start(with_weights(training, MIXTURES[name], folder), said.append)
    expected = logits(DENSE, params)
    np.testing.assert_allclose(logits(MIXTURES[name], state.params, state.expert_bias), expected, atol=2e-5)
    assert said == []


def test_noise_parts_the_experts_and_is_drawn_from_the_seed(training, dense):
    folder, params = dense
    still, noisy, again = (
        start(with_weights(training, MIXTURE, folder, noise=noise)).params for noise in (0.0, 0.1, 0.1)
    )
    experts = noisy["moe_layers"]["feed_forward"]["gate_up"]
    copies = still["moe_layers"]["feed_forward"]["gate_up"]
    assert np.ptp(copies, axis=1).max() == 0
    assert 0.08 < np.std(experts - copies) / np.std(copies) < 0.12
    jax.tree.map(np.testing.assert_array_equal, noisy, again)
    assert np.abs(logits(MIXTURE, noisy) - logits(DENSE, params)).max() > 1e-3


@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize("kind", ["dense", "copies", "halves of copies"])
@pytest.mark.matrix(3)
def test_every_mesh_begins_with_the_same_weights_and_reads_each_part_once(training, dense, kind, noise, monkeypatch):
    architecture = {"dense": DENSE, **MIXTURES}[kind]
    one = with_weights(training, architecture, dense[0], noise=noise)
    read, place = [], module._place

    def counted(shape, sharding, part):
        def once(index):
            block = part(index)
            read.append(block.nbytes)
            return block

        return place(shape, sharding, once)

    monkeypatch.setattr(module, "_place", counted)
    shape = {"data": 2, "expert": 2, "tensor": 2}
    mesh = jax.make_mesh(tuple(shape.get(axis, 1) for axis in MESH_AXES), MESH_AXES, (AxisType.Auto,) * 4)
    state = state_from_weights(one, make_program(one, mesh), lambda text: None)
    monkeypatch.undo()
    # What is drawn, as routers are, is rounded as its program has it.
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), state.params, start(one).params)
    large = sum(leaf.nbytes for leaf in jax.tree.leaves(state.params))
    # Of a mixture the routers are drawn.
    assert 0.9 * large < sum(read) <= large
    leaves = jax.tree.leaves(state.params)
    assert len(read) > len(leaves)
    assert kind != "copies" or max(read) < 0.5 * max(leaf.nbytes for leaf in leaves)


def test_weights_that_were_damaged_are_refused(training, dense, tmp_path):
    shutil.copytree(dense[0], tmp_path / "weights")
    given = with_weights(training, DENSE, tmp_path / "weights")
    digest = initial_weights_sha256(given)
    path = tmp_path / "weights" / "weights.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="differs from the file that moejax wrote"):
        initial_weights_sha256(given)
    assert len(digest) == 64


def test_gates_that_do_not_sum_to_a_constant_are_said(training, dense):
    said = []
    start(with_weights(training, MIXTURE.replace(norm_topk_prob=False), dense[0]), said.append)
    assert "do not sum to a constant" in said[0]


@pytest.mark.parametrize(
    ("architecture", "sentence"),
    [
        (MIXTURE.replace(model_dim=32), "model_dim 16 .here 32."),
        (MIXTURE.replace(expert_hidden=12), "expert_hidden is 12, but the dense model's feed-forward is 16 wide"),
        (MIXTURE.replace(expert_hidden=8, top_k=3), "must be multiples of 2: an expert .8 wide. is 1/2"),
        (MIXTURE.replace(num_dense_layers=1, dense_hidden=32), "dense_hidden is 32, and the dense model's 16"),
        (MIXTURE.replace(activation="clamped_swiglu"), "activation is clamped_swiglu"),
        (DENSE.replace(num_layers=2), "num_layers 3 .here 2."),
    ],
)
def test_models_that_do_not_fit_together_are_refused(training, dense, architecture, sentence):
    with pytest.raises(ValueError, match=sentence):
        start(with_weights(training, architecture, dense[0]))


def test_a_folder_that_holds_no_weights_is_refused(training, tmp_path):
    with pytest.raises(ValueError, match="holds no weights; give a weights folder"):
        start(with_weights(training, MIXTURE, tmp_path))


def test_weights_that_do_not_do_are_refused_before_the_folder_is_taken(training, dense, tmp_path):
    """A corrected command would be another training's there."""
    recipe = dataclasses.replace(training.recipe, mesh=MeshShape(data=8))
    for architecture, source in ((DENSE, tmp_path / "typo"), (DENSE.replace(num_layers=2), dense[0])):
        wrong = with_weights(dataclasses.replace(training, recipe=recipe), architecture, source)
        with pytest.raises(ValueError, match=r"initial_weights.source .*(holds no weights|num_layers)"):
            train(wrong, tmp_path / "out")
        assert not (tmp_path / "out" / "training.json").exists()


def tokenizer_file(folder, letters, special):
    """A tokenizer of one token a letter, then special ones."""
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.add_special_tokens(special)
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def test_weights_of_another_tokenizer_are_refused_before_the_folder_is_taken(training, dense, tmp_path):
    def starting(text, weights):
        data = dataclasses.replace(training.recipe.data, tokenizer=str(text) if text else None)
        recipe = dataclasses.replace(training.recipe, data=data, mesh=MeshShape(data=8))
        return with_weights(dataclasses.replace(training, recipe=recipe), DENSE, weights)

    shutil.copytree(dense[0], tmp_path / "weights")
    tokenizer_file(tmp_path / "weights", "abcdef", ["</s>"])
    other = tokenizer_file(tmp_path / "other", "abdcef", ["</s>"])
    with pytest.raises(
        UserError, match=r"differ in 2 of 6 tokens, such as 2 \('c' in the weights, 'd' in the data\)\. Prepare"
    ):
        train(starting(other, tmp_path / "weights"), tmp_path / "out")
    with pytest.raises(
        UserError, match=r"differ in 6 of 6 tokens, such as 0 \('a' in the weights, '<0x00>' in the data\)"
    ):
        train(starting(None, tmp_path / "weights"), tmp_path / "out")
    assert not (tmp_path / "out" / "training.json").exists()
    # More tokens, and other names of special ones, are what people train further with; of tokens without text, or of
    # weights without a tokenizer, nothing is known.
    for tokenizer, weights in (
        (
            open_tokenizer(f"{tokenizer_file(tmp_path / 'renamed', 'abcdefg', ['<eos>', '<pad>'])}"),
            tmp_path / "weights",
        ),
        (open_tokenizer("ids:257:256"), tmp_path / "weights"),
        (None, tmp_path / "weights"),
        (open_tokenizer("bytes"), dense[0]),
    ):
        check_initial_weights(starting(None, weights), tokenizer)


@pytest.mark.slow
def test_the_tokenizer_of_a_training_is_that_of_its_checkpoints(training, tmp_path):
    recipe = dataclasses.replace(training.recipe, budgets_tokens=(1024,), mesh=MeshShape(data=8))
    train(dataclasses.replace(training, architecture=DENSE, recipe=recipe), tmp_path / "run")
    further = with_weights(training, DENSE, tmp_path / "run")
    check_initial_weights(further, open_tokenizer("bytes"))
    other = open_tokenizer(str(tokenizer_file(tmp_path / "other", "abc", ["</s>"])))
    with pytest.raises(UserError, match="and of the data differ in 3 of 3 tokens"):
        check_initial_weights(further, other)


@pytest.mark.slow
def test_a_training_that_begins_again_is_refused_other_weights_than_it_began_with(training, tmp_path):
    """With more budgets, its trunk may be taken from the beginning once more."""
    recipe = dataclasses.replace(training.recipe, budgets_tokens=(4096,), mesh=MeshShape(data=8), checkpoint_tokens=0)
    params = {seed: transformer.init(DENSE, jax.random.key(seed)) for seed in (3, 4)}
    save_weights(tmp_path / "weights", DENSE, params[3])
    first = with_weights(dataclasses.replace(training, recipe=recipe), DENSE, tmp_path / "weights")
    (row,) = train(first, tmp_path / "out")
    digest = read_json(tmp_path / "out" / "initial_weights.json", dict, remedy="")["sha256"]
    shutil.rmtree(tmp_path / "weights")
    save_weights(tmp_path / "weights", DENSE, params[4])
    longer = dataclasses.replace(first, recipe=dataclasses.replace(first.recipe, budgets_tokens=(1024, 4096)))
    with pytest.raises(ValueError, match=r"have changed since .* was started"):
        train(longer, tmp_path / "out", accept_changes=True)
    shutil.rmtree(tmp_path / "weights")
    save_weights(tmp_path / "weights", DENSE, params[3])
    rows = train(longer, tmp_path / "out", accept_changes=True)
    assert rows[1]["loss"] == row["loss"]
    assert len(digest) == 64


@pytest.mark.slow
def test_a_training_goes_on_from_another_trainings_weights(training, tmp_path):
    """Dense first; then a mixture from it, whose first loss is the dense model's, not a random one's."""
    recipe = dataclasses.replace(
        training.recipe, budgets_tokens=(4096,), mesh=MeshShape(data=8), log_every_steps=1, checkpoint_tokens=0
    )
    first = dataclasses.replace(training, architecture=DENSE.replace(num_layers=2), recipe=recipe)
    (row,) = train(first, tmp_path / "dense")
    mixture = with_weights(dataclasses.replace(first, recipe=recipe), MIXTURE.replace(num_layers=2), tmp_path / "dense")
    lines = []
    train(mixture, tmp_path / "mixture", progress=lambda step, values: lines.append(values))
    assert lines[0]["loss"] == pytest.approx(row["loss"], abs=0.3)
    assert lines[0]["loss"] < np.log(257) - 1
