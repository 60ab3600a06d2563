"""TensorBoard and W&B show every logged step once, however often a training was killed."""

import dataclasses
import re
import struct
import sys
import types

import pytest
from interrupted import train_killed_at_every_log

from moejax.train.directory import metrics
from moejax.train.directory.metrics import LoggerConfig, MetricsLog, TensorBoardLogger, WandbLogger, scalars
from moejax.train.mesh import MeshShape
from moejax.train.training import phases
from moejax.wording import install_command

LINE = {"phase": "trunk", "step": 3, "loss": 2.5, "batch_digest": 7, "layers": {"layer": [1, 3], "load_cv": [0.1, 0.2]}}


def test_what_a_line_shows():
    assert scalars(LINE) == {"loss": 2.5, "layers/load_cv/1": 0.1, "layers/load_cv/3": 0.2}


def points(folder):
    """Every point in event files, ``(run, step, tag): [values]``, read by the framing of TFRecord."""
    from tensorboardX.proto.event_pb2 import Event

    found = {}
    for path in folder.rglob("events.*"):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            event = Event.FromString(data[12 : 12 + length])
            data = data[16 + length :]
            for value in event.summary.value:
                found.setdefault((path.parent.name, event.step, value.tag), []).append(value.simple_value)
    return found


@pytest.fixture
def shown(training):
    """The training, on one device each of eight, with a logger."""

    def choose(**loggers):
        recipe = dataclasses.replace(training.recipe, mesh=MeshShape(data=8), loggers=LoggerConfig(**loggers))
        return dataclasses.replace(training, recipe=recipe)

    return choose


def expected(folder, training, *, apart=metrics.OF_THE_CLOCK):
    trunk, branches = phases(training)
    lines = list(metrics.read(folder / "metrics.jsonl"))
    return {
        (phase.name, line["step"], tag): value
        for phase in (trunk, *branches)
        for line in metrics.history(lines, phase.name, phase.start)
        for tag, value in scalars(line).items()
        if tag not in apart
    }


def test_the_run_of_a_budget_begins_with_the_trunk_up_to_its_branch(tmp_path):
    class Recorder:
        def __init__(self):
            self.runs = {}

        def begin(self, phase, kept):
            self.phase, self.runs[phase] = phase, [line["step"] for line in kept]

        def write(self, line):
            self.runs[self.phase].append(line["step"])

    log = MetricsLog(tmp_path / "metrics.jsonl", loggers=[recorder := Recorder()])
    values = {"loss": 1.0, "tokens": 1, "seconds": 1.0, "steps_done": 1}
    resumed = (("branch-4", 4, 5, 7), ("branch-4", 4, 7, 8))
    for phase, start, at, end in (("trunk", 0, 0, 6), ("branch-2", 2, 2, 4), ("branch-4", 4, 4, 6), *resumed):
        log.rewind(phase, at, start)
        for step in range(at + 1, end + 1):
            log.write(phase, step, values)
    assert recorder.runs == {
        "trunk": [1, 2, 3, 4, 5, 6],
        "branch-2": [1, 2, 3, 4],
        "branch-4": [1, 2, 3, 4, 5, 6, 7, 8],
    }


def test_a_resumed_budget_has_no_lines_of_the_trunk_beyond_its_start():
    trunk = [{"phase": "trunk", "step": step} for step in (90, 100, 103, 105, 110)]
    own = [{"phase": "branch-1", "step": step} for step in (110, 120)]
    for lines in (trunk, trunk + own):
        kept = metrics.history(lines, "branch-1", 103)
        assert [line["step"] for line in kept if line["phase"] == "trunk"] == [90, 100, 103]
        assert [line for line in kept if line["phase"] != "trunk"] == lines[5:]


@pytest.mark.slow
def test_tensorboard_has_every_point_of_the_log_once(shown, tmp_path):
    pytest.importorskip("tensorboardX")
    train_killed_at_every_log(training := shown(tensorboard=True), tmp_path)
    found = points(tmp_path / "tensorboard")
    assert all(len(values) == 1 for values in found.values())
    wanted = expected(tmp_path, training)
    assert {key for key in found if key[2] not in metrics.OF_THE_CLOCK} == set(wanted)
    assert all(found[key] == [pytest.approx(value, rel=1e-5)] for key, value in wanted.items())
    assert {key[0] for key in found} == {"trunk", "branch-2048", "branch-4096"}


@pytest.mark.slow
def test_tensorboard_is_written_anew_from_what_the_log_keeps(tmp_path):
    pytest.importorskip("tensorboardX")
    for kept in ((), (1, 2)):
        log = MetricsLog(tmp_path / "metrics.jsonl", loggers=[logger := TensorBoardLogger(tmp_path / "tensorboard")])
        log.rewind("trunk", max(kept, default=0), 0)
        for step in range(max(kept, default=0) + 1, 6):
            log.write(
                "trunk", step, {"loss": 1.0 / step + len(kept), "tokens": step, "seconds": 1.0, "steps_done": step}
            )
        logger.close()
    values = {step: value for (_, step, tag), (value,) in points(tmp_path / "tensorboard").items() if tag == "loss"}
    assert values == pytest.approx({1: 1.0, 2: 0.5, 3: 1 / 3 + 2, 4: 2.25, 5: 2.2})


class StandIn(types.ModuleType):
    """W&B as far as it is used: runs by id, which refuse a step they have."""

    def __init__(self):
        super().__init__("wandb")
        self.runs = {}

    def init(self, *, id, name, project, group, **rest):
        assert rest["resume"] == "allow"
        run = self.runs.setdefault(id, types.SimpleNamespace(name=name, project=project, group=group, points={}))
        run.step = max(run.points, default=-1) + 1

        def log(values, step):
            assert step >= run.step
            run.points[step], run.step = values, step

        run.log, run.finish = log, lambda: None
        return run


@pytest.mark.slow
def test_wandb_is_shown_every_step_once(shown, tmp_path, monkeypatch):
    """MaxText #2434."""
    stand_in = StandIn()
    monkeypatch.setitem(sys.modules, "wandb", stand_in)
    monkeypatch.setattr(LoggerConfig, "check", lambda self: None)
    train_killed_at_every_log(training := shown(wandb="routing"), tmp_path)
    runs = {run.name: run for run in stand_in.runs.values()}
    assert set(runs) == {"small/trunk", "small/branch-2048", "small/branch-4096"}
    assert {(run.project, run.group) for run in runs.values()} == {("routing", "small")}
    found = {
        (name.removeprefix("small/"), step, tag): value
        for name, run in runs.items()
        for step, values in run.points.items()
        for tag, value in values.items()
        if tag not in metrics.OF_THE_CLOCK
    }
    assert found == expected(tmp_path, training)


@pytest.mark.filterwarnings("default")
def test_wandb_without_a_network_leaves_its_runs_on_disk(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    for _ in range(2):
        logger = WandbLogger(tmp_path, project="routing", name="small", config={"seed": 0})
        logger.begin("trunk", [LINE])
        logger.close()
    assert len(list(tmp_path.glob("wandb/offline-run-*"))) == 2


def test_a_logger_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        ValueError, match=rf"recipe.loggers.wandb needs wandb, .* {re.escape(install_command('wandb'))}"
    ):
        LoggerConfig(wandb="routing").check()
