"""Every config can be built, is counted alike by the accounting and by its own arrays, and agrees with its paper."""

import csv
import importlib.util
import itertools
import os
import statistics
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from moejax import run_table
from moejax.__main__ import main
from moejax.cli.config_file import load, read
from moejax.data.mixtures import MIXTURES
from moejax.errors import UserError
from moejax.folder import changes
from moejax.huggingface import FAMILIES
from moejax.huggingface.conversion import plan_export
from moejax.laws import accounting
from moejax.laws.accounting import design_of
from moejax.laws.chips import CHIPS
from moejax.laws.conventions import FLOPS, PARAMS
from moejax.model import transformer
from moejax.papers.tian.tables import TABLE_4
from moejax.plan.plan import check_plan, mesh_sizes, parameter_bytes
from moejax.plan.topology import parse
from moejax.stored import read_json
from moejax.study.downstream import asked_tasks
from moejax.study.estimate import estimate
from moejax.study.outcomes import try_outcomes
from moejax.study.run import read_study
from moejax.study.study import Study
from moejax.train.optimizer import MOMENT_TYPES
from moejax.train.training import Training, choose_hyperparameters

CONFIGS = Path(__file__).parent.parent / "configs"
TRAININGS = sorted(CONFIGS.glob("*.py"))
STUDIES = sorted((CONFIGS / "studies").glob("*.py"))

ARGUMENTS = {
    "quickstart": ("",),
    "staged": ("",),
    "zhao": (
        *("all", "G", "N", "S", "N_a", "small-G", "validation"),
        *("table-1", "cosine", "tiny", "tiny-cosine"),
    ),
    "tian": (
        *("main", "table-8", "table-9", "table-10", "table-11", "table-12", "table-14"),
        *("hyperparameters", "allocation", "balance", "shared", "table-13", "models"),
        *("tiny", "tiny-hyperparameters", "tiny-allocation", "tiny-balance"),
    ),
    "abnar": ("grid", "search", "tuned", "downstream", "tiny", "tiny-search", "tiny-tuned", "tiny-downstream"),
    "iclr_2026": (
        *("arrangement", "gates", "top-K", "shape", "activation-rate", "activation-rate-7B", "activation-rate-14B"),
        *("re-search", "reuse", "annealing", "greedy", "sparsity", "deepseek"),
        *("tiny", "tiny-greedy", "tiny-reuse", "tiny-annealing"),
    ),
    "chapter_002": ("proxies", "held-out", "pilot", "tiny"),
}
"""Arguments of every study's config; a study that is not here fails."""
CASES = [(name, argument) for name, arguments in ARGUMENTS.items() for argument in arguments]
WHOLES = {"main", "all"}
"""Arguments whose models are those of the others."""


def path_of(name, argument):
    return f"{CONFIGS / 'studies' / name}.py" + (f":{argument}" if argument else "")


@cache
def study(name, argument):
    # Later stages as they are if the expected models win.
    return try_outcomes(load(Study, path_of(name, argument), []), most_models=100).expected


@cache
def module(name):
    spec = importlib.util.spec_from_file_location(name, path_of(name, ""))
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def trainings(name, argument):
    return {training.name: training for training in study(name, argument).trainings()}


def counted_alike(architecture):
    formula = accounting.params(architecture)
    return transformer.count(architecture) == (formula.total, formula.active, formula.vocabulary)


@pytest.mark.parametrize("path", TRAININGS, ids=lambda path: path.stem)
def test_a_training_config_is_a_training_whose_model_can_be_exported(path):
    training = choose_hyperparameters(load(Training, str(path), [])).training
    training.check()
    assert counted_alike(training.architecture)
    assert plan_export(training.architecture).family.name in FAMILIES


SMALLER = [
    *("vocab_size=257", "model_dim=32", "num_layers=2", "num_heads=4", "num_kv_heads=2", "head_dim=8"),
    *("num_experts=8", "top_k=2", "expert_hidden=16"),
]
SHORTER = [
    *("budgets_tokens=[4096,8192]", "batch_tokens=1024", "data.sequence_length=64", "data.validation_tokens=1024"),
    *("optimizer.warmup_tokens=1024", "evaluate_tokens=2048", "checkpoint_tokens=2048", "log_every_steps=1"),
]


@pytest.mark.slow
@pytest.mark.parametrize("moments", MOMENT_TYPES)
def test_the_config_to_train_is_rehearsed_on_its_mesh_with_smaller_sizes(moments, tmp_path):
    """Its axes over the eight devices of the tests, all its phases, and the export."""
    words = [f"--config.architecture.{word}" for word in SMALLER] + [f"--config.recipe.{word}" for word in SHORTER]
    (tmp_path / "text").mkdir()
    for number in range(20):
        text = f"{number} routers send each token to some of the experts. " * 40
        (tmp_path / "text" / f"{number}.txt").write_text(text)
    words += [f"--config.recipe.data.source={tmp_path / 'text'}", f"--config.recipe.optimizer.moments_dtype={moments}"]
    out, command = tmp_path / "out", ["train", f"--config={CONFIGS / 'moe_1b.py'}", *words, "--exportable", "hf"]
    assert main([*command, "--out", str(out)]) == 0
    rows = [read_json(out / f"branch-{budget}.json", dict, remedy="") for budget in (4096, 8192)]
    assert rows[1]["loss"] < rows[0]["loss"] < 5.6
    assert rows[0]["num_devices"] == 8
    convert = ["convert", "--to", "hf", str(out), "--law", "chinchilla", "--out", str(tmp_path / "hf"), "--json"]
    assert main(convert) == 0
    card = (tmp_path / "hf" / "README.md").read_text(encoding="utf-8")
    assert f"| validation | {rows[1]['loss']:.4f} nats/token |" in card
    assert "nats/token by chinchilla (Hoffmann et al. 2022" in card
    assert '"model_type": "qwen3_moe"' in (tmp_path / "hf" / "config.json").read_text()


