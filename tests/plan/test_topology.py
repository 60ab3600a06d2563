"""Topologies as people write them, and how fast their chips exchange bytes."""

import pytest

from moejax.plan.interconnect import interconnect
from moejax.plan.topology import Topology, check_compiler, parse, slices
from moejax.train.mesh import MeshShape

GB = 1e9


def links(text, **axes):
    topology = parse(text)
    shape = MeshShape(**{"data": 1, **axes})
    sizes = dict(zip(("data", "fsdp", "expert", "tensor"), shape.sizes(topology.devices), strict=True))
    found = interconnect(topology, sizes)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("text", "shape", "devices"),
    [("v5p:8x8x16", (8, 8, 16), 1024), ("V5E:16x16", (16, 16), 256), ("v4:2x2x1", (2, 2, 1), 4), ("cpu:8", (8,), 8)],
)
def test_a_topology_is_chips_along_each_dimension(text, shape, devices):
    found = parse(text)
    assert (found.shape, found.devices, found.name) == (shape, devices, text.lower())


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("v5x:4x4", "No plan can be made for 'v5x'; did you mean v5p or v5e"),
        ("h100:8", "No plan can be made for 'h100'; its chips are not joined to a torus"),
        ("v5p:8x8x9", "The nearest are .*v5p:8x8x8"),
        ("v5p:16x8x8", "The nearest are v5p:8x8x16"),
        ("v5e:4x4x4", "slices are 1x1, 2x2, 2x4"),
        (f"v5p:{'9' * 400}x1x1", "write it as"),
        (f"cpu:{'9' * 5_000}", "write the number of a CPU's devices"),
        ("v5p", "write it as"),
        ("cpu:many", "as cpu:8"),
    ],
)
def test_what_is_no_topology_is_answered_with_the_nearest(text, sentence):
    with pytest.raises(ValueError, match=sentence):
        parse(text)


def test_slices_are_cubes_of_four():
    assert (8, 8, 16) in slices("v5p")
    assert all(size % 4 == 0 for shape in slices("v5p")[6:] for size in shape)


def test_without_libtpu_its_extra_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'moejax\[plan\]'"):
        check_compiler(parse("v5p:4x4x4"))
    check_compiler(Topology("cpu", (8,)))


def test_a_gather_over_a_whole_cube_uses_six_links():
    found = links("v5p:4x4x4", fsdp=64)
    assert found.seconds("all-gather", ["fsdp"], 64 * GB) == pytest.approx(63 / 600)
    assert found.seconds("all-reduce", ["fsdp"], 64 * GB) == pytest.approx(2 * 63 / 600)


def test_along_a_line_the_last_chip_has_one_link():
    found = links("v5e:4x4", fsdp=4, expert=4)
    assert found.seconds("all-gather", ["expert"], 4 * GB) == pytest.approx(3 / 50)
    # Half of each chip's 4 GB crosses the one link in the middle, from two chips.
    assert found.seconds("all-to-all", ["expert"], 4 * GB) == pytest.approx(4 / 50)


def test_a_ring_halves_what_crosses_its_middle():
    found = links("v5p:8x8x8", fsdp=64, expert=8)
    assert found.seconds("all-to-all", ["expert"], 8 * GB) == pytest.approx(8 / 100)
    assert found.seconds("all-gather", ["fsdp"], 64 * GB) == pytest.approx(63 / 400)


def test_axes_that_share_a_dimension_share_its_links():
    found = links("v5p:4x4x4", fsdp=32, expert=2)
    alone, together = (found.segments[axes] for axes in (("expert",), ("fsdp", "expert")))
    assert sum(one.links for one in alone) < 2
    assert sum(one.links for one in together) == 6


def test_axes_of_one_device_exchange_nothing():
    assert links("v5p:4x4x4", fsdp=64).seconds("all-gather", ["expert"], GB) == 0
