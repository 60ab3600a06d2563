"""Define the options of ``moejax train``."""

from __future__ import annotations

import argparse

from moejax.cli.number import WORKERS, count, number
from moejax.cli.parsers.options import add_config_argument, add_exportable_argument
from moejax.cli.process import stay_on
from moejax.cli.settings import TRAINING
from moejax.cli.validation import is_one_of_many
from moejax.errors import UserError
from moejax.parent_process import end_with
from moejax.train.allocator import computes_on_cpu, keep_memory

MOST_THREADS = 1024
MOST_HERE = 256
"""Maximum number of processes of one training that are started on one machine."""
HELP = "Train one model to one or more token budgets. Run again, it goes on where it was stopped."
EXAMPLE = """\
  moejax train --config=configs/tiny.py --out runs/tiny
  moejax train --config=configs/tiny.py --config.recipe.batch_tokens=4096 --out runs/tiny-4096
  moejax train --out runs/tiny                       # goes on with what runs/tiny holds
  moejax train --config=configs/tiny.py --config.vmap.learning_rates=1e-3,3e-3,1e-2 --out runs/rates
  moejax train --config=configs/tiny.py --processes 2 --out runs/tiny-2
  moejax train --config=configs/tiny.py --exportable hf --out runs/tiny-hf    # one that convert --to hf can write
  srun moejax train --config=FILE.py --distributed --out runs/large"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    add_config_argument(parser, TRAINING, required=False)
    parser.add_argument("--out", metavar="DIR", help="output folder (default: runs/NAME); mount a bucket to use it")
    parser.add_argument("--data", metavar="DIR", help="share the tokenised corpus in this folder (default: OUT/data)")
    parser.add_argument(
        "--programs", metavar="DIR", help="share compiled programs in this folder (default: OUT/programs)"
    )
    parser.add_argument("--json", action="store_true", help="print the run rows on stdout as JSON")
    parser.add_argument(
        "--accept-changes",
        action="store_true",
        help="resume although settings that change the loss are different now (DIR/history.json records them)",
    )
    parser.add_argument(
        "--profile",
        type=_steps,
        metavar="A:B",
        help="record steps A to B with JAX's profiler in OUT/profile; steps are counted over trunk and branches",
    )
    add_exportable_argument(parser)
    parser.add_argument("--cpu-devices", type=WORKERS, metavar="N", help="split a CPU into N devices, for a mesh")
    parser.add_argument(
        "--cpu-threads",
        type=WORKERS,
        metavar="N",
        help="threads of XLA on a CPU (default: 4); another number changes how sums are rounded",
    )
    many = parser.add_argument_group("many processes", "every process runs the same command, with the same --out DIR")
    many.add_argument(
        "--processes",
        type=count(1, 100_000),
        metavar="N",
        help="number of processes; given alone, all N are started on this machine",
    )
    many.add_argument(
        "--coordinator",
        metavar="HOST:PORT",
        help="an address and port of process 0's machine, where all processes connect",
    )
    many.add_argument("--process", type=count(0, 99_999), metavar="I", help="number of this process, from 0")
    many.add_argument(
        "--distributed", action="store_true", help="take the three from Slurm, Open MPI, Kubernetes or Cloud TPU"
    )
    many.add_argument(
        "--wait",
        type=number,
        default=300.0,
        metavar="SECONDS",
        help="longest time that processes wait for each other (default: 300)",
    )
    parser.add_argument("--core", type=int, help=argparse.SUPPRESS)
    # Folders of trainings that are vmapped with the one in --out.
    parser.add_argument("--beside", nargs="+", metavar="DIR", default=[], help=argparse.SUPPRESS)
    parser.add_argument("--parent", type=int, help=argparse.SUPPRESS)


def _steps(text: str) -> tuple[int, int]:
    first, _, last = text.partition(":")
    if not (first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last)):
        raise argparse.ArgumentTypeError(f"{text!r} is not the first and the last step to record, such as 100:105.")
    return int(first), int(last)


def check(arguments: argparse.Namespace) -> None:
    """Raise ``UserError`` for options that exclude each other."""
    if arguments.cpu_threads is not None and not 1 <= arguments.cpu_threads <= MOST_THREADS:
        raise UserError(f"--cpu-threads is {arguments.cpu_threads}; give 1 to {MOST_THREADS}, such as its cores.")
    if arguments.wait < 1:
        raise UserError(f"--wait is {arguments.wait:g}; give at least one second.")
    one = (arguments.coordinator, arguments.process)
    if not arguments.distributed and (one.count(None) == 1 or (None not in one and arguments.processes is None)):
        raise UserError(
            "--coordinator, --processes and --process belong together: give all three to each process, or --processes "
            "alone to start all of them on this machine."
        )
    if arguments.process is not None and arguments.processes is not None:
        most = arguments.processes - 1
        if not 0 <= arguments.process <= most:
            raise UserError(f"--process is {arguments.process} of {arguments.processes}; count from 0 to {most}.")
    if _starts_processes(arguments) and (arguments.processes or 0) > MOST_HERE:
        raise UserError(
            f"--processes is {arguments.processes:,}, and this machine would start them all; give {MOST_HERE} at "
            f"most, or --coordinator and --process to each of them on machines of their own."
        )
    for name in ("out", "data", "programs"):
        if "://" in (given := getattr(arguments, name) or ""):
            raise UserError(
                f"--{name} is {given}; a training needs a folder: mount the bucket (gcsfuse or mount-s3, see "
                f"docs/launch.md), and give a path below the mount."
            )
    if not arguments.config and not arguments.out:
        raise UserError("Nothing to train was named; give --config=FILE.py, or --out=DIR to go on with a training.")


def command(arguments: argparse.Namespace) -> str:
    """Return the name of the implementing module in ``moejax.cli.commands``."""
    return "train_processes" if _starts_processes(arguments) else "train"


def prepare(arguments: argparse.Namespace) -> None:
    """Configure the process before JAX is imported and starts threads: core, parent, memory."""
    if _starts_processes(arguments):
        return
    stay_on(arguments.core)
    end_with(arguments.parent)
    if computes_on_cpu():
        keep_memory(arguments.cpu_devices or 1)


def _starts_processes(arguments: argparse.Namespace) -> bool:
    return is_one_of_many(arguments) and not arguments.coordinator and not arguments.distributed
