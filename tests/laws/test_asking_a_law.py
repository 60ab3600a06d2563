"""Mistakes in what a law is asked are sentences; predictions outside the fitted range say so."""

import subprocess
import sys

import pytest

from moejax.laws import law_name
from moejax.laws.design import Design
from moejax.laws.predict import check_design, predict, published

MIXTURE = Design(
    params_total=3e9,
    params_active=5e8,
    tokens=2e10,
    flops=1e20,
    num_experts=64,
    top_k=6,
    num_shared_experts=2,
    model_dim=2048,
    expert_hidden=512,
)
HALF_KNOWN = Design(params_active=1e9, tokens=2e10)


def test_a_paper_finds_its_law():
    assert law_name("zhao") == "five_factor"
    assert law_name("Chinchilla") == "chinchilla"
    assert law_name("isoflop-surface") == "isoflop_surface"


def test_an_unknown_law_is_answered_with_the_nearest_names():
    with pytest.raises(ValueError, match="did you mean chinchilla"):
        law_name("chinchila")


def test_an_unknown_set_is_answered_with_the_names_there_are():
    with pytest.raises(ValueError, match="hoffmann-2022"):
        published("chinchilla", "hofman")


def test_a_law_without_constants_says_to_fit_it():
    with pytest.raises(ValueError, match="fit it"):
        published("dense_to_moe")


def test_what_a_law_reads_and_was_not_given_is_asked_for_by_name():
    with pytest.raises(ValueError, match="also give tokens"):
        predict("sparsity", Design(params_total=1e9, num_experts=8, top_k=2))
    with pytest.raises(ValueError, match="num_experts, top_k and num_shared_experts"):
        predict("leverage", Design(flops=1e20, model_dim=8, expert_hidden=8))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"params_total": -1.0}, "params_total is -1"),
        ({"tokens": 0}, "tokens is 0"),
        ({"flops": float("nan")}, "finite"),
        ({"params_total": 1e9, "params_active": 2e9}, "lower params_active or raise params_total"),
        ({"params_active": 1e9, "params_embedding": 2e9}, "both counts include the embeddings"),
        ({"num_experts": 8, "top_k": 9}, r"\[0, 1\)"),
        ({"num_experts": 8, "top_k": 0}, "at least one routed expert must serve a token"),
        ({"num_shared_experts": -1}, "num_shared_experts is -1"),
    ],
)
def test_a_design_that_cannot_be_is_refused(fields, words):
    with pytest.raises(ValueError, match=words):
        check_design(Design(**fields))


def test_a_law_that_says_no_number_is_answered_with_a_sentence():
    endless = Design(params_total=1e9, tokens=1e10, num_experts=1e18, top_k=1)
    with pytest.raises(ValueError, match=r"prediction of Sparsity is not finite at .*num_experts 1e\+18.*loss = inf"):
        predict("sparsity", endless)


def test_a_model_of_embeddings_alone_is_no_model():
    with pytest.raises(
        ValueError, match=r"params_embedding is 1e\+09 and params_active is 1e\+09.*and other parameters"
    ):
        check_design(Design(params_total=2e9, params_active=1e9, params_embedding=1e9))


def test_a_law_of_active_experts_refuses_a_model_that_has_none():
    with pytest.raises(ValueError, match="must be positive"):
        predict("zhao", Design(params_total=1e9, params_active=1e9, tokens=1e10, top_k=0, num_shared_experts=0))


def test_inside_the_fitted_range_nothing_is_flagged():
    found = predict("zhao", MIXTURE)
    assert found.extrapolated == {}
    assert found.unchecked == ()


def test_outside_the_fitted_range_each_variable_is_flagged_with_its_factor():
    big = Design(params_total=34e9, params_active=5e8, tokens=5e9, top_k=6, num_shared_experts=2)
    found = predict("zhao", big)
    assert found.extrapolated == {"params_total_nonembedding": pytest.approx(10.0), "tokens": pytest.approx(0.5)}


def test_constants_of_dense_models_say_that_they_are_asked_of_a_mixture():
    for given in (MIXTURE, Design(params_active=1e9, params_total=2e9, tokens=2e10)):
        assert predict("chinchilla", given).as_dense
    for given in (Design(params_active=1e9, params_total=1e9, tokens=2e10, num_experts=0, top_k=0), HALF_KNOWN):
        assert not predict("chinchilla", given).as_dense
    # One's own constants may be of any models, and laws of mixtures are of mixtures.
    assert not predict(published("chinchilla").law, MIXTURE).as_dense
    assert not predict("zhao", MIXTURE).as_dense


def test_constants_without_a_range_are_said_to_be_unchecked():
    assert predict("chapter_002", MIXTURE).unchecked == ("params_active", "params_total", "tokens")


def test_a_law_of_ones_own_can_be_asked():
    assert predict(published("chinchilla").law, MIXTURE).loss == predict("chinchilla", MIXTURE).loss


def test_a_law_of_something_else_has_no_loss():
    found = predict("tian", MIXTURE)
    assert found.values["efficiency_leverage"] > 1
    with pytest.raises(ValueError, match="efficiency_leverage"):
        _ = found.loss


def test_a_dense_model_can_be_asked_of_laws_of_experts():
    dense = Design(params_total=1e9, params_active=1e9, tokens=2e10, num_experts=0, top_k=0)
    one = Design(params_total=1e9, params_active=1e9, tokens=2e10, num_experts=1, top_k=1)
    for law in ("abnar", "ludziejewski", "clark"):
        assert predict(law, dense).loss == predict(law, one).loss


def test_asking_a_law_loads_neither_models_nor_tables_nor_optimizers():
    code = "import sys, moejax.laws.predict, moejax.laws; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"flax", "pandas", "matplotlib", "jaxopt", "optax", "scipy.optimize", "moejax.fit"} & set(loaded)
