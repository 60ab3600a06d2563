"""Figures of what commands leave on disk: attempts of trainings, expert loads, plans."""

import json
import shutil

import pandas as pd
import pytest

from moejax.__main__ import main
from moejax.cli.command_line import DONE, USERS
from moejax.config import dump
from moejax.folder import only_writer
from moejax.laws.catalogue import find
from moejax.papers.plots import ALL
from moejax.plan.summary import as_data
from moejax.report import sources
from moejax.report.findings import layer_loads
from moejax.report.plots import PLOTS, draw, inputs_of
from moejax.run_table import TABLE
from moejax.stored import write_json
from moejax.train.directory.attempts import ATTEMPTS, Attempt
from moejax.train.directory.metrics import MetricsLog

HOUR = 3600.0


def _attempts(folder, *attempts):
    folder.mkdir(parents=True)
    write_json(folder / ATTEMPTS, dump(list(attempts)))


@pytest.fixture
def interrupted(tmp_path):
    """A study: one training done at once, one killed and gone on with, one killed for good."""
    models = tmp_path / "models"
    _attempts(models / "smooth", Attempt(began=0.0, until=HOUR, state="done"))
    _attempts(
        models / "unlucky",
        Attempt(began=0.0, until=100.0, state="interrupted"),
        Attempt(began=200.0, until=300.0),
        Attempt(began=400.0, until=500.0, state="done", seconds={"training": 70.0, "redone": 30.0}),
    )
    _attempts(models / "gone", Attempt(began=0.0, until=50.0))
    return tmp_path


def test_attempts_say_how_each_ended_and_what_was_lost(interrupted):
    table = sources.attempts_table(interrupted)
    own = table[table["model"] == "unlucky"]
    assert list(own["outcome"]) == ["interrupted", "killed", "done"]
    assert list(own["lost_seconds"]) == [0.0, 30.0, 0.0]
    assert list(table[table["model"] == "gone"]["outcome"]) == ["killed"]
    assert draw(PLOTS["restarts"], inputs_of(PLOTS["restarts"], table=table)).rows


def test_losses_of_trainings_are_smoothed_along_trunk_and_branch(tmp_path, capsys):
    for run in ("a", "b"):
        log = MetricsLog(tmp_path / "models" / run / "metrics.jsonl")
        (tmp_path / "models" / run).mkdir(parents=True)
        for phase, steps in (("trunk", range(1, 7)), ("branch-4", range(4, 6))):
            for step in steps:
                seen = {"validation_loss": 2.5} if step == 5 else {}
                values = {"loss": 6.0 - step, "tokens": 10 * step, "seconds": 1.0, "steps_done": step, **seen}
                log.write(phase, step, values)
    table = sources.losses_table(tmp_path)
    branch = table[(table["run"] == "a") & (table["phase"] == "branch-4")]
    assert list(branch["tokens"]) == [30, 40, 50]
    trunk = table[(table["run"] == "a") & (table["phase"] == "trunk")]
    assert branch["smoothed"].tolist() == pytest.approx(trunk["smoothed"].iloc[2:5].tolist())
    assert trunk["loss"].iloc[-1] < trunk["smoothed"].iloc[-1] < trunk["loss"].iloc[0]
    one, two = (str(tmp_path / "models" / run) for run in "ab")
    assert main(["plot", "loss", one, two, "--format", "png", "--out", str(tmp_path / "drawn")]) == DONE
    assert (tmp_path / "drawn" / "loss.png").is_file()
    assert set(pd.read_csv(tmp_path / "drawn" / "loss.csv")["run"]) == {one, two}
    assert main(["plot", "loss", str(tmp_path / "drawn"), "--out", str(tmp_path / "drawn")]) == USERS
    assert "has no metrics.jsonl of a training" in capsys.readouterr().err


def test_an_attempt_that_is_being_written_is_running(interrupted):
    with only_writer(interrupted / "models" / "gone"):
        table = sources.attempts_table(interrupted)
    assert list(table[table["model"] == "gone"]["outcome"]) == ["running"]


def test_one_training_s_folder_has_its_own_attempts(interrupted):
    assert len(sources.attempts_table(interrupted / "models" / "unlucky")) == 3


def test_loads_of_a_training_are_told_by_layer_expert_and_tokens(tmp_path):
    # The larger budget ends within a step: its row has the tokens of the last whole one.
    for tokens, seen in ((1_000_030, 1_000_000), (200_000, 200_000)):
        loads = json.dumps([[0.5, 1.5], [1.0, 1.0]])
        row = {"model": "moe", "tokens": seen, "loss": 3.0, "fingerprint": "0", "expert_loads": loads}
        write_json(tmp_path / f"branch-{tokens}.json", row)
    recipe = {"budgets_tokens": [200_000, 1_000_030], "batch_tokens": 100}
    write_json(tmp_path / "training.json", {"name": "moe", "recipe": recipe})
    table = sources.loads_table(tmp_path)
    assert list(dict.fromkeys(table["tokens"])) == [200_000, 1_000_000]
    crowded = table[(table["layer"] == 0) & (table["expert"] == 2)]
    assert list(crowded["load"]) == [1.5, 1.5]
    assert draw(PLOTS["expert-loads"], inputs_of(PLOTS["expert-loads"], table=table)).rows
    shutil.copy(tmp_path / "branch-200000.json", tmp_path / "branch-1000030.json")
    with pytest.raises(ValueError, match="instead of moe at 1,000,000"):
        sources.loads_table(tmp_path)


