"""Constraints: what they are worth, what is wrong with them, and what surrounds an optimum."""

import math
from dataclasses import replace

import pytest

from moejax.api.commands import design
from moejax.design.build import build, integer_shape, max_tokens_within, missed
from moejax.design.constraint import Constraint, bounded, restated
from moejax.design.coordinates import Shapes, Sizes
from moejax.design.decide import beyond, of_shapes
from moejax.design.measures import MEASURES, CostAssumptions
from moejax.design.problem import of_sizes, optimize
from moejax.design.sensitivity import along, flat_region, prices, undecided
from moejax.errors import UserError
from moejax.laws import LAWS, PUBLISHED, law_name
from moejax.laws.accounting import design_of
from moejax.laws.active_params import ACTIVE_PARAMS
from moejax.laws.catalogue import CATALOGUE
from moejax.laws.dense.chinchilla import HOFFMANN_2022, frontier
from moejax.laws.design import COMMON_LETTERS, FIELDS, LETTERS, Design
from moejax.laws.formula_law import formula_law
from moejax.laws.mixtures.five_factor import ZHAO_2025
from moejax.laws.mixtures.sparsity import ABNAR_2025
from moejax.report import render

BUDGET = (Constraint(name="flops", high=1e24), Constraint(name="params_total", high=1e12))


@pytest.fixture(scope="module")
def zhao():
    return optimize(of_sizes(ZHAO_2025, BUDGET))


@pytest.fixture(scope="module")
def shaped():
    return optimize(of_shapes(of_sizes(ZHAO_2025, (*BUDGET, Constraint(name="kv_bytes", high=8e9)))))


def test_a_shadow_price_is_the_change_upon_solving_again(zhao):
    found = prices(zhao)
    assert {price.constraint.name for price in found} == {"flops", "params_total"}
    for price in found:
        assert price.multiplier < 0
        assert price.resolved == pytest.approx(price.multiplier, rel=1e-3)


@pytest.mark.parametrize(("flops", "outside"), [(1e21, set()), (1e24, {"params_active", "tokens"})])
def test_an_optimum_says_how_far_it_is_beyond_what_its_law_was_fitted_to(flops, outside):
    known = PUBLISHED["chinchilla"]["hoffmann-2022"]
    optimum = optimize(of_sizes(known.law, [Constraint(name="flops", high=flops)]))
    found = beyond(known, optimum)
    assert set(found) == outside
    for name, factor in found.items():
        assert factor == pytest.approx(optimum.values[name] / known.fitted[name][1])


def test_the_sentence_on_abnars_convention_is_for_laws_that_read_total_parameters_and_sparsity():
    abnar, other = (Sizes(LAWS[name].inputs).assumes for name in ("sparsity", "expert_count"))
    assert "Active parameters follow the convention proportional (N_a = (1-S)·N). Abnar et al." in abnar
    assert other == "Total parameters follow the convention proportional (N_a = (1-S)·N)."


def test_a_range_bounds_a_quantity_on_both_sides():
    assert bounded({"tokens": (1, 2)}) == (Constraint(name="tokens", low=1.0, high=2.0),)
    free = design("chinchilla", flops=1e22).optimum.values["tokens"]
    below = design("chinchilla", flops=1e22, range={"tokens": (1e9, free / 2)})
    above = design("chinchilla", flops=1e22, range={"tokens": (2 * free, 1e14)})
    assert below.optimum.values["tokens"] == pytest.approx(free / 2, rel=1e-4)
    assert above.optimum.values["tokens"] == pytest.approx(2 * free, rel=1e-4)
    for bounds in ((2, 1), 5, "1:5", "12", (1, None), (1, 2, 3)):
        with pytest.raises(UserError, match=r"The range of tokens is .*give the smallest and the largest value"):
            design("chinchilla", flops=1e22, range={"tokens": bounds})


def test_an_expansion_of_1_builds_a_dense_model():
    found = design("effective_params", flops=1e21, range={"expansion": (1, 1)})
    assert found.built
    assert not found.built.architecture.is_moe
    assert not missed(found.shape.problem, found.built)
    refused = design("effective_params", flops=1e21, hold={"expansion": 1}, like="glm-4.5-air")
    assert refused.built is None
    assert "expansion = 1 needs a dense model" in refused.not_built


def test_a_design_says_how_far_its_integers_miss_a_fixed_value():
    found = design("effective_params", flops=1e21, hold={"expansion": 10.3})
    assert found.built
    said = render.text(found.summary())
    expansion = found.built.measures["expansion"]
    assert expansion != pytest.approx(10.3, rel=1e-3)
    assert "The model meets expansion = 10.3 only within 5%, because its dimensions are integers" in said


