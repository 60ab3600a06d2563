"""Training from beginning to end: a trunk, a branch per budget, a row per branch. Interrupted anywhere, it goes on."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from moejax.config import dump
from moejax.data.corpus import Corpus, Summary, open_corpus
from moejax.errors import UserError
from moejax.folder import differences, has_writer, only_writer
from moejax.stored import read_json, write_json
from moejax.train.attempts import FAILED, AttemptRecorder, changed_versions, ending, read_attempts
from moejax.train.identity import TRAINING, decisive_changes, own, read_history
from moejax.train.loggers import open_loggers
from moejax.train.manifest import Hashing
from moejax.train.mesh import check_fits, make_mesh
from moejax.train.metrics import MetricsLog
from moejax.train.phases import Phase, phases
from moejax.train.population_runner import DIVERGED, given_up, run_population
from moejax.train.processes import WAIT_SECONDS, ProcessGroup
from moejax.train.profile import Profile
from moejax.train.program import make_program
from moejax.train.rounding import DETERMINISTIC, fix_threads, of_all, unfixed
from moejax.train.row import make_row, versions
from moejax.train.row_file import CutShort, check_row, read_row, row_file
from moejax.train.runner import Progress, Runner
from moejax.train.speed import Speed
from moejax.train.status import interrupted_text
from moejax.train.stopping import Stop, Stopped
from moejax.train.training import Training
from moejax.train.vmapped_runs import RUNS, shared_settings, vmapped_runs
from moejax.wording import says, some, told

PREPARING_SECONDS = 24 * 3600.0
"""How long processes wait for the first one to tokenise a corpus."""


def train(
    training: Training,
    folder: Path,
    *,
    data_folder: Path | None = None,
    accept_changes: bool = False,
    wait_seconds: float = WAIT_SECONDS,
    stop: Stop | None = None,
    began: float | None = None,
    profile: tuple[int, int] | None = None,
    log: Callable[[str], None] = lambda text: None,
    progress: Progress = lambda steps, values: None,
) -> list[dict[str, Any]]:
    """Train all budgets in ``folder`` and return their run rows, in order.

    What ``folder`` already holds of this training is kept: finished rows are not trained again, an unfinished trunk or
    branch goes on from its newest whole checkpoint, and the numbers are those of an uninterrupted run, on whatever
    mesh and number of processes. With ``accept_changes`` it goes on with other settings. ``data_folder`` shares one
    tokenised corpus between trainings. ``log`` is called with messages for people.
    Processes wait for each other ``wait_seconds``. The members of a population are trained together, each in
    ``folder/members/NAME``, and their rows returned one member after another. ``began``, Unix time, is when the process
    was started, from which on its time is accounted for. ``profile`` records the steps from one number to another, over
    trunk and branches.

    Raises:
      UserError: the training or the mesh makes no sense, the folder belongs to another training, or the disk is full.
      Stopped: ``stop`` asked for it, and everything is saved.
    """
    fix_threads()
    options: dict[str, Any] = {
        "accept_changes": accept_changes,
        "wait_seconds": wait_seconds,
        "stop": stop,
        "began": began,
        "profile": profile,
        "log": log,
        "progress": progress,
    }
    if not training.vmap:
        return train_beside([training], [folder], data_folder or folder / "data", **options)[0]
    group, every = ProcessGroup(wait_seconds), vmapped_runs(training)
    group.run_or_abort(training.check)
    group.run_or_abort(lambda: _check_alike(every, group))
    with _owned(folder, training, accept_changes, log):
        folders = [folder / RUNS / member.name for member in every]
        found = train_beside(every, folders, data_folder or folder / "data", **options)
    return [row for rows in found for row in rows]


def train_beside(
    trainings: Sequence[Training],
    folders: Sequence[Path],
    data_folder: Path,
    *,
    accept_changes: bool = False,
    wait_seconds: float = WAIT_SECONDS,
    stop: Stop | None = None,
    began: float | None = None,
    profile: tuple[int, int] | None = None,
    log: Callable[[str], None] = lambda text: None,
    progress: Progress = lambda steps, values: None,
) -> list[list[dict[str, Any]]]:
    """Train one or several trainings, these as the members of one population, each in its own folder as ``train`` does.

    Returns the rows of each.

    Raises:
      UserError: as ``train``; or members diverged, and the others are done.
      Stopped: ``stop`` asked for it, and everything is saved.
    """
    group, every = ProcessGroup(wait_seconds), list(zip(trainings, folders, strict=True))
    stop = stop or Stop(group.count)
    for training, folder in every:
        group.check_same("settings", {"out": str(folder), **training.as_json()})
    with contextlib.ExitStack() as refused:
        for _, folder in every if group.is_main else ():
            refused.enter_context(_refusal(folder, log))
        for training, _ in every:
            group.run_or_abort(training.check)
        group.run_or_abort(lambda: _check_alike(trainings, group))
        mesh = group.run_or_abort(lambda: _mesh(trainings[0]))
    with contextlib.ExitStack() as held:

        def take() -> None:
            for training, folder in every:
                held.enter_context(_owned(folder, training, accept_changes, log))

        group.run_or_abort(take if group.is_main else _nothing)
        axes = ", ".join(f"{axis}={size}" for axis, size in mesh.shape.items())
        here = {**of_all(group.all_gather(versions())), "mesh": axes, "processes": str(group.count)}
        attempts = {
            folder: _recorder(training, folder, group, began, here, len(every), log) for training, folder in every
        }
        rows = {
            folder: group.run_or_abort(
                lambda training=training, folder=folder: _known_rows(training, folder, log, group)
            )
            for training, folder in every
        }
        found = {folder: group.broadcast(of_one) for folder, of_one in rows.items()}
        waiting = [(training, folder) for training, folder in every if None in found[folder]]
        hear = log if group.is_main else _silence
        if waiting and (why := unfixed()):
            hear(why)
        for _, folder in waiting:
            log_rounding_changes(folder, here, hear)
            held.enter_context(attempts[folder])
        held.enter_context(
            stop.ending(functools.partial(_interrupted, folders, [attempts[folder] for _, folder in waiting]))
        )
        corpus = _open(trainings, folders, data_folder, group)
        if len(trainings) == 1 and group.is_main:
            # By itself, what was given up in a population is tried again.
            (folders[0] / DIVERGED).unlink(missing_ok=True)
        if all(given_up(folder) for _, folder in waiting):
            progress(trainings[0].recipe.total_steps, {})
        else:
            with jax.set_mesh(mesh), _saying_so(folders[0]):
                profiled = Profile(profile, folders[0], log if group.is_main else _silence)
                held.callback(profiled.close)
                program = make_program(trainings[0], mesh)

                def runner(training: Training, folder: Path) -> Runner:
                    loggers = held.enter_context(open_loggers(training, folder)) if group.is_main else []
                    return Runner(
                        training,
                        folder,
                        corpus,
                        program,
                        MetricsLog(folder / "metrics.jsonl", writes=group.is_main, loggers=loggers, log=log),
                        attempts[folder],
                        Speed(training),
                        profiled,
                        group,
                        stop,
                        progress,
                        log,
                        held.enter_context(Hashing(group.index, group.count)),
                    )

                runners = [runner(training, folder) for training, folder in waiting]
                _train(runners[0] if len(runners) == 1 else run_population(runners), found)
    lost = [why for why in map(given_up, folders) if why is not None]
    if lost:
        raise ValueError(f"{len(lost)} of {len(trainings)} runs diverged; the others are done. {' '.join(lost)}")
    return [found[folder] for folder in folders]  # type: ignore[misc]


def _train(runner: Runner, found: dict[Path, list[dict[str, Any] | None]]) -> None:
    """Take all steps that are still to be taken, and put the rows that are not there yet in their places."""
    trunk, branches = runner.phases()
    starts = {branch.start for branch in branches}

    def without_row(number: int) -> bool:
        return any(found[one.folder][number] is None for one in runner.running())

    with runner.saves(trunk, keep=sorted(starts)) as trunk_saves:
        waiting = [branch.start for number, branch in enumerate(branches) if without_row(number)]
        if waiting and (trunk_saves.last_step() or 0) < max(waiting):
            runner.phase(trunk, trunk_saves, runner.first, starts)
        for number, branch in enumerate(branches):
            if without_row(number):
                from_trunk = functools.partial(runner.trunk_at, branch.start, trunk, trunk_saves)
                with runner.saves(branch) as saves:
                    state = runner.phase(branch, saves, from_trunk, set())
                for one, its_state in runner.apart(state):
                    if found[one.folder][number] is None:
                        found[one.folder][number] = runner.group.broadcast(_finish(one, number, branch, its_state))
            runner.progress(branch.steps_before + branch.end - branch.start, {})


def _finish(runner: Runner, number: int, branch: Phase, state: Any) -> dict[str, Any] | None:
    """Measure a branch and write its row; only the first process returns it."""
    budget, folder = runner.training.recipe.budgets_tokens[number], runner.folder
    measured = runner.measure(state, branch)

    def write() -> dict[str, Any]:
        row = make_row(runner.training, budget, runner.corpus.summary(), measured)
        changed = decisive_changes(folder)
        if changed:
            mark = hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()[:8]
            row["fingerprint"] = f"{row['fingerprint']}-changed-{mark}"
        write_json(folder / row_file(budget), row)
        return row

    return runner.group.run_or_abort(write if runner.group.is_main else _nothing)


@contextlib.contextmanager
def _owned(folder: Path, training: Training, accept_changes: bool, log: Callable[[str], None]) -> Iterator[None]:
    own(folder, training, accept=accept_changes, log=log)
    with only_writer(folder):
        yield


def _open(trainings: Sequence[Training], folders: Sequence[Path], place: Path, group: ProcessGroup) -> Corpus:
    """The corpus, which the first process prepares if it is not yet, and the others open afterwards."""
    config = trainings[0].recipe.data

    def prepare() -> Corpus:
        corpus = open_corpus(config, place)
        for prepared in corpus.sets:
            prepared.check_content(place)
        for training, folder in zip(trainings, folders, strict=True):
            _check_corpus(training, corpus.summary(), folder)
        return corpus

    corpus = group.run_or_abort(prepare if group.is_main else _nothing, wait_seconds=PREPARING_SECONDS)
    corpus = group.run_or_abort(lambda: corpus or open_corpus(config, place))
    group.run_or_abort(lambda: _check_rows(trainings[0], corpus))
    return corpus


def _check_alike(trainings: Sequence[Training], group: ProcessGroup) -> None:
    if len(trainings) == 1:
        return
    for other in trainings[1:]:
        different = differences(dump(shared_settings(trainings[0])), dump(shared_settings(other)))
        if different:
            raise ValueError(
                f"{trainings[0].name} and {other.name} cannot be vmapped together: "
                f"{'; '.join(different[:3])}. Vmapped runs differ in seed, learning rate and weight decay alone: train "
                f"these one by one."
            )
    if group.count > 1 or jax.device_count() > 1:
        raise ValueError(
            f"Vmapped runs are trained by one process on one device, and here are {group.count} processes with "
            f"{jax.device_count()} devices; train them one by one, each on the mesh."
        )


@contextlib.contextmanager
def _saying_so(folder: Path) -> Any:
    """A full disk as a sentence."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{folder} cannot be written to ({says('the disk', error)}). What was saved there is whole: make room, or "
            f"mend the disk, and the same command goes on."
        ) from error


