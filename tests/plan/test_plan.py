"""A plan for 8 devices of a CPU says what a real training on them holds and sends."""

import importlib.util
import re
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from small_model import SMALL

from moejax.config import build, dump
from moejax.data.config import DataConfig
from moejax.errors import UserError
from moejax.laws.accounting import flops_per_token, params
from moejax.laws.chips import CHIPS
from moejax.model.loss import LossWeights
from moejax.model.runtime import Runtime
from moejax.plan.analytic_estimate import analytic_estimate, communication_volume
from moejax.plan.collectives import collectives
from moejax.plan.plan import Plan, check_plan, measure, parameter_bytes
from moejax.plan.process import plan
from moejax.plan.step_time import Roofline, model_flops, step_flops
from moejax.plan.topology import has_cuda_plugin, parse
from moejax.train.batch_schedule import RampStage
from moejax.train.devices import Speed
from moejax.train.mesh import MeshShape, batch_sharding, make_mesh
from moejax.train.optimizer import OptimizerConfig
from moejax.train.program import make_program
from moejax.train.training import Recipe, Training, phases

SHAPES = [MeshShape(data=2, fsdp=2, expert=2), MeshShape(data=1, fsdp=2, expert=2, tensor=2)]


def training(mesh, **runtime):
    return Training(
        name="small",
        architecture=SMALL.replace(
            vocab_size=256,
            model_dim=32,
            num_layers=3,
            num_heads=4,
            num_kv_heads=2,
            num_experts=8,
            expert_hidden=16,
            num_shared_experts=1,
            tied_embeddings=False,
        ),
        recipe=Recipe(
            budgets_tokens=(4096,),
            batch_tokens=512,
            data=DataConfig(sequence_length=32),
            optimizer=OptimizerConfig(learning_rate=1e-2),
            runtime=Runtime(scan_layers=True, **runtime),
            mesh=mesh,
        ),
    )


def test_a_batch_of_a_ramp_that_no_mesh_of_the_topology_splits_is_refused():
    one = training(MeshShape(data=8))
    check_plan(one, parse("cpu:8"))
    ramp = (RampStage(tokens=1024, batch_tokens=128),)
    with pytest.raises(UserError, match="4 sequences"):
        check_plan(replace(one, recipe=replace(one.recipe, batch_ramp=ramp)), parse("cpu:8"))


@pytest.fixture(scope="module", params=SHAPES, ids=["data fsdp expert", "fsdp expert tensor"])
def planned(request):
    one = training(request.param)
    one = replace(one, recipe=replace(one.recipe, batch_ramp=(RampStage(tokens=1024, batch_tokens=256),)))
    return one, measure(one, parse("cpu:8"))


def bytes_on_first_device(arrays):
    first = jax.devices()[0]
    return sum(
        shard.data.nbytes
        for leaf in jax.tree.leaves(arrays)
        for shard in leaf.addressable_shards
        if shard.device == first
    )


@pytest.mark.matrix(1)
def test_memory_and_collectives_are_those_of_a_real_step(planned):
    one, found = planned
    mesh = make_mesh(one.recipe.mesh)
    program = make_program(one, mesh)
    tokens = np.random.default_rng(0).integers(0, 256, program.batch["tokens"].shape).astype(np.int32)
    with jax.set_mesh(mesh):
        state = program.init(0)
        held = bytes_on_first_device(state.params), bytes_on_first_device(state.optimizer), bytes_on_first_device(state)
        step = program.compiled_step()
        state, metrics = step(state, {"tokens": jax.device_put(tokens, batch_sharding(mesh))}, phases(one)[0].schedule)
    assert np.isfinite(metrics["loss"])
    # With a ramp, fewer than steps times the last batch.
    assert found.tokens == 4096
    memory = found.memory
    assert held[:2] == (memory.parameters, memory.optimizer_state)
    assert held[2] == memory.parameters + memory.optimizer_state + memory.other_state
    measured = step.memory_analysis()
    assert memory.temporaries >= measured.temp_size_in_bytes > 0
    assert memory.temporaries <= measured.temp_size_in_bytes + measured.output_size_in_bytes
    with jax.set_mesh(mesh):
        evaluation = program.lowered_evaluation().compile().memory_analysis()
    assert memory.evaluation == evaluation.temp_size_in_bytes + evaluation.output_size_in_bytes > 0
    # Whichever needs more is what must fit.
    small, large = (replace(memory, evaluation=memory.temporaries + more) for more in (-1, 1000))
    assert large.total - small.total == 1000
    real = Counter()
    for collective in collectives(step.as_text(), dict(mesh.shape)):
        if not collective.is_rare:
            real[collective.kind, "+".join(collective.axes)] += collective.times
    assert real == {(one.kind, one.axes): one.count for one in found.communication if one.count}


