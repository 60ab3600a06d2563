"""What a compiled program says its devices send each other."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from moejax.kernels.control_flow import cond_likely
from moejax.plan.collectives import Collective, collectives

SIZES = {"data": 2, "expert": 2, "tensor": 2}


@pytest.fixture(scope="module")
def known():
    """One collective of each kind in a loop of five, one of them rare, and a last one behind the loop."""
    mesh = jax.make_mesh(tuple(SIZES.values()), tuple(SIZES), (AxisType.Auto,) * 3)

    def on_device(x):
        x = jax.lax.psum_scatter(jnp.sin(jax.lax.all_gather(x, "expert", tiled=True)), "expert", tiled=True)
        x = jax.lax.all_to_all(x, "data", 1, 1, tiled=True)
        x = jax.lax.ppermute(x, "tensor", [(0, 1), (1, 0)])
        return cond_likely(x.sum() > 0, lambda x: x, lambda x: jax.lax.psum(x, ("data", "tensor")), x)

    def program(x):
        split = P(("data", "expert"))
        step = jax.shard_map(on_device, mesh=mesh, in_specs=split, out_specs=split, check_vma=False)
        return jax.lax.scan(lambda x, _: (step(x), None), x, None, length=5)[0].sum()

    x = jax.ShapeDtypeStruct((16, 8), jnp.bfloat16, sharding=NamedSharding(mesh, P(("data", "expert"))))
    return jax.jit(program).lower(x).compile().as_text()


def test_every_collective_is_found_with_its_axes_bytes_and_how_often_it_runs(known):
    found = [(c.kind, c.axes, c.devices, c.times, c.loops, c.is_rare) for c in collectives(known, SIZES)]
    assert found == [
        ("all-gather", ("expert",), 2, 5, 1, False),
        ("reduce-scatter", ("expert",), 2, 5, 1, False),
        ("all-to-all", ("data",), 2, 5, 1, False),
        ("collective-permute", ("tensor",), 2, 5, 1, False),
        ("all-reduce", ("data", "tensor"), 4, 5, 1, True),
        ("all-reduce", ("data", "expert"), 4, 1, 0, False),
    ]


def test_bytes_are_those_of_the_whole_array_exchanged(known):
    # A device holds 4 x 8 numbers. XLA's CPU sums 2-byte numbers as 4-byte ones, and may move them so.
    *in_loop, last = [c.bytes for c in collectives(known, SIZES)]
    share = 4 * 8
    for found, numbers in zip(in_loop, (2 * share, 2 * share, share, share, share), strict=True):
        assert found in (2 * numbers, 4 * numbers)
    assert last in (2, 4)


def instruction(words, kind="all-gather", result="f32[16,8]{1,0:T(8,128)S(1)}"):
    return f"ENTRY %main.1_spmd (param: f32[2,8]) -> f32[16,8] {{\n  %x.1 = {result} {kind}(%param), {words}\n}}\n"


@pytest.mark.parametrize(
    ("groups", "axes", "devices"),
    [
        ("{{0,1},{2,3},{4,5},{6,7}}", ("tensor",), 2),
        ("{{0,2,4,6},{1,3,5,7}}", ("data", "expert"), 4),
        ("{}", ("data", "expert", "tensor"), 8),
        ("[4,2]<=[8]", ("tensor",), 2),
        ("[2,4]<=[4,2]T(1,0)", ("data", "expert"), 4),
        ("[4,2]<=[2,2,2]T(0,2,1)", ("expert",), 2),
        ("mesh['a'=2,'b'=4] {'a'}", ("data",), 2),
        ("mesh['a'=2,'b'=4] {'b'}", ("expert", "tensor"), 4),
        ("mesh['a'=2,'b'=4] {'b':(1)2}", ("expert",), 2),
        ("mesh['a'=2,'b'=4] {'a','b':(2)2}", ("data", "tensor"), 4),
        ("mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'b'}", ("data",), 2),
        ("mesh['a'=4,'b'=2], device_ids=(0,2,1,3,4,6,5,7) {'b'}", ("expert",), 2),
    ],
)
def test_groups_are_read_in_every_way_that_xla_writes_them(groups, axes, devices):
    (found,) = collectives(instruction(f"replica_groups={groups}, dimensions={{0}}"), SIZES)
    assert (found.axes, found.devices, found.bytes) == (axes, devices, 4 * 16 * 8)


@pytest.mark.parametrize("groups", ["{{0},{1},{2},{3},{4},{5},{6},{7}}", "[8,1]<=[8]", "mesh['a'=8] {}"])
def test_what_reaches_no_other_device_is_left_out(groups):
    assert collectives(instruction(f"replica_groups={groups}, dimensions={{0}}"), SIZES) == []


@pytest.mark.parametrize(
    ("kind", "result", "size"),
    [
        ("all-gather-start", "(bf16[2,8]{1,0:T(8,128)(2,1)}, bf16[16,8]{1,0})", 2 * 16 * 8),
        ("all-gather-start", "((f32[2]{0}, s8[3]{0}), (f32[16]{0}, /*index=1*/s8[24]{0}))", 4 * 16 + 24),
        ("all-reduce-start", "(f32[16]{0}, pred[8]{0})", 4 * 16 + 8),
        ("reduce-scatter", "f32[2,8]{1,0}", 8 * 4 * 2 * 8),
    ],
)
def test_a_collective_that_runs_beside_others_counts_what_comes_out_of_it(kind, result, size):
    (found,) = collectives(instruction("replica_groups={}", kind, result), SIZES)
    assert found.bytes == size


@pytest.mark.parametrize(("sent", "received"), [(16, 20), (20, 16)])
def test_a_ragged_exchange_sends_rows_and_not_its_buffer(sent, received):
    numbers = ", ".join(f"%s.{place}" for place in range(4))
    program = (
        f"ENTRY %main.1_spmd (rows: bf16[{sent},8]) -> bf16[{received},8] {{\n"
        f"  %rows = bf16[{sent},8]{{1,0}} parameter(0)\n"
        f"  %out = bf16[{received},8]{{1,0}} broadcast(%zero), dimensions={{}}\n"
        f"  %x = bf16[{received},8]{{1,0}} ragged-all-to-all(%rows, %out, {numbers}), replica_groups={{}}\n}}\n"
    )
    (found,) = collectives(program, SIZES)
    assert (found.kind, found.bytes) == ("ragged-all-to-all", 2 * 16 * 8)


def test_a_permutation_is_along_the_axes_that_its_pairs_cross():
    words = "source_target_pairs={{0,1},{1,0},{2,2},{4,5}}"
    (found,) = collectives(
        instruction(words, "collective-permute-start", "(f32[4]{0}, f32[4]{0}, u32[], u32[])"), SIZES
    )
    assert (found.axes, found.bytes) == (("tensor",), 16)


def test_what_is_called_once_is_counted_once_for_every_call():
    called = "%inner (p: f32[2,8]) -> f32[16,8] {\n  %g = f32[16,8]{1,0} all-gather(%p), replica_groups={}\n}\n"
    calls = "ENTRY %main (x: f32[2,8]) -> f32[16,8] {\n" + "".join(
        f"  %{name} = f32[16,8]{{1,0}} {how}=%inner, control-predecessors={{%other}}\n"
        for name, how in (("a", "call(%x), to_apply"), ("b", "fusion(%x), kind=kLoop, calls"))
    )
    assert [c.times for c in collectives(called + calls, SIZES)] == [1, 1]


def test_what_a_sparse_core_exchanges_counts():
    """As libtpu writes it for a TPU7x."""
    text = """
