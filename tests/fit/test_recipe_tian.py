"""Tian's procedure finds the leverage that was put into the runs."""

import dataclasses
import json
from typing import Any

import jax
import numpy as np
import pandas as pd
import pytest

from moejax.__main__ import main
from moejax.config import dump
from moejax.fit.fit_result import FitResult
from moejax.fit.runs import budgets, runs_from
from moejax.fit.search.fit_law import fit_law
from moejax.fit.search.starts import Sobol
from moejax.float64 import float64
from moejax.laws import PUBLISHED
from moejax.laws.catalogue import find
from moejax.laws.conventions import FLOPS
from moejax.laws.dense.loss_compute import LossCompute
from moejax.laws.design import Design
from moejax.laws.law import coefficients
from moejax.laws.mixtures.leverage import Leverage, optimal_granularity
from moejax.papers.tian.leverage_laws import TRAINED_BELOW, JointLaw, Residuals, functional_forms, joint_law
from moejax.papers.tian.leverages import leverages
from moejax.papers.tian.power_laws import allocation_law, hyperparameter_law
from moejax.papers.tian.recipe import tian
from moejax.papers.tian.runs import tian_runs
from moejax.report import render
from moejax.report.conclusions import BRIEF_RECIPE
from moejax.report.stored_structure import flops_by, with_structure

TRUTH = PUBLISHED["leverage"]["tian-2025"].law
DENSE = LossCompute(scale=60.0, exponent=-0.08, irreducible=1.2)
HYPERPARAMETERS = PUBLISHED["hyperparameters"]["tian-2025-tables"].law
ALLOCATION = PUBLISHED["allocation"]["tian-2025-moe"].law


def ladder(experts, granularities, budgets, noise=0.0, seed=0, leverage=None):
    """Dense and mixture runs whose losses are the dense curve's at leverage times their compute."""
    shapes = [(0, 0, 2.0), *((e, g, float(g)) for e in experts for g in granularities)]
    rows = [(e * g, g if e else 0, g_, c) for (e, g, g_) in shapes for c in budgets]
    experts_, active, granularity, flops = np.array(rows, float).T
    design = Design(
        num_experts=experts_,
        top_k=active,
        num_shared_experts=np.zeros(len(rows)),
        model_dim=np.full(len(rows), 1024.0),
        expert_hidden=2048.0 / granularity,
        flops=flops,
    )
    with float64():
        gained = np.asarray(jax.vmap(TRUTH)(design)["efficiency_leverage"], float)
        gained = np.where(active > 0, gained if leverage is None else leverage, 1.0)
        loss = np.asarray(DENSE(Design(flops=flops * gained)), float)
    return runs_from(design, loss * np.exp(noise * np.random.default_rng(seed).normal(size=len(rows))))


BUDGETS = np.geomspace(3e18, 3e20, 5)


@pytest.fixture(scope="module")
def runs():
    return ladder((4, 16, 64, 256), (2, 4, 8, 16), BUDGETS, noise=0.0)


@pytest.fixture(scope="module")
def found(runs):
    rate, batch = (np.asarray(HYPERPARAMETERS(Design(flops=runs.design.flops))[n], float) for n in OPTIMA)
    return tian(runs, learning_rate=rate, batch_tokens=batch)


OPTIMA = ("learning_rate", "batch_tokens")


@pytest.mark.slow
def test_the_leverage_by_curves_is_the_one_put_in(found):
    with float64():
        truth = np.asarray(jax.vmap(TRUTH)(found.leverage.points.design)["efficiency_leverage"], float)
    np.testing.assert_allclose(found.leverage.points.loss, truth, rtol=0.02)


@pytest.mark.slow
def test_leverage_under_noise_is_within_its_interval_as_often_as_it_says():
    """Noise of .1 % in the loss is some per cent of leverage; the intervals hold it nine times in ten, or more."""
    spent, hits, widths = np.geomspace(3e18, 3e20, 6), [], []
    for noise in (0.001, 0.003):
        for seed in range(10):
            runs = ladder((4, 16, 64), (2, 4, 8), spent, noise=noise, seed=seed)
            design = runs.design
            ratio = np.where(design.num_experts > 0, design.top_k / np.maximum(design.num_experts, 1), 1.0)
            number, flops = budgets(design.flops)
            found = leverages(runs, np.round(ratio, 5), design.granularity, number, flops)
            with float64():
                truth = np.asarray(jax.vmap(TRUTH)(runs.where(found.rows).design)["efficiency_leverage"], float)
            hits.append(np.mean((found.low <= truth) & (truth <= found.high)))
            widths.append(np.median(np.log(found.high / found.low)))
    assert 0.85 < np.mean(hits) < 0.99
    assert np.mean(widths[10:]) == pytest.approx(3 * np.mean(widths[:10]), rel=0.1)