def test_a_step_has_the_same_utilization_in_a_plan_and_in_a_training(planned, monkeypatch):
    one, found = planned
    seconds = Roofline(compute_seconds=2e-3, memory_seconds=0.0, link_seconds={})
    found = replace(found, topology="v5p:2x2x2", roofline=seconds)
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(device_kind="TPU v5p")] * 8)
    monkeypatch.setattr(jax, "device_count", lambda: 8)
    assert found.mfu == pytest.approx(Speed(one).of(one.recipe.batch_tokens, 2e-3)["mfu"], rel=1e-12)


def test_no_collective_moves_all_experts_of_all_layers(planned):
    one, found = planned
    experts = 4 * params(one.architecture).routed_experts
    largest = max(one.bytes / one.count for one in found.communication if one.count)
    assert largest < experts / one.architecture.num_layers


def test_parameter_bytes_need_no_device(planned):
    one, found = planned
    assert parameter_bytes(one, found.mesh) == found.memory.parameters


def cut(one, microbatches):
    return replace(one, recipe=replace(one.recipe, microbatches=microbatches))


@pytest.mark.parametrize(
    ("shape", "microbatches", "remat", "mtp_layers", "communication"),
    [
        (MeshShape(data=2, fsdp=2, expert=2), 2, "none", 0, "all_gather"),
        (MeshShape(data=2, fsdp=2, expert=2), 1, "full", 2, "all_gather"),
        *(
            (MeshShape(data=1, fsdp=2, expert=4), 1, remat, 0, communication)
            for remat in ("none", "full")
            for communication in ("all_to_all", "ragged_all_to_all")
        ),
        *(
            (shape, parts, remat, 0, "all_gather")
            for shape in (MeshShape(data=8), MeshShape(data=4, fsdp=2), MeshShape(data=1, fsdp=2, expert=4))
            for parts, remat in ((1, "none"), (2, "none"), (2, "full"))
        ),
    ],
)
@pytest.mark.matrix(1)
@pytest.mark.slow
def test_a_guess_sends_the_bytes_of_the_compiled_program(shape, microbatches, remat, mtp_layers, communication):
    """Where tokens are split; XLA's CPU adds up gradients that it could scatter along fsdp, and counts of loads. Of
    modules outside the scan it gathers attention and projection once for both passes. A CPU has no ragged exchange."""
    one = cut(training(shape, remat=remat, expert_communication=communication), microbatches)
    one = replace(one, architecture=one.architecture.replace(num_mtp_layers=mtp_layers))
    found = measure(one, parse("cpu:8"))
    estimated, compiled = Counter(), Counter()
    sent = [
        ("+".join(axes), kind, bytes_) for kind, axes, bytes_ in communication_volume(one, found.mesh, "cpu") if axes
    ]
    for counter, every in ((estimated, sent), (compiled, [(e.axes, e.kind, e.bytes) for e in found.communication])):
        for axes, kind, bytes_ in every:
            added = axes == "fsdp" and kind == "all-reduce"
            counter["fsdp" if axes == "fsdp" else "others", "reduce-scatter" if added else kind] += bytes_
    # What is rare counts 0 bytes, and how many rows travel is a few numbers.
    compiled = {what: bytes_ for what, bytes_ in compiled.items() if bytes_ > 1000}
    assert estimated.keys() == compiled.keys()
    for what, bytes_ in compiled.items():
        assert 0.9 <= estimated[what] / bytes_ <= (1.1 if mtp_layers else 1.05), what


