"""Dataclasses in JAX's trees: a type is a structure of its own, and what is flattened comes back."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp

from moejax.laws import PUBLISHED
from moejax.laws.active_params import BackboneByActive, BackboneByTotal
from moejax.pytree import pytree


@pytree
@dataclasses.dataclass(frozen=True)
class Metres:
    length: float
    name: str = dataclasses.field(default="a", metadata={"static": True})


@pytree
@dataclasses.dataclass(frozen=True)
class Feet:
    length: float
    name: str = dataclasses.field(default="a", metadata={"static": True})


def test_types_of_the_same_fields_are_different_structures():
    assert jax.tree.structure(Metres(1.0)) != jax.tree.structure(Feet(1.0))
    assert jax.tree.structure(Metres(1.0)) != jax.tree.structure(Metres(1.0, name="b"))
    assert jax.tree.structure(Metres(1.0)) == jax.tree.structure(Metres(2.0))
    assert jax.tree.structure(BackboneByActive(0.5)) != jax.tree.structure(BackboneByTotal(0.5))


def test_laws_of_as_many_coefficients_are_different_structures():
    structures = {name: jax.tree.structure(next(iter(sets.values())).law) for name, sets in PUBLISHED.items() if sets}
    for name, one in structures.items():
        assert [other for other, its in structures.items() if its == one] == [name]


def test_what_is_flattened_comes_back_with_its_paths():
    given = Metres(jnp.ones(3), name="b")
    leaves, structure = jax.tree.flatten(given)
    back = jax.tree.unflatten(structure, leaves)
    assert isinstance(back, Metres)
    assert back.length is leaves[0]
    assert back.name == "b"
    assert [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(given)] == [".length"]
    assert jax.jit(lambda node: node)(given).name == "b"


def test_dataclasses_are_registered_in_one_place():
    found = [p.name for p in Path("moejax").rglob("*.py") if "tree_util.register_dataclass(" in p.read_text()]
    assert not found