def test_layers_of_loads_are_numbered_as_in_the_training_log():
    shape = find("olmoe-1b-7b").architecture.replace(num_layers=3, num_dense_layers=1, dense_hidden=8)
    row = {"expert_loads": json.dumps([[1.0] * 4] * 2)}
    assert list(layer_loads(row)) == [0, 1]
    assert list(layer_loads(row | {"architecture": json.dumps(dump(shape))})) == [1, 2]


def test_loads_at_one_budget_fill_the_panel():
    table = pd.DataFrame({"layer": 0, "expert": [1, 2], "tokens": 1e6, "load": [0.5, 1.5]})
    panel = draw(PLOTS["expert-loads"], inputs_of(PLOTS["expert-loads"], table=table)).drawing.axes[0]
    assert panel.get_title(loc="left") == "layer 0"
    assert panel.collections[0].get_datalim(panel.transData).width > 0


def test_bars_of_a_plan_add_up_to_its_memory_and_its_step(example_plan):
    folder, plan = example_plan
    table = sources.plan_table(folder / "plan.json")
    sums = table.groupby("quantity")["value"].sum()
    assert sums["bytes"] == plan.memory.total
    assert sums["seconds"] == pytest.approx(plan.roofline.step_seconds)


def test_the_command_draws_from_folders_and_plans(interrupted, example_plan, tmp_path):
    out = tmp_path / "figures"
    assert main(["plot", "restarts", "--runs", str(interrupted), "--out", str(out)]) == DONE
    assert main(["plot", "plan", "--runs", str(example_plan[0] / "plan.json"), "--out", str(out)]) == DONE
    assert {"restarts.csv", "plan.csv"} <= {path.name for path in out.iterdir()}


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("restarts", "No training run in {} has an attempts.json"),
        ("expert-loads", "{} has no results of a training run"),
        ("runs", "{} has no " + TABLE),
    ],
)
def test_a_folder_without_what_a_figure_reads_is_a_sentence(name, sentence, tmp_path, capsys):
    assert main(["plot", name, "--runs", str(tmp_path), "--out", str(tmp_path / "out")]) == USERS
    assert sentence.format(tmp_path) in capsys.readouterr().err


def test_json_that_is_no_plan_is_a_sentence(tmp_path, capsys):
    (tmp_path / "plan.json").write_text("[1]")
    assert main(["plot", "plan", "--runs", str(tmp_path / "plan.json"), "--out", str(tmp_path / "out")]) == USERS
    assert "moejax plan --out DIR writes a plan.json" in capsys.readouterr().err


@pytest.fixture
def example_plan(tmp_path):
    from moejax.plan.plan import ChipMemory, Plan
    from moejax.plan.program_time import ProgramTime
    from moejax.plan.step_time import Roofline

    program = ProgramTime(
        xla_seconds=0.01,
        xla_seconds_at_bandwidth=0.01,
        pallas_seconds=0.0,
        pallas_seconds_of_rows=0.0,
        link_seconds={},
    )
    memory = ChipMemory(
        parameters=10, optimizer_state=20, other_state=3, batch=1, temporaries=40, program=5, gradients=10, limit=100
    )
    plan = Plan(
        name="made up",
        topology="v5e:2x2",
        chips=4,
        devices=4,
        mesh={"data": 1, "fsdp": 2, "expert": 2, "tensor": 1},
        batch_tokens=1024,
        sequence_length=128,
        microbatches=2,
        remat="full",
        matmul_quantization="none",
        expert_communication="padded",
        memory=memory,
        does_not_fit="",
        model_flops=1e12,
        model_flops_unmasked=1.1e12,
        step_flops=1.5e12,
        xla_flops=4e11,
        communication=(),
        roofline=Roofline(compute_seconds=2e-3, memory_seconds=3e-3, link_seconds={"fsdp": 1e-3, "expert": 5e-4}),
        program=program,
        evaluation_tokens=1024,
        evaluation_roofline=Roofline(compute_seconds=1e-3, memory_seconds=1e-3, link_seconds={}),
        evaluation_program=program,
        tokens=10_000,
        total_steps=10,
        total_tokens=10_000,
        compile_seconds=1.0,
    )
    folder = tmp_path / "planned"
    folder.mkdir()
    write_json(folder / "plan.json", as_data(plan))
    return folder, plan


def test_scores_over_training_are_drawn_of_a_folder_of_evaluated_checkpoints(tmp_path):
    """A file per model and checkpoint, as moejax eval --suite --out writes it; other JSON there is passed over."""
    for model, tokens in [("a", 1e9), ("a", 2e9), ("b", 1e9), ("b", 2e9)]:
        rows = [{"category": "Math", "task": "GSM8K", "score": tokens / 1e8 + (model == "b")}]
        rows += [{"category": "Language", "task": "RACE-high", "score": 30.0}]
        said = {"model": {"name": model, "tokens": tokens}, "suite": {"name": "tian-2025", "scores": rows}}
        (tmp_path / f"{model}-{tokens:g}.json").write_text(json.dumps(said))
    (tmp_path / "other.json").write_text("{}")
    plot = ALL["tian-15"]
    drawn = draw(plot, inputs_of(plot, table=sources.read("tian-15", tmp_path))).rows
    own = [row for row in drawn if row["panel"] == "Math" and row["series"] == "b"]
    assert [(row["tokens"], row["mean_score_percent"]) for row in own] == [(1e9, 11.0), (2e9, 21.0)]
    (tmp_path / "none").mkdir()
    with pytest.raises(ValueError, match="has no scores of a suite"):
        sources.read("tian-6", tmp_path / "none")
