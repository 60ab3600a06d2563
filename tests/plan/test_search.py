"""Which ways to run a training are tried, in which order, and what is offered where none of its own fits."""

import math
from dataclasses import replace

import pytest

from moejax.architecture import Architecture
from moejax.data.config import DataConfig
from moejax.errors import UserError
from moejax.laws.accounting import flops_per_token, mtp_params, params
from moejax.laws.memory import training_memory
from moejax.model.runtime import Runtime
from moejax.plan.analytic_estimate import analytic_estimate, communication_volume
from moejax.plan.interconnect import interconnect
from moejax.plan.plan import ChipMemory, Plan, abstract_mesh, mesh_sizes, parameter_bytes
from moejax.plan.program_time import ProgramTime, filled_rows
from moejax.plan.search import candidates, named_policies, ranked, remedies, search, with_mesh_that_fits
from moejax.plan.step_time import Roofline, value_bytes
from moejax.plan.summary import SHOWN, estimate_summary, estimated_search_summary, search_summary, summary
from moejax.plan.topology import parse
from moejax.report import render
from moejax.train.mesh import MeshShape
from moejax.train.training import Recipe, Training

V5E = parse("v5e:4x4")


def training(remat="none", microbatches=1, mesh=None):
    return Training(
        name="large",
        architecture=Architecture(
            vocab_size=32_768,
            model_dim=2048,
            num_layers=16,
            num_heads=16,
            num_kv_heads=16,
            head_dim=128,
            num_experts=64,
            top_k=8,
            expert_hidden=1024,
        ),
        recipe=Recipe(
            budgets_tokens=(2**40,),
            batch_tokens=2**18,
            microbatches=microbatches,
            data=DataConfig(sequence_length=4096),
            runtime=Runtime(compute_dtype="bfloat16", scan_layers=True, remat=remat),
            mesh=mesh or MeshShape(data=1, fsdp=16),
        ),
    )


def test_rows_of_experts_that_a_name_keeps_have_the_room_of_a_devices_buffer():
    def kept(names, factor):
        one = training(names, mesh=MeshShape(data=1, fsdp=4, expert=4))
        runtime = replace(one.recipe.runtime, buffer_factor=factor)
        return analytic_estimate(replace(one, recipe=replace(one.recipe, runtime=runtime)), V5E).memory.total

    of_names = [kept("moe_gate_up", factor) - kept("full", factor) for factor in (1.0, 1.5)]
    assert of_names[1] == pytest.approx(1.5 * of_names[0])


def test_a_search_leaves_how_many_slices_a_config_has():
    found = candidates(training(mesh=MeshShape(dcn_data=2, data=1, fsdp=8)), V5E, room=100.0)
    assert {one.training.recipe.mesh.dcn_data for one in found} == {2}
    assert {math.prod(mesh_sizes(one.training, V5E).values()) for one in found} == {16}
    # As they are written they are those of each half.
    assert any("--mesh fsdp=8 " in one.words for one in found)
    assert not any("fsdp=16" in one.words for one in found)


@pytest.mark.parametrize(("communication", "room"), [("all_to_all", 2), ("ragged_all_to_all", 1)])
def test_buffers_have_room_for_all_rows_at_most_and_ragged_exchanges_send_rows_alone(communication, room):
    mesh = MeshShape(data=1, fsdp=8, expert=2)

    def estimated(factor):
        one = training(mesh=mesh)
        runtime = replace(one.recipe.runtime, buffer_factor=factor, expert_communication=communication)
        one = replace(one, recipe=replace(one.recipe, runtime=runtime))
        sizes = mesh_sizes(one, V5E)
        kind = communication.replace("_", "-")
        return filled_rows(one, sizes), sum(b for name, _, b in communication_volume(one, sizes, "tpu") if name == kind)

    (exact, rows), (_, doubled), (filled, all_rows) = map(estimated, (1.0, 2.0, 4.0))
    assert (exact, filled) == (1, 1 / 2)
    assert doubled == all_rows == room * rows > 0