PLANS = {
    "moe_mini": ("v5e:16x16", 17.5e9, 0.85e9),
    "qwen3_30b_a3b": ("v5p:4x4x4", 30.5e9, 3.3e9),
    "deepseek_v3": ("v5p:8x8x16", 671e9, 36.7e9),
    "deepseek_v3:next-token": ("v5p:8x8x16", 671e9, 36.7e9),
    "weak_scaling": ("v5p:2x2x4", 6.9e9, 1.3e9),
    "weak_scaling:1024": ("v5p:8x8x16", 6.9e9, 1.3e9),
}
"""Configs for plans, the topology that each is for, and what is said of its size."""


def test_every_config_of_a_plan_is_for_a_topology():
    assert {path.stem for path in (CONFIGS / "plans").glob("*.py")} == {name.partition(":")[0] for name in PLANS}


@pytest.mark.parametrize("name", PLANS)
def test_a_config_of_a_plan_can_be_split_over_its_topology(name):
    topology, total, active = PLANS[name]
    file, _, argument = name.partition(":")
    config = f"{CONFIGS / 'plans' / file}.py" + (f":{argument}" if argument else "")
    training = choose_hyperparameters(load(Training, config, [])).training
    check_plan(training, parse(topology))
    assert counted_alike(training.architecture)
    counts, modules = accounting.params(training.architecture), accounting.mtp_params(training.architecture)
    assert counts.total == pytest.approx(total, rel=0.06)
    assert counts.active == pytest.approx(active, rel=0.65)
    mesh = mesh_sizes(training, parse(topology))
    held, routed = counts.total + modules.total, counts.routed_experts + modules.routed_experts
    split = routed / mesh["expert"] + held - routed
    assert parameter_bytes(training, mesh) == pytest.approx(4 * split / mesh["fsdp"], rel=0.02)


def test_every_study_has_its_arguments_listed():
    missing = {path.stem for path in STUDIES} - set(ARGUMENTS)
    assert not missing, f"add a line for {sorted(missing)} to ARGUMENTS in tests/test_configs.py"
    assert set(ARGUMENTS) <= {path.stem for path in STUDIES}, "ARGUMENTS has studies that are no more"


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_a_study_refuses_an_argument_that_it_does_not_have(path):
    with pytest.raises(UserError, match=r"takes no argument|there is no"):
        load(Study, f"{path}:tinny", [])


@pytest.mark.parametrize("name", [name for name, arguments in ARGUMENTS.items() if len(arguments) > 1])
def test_every_group_that_a_study_offers_is_held_to_its_paper(name):
    with pytest.raises(ValueError, match=r"there is no .*; there are ") as refused:
        module(name).get_config("none")
    offered = str(refused.value).partition("there are ")[2].split(", ")
    # Abnar's sweep of 5,031 runs takes long to build, and has a test of its own.
    assert set(offered) - {"sweep"} == set(ARGUMENTS[name])


@pytest.mark.matrix(6)
@pytest.mark.parametrize(("name", "argument"), CASES)
def test_a_study_config_is_a_study_whose_cost_is_known_before(name, argument):
    one = study(name, argument)
    found = estimate(one, CHIPS["h800"], mfu=0.4, price=2.0)
    assert [row.model for row in found.trainings] == list(one.models)
    assert found.totals["runs"] == sum(len(row.budgets_tokens) for row in found.trainings) == len(found.runs)
    assert 0 < found.totals["flops"] <= found.totals["flops_without_shared_trunks"]
    assert all(row.chips_at_least for row in found.trainings)
    shape = next(iter(one.models.values()))
    assert counted_alike(shape)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "argument"), [case for case in CASES if case[1] not in WHOLES])
def test_every_model_of_a_study_is_counted_alike_by_its_arrays(name, argument):
    assert all(counted_alike(architecture) for architecture in dict.fromkeys(study(name, argument).models.values()))


@pytest.mark.parametrize("path", [*TRAININGS, *STUDIES], ids=lambda path: path.stem)
def test_a_config_says_its_purpose_command_and_what_to_expect(path):
    text = path.read_text().split('"""')[1]
    assert f"--config={path.relative_to(CONFIGS.parent)}" in text
    assert "Expected:" in text
    assert "Cost:" in text


