"""A folder of weights holds a model: what is saved is loaded, and a folder of another model is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_model import SMALL

from moejax.folder import WRITTEN
from moejax.stored import read_json, write_json
from moejax.weights.folder import (
    ARCHITECTURE,
    EXPERT_BIAS,
    WEIGHTS,
    flat,
    load_weights,
    nested,
    parameters,
    save_weights,
)
from moejax.weights.safetensors import Kind, TensorFile, TensorFileWriter

ARCHITECTURE_OF_ALL = SMALL.replace(
    vocab_size=7,
    model_dim=4,
    num_layers=3,
    head_dim=2,
    expert_hidden=3,
    num_dense_layers=1,
    dense_hidden=5,
    router="sigmoid_topk",
    expert_bias=True,
)


def some_params(architecture, dtype=np.float32):
    named = {name: parameter.shape for name, parameter in parameters(architecture).items() if name != EXPERT_BIAS}
    random = np.random.default_rng(0)
    return nested({name: jnp.asarray(random.normal(size=shape), dtype) for name, shape in named.items()})


@pytest.fixture
def saved(tmp_path):
    params = some_params(ARCHITECTURE_OF_ALL)
    bias = jnp.arange(8.0).reshape(2, 4)
    save_weights(tmp_path / "weights", ARCHITECTURE_OF_ALL, params, bias)
    return tmp_path / "weights", params, bias


def test_what_is_saved_is_loaded(saved):
    folder, params, bias = saved
    found = load_weights(folder)
    assert found.architecture == ARCHITECTURE_OF_ALL
    jax.tree.map(np.testing.assert_array_equal, found.params, params)
    np.testing.assert_array_equal(found.expert_bias, bias)


def test_weights_of_two_bytes_are_loaded_in_four(tmp_path):
    architecture = ARCHITECTURE_OF_ALL.replace(router="softmax_topk", expert_bias=False)
    params = some_params(architecture, jnp.bfloat16)
    save_weights(tmp_path / "weights", architecture, params)
    found = load_weights(tmp_path / "weights")
    assert found.expert_bias is None
    assert {leaf.dtype for leaf in jax.tree.leaves(found.params)} == {jnp.dtype(jnp.float32)}
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b.astype(jnp.float32)), found.params, params)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    assert size <= (tmp_path / "weights" / WEIGHTS).stat().st_size <= size + 4096


def test_flat_names_are_undone_by_nesting():
    tree = {"a": {"b": 1, "c": {"d": 2}}, "e": 3}
    assert nested(dict(flat(tree))) == tree
    assert parameters(ARCHITECTURE_OF_ALL)["moe_layers.feed_forward.gate_up"].axes == (
        "layers",
        "expert",
        "gate_up",
        "embed",
        "hidden",
    )


def test_a_folder_that_is_there_is_not_overwritten(saved):
    folder, params, bias = saved
    with pytest.raises(ValueError, match="already exists"):
        save_weights(folder, ARCHITECTURE_OF_ALL, params, bias)


def test_arrays_of_another_architecture_are_not_saved(tmp_path):
    params = some_params(ARCHITECTURE_OF_ALL)
    with pytest.raises(ValueError, match=r"expert_bias.* do not match the architecture"):
        save_weights(tmp_path / "weights", ARCHITECTURE_OF_ALL, params, None)
    assert not list(tmp_path.iterdir())


def test_an_empty_folder_is_no_folder_of_weights(tmp_path):
    with pytest.raises(ValueError, match=f"it has no {ARCHITECTURE}"):
        load_weights(tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_layers": 4}, "has the shape"),
        ({"qk_norm": True}, "lacks"),
        ({"expert_bias": False}, "has .*expert_bias"),
    ],
)
def test_a_file_of_another_architecture_is_refused_and_the_array_named(saved, change, said):
    folder, _, _ = saved
    settings = read_json(folder / ARCHITECTURE, dict, remedy="") | change
    write_json(folder / ARCHITECTURE, settings)
    with pytest.raises(ValueError, match=f"does not match architecture.json.*{said}"):
        load_weights(folder)


def test_an_architecture_that_is_no_json_is_refused(saved):
    (saved[0] / ARCHITECTURE).write_text("{")
    with pytest.raises(ValueError, match="cannot be read"):
        load_weights(saved[0])


def test_weights_that_are_whole_numbers_are_refused(saved):
    folder, _, _ = saved
    with TensorFile(folder / WEIGHTS) as file:
        kinds = {name: Kind(np.dtype(np.int32), kind.shape) for name, kind in file.kinds.items()}
    TensorFileWriter(folder / WEIGHTS, kinds).close()
    (folder / WRITTEN).unlink()
    with pytest.raises(ValueError, match="is int32, but weights must be float32"):
        load_weights(folder)


def test_a_flipped_byte_of_a_weight_is_refused(saved):
    file = saved[0] / WEIGHTS
    content = file.read_bytes()
    file.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
    with pytest.raises(ValueError, match="differs from the file that moejax wrote"):
        load_weights(saved[0])
