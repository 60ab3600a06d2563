"""Laws of whole loss curves: read, fitted, asked, saved; what no curve determines is said."""

import dataclasses
import json
import uuid

import numpy as np
import pandas as pd
import pytest
from known_curves import PEAK, STEPS, TRUTH, WARMUP, curve, curves, rates, table

import moejax as mj
from moejax.curves.loss_curves import (
    curve_law,
    fit_curves,
    held_out_curve,
    knows_drops,
    predict_curve,
    reach_beyond,
)
from moejax.curves.read_curves import BLOCKS, Curves, constant_only, read_curves, runs_of
from moejax.errors import UserError
from moejax.fit.fit_result import FitResult
from moejax.fit.search.fit_law import EVERY_START, fit_law
from moejax.fit.search.starts import WarmStart
from moejax.fit.uncertainty.covariance import with_uncertainty
from moejax.laws.curves.multi_power import MultiPower
from moejax.laws.law import coefficients
from moejax.storage import open_storage


@pytest.fixture(scope="module")
def exact():
    return fit_curves(curves())


@pytest.fixture(scope="module")
def noisy():
    return fit_curves(curves(noise=1e-3, along=0.5))


def test_a_law_is_found_again_from_three_of_its_curves(exact):
    assert exact.converged
    assert exact.metrics.max_relative_error < 1e-5
    for name, value in coefficients(TRUTH).items():
        assert exact.coefficients[name] == pytest.approx(value, rel=0.02), name


def test_curves_of_other_schedules_are_predicted(exact):
    for kind in ("wsd", "late_drop"):
        found = held_out_curve(exact, curve(kind))
        assert found.worst < 1e-4
        assert found.points == len(curve(kind).steps)
    longer = held_out_curve(exact, curve("cosine", steps=3 * STEPS, every=120))
    assert longer.worst < 1e-3
    assert (longer.beyond, longer.beyond_in) == (pytest.approx(3.0, rel=0.05), "updates")


