"""Open runs: check their settings, claim and lock their folders, read their existing results, and open their data.

All checks that need no prepared text come before the claim, so that a refused start leaves no folder.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from moejax.config import dump
from moejax.data.corpus import (
    MANY_EPOCHS,
    Corpus,
    check_sources,
    open_corpus,
    repetition_text,
    tokenizer_of,
    vocab_size_to_prepare,
)
from moejax.errors import UserError, out_of_memory
from moejax.folder import HeldLock, differences, has_writer, only_writer
from moejax.quantities import format_bytes
from moejax.stored import Damaged, Unreadable
from moejax.train.directory.attempts import FAILED, OPENING_DATA, SILENT_SECONDS, AttemptRecorder
from moejax.train.directory.identity import RUNS, TRAINING, own, read_history
from moejax.train.directory.metrics import open_loggers
from moejax.train.directory.row import versions
from moejax.train.directory.row_file import check_row, read_row, row_file
from moejax.train.host import of_all, unfixed
from moejax.train.initial_weights import check_initial_weights
from moejax.train.mesh import make_mesh
from moejax.train.processes import ProcessGroup
from moejax.train.program import Program
from moejax.train.run import TrainingRun
from moejax.train.stopping import Stop
from moejax.train.training import Training, phases, shared_settings, vmapped_runs
from moejax.wording import counted, says, told

FEW_DOCUMENTS = 10
"""Number of held-out documents below which a message names it."""

PREPARING_SECONDS = SILENT_SECONDS[OPENING_DATA]
"""Timeout for processes that wait for the main process to tokenize a corpus or to read initial weights."""


@contextlib.contextmanager
def open_runs(
    trainings: Sequence[tuple[Training, Path]],
    data_folder: Path,
    *,
    group: ProcessGroup,
    accept_changes: bool,
    began: float | None,
    stop: Stop,
    log: Callable[[str], None],
) -> Iterator[tuple[list[TrainingRun], Mesh, Corpus]]:
    """Yield the opened training runs, their mesh and their corpus. ``trainings`` pairs the settings of each run with
    its folder.

    Inside the context, the folders are locked. For unfinished runs, the time and the end of the attempt are recorded.

    Raises:
      UserError: see ``moejax.train.loop.train``.
    """
    pairs, owned = [], []
    for training, folder in trainings:
        if training.vmap:
            group.run_or_abort(training.check)
            owned.append((training, folder))
            pairs += [(run, folder / RUNS / run.name) for run in vmapped_runs(training)]
        else:
            pairs.append((training, folder))
    for one, place in pairs:
        group.check_same("settings", {"out": str(place), **one.as_json()})
    mesh = _checked_mesh(pairs, data_folder, group)
    with contextlib.ExitStack() as opened:
        locks: dict[Path, HeldLock] = {}

        def claim() -> None:
            for one, place in [*owned, *pairs]:
                own(place, one, accept=accept_changes, is_finished=_is_finished(one, place), log=log)
                locks[place] = opened.enter_context(only_writer(place))

        group.run_on_main(claim)
        axes = ", ".join(f"{axis}={size}" for axis, size in mesh.shape.items())
        metadata = {
            "processes": group.count,
            "devices": jax.device_count(),
            "device_kind": jax.devices()[0].device_kind,
            "versions": {**of_all(group.all_gather(versions())), "mesh": axes, "processes": str(group.count)},
            "vmapped_runs": len(pairs),
        }
        runs = [_run(one, place, locks.get(place), group, began, metadata, log) for one, place in pairs]
        unfinished = [run for run in runs if None in run.rows]
        if unfinished and (why := unfixed()):
            log(why)
        for run in unfinished:
            run.attempts.log_rounding_changes()
            opened.enter_context(run.attempts)
            stop.before_exit.append(run.attempts.stop)
            opened.callback(stop.before_exit.remove, run.attempts.stop)
            if group.is_main:
                its = run.training
                loggers = open_loggers(its.recipe.loggers, run.folder, its.name, its.as_json())
                run.metrics.loggers = opened.enter_context(loggers)
        yield runs, mesh, open_data(runs, data_folder, group, log)


def open_data(
    runs: Sequence[TrainingRun], folder: Path, group: ProcessGroup, log: Callable[[str], None] = lambda text: None
) -> Corpus:
    """Return the corpus; the main process prepares it if it does not exist yet.

    Raises:
      UserError: the corpus cannot be read, has changed since the runs started, or is too small.
    """
    first = runs[0].training
    data = first.recipe.data

    def prepare() -> Corpus | None:
        if not group.is_main:
            return None
        corpus = open_corpus(data, folder)
        for prepared in corpus.sets:
            prepared.check_content(folder)
        for run in runs:
            run.check_corpus(corpus.summary())
        return corpus

    def check(corpus: Corpus) -> None:
        # Create batches and validation rows now, so that errors do not first appear during or after training.
        for decay_from in (None, 0):
            corpus.batches(batch=first.recipe.batch_sequences, seed=first.seed, decay_from=decay_from)
        corpus.validation()

    prepared = group.run_or_abort(prepare, wait_seconds=PREPARING_SECONDS)
    corpus = group.run_or_abort(lambda: prepared or open_corpus(data, folder))
    # Laying out rows of packed documents takes a second per million rows.
    group.run_or_abort(lambda: check(corpus), wait_seconds=PREPARING_SECONDS)
    size, known = first.architecture.vocab_size, corpus.sets[0].manifest.tokenizer.vocab_size
    if known < size:
        log(
            f"vocab_size is {size:,}, but the tokenizer of the text has {known:,} tokens, so {size - known:,} "
            "embeddings are never used. Lower vocab_size to save their memory, unless it is padded on purpose."
        )
    asked, there = data.validation_tokens, corpus.validation().tokens
    if there + data.sequence_length <= asked:
        documents = corpus.summary().validation.documents
        few = (
            f" They are from {counted(documents, 'document')}, so the loss depends on which documents are held out; "
            "give more documents, or a larger validation share."
        )
        log(
            f"data.validation_tokens is {asked:,}, but the held-out text has only {there:,} tokens in whole rows; "
            f"all of them are used.{few if documents < FEW_DOCUMENTS else ''}"
        )
    rows = max(first.recipe.budgets_tokens) // data.sequence_length
    if repeated := repetition_text(corpus.read(rows, rows), above=MANY_EPOCHS):
        log(repeated)
    return corpus


@contextlib.contextmanager
def report_disk_errors(folder: Path) -> Iterator[None]:
    """Convert an ``OSError`` inside the context to a ``UserError`` with a remedy."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{folder} cannot be written to or read ({says('the disk', error)}). Saved files are complete: free "
            f"space, or repair the disk, and run the same command again."
        ) from error