def test_gradients_that_are_added_in_bfloat16_send_half_of_all_but_the_tables():
    sums = {}
    for reduce in ("float32", "bfloat16"):
        one = cut(training(SHAPES[0], compute_dtype="bfloat16", reduce_dtype=reduce), 2)
        sent = communication_volume(one, vars(SHAPES[0]), "tpu")
        sums[reduce] = sum(b for _, axes, b in sent if set(axes) & {"data", "fsdp"} and _ != "all-gather")
    table = params(one.architecture).vocabulary * 4
    # Scattered whole, and each half added over data and expert; twice, as there are two microbatches.
    assert sums["float32"] + 2 * (table + table / 2) == pytest.approx(2 * sums["bfloat16"])


def test_gradients_that_are_added_in_float32_are_guessed_to_need_their_memory():
    wide, narrow = (
        analytic_estimate(
            training(SHAPES[0], compute_dtype="bfloat16", reduce_dtype=reduce), parse("cpu:8")
        ).memory.total
        for reduce in ("float32", "bfloat16")
    )
    assert wide > narrow


def test_a_guess_needs_more_memory_than_the_state(planned):
    one, found = planned
    assert analytic_estimate(one, parse("cpu:8")).memory.total > 3 * found.memory.parameters


def test_a_plan_travels_as_plain_data(planned):
    _, found = planned
    assert build(Plan, dump(found)) == found


@pytest.mark.slow
def test_a_process_of_its_own_says_the_same():
    one = training(SHAPES[0])
    there, here = plan(one, parse("cpu:8")), measure(one, parse("cpu:8"))
    assert replace(there, compile_seconds=0.0) == replace(here, compile_seconds=0.0)


@pytest.mark.slow
def test_a_plan_may_have_more_devices_than_this_process():
    found = plan(training(MeshShape(data=4, fsdp=2, expert=2)), parse("cpu:16"))
    assert (found.chips, found.fits, found.roofline) == (16, True, None)


def test_computing_again_costs_flops_that_the_model_does_not_need():
    none, dots, full = (training(SHAPES[0], remat=remat) for remat in ("none", "dots", "full"))
    assert model_flops(none) == step_flops(none) == model_flops(full)
    assert step_flops(none) < step_flops(dots) < step_flops(full) < 4 / 3 * model_flops(none)
    scores, experts, both = (
        training(SHAPES[0], remat=one) for one in ("attn_out", "moe_gate_up", "attn_out+moe_gate_up")
    )
    spared = [step_flops(full) - step_flops(one) for one in (scores, experts, both)]
    assert 0 < spared[0] < spared[2] < step_flops(full) - step_flops(none)
    assert spared[0] + spared[1] == pytest.approx(spared[2])


def test_counting_loads_costs_flops_and_the_previous_steps_loads_do_not():
    whole = cut(training(SHAPES[0]), 2)
    lagging = replace(whole, recipe=replace(whole.recipe, loss=LossWeights(balance_loads="previous_step")))
    assert step_flops(whole) > step_flops(lagging) == model_flops(whole)


