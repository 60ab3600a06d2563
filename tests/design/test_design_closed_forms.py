"""Every closed form of an optimum comes out of the general optimizer."""

import importlib.util
from pathlib import Path

import pytest

from moejax.design.constraint import Constraint
from moejax.design.coordinates import Sizes
from moejax.design.problem import Problem, Unbounded, of_sizes, optimize
from moejax.design.sensitivity import prices
from moejax.laws import PUBLISHED
from moejax.laws.dense.chinchilla import HOFFMANN_2022
from moejax.laws.mixtures.sparsity import ABNAR_2025


def _table():
    path = Path(__file__).parents[2] / "benchmarks" / "design.py"
    spec = importlib.util.spec_from_file_location("benchmark_design", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TABLE = _table()
chosen = TABLE.chosen


@pytest.mark.parametrize("name", TABLE.CLOSED_FORMS)
@pytest.mark.matrix(3)
def test_a_closed_form_comes_out_of_the_optimizer(name):
    pairs = TABLE.CLOSED_FORMS[name]()
    assert pairs
    for what, (found, form) in pairs.items():
        assert found == pytest.approx(float(form), rel=1e-6), what


@pytest.mark.parametrize("model", TABLE.TABLE_4)
def test_table_4_of_zhao_as_printed(model):
    ((found, _),) = TABLE.table_4(model).values()
    assert found == pytest.approx(TABLE.TABLE_4[model][1], abs=1e-4)


@pytest.mark.parametrize("name", TABLE.PRICED)
@pytest.mark.matrix(1)
def test_what_limits_are_worth_is_what_solving_again_says(name):
    law, constraints = TABLE.PRICED[name]
    found = prices(optimize(of_sizes(law, constraints)))
    assert {price.constraint.name for price in found} == {constraint.name for constraint in constraints}
    for price in found:
        assert price.multiplier < 0
        assert price.resolved == pytest.approx(price.multiplier, rel=1e-4)


def test_the_cheapest_way_to_a_loss_is_the_best_way_to_spend_that_much():
    spent = chosen(HOFFMANN_2022, Constraint(name="flops", high=1e22))
    reached = chosen(HOFFMANN_2022, Constraint(name="loss", high=spent["loss"]), goal="flops")
    for name in ("flops", "params_active", "tokens"):
        assert reached[name] == pytest.approx(spent[name], rel=1e-6), name


@pytest.mark.slow
def test_a_degenerate_optimum_is_said_and_not_returned():
    with pytest.raises(Unbounded, match="still falls at the bound of the search, expert_expansion"):
        chosen(ABNAR_2025, Constraint(name="flops", high=1e20))


def test_what_a_law_decides_follows_from_what_it_reads():
    assert [c.name for c in Sizes(HOFFMANN_2022.inputs).coordinates] == ["params_active", "tokens"]
    assert [c.name for c in Sizes(TABLE.TIAN.inputs).coordinates] == ["expert_expansion", "granularity", "flops"]


@pytest.mark.slow
def test_a_coordinate_on_which_nothing_depends_is_said_to_be_unidentified():
    routed = next(iter(PUBLISHED["routed"].values())).law
    constraints = (Constraint(name="params_active", high=1e9), Constraint(name="expert_expansion", high=64.0))
    assert optimize(Problem(law=routed, constraints=constraints, space=Sizes(routed.inputs))).unidentified == (
        "tokens",
    )
