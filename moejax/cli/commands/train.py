"""Implement ``moejax train``: train one model to one or more token budgets."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import jax
from absl import logging
from jax.errors import JaxRuntimeError

from moejax.cli.commands.config import load
from moejax.cli.commands.exportable import check_exportable
from moejax.cli.commands.train_processes import AGAIN
from moejax.cli.process import take_gpu_memory
from moejax.cli.progress import goodput_text, memory_text, routing_tables, speed_text, training_progress
from moejax.cli.validation import is_one_of_many
from moejax.errors import OURS, CoordinatedError, UserError
from moejax.json_text import json_text
from moejax.report import render
from moejax.result import Column, Result, Table
from moejax.say import say
from moejax.stored import read_json
from moejax.train.auto import choose_hyperparameters
from moejax.train.directory import identity
from moejax.train.directory.status import read_status
from moejax.train.loop import train
from moejax.train.processes import ProcessGroup, init_distributed
from moejax.train.rounding import THREADS, fix_threads
from moejax.train.stopping import Stopped, exit_status, stop_on_signals
from moejax.train.training import Training
from moejax.wording import says, told


def run(arguments: argparse.Namespace) -> int:
    """Train, and print a line per budget."""
    _silence_writers()
    take_gpu_memory()
    fix_threads(arguments.cpu_threads or THREADS)
    if arguments.cpu_devices:
        jax.config.update("jax_num_cpu_devices", arguments.cpu_devices)
    if not is_one_of_many(arguments):
        return _train(arguments, ProcessGroup())
    given = (arguments.coordinator, arguments.processes, arguments.process)
    with _stdout_is_ours(), init_distributed(*given, wait_seconds=arguments.wait):
        group = ProcessGroup(arguments.wait)
        with _ending_alone(group), group.leaving_together():
            return _train(arguments, group)


def _train(arguments: argparse.Namespace, group: ProcessGroup) -> int:
    speaks = group.is_main and (arguments.parent is None or group.count > 1)
    training, folder, derivation = group.run_or_abort(lambda: _training(arguments))
    if derivation and group.is_main:
        say(derivation)
    try:
        with stop_on_signals(group.count) as stop, training_progress(training, quiet=not speaks) as progress:
            rows = train(
                training,
                folder,
                beside=[(_saved(place), place) for place in map(Path, arguments.beside)],
                data_folder=arguments.data and Path(arguments.data),
                programs_folder=arguments.programs and Path(arguments.programs),
                accept_changes=arguments.accept_changes,
                wait_seconds=arguments.wait,
                stop=stop,
                began=arguments.began,
                profile=arguments.profile,
                log=_say,
                progress=progress,
            )
    except Stopped as stopped:
        if group.is_main:
            _say("Stopped and saved; the same command goes on from there.")
        return exit_status(stopped.number)
    if group.is_main and arguments.json:
        print(json_text(rows))
    elif speaks:
        render.show(_summary(rows, folder))
        say(f"rows, metrics and checkpoints: {folder}", file=sys.stdout)
    return 0


@contextlib.contextmanager
def _stdout_is_ours() -> Iterator[None]:
    """Redirect output of libraries from stdout to stderr, such as Gloo's messages at each connection."""
    sys.stdout.flush()
    before, where = sys.stdout, os.dup(1)
    os.dup2(2, 1)
    try:
        with open(where, "w", encoding="utf-8", closefd=False) as sys.stdout:
            yield
    finally:
        sys.stdout = before
        os.dup2(where, 1)
        os.close(where)


@contextlib.contextmanager
def _ending_alone(group: ProcessGroup) -> Iterator[None]:
    """End a process at once if it alone fails among several, since the others no longer respond."""
    try:
        yield
    except CoordinatedError:
        raise
    except Exception as error:
        if group.count == 1:
            raise
        who = f"process {group.index} of {group.count}"
        if isinstance(error, JaxRuntimeError):
            lost = f"{who} has lost the others ({says('JAX', error)})"
            _say(f"{lost}. The same command goes on from the newest checkpoint.")
            status = AGAIN
        elif isinstance(error, UserError):
            _say(f"{who}: {told(error)}")
            status = 2
        else:
            traceback.print_exception(error)
            _say(f"{who}: {OURS}")
            status = 1
        sys.stderr.flush()
        os._exit(status)


def _say(text: str) -> None:
    say(f"moejax: {text}")


def _training(arguments: argparse.Namespace):
    if arguments.config:
        chosen = choose_hyperparameters(load(Training, arguments.config, arguments.overrides))
        training = chosen.training
        check_exportable(arguments.exportable, {training.name: training.architecture})
        return training, Path(arguments.out or f"runs/{training.name}"), chosen.derivation
    training = _saved(Path(arguments.out))
    check_exportable(arguments.exportable, {training.name: training.architecture})
    return training, Path(arguments.out), ""


def _saved(folder: Path):
    path = folder / identity.TRAINING
    if not path.is_file():
        raise UserError(f"{folder} holds no training to go on with; start one with --config=FILE.py.")
    return read_json(path, Training, remedy=identity.REMEDY)


def _summary(rows, folder: Path) -> Result:
    """Return the rows of trainings; for a single training also routing, speed, memory and goodput."""
    several = len({row["model"] for row in rows}) > 1
    columns = (
        Column("model"),
        Column("tokens", ","),
        Column("loss", ".4f", unit="nats/token"),
        Column("bits/byte", ".4f"),
        Column("load CV", ".3f"),
        Column("tokens/s", ",.0f"),
    )
    names = ("model", "tokens", "loss", "bits_per_byte", "load_cv", "tokens_per_second")
    table = Table("Trained", columns, [[row[name] for name in names] for row in rows])
    if several:
        return Result(tables=[table])
    status = read_status(folder)
    speed = rows[-1]["tokens_per_second"]
    notes = [] if speed is None else [f"mean speed: {speed_text(speed, rows[-1]['mfu'])}"]
    if status.memory_peak_bytes is not None:
        notes.append(f"memory: {memory_text(status.memory_bytes, status.memory_peak_bytes)}")
    if status.goodput is not None:
        notes.append(f"goodput: {goodput_text(status.seconds)}")
    routing = routing_tables(status.layers, "routing of the last logged batch, by layer")
    return Result(tables=[table, *routing], notes=notes)


def _silence_writers() -> None:
    """Suppress messages of checkpoint-writing threads, whose errors also arrive as exceptions with a message."""
    logging.set_verbosity(logging.FATAL)
    otherwise = sys.unraisablehook

    def hook(unraisable) -> None:
        # These writes were still in progress when another one failed.
        if "Event loop is closed" not in str(unraisable.exc_value):
            otherwise(unraisable)

    sys.unraisablehook = hook
