"""Loss curves are read where trackers keep them, each metric at steps of its own."""

import json

import mlflow_stores
import numpy as np
import pandas as pd
import pytest
from known_curves import curves, table

from moejax.curves.read_curves import read_curves

EVERY = table(curves(("constant", "cosine"), noise=5e-4, every=80))


def logged():
    """What a training logs of each curve: metric, step, value."""
    for name, own in EVERY.groupby("run", sort=False):
        for row in own.itertuples():
            yield name, "train/loss", row.step, row.loss
            yield name, "train/lr", row.step, row.lr
            yield name, "eval/loss", row.step + 1, row.loss + 0.05


def tensorboard(folder, metrics=logged):
    pytest.importorskip("tensorboard")
    writer = pytest.importorskip("tensorboardX").SummaryWriter
    # A second writer of a run in another second would open a second file.
    writers = {name: writer(str(folder / name)) for name in EVERY["run"].unique()}
    for name, metric, step, value in metrics():
        writers[name].add_scalar(metric, value, step)
    for writer in writers.values():
        writer.close()
    return folder


def mlflow(folder, metrics=logged):
    runs = {name: ({}, [], "FINISHED") for name in EVERY["run"].unique()}
    for name, metric, step, value in metrics():
        runs[name][1].append((metric, step, value))
    mlflow_stores.write(f"sqlite:///{folder}.db", runs)
    return folder.with_suffix(".db")


@pytest.mark.parametrize("tracker", [tensorboard, pytest.param(mlflow, marks=pytest.mark.parity)])
def test_curves_of_a_tracker_are_those_of_the_table(tracker, tmp_path):
    place = tracker(tmp_path / "store")
    expected = {curve.name: curve for curve in read_curves(EVERY).curves}
    found = read_curves(place)
    assert {curve.name for curve in found.curves} == set(expected)
    for curve in found.curves:
        np.testing.assert_array_equal(curve.steps, expected[curve.name].steps)
        np.testing.assert_allclose(curve.loss, expected[curve.name].loss, rtol=1e-6)
        np.testing.assert_allclose(curve.rates, expected[curve.name].rates, rtol=1e-5, atol=1e-9)


def test_a_metric_at_other_steps_than_the_rate_has_the_rate_between(tmp_path):
    place = tensorboard(tmp_path)
    read = read_curves(place, loss="eval/loss", only=["cosine"])
    (cosine,), (trained,) = read.curves, read_curves(place, only=["cosine"]).curves
    # Nothing says what the rate was after the last that was logged.
    assert any("after the last" in note and f"1 of {len(trained.steps)} losses" in note for note in read.notes)
    np.testing.assert_array_equal(cosine.steps, trained.steps[:-1] + 1)
    np.testing.assert_allclose(cosine.loss, trained.loss[:-1] + 0.05)
    np.testing.assert_allclose(cosine.rates, trained.rates[: len(cosine.rates)], rtol=0.01, atol=1e-6)


def test_a_rate_that_is_logged_rarely_jumps_where_it_is_flat_to_both_sides(tmp_path):
    def rarely():
        for name, metric, step, value in logged():
            if metric != "train/lr":
                yield name, metric, step, value
            elif (step - 280) % 800 == 0:
                yield name, metric, step, 1e-3 if step < 2000 else 1e-4

    (curve,) = read_curves(tensorboard(tmp_path, rarely), only=["constant"]).curves
    assert set(curve.rates.round(9)) == {1e-3, 1e-4}
    assert (np.diff(curve.rates) < 0).sum() == 1


@pytest.mark.parametrize(
    ("first", "last", "sentence"),
    [
        (0, 0, "0 steps with train/loss; a curve needs losses"),
        (0, 300, "1 point, but a curve needs at least"),
        (0, 3500, ""),
    ],
)
def test_losses_that_are_not_finite_are_counted(first, last, sentence, tmp_path):
    def partly():
        for name, metric, step, value in logged():
            bad = metric == "train/loss" and not first < step <= last
            yield name, metric, step, float("nan") if bad else value

    place = tensorboard(tmp_path, partly)
    if sentence:
        with pytest.raises(ValueError, match=sentence):
            read_curves(place, only=["cosine"])
    else:
        read = read_curves(place, only=["cosine"])
        assert any("steps without a finite loss" in note for note in read.notes)
        assert read.curves[0].steps.max() <= last