@pytest.mark.slow
def test_the_joint_law_predicts_the_leverages_that_were_kept_from_it(found):
    assert (found.leverage.points.loss >= TRAINED_BELOW).sum() == found.leverage.joint.held_out.runs > 0
    assert found.leverage.joint.held_out.max_relative_error < 0.05
    best = optimal_granularity(found.leverage.joint.law, 0.03, 1e20).value["granularity"]
    assert best == pytest.approx(optimal_granularity(TRUTH, 0.03, 1e20).value["granularity"], rel=0.1)


@pytest.mark.slow
def test_the_forms_of_the_paper_fit_better_than_those_it_rejects(found):
    for factor, ours, rejected in (
        ("A", "saturating power law (Eq. 1)", "power law"),
        ("G", "log-polynomial (Eq. 2)", "power law"),
    ):
        median = {
            form: np.median([one.r_squared for one in found.leverage.forms if (one.factor, one.form) == (factor, form)])
            for form in (ours, rejected)
        }
        assert median[ours] > median[rejected]
        assert median[ours] > 0.99


@pytest.mark.slow
def test_the_page_and_the_json_hold_the_same_law(found):
    plain = json.loads(json.dumps(found.to_json(), allow_nan=False))["leverage"]
    assert plain["joint"]["law"]["coefficients"] == found.leverage.joint.fit.coefficients
    assert "Joint law (Eq. 4)" in render.text(found.summary())
    assert all(
        low <= one <= high for one, (low, high) in zip(plain["leverages"], plain["leverage_intervals"], strict=True)
    )


def test_without_dense_runs_there_is_nothing_to_measure_leverage_against(runs):
    with pytest.raises(ValueError, match="Dense runs"):
        tian(runs.where(runs.design.num_experts > 0))


@pytest.mark.slow
def test_the_joint_law_of_leverage_is_recovered_from_the_smaller_leverages(runs):
    mixtures = runs.where(runs.design.num_experts > 0)
    with float64():
        leverage = np.asarray(jax.vmap(TRUTH)(mixtures.design)["efficiency_leverage"], float)
    points = dataclasses.replace(mixtures, loss=leverage, output="efficiency_leverage")
    found = joint_law(points, Sobol())
    assert found.held_out is not None
    assert found.held_out.runs == (leverage >= TRAINED_BELOW).sum() > 0
    assert found.held_out.max_relative_error < 1e-4
    assert found.residuals.deviation < 1e-4
    for name in ("base_exponent", "flops_slope", "granularity_square", "granularity_slope", "ratio_start"):
        assert found.fit.coefficients[name] == pytest.approx(getattr(TRUTH, name), rel=1e-3), name


@pytest.mark.slow
def test_leverage_is_undefined_where_the_dense_curve_never_comes():
    runs = ladder((4, 16, 64), (2, 4, 8, 16), BUDGETS)
    best = (runs.design.num_experts == runs.design.num_experts.max()) & (runs.design.top_k > 0)
    below = dataclasses.replace(runs, loss=np.where(best, 0.3 * runs.loss, runs.loss))
    found = tian(below).leverage
    assert found is not None
    assert found.undefined == best.sum() > 0
    assert len(found.points) + found.undefined == (runs.design.num_experts > 0).sum()


