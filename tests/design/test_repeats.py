"""Limited text: repeated at a price where the law has one, a hard limit where it has none."""

import pytest

from moejax.design.build import max_tokens_within
from moejax.design.constraint import Constraint
from moejax.design.decide import of_shapes, repeats
from moejax.design.problem import of_sizes, optimize
from moejax.design.sensitivity import along, flat_region, prices
from moejax.laws import PUBLISHED
from moejax.laws.catalogue import CATALOGUE
from moejax.laws.dense.chinchilla import HOFFMANN_2022, optimal_split

LAW = PUBLISHED["data_constrained"]["muennighoff-2023"].law
BUDGET, UNIQUE = Constraint(name="flops", high=1e22), Constraint(name="unique_tokens", high=25e9)


@pytest.fixture(scope="module")
def found():
    return optimize(of_sizes(LAW, [BUDGET, UNIQUE]))


def test_the_allocation_that_muennighoff_prints_comes_out(found):
    # By a grid of 500 steps of 0.4 %.
    assert found.values["tokens"] == pytest.approx(237336955477.55075, rel=0.004)
    assert found.values["params_active"] == pytest.approx(7022364735.879969, rel=0.004)
    assert found.values["epochs"] == pytest.approx(9.49347821910203, rel=0.004)


def test_the_shadow_price_of_unique_tokens_is_the_change_upon_solving_again(found):
    price = next(price for price in prices(found) if price.constraint == UNIQUE)
    assert price.multiplier < -0.01
    assert price.resolved == pytest.approx(price.multiplier, rel=1e-4)
    more, less = (
        optimize(of_sizes(LAW, [BUDGET, Constraint(name="unique_tokens", high=25e9 * times)])).values["loss"]
        for times in (1.01, 1 / 1.01)
    )
    assert (more - less) / 0.01990066 == pytest.approx(price.multiplier, rel=1e-3)


@pytest.mark.parametrize("constraints", [[BUDGET], [BUDGET, Constraint(name="unique_tokens", high=1e15)]])
def test_with_text_enough_the_answer_is_chinchillas_and_text_is_worth_nothing(constraints):
    optimum = optimize(of_sizes(LAW, constraints))
    for name, value in optimal_split(LAW.unrepeated, 1e22).items():
        assert optimum.values[name] == pytest.approx(value, rel=1e-6), name
    assert [price.constraint for price in prices(optimum)] == [BUDGET]


def test_a_law_that_knows_no_repeats_takes_unique_tokens_for_tokens():
    hard, soft = (
        optimize(of_sizes(HOFFMANN_2022, [BUDGET, Constraint(name=name, high=25e9)]))
        for name in ("tokens", "unique_tokens")
    )
    assert soft.values["tokens"] == pytest.approx(25e9)
    assert soft.values == pytest.approx(dict(hard.values))
    assert repeats(soft) is None


def test_repeats_lie_between_a_hard_constraint_and_text_without_end(found):
    beside = repeats(found)
    assert beside is not None
    assert beside.once is not None
    assert beside.endless is not None
    assert beside.once.values["tokens"] == pytest.approx(25e9)
    assert beside.endless.values["tokens"] == pytest.approx(optimal_split(LAW.unrepeated, 1e22)["tokens"], rel=1e-6)
    losses = [beside.endless.values["loss"], found.values["loss"], beside.endless_loss, beside.once.values["loss"]]
    assert losses == sorted(losses)
    assert losses[-1] - losses[0] > 0.1


def test_as_little_text_as_costs_a_thousandth_of_a_nat_is_said(found):
    region = next(one for one in flat_region(found, 0.001) if one.name == "unique_tokens")
    held = Constraint(name="unique_tokens", high=region.low)
    risen = optimize(of_sizes(LAW, [BUDGET, held])).values["loss"] - found.values["loss"]
    assert risen == pytest.approx(0.001, rel=1e-3)


def test_along_more_and_more_text_the_loss_falls_until_no_token_returns(found):
    amounts = [5e9, 2e10, 1e11, 1e12]
    points = [one.values for one in along(found, "unique_tokens", amounts) if one is not None]
    assert [point["unique_tokens"] for point in points] == pytest.approx(amounts)
    losses = [point["loss"] for point in points]
    assert losses == sorted(losses, reverse=True)
    assert [point["epochs"] > 1 for point in points] == [True, True, True, False]


def test_epochs_can_be_limited_themselves():
    few = optimize(of_sizes(LAW, [BUDGET, UNIQUE, Constraint(name="epochs", high=4.0)]))
    assert few.values["tokens"] == pytest.approx(1e11, rel=1e-6)
    with pytest.raises(ValueError, match="epochs cannot be constrained"):
        optimize(of_sizes(HOFFMANN_2022, [BUDGET, UNIQUE, Constraint(name="epochs", high=4.0)]))


def test_a_published_model_repeats_the_same_text():
    problem = of_shapes(of_sizes(LAW, [BUDGET, UNIQUE]))
    spent = max_tokens_within(
        problem, CATALOGUE["dense-6.1b"].architecture, PUBLISHED["data_constrained"]["muennighoff-2023"]
    )
    assert spent is not None
    assert spent.measures["epochs"] == pytest.approx(spent.tokens / 25e9)
    endless = max_tokens_within(of_shapes(of_sizes(LAW, [BUDGET])), CATALOGUE["dense-6.1b"].architecture)
    assert endless is not None
    assert endless.tokens == pytest.approx(spent.tokens)
    assert endless.prediction.loss < spent.prediction.loss - 0.01


@pytest.mark.parametrize("unique", [4e8, 8e8, 1e9])
def test_where_text_returns_until_the_law_is_flat_flops_are_worth_nothing_or_that_is_said(unique):
    flat, said = None, ""
    try:
        flat = optimize(of_sizes(LAW, [BUDGET, Constraint(name="unique_tokens", high=unique)]))
    except ValueError as why:
        said = str(why)
    if flat is None:
        assert "tokens are repeated so often" in said
    else:
        assert flat.values["epochs"] > 100
        assert abs(flat.multipliers.get("flops", 0.0)) < 1e-5


def test_what_cannot_be_minimized_is_a_sentence():
    with pytest.raises(ValueError, match="objective 'flop' is unknown; did you mean flops"):
        optimize(of_sizes(LAW, [BUDGET, Constraint(name="loss", high=3.0)], goal="flop"))