def _recorder(
    training: Training,
    folder: Path,
    group: ProcessGroup,
    began: float | None,
    versions: Mapping[str, str],
    count: int,
    log: Callable[[str], None],
) -> AttemptRecorder:
    trunk, branches = phases(training)
    metadata = {
        "processes": group.count,
        "devices": jax.device_count(),
        "device_kind": jax.devices()[0].device_kind,
        "versions": dict(versions),
        "vmapped_runs": count,
        "phases": {phase.name: phase.end - phase.start for phase in (trunk, *branches)},
    }
    return AttemptRecorder(folder, writes=group.is_main, began=began, metadata=metadata, log=log)


def _interrupted(folders: Sequence[Path], attempts: Sequence[AttemptRecorder], number: int) -> str:
    """Note that a signal ends trainings while no step is taken, and say what of them is saved."""
    for attempt in attempts:
        attempt.write(*ending(Stopped(number)))
    return interrupted_text(folders)


def log_rounding_changes(folder: Path, now: Mapping[str, str], log: Callable[[str], None]) -> None:
    """Say what has changed since a training's last attempt that decides the last bits of its numbers, or that they are
    decided anew at every start."""
    before = read_attempts(folder)
    changed = changed_versions(before, now)
    why = [f"{name} was {old or 'not told'}, is {new or 'not told'}" for name, (old, new) in changed.items()]
    if before and "no" in now.get("deterministic", ""):
        why += [f"a GPU adds in the same order only with {DETERMINISTIC} in XLA_FLAGS, from the first start on"]
    if why:
        log(
            f"{folder} goes on with the same numbers up to rounding, not bit for bit: "
            f"{some(why, most=8, between='; ')}."
        )


