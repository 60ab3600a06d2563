"""Every law is registered, documented, differentiable, batched, and the same in any units."""

import dataclasses
import functools
import importlib
import pkgutil
import runpy
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from law_draws import any_design, any_law

import moejax.laws
from moejax.float64 import float64
from moejax.laws import ALIASES, ALIASES_OF_CURVES, CURVE_LAWS, LAWS, PUBLISHED
from moejax.laws import design as designs
from moejax.laws import law as laws
from moejax.laws.design import Design, design_from
from moejax.laws.law import PROVENANCE
from moejax.laws.predict import predict

SETS = [(name, constants) for name, sets in PUBLISHED.items() for constants in sets]


def test_the_benchmark_of_laws_asks_every_law_what_it_reads():
    benchmark = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "laws.py"))
    benchmark["designs"].__globals__["DESIGNS"] = 2
    points = benchmark["designs"](jax.random.key(0))
    for name in LAWS:
        assert jax.eval_shape(jax.vmap(benchmark["example"](name)), points)


def test_every_law_of_the_package_is_registered():
    classes = {
        value
        for module in pkgutil.walk_packages(moejax.laws.__path__, "moejax.laws.")
        for value in vars(importlib.import_module(module.name)).values()
        if isinstance(value, type) and {"inputs", "outputs"} <= vars(value).keys()
    }
    assert classes == {*LAWS.values(), *CURVE_LAWS.values()}
    assert not {*LAWS, *ALIASES} & {*CURVE_LAWS, *ALIASES_OF_CURVES}


def test_every_law_has_a_place_for_published_constants_and_every_alias_a_law():
    assert set(PUBLISHED) == set(LAWS)
    assert set(ALIASES.values()) <= set(LAWS)
    assert not set(ALIASES) & set(LAWS)


@pytest.mark.parametrize("name", LAWS)
def test_a_law_says_its_formula_its_source_and_what_its_letters_mean(name):
    cls = LAWS[name]
    assert cls.__doc__
    assert "(20" in cls.__doc__ or "chapter" in cls.__doc__ or "ICLR" in cls.__doc__, "no source"
    assert "``" in cls.__doc__, "no map from the paper's letters to a Design's fields"
    assert set(cls.inputs) <= {*designs.FIELDS, "loss"}
    for f in dataclasses.fields(cls):
        assert f.metadata["meaning"]


@pytest.mark.parametrize(("name", "constants"), SETS)
def test_a_published_set_is_a_law_with_a_source_a_provenance_and_a_range_in_words_of_a_design(name, constants):
    entry = PUBLISHED[name][constants]
    assert isinstance(entry.law, LAWS[name])
    assert entry.source
    assert entry.provenance in PROVENANCE
    for variable, (smallest, largest) in entry.fitted.items():
        assert variable in designs.FIELDS or isinstance(getattr(Design, variable), property)
        assert smallest < largest


@pytest.mark.parametrize("name", LAWS)
@settings(max_examples=5)
@given(st.randoms(), st.data())
def test_a_law_in_other_units_says_the_same(name, chance, data):
    law, design = any_law(LAWS[name], chance), any_design(chance)
    scales = {kind: 10.0 ** data.draw(st.floats(-3, 9)) for kind in designs.KINDS} | {"loss": 3.0}
    with float64():
        law, design = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), (law, design))
        plain = law(design)
        for kind, scale in scales.items():
            units = dict.fromkeys(scales, 1.0) | {kind: scale}
            changed = laws.in_units(law, units)(designs.in_units(design, units))
            jax.tree.map(
                lambda a, b, kind=kind: np.testing.assert_allclose(
                    b, a, rtol=1e-9, err_msg=f"{name} differs in other units of {kind}: a dimension is wrong"
                ),
                plain,
                changed,
            )


@jax.jit
@functools.partial(jax.vmap, in_axes=(None, 0))
@functools.partial(jax.grad, argnums=(0, 1))
def of_all_points(law, point):
    """Gradients of a law's outputs, added up, in its coefficients and in each point."""
    return sum(jax.tree.leaves(law(point)))


@pytest.mark.parametrize(("name", "constants"), SETS)
def test_a_published_law_can_be_batched_compiled_and_differentiated_in_design_and_coefficients(name, constants):
    law = PUBLISHED[name][constants].law
    points = {field: jnp.linspace(2.0, 3.0, 5) * 1e9 for field in law.inputs}
    counts = {"num_experts": 64.0, "top_k": 6.0, "num_shared_experts": 2.0, "num_layers": 24.0}
    counts |= {"model_dim": 2048.0, "expert_hidden": 512.0, "loss": 1.0}
    points |= {field: jnp.full(5, counts[field]) for field in law.inputs if field in counts}
    if "params_total" in points:
        points["params_total"] *= 8
    gradients = of_all_points(jax.tree.map(jnp.float32, law), design_from(points))
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))
    assert all(leaf.shape == (5,) for leaf in jax.tree.leaves(gradients))


@pytest.mark.parametrize(("name", "constants"), SETS)
def test_inputs_are_all_that_a_law_and_its_fitted_range_read(name, constants):
    entry = PUBLISHED[name][constants]
    values = {
        "params_total": 9e9,
        "params_active": 2e9,
        "tokens": 3e10,
        "unique_tokens": 4e9,
        "flops": 1e20,
        "num_experts": 64,
        "top_k": 6,
        "num_shared_experts": 2,
        "model_dim": 2048,
        "num_layers": 24,
        "expert_hidden": 512,
        "loss": 1.0,
    }
    found = predict(entry, design_from({field: values[field] for field in entry.law.inputs}))
    assert set(found.values) == set(entry.law.outputs)
    unread = {"flops"} if name == "sparsity" else set()
    assert set(found.unchecked) == unread | (set(entry.law.inputs) if not entry.fitted else set())


def test_a_constant_is_no_coefficient_but_has_a_unit():
    surface = LAWS["isoflop_surface"](size=(1.0,), sparsity=(), interaction=(), offset=0.0, params_unit=1e9)
    assert "params_unit" not in laws.coefficients(surface)
    assert laws.in_units(surface, {"params": 1e6}).params_unit == pytest.approx(1e3)


@pytest.mark.parametrize("name", LAWS)
@given(st.randoms(), st.data())
@settings(max_examples=5)
def test_a_law_says_which_of_its_inputs_is_missing(name, chance, data):
    law, design = any_law(LAWS[name], chance), any_design(chance)
    missing = data.draw(st.sampled_from(law.inputs))
    lacking = design_from({field: value for field, value in designs.known(design).items() if field != missing})
    # As it stands, and traced.
    for call in (law, jax.jit(lambda given: law(given))):
        with pytest.raises(ValueError, match=rf"The law {type(law).__name__} reads .*; also give {missing}\."):
            call(lacking)
