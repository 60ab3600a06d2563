"""A model is opened from wherever it lies, with the tokenizer it was made with; a fingerprint tells models apart."""

import json

import jax
import pytest
import small_model

from moejax.data.tokenizer import JsonTokenizer
from moejax.data.train_tokenizer import train_tokenizer
from moejax.evaluation.load_model import fingerprint, load_model
from moejax.huggingface.conversion import from_huggingface, to_huggingface
from moejax.model import transformer
from moejax.train.directory.saved_weights import find_saved_state, write_saved_weights
from moejax.train.loop import train
from moejax.train.optimizer import OptimizerConfig
from moejax.train.training import DataConfig, Recipe, Training
from moejax.weights.folder import Weights, load_weights, save_weights

SMALL = small_model.SMALL.replace(vocab_size=300, tied_embeddings=False, norm_epsilon=1e-5)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """Of 300 tokens, beside a folder with the text it was learnt from."""
    folder = tmp_path_factory.mktemp("tokenizer") / "texts"
    folder.mkdir()
    for i in range(20):
        (folder / f"{i}.txt").write_text("".join(f"{i} times {j} is {i * j}. " for j in range(40)))
    train_tokenizer(str(folder), folder.parent / "tokenizer.json", vocab_size=300)
    return folder.parent / "tokenizer.json"


def training(tokenizer, name):
    return Training(
        name="small",
        architecture=SMALL,
        recipe=Recipe(
            budgets_tokens=(512,),
            batch_tokens=256,
            data=DataConfig(
                source=str(tokenizer.parent / "texts"),
                tokenizer=name,
                sequence_length=32,
                validation_share=0.3,
                validation_tokens=256,
            ),
            optimizer=OptimizerConfig(learning_rate=1e-2, warmup_tokens=256),
        ),
    )


@pytest.mark.slow
def test_a_training_its_weights_and_its_export_are_one_model_with_one_tokenizer(tokenizer, tmp_path):
    from moejax.__main__ import main

    train(training(tokenizer, f"{tokenizer}#<|endoftext|>"), tmp_path / "run")
    assert main(["convert", "--to", "weights", str(tmp_path / "run"), "--out", str(tmp_path / "weights")]) == 0
    assert main(["convert", "--to", "hf", str(tmp_path / "run"), "--out", str(tmp_path / "hf")]) == 0
    found = [load_model(tmp_path / name) for name in ("run", "weights", "hf")]
    assert len({fingerprint(model.weights) for model in found}) == 1
    # Trained on text after the end of a document, whatever the tokenizer's own template.
    own = JsonTokenizer(tokenizer)
    assert {model.tokenizer.sha256 for model in found} == {own.as_in_training().sha256}
    assert {(model.tokenizer.opening, model.first_token) for model in found} == {
        ((own.end_of_document,), own.end_of_document)
    }
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert [config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")] == [own.end_of_document] * 2 + [
        None
    ]
    assert [model.sequence_length for model in found] == [32, None, 32]
    assert [model.origin["kind"] for model in found] == ["training", "weights", "huggingface"]
    assert (found[0].origin["phase"], found[0].origin["tokens"]) == ("branch-512", 512)


@pytest.mark.slow
def test_a_training_on_bytes_has_bytes_and_weights_without_a_tokenizer_have_none(tokenizer, tmp_path, monkeypatch):
    # A tokenizer in the working folder is nobody's.
    monkeypatch.chdir(tokenizer.parent)
    train(training(tokenizer, None), tmp_path / "run")
    assert load_model(tmp_path / "run").tokenizer.name == "bytes"
    write_saved_weights(find_saved_state(tmp_path / "run"), tmp_path / "of the run")
    to_huggingface(tmp_path / "of the run", tmp_path / "hf")
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["eos_token_id"] == 256
    save_weights(tmp_path / "weights", SMALL, transformer.init(SMALL, jax.random.key(0)))
    assert load_model(tmp_path / "weights").tokenizer is None
    assert load_model(tmp_path / "weights", "bytes").tokenizer.name == "bytes"


def test_what_begins_and_ends_texts_is_what_the_tokenizers_configuration_says(tokenizer, tmp_path):
    save_weights(tmp_path / "ours", SMALL, transformer.init(SMALL, jax.random.key(0)))
    to_huggingface(tmp_path / "ours", tmp_path / "theirs")
    (tmp_path / "theirs" / "tokenizer.json").write_text(tokenizer.read_text())
    described = {"bos_token": {"content": "0"}, "eos_token": "1", "chat_template": ""}
    (tmp_path / "theirs" / "tokenizer_config.json").write_text(json.dumps(described))
    found = load_model(tmp_path / "theirs")
    number = JsonTokenizer(tokenizer).number
    assert (found.first_token, found.tokenizer.end_of_document) == (number("0"), number("1"))


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(ValueError, match="a config"):
        load_model(tmp_path)


TINY = SMALL.replace(vocab_size=11, model_dim=8, head_dim=4, expert_hidden=6)
WAYS_TO_WRITE = {
    "a router with noise in training": TINY.replace(router="topk_softmax"),
    "two shared experts": TINY.replace(
        num_shared_experts=2, shared_hidden=3, shared_expert_gate=True, attention_bias=True
    ),
    "a pattern of layers": TINY.replace(
        num_layers=4,
        layer_pattern="EDED",
        dense_hidden=5,
        num_shared_experts=1,
        shared_expert_gate=True,
        attention_bias=True,
    ),
    "no expert bias": TINY.replace(
        router="sigmoid_topk",
        kv_latent_dim=4,
        num_kv_heads=2,
        rope_head_dim=4,
        num_shared_experts=1,
        norm_epsilon=1e-6,
    ),
}


@pytest.mark.parametrize("name", WAYS_TO_WRITE)
def test_a_fingerprint_survives_another_way_to_write_the_same_function(name, tmp_path):
    architecture = WAYS_TO_WRITE[name]
    params = transformer.init(architecture, jax.random.key(0))
    save_weights(tmp_path / "ours", architecture, params)
    to_huggingface(tmp_path / "ours", tmp_path / "theirs")
    from_huggingface(tmp_path / "theirs", tmp_path / "back")
    back = load_weights(tmp_path / "back")
    assert back.architecture != architecture
    assert fingerprint(back) == fingerprint(load_weights(tmp_path / "ours"))


def test_a_fingerprint_survives_a_folder_of_weights_and_hugging_face_and_changes_with_one_number(tmp_path):
    params = transformer.init(TINY, jax.random.key(0))
    first = fingerprint(Weights(TINY, params, None))
    save_weights(tmp_path / "ours", TINY, params)
    to_huggingface(tmp_path / "ours", tmp_path / "theirs")
    from_huggingface(tmp_path / "theirs", tmp_path / "back")
    assert first == fingerprint(load_weights(tmp_path / "ours")) == fingerprint(load_weights(tmp_path / "back"))
    changed = params | {"embedding": params["embedding"].at[3, 4].add(1e-6)}
    assert fingerprint(Weights(TINY, changed, None)) != first
    assert fingerprint(Weights(TINY.replace(rope_theta=1e5), params, None)) != first