@pytest.mark.slow
@pytest.mark.parametrize(("name", "argument"), [case for case in CASES if case[1].startswith("tiny")])
def test_a_tiny_twin_runs_through_to_its_fit(name, argument, tmp_path):
    command = [sys.executable, "-m", "moejax", "study", f"--config={path_of(name, argument)}", "--out", str(tmp_path)]
    # On one device, as a machine without accelerators has it: the smallest batches do not divide over eight.
    alone = os.environ | {"XLA_FLAGS": os.environ["MOEJAX_TEST_XLA_FLAGS"]}
    done = subprocess.run(command, env=alone, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = read_study(tmp_path)
    assert not found.unknown_stages
    assert len(run_table.read(tmp_path / "runs.parquet")) == len(estimate(found, CHIPS["h100"], mfu=0.4).runs)
    fitted = {path.stem for path in (tmp_path / "fits").glob("*.json")}
    assert fitted == set(found.analysis.laws)
    if found.downstream.tasks:
        scores = run_table.read(tmp_path / "scores.parquet")
        assert len(scores) == len(run_table.read(tmp_path / "runs.parquet"))
        assert "Task errors by loss" in (tmp_path / "report.md").read_text()
    if (name, argument) == ("tian", "tiny"):
        assert "Efficiency leverage by Algorithm 1" in (tmp_path / "report.md").read_text()
        assert (tmp_path / "tian" / "leverages.csv").is_file()


def test_the_quickstart_is_a_family_of_dense_models_and_mixtures():
    quickstart = study("quickstart", "")
    mixtures = [model for model in quickstart.models.values() if model.is_moe]
    assert len(mixtures) >= 6
    assert len(quickstart.models) - len(mixtures) >= 2
    assert len(quickstart.recipe.budgets_tokens) >= 3
    for name in ("num_experts", "top_k", "num_shared_experts", "model_dim"):
        assert len({getattr(model, name) for model in mixtures}) > 1, f"the mixtures differ in {name}"


def test_every_row_of_zhaos_table_6_is_a_run_of_its_printed_sizes():
    zhao, all_of_them = module("zhao"), trainings("zhao", "all")
    rows = zhao.table_6()
    assert len(rows) == 446
    for row in rows:
        training = all_of_them[zhao.name_of(row)]
        for count, printed in (
            (PARAMS["zhao"].total(training.architecture), row.total),
            (PARAMS["zhao"].active(training.architecture), row.active),
        ):
            # Sizes are printed in whole millions, rounded up or to the nearest; widths of experts are rounded too.
            assert abs(count - printed) < 1e6 or abs(count / printed - 1) < 2.5e-3, row
        tokens = 20e9 if row.index == 419 else row.tokens
        assert tokens in training.recipe.budgets_tokens
        # What a law reads of it: G = 2.5 with half a shared expert is not 3 with a whole one. A third is printed 0.33.
        design = design_of(training.architecture, row.tokens)
        assert design.active_experts == pytest.approx(row.experts, rel=2e-3), row
        assert design.shared_share == pytest.approx(1 / 3 if row.shared == 0.33 else row.shared, abs=2e-3), row
    settings = {(*row.setting[:2], *row.setting[3:], 20e9 if row.index == 419 else row.tokens) for row in rows}
    assert sum(len(training.recipe.budgets_tokens) for training in all_of_them.values()) == len(settings) == 419


@pytest.mark.parametrize("argument", ["cosine", "tiny-cosine"])
def test_zhaos_models_under_a_cosine_differ_from_their_twins_in_the_decay_alone(argument):
    every = trainings("zhao", argument)
    twins = {name: training for name, training in every.items() if name.endswith("-cosine")}
    assert len(every) == 2 * len(twins) > 0
    for name, cosine in twins.items():
        stable = every[name.removesuffix("-cosine")]
        assert cosine.architecture == stable.architecture
        assert changes(stable.as_json()["recipe"], cosine.as_json()["recipe"]) == {"optimizer.decay_share": (0.1, 1.0)}
        optimizer = cosine.recipe.optimizer
        # Table 1: minimum 0, and 500 steps of warm-up, of which the tiny models take 8.
        assert (optimizer.final_share, optimizer.decay_shape) == (0.0, "cosine")
        assert cosine.recipe.warmup_steps == (500 if argument == "cosine" else 8)
        for budget in cosine.recipe.budgets_tokens:
            assert cosine.recipe.decay_start(budget) == cosine.recipe.warmup_steps < stable.recipe.decay_start(budget)
    if argument == "cosine":
        assert {training.recipe.optimizer.learning_rate for training in every.values()} == {3e-4}
        assert {tuple(training.recipe.budgets_tokens) for training in every.values()} == {
            (10**10, 2 * 10**10, 5 * 10**10)
        }


def test_a_shared_expert_as_wide_as_seven_routed_ones_counts_as_seven():
    design = design_of(study("iclr_2026", "arrangement").models["1dense-SE"], 1e10)
    assert design.active_experts == 14
    assert design.shared_share == pytest.approx(0.5)


def test_zhaos_groups_are_the_parts_of_table_6():
    rows = {name: len(indices) for name, indices in module("zhao").GROUPS.items()}
    assert rows.pop("all") == sum(rows.values()) == 446
    assert sum(rows[name] for name in ("G", "N", "S", "N_a")) == 268
    assert (rows["small-G"], rows["validation"]) == (90, 88)


def test_zhaos_experts_widen_and_become_fewer_as_appendix_h_lists():
    shapes = [study("zhao", "N_a").models[f"N2404M-Na{active}M-G20-S20"] for active in (304, 476, 820, 1508, 2196)]
    assert [shape.expert_hidden for shape in shapes] == [112, 224, 448, 896, 1344]
    assert [shape.num_experts for shape in shapes] == [260, 128, 62, 29, 18]


def test_zhaos_table_1_has_its_five_models():
    sizes = {
        name: (round(PARAMS["zhao"].total(shape) / 1e6), round(PARAMS["zhao"].active(shape) / 1e6))
        for name, shape in study("zhao", "table-1").models.items()
    }
    printed = {
        "N247M": (247, 48),
        "N496M": (496, 99),
        "N907M": (907, 181),
        "N2_40B": (2400, 476),
        "N3_96B": (3960, 793),
    }
    assert set(sizes) == set(printed)
    for name, counts in sizes.items():
        assert counts == pytest.approx(printed[name], abs=4)


def test_zhaos_models_have_every_value_of_table_1():
    printed = {
        "N247M": (12, 8, 512, 384),
        "N496M": (12, 12, 768, 512),
        "N907M": (12, 16, 1024, 704),
        "N2_40B": (20, 20, 1280, 896),
        "N3_96B": (24, 24, 1536, 1024),
    }
    for name, training in trainings("zhao", "table-1").items():
        shape, recipe, optimizer = training.architecture, training.recipe, training.recipe.optimizer
        assert (shape.num_layers, shape.num_heads, shape.model_dim, shape.expert_hidden) == printed[name]
        assert (shape.num_experts, shape.top_k, shape.num_shared_experts, shape.head_dim) == (32, 4, 1, 64)
        assert (optimizer.name, optimizer.beta1, optimizer.beta2, optimizer.epsilon) == ("adamw", 0.9, 0.95, 1e-8)
        assert (optimizer.weight_decay, optimizer.clip_norm, optimizer.final_share) == (0.1, 1.0, 0)
        assert (optimizer.learning_rate, optimizer.decay_shape, optimizer.decay_share) == (3e-4, "cosine", 0.1)
        assert (recipe.data.sequence_length, recipe.batch_tokens, recipe.warmup_steps) == (2048, 2**21, 500)


def test_tians_trainings_have_every_value_of_appendix_d():
    for training in study("tian", "main").trainings():
        shape, recipe, optimizer = training.architecture, training.recipe, training.recipe.optimizer
        assert (shape.vocab_size, shape.positions, recipe.data.sequence_length) == (126_464, "rope", 4096)
        assert (recipe.loss.balance, recipe.loss.router_z, recipe.initialisation.std) == (0.01, 0.001, 0.006)
        assert (optimizer.name, optimizer.beta1, optimizer.beta2, optimizer.weight_decay) == ("adamw", 0.9, 0.95, 0.1)
        assert (optimizer.decay_shape, optimizer.final_share) == ("exponential", 0.1)
        assert optimizer.warmup_tokens == pytest.approx(0.01 * recipe.budgets_tokens[0], rel=1e-3)


@pytest.mark.parametrize(
    ("table", "runs"),
    [("table-8", 48), ("table-9", 36), ("table-10", 36), ("table-11", 24), ("table-12", 30), ("table-14", 26)],
)
def test_tians_tables_have_their_rows_and_their_compute(table, runs):
    tian, one = module("tian"), study("tian", table)
    assert len(one.models) == runs
    printed = {group[7] for group in tian.GROUPS}
    for training in one.trainings():
        per_token = FLOPS["tian"].per_token(training.architecture, 4096)
        spent = per_token * training.recipe.budgets_tokens[0]
        assert any(spent == pytest.approx(flops, rel=1e-6) for flops in printed)
    total = next(stated.value for stated in one.stated if stated.quantity == "flops")
    assert total == pytest.approx(
        sum(FLOPS["tian"].per_token(t.architecture, 4096) * t.recipe.budgets_tokens[0] for t in one.trainings())
    )


def test_tians_studies_are_the_rows_of_tables_8_to_14_but_for_what_their_notes_say():
    """Value by value, from a copy of the printed tables that nothing else reads; cells left blank there repeat."""

    def spent(training):
        return FLOPS["tian"].per_token(training.architecture, 4096) * training.recipe.budgets_tokens[0]

    def place(training):
        one = training.architecture
        sizes = (one.num_experts, one.top_k if number != 8 else 0, one.num_dense_layers, one.model_dim, one.num_heads)
        return (float(f"{spent(training):.0e}"), *sizes)

    columns = ("flops", "E", "E_a", "dense_layers", "d_model", "heads")
    corrected = {}
    with (Path(__file__).parent / "tian_tables_8_to_14.csv").open() as file:
        printed = list(csv.DictReader(file))
    for number in (8, 9, 10, 11, 12, 14):
        one, rows = study("tian", f"table-{number}"), [row for row in printed if row["table"] == str(number)]
        rows.sort(key=lambda row: tuple(float(row[name] or 0) for name in columns))
        for training, row in zip(sorted(one.trainings(), key=place), rows, strict=True):
            shape, recipe = training.architecture, training.recipe
            built = {
                "layers": shape.num_layers,
                "dense_layers": shape.num_dense_layers,
                "d_model": shape.model_dim,
                "d_ffn": shape.dense_hidden if shape.num_dense_layers else row["d_ffn"],
                "d_expert": shape.expert_hidden,
                "heads": shape.num_heads,
                "kv_heads": shape.num_kv_heads,
                "E": shape.num_experts,
                "E_a": shape.top_k,
                "E_s": shape.num_shared_experts,
                "eta": recipe.optimizer.learning_rate,
                "B": recipe.batch_tokens / 4096,
            }
            others = {name for name, value in built.items() if row[name] and float(row[name]) != float(value)}
            assert (training.name in one.notes) == bool(others), training.name
            for name in others:
                corrected[number, name] = corrected.get((number, name), 0) + 1
            assert spent(training) == pytest.approx(float(row["flops"]), rel=1e-6)
    # The config's docstring has the reason of each.
    assert corrected == {(8, "d_expert"): 8, (10, "E_s"): 1, (11, "d_ffn"): 18, (12, "eta"): 15, (14, "kv_heads"): 1}


def test_tians_tables_vary_one_thing():
    shapes = {table: study("tian", table).models for table in ARGUMENTS["tian"][1:7]}
    assert all(
        shape.top_k == 2 and 2 * shape.model_dim == 2 * shape.expert_hidden for shape in shapes["table-8"].values()
    )
    for shape in shapes["table-9"].values():
        assert 2 * shape.model_dim / shape.expert_hidden == pytest.approx(shape.num_experts / 32, rel=0.01)
    assert {shape.top_k + shape.num_shared_experts for shape in shapes["table-10"].values()} == {12}
    assert {shape.num_layers for shape in shapes["table-11"].values()} == {60}
    several = itertools.groupby(shapes["table-12"].items(), key=lambda item: item[0].split("-")[1])
    for _, group in several:
        costs = [FLOPS["tian"].per_token(shape, 4096) for _, shape in group]
        assert statistics.pstdev(costs) / statistics.mean(costs) < 1e-3


def test_tians_corrections_are_notes():
    notes = study("tian", "main").notes
    assert len(notes) == 8 + 1 + 18 + 15 + 1


def test_tians_two_models_have_their_sizes_and_their_parallelism():
    found = trainings("tian", "models")
    mini, dense = found["MoE-mini"], found["Dense-6_1B"]
    assert PARAMS["tian"].total(mini.architecture) == pytest.approx(17.5e9, rel=1e-3)
    assert PARAMS["tian"].total(dense.architecture) == pytest.approx(6.11e9, rel=1e-3)
    assert (mini.recipe.mesh.expert, mini.recipe.mesh.tensor, dense.recipe.mesh.tensor) == (8, 2, 2)
    assert max(mini.recipe.budgets_tokens) == max(dense.recipe.budgets_tokens) == 10**12


def test_tians_hyperparameters_are_a_grid_of_powers_of_two():
    found = study("tian", "hyperparameters").trainings()
    assert {training.recipe.batch_tokens for training in found} == {2**power for power in (18, 19, 20, 21)}
    rates = {training.recipe.optimizer.learning_rate for training in found}
    assert (min(rates), max(rates)) == (2**-11, 2**-9)
    # Appendix E.1 and Figure 8: A = 7.8 %, 4.7 % and 10.9 % are (E_a + E_s)/E; the dense twin has as many FLOPs.
    ratios = {}
    for training in found:
        shape = training.architecture
        kind = round(100 * (shape.top_k + 1) / 64, 1) if shape.is_moe else 100
        ratios.setdefault(kind, []).append(FLOPS["tian"].per_token(shape, 4096))
    assert {kind: len(scales) for kind, scales in ratios.items()} == {7.8: 140, 100: 140, 4.7: 20, 10.9: 20}
    assert sorted(ratios[7.8]) == sorted(ratios[100])


def test_tians_allocation_has_table_5s_sizes_inside_what_is_trained():
    scales = {}
    for name, training in trainings("tian", "allocation").items():
        part, budget, *_ = name.split("-")
        scale, flops = FLOPS["tian"].per_token(training.architecture, 4096), float(budget.removeprefix("C"))
        assert scale * training.recipe.budgets_tokens[0] == pytest.approx(flops, rel=1e-6)
        scales.setdefault((part, flops), []).append(scale)
    assert len(scales) == 2 * 7
    printed = {"moe": (0.1915, 0.5095), "dense": (0.0655, 0.5422)}
    for (part, flops), own in scales.items():
        scale, exponent = printed[part]
        best = scale * flops**exponent
        assert len(own) >= 4
        assert sum(one < best for one in own) >= 1 <= sum(one > best for one in own)


def test_tians_shared_shares_have_the_two_that_appendix_f_3_compares():
    found, notes = trainings("tian", "shared"), study("tian", "shared").notes
    shapes = {name: training.architecture for name, training in found.items()}
    shares = [round(100 * s.num_shared_experts / (s.top_k + s.num_shared_experts), 1) for s in shapes.values()]
    assert {shares.count(share) for share in (16.7, 8.3)} == {6}
    added = {name for name in found if name not in study("tian", "table-10").models}
    assert all("no row of Table 10" in notes[name] for name in added)
    assert {shapes[name].num_shared_experts for name in added} == {2}


@pytest.mark.matrix(12)
@pytest.mark.parametrize(("name", "argument"), CASES)
def test_a_papers_full_size_study_computes_in_bfloat16_as_its_hours_assume(name, argument):
    tiny = name in ("quickstart", "staged") or argument.startswith("tiny")
    kinds = {training.recipe.runtime.compute_dtype for training in study(name, argument).trainings()}
    assert kinds == {"float32" if tiny else "bfloat16"}


def test_tians_weak_balance_is_the_only_thing_that_figure_12_changes():
    found = trainings("tian", "balance")
    weak = {name: training for name, training in found.items() if name.endswith("-weak")}
    assert len(found) == 2 * len(weak) == 72
    for name, training in weak.items():
        twin = found[name.removesuffix("-weak")]
        assert training.architecture == twin.architecture
        assert changes(twin.as_json()["recipe"], training.as_json()["recipe"]) == {"loss.balance": (0.01, 0.001)}


def test_tians_table_13_is_sharded_as_printed_but_for_the_pipeline():
    found, notes = trainings("tian", "table-13"), study("tian", "table-13").notes
    layers = [8, 8, 10, 14, 16, 22, 28, 20]
    widths = [384, 512, 640, 768, 1024, 1280, 4096, 2048]
    experts = [96, 128, 160, 192, 256, 320, 0, 384]
    meshes = [(8, 1)] * 6 + [(1, 2), (8, 2)]
    rows = {(t.architecture.num_layers, t.architecture.model_dim): t for t in found.values()}
    for key, width, mesh in zip(zip(layers, widths, strict=True), experts, meshes, strict=True):
        training = rows.pop(key)
        assert training.architecture.expert_hidden == width
        assert (training.recipe.mesh.expert, training.recipe.mesh.tensor) == mesh
    assert not rows
    assert "PP is printed 2" in notes["t9-6-E256"]


def test_tians_leverages_are_of_the_tables_that_vary_activation_and_granularity_alone():
    """Of all tables together: each family has one run at every budget, twins of Tables 8 and 9 apart."""
    one = study("tian", "main")
    read = [one.models[name] for name in one.analysis.recipe_models]
    assert len(read) == 48 + 36
    families = {(s.num_experts, s.top_k, s.num_shared_experts, s.model_dim, s.num_layers): s for s in read}
    assert len(families) == len(set(read)) == 48 + 30


def test_tians_mixture_is_table_4():
    assert tuple(MIXTURES["tian-2025"].weights.values()) == TABLE_4


def test_abnars_cells_have_their_sparsity_and_their_budget():
    for name, training in trainings("abnar", "grid").items():
        budget, sparsity, _ = name.split("-")
        shape = training.architecture
        found = 1 - shape.top_k / shape.num_experts if shape.is_moe else 0.0
        assert found == pytest.approx(int(sparsity.removeprefix("S")) / 100)
        spent = FLOPS["abnar"].per_token(shape, 2048) * training.recipe.budgets_tokens[0]
        assert spent == pytest.approx(float(budget.removeprefix("C")), rel=1e-6)
        assert shape.qk_norm
        assert shape.capacity_factor is None
        # Appendices B and C.
        assert (shape.vocab_size, training.recipe.data.sequence_length) == (50_432, 2048)
        assert shape.num_heads * shape.head_dim == shape.model_dim
        assert (shape.expert_hidden or shape.dense_hidden) == 4 * shape.model_dim
        optimizer = training.recipe.optimizer
        assert (optimizer.beta1, optimizer.beta2, optimizer.epsilon) == (0.9, 0.95, 1e-8)
        assert (optimizer.decay_shape, training.recipe.batch_tokens) == ("cosine", 1024 * 2048)
        # A router without noise: jitter is 0.
        assert (training.recipe.loss.router_z, shape.router) == (0.001, "softmax_topk")
    assert {float(name.split("-")[0][1:]) for name in study("abnar", "grid").models} == {3e19, 6e19, 1e20, 3e20, 1e21}
    cells = {tuple(name.split("-")[:2]) for name in study("abnar", "grid").models}
    assert len(cells) == 7 * 5


def test_abnars_search_has_the_router_loss_and_the_batch_of_table_1():
    found = study("abnar", "search").trainings()
    assert {training.recipe.loss.router_z for training in found} == {0.001}
    assert {training.recipe.batch_tokens for training in found} == {1024 * 2048}
    assert len(found) == 6 * 2 * 3 * 2 * 3 + 3 * 3


@pytest.mark.parametrize("part", ["search", "sweep"])
def test_abnars_searches_are_all_of_table_1(part):
    """The search at one size and budget; the sweep in every cell of the grid, 5,031 runs that take long to build."""
    abnar = module("abnar")
    cells = {name: (shape, recipe) for name, shape, recipe in abnar.PARTS[part]()}
    seen = {}
    for name, (shape, recipe) in cells.items():
        mixture = shape.get("num_experts", 0)
        sparsity = round(100 - 100 * shape["top_k"] / mixture) if mixture else 0
        granularity = 4 * shape["model_dim"] // shape["expert_hidden"] if mixture else 1
        tokens, optimizer = recipe["budgets_tokens"][0], recipe["optimizer"]
        warmup = round(optimizer["warmup_tokens"] / tokens, 3)
        cell = name.partition("-G")[0]
        tried = (granularity, optimizer["learning_rate"], recipe["loss"]["balance"], warmup)
        seen.setdefault((cell, sparsity), set()).add(tried)
        assert optimizer["learning_rate"] * optimizer["weight_decay"] == pytest.approx(1e-5)
    assert {sparsity for _, sparsity in seen} == {0, 25, 50, 75, 90, 95, 98}
    table_1 = set(itertools.product((1, 2), (0.003, 0.002, 0.001), (0.02, 0.05), (0.02, 0.05, 0.1)))
    dense = {one for one in table_1 if one[0] == 1 and one[2] == 0.02}
    assert all(tried == (table_1 if sparsity else dense) for (_, sparsity), tried in seen.items())
    assert len(seen) == (7 if part == "search" else 157)
    assert sum(map(len, seen.values())) == len(cells) == (225 if part == "search" else 5_031)


@pytest.mark.parametrize("part", ["tuned", "tiny-tuned"])
def test_abnars_winners_at_each_sparsity_are_carried_into_its_grid(part):
    abnar, tiny = module("abnar"), part.startswith("tiny")
    names = [name for name, *_ in abnar.PARTS[part]()]
    chosen = {name.split("-")[0]: name for name in names}
    losses = {name: 2.0 - (name in chosen.values()) for name in names}
    made = abnar.get_config(part).stages[1]["make"](type("Before", (), {"losses": losses}))
    grid = list(abnar.tiny_grid() if tiny else abnar.grid())
    assert len(made["models"]) == len(grid)
    for name, recipe in made["recipes"].items():
        won = abnar.Tuned(
            *next(one for one in abnar.SPACE + abnar.TINY_SPACE if chosen[name.split("-")[1]].endswith(one.name))
        )
        assert recipe["optimizer"]["learning_rate"] == won.rate
        assert recipe["loss"]["balance"] == won.balance
        shape = made["models"][name]
        assert 4 * shape["model_dim"] == won.granularity * shape.get("expert_hidden", shape.get("dense_hidden"))


def test_abnars_tasks_are_those_of_appendix_d():
    asked = {}
    for one in asked_tasks(study("abnar", "downstream")):
        asked.setdefault(one.category, []).append(one.name)
    assert asked == {
        "Common Sense Reasoning": ["PIQA", "CommonSenseQA", "OpenBookQA", "COPA"],
        "Language Understanding": ["LAMBADA", "HellaSwag", "Winograd", "Winogrande"],
        "Reading Comprehension": ["SQuAD", "CoQA", "BoolQ"],
        "World Knowledge": ["TruthfulQA", "ARC-Easy", "ARC-Challenge"],
    }
    assert study("abnar", "downstream").models == study("abnar", "grid").models


EQUAL = ("arrangement", "gates", "top-K", "activation-rate", "activation-rate-7B", "activation-rate-14B", "re-search")
"""Parts of the ICLR study in which all models have one N and C, or those of a group."""


@pytest.mark.parametrize("part", [*EQUAL, "annealing", "greedy", "tiny-greedy"])
def test_the_comparisons_of_iclr_2026_are_of_equal_size_and_compute(part):
    found = trainings("iclr_2026", part)
    groups = {}
    for name, training in found.items():
        groups.setdefault(name.split("-")[0] if part == "top-K" else "", []).append(training.architecture)
    for shapes in groups.values():
        totals = [PARAMS["resources"].total(shape) for shape in shapes]
        # One expert of K = 1 is 4 % of a layer.
        assert max(totals) / min(totals) < (1.045 if "greedy" in part else 1.021)
    compute = [
        FLOPS["resources"].per_token(training.architecture, training.recipe.data.sequence_length)
        * max(training.recipe.budgets_tokens)
        for training in found.values()
    ]
    assert max(compute) / min(compute) == pytest.approx(1, rel=1e-5)


@pytest.mark.parametrize("part", ["activation-rate", "activation-rate-7B", "activation-rate-14B", "re-search", "top-K"])
def test_the_activation_rates_of_iclr_2026_are_as_named(part):
    found = study("iclr_2026", part).models
    for name, shape in found.items():
        if name != "dense":
            rate = PARAMS["resources"].active(shape) / PARAMS["resources"].total(shape)
            # A sweep has whole experts of a quarter of the width.
            assert 100 * rate == pytest.approx(int(name[2:4]), abs=0.5 if part == "top-K" else 1.5)
            assert part == "top-K" or shape.shared_hidden in (0, shape.top_k * shape.expert_hidden)
    if part != "top-K":
        assert {"ra13", "ra20", "dense"} <= set(found)


def test_the_arrangements_of_iclr_2026_are_those_of_table_4():
    shapes = study("iclr_2026", "arrangement").models
    layers = {name: sum(shape.has_experts) for name, shape in shapes.items()}
    experts = {"full": 16, "interleave": 8, "interleave-SE": 8, "1dense": 15, "1dense-SE40": 15, "1dense-SE": 15}
    assert layers == experts
    ratios = {"full": 0, "interleave": 0, "interleave-SE": 1, "1dense": 0, "1dense-SE40": 0.4, "1dense-SE": 1}
    active = []
    for name, shape in shapes.items():
        assert (shape.model_dim, shape.dense_hidden, shape.norm_topk_prob) == (1408, 3904, True)
        # Appendix F: "The models use choices such as ALiBi".
        assert shape.positions == "alibi"
        shared = shape.num_shared_experts * shape.shared_hidden
        assert shared == pytest.approx(ratios[name] * shape.top_k * shape.expert_hidden)
        active.append(PARAMS["resources"].active(shape))
    assert max(active) / min(active) < 1.035


def test_the_gates_and_groups_of_iclr_2026_are_those_of_tables_5_and_6():
    for name, shape in study("iclr_2026", "gates").models.items():
        assert (shape.num_layers, shape.num_heads, shape.head_dim, shape.num_dense_layers) == (17, 22, 64, 1)
        assert shape.norm_topk_prob == name.endswith("normalized")
    groups = study("iclr_2026", "top-K").models
    assert {(name[:4], shape.top_k) for name, shape in groups.items()} == {
        *(("ra27", 1), ("ra27", 11), ("ra44", 2), ("ra44", 22), ("ra58", 3), ("ra58", 33))
    }
    for shape in groups.values():
        assert (shape.num_layers, shape.num_heads, shape.head_dim, shape.norm_topk_prob) == (16, 11, 128, False)


def test_from_7b_to_14b_only_mu_grows_as_appendix_f_argues():
    shapes = [study("iclr_2026", f"activation-rate-{size}").models["ra20"] for size in ("7B", "14B")]
    assert len({(shape.model_dim, shape.num_layers, shape.num_dense_layers) for shape in shapes}) == 1
    totals = [PARAMS["resources"].total(shape) for shape in shapes]
    assert totals == pytest.approx([7e9, 14e9], rel=0.01)
    widths = [(shape.num_experts * shape.expert_hidden + shape.shared_hidden) / shape.model_dim for shape in shapes]
    assert widths[1] == pytest.approx(2 * widths[0] + 4 / 3, rel=0.01)


def test_fewer_unique_tokens_begin_where_the_dense_model_has_all_of_its_own():
    found = trainings("iclr_2026", "reuse")
    for width in (768, 1024, 1408):
        new, *repeated = (found[f"d{width}-{name}"] for name in ("new", "unique1", "unique2", "unique4"))
        assert new.recipe.data.unique_tokens == 0
        first = repeated[0].recipe.data.unique_tokens
        assert [one.recipe.data.unique_tokens for one in repeated] == [first, first // 2, first // 4]
        # Equal compute: the mixture reads 1/R_c times the dense model's tokens (Eq. 25).
        assert 3 < max(new.recipe.budgets_tokens) / first < 4
    study("iclr_2026", "reuse").check()
    greedy = trainings("iclr_2026", "greedy")
    assert greedy["1dense-SE-plain-unique1"].recipe.data.unique_tokens == greedy["dense"].recipe.budgets_tokens[0]


def test_annealing_reads_other_parts_in_the_decay_alone_and_once_for_as_many_tokens_as_the_dense_model():
    found = trainings("iclr_2026", "annealing")
    study("iclr_2026", "annealing").check()
    weights = dict(MIXTURES["li-2026"].weights)
    for name, training in found.items():
        data, recipe = training.recipe.data, training.recipe
        assert {part.name: part.weight for part in data.parts} == weights
        assert bool(data.decay_mixture) == ("annealed" in name)
        if data.decay_mixture:
            # Half web text; the others as among each other before.
            web = data.decay_mixture["WebData-en"]
            assert web == pytest.approx(sum(data.decay_mixture.values()) / 2)
            assert {n: w for n, w in data.decay_mixture.items() if n != "WebData-en"}.items() <= weights.items()
    decays = {}
    for name, training in found.items():
        recipe, (budget,) = training.recipe, training.recipe.budgets_tokens
        decays[name] = (recipe.tokens(recipe.steps(budget)) - recipe.tokens(recipe.decay_start(budget)), budget)
    assert decays["dense"] == decays["dense-annealed"]
    assert decays["ra20"] == decays["ra20-annealed"]
    assert decays["ra20"][0] == pytest.approx(0.2 * decays["ra20"][1], rel=1e-3)
    assert decays["ra20-annealed-short"] == (pytest.approx(decays["dense"][0], rel=2e-3), decays["ra20"][1])


def test_kimis_sparsities_and_deepseeks_two_models_are_those_of_appendix_b():
    shapes = study("iclr_2026", "sparsity").models
    assert {(shape.top_k, shape.num_shared_experts) for shape in shapes.values()} == {(8, 1)}
    assert {shape.num_experts // shape.top_k for shape in shapes.values()} == {8, 16, 24, 32, 48, 64}
    assert shapes["S48"].num_experts == 384
    assert len({PARAMS["resources"].active(shape) for shape in shapes.values()}) == 1
    mixture, dense = (trainings("iclr_2026", "deepseek")[name] for name in ("DeepSeekMoE-16B", "dense-7B"))
    assert mixture.recipe.budgets_tokens == dense.recipe.budgets_tokens == (2 * 10**12,)
    totals = [accounting.params(one.architecture).total for one in (mixture, dense)]
    assert totals == pytest.approx([16e9, 7e9], rel=0.03)
    flops = [FLOPS["exact-causal"].per_token(one.architecture, 4096) for one in (mixture, dense)]
    assert flops[0] / flops[1] == pytest.approx(0.4, abs=0.02)


def test_the_greedy_study_of_iclr_2026_carries_winners_through_its_stages():
    one = study("iclr_2026", "greedy")
    assert one.unknown_stages == ()
    assert [len(stage.models) for stage in one.stages] == [6, 2, 4, 5, 10, 5]
    for before, stage in itertools.pairwise(one.stages):
        assert before.expected in stage.models
    assert one.stages[-1].references == ("dense",)
    # Five winners, and the dense model, are in two stages and trained once.
    assert len(one.models) == sum(len(stage.models) for stage in one.stages) - 6


def test_the_proxies_of_chapter_002_span_two_orders_of_magnitude():
    counts = [accounting.params(shape) for shape in study("chapter_002", "proxies").models.values()]
    active = [count.active for count in counts]
    expansion = [count.total / count.active for count in counts]
    assert len(counts) == 20
    assert max(active) / min(active) >= 100
    assert max(expansion) / min(expansion) >= 100


def test_chapter_002_holds_out_a_larger_run_and_pilots_the_real_one():
    held_out = study("chapter_002", "held-out")
    (name,) = held_out.analysis.hold_out_models
    assert accounting.params(held_out.models[name]).active == pytest.approx(16e9, rel=0.02)
    (pilot,) = study("chapter_002", "pilot").models.values()
    counts = accounting.params(pilot)
    assert (counts.total, counts.active) == pytest.approx((671e9, 37e9), rel=0.02)


def test_a_config_imports_modules_of_its_folder_and_two_folders_do_not_share_them(tmp_path):
    path, text = list(sys.path), "import ml_collections\nimport sizes_here\n\n\ndef get_config():\n"
    for size in (1, 2):
        folder = tmp_path / str(size)
        folder.mkdir()
        (folder / "sizes_here.py").write_text(f"SIZE = {size}\n")
        (folder / "mine.py").write_text(text + "    return ml_collections.ConfigDict({'size': sizes_here.SIZE})\n")
        assert read(str(folder / "mine.py")).size == size
        assert sorted(file.name for file in folder.iterdir()) == ["mine.py", "sizes_here.py"]
    assert "sizes_here" not in sys.modules
    assert sys.path == path


def test_a_missing_config_names_the_configs_of_the_current_folder_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("def get_config():\n    pass\n")
    (tmp_path / "other.py").write_text("")
    with pytest.raises(UserError, match=r"There is no config file nofile\.py; existing files are mine\.py, configs/"):
        read("nofile.py")


def test_a_config_is_read_as_it_is_now_and_nothing_is_written_beside_it(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file = tmp_path / "mine.py"
    source = "import ml_collections\n\n\ndef get_config():\n    return ml_collections.ConfigDict({'size': 1})\n"
    for size in (1, 2):
        # Of the same length and the same second.
        file.write_text(source.replace("1", str(size)))
        os.utime(file, (0, 0))
        assert read(str(file)).size == size
    assert [path.name for path in tmp_path.iterdir()] == ["mine.py"]