def test_a_ragged_exchange_is_a_gather_of_all_rows_where_a_platform_has_none():
    one = training(mesh=MeshShape(data=1, fsdp=4, expert=4))
    runtime = replace(one.recipe.runtime, buffer_factor=1.0, expert_communication="ragged_all_to_all")
    one = replace(one, recipe=replace(one.recipe, runtime=runtime))

    def sent(platform):
        every = communication_volume(one, mesh_sizes(one, V5E), platform)
        # What is added up are gradients.
        return {kind: bytes_ for kind, axes, bytes_ in every if axes == ("expert",) and kind != "all-reduce"}

    (ragged,), gathered = sent("tpu").values(), sent("gpu")
    assert set(gathered) == {"all-gather", "reduce-scatter"}
    # The rows of four devices come to each, in as many exchanges.
    assert sum(gathered.values()) == pytest.approx(4 * ragged)


def test_modules_of_multi_token_prediction_are_in_an_estimate():
    alone = training()
    ahead = replace(alone, architecture=alone.architecture.replace(num_mtp_layers=2))
    (before, after), own = (analytic_estimate(one, V5E) for one in (alone, ahead)), mtp_params(ahead.architecture)
    held = [parameter_bytes(one, mesh_sizes(one, V5E)) for one in (alone, ahead)]
    # Matrices are split over the 16 chips, norms are not.
    assert held[1] - held[0] == 4 * ((own.total - own.norms) / 16 + own.norms)
    # Parameters, gradients and two moments, and what is kept of two more layers: activations and gathered matrices.
    layer = training_memory(ahead.architecture, 2**18 / 16).activations
    layer -= training_memory(alone.architecture, 2**18 / 16).activations
    gathered = value_bytes(ahead) * own.routed_experts
    grown = after.memory.total - before.memory.total
    assert grown == pytest.approx(4 * (held[1] - held[0]) + layer + gathered, rel=0.01)
    assert after.roofline is not None
    assert before.roofline is not None
    flops = [flops_per_token(one.architecture, 4096).training_causal for one in (alone, ahead)]
    assert after.roofline.compute_seconds / before.roofline.compute_seconds == pytest.approx(flops[1] / flops[0])


def test_without_remat_the_gathered_expert_matrices_of_every_layer_are_kept():
    def gathered(remat):
        one = training(mesh=MeshShape(data=1, fsdp=16))
        runtime = replace(one.recipe.runtime, remat=remat)
        return analytic_estimate(replace(one, recipe=replace(one.recipe, runtime=runtime)), V5E).memory.gathered_weights

    one = training()
    layers = len(one.architecture.routed_layers)
    of_a_layer = value_bytes(one) * params(one.architecture).routed_experts / layers
    assert layers > 2
    assert gathered("none") - gathered("full") == pytest.approx((layers - 2) * of_a_layer)
    assert gathered("dots") == gathered("full")


def test_a_search_begins_with_a_mesh_that_fits_and_says_so(capsys):
    # Sixteen chips do not divide a width of 24.
    one = training(mesh=MeshShape(data=1, fsdp=-1))
    architecture = one.architecture.replace(model_dim=24)
    narrow = replace(one, architecture=architecture)
    with pytest.raises(UserError, match=r"not divisible by mesh\.fsdp = 16"):
        narrow.check_mesh(abstract_mesh(mesh_sizes(narrow, V5E)))
    found = with_mesh_that_fits(narrow, V5E)
    found.check_mesh(abstract_mesh(mesh_sizes(found, V5E)))
    assert "The search begins with --mesh " in capsys.readouterr().err
    assert with_mesh_that_fits(one, V5E) is one


def program_of(seconds):
    return ProgramTime(
        xla_seconds=2 * seconds,
        xla_seconds_at_bandwidth=seconds,
        pallas_seconds=0.0,
        pallas_seconds_of_rows=0.0,
        link_seconds={},
    )


