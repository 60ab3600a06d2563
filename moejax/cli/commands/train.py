"""Train one model to one or more token budgets."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from moejax.cli.options import hidden, option
from moejax.cli.process import stay_on, take_gpu_memory
from moejax.cli.progress import training_progress
from moejax.cli.shared import ExportableOptions, Workers
from moejax.errors import UserError
from moejax.json_text import json_text
from moejax.ranges import NumberRange, whole
from moejax.say import say
from moejax.stored import read_json
from moejax.train.host import computes_on_cpu, keep_memory

if TYPE_CHECKING:
    from moejax.train.processes import ProcessGroup
    from moejax.train.training import Training

EXAMPLE = """\
  moejax train --config=configs/tiny.py --out runs/tiny
  moejax train --config=configs/tiny.py --config.recipe.batch_tokens=4096 --out runs/tiny-4096
  moejax train --out runs/tiny                       # resumes the run in runs/tiny
  moejax train --config=configs/tiny.py --config.vmap.learning_rates=1e-3,3e-3,1e-2 --out runs/rates
  moejax train --config=configs/tiny.py --processes 2 --out runs/tiny-2
  moejax train --config=configs/tiny.py --exportable hf --out runs/tiny-hf    # one that transformers can load
  srun --ntasks-per-node=8 moejax train --config=FILE.py --distributed --out runs/large"""
BEGAN = time.time()
MOST_HERE = 256
"""Maximum number of processes that one command starts on one machine."""
MANY = "many processes: every process runs the same command, with the same --out DIR"


def _steps(text: str) -> tuple[int, int]:
    first, _, last = text.partition(":")
    if not (first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last)):
        raise UserError(f"{text!r} is not a range of steps; give the first and last step to record, such as 100:105.")
    return int(first), int(last)


@dataclass(frozen=True, kw_only=True)
class TrainCommand(ExportableOptions, name="train"):
    """Train one model to one or more token budgets. The same command resumes an interrupted run."""

    out: str | None = option(
        None, "output folder (default: runs/NAME); mount a bucket to use it", metavar="DIR", output=True
    )
    data: str | None = option(
        None, "share the tokenized corpus in this folder (default: OUT/data)", metavar="DIR", output=True
    )
    programs: str | None = option(
        None, "share compiled programs in this folder (default: OUT/programs)", metavar="DIR", output=True
    )
    accept_changes: bool = option(
        False, "resume even if settings that affect the loss have changed (DIR/history.json records the changes)"
    )
    profile: tuple[int, int] | None = option(
        None,
        "record steps A to B, counted over trunk and branches, with JAX's profiler in OUT/profile",
        metavar="A:B",
        read=_steps,
    )
    cpu_devices: Workers | None = option(None, "split the CPU into N devices, for a mesh", metavar="N")
    cpu_threads: Workers | None = option(
        None, "XLA threads on a CPU (default: 4); the number affects the rounding of sums", metavar="N"
    )
    processes: Annotated[int, whole(1, 100_000)] | None = option(
        None,
        "number of processes; without --process, this command starts all N on this machine",
        metavar="N",
        group=MANY,
    )
    coordinator: str | None = option(
        None,
        "address and port on process 0's machine to which all processes connect",
        metavar="HOST:PORT",
        group=MANY,
    )
    process: Annotated[int, whole(0, 99_999)] | None = option(
        None, "index of this process, from 0", metavar="I", group=MANY
    )
    distributed: bool = option(
        False, "detect the three options above from Slurm, Open MPI, Kubernetes or Cloud TPU", group=MANY
    )
    wait: Annotated[float, NumberRange(1, 1e9)] = option(
        300.0, "maximum time in seconds that processes wait for each other", metavar="SECONDS", group=MANY
    )
    core: int | None = hidden(None)
    beside: tuple[str, ...] = hidden((), nargs="+")
    """Folders of training runs that are vmapped with the run in --out."""
    parent: int | None = hidden(None)
    words: tuple[str, ...] = ()

    @property
    def _is_one_of_many(self) -> bool:
        return self.distributed or self.processes is not None

    @property
    def _starts_processes(self) -> bool:
        return self._is_one_of_many and not self.coordinator and not self.distributed

    def check(self) -> None:
        one = (self.coordinator, self.process)
        if not self.distributed and (one.count(None) == 1 or (None not in one and self.processes is None)):
            raise UserError(
                "--coordinator, --processes and --process belong together: give all three to each process, or "
                "--processes alone to start all of them on this machine."
            )
        if self.process is not None and self.processes is not None and self.process >= self.processes:
            most = self.processes - 1
            raise UserError(
                f"--process is {self.process}; with --processes {self.processes} it must be from 0 to {most}."
            )
        if self._starts_processes and (self.processes or 0) > MOST_HERE:
            raise UserError(
                f"--processes is {self.processes:,}, and all would start on this machine; give at most {MOST_HERE}, "
                "or start each process on its machine with --coordinator and --process."
            )
        for name in ("out", "data", "programs"):
            if "://" in (place := getattr(self, name) or ""):
                raise UserError(
                    f"--{name} is {place}, but a training run needs a local folder: mount the bucket (gcsfuse or "
                    "mount-s3, see docs/launch.md), and give a path below the mount."
                )
        if not self.config and not self.out:
            raise UserError("No training run was named; give --config=FILE.py, or --out=DIR to resume a run.")

    def prepare(self) -> None:
        """Configure the process before JAX is imported and starts threads: core, parent, memory."""
        from moejax.data.workers import end_with

        if self._starts_processes:
            return
        stay_on(self.core)
        end_with(self.parent)
        if computes_on_cpu():
            keep_memory(self.cpu_devices or 1)

    def run(self) -> int:
        from absl import logging

        from moejax.train.processes import ProcessGroup, ending_alone, init_distributed, own_stdout, run_here

        if self._starts_processes:
            assert self.processes is not None
            return run_here(self.words, self.processes)
        # Errors of threads that write checkpoints also arrive as exceptions with a message.
        logging.set_verbosity(logging.FATAL)
        take_gpu_memory()
        self._configure_cpu()
        if not self._is_one_of_many:
            return self._train(ProcessGroup())
        given = (self.coordinator, self.processes, self.process)
        with own_stdout(), init_distributed(*given, wait_seconds=self.wait):
            group = ProcessGroup(self.wait)
            with ending_alone(group), group.leaving_together():
                return self._train(group)

    def _configure_cpu(self) -> None:
        import jax

        from moejax.train.host import THREADS, fix_threads

        fix_threads(self.cpu_threads or THREADS)
        if self.cpu_devices:
            jax.config.update("jax_num_cpu_devices", self.cpu_devices)

    def _train(self, group: ProcessGroup) -> int:
        from moejax.report import render
        from moejax.report.trainings import trained
        from moejax.train.loop import train
        from moejax.train.stopping import Stopped, exit_status, stop_on_signals

        speaks = group.is_main and (self.parent is None or group.count > 1)
        training, folder, derivation = group.run_or_abort(self._training)
        try:
            with stop_on_signals(group.count) as stop, training_progress(training, quiet=not speaks) as progress:
                rows = train(
                    training,
                    folder,
                    beside=[(_saved(place), place) for place in map(Path, self.beside)],
                    data_folder=Path(self.data) if self.data else None,
                    programs_folder=Path(self.programs) if self.programs else None,
                    accept_changes=self.accept_changes,
                    wait_seconds=self.wait,
                    stop=stop,
                    began=BEGAN,
                    profile=self.profile,
                    log=lambda text: say(f"moejax: {text}"),
                    progress=progress,
                    on_accepted=lambda: say(*derivation) if derivation else None,
                )
        except Stopped as stopped:
            if group.is_main:
                say("moejax: Stopped and saved; the same command resumes from there.")
            return exit_status(stopped.number)
        if group.is_main and self.json:
            print(json_text(rows))
        elif speaks:
            render.show(trained(rows, folder))
            say(f"rows, metrics and checkpoints: {folder}", file=sys.stdout)
        return 0

    def _training(self) -> tuple[Training, Path, tuple[str, ...]]:
        from moejax.cli.config_file import load
        from moejax.train.training import Training, choose_hyperparameters

        if self.config:
            chosen = choose_hyperparameters(load(Training, self.config, self.overrides))
            training, derivation = chosen.training, chosen.derivation
        else:
            training, derivation = _saved(Path(str(self.out))), ()
        if self.exportable is not None:
            self.check_exportable({training.name: training.architecture})
        return training, Path(self.out or f"runs/{training.name}"), derivation


def _saved(folder: Path) -> Training:
    from moejax.train.directory import identity
    from moejax.train.training import Training

    path = folder / identity.TRAINING
    if not path.is_file():
        raise UserError(f"{folder} contains no training run to resume; start one with --config=FILE.py.")
    return read_json(path, Training, remedy=identity.REMEDY)