def test_a_design_searches_over_shapes_if_asked():
    with pytest.raises(UserError, match=r"search over shapes \(shape=True\)"):
        design("chinchilla", flops=1e22, kv_bytes=1e9)
    found = design("chinchilla", flops=1e22, kv_bytes=1e9, shape=True)
    assert isinstance(found.optimum.problem.space, Shapes)


def test_the_price_of_a_dense_budget_is_the_slope_of_its_frontier():
    found = optimize(of_sizes(HOFFMANN_2022, [Constraint(name="flops", high=1e22)]))
    law = frontier(HOFFMANN_2022)
    slope = law.exponent * (law(Design(flops=1e22)) - law.irreducible)
    assert prices(found)[0].multiplier == pytest.approx(float(slope), rel=1e-6)


def test_the_loss_rises_by_what_was_allowed_at_the_ends_of_the_flat_region(zhao):
    experts = next(one for one in flat_region(zhao, 0.001) if one.name == "active_experts")
    assert experts.low < experts.best < experts.high
    for end in (experts.low, experts.high):
        held = Constraint(name="active_experts", low=end, high=end)
        risen = optimize(of_sizes(ZHAO_2025, (*BUDGET, held))).values["loss"] - zhao.values["loss"]
        assert risen == pytest.approx(0.001, rel=1e-4)


def test_sizes_that_a_law_does_not_tell_apart_are_not_decided():
    flat = formula_law("loss = E + A/(N*D)^a")(E=1.7, A=1200.0, a=0.15)
    limit = (Constraint(name="flops", high=1e22),)
    optimum = optimize(of_sizes(flat, limit))
    assert set(undecided(optimum, flat_region(optimum))) == {"params_active", "tokens"}
    optimum = optimize(of_sizes(HOFFMANN_2022, limit))
    assert undecided(optimum, flat_region(optimum, 0.5)) == ()


def test_a_frontier_falls_with_the_budget(zhao):
    losses = [one.values["loss"] for one in along(zhao, "flops", [1e22, 1e23, 1e24, 1e25]) if one]
    assert len(losses) == 4
    assert losses == sorted(losses, reverse=True)


@pytest.mark.parametrize(
    ("constraints", "goal", "says"),
    [
        ((Constraint(name="flop", high=1e24),), "loss", "did you mean flops"),
        ((Constraint(name="flops", high=-1.0),), "loss", "give a positive bound"),
        (
            (Constraint(name="tokens", low=2e12), Constraint(name="tokens", high=1e12)),
            "loss",
            "at least 2e.12 and at most 1e.12",
        ),
        ((Constraint(name="kv_bytes", high=1e9),), "loss", "or tokens instead, or search over"),
        (
            (Constraint(name="flops", high=1e20), Constraint(name="loss", high=1.83)),
            "loss",
            "cannot all hold.*flops.*loss",
        ),
        ((Constraint(name="params_total", high=1e12),), "loss", "still falls.*tokens"),
        (
            (Constraint(name="params_total", high=1e12),),
            "flops",
            r'requires an upper bound on the loss; add Constraint\(name="loss"',
        ),
    ],
)
def test_mistakes_are_sentences(constraints, goal, says):
    with pytest.raises(ValueError, match=says):
        optimize(of_sizes(ZHAO_2025, constraints, goal=goal))


def test_a_law_without_tokens_does_not_split_a_budget_under_an_upper_constraint_on_tokens():
    routed = PUBLISHED["routed"]["clark-2022-s-base"].law
    with pytest.raises(ValueError, match="cannot split flops between size and tokens"):
        optimize(of_sizes(routed, (*BUDGET, Constraint(name="tokens", high=1e12))))


def test_a_law_that_predicts_no_loss_is_refused():
    with pytest.raises(ValueError, match="needs a law that predicts a loss or a leverage"):
        optimize(of_sizes(next(iter(PUBLISHED["allocation"].values())).law, BUDGET))


def test_a_shape_keeps_its_limits_and_so_does_what_is_built(shaped):
    built = build(shaped)
    assert built is not None
    built.architecture.check()
    for constraint in shaped.problem.constraints:
        assert shaped.values[constraint.name] <= constraint.high * (1 + 1e-6)
        assert built.measures[constraint.name] <= constraint.high * (1 + 1e-9)
    given_up = built.prediction.loss - shaped.values["loss"]
    assert abs(given_up) < 0.005