@pytest.mark.parametrize(("steps", "peak"), [(STEPS // 8, 8.0), (4 * STEPS, 0.25), (2 * STEPS, 1.0), (STEPS, 1.0)])
def test_a_schedule_lies_as_far_beyond_as_the_farthest_of_its_sum_peak_and_length(steps, peak, exact):
    own = peak * rates("constant", steps)
    beyond, beyond_in = reach_beyond(exact, own)
    reached = {
        "rate_sum": own.sum() / rates("constant").sum(),
        "peak_rate": own.max() / PEAK,
        "updates": max(steps / STEPS, 1.0),
    }
    assert beyond == pytest.approx(reached[beyond_in] if beyond_in else 1.0)
    assert max(beyond, 1 / beyond) == pytest.approx(max(1 / peak, *reached.values()))


def test_a_draw_is_never_a_point_whatever_number_of_stretches_is_asked_for():
    read = curves(every=200)
    runs = runs_of(read, blocks=10_000)
    assert (np.bincount(runs.group) >= 2).all()
    with pytest.raises(UserError, match="a block needs two points"):
        fit_curves(read, blocks=10_000)


def test_the_loss_of_a_branch_is_predicted_from_its_trunk_with_a_range(noisy):
    trunk, branch = curve("constant"), curve("wsd")
    whole = np.concatenate([trunk.rates[: int(0.8 * STEPS)], branch.rates[int(0.8 * STEPS) :]])
    found = predict_curve(noisy, whole, np.array([len(whole)])).iloc[-1]
    assert found["low"] < branch.loss[-1] < found["high"]
    assert found["loss"] < trunk.loss[-1] - 0.02
    assert found["high"] - found["low"] < 0.05


def test_a_fit_is_reloaded_from_its_file_and_predicts_the_same(noisy, tmp_path):
    again = FitResult.load(noisy.save(tmp_path / "fit.json"))
    steps = np.array([1000, STEPS])
    one, other = (predict_curve(fit, rates("wsd"), steps) for fit in (noisy, again))
    pd.testing.assert_frame_equal(one, other)


def test_without_a_falling_rate_no_annealed_loss_has_a_range_and_a_constant_one_has():
    trunk = curves(("constant",), noise=1e-3)
    found = fit_curves(trunk)
    assert "not determined" in constant_only(trunk)
    assert not knows_drops(found)
    annealed = predict_curve(found, rates("wsd"), np.array([STEPS])).iloc[0]
    assert "do not determine the effect" in annealed["reason"]
    assert np.isnan(annealed["low"])
    constant = predict_curve(found, rates("constant", 2 * STEPS), np.array([2 * STEPS])).iloc[0]
    truth = curve("constant", steps=2 * STEPS).loss[-1]
    assert not constant["reason"]
    assert constant["low"] < truth < constant["high"]


def test_stretches_of_a_curve_are_draws_and_many_points_are_few():
    read = curves(every=2)
    runs = runs_of(read, most_points=128)
    assert len(np.unique(runs.group)) == 3 * BLOCKS
    assert len(runs) == 3 * 128
    for name in read.names:
        own = runs.group[np.array(runs.models) == name]
        assert (np.diff(own) >= 0).all()
    assert len(np.unique(runs_of(read, blocks=1).group)) == 3


def test_noise_that_is_alike_at_neighbors_widens_the_intervals():
    read = curves(noise=1e-3, along=0.9, seed=1, every=20)
    found = fit_curves(read, TRUTH, starts=WarmStart((TRUTH,)), search=EVERY_START)
    runs = runs_of(read)
    points = dataclasses.replace(runs, group=np.arange(len(runs)))
    by_blocks, by_points = (with_uncertainty(found, own) for own in (runs, points))
    assert (by_blocks.conf_int()["std_err"] > 2 * by_points.conf_int()["std_err"]).all()


def test_a_table_with_a_column_of_runs_gives_the_curves_it_was_made_of():
    made = curves()
    read = mj.read_curves(table(made), warmup=WARMUP)
    assert read.names == made.names
    for one, other in zip(read.curves, made.curves, strict=True):
        np.testing.assert_array_equal(one.steps, other.steps)
        # A jump between two logged steps is put at the later of them.
        off = np.abs(one.rates - other.rates) > 1e-2 * PEAK
        assert off.sum() <= 40


def test_files_folders_and_logs_of_trainings_are_read_alike(tmp_path):
    made = curves()
    for one in made.curves:
        table(Curves(curves=(one,))).drop(columns="run").to_csv(tmp_path / f"{one.name}.csv", index=False)
    read = read_curves([tmp_path / f"{name}.csv" for name in made.names], warmup=WARMUP, only=["co*"])
    assert read.names == ("constant", "cosine")
    folder = tmp_path / "study" / "models" / "small"
    folder.mkdir(parents=True)
    lines = []
    trunk, branch = made.curves[0], curve("wsd")
    for phase, one in (("trunk", trunk), ("branch-9", branch)):
        for step, loss in zip(one.steps, one.loss, strict=True):
            if phase == "trunk" or step > 0.8 * STEPS:
                line = {"phase": phase, "step": int(step), "tokens": int(step) * 64, "steps_done": int(step)}
                lines.append({**line, "seconds": 1.0, "learning_rate": one.rates[step - 1], "loss": float(loss)})
    # Of one step of the trunk no loss is known, as its update was skipped.
    lines[5]["loss"] = "nan"
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    read = read_curves(tmp_path / "study", warmup=WARMUP)
    assert read.curves[0].steps.tolist() == [step for step in trunk.steps if step != trunk.steps[5]]
    assert any("small/metrics.jsonl, trunk: left out 1 step without a finite loss" in note for note in read.notes)
    assert read.names == ("small/trunk", "small/branch-9")
    anneal = read.curves[1]
    assert anneal.steps.min() > 0.8 * STEPS
    assert anneal.tokens_per_step == 64
    np.testing.assert_allclose(anneal.rates, branch.rates, atol=0.06 * PEAK)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.drop(columns="lr"), "no column of learning rates"),
        (lambda t: t.drop(columns="step"), r"no column for steps \(step, or tokens\)"),
        (lambda t: t.drop(columns="run"), "step 240 in row 96 comes after 4000, .* name them in a column run"),
        (
            lambda t: t.assign(loss=t["loss"].where(t.index != 7)),
            "run constant: loss is empty in row 8, not a loss above 0",
        ),
        (lambda t: t.assign(loss=t["loss"].where(t.index != 7, -1.0)), "loss is -1 in row 8"),
        (lambda t: t.assign(loss=t["loss"].astype(str).where(t.index != 7, "oops")), "loss is 'oops' in row 8"),
        (
            lambda t: t.assign(loss=t["loss"].where(t.index != 7, 1e59)),
            r"loss is 1e\+59 in row 8, not a loss above 0 and at most 1e\+06 \(1 such row\)",
        ),
        (lambda t: t.assign(lr=t["lr"].where(t.index != 7, -1.0)), "lr is -1 in row 8, not a learning rate"),
        (lambda t: t.assign(run=t["run"].where(t["run"] != "drop")), "run is empty in row 191 .95 such rows."),
        (lambda t: t.assign(lr=0.0), "every learning rate is 0"),
        (lambda t: t.assign(lr=1e200), r"run constant: lr is 1e\+200 in row 1, not a learning rate from 0 to 1e\+06"),
        (lambda t: t.assign(step=t["step"] + 0.5), "steps are whole numbers"),
        (lambda t: t[t["step"] < 300], "a curve needs at least 3"),
    ],
)
def test_what_is_wrong_with_a_table_is_said_with_its_place(change, said):
    with pytest.raises(ValueError, match=said):
        read_curves(change(table(curves())))


