"""A fingerprint tells models apart, and nothing else."""

import jax
import pytest

from moejax.architecture import Architecture
from moejax.evaluation.load_model import fingerprint
from moejax.huggingface.conversion import from_huggingface, to_huggingface
from moejax.model import transformer
from moejax.weights.folder import Weights, load_weights, save_weights

SMALL = Architecture(
    vocab_size=11,
    model_dim=8,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=4,
    num_experts=4,
    top_k=2,
    expert_hidden=6,
    tied_embeddings=False,
    norm_epsilon=1e-5,
)


WAYS_TO_WRITE = {
    "a router with noise in training": SMALL.replace(router="topk_softmax"),
    "two shared experts": SMALL.replace(
        num_shared_experts=2, shared_hidden=3, shared_expert_gate=True, attention_bias=True
    ),
    "a pattern of layers": SMALL.replace(
        num_layers=4,
        layer_pattern="EDED",
        dense_hidden=5,
        num_shared_experts=1,
        shared_expert_gate=True,
        attention_bias=True,
    ),
    "no expert bias": SMALL.replace(
        router="sigmoid_topk",
        kv_latent_dim=4,
        num_kv_heads=2,
        rope_head_dim=4,
        num_shared_experts=1,
        norm_epsilon=1e-6,
    ),
}


@pytest.mark.parametrize("name", WAYS_TO_WRITE)
def test_it_survives_another_way_to_write_the_same_function(name, tmp_path):
    architecture = WAYS_TO_WRITE[name]
    params = transformer.init(architecture, jax.random.key(0))
    save_weights(tmp_path / "ours", architecture, params)
    to_huggingface(tmp_path / "ours", tmp_path / "theirs")
    from_huggingface(tmp_path / "theirs", tmp_path / "back")
    back = load_weights(tmp_path / "back")
    assert back.architecture != architecture
    assert fingerprint(back) == fingerprint(load_weights(tmp_path / "ours"))


def test_it_survives_a_folder_of_weights_and_hugging_face_and_changes_with_one_number(tmp_path):
    params = transformer.init(SMALL, jax.random.key(0))
    first = fingerprint(Weights(SMALL, params, None))
    save_weights(tmp_path / "ours", SMALL, params)
    to_huggingface(tmp_path / "ours", tmp_path / "theirs")
    from_huggingface(tmp_path / "theirs", tmp_path / "back")
    assert first == fingerprint(load_weights(tmp_path / "ours")) == fingerprint(load_weights(tmp_path / "back"))
    changed = params | {"embedding": params["embedding"].at[3, 4].add(1e-6)}
    assert fingerprint(Weights(SMALL, changed, None)) != first
    assert fingerprint(Weights(SMALL.replace(rope_theta=1e5), params, None)) != first