def planned(one, topology, memory=1.0, seconds=1.0):
    """A plan without compilation."""
    limit = 100
    return Plan(
        name=one.name,
        topology=topology.name,
        chips=topology.chips,
        devices=topology.devices,
        mesh=vars(one.recipe.mesh),
        batch_tokens=one.recipe.batch_tokens,
        sequence_length=4096,
        microbatches=one.recipe.microbatches,
        remat=one.recipe.runtime.remat,
        matmul_quantization=one.recipe.runtime.matmul_quantization,
        expert_communication="all_gather",
        memory=ChipMemory(
            parameters=0,
            optimizer_state=0,
            other_state=0,
            batch=0,
            temporaries=int(memory * limit),
            program=0,
            gradients=0,
            limit=limit,
        ),
        does_not_fit="" if memory <= 1 else "Used 2G of 1G",
        model_flops=1.0,
        model_flops_unmasked=1.0,
        step_flops=1.0,
        xla_flops=0.0,
        communication=(),
        roofline=Roofline(compute_seconds=seconds, memory_seconds=0.0, link_seconds={}),
        program=program_of(seconds),
        evaluation_tokens=1,
        evaluation_roofline=Roofline(compute_seconds=1.0, memory_seconds=0.0, link_seconds={}),
        evaluation_program=program_of(0.0),
        tokens=2**40,
        total_steps=2**22,
        total_tokens=2**40,
        compile_seconds=0.0,
    )


def test_candidates_divide_what_they_split_and_come_by_their_time():
    found = candidates(training(), V5E)
    assert len(found) > 20
    times = [(one.seconds, one.seconds_without_overlap) for one in found]
    assert times == sorted(times)
    for one in found:
        mesh, recipe = one.training.recipe.mesh, one.training.recipe
        shards = mesh.data * mesh.fsdp * mesh.expert
        assert shards * mesh.tensor == 16
        assert recipe.batch_sequences // recipe.microbatches % shards == 0
        assert one.training.fingerprint() == found[0].training.fingerprint() or recipe.microbatches > 1


@pytest.mark.parametrize(
    ("topology", "sums"),
    [
        ("v5e:2x4", set()),
        ("v5e:4x4", {"reduce-scatter"}),
        ("v6e:8x8", {"reduce-scatter"}),
        ("v5p:2x2x4", {"reduce-scatter"}),
        ("v5p:4x4x4", {"all-gather", "reduce-scatter"}),
        ("v4:4x4x4", {"all-gather", "reduce-scatter"}),
        ("tpu7x:2x2x2", set()),
        ("tpu7x:2x4x4", {"all-gather"}),
        ("v5p:2x4x4", {"reduce-scatter"}),
        ("tpu7x:4x4x4", {"all-gather"}),
        ("h100:8", set()),
    ],
)
def test_what_goes_over_a_whole_slice_is_guessed_as_the_sum_that_xla_makes_of_it(topology, sums):
    topology = parse(topology)
    one = training(mesh=MeshShape(data=1, fsdp=topology.devices))
    mesh = mesh_sizes(one, topology)
    links, sent = interconnect(topology, mesh), communication_volume(one, mesh, topology.platform)
    assert {axes for _, axes, _ in sent if axes} == {("fsdp",)}
    expected = sum(
        links.seconds("all-reduce" if kind in sums else kind, axes, bytes_) for kind, axes, bytes_ in sent if axes
    )
    assert analytic_estimate(one, topology).roofline.link_seconds == {"fsdp": pytest.approx(expected)}


def test_computing_again_and_smaller_parts_are_guessed_to_need_less_memory():
    by_words = {one.words: one.memory_bytes for one in candidates(training(), parse("v5p:2x2x4"))}
    whole = by_words["--mesh fsdp=16 --remat none --microbatches 1"]
    some = by_words["--mesh fsdp=16 --remat dots --microbatches 1"]
    assert by_words["--mesh fsdp=16 --remat full --microbatches 1"] < some < whole
    assert by_words["--mesh fsdp=16 --remat none --microbatches 4"] < whole


def test_a_search_compiles_its_own_way_and_ranks_what_fits_first():
    made = []

    def make(one, topology):
        made.append(one)
        return planned(one, topology, memory=2.0 if len(made) == 2 else 0.5, seconds=1.0 / len(made))

    plans = search(training("full"), V5E, make, compiled=4)
    assert len(plans) == len(made) == 4
    assert made[0].recipe.mesh == MeshShape(data=1, fsdp=16)
    assert [plan.fits for plan in plans] == [True, True, True, False]
    seconds = [plan.roofline.step_seconds for plan in plans[:3]]
    assert seconds == sorted(seconds)