@contextlib.contextmanager
def report_memory(training: Training, program: Program) -> Iterator[None]:
    """Convert an out-of-memory error inside the context to a ``UserError`` with memory sizes."""
    try:
        yield
    except Exception as error:
        if (text := out_of_memory(error)) is None:
            raise
        leaves = zip(jax.tree.leaves(program.abstract), jax.tree.leaves(program.shardings), strict=True)
        state = sum(math.prod(where.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf, where in leaves)
        limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")
        has = f", which has {format_bytes(limit)}" if limit else ""
        raise UserError(
            f"{text} The parameters and optimizer of {training.name} need {format_bytes(state)} on each "
            f"device{has}; a step also needs activations for {training.recipe.batch_tokens:,} tokens. Raise "
            "recipe.microbatches, "
            f"set recipe.runtime.remat = 'full', or split the state over more devices (recipe.mesh.fsdp); moejax "
            "plan reports the memory that a step needs."
        ) from error


def _checked_mesh(pairs: Sequence[tuple[Training, Path]], data_folder: Path, group: ProcessGroup) -> Mesh:
    """Return the mesh after checking settings, data sources and devices. If a check fails, the reason is recorded in
    the folders that already contain a training run, such as those of a prepared study.
    """
    trainings = [training for training, _ in pairs]

    def mesh() -> Mesh:
        mesh = make_mesh(trainings[0].recipe.mesh)
        trainings[0].check_mesh(mesh)
        return mesh

    def check_data() -> None:
        data = trainings[0].recipe.data
        check_sources(data, data_folder)
        # The size is checked again with the prepared text, but preparing a large text takes hours.
        if (size := vocab_size_to_prepare(data, data_folder)) is not None:
            trainings[0].check_vocabulary(size, data.source or data.parts[0].source)

    def check_weights() -> None:
        for training, folder in pairs:
            # A run with checkpoints no longer needs the weights, so they may have been removed.
            if training.recipe.initial_weights.source and not (folder / "checkpoints").exists():
                check_initial_weights(training, tokenizer_of(training.recipe.data, data_folder))

    try:
        for training in trainings:
            group.run_or_abort(training.check)
        group.run_or_abort(lambda: _check_vmapped(trainings, group))
        group.run_on_main(check_data)
        group.run_on_main(check_weights)
        return group.run_or_abort(mesh)
    except ValueError as error:
        for _, folder in pairs:
            if (folder / TRAINING).exists() and not has_writer(folder):
                AttemptRecorder(folder, metadata={"devices": jax.device_count()}).write(FAILED, told(error))
        raise


def _check_vmapped(trainings: Sequence[Training], group: ProcessGroup) -> None:
    if len(trainings) == 1:
        return
    for other in trainings[1:]:
        different = differences(dump(shared_settings(trainings[0])), dump(shared_settings(other)))
        if different:
            raise UserError(
                f"{trainings[0].name} and {other.name} cannot be vmapped together: "
                f"{'; '.join(different[:3])}. Vmapped runs may differ only in seed, learning rate and weight decay; "
                "train these runs one by one."
            )
    if group.count > 1 or jax.device_count() > 1:
        raise UserError(
            f"Vmapped runs need one process and one device, but there are {group.count} processes with "
            f"{jax.device_count()} devices; train the runs one by one, each on the mesh."
        )


def _run(
    training: Training,
    folder: Path,
    lock: HeldLock | None,
    group: ProcessGroup,
    began: float | None,
    metadata: Mapping[str, Any],
    log: Callable[[str], None],
) -> TrainingRun:
    trunk, branches = phases(training)
    steps = {phase.name: phase.end - phase.start for phase in (trunk, *branches)}
    return TrainingRun(
        training=training,
        folder=folder,
        rows=group.run_on_main(lambda: _known_rows(training, folder, log)),
        attempts=AttemptRecorder(
            folder, writes=group.is_main, lock=lock, began=began, metadata={**metadata, "phases": steps}, log=log
        ),
        group=group,
        log=log,
        lock=lock,
    )


def _is_finished(training: Training, folder: Path) -> bool:
    """Return whether all budgets, of all vmapped runs, have a row."""
    places = [folder / RUNS / run.name for run in vmapped_runs(training)] if training.vmap else [folder]
    return all((place / row_file(budget)).exists() for place in places for budget in training.recipe.budgets_tokens)


def _known_rows(training: Training, folder: Path, log: Callable[[str], None]) -> list[dict[str, Any] | None]:
    rows: list[dict[str, Any] | None] = []
    for budget in training.recipe.budgets_tokens:
        row = None
        try:
            row = read_row(folder, budget)
        except Unreadable:
            raise
        except Damaged as problem:
            log(told(problem))
        if row is not None:
            check_row(row, training, budget, folder, read_history(folder), folder / row_file(budget))
        rows.append(row)
    return rows