@pytest.mark.parametrize("cut", [0.0, 0.5])
def test_a_curve_that_ends_above_where_it_began_is_refused_by_its_name(cut):
    falls, rises = curve("constant", noise=1e-3), curve("wsd")
    loss = np.where(rises.steps < cut * STEPS, rises.loss, 9.0 + rises.steps / STEPS)
    diverged = dataclasses.replace(rises, loss=loss)
    with pytest.raises(ValueError, match=r"The loss of wsd rises: it is .* leave the curve out, or cut it"):
        fit_curves(Curves(curves=(falls, diverged)))


def test_a_column_that_is_not_finite_is_named_by_its_first_such_number():
    runs = runs_of(curves())
    runs.design.columns["drop_sum"][7, 3] = np.inf
    with pytest.raises(ValueError, match=r"^drop_sum is inf in constant at step \d+, and not finite in 1 run in all"):
        fit_law(MultiPower, runs)


def test_curves_in_an_object_store_are_read_as_in_a_folder(tmp_path):
    url, made = f"memory://{uuid.uuid4().hex}/here", curves(("constant", "cosine"))
    store = open_storage(url)
    for one in made.curves:
        text = table(Curves(curves=(one,))).drop(columns="run").to_csv(index=False)
        assert text is not None
        store.pipe_file(f"{one.name}.csv", text.encode())
        (tmp_path / f"{one.name}.csv").write_text(text)
    lines = table(made).query("run == 'cosine'").drop(columns="run").to_json(orient="records", lines=True)
    assert lines is not None
    store.pipe_file("models/small/metrics.jsonl", lines.encode())
    names = [f"{one.name}.csv" for one in made.curves]
    stored, local = (read_curves([f"{at}/{n}" for n in names], warmup=WARMUP) for at in (url, tmp_path))
    for one, other in zip(stored.curves, local.curves, strict=True):
        assert one.name == other.name
        np.testing.assert_array_equal(one.loss, other.loss)
    assert read_curves(url, warmup=WARMUP).names == ("small",)
    store.pipe_file("other.csv", b"step,lr\n1,2\n")
    with pytest.raises(ValueError, match=rf"^{url}/other\.csv has no column for losses"):
        read_curves(f"{url}/other.csv")
    with pytest.raises(ValueError, match=rf"^{url}/empty contains no metrics\.jsonl"):
        read_curves(f"{url}/empty")


def test_a_missing_warm_up_is_said_and_asked_for():
    (note, *_) = read_curves(table(curves(("cosine",))).query("step > 400")).notes
    assert "logs no rate before step 440" in note
    assert "`warmup`" in note
    assert not read_curves(table(curves(("cosine",))), warmup=WARMUP).notes


def test_a_warm_up_that_is_longer_than_what_is_not_logged_ends_at_the_first_logged_rate():
    rising = pd.DataFrame({"step": [100, 200, 300, 400], "lr": [0.25, 0.5, 0.75, 1.0], "loss": [4.0, 3.0, 2.5, 2.3]})
    (read,) = read_curves(rising, warmup=400).curves
    np.testing.assert_allclose(read.rates, np.arange(1, 401) / 400)
    (note,) = read_curves(rising.assign(lr=1.0), warmup=400).notes
    assert "no longer rises at step 100, within the 400 steps of `warmup`" in note


def test_curves_of_tokens_alone_are_as_long_as_each_other_or_need_their_steps():
    both = table(curves(("constant", "cosine"))).eval("tokens = step * 64.0").drop(columns="step")
    assert all(one.is_cut for one in read_curves(both).curves)
    shorter = both[(both["run"] != "cosine") | (both["tokens"] < 150_000)]
    with pytest.raises(ValueError, match=r"needs steps of one size\. Add .* mapping=\{\"step\": \"tokens/BATCH\"\}"):
        read_curves(shorter)
    assert [one.is_cut for one in read_curves(shorter, mapping={"step": "tokens/64"}).curves] == [False, False]


def test_a_curve_is_chosen_by_its_own_name_whatever_stands_in_it():
    read = read_curves(table(curves()).replace({"run": {"drop": "[x]"}}))
    assert read.matching(["[x]"]) == ("[x]",)


def test_names_that_are_none_are_answered_with_the_nearest():
    with pytest.raises(ValueError, match="There is no loss-curve law"):
        curve_law("multi-powers")
    with pytest.raises(ValueError, match="No curve is called 'cosin'"):
        curves().matching(["cosin"])
    assert curve_law("luo") is curve_law("multi_power")
    with pytest.raises(ValueError, match=r"'multi_power' is a law of loss curves .* moejax curves"):
        mj.fit("runs.csv", "multi_power")


def test_the_share_in_range_is_unknown_where_there_is_no_range():
    (trunk,) = curves(("constant",), noise=1e-3).curves
    found = fit_curves(Curves(curves=(trunk,)), TRUTH, starts=WarmStart((TRUTH,)), search=EVERY_START)
    assert np.isnan(held_out_curve(found, curve("wsd")).inside)
    assert held_out_curve(found, trunk).inside > 0.8
