"""Progress says how long a stage still takes, and the next stage starts its own reckoning."""

import re
import threading

from moejax.architecture import Architecture
from moejax.cli import progress
from moejax.data.config import DataConfig
from moejax.train.optimizer import OptimizerConfig
from moejax.train.training import Recipe, Training


def test_minutes_of_compilation_are_not_counted_in_what_is_left(monkeypatch, capsys):
    """A study of minutes had two days left."""
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    with progress.progress_display() as update:
        update(0.0, "compiling")
        now = 300.0
        update(0.02, "training")
        assert " left" not in capsys.readouterr().err
        now = 340.0
        update(0.06, "training")
    # A twenty-fifth takes 40 seconds.
    assert "about 15:40 left" in capsys.readouterr().err


def test_every_stage_of_a_fit_says_what_is_left_of_it(monkeypatch, capsys):
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    with progress.progress() as show:
        for stage in ("screening", "polishing"):
            for done in range(0, 101, 5):
                show(stage, done, 100)
                now += 10.0
    lines = capsys.readouterr().err.splitlines()
    assert len([line for line in lines if "polishing" in line and "left" in line]) > 5
    for line in lines:
        if left := re.search(r"about (\d+):(\d+) left", line):
            # Five hundredths take 10 seconds.
            assert 60 * int(left[1]) + int(left[2]) == 2 * (100 - int(line.split("%")[0]))


def test_a_line_of_a_training_names_its_budget_if_it_has_several(monkeypatch, capsys):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    shape = Architecture(
        vocab_size=257, model_dim=16, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8, dense_hidden=32
    )
    said = {}
    for budgets in ((8_192,), (4_096, 8_192)):
        recipe = Recipe(
            budgets_tokens=budgets,
            batch_tokens=1_024,
            data=DataConfig(sequence_length=64, validation_tokens=1_024),
            optimizer=OptimizerConfig(learning_rate=1e-2),
        )
        training = Training(name="small", architecture=shape, recipe=recipe)
        for phase in ("trunk", "branch-8192"):
            with progress.training_progress(training, quiet=False) as report:
                report(3, {"phase": phase, "loss": 3.0})
            said[len(budgets), phase] = capsys.readouterr().err.splitlines()[-1]
    assert "of 8, loss 3.000" in said[1, "trunk"]
    assert ", trunk of 2 budgets, loss 3.000" in said[2, "trunk"]
    assert ", budget 2 of 2, loss 3.000" in said[2, "branch-8192"]


def test_one_long_piece_of_work_says_at_once_and_again_that_it_goes_on(monkeypatch, capsys):
    """Without a terminal."""
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    again, plain = threading.Event(), progress.say

    def say(text):
        plain(text)
        if "elapsed" in text:
            again.set()

    monkeypatch.setattr(progress, "say", say)
    with progress.waiting("compiling small for v5p:8x8x16", every=0.01):
        assert again.wait(60)
    first, second, *_ = capsys.readouterr().err.splitlines()
    assert first == "compiling small for v5p:8x8x16"
    assert second.startswith("compiling small for v5p:8x8x16  (0:0")
