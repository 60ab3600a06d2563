"""Several real processes train what one does, go on where another number of them stopped, and end together."""

import contextlib
import itertools
import re
import signal
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import pytest
from command import assert_close, assert_same_training, command, environment, lines, run, start, write_config
from jax._src import distributed
from jax.errors import JaxRuntimeError

from moejax.errors import CoordinatedError, UserError
from moejax.train.directory.attempts import AttemptRecorder
from moejax.train.directory.identity import DIVERGED
from moejax.train.directory.manifest import verify
from moejax.train.directory.status import read_status
from moejax.train.processes import ProcessGroup, warn_of_idle_gpus
from moejax.train.run import TrainingRun


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("processes")


@pytest.fixture(scope="module")
def config(place):
    return write_config(place)


@pytest.fixture(scope="module")
def alone(place, config):
    process = run(place / "cache", f"--config={config}", "--out", place / "alone")
    assert process.returncode == 0, process.stderr
    return place / "alone"


def stop_after(process, folder, more):
    """Ask it to stop when it has logged so many lines, as a scheduler does; returns its status and what it said."""
    before = lines(folder)
    while lines(folder) < before + more and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=300)[1]
    return process.returncode, said


def manifests(out):
    """Names of those of the newest checkpoint: one of each process that wrote some of it."""
    newest = max((out / "checkpoints" / "branch-8192").iterdir(), key=lambda path: int(path.name))
    return {path.name for path in newest.glob("manifest*")}


@pytest.mark.matrix(1)
def test_two_processes_train_what_one_does(place, config, alone):
    """As two slices, that have nothing in common but sums."""
    slices = "--config.recipe.mesh.dcn_data=2"
    process = run(place / "cache", f"--config={config}", "--out", place / "two", "--processes", 2, slices)
    assert process.returncode == 0, process.stderr
    assert_close(place / "two", alone)
    assert "\nsmall " in process.stdout
    assert process.stdout.count("loss, nats/token") == 1
    assert "Gloo" in process.stderr
    assert verify(place / "two").damaged == ()
    assert verify(place / "two").without_hash == 0
    # Both hold all arrays, which are too small for each to write a part.
    assert manifests(place / "two") == {"manifest-0.json"}


@pytest.mark.slow
def test_a_stopped_training_says_so_and_goes_on_to_the_same_end(place, config, alone):
    out = place / "stopped"
    status, said = stop_after(start(place / "cache", f"--config={config}", "--out", out), out, 3)
    assert status == 75
    assert said.strip().endswith("Stopped and saved; the same command resumes from there.")
    before = lines(out)
    assert run(place / "cache", "--out", out).returncode == 0
    assert before < lines(out)
    assert_same_training(out, alone)


@pytest.mark.slow
def test_a_training_goes_on_with_one_two_four_and_one_process(place, config, alone):
    out, words = place / "chain", [f"--config={config}", "--out", place / "chain"]
    for processes in (1, 2, 4):
        several = ["--processes", processes] if processes > 1 else []
        status, said = stop_after(start(place / "cache", *words, *several), out, 3)
        assert status == 75, said
    last = run(place / "cache", *words)
    assert last.returncode == 0, last.stderr
    assert_close(out, alone)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["data", "tensor", "expert", "slices"])
def test_four_processes_train_what_one_does_whatever_axis_they_lie_along(place, config, alone, mesh):
    """Along the tensor axis, two processes read the same rows; along the expert axis, tokens travel between them."""
    axes = {"data": [1, 4, 1, 1], "tensor": [1, 2, 1, 2], "expert": [1, 2, 2, 1], "slices": [2, 1, 2, 1]}[mesh]
    names = ("dcn_data", "data", "expert", "tensor")
    sizes = [f"--config.recipe.mesh.{axis}={size}" for axis, size in zip(names, axes, strict=True)]
    out = place / f"four-{mesh}"
    process = run(place / "cache", f"--config={config}", "--out", out, "--processes", 4, *sizes)
    assert process.returncode == 0, process.stderr
    assert_close(out, alone)
    assert (len(manifests(out)) > 1) == (mesh != "data")
    assert verify(out).damaged == ()


