"""Topologies as people write them, and how fast their chips exchange bytes."""

import importlib.util
import itertools
import math
import re

import pytest

from moejax.laws.chips import CHIPS
from moejax.plan.analytic_estimate import divisors
from moejax.plan.interconnect import interconnect
from moejax.plan.process import environment
from moejax.plan.topology import HOST_CHIPS, Topology, check_compiler, parse, slices
from moejax.train.mesh import MeshShape
from moejax.wording import install_command

GB = 1e9


def links(text, **axes):
    topology = parse(text)
    shape = MeshShape(**{"data": 1, **axes})
    inside = shape.slice_sizes(topology.devices, topology.slices)
    sizes = dict(zip(("data", "fsdp", "expert", "tensor"), inside, strict=True))
    found = interconnect(topology, sizes)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("text", "shape", "devices"),
    [
        ("v5p:8x8x16", (8, 8, 16), 1024),
        ("V5E:16x16", (16, 16), 256),
        ("v4:2x2x1", (2, 2, 1), 4),
        ("cpu:8", (8,), 8),
        ("H100:8", (1, 8), 8),
        ("h200:8x8", (8, 8), 64),
        ("gb200:2x72", (2, 72), 144),
        ("a100:2", (1, 2), 2),
        ("2xv5p:4x4x4", (4, 4, 4), 128),
        ("tpu7x:2x2x2", (2, 2, 2), 16),
    ],
)
def test_a_topology_is_chips_along_each_dimension(text, shape, devices):
    found = parse(text)
    assert (found.shape, found.devices, found.name) == (shape, devices, text.lower())


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("v5x:4x4", "No plan can be made for 'v5x'; did you mean v5p or v5e"),
        ("h800:8", "No plan can be made for 'h800' because its interconnect is unknown; did you mean h200"),
        ("h100:8x16", "There is no topology 'h100:8x16'; write HOSTSxGPUS, such as h100:8 or h100:8x8"),
        ("h100:3", "or 1, 2 or 4 GPUs of a single host"),
        ("h100:2x4", "with all 8 GPUs of each host"),
        ("gb200:2x2", "There is no topology 'gb200:2x2'; write RACKSxGPUS, such as gb200:72 or gb200:2x64"),
        ("h100:2x2x8", "The topology is 'h100:2x2x8'; write HOSTSxGPUS"),
        ("tpu7x", "give a valid topology: tpu7x:1x1x1, tpu7x:1x2x1, tpu7x:2x2x1, .* and [0-9]+ more"),
        ("v5p:2x2", "slices are 1x1x1, 1x2x1, .* Larger slices have edges .* Give one of the nearest: v5p:2x2x1"),
        ("v5p:4x4", "Give one of the nearest: v5p:2x2x4"),
        ("v5p:8x8x9", "Give one of the nearest: .*v5p:8x8x8"),
        ("v5p:16x8x8", "Give one of the nearest: v5p:8x8x16"),
        ("v5e:4x4x4", "slices are 1x1, 2x2, 2x4"),
        (f"v5p:{'9' * 400}x1x1", "give a valid topology:"),
        (f"cpu:{'9' * 5_000}", "write the number of CPU devices"),
        ("v5p", "give a valid topology:"),
        ("2xh100:8", "only TPUs have slices, such as 2xv5p:4x4x4. Write GPU hosts like h100:2x8"),
        ("2xcpu:8", "only TPUs have slices"),
        ("0xv5p:2x2x1", "give 1 to 64 slices"),
        ("2xv4:2x2x1", "whose network bandwidth is not published; use one slice, v4:2x2x1"),
        ("cpu:many", "as cpu:8"),
    ],
)
def test_what_is_no_topology_is_answered_with_the_nearest(text, sentence):
    with pytest.raises(ValueError, match=sentence):
        parse(text)


def test_slices_are_cubes_of_four():
    assert (8, 8, 16) in slices("v5p")
    assert all(size % 4 == 0 for shape in slices("v5p")[6:] for size in shape)