@pytest.mark.parametrize(
    ("low", "high", "built"),
    [(256, 256, 256), (100, 100, 100), (105, math.inf, 112), (0, 103, 96), (105.5, 106.5, 106), (4.2, 4.4, 4)],
)
def test_a_number_of_the_shape_that_is_held_is_what_is_built(shaped, low, high, built):
    # 256 is a multiple of 8, 100 is not; between 4.2 and 4.4 there is no whole number.
    at = min(max(104.0, low), high)
    problem = replace(shaped.problem, constraints=(*BUDGET, Constraint(name="num_experts", low=low, high=high)))
    found = build(replace(shaped, problem=problem, values={**shaped.values, "num_experts": at, "top_k": 2.0}))
    assert found is not None
    assert found.architecture.num_experts == built


def test_what_the_law_is_silent_about_keeps_the_proportions_that_were_given(shaped):
    assert isinstance(shaped.problem.space, Shapes)
    like = shaped.problem.space.like
    assert shaped.values["granularity"] == pytest.approx(2 * like.model_dim / like.expert_hidden)


def test_a_published_model_spends_the_whole_budget(shaped):
    spent = max_tokens_within(of_shapes(of_sizes(ZHAO_2025, BUDGET[:1])), CATALOGUE["glm-4.5"].architecture)
    assert spent is not None
    assert spent.measures["flops"] == pytest.approx(1e24)


def test_measures_are_straight_lines_in_tokens():
    constraints = (BUDGET[0], Constraint(name="unique_tokens", high=1e11))
    law = PUBLISHED["data_constrained"]["muennighoff-2023"].law
    problem = of_shapes(of_sizes(law, constraints, assumptions=CostAssumptions(served_tokens=1e13)))
    from moejax.design.build import measured

    at = [measured(problem, CATALOGUE["glm-4.5"].architecture, tokens) for tokens in (1e12, 2e12, 3e12)]
    assert set(MEASURES) <= set(at[0])
    for name in MEASURES:
        assert at[0][name] + at[2][name] == pytest.approx(2 * at[1][name], rel=1e-12), name
        assert math.isfinite(at[0][name])


@pytest.mark.parametrize(
    ("law", "letter", "word", "value", "searched"),
    [
        ("sparsity", "S", "sparsity", 0.9, ("expert_expansion", 10.0)),
        ("sparsity", "N", "params_total", 1e9, ("params_total", 1e9)),
        ("five_factor", "S", "shared_share", 0.3, ("shared_share", 0.3)),
        ("five_factor", "G", "active_experts", 7.0, ("active_experts", 7.0)),
        ("granularity", "G", "granularity", 8.0, ("granularity", 4.0)),
        ("leverage", "A", "activation_ratio", 0.05, ("expert_expansion", 20.0)),
        ("effective_params", "N_act", "params_active", 1e9, ("params_active", 1e9)),
        ("chinchilla", "N", "params_active", 1e9, ("params_active", 1e9)),
    ],
)
def test_a_constraint_in_a_papers_letter_is_one_on_what_is_searched(law, letter, word, value, searched):
    space = Sizes(LAWS[law].inputs)
    known = next(iter(PUBLISHED[law].values())).law
    one = restated(Constraint(name=letter, low=value, high=value), known, space)
    assert (one.name, one.low, one.high) == (searched[0], pytest.approx(searched[1]), pytest.approx(searched[1]))
    if law != "granularity":
        other = restated(Constraint(name=word, low=value, high=value), known, space)
        assert (other.name, other.high) == (one.name, one.high)
    assert str(one).startswith(letter)


def test_every_letter_is_a_field_or_a_ratio_of_a_design_and_every_law_is_there():
    assert set(LETTERS) <= set(LAWS)
    words = {word for letters in LETTERS.values() for word in letters.values()} | set(COMMON_LETTERS.values())
    assert all(hasattr(Design, word) or word in FIELDS for word in words)


def test_a_held_sparsity_is_that_of_the_optimum_and_of_the_shape():
    problem = of_sizes(
        ABNAR_2025, (Constraint(name="flops", high=1e20), Constraint(name="sparsity", low=0.9, high=0.9))
    )
    found = optimize(problem)
    assert found.values["expert_expansion"] == pytest.approx(10.0)
    assert "sparsity = 0.9" in [str(price.constraint) for price in prices(found)]


@pytest.mark.parametrize("law", [ABNAR_2025, ZHAO_2025, PUBLISHED["effective_params"]["chapter-002"].law])
def test_nothing_is_held_below_the_least_that_can_be(law):
    for coordinate in (one for one in Sizes(tuple(law.inputs)).coordinates if one.least and one.low > 0):
        below = Constraint(name=coordinate.name, low=coordinate.low / 2, high=coordinate.low / 2)
        with pytest.raises(ValueError, match=rf"{coordinate.name} \({coordinate.meaning}\) is at least 1"):
            optimize(of_sizes(law, (Constraint(name="flops", high=1e22), below)))