def test_every_agreement_has_a_limit(monkeypatch):
    class Alone:
        def key_value_set(self, key, value):
            self.said = value

        def blocking_key_value_get(self, key, milliseconds):
            raise JaxRuntimeError(f"DEADLINE_EXCEEDED after {milliseconds} ms")

    group = ProcessGroup(wait_seconds=7.0)
    group.count = 2
    client = Alone()
    monkeypatch.setattr(distributed.global_state, "client", client)
    with pytest.raises(ValueError, match=r"Process 0 of 2 has waited 7 s for process [01].*The same command resumes"):
        group.barrier()
    assert "has waited 7 s for process" in client.said
    group.index = 1
    with pytest.raises(ValueError, match="Process 1 of 2 has waited 7 s for process 0"):
        group.broadcast(None)
    with pytest.raises(ValueError, match="Process 1 of 2 has waited 9 s for process 0"):
        group.run_or_abort(lambda: None, wait_seconds=9.0)


def test_who_has_lost_the_others_does_not_say_that_one_is_late(monkeypatch):
    class Gone:
        def key_value_set(self, key, value): ...

        def blocking_key_value_get(self, key, milliseconds):
            raise JaxRuntimeError("UNAVAILABLE: failed to connect to all addresses")

    group = ProcessGroup()
    group.count, group.index = 2, 1
    monkeypatch.setattr(distributed.global_state, "client", Gone())
    with pytest.raises(JaxRuntimeError, match="UNAVAILABLE"):
        group.barrier()


class Store:
    """A key-value store, which counts what it is asked."""

    def __init__(self):
        self.values, self.asked, self.changed = {}, 0, threading.Condition()

    def key_value_set(self, key, value):
        with self.changed:
            self.asked += 1
            if key in self.values:
                raise JaxRuntimeError(f"ALREADY_EXISTS: {key}")
            self.values[key] = value
            self.changed.notify_all()

    def blocking_key_value_get(self, key, milliseconds):
        with self.changed:
            self.asked += 1
            if not self.changed.wait_for(lambda: key in self.values, timeout=min(milliseconds / 1000, 120)):
                raise JaxRuntimeError(f"DEADLINE_EXCEEDED: {key}")
            return self.values[key]

    def key_value_delete(self, folder):
        with self.changed:
            self.asked += 1
            self.values = {key: value for key, value in self.values.items() if not key.startswith(f"{folder}/")}


class Process(ProcessGroup):
    """One of several in the threads of a test, each of which counts its agreements."""

    def __init__(self, index, count):
        super().__init__()
        self.index, self.count, self._numbers = index, count, itertools.count()

    def _begin(self):
        return f"moejax/{next(self._numbers)}"


def in_processes(monkeypatch, count, work):
    """What ``work(group)`` returns or raises in each of them, and the store through which they agreed."""
    store = Store()
    # JAX would give the store to a backend that is not there yet.
    jax.devices()
    monkeypatch.setattr(distributed.global_state, "client", store)

    def outcome(index):
        try:
            return work(Process(index, count))
        except (UserError, SystemExit) as error:
            return error

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(outcome, range(count))), store


def test_at_the_end_processes_wait_for_one_that_still_hashes(monkeypatch):
    def work(group):
        group._wait = 0.05
        with group.leaving_together():
            time.sleep(0.5 * group.index)

    assert in_processes(monkeypatch, 2, work)[0] == [None, None]


def test_what_is_agreed_costs_requests_in_proportion_to_the_processes_and_leaves_no_keys(monkeypatch):
    def work(group):
        gathered = [group.all_gather([group.index, number]) for number in range(10)]
        told = [group.broadcast(10 * group.index + number) for number in range(10)]
        main = [group.run_on_main(lambda number=number: {"of": group.index, "number": number}) for number in range(10)]
        group.barrier()
        return gathered, told, main

    count = 16
    found, store = in_processes(monkeypatch, count, work)
    gathered = [[[process, number] for process in range(count)] for number in range(10)]
    main = [{"of": 0, "number": number} for number in range(10)]
    assert found == [(gathered, list(range(10)), main)] * count
    # Gathered and told ten times, worked and told ten times, and the barrier: four a process, and one that deletes.
    assert store.asked <= 41 * (4 * count + 2)
    assert len(store.values) == count + 1


@pytest.mark.parametrize("failing", [0, 2])
@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(5, "Input/output error", "trunk/3"), "trunk/3: system error: Input/output error"),
        (KeyError("a"), "KeyError: 'a'"),
    ],
)
def test_whatever_is_raised_in_one_process_ends_all(monkeypatch, failing, error, sentence):
    def work():
        raise error

    found, _ = in_processes(
        monkeypatch, 3, lambda group: group.run_or_abort(work if group.index == failing else lambda: None)
    )
    assert isinstance(found[0], CoordinatedError)
    assert re.search(f"Process {failing} of 3: .*{sentence}", str(found[0]))
    assert [type(other) for other in found[1:]] == [SystemExit, SystemExit]