WITHIN_A_HOST = [
    (chip, shape)
    for chip in ("v4", "v5p", "tpu7x", "v5e", "v6e")
    for shape in slices(chip)
    if math.prod(shape) <= HOST_CHIPS
]


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed (extra: plan)")
@pytest.mark.parametrize(("chip", "shape"), WITHIN_A_HOST)
def test_a_part_of_a_host_has_its_devices(monkeypatch, chip, shape):
    # As the process has it that compiles: no machine of a pod is asked for its name.
    for name, value in environment(Topology(chip, shape)).items():
        if "TPU" in name:
            monkeypatch.setenv(name, value)
    for several in (1, 2):
        topology = Topology(chip, shape, several)
        devices = topology.compile_only_devices()
        assert len(devices) == topology.devices
        assert len({getattr(device, "slice_index", 0) for device in devices}) == several


def test_what_compiles_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=rf"\(no GPU is needed\)\. Run {re.escape(install_command('cuda13'))}"):
        check_compiler(parse("h100:8"))
    with pytest.raises(ValueError, match=re.escape(install_command("plan"))):
        check_compiler(parse("v5p:4x4x4"))
    check_compiler(Topology("cpu", (8,)))


def test_clusters_of_gpus_are_of_whole_hosts():
    assert slices("h100")[:6] == [(1, 1), (1, 2), (1, 4), (1, 8), (2, 8), (4, 8)]
    assert slices("gb200")[5:8] == [(1, 32), (1, 64), (2, 64)]
    assert all(parse(Topology(chip, shape).name).shape == shape for chip in ("b200", "gb200") for shape in slices(chip))


def test_inside_a_host_all_goes_over_nvlink():
    found = links("h100:8x8", data=8, fsdp=8)
    assert found.seconds("all-gather", ["fsdp"], 8 * GB) == pytest.approx(7 / 450)
    assert found.seconds("all-to-all", ["fsdp"], 8 * GB) == pytest.approx(7 / 450)
    # A GPU of each host, through the network card of each.
    assert found.bytes_sent("all-reduce", ["data"], 8 * GB) == {"InfiniBand": pytest.approx(14 * GB)}
    assert found.seconds("all-reduce", ["data"], 8 * GB) == pytest.approx(14 / 50)


def test_the_gpus_of_a_host_fetch_what_is_outside_in_parts():
    found = links("h100:4x8", fsdp=32)
    sent = found.bytes_sent("all-gather", ["fsdp"], 32 * GB)
    # Of 24 GB from other hosts an eighth each, the other 28 of 31 from neighbors.
    assert sent == {"NVLink": pytest.approx(28 * GB), "InfiniBand": pytest.approx(3 * GB)}
    assert found.seconds("all-gather", ["fsdp"], 32 * GB) == pytest.approx(28 / 450)
    assert found.seconds("all-to-all", ["fsdp"], 32 * GB) == pytest.approx(24 / 50)
    assert found.seconds("collective-permute", ["fsdp"], GB) == pytest.approx(1 / 50)


def test_nvlink_reaches_a_rack_of_gb200():
    found = links("gb200:2x64", data=2, expert=64)
    assert found.seconds("all-to-all", ["expert"], 64 * GB) == pytest.approx(63 / 900)
    assert set(found.bytes_sent("all-reduce", ["data", "expert"], GB)) == {"NVLink", "InfiniBand"}


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


def test_slices_share_sums_over_the_data_centers_network():
    found = links("2xv5p:4x4x4", data=4, fsdp=16)
    assert found.bytes_sent("all-reduce", ["dcn_data"], GB) == {"DCN": pytest.approx(GB)}
    assert found.seconds("all-reduce", ["dcn_data"], GB) == pytest.approx(8 / 50)
    assert found.seconds("all-gather", ["fsdp"], GB) == links("v5p:4x4x4", data=4, fsdp=16).seconds(
        "all-gather", ["fsdp"], GB
    )


def test_two_devices_of_a_chip_share_its_links():
    """Of what a group has that covers whole chips, each device fetches a half."""
    found = links("tpu7x:4x4x4", fsdp=128)
    sent = found.bytes_sent("all-gather", ["fsdp"], 128 * GB)
    assert sent == {"ICI": pytest.approx(63 * GB), "within the chip": pytest.approx(64 * GB)}
    assert found.seconds("all-gather", ["fsdp"], 128 * GB) == pytest.approx(63 / 300)
    pair = links("tpu7x:4x4x4", data=64, tensor=2)
    assert set(pair.bytes_sent("all-reduce", ["tensor"], GB)) == {"within the chip"}
    assert pair.seconds("all-reduce", ["tensor"], GB) == 0


