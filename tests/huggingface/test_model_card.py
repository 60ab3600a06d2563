"""The model card states what is known of a model, and nothing else."""

import json

import pytest
from checkpoints import random_params
from family_architectures import SMALL

from moejax.config import dump
from moejax.data.config import DataConfig
from moejax.huggingface import FAMILIES
from moejax.huggingface.conversion import to_huggingface
from moejax.huggingface.model_card import CARD, Trained, model_card
from moejax.huggingface.own_code import OWN_CODE
from moejax.model import transformer
from moejax.train.optimizer import OptimizerConfig
from moejax.train.training import Recipe, Training
from moejax.weights.folder import save_weights

RECIPE = Recipe(
    budgets_tokens=(8192,),
    batch_tokens=1024,
    data=DataConfig(source="/data/someone/web", tokenizer="/data/someone/bpe.json", sequence_length=64),
    optimizer=OptimizerConfig(learning_rate=2e-3, warmup_tokens=1024),
)
TRAINING = Training(name="small", architecture=SMALL["qwen3_moe"], recipe=RECIPE, seed=5)
ROW = {
    "loss": 3.25,
    "bits_per_byte": 1.5,
    "train_loss": 3.5,
    "validation_tokens": 4096,
    "corpus": "c0ffee",
    "unique_tokens": 123456,
    "fingerprint": TRAINING.fingerprint(),
    "num_devices": 8,
    "device": "a chip",
    "flops": 1e12,
    "versions": json.dumps({"moejax": "1.2.3", "jax": "4.5.6"}),
}
WHOLE = Trained(dump(TRAINING), 8, 8192, ROW, predicted="3.2000 nats/token by chinchilla")


def card(trained, family="qwen3_moe"):
    return model_card(SMALL["qwen3_moe"], FAMILIES.get(family, OWN_CODE), trained, name="x", origin=None)


def facts(text):
    rows = (line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| "))
    return dict(row for row in rows if len(row) == 2)


def test_a_card_has_architecture_data_loss_law_and_training():
    shown, counts = facts(card(WHOLE)), transformer.count(SMALL["qwen3_moe"])
    expected = {
        "total parameters": f"{counts.total:,}",
        "active parameters": f"{counts.active:,}",
        "layers": "3, 2 with experts",
        "routed experts": "4, 2 per token, of width 6",
        "training data": "`web`",
        "SHA-256 of the text": "c0ffee",
        "tokens read": "8,192",
        "tokenizer": "bpe.json",
        "validation": "3.2500 nats/token",
        "predicted by a law": "3.2000 nats/token by chinchilla",
        "optimizer": "adamw, weight decay 0.1",
        "peak learning rate": "0.002",
        "batch": "1,024 tokens",
        "precision": "float32",
        "devices": "8 × a chip",
        "seed": "5",
        "versions": "moejax 1.2.3, jax 4.5.6",
    }
    assert expected.items() <= shown.items()
    # Where the text was on a machine is not published.
    assert "someone" not in card(WHOLE)


def test_settings_that_changed_during_training_are_one_line():
    assert "changed during training" not in facts(card(WHOLE))
    changes = {"recipe.optimizer.learning_rate": [0.004, 0.003, 0.002], "recipe.microbatches": [1, 2]}
    assert facts(card(WHOLE._replace(changes=changes)))["changed during training"] == (
        "`recipe.optimizer.learning_rate` from 0.004 to 0.003 to 0.002; `recipe.microbatches` from 1 to 2"
    )


def test_a_checkpoint_before_the_end_of_a_budget_has_no_loss_and_no_row():
    text = card(WHOLE._replace(row={}, predicted=""))
    assert "## Loss" not in text
    assert not facts(text).keys() & {"devices", "FLOPs", "versions", "SHA-256 of the text"}
    assert "None" not in text


def test_the_loss_of_the_parameters_is_not_that_of_their_moving_average():
    shown = facts(card(WHOLE._replace(ema=True)))
    assert not shown.keys() & {"validation", "last training batches"}
    assert shown["weights"] == "moving average with decay 0.0"


@pytest.mark.parametrize(("family", "is_own"), [("qwen3_moe", False), ("moejax", True)])
def test_a_card_says_how_to_load_the_model(family, is_own):
    text = card(None, family)
    assert text.startswith("---\nlibrary_name: transformers\n")
    assert "license" not in text
    assert ("trust_remote_code=True" in text) == is_own
    assert ("Qwen3MoeForCausalLM" in text) != is_own


def test_weights_without_a_training_have_the_architecture_alone(tmp_path):
    save_weights(tmp_path / "ours", SMALL["mixtral"], random_params(SMALL["mixtral"]))
    to_huggingface(tmp_path / "ours", tmp_path / "theirs")
    text = (tmp_path / "theirs" / CARD).read_text(encoding="utf-8")
    assert "# ours\n" in text
    assert "## Architecture" in text
    assert not {"## Data", "## Loss", "## Training"} & set(text.splitlines())