@contextlib.contextmanager
def _refusal(folder: Path, log: Callable[[str], None]) -> Iterator[None]:
    """Write down why a training that a study has laid out cannot start; where there is none, nothing is written."""
    try:
        yield
    except ValueError as error:
        if (folder / TRAINING).exists() and not has_writer(folder):
            AttemptRecorder(folder, metadata={"devices": jax.device_count()}, log=log).write(FAILED, told(error))
        raise


def _nothing() -> None: ...


def _mesh(training: Training) -> Mesh:
    recipe, mesh = training.recipe, make_mesh(training.recipe.mesh)
    for stage in recipe.batch_schedule.stages():
        sequences = stage.batch_tokens // recipe.data.sequence_length
        check_fits(training.architecture, sequences, recipe.microbatches, mesh)
    return mesh


def _check_rows(training: Training, corpus: Corpus) -> None:
    """Batches and validation rows say themselves what they lack: now, not at the first step or behind the last."""
    corpus.batches(batch=training.recipe.batch_sequences, seed=training.seed)
    corpus.validation()


def _silence(text: str) -> None: ...


def _check_corpus(training: Training, text: Summary, folder: Path) -> None:
    path = folder / "corpus.json"
    now = {"source": text.source, "sha256": text.sha256, "tokenizer": text.tokenizer}
    remedy = "bring back a copy, or remove it if nothing was trained here yet"
    known = read_json(path, {"sha256": str, "tokenizer": str}, remedy=remedy) if path.exists() else now
    if known["sha256"] != text.sha256:
        raise UserError(
            f"{folder} was trained on text with SHA-256 {known['sha256'][:12]}…, and {text.source} is now "
            f"{text.sha256[:12]}… (another Python?); go on with the text it was started with, or start anew in another "
            f"--out."
        )
    if known["tokenizer"] != text.tokenizer:
        raise UserError(
            f"{folder} was trained with a tokenizer of SHA-256 {known['tokenizer'][:12]}…, and {text.source} now comes "
            f"with {text.tokenizer[:12]}…; give the set that it was started with, or start anew in another --out."
        )
    if known is now:
        write_json(path, now)
    if training.architecture.vocab_size < text.vocab_size:
        raise UserError(
            f"vocab_size is {training.architecture.vocab_size}, but {text.source} has tokens up to "
            f"{text.vocab_size - 1}; set vocab_size to at least {text.vocab_size}."
        )


def _known_rows(
    training: Training, folder: Path, log: Callable[[str], None], group: ProcessGroup
) -> list[dict[str, Any] | None]:
    """The rows that are there, which only the first process looks for."""
    found: list[dict[str, Any] | None] = []
    for budget in training.recipe.budgets_tokens if group.is_main else ():
        try:
            row = read_row(folder, budget)
        except CutShort as problem:
            log(told(problem))
            row = None
        if row is not None:
            check_row(row, training, budget, folder, read_history(folder), folder / row_file(budget))
        found.append(row)
    return found