@pytest.mark.slow
def test_two_processes_fall_back_together_from_a_checkpoint_that_one_cannot_restore(place, config):
    out = place / "damaged"
    words = [f"--config={config}", "--out", out, "--processes", 2]
    assert stop_after(start(place / "cache", *words), out, 6)[0] == 75
    newest = max((out / "checkpoints" / "trunk").iterdir(), key=lambda path: int(path.name))
    largest = max((newest / "state").rglob("*"), key=lambda path: path.is_file() and path.stat().st_size)
    largest.write_bytes(bytes(largest.stat().st_size))
    ended = run(place / "cache", *words)
    assert ended.returncode == 0, ended.stderr
    (sentence,) = re.findall(r"^moejax: (The checkpoint of step .*)$", ended.stderr, re.MULTILINE)
    assert re.search(
        r"cannot be restored .*The checkpoint was moved to .*damaged/trunk-\d+\. Resuming from step \d+", sentence
    )


class Told(ProcessGroup):
    """The group as a process that is not the main one sees it: it is told what that one's work returned."""

    def __init__(self, *returned):
        super().__init__()
        self.returned = list(returned)

    def run_on_main(self, work, *, wait_seconds=None):
        return self.returned.pop(0)


def one_run(training, folder, group):
    return TrainingRun(
        training=training,
        folder=folder,
        rows=[None, None],
        attempts=AttemptRecorder(folder, writes=False, metadata={}),
        group=group,
        log=lambda text: None,
    )


def test_who_has_diverged_is_what_the_main_process_says_whatever_file_another_sees(training, tmp_path):
    main = one_run(training, tmp_path, ProcessGroup())
    main.set_divergence("at once")
    # The main process removes the file; another one still has it in its cache, and the other way round.
    other = one_run(training, tmp_path, Told(None, None, "too late"))
    other.set_divergence(None)
    assert other.diverged is None
    other.recall_divergence()
    assert (tmp_path / DIVERGED).exists()
    assert other.diverged is None
    main.set_divergence(None)
    other.recall_divergence()
    assert not (tmp_path / DIVERGED).exists()
    assert other.diverged == "too late"
    main.recall_divergence()
    assert main.diverged is None


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def each(place, port, *own):
    """One process per list of words, all at one coordinator; returns their statuses and what they said."""
    many = ["--coordinator", f"127.0.0.1:{port}", "--processes", len(own), "--wait", 60]
    started = [
        subprocess.Popen(
            command(*words, *many, "--process", number), env=environment(place / "cache"),
            stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for number, words in enumerate(own)
    ]  # fmt: skip
    said = [process.communicate(timeout=200)[1] for process in started]
    return [process.returncode for process in started], said


@pytest.mark.slow
def test_processes_with_different_settings_are_told_so_once(place, config):
    same = [f"--config={config}", "--out", place / "different"]
    statuses, said = each(place, free_port(), same, [*same, "--config.seed=1"])
    assert statuses == [2, 2]
    assert "Processes 0 and 1 were given different settings: seed is 0 and 1" in said[0]
    assert "moejax:" not in said[1]
    assert not (place / "different").exists()


@pytest.mark.slow
def test_what_is_wrong_in_one_process_ends_all(place, config):
    same = [f"--config={config}", "--out", place / "one-wrong"]
    statuses, said = each(place, free_port(), same, ["--config=missing.py", *same[1:]])
    assert statuses == [2, 2]
    assert "Process 1 of 2: There is no config file missing.py" in said[0]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("recipe.mesh.data=3", "does not fit 2 devices"),
        ("recipe.data.source=nowhere", "no file or folder nowhere"),
        ("recipe.initial_weights.source=nowhere", "holds no weights; give a weights folder"),
    ],
)
@pytest.mark.matrix(1)
def test_what_is_wrong_in_all_is_said_once(place, config, tmp_path, change, sentence):
    process = run(
        place / "cache", f"--config={config}", "--out", tmp_path / "out", "--processes", 2, f"--config.{change}"
    )
    assert process.returncode == 2, process.stderr
    assert process.stderr.count("moejax: ") == 1
    assert sentence in process.stderr
    assert "Traceback" not in process.stderr


def test_a_port_in_use_is_a_sentence(place, config):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        words = ["--coordinator", f"127.0.0.1:{port}", "--processes", 2, "--process", 0]
        process = run(place / "cache", f"--config={config}", "--out", place / "port", *words)
    assert process.returncode == 2
    assert f"Port {port} of this machine cannot be used" in process.stderr
    assert "Give all processes another port with --coordinator HOST:PORT" in process.stderr
    assert "Traceback" not in process.stderr