def test_a_mesh_that_does_not_tile_is_a_sentence():
    with pytest.raises(ValueError, match="which does not fit 8 devices"):
        measure(training(MeshShape(data=3)), parse("cpu:8"))


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed (extra: plan)")
@pytest.mark.parametrize("communication", ["all_gather", "all_to_all"])
def test_a_step_compiles_for_a_tpu_that_is_not_there(communication, tmp_path):
    runtime = {"compute_dtype": "bfloat16", "expert_communication": communication, "remat": "full"}
    one = training(MeshShape(data=1, fsdp=2, expert=2), **runtime)
    found = plan(one, parse("v5p:2x2x1"), text_to=tmp_path / "program.txt")
    # The embedding's gradient is a scatter that adds, in float32.
    adding = re.findall(r"= (\w+)\[[^\n]*? scatter\(", (tmp_path / "program.txt").read_text())
    assert "f32" in adding
    assert "bf16" not in adding
    assert found.fits
    assert found.memory.parameters == parameter_bytes(one, found.mesh)
    assert found.roofline is not None
    assert 0 < found.mfu_without_overlap <= found.mfu < 1
    kinds = {(e.kind, e.axes) for e in found.communication if e.count}
    assert {("all-gather", "fsdp"), ("reduce-scatter", "fsdp")} <= kinds
    assert (("all-to-all", "expert") in kinds) == (communication == "all_to_all")
    # Whatever the condition on buffers: a forward pass, the same again, and two products backwards.
    routed = flops_per_token(one.architecture, 32).routed_experts * one.recipe.batch_tokens / found.devices
    assert found.program is not None
    assert found.program.pallas_seconds_of_rows > 4 * routed / CHIPS["v5p"].flops_per_second
    assert found.roofline.step_seconds < found.program.floor_seconds <= found.program.cycles_seconds
    # No gradient, and nothing computed again.
    evaluated, tokens = found.evaluation_program, found.evaluation_tokens
    assert tokens == one.recipe.batch_tokens
    assert evaluated is not None
    assert found.evaluation_roofline.step_seconds < evaluated.floor_seconds < 0.5 * found.program.floor_seconds


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed (extra: plan)")
def test_between_two_slices_only_sums_travel():
    one = training(MeshShape(data=1, fsdp=2, expert=2), compute_dtype="bfloat16", remat="full")
    found = plan(one, parse("2xv5p:2x2x1"))
    assert (found.chips, found.mesh["dcn_data"], found.mesh["data"]) == (8, 2, 1)
    (between,) = [e for e in found.communication if "DCN" in e.links]
    assert (between.axes, between.kind, set(between.links)) == ("dcn_data", "all-reduce", {"DCN"})
    # Gradients in float32, each device its part, in whole tiles of memory.
    assert between.bytes > found.memory.parameters
    assert between.bytes == between.bytes_sent == between.links["DCN"]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed (extra: plan)")
def test_a_chip_of_ironwood_is_two_devices():
    one = training(MeshShape(data=2, fsdp=2, expert=2), compute_dtype="bfloat16", remat="full")
    found = plan(one, parse("tpu7x:2x2x1"))
    assert (found.chips, found.devices) == (4, 8)
    assert found.memory.limit == 96 * 2**30
    # Nobody states its clock.
    assert not found.has_cycles
    # Both are the links', if these take longest.
    assert 0 < found.mfu_of_program_floor <= found.mfu < 1


@pytest.mark.skipif(not has_cuda_plugin(), reason="JAX's CUDA plugin is not installed (extra: cuda13)")
@pytest.mark.parametrize("chip", ["h100", "b200"])
def test_a_step_compiles_for_gpus_that_are_not_there(chip):
    one = training(MeshShape(data=2, fsdp=4, expert=2), compute_dtype="bfloat16", remat="full")
    found = plan(one, parse(f"{chip}:2x8"))
    assert found.fits
    assert found.memory.parameters == parameter_bytes(one, found.mesh)
    assert 0 < found.mfu_without_overlap <= found.mfu < 1
    # Products counted in the program lie between those of the architecture and those with all that remat may compute
    # again, in whatever padding its kernels have.
    program = found.program
    assert found.model_flops < found.devices * program.flops < 1.1 * found.step_flops
    assert found.roofline.compute_seconds < program.floor_seconds
    assert 0 < program.waited_seconds < sum(program.link_seconds.values())
    assert found.evaluation_program.floor_seconds < 0.5 * program.floor_seconds
    by_axes = {e.axes: e for e in found.communication if e.count}
    assert set(by_axes["fsdp"].links) == {"NVLink"}
    assert set(by_axes["data"].links) == {"InfiniBand"}


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed (extra: plan)")
def test_what_does_not_fit_is_a_plan_that_says_so():
    one = training(MeshShape(data=1, fsdp=4), compute_dtype="bfloat16", remat="full")
    large = replace(one, architecture=one.architecture.replace(model_dim=4096, expert_hidden=16_384))
    found = plan(large, parse("v5e:2x2"))
    assert not found.fits
    assert found.roofline is None
    assert "hbm" in found.does_not_fit.lower()