def test_near_optimal_runs_give_the_hyperparameter_law():
    """Every budget is tried at nine learning rates and batches; a loss is worse by the square of what is missed."""
    flops = np.repeat(np.geomspace(3e17, 3e20, 7), 81)
    number = np.repeat(np.arange(7), 81)
    moves = np.tile(np.stack(np.meshgrid(*2 * [np.linspace(-1, 1, 9)]), -1).reshape(-1, 2), (7, 1))
    truth = HYPERPARAMETERS(Design(flops=flops))
    rate, batch = (truth[name] * np.exp(moves[:, i]) for i, name in enumerate(OPTIMA))
    loss = 3.0 * (1 + 0.05 * (moves**2).sum(1)) * (flops / 1e18) ** -0.05
    sweep = runs_from(Design(flops=flops), loss)
    parts = {"mixtures": np.ones(len(flops), bool)}
    (found,) = hyperparameter_law(sweep, number, np.unique(flops), parts, rate, batch)
    assert found.law.learning_rate_exponent == pytest.approx(HYPERPARAMETERS.learning_rate_exponent, abs=1e-6)
    assert found.law.batch_exponent == pytest.approx(HYPERPARAMETERS.batch_exponent, abs=1e-6)
    low, high = found.exponents["batch_exponent"]
    assert low < HYPERPARAMETERS.batch_exponent < high
    assert found.runs < len(flops) / 9
    assert (found.at_an_end, found.optima) == (0, 7)
    # Of two batches, one is always at an end; one that is the same at every budget says nothing.
    upper = moves[:, 1] >= 0
    same = np.where(moves[:, 1] == 0, 512.0, 2048.0)
    (found,) = hyperparameter_law(sweep, number, np.unique(flops), {"mixtures": upper}, rate, same)
    assert (found.at_an_end, found.optima) == (0, 7)
    written = {row[0]: row[2] for row in found.table().rows}
    assert written["batch_exponent"] is None
    assert written["learning_rate_exponent"] is not None
    (note,) = found.table().notes
    assert "two values cannot bracket an optimum: batch_tokens in 7 groups" in note
    assert note.endswith("batch_tokens = 128.")
    # Of batches from the best one up, the best is the first.
    (found,) = hyperparameter_law(sweep, number, np.unique(flops), {"mixtures": upper}, rate, batch)
    assert (found.at_an_end, found.optima) == (7, 7)
    assert found.table().notes == ["7 of 7 optima are at the edge of the trained range"]


def test_the_best_run_of_every_budget_gives_the_allocation():
    flops = np.repeat(np.geomspace(3e17, 3e20, 7), 9)
    number = np.repeat(np.arange(7), 9)
    moves = np.tile(np.linspace(-1, 1, 9), 7)
    tokens = ALLOCATION(Design(flops=flops))["tokens"] * np.exp(moves)
    sweep = runs_from(Design(flops=flops, tokens=tokens), 3.0 + 0.1 * moves**2)
    (found,) = allocation_law(sweep, number, {"mixtures": np.ones(len(flops), bool)})
    assert found.law.tokens_exponent == pytest.approx(ALLOCATION.tokens_exponent, abs=1e-6)
    assert found.law.model_exponent == pytest.approx(1 - ALLOCATION.tokens_exponent, abs=1e-6)


@pytest.mark.slow
def test_the_command_writes_fits_tables_and_figures(tmp_path, capsys):
    """On the settings of Tables 8 and 9 and of Appendix E, with losses of the published laws."""
    table, out = tmp_path / "runs.csv", tmp_path / "tian"
    tian_runs(noise=1e-4).to_csv(table, index=False)
    assert main(["fit", str(table), "--recipe", "tian", "--starts", "256", "--out", str(out)]) == 0
    assert capsys.readouterr().out == (out / "tian.txt").read_text()
    assert FitResult.load(out / "fit.json").law == FitResult.load(out / "fits" / "leverage.json").law
    assert isinstance(FitResult.load(out / "fits" / "curve-dense.json").law, LossCompute)
    found = {name: values.to_numpy() for name, values in pd.read_csv(out / "leverages.csv").items()}
    gaps = found["predicted_efficiency_leverage"] / found["measured_efficiency_leverage"] - 1
    assert np.median(np.abs(gaps)) < 0.02
    assert np.all(found["low"] < found["measured_efficiency_leverage"])
    rows = pd.read_csv(out / "power_laws.csv").to_dict("records")
    exponents = {one["part"]: one["value"] for one in rows if one["coefficient"] == "model_exponent"}
    assert exponents == {"mixtures": pytest.approx(0.5095, abs=1e-3), "dense": pytest.approx(0.5422, abs=1e-3)}
    drawn = {path.stem for path in (out / "figures").glob("*.svg")}
    assert drawn >= {f"tian-{number}" for number in ("1a", "1b", 2, 3, 4, 5, 7, 8, 9, 10, 11, 17)}