@pytest.mark.slow
def test_a_process_that_waits_in_vain_says_so(place, config):
    words = ["--coordinator", f"127.0.0.1:{free_port()}", "--processes", 2, "--process", 0, "--wait", 5]
    process = run(place / "cache", f"--config={config}", "--out", place / "vain", *words)
    assert process.returncode == 2, process.stderr
    assert "Not all 2 processes met" in process.stderr


def test_tasks_of_slurm_that_leave_gpus_idle_are_named(capsys):
    def environment(gpus, tasks, nodes):
        return {"SLURM_GPUS_ON_NODE": str(gpus), "SLURM_NTASKS": str(tasks), "SLURM_STEP_NUM_NODES": str(nodes)}

    warn_of_idle_gpus(2, 1, environment(8, 2, 2))
    said = capsys.readouterr().err
    assert "! This node has 8 GPUs, but its 1 task will use 1." in said
    assert "srun --ntasks-per-node=8" in said
    for processes, devices, known in [
        (16, 1, environment(8, 16, 2)),
        (2, 8, environment(8, 2, 2)),
        (3, 1, environment(8, 3, 2)),
        (2, 1, environment("8(x2)", 2, 2)),
        # Under another launcher, Slurm knows only the launcher's tasks.
        (16, 1, environment(8, 2, 2)),
        (1, 1, {}),
    ]:
        warn_of_idle_gpus(processes, devices, known)
    assert not capsys.readouterr().err


def slurm(place, config, out, job, *words):
    """Two processes that know of each other what Slurm tells every task of a step."""
    started = []
    for number in range(2):
        told = {"SLURM_JOB_ID": job, "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": 2, "SLURM_STEP_NUM_NODES": 1}
        told |= {"SLURM_PROCID": number, "SLURM_LOCALID": number}
        started.append(
            subprocess.Popen(
                command(f"--config={config}", "--out", out, "--distributed", *words),
                env=environment(place / "cache") | {name: str(value) for name, value in told.items()},
                stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )
        )  # fmt: skip
    said = [process.communicate(timeout=200) for process in started]
    return [process.returncode for process in started], said


def a_job():
    """A number of a job for which Slurm's coordinator finds its port free: one of the last 4096, which it picks."""
    for job in range(1000, 2**12):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", 2**16 - 2**12 + job))
            return job
    raise AssertionError("no port is free")


@pytest.mark.slow
def test_under_slurm_nothing_else_need_be_said(place, config, alone):
    out = place / "slurm"
    statuses, said = slurm(place, config, out, a_job())
    assert statuses == [0, 0], said
    assert_close(out, alone)
    assert [text.count("loss, nats/token") for text, _ in said] == [1, 0]


@pytest.mark.slow
def test_without_anything_that_tells_of_the_others_the_remedy_is_said(place, config, tmp_path):
    process = run(place / "cache", f"--config={config}", "--out", tmp_path / "out", "--distributed")
    assert process.returncode == 2, process.stderr
    assert "Give --coordinator HOST:PORT, --processes N and --process I" in process.stderr
    assert "Traceback" not in process.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--process", 1], "belong together"),
        (["--coordinator", "a:1", "--process", 0], "belong together"),
        (["--coordinator", "a:1", "--process", 2, "--processes", 2], "must be from 0 to 1"),
        (["--coordinator", "nowhere", "--process", 0, "--processes", 2], "give HOST:PORT"),
        (["--wait", 0], "--wait is 0"),
    ],
)
def test_a_mistake_about_processes_is_a_sentence(config, tmp_path, capsys, words, sentence):
    from moejax.__main__ import main

    assert main(["train", f"--config={config}", "--out", str(tmp_path / "out"), *map(str, words)]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.slow
def test_a_signal_while_the_step_is_compiled_interrupts_and_says_that_nothing_is_saved(place, config):
    """With no cache of programs: numba and XLA are at work, in frames that take no exception from a signal."""
    out = place / "compiling"
    process = start(place / "no-cache", f"--config={config}", "--out", out)
    said = ""
    while "Compiling" not in said:
        line = process.stderr.readline()
        assert line, said
        said += line
    process.send_signal(signal.SIGTERM)
    said += process.communicate(timeout=300)[1]
    assert process.returncode == 75, said
    assert "Stopped before a step was taken; run the same command again to resume." in said
    assert "Traceback" not in said
    assert read_status(out).state == "interrupted"