def test_a_search_ranks_by_the_compiled_program_and_not_by_the_roofline():
    made = []

    def make(one, topology):
        made.append(one)
        seconds = float(len(made))
        return replace(
            planned(one, topology, memory=0.5, seconds=seconds),
            program=program_of(20 / seconds),
        )

    plans = search(training("full"), V5E, make, compiled=4)
    assert [plan.roofline.step_seconds for plan in plans] == [4, 3, 2, 1]
    assert [plan.program.floor_seconds for plan in plans] == [5, pytest.approx(20 / 3), 10, 20]


def test_a_plan_for_gpus_says_what_the_schedule_waits_for_and_has_no_column_of_cycles():
    links = {"fsdp": 2.0, "expert": 1.0}
    program = ProgramTime(
        once_counted=748,
        xla_seconds=0.0,
        xla_seconds_at_bandwidth=3.0,
        pallas_seconds=2.0,
        pallas_seconds_of_rows=1.0,
        link_seconds=links,
        waited_seconds=0.5,
        kernels=1200,
        launch_seconds=1.25e-3,
    )
    plan = replace(
        planned(training(), parse("h100:2x8")),
        roofline=Roofline(compute_seconds=2.5, memory_seconds=0.0, link_seconds=links),
        program=program,
    )
    found = summary(plan)
    (times,) = (table for table in found.tables if table.title == "a step")
    assert [column.name for column in times.columns] == ["", "roofline", "program at least", "of"]
    rows = {name: values for name, *values, _ in times.rows}
    assert rows["a step"] == [3.5, 4.5]
    assert rows["links, overlapped"] == [2.0, 2.5]
    assert rows["links, waited for"] == [1.0, 0.5]
    assert rows["kernel launches"] == [None, 1.25e-3]
    assert found.data["program"]["floor_seconds"] == found.data["seconds"] == plan.seconds == 4.5
    assert "cycles_seconds" not in found.data["program"]
    assert "1,200" in render.text(found, width=200)
    assert "748 kernels are in loops" in found.warnings[0]
    assert not summary(planned(training(), V5E)).warnings


def test_a_step_that_does_not_fit_takes_no_time():
    """Also where the compiler has placed it and the sum is too much."""
    refused = planned(training(), V5E, memory=2.0)
    for plan in (refused, replace(refused, does_not_fit="")):
        assert not plan.fits
        found = summary(plan, price=1.0)
        assert "a step" not in [table.title for table in found.tables]
        assert found.warnings[0].startswith(f"{plan.name} does not fit {plan.topology}: ")
        assert not found.data.keys() & {"seconds", "days", "tokens_per_day", "chip_hours", "cost", "mfu"}
    assert "days" in summary(planned(training(), V5E)).data


def test_days_and_cost_are_by_the_longer_of_two_accounts_of_a_step():
    plan = planned(training(), V5E)
    for compute, program in [(1.0, 2.0), (2.0, 1.0)]:
        roofline = Roofline(compute_seconds=compute, memory_seconds=0.0, link_seconds={})
        assert plan.program
        timed = replace(plan.program, xla_seconds_at_bandwidth=program, pallas_seconds_of_rows=0.0, link_seconds={})
        found = replace(plan, roofline=roofline, program=timed)
        assert found.seconds == 2.0
        assert found.chip_hours == pytest.approx(2.0 * found.total_tokens / found.batch_tokens * found.chips / 3600)
        longer = "program" if program > compute else "roofline"
        assert f"The longer estimate is the {longer}'s. " in render.text(summary(found), width=200)


@pytest.mark.parametrize(("memory", "seconds"), [(0.25, 1.25), (2.0, 2.0)])
def test_a_program_that_waits_for_nothing_is_not_costed_with_links_that_the_roofline_waits_for(memory, seconds):
    plan, links = planned(training(), parse("h100:2x8")), {"fsdp": 0.25, "expert": 0.5}
    assert plan.program
    program = replace(
        plan.program, xla_seconds_at_bandwidth=1.25, pallas_seconds_of_rows=0.0, link_seconds=links, waited_seconds=0.0
    )
    roofline = Roofline(compute_seconds=1.0, memory_seconds=memory, link_seconds=links)
    assert roofline.step_seconds > seconds
    assert replace(plan, roofline=roofline, program=program).seconds == seconds
    # Where the overlap is assumed in both accounts, both wait.
    assumed = replace(program, waited_seconds=None)
    assert replace(plan, roofline=roofline, program=assumed).seconds == max(1.25, memory) + 0.5