def test_what_a_run_wrote_before_it_went_on_from_an_earlier_step_is_no_part_of_it(tmp_path):
    pytest.importorskip("tensorboard")
    writer = pytest.importorskip("tensorboardX").SummaryWriter
    for attempt, (steps, worse) in enumerate([(range(100, 2100, 100), 2.0), (range(600, 900, 100), 0.0)]):
        log = writer(str(tmp_path / "tb/run"), filename_suffix=f".{attempt}")
        for step in steps:
            log.add_scalar("loss", 4 - step / 1000 + worse * (step >= 600), step)
            log.add_scalar("lr", 1e-3, step)
        log.close()
    read = read_curves(tmp_path / "tb")
    (curve,) = read.curves
    assert curve.steps.tolist() == [*range(100, 900, 100)]
    assert curve.loss == pytest.approx(4 - curve.steps / 1000, rel=1e-6)
    assert any("resumed from an earlier step; 30 earlier points" in note for note in read.notes)


def test_events_that_end_early_are_said(tmp_path):
    file = next((tensorboard(tmp_path / "tb") / "cosine").glob("events*"))
    # A cut in the middle of the file may fall between two records; the last three bytes are part of one.
    file.write_bytes(file.read_bytes()[:-3])
    notes = read_curves(tmp_path / "tb").notes
    assert any("run cosine: events are incomplete" in note for note in notes)


def test_two_runs_of_one_name_are_refused(tmp_path):
    doubled = pd.concat([EVERY, EVERY])
    with pytest.raises(ValueError, match="constant"):
        read_curves(doubled)


def test_losses_that_are_named_need_not_stand_in_every_row(tmp_path):
    seen = EVERY.assign(val_loss=EVERY["loss"].where(EVERY["step"] % 400 == 280) + 0.1)
    read = read_curves(seen, loss="val_loss")
    for curve in read.curves:
        own = EVERY[(EVERY["run"] == curve.name) & (EVERY["step"] % 400 == 280)]
        assert curve.steps.tolist() == own["step"].tolist()
        assert curve.loss == pytest.approx(own["loss"].to_numpy() + 0.1)
    (trained, *_) = read_curves(EVERY).curves
    np.testing.assert_allclose(read.curves[0].rates, trained.rates[: len(read.curves[0].rates)], atol=1e-9)


def test_which_of_several_columns_of_losses_is_read_is_said_and_rows_are_chosen():
    both = EVERY.assign(train_loss=EVERY["loss"] + 1, split="train")
    read = read_curves(pd.concat([both, both.assign(split="val")]), where=["split == 'train'"])
    assert any("the curve is read from loss. Choose another column with `loss`" in note for note in read.notes)
    assert {curve.name for curve in read.curves} == set(EVERY["run"])
    nested = [{"step": r.step, "run": r.run, "train": {"lr": r.lr, "loss": r.loss}} for r in EVERY.itertuples()]
    np.testing.assert_allclose(read_curves(pd.DataFrame(nested)).curves[0].loss, read.curves[0].loss)


def test_evaluations_in_rows_of_their_own_are_left_out_and_counted(tmp_path):
    own = EVERY[EVERY["run"] == "cosine"]
    lines = [json.dumps({"step": r.step, "learning_rate": r.lr, "loss": r.loss}) for r in own.itertuples()]
    lines[3:3] = ['{"step": 240, "eval_loss": 3.1}', '{"step": 320, "eval_loss": 3.0}']
    (tmp_path / "log.jsonl").write_text("\n".join(lines) + "\n")
    read = read_curves(tmp_path / "log.jsonl")
    assert any("left out 2 rows with neither a loss nor a learning rate" in note for note in read.notes)
    np.testing.assert_allclose(read.curves[0].loss, own["loss"])


def test_a_tracker_whose_curves_are_not_read_says_so():
    with pytest.raises(ValueError, match="For curves, export the history of the runs as CSV"):
        read_curves("wandb:entity/project")