@pytest.mark.parametrize("value", [1.0, 1.5, -0.1])
def test_a_share_of_experts_that_cannot_be_is_refused(value):
    with pytest.raises(ValueError, match="sparsity is a share of the experts and must be at least 0 and below 1"):
        of_sizes(ABNAR_2025, [Constraint(name="S", low=value, high=value)])


def test_a_shared_share_of_a_shape_is_limited_by_the_routed_one():
    space = Shapes(CATALOGUE["glm-4.5-air"].architecture, ZHAO_2025.inputs)
    found = restated(Constraint(name="shared_share", low=0.25, high=0.25), ZHAO_2025, space)
    assert (found.name, found.low, found.high) == ("routed_share", 0.75, 0.75)
    assert "routed_share" in MEASURES


@pytest.mark.parametrize("taken", ACTIVE_PARAMS.values(), ids=ACTIVE_PARAMS)
def test_sizes_have_the_active_parameters_of_the_convention(taken):
    space = Sizes(ABNAR_2025.inputs, taken)
    design = space.candidate({"params_active": 1e9, "tokens": 1e11, "expert_expansion": 10.0}).design
    assert float(taken(design.params_total, 0.9)) == pytest.approx(1e9)
    assert taken.meaning in space.assumes
    assert Sizes(ZHAO_2025.inputs, taken).assumes == ""


@pytest.mark.parametrize("model", [name for name, one in CATALOGUE.items() if not one.architecture.kv_latent_dim])
@pytest.mark.parametrize("wider", [0.3, 0.77, 1.375, 2.6])
def test_shapes_have_heads_and_widths_that_hardware_likes(model, wider):
    like = CATALOGUE[model].architecture
    built = integer_shape(like, {"model_dim": round(like.model_dim * wider / 128) * 128})
    built.check()
    assert built.num_heads % built.num_kv_heads == 0
    assert built.num_heads % 8 == 0 or built.num_heads < 64
    if like.num_kv_heads < like.num_heads:
        assert built.num_kv_heads & (built.num_kv_heads - 1) == 0, "a power of two"
    if like.is_moe:
        assert integer_shape(like, {"model_dim": like.model_dim, "top_k": 1}).fault_in_training == ""
    exact = integer_shape(like, {"model_dim": round(like.model_dim * wider)}, exact=True)
    wider = exact.model_dim / like.model_dim
    assert exact.num_kv_heads == max(1, round(like.num_kv_heads * wider))
    assert exact.num_heads % exact.num_kv_heads == 0
    assert abs(exact.num_heads - like.num_heads * wider) <= max(exact.num_kv_heads / 2, 1)


@pytest.mark.parametrize("flops", [1e20, 1e22, 1e24])
@pytest.mark.parametrize("law", ["zhao", "effective_params", "sparsity", "chinchilla"])
def test_the_nearest_integers_are_never_worse_than_multiples(law, flops):
    (known, *_) = PUBLISHED[law_name(law)].values()
    params_total = 8 * (flops / 120) ** 0.5
    budget = [Constraint(name="flops", high=flops), Constraint(name="params_total", high=params_total)]
    shape = optimize(of_shapes(of_sizes(known.law, budget)))
    multiples, exact = build(shape), build(shape, exact=True)
    assert exact.prediction.loss <= multiples.prediction.loss
    assert not exact.broken
    assert exact.measures["params_total"] <= params_total * (1 + 1e-9)


@pytest.mark.parametrize("held", [{"shared_share": 0.25}, {"shared_share": 0.0}, {"active_experts": 9.0}])
def test_any_variable_of_a_law_can_be_held_fixed_in_the_model_too(held):
    chosen = design("zhao", flops=1e21, params_total=1e10, hold=held)
    ((name, value),) = held.items()
    assert chosen.optimum.values[name] == value
    (near,) = [one for one in chosen.flat if one.name == name]
    assert (near.low, near.high) == (value, value)
    built = design_of(chosen.built.architecture, 1.0)
    assert float(getattr(built, name)) == pytest.approx(value, abs=0.05)


def test_wrong_types_of_constraints_are_sentences():
    with pytest.raises(UserError, match="hold is 'expansion=4'; give a dictionary"):
        design("zhao", flops=1e21, hold="expansion=4")
    with pytest.raises(UserError, match="The topology is 5; give a text"):
        design("zhao", flops=1e21, topology=5)
    with pytest.raises(UserError, match="`days` needs `topology`"):
        design("zhao", flops=1e21, days=3)