def test_a_search_compiles_nothing_that_is_guessed_to_fill_the_chip():
    assert all(one.memory_bytes < 0.9 * V5E.chip.memory_bytes for one in candidates(training(), V5E))


@pytest.mark.slow
def test_remedies_are_tried_before_they_are_offered():
    refused, made = training(), []

    def make(one, topology):
        made.append(one)
        fits = one.recipe.microbatches > 1 or one.recipe.runtime.remat != "none"
        return planned(one, topology, memory=0.5 if fits else 2.0)

    found = remedies(refused, V5E, make)
    assert len(found) == 3
    assert len({words for words, _ in found}) == 3
    assert all(plan.fits for _, plan in found)
    changes = [
        (one.recipe.mesh != refused.recipe.mesh)
        + (one.recipe.microbatches > 1)
        + (one.recipe.runtime.remat != refused.recipe.runtime.remat)
        for one in made
    ]
    assert changes[0] == 1


@pytest.mark.slow
def test_where_nothing_fits_more_chips_are_tried():
    tried = set()

    def make(one, topology):
        tried.add(topology.name)
        return planned(one, topology, memory=0.5 if topology.devices > 16 else 2.0)

    found = remedies(training(), V5E, make)
    assert any(words.startswith("--topology v5e:") for words, _ in found)
    assert tried > {"v5e:4x4"}


def test_tokens_that_stay_in_a_host_are_estimated_to_travel_faster():
    topology, one = parse("h100:2x8"), training()
    runtime = replace(one.recipe.runtime, expert_communication="all_to_all")

    def seconds(mesh):
        estimated = analytic_estimate(replace(one, recipe=replace(one.recipe, mesh=mesh, runtime=runtime)), topology)
        return estimated.roofline.link_seconds["expert"]

    assert seconds(MeshShape(data=2, expert=8)) < 0.5 * seconds(MeshShape(data=1, expert=16))
    assert {found.topology for found in candidates(one, topology)} == {topology}


def test_named_remats_of_the_architecture_are_candidates():
    alone = training().architecture
    assert named_policies(alone, 4096) == ["attn_out", "attn_out+moe_gate_up", "attn_qkv+attn_out+moe_gate_up"]
    shared = alone.replace(num_shared_experts=1, shared_hidden=1024)
    assert named_policies(shared, 4096)[-1] == "attn_qkv+attn_out+moe_gate_up+ffn_gate_up"
    dense = alone.replace(num_experts=0, top_k=0, dense_hidden=4096)
    assert not any("moe_gate_up" in one for one in named_policies(dense, 4096))
    found = candidates(training(), parse("v5p:4x4x4"))
    assert {one.training.recipe.runtime.remat for one in found} == {
        "none",
        "dots",
        "full",
        *named_policies(alone, 4096),
    }


def test_the_configs_own_remat_is_one_candidate_in_any_order_of_names():
    found = candidates(training("moe_gate_up+attn_out"), parse("v5p:4x4x4"))
    remats = {one.training.recipe.runtime.remat for one in found}
    assert "moe_gate_up+attn_out" in remats
    assert "attn_out+moe_gate_up" not in remats


def test_a_dense_model_has_no_expert_axis():
    one = training()
    dense = replace(one, architecture=one.architecture.replace(num_experts=0, top_k=0, dense_hidden=4096))
    assert all(found.training.recipe.mesh.expert == 1 for found in candidates(dense, V5E))


def test_a_plan_with_products_of_8_bits_says_that_they_were_measured_to_gain_nothing():
    said = {}
    for kind in ("none", "fp8"):
        runtime = replace(training().recipe.runtime, matmul_quantization=kind)
        one = replace(training(), recipe=replace(training().recipe, runtime=runtime))
        found = summary(planned(one, V5E))
        said[kind] = f"{found.title} {' '.join(found.tables[-1].notes)}"
    assert "faster than bfloat16" in said["fp8"]
    assert "matmuls in fp8" in said["fp8"]
    assert "bfloat16" not in said["none"]