def test_of_the_forms_in_granularity_the_saturating_one_is_between_the_line_and_the_parabola():
    """Table 17 compares three; a saturating power has a straight line as one of its ends."""
    granularity = np.array([2.0, 4.0, 6.0, 8.0, 12.0, 16.0])
    gained = np.exp(0.3 - 0.16 * (np.log2(granularity) - 3.4) ** 2)
    same = {"num_experts": 64.0, "top_k": 2.0, "num_shared_experts": 0.0, "expert_hidden": 2.0, "flops": 1e20}
    design = Design(model_dim=granularity, **{name: np.full(6, value) for name, value in same.items()})
    forms = {one.form: one for one in functional_forms(runs_from(design, gained), Sobol())}
    line, saturated, parabola = (
        forms[name].r_squared for name in ("power law", "power law, saturating", "log-polynomial (Eq. 2)")
    )
    assert line < saturated < parabola
    assert parabola == pytest.approx(1)
    start, most = (forms["power law, saturating"].coefficients[f"granularity_{end}"] for end in ("start", "maximum"))
    assert 0 < start < most


@pytest.mark.parametrize(("curvature", "says"), [(TRUTH.granularity_square, "G* = 11.3"), (0.0, None)])
def test_the_joint_law_names_the_granularity_of_greatest_leverage_where_there_is_one(curvature, says):
    """Section 4.1: around 12. Without a valley in the power no granularity is best."""
    law = dataclasses.replace(TRUTH, granularity_square=curvature)
    with float64():
        runs = ladder((4, 16, 64, 256), (2, 4, 8, 16), BUDGETS)
        runs = runs.where(runs.design.num_experts > 0)
        leverage = np.asarray(jax.vmap(law)(runs.design)["efficiency_leverage"], float)
    runs = dataclasses.replace(runs, loss=leverage, output="efficiency_leverage")
    fixed = {name: float(value) for name, value in coefficients(law).items() if name != "flops_slope"}
    fit = fit_law(Leverage, runs, fixed=fixed)
    joint = JointLaw(fit=fit, held_out=None, residuals=Residuals(mean=0.0, deviation=0.0, normal=1.0))
    notes = " ".join(joint.table().notes)
    assert says in notes if says else "G*" not in notes


def test_what_the_runs_cannot_set_is_left_out_with_its_reason():
    """A sweep of model and data alone has no leverage and an allocation; two activation ratios set no joint law."""
    flops, moves = np.repeat(np.geomspace(1e18, 1e20, 4), 5), np.tile(np.linspace(-1, 1, 5), 4)
    shape: dict[str, Any] = {
        "num_experts": 64.0,
        "top_k": 4.0,
        "num_shared_experts": 1.0,
        "model_dim": 512.0,
        "expert_hidden": 512.0,
    }
    best = ALLOCATION(Design(flops=flops))["tokens"]
    found = tian(
        runs_from(Design(flops=flops, tokens=best * np.exp(moves), **shape), 3 - 0.05 * np.log(flops) + moves**2)
    )
    assert found.leverage is None
    assert "Dense runs" in found.without_leverage
    assert [law.part for law in found.allocation] == ["mixtures"]
    assert set(found.tables()) == {"power_laws", "best_sizes"}
    # What a study of allocation alone ends with is what its terminal shows.
    assert [table.key in BRIEF_RECIPE for table in found.summary().tables] == [True]
    shape["num_experts"] = np.repeat([64.0, 128.0], 4)
    few = runs_from(Design(flops=np.full(8, 1e20), **shape), np.full(8, 2.0))
    with pytest.raises(
        ValueError, match="have 2 activation ratios, but 3 are needed; train MoE models with other ratios"
    ):
        joint_law(few, Sobol())


def test_a_table_of_ours_gives_the_papers_compute_and_structure_by_its_stored_architectures():
    shapes = [find(name).architecture for name in ("moe-mini", "dense-6.1b")]
    config = json.dumps({"recipe": {"loss": {"balance": 0.001}}})
    stored = {"architecture": [json.dumps(dump(shape)) for shape in shapes], "config": config}
    table = pd.DataFrame({"tokens": [1e12, 1e11], "sequence_length": 4096, **stored})
    spent = flops_by("tian", table)
    assert spent is not None
    assert spent.tolist() == [FLOPS["tian"].per_token(s, 4096) * d for s, d in zip(shapes, (1e12, 1e11), strict=True)]
    known = with_structure(table)
    assert known["num_heads"].tolist() == [16, 32]
    assert known["num_dense_layers"].tolist() == [1, 0]
    assert known["balance_weight"].tolist() == [0.001, 0.001]
    assert all(0.1 < share < 0.6 for share in known["attention_share"])
    # A column of this name that is another's is left alone.
    assert [*with_structure(table.assign(architecture="moe", config="x"))] == [*table]
    assert flops_by("tian", table.assign(architecture="moe")) is None