%called_computation.47 (param: bf16[8,16], token: token[]) -> bf16[16,16] {
  %param = bf16[8,16]{1,0} parameter(0)
  ROOT %all-gather.1 = bf16[16,16]{1,0} all-gather(%param), channel_id=7, replica_groups={{0,1},{2,3},{4,5},{6,7}}
}, execution_thread="sparsecore"

ENTRY %main.1_spmd (x: bf16[8,16]) -> bf16[16,16] {
  %x = bf16[8,16]{1,0} parameter(0)
  %start = ((bf16[8,16]{1,0}, token[]), bf16[16,16]{1,0}) call-start(%x), async_execution_thread="sparsecore", to_apply=%called_computation.47
  ROOT %done = bf16[16,16]{1,0} call-done(%start)
}
"""  # noqa: E501
    (found,) = collectives(text, SIZES)
    assert (found.kind, found.axes, found.bytes, found.times) == ("all-gather", ("tensor",), 512, 1)


@pytest.mark.parametrize(
    ("emitter", "kind", "sent"),
    [("SingleInputAllReduceScatterFusion", "reduce-scatter", 256), ("RotatedPincerEmitter", "all-reduce", 512)],
)
def test_a_sum_of_which_a_tpu_keeps_a_part_in_one_kernel_is_a_scatter(emitter, kind, sent):
    """As libtpu writes it for a v5p, of arrays that were filled up."""
    text = f"""