def test_an_estimated_search_ranks_all_candidates_and_marks_the_configs_own():
    ranking = ranked(training("full"), parse("v5p:2x2x4"))
    result = estimated_search_summary(ranking, 2.0)
    table, memory, time = result.tables
    seconds = [row[5] for row in table.rows[:SHOWN]]
    assert seconds == sorted(seconds)
    assert sum(row[0] == "the config's" for row in table.rows) == 1
    assert len(result.data["others"]) == len(ranking) - 1
    assert result.data["step_seconds"] == min(one.seconds for one in ranking)
    assert f"{len(ranking):,} candidates" in table.notes[0]
    assert memory.title.startswith("estimated memory")
    assert time.title.startswith("estimated time")
    # A config that does not fit is the last row.
    too_large = replace(training(), recipe=replace(training().recipe, batch_tokens=2**24))
    rows = estimated_search_summary(ranked(too_large, V5E)).tables[0].rows
    assert [row[0] for row in rows].index("the config's") == len(rows) - 1


def test_a_plan_reports_the_steps_and_cost_of_all_budgets():
    one = training("full", mesh=MeshShape(data=1, fsdp=8))
    recipe = replace(one.recipe, budgets_tokens=(2**30, 2**31))
    one, topology = replace(one, recipe=recipe), parse("h100:8")
    result = estimate_summary(one, topology, analytic_estimate(one, topology), 2.0)
    assert f"All budgets: {recipe.total_steps:,} steps, " in result.tables[1].notes[1]
    steps_of_all = recipe.total_steps * result.data["step_seconds"]
    assert result.data["chip_hours"] == pytest.approx(steps_of_all / 3600 * 8)
    assert result.data["cost"] == 2 * result.data["chip_hours"]


def test_candidates_that_exceed_the_chip_are_marked():
    (own, *others) = ranked(training("full"), parse("v5p:2x2x4"))
    rows = estimated_search_summary([replace(own, memory_bytes=1e15), *others]).tables[0].rows
    assert [row[0] for row in rows if row[-1] == "does not fit"] == ["the config's"]


def test_memory_that_xla_did_not_state_is_unknown():
    refused = replace(planned(training(), V5E, memory=2.0), does_not_fit="XLA says: out of memory")
    unknown = replace(refused, memory=replace(refused.memory, temporaries=0))
    result = search_summary([planned(training(), V5E), unknown])
    assert "unknown" in render.text(result, width=200)
    assert result.data["others"][0]["memory"]["total"] is None


def test_no_remedy_is_compiled_without_a_try():
    assert remedies(training(), V5E, lambda *_: pytest.fail("compiled"), tries=0) == []


def test_an_estimated_search_without_a_candidate_that_fits_says_so():
    (own, *_) = ranked(training("full"), V5E)
    (note,) = estimated_search_summary([replace(own, memory_bytes=1e15)]).tables[0].notes
    assert note.startswith("There is no candidate with an estimated memory of at most")


def test_an_estimate_expects_the_chip_hours_of_a_launch():
    from moejax.study.estimate import chip_hours

    one, topology = training("full", mesh=MeshShape(data=1, fsdp=8)), parse("h100:8")
    data = estimate_summary(one, topology, analytic_estimate(one, topology), 2.5, 0.3).data
    assert data["chip_hours_at_assumed_mfu"] == pytest.approx(chip_hours(one, topology.known_chip, 0.3), rel=1e-6)
    assert data["cost_at_assumed_mfu"] == pytest.approx(2.5 * data["chip_hours_at_assumed_mfu"])


@pytest.mark.parametrize(
    ("assumed_mfu", "says"), [(0.9, "Until you have measured a step, reserve"), (0.05, "The expected time is at least")]
)
def test_an_estimate_names_the_time_to_reserve(assumed_mfu, says):
    one, topology = training("full", mesh=MeshShape(data=1, fsdp=8)), parse("h100:8")
    result = estimate_summary(one, topology, analytic_estimate(one, topology), 2.5, assumed_mfu)
    assert says in " ".join(render.text(result).split())
