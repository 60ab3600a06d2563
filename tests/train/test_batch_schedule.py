"""A batch that grows in stages: rows in the same order, the same rate over tokens, the same run when it is killed."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from interrupted import lasting, logged, on_one_device, train_killed_at_every_log

from moejax.data.batches import batches
from moejax.train.batch_schedule import BatchSchedule, RampStage
from moejax.train.loop import train
from moejax.train.training import phases

RAMP = (RampStage(tokens=512, batch_tokens=64), RampStage(tokens=1024, batch_tokens=128))


def with_ramp(training, *stages, exponent=0.0, **recipe):
    optimizer = dataclasses.replace(training.recipe.optimizer, batch_exponent=exponent)
    recipe = dataclasses.replace(training.recipe, batch_ramp=stages, optimizer=optimizer, **recipe)
    return dataclasses.replace(training, recipe=recipe)


@pytest.fixture
def ramped(training):
    """8 steps of 2 sequences, 4 of 4, then of 8."""
    return with_ramp(training, *RAMP)


@given(steps=st.lists(st.integers(1, 9), max_size=3), at=st.integers(0, 40))
def test_tokens_and_steps_are_each_others_inverse(steps, at):
    stages, tokens = [], 0
    for number, count in enumerate(steps):
        tokens += count * 32 * 2**number
        stages.append(RampStage(tokens=tokens, batch_tokens=32 * 2**number))
    found = BatchSchedule(tuple(stages), 256)
    assert found.steps(found.tokens(at)) == at
    assert found.tokens(at + 1) - found.tokens(at) == found.at(at).batch_tokens
    assert found.steps(found.tokens(at + 1) - 1) == at


def test_a_ramp_is_steps_of_each_batch_in_turn(ramped):
    found = ramped.recipe.batch_schedule
    assert [found.at(step).batch_tokens for step in range(14)] == [64] * 8 + [128] * 4 + [256] * 2
    assert [ramped.recipe.steps(budget) for budget in ramped.recipe.budgets_tokens] == [16, 24]


def test_a_growing_batch_reads_the_rows_that_a_constant_one_reads():
    class Counted:
        def __len__(self):
            return 100

        def __getitem__(self, index):
            return {"tokens": np.full(3, index, np.int32)}

    def rows(size, first_row, count):
        reader = batches([Counted()], [1.0], batch=size, seed=3, first_row=first_row)
        return [int(row) for _ in range(count) for row in next(reader)["tokens"][:, 0]]

    # Over the end of an epoch of 100 rows.
    assert rows(2, 0, 8) + rows(4, 16, 4) + rows(8, 32, 12) == rows(8, 0, 16)


def test_the_learning_rate_is_the_same_function_of_tokens(training, ramped):
    for plain, grown in zip(
        [phases(training)[0], *phases(training)[1]], [phases(ramped)[0], *phases(ramped)[1]], strict=True
    ):
        for step in range(training.recipe.steps(4096)):
            tokens = training.recipe.tokens(step + 1)
            if tokens == ramped.recipe.tokens(ramped.recipe.steps(tokens)):
                ours = grown.schedule.learning_rate(ramped.recipe.steps(tokens) - 1)
                assert float(ours) == pytest.approx(float(plain.schedule.learning_rate(step)), rel=1e-6)


def test_smaller_batches_take_smaller_steps_when_asked(training, ramped):
    rates = phases(with_ramp(training, *RAMP, exponent=0.5))[0].schedule.learning_rate
    unchanged = phases(ramped)[0].schedule.learning_rate
    for step, share in ((7, 1 / 4), (8, 1 / 2), (11, 1 / 2), (12, 1.0)):
        assert float(rates(step)) == pytest.approx(share**0.5 * float(unchanged(step)), rel=1e-6)


@pytest.mark.slow
def test_a_ramped_training_killed_at_every_log_ends_the_same(training, tmp_path):
    ramped = on_one_device(
        with_ramp(training, RampStage(tokens=1024, batch_tokens=256), batch_tokens=512, log_every_steps=1)
    )
    rows = train(ramped, tmp_path / "whole")
    log = logged(tmp_path / "whole")
    assert [row["tokens"] for row in rows] == [2048, 4096]
    assert [line["tokens"] for line in log if line["phase"] == "trunk"] == [*(256, 512, 768, 1024, 1536, 2048, 2560)]
    folder = tmp_path / "killed"
    assert lasting(train_killed_at_every_log(ramped, folder)) == lasting(rows)
    assert logged(folder) == log


@pytest.mark.parametrize(
    ("stages", "changes", "sentence"),
    [
        ([RampStage(tokens=500, batch_tokens=64)], {}, r"batch_ramp\[0\] ends at 500 tokens.*end it at 448"),
        ([RampStage(tokens=500, batch_tokens=50)], {}, r"batch_ramp\[0\].batch_tokens is 50; it must be a positive"),
        (
            [RampStage(tokens=512, batch_tokens=256)],
            {},
            "it must exceed 0 and be less than the final batch_tokens, 256",
        ),
        (
            [RAMP[1], RampStage(tokens=2048, batch_tokens=64)],
            {},
            "it must exceed 128 and be less than the final batch_tokens, 256",
        ),
        ([RAMP[0], RampStage(tokens=512, batch_tokens=128)], {}, r"batch_ramp\[1\] ends at 512 .* end it at 640"),
        ([RampStage(tokens=1088, batch_tokens=64)], {}, "The budget of 2,048 .* give 1,856 or 2,112"),
        ([*RAMP], {"microbatches": 4}, "microbatches is 4, but a batch has 2 sequences"),
    ],
)
def test_an_impossible_ramp_is_refused(training, stages, changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        with_ramp(training, *stages, **changes).check()