%all-reduce-scatter.1 (input: f32[14,8]) -> f32[8,8] {{
  %input = f32[14,8]{{1,0}} parameter(0)
  %zero = f32[] constant(0)
  %pad = f32[16,8]{{1,0}} pad(%input, %zero), padding=0_2x0_0
  %all-reduce.1 = f32[16,8]{{1,0}} all-reduce(%pad), channel_id=2, replica_groups={{{{0,1}},{{2,3}},{{4,5}},{{6,7}}}}
  %start = s32[] constant(0)
  ROOT %part = f32[8,8]{{1,0}} dynamic-slice(%all-reduce.1, %start, %start), dynamic_slice_sizes={{8,8}}
}}

ENTRY %main (x: f32[14,8]) -> f32[8,8] {{
  %x = f32[14,8]{{1,0}} parameter(0)
  ROOT %fusion = f32[8,8]{{1,0}} fusion(%x), kind=kCustom, calls=%all-reduce-scatter.1, backend_config={{"emitter":"{emitter}"}}
}}
"""  # noqa: E501
    (found,) = collectives(text, SIZES)
    assert (found.kind, found.axes, found.bytes, found.bytes_sent) == (kind, ("tensor",), 512, sent)


def test_an_exchange_woven_into_others_is_one():
    woven = "  %g.{} = f32[16,8]{{1,0}} all-gather(%p), channel_id=7, replica_groups={{}}"
    woven += ', frontend_attributes={{chain_id="3"}}\n'
    inner = "%inner (p: f32[2,8]) -> f32[16,8] {\n" + woven.format(1) + "}\n"
    loop = '  %w = f32[16,8]{1,0} while(%x), body=%inner, backend_config={"known_trip_count":{"n":"9"}}\n'
    entry = "ENTRY %main (x: f32[2,8]) -> f32[16,8] {\n" + woven.format(2) + loop + "}\n"
    assert [(c.kind, c.times) for c in collectives(inner + entry, SIZES)] == [("all-gather", 1)]


def test_rings_send_a_share_of_the_array_and_a_sum_goes_round_twice():
    def sent(kind):
        return Collective(kind=kind, axes=("data",), devices=4, bytes=400).bytes_sent

    assert (sent("all-gather"), sent("reduce-scatter"), sent("all-to-all")) == (300, 300, 300)
    assert (sent("all-reduce"), sent("collective-permute")) == (600, 400)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("HloModule empty", "no ENTRY"),
        (instruction("replica_groups=someday"), "device groups of a collective cannot be parsed"),
    ],
)
def test_what_cannot_be_read_is_said(text, sentence):
    with pytest.raises(ValueError, match=sentence):
        collectives(text, SIZES)
