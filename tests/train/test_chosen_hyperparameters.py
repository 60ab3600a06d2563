"""Learning rate and batch from Tian's law, where a config says auto."""

import dataclasses
import math

import pytest
from command import write_config

from moejax.__main__ import main
from moejax.config import build, dump
from moejax.errors import UserError
from moejax.laws.budget.peak_rate import LAWS, counted, peak_rate
from moejax.laws.conventions import FLOPS
from moejax.laws.design import Design
from moejax.train import loop
from moejax.train.training import Training, choose_hyperparameters


def left_open(training, **changes):
    settings = dump(training)
    settings["recipe"]["batch_tokens"] = "auto"
    settings["recipe"]["optimizer"]["learning_rate"] = "auto"
    settings["recipe"] |= changes
    return build(Training, settings)


def test_what_is_open_follows_from_the_compute_of_the_longest_budget(training):
    opened = left_open(training, budgets_tokens=[10**9, 10**10])
    chosen = choose_hyperparameters(opened)
    flops = 1e10 * FLOPS["tian"].per_token(training.architecture, 32)
    # Tian et al. 2025, Eq. 5.
    assert chosen.training.recipe.optimizer.learning_rate == pytest.approx(1.1576 * flops**-0.1529, rel=5e-3)
    sequences = chosen.training.recipe.batch_tokens / 32
    # A power of two, which every usual mesh divides.
    assert sequences == 2 ** round(math.log2(0.0694 * flops**0.3644 / 32))
    assert "extrapolation" in chosen.derivation[-1]
    assert any(f"batch_tokens = {chosen.training.recipe.batch_tokens:,}" in line for line in chosen.derivation)


@pytest.mark.parametrize(("times", "is_told"), [(1, False), (16, True), (1 / 16, True)])
def test_a_rate_for_another_batch_than_the_given_one_is_told(training, times, is_told):
    batch = choose_hyperparameters(left_open(training, budgets_tokens=[10**10])).training.recipe.batch_tokens
    settings = dump(training)
    settings["recipe"]["optimizer"]["learning_rate"] = "auto"
    settings["recipe"] |= {"budgets_tokens": [10**10], "batch_tokens": int(batch * times)}
    lines = choose_hyperparameters(build(Training, settings)).derivation
    assert any("sweep the learning rate" in line for line in lines) == is_told


def test_what_is_given_stays(training):
    assert choose_hyperparameters(training).training == training
    assert choose_hyperparameters(training).derivation == ()
    half = dataclasses.replace(training, recipe=dataclasses.replace(training.recipe, batch_tokens=0))
    chosen = choose_hyperparameters(half).training.recipe
    assert chosen.optimizer == training.recipe.optimizer
    assert chosen.batch_tokens > 0


def test_an_unknown_law_is_refused(training):
    with pytest.raises(ValueError, match="known"):
        choose_hyperparameters(left_open(training, hyperparameters="mine"))


def test_auto_is_only_for_settings_that_a_law_can_choose(training):
    settings = dump(training)
    settings["recipe"]["log_every_steps"] = "auto"
    with pytest.raises(ValueError, match="log_every_steps is 'auto'; it must be a whole number"):
        build(Training, settings)


def test_the_command_line_prints_the_derivation_of_an_accepted_training_only(capsys, tmp_path, monkeypatch):
    def enough(trainer):
        raise UserError("enough")

    monkeypatch.setattr(loop.Trainer, "train", enough)
    words = ["train", f"--config={write_config(tmp_path)}", "--config.recipe.optimizer.learning_rate=auto"]
    words += ["--config.architecture.vocab_size=300", "--out", str(tmp_path / "out")]
    for refused in ("recipe.data.source=nowhere", "recipe.mesh.data=3", "architecture.num_heads=0"):
        assert main([*words, f"--config.{refused}"]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert main(words) == 2
    printed = capsys.readouterr().err
    assert "tian-2025 (Tian et al. 2025, Eq. 5) for 8,192 tokens" in printed
    assert "FLOPs without vocabulary:\n  optimizer.learning_rate = " in printed
    assert printed.count("the tokenizer of the text has 257 tokens, so 43 embeddings are never used.") == 1


def test_a_rate_comes_with_the_range_of_all_published_laws(training):
    opened = left_open(training, budgets_tokens=[10**10], hyperparameters="step-law-2025")
    chosen = choose_hyperparameters(opened)
    design = counted(training.architecture, 10**10, 32)
    rate = peak_rate(design, "step-law-2025")
    assert chosen.training.recipe.optimizer.learning_rate == rate.value
    assert rate.value == pytest.approx(1.79 * design.params_total_nonembedding**-0.713 * 1e10**0.307, rel=5e-3)
    assert f"{min(rate.laws.values()):.3g} to {max(rate.laws.values()):.3g}" in rate.sentence
    assert {*rate.laws} == {*LAWS}
    assert f"  {rate.spread}" in chosen.derivation


def test_laws_whose_inputs_are_unknown_are_left_out_of_the_range():
    assert "step-law-2025" not in peak_rate(Design(flops=1e20)).laws
    assert peak_rate(Design(params_active=1e9)) is None
    own = peak_rate(Design(flops=1e20), "fit.json", own=3e-4)
    assert own.sentence.startswith("Peak learning rate 0.0003 by fit.json (your fit). Published laws give ")