def test_a_permutation_takes_as_long_as_its_fullest_link():
    # Two devices a chip in a row: every other step of a ring stays in its chip, and no other uses the chip's link.
    around = tuple((one, (one + 1) % 16) for one in range(16))
    ironwood = links("tpu7x:2x2x2", fsdp=16)
    assert ironwood.bytes_sent("collective-permute", ["fsdp"], GB, around) == {
        "within the chip": pytest.approx(GB / 2),
        "ICI": pytest.approx(GB / 2),
    }
    assert ironwood.seconds("collective-permute", ["fsdp"], GB, around) == pytest.approx(1 / 100)
    # On a ring of four a step has a link of its own, and what crosses half of it goes both ways round. On a line it
    # does not, and two that go the same way share.
    ring, line = links("v5p:4x4x4", data=16, fsdp=4), links("v5e:4x8", data=4, fsdp=8)
    for found, pairs, seconds in (
        (ring, ((0, 1), (1, 2), (2, 3), (3, 0)), 1 / 100),
        (ring, ((0, 2),), 0.5 / 100),
        (line, ((0, 2),), 1 / 50),
        (line, ((0, 2), (1, 3)), 2 / 50),
        (line, ((0, 2), (3, 1)), 1 / 50),
    ):
        assert found.seconds("collective-permute", ["fsdp"], GB, pairs) == pytest.approx(seconds), pairs


def crossing_seconds(chips, groups):
    """All-to-all of 1 GB a device, 2 devices a chip in so many groups, counted link by link: bytes over the link, of
    a chip's speed, between two neighbors of a ring, that go this way round."""
    devices = [(chip, core) for chip in range(chips) for core in range(2)]
    passing = 0.0
    for (start, one), (end, other) in itertools.product(devices, repeat=2):
        steps = (end - start) % chips
        if groups == 1 or one == other:
            each = GB / (2 * chips / groups)
            # Both ways round where they are as long.
            share = 1.0 if 2 * steps < chips else 0.5 if 2 * steps == chips else 0.0
            passing += each * share * any((start + step) % chips == 0 for step in range(steps))
    return passing / CHIPS["tpu7x"].link_bytes_per_second


def test_all_to_all_takes_as_long_for_both_devices_of_a_chip_as_for_groups_of_one_each():
    both, one_each = (links("tpu7x:4x4x4", data=-1, expert=size) for size in (8, 4))
    assert both.seconds("all-to-all", ["expert"], GB) == pytest.approx(crossing_seconds(4, groups=1))
    assert one_each.seconds("all-to-all", ["expert"], GB) == pytest.approx(crossing_seconds(4, groups=2))
    assert crossing_seconds(4, groups=1) == crossing_seconds(4, groups=2)
    # Also over all dimensions.
    both, one_each = (links("tpu7x:4x4x4", data=-1, expert=size) for size in (128, 64))
    assert both.seconds("all-to-all", ["expert"], GB) == one_each.seconds("all-to-all", ["expert"], GB)


def test_whatever_the_mesh_bytes_on_links_take_time():
    """Also of groups that do not cover whole dimensions, such as the two ends of a square's diagonal."""
    for text in ("v5e:2x2", "tpu7x:2x2x1"):
        devices = parse(text).devices
        for fsdp, expert in itertools.product(divisors(devices), repeat=2):
            if devices % (fsdp * expert) == 0:
                found = links(text, data=-1, fsdp=fsdp, expert=expert)
                for axes in (["data"], ["fsdp"], ["expert"], ["data", "expert"]):
                    for kind in ("all-reduce", "all-to-all"):
                        assert ("ICI" in found.bytes_sent(kind, axes, GB)) == (found.seconds(kind, axes, GB) > 0)


def test_axes_of_one_device_exchange_nothing():
    assert links("v5p:4x4x4", fsdp=64).seconds("all-gather", ["expert"], GB) == 0
