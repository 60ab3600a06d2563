"""``moejax train``: one model, to one or more token budgets."""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from pathlib import Path

from moejax.cli.config_file import add_config_argument
from moejax.cli.errors import UserError

NAME = "train"
HELP = "Train one model to one or more token budgets. Run again, it goes on where it was stopped."
EXAMPLE = """\
  moejax train --config=configs/tiny.py --out runs/tiny
  moejax train --config=configs/tiny.py --config.recipe.batch_tokens=4096 --out runs/tiny-4096
  moejax train --out runs/tiny                       # goes on with what runs/tiny holds"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    add_config_argument(parser, required=False)
    parser.add_argument("--out", metavar="DIR", help="output folder (default: runs/NAME)")
    parser.add_argument("--data", metavar="DIR", help="share the tokenised corpus in this folder (default: OUT/data)")
    parser.add_argument("--json", action="store_true", help="print the run rows on stdout as JSON")
    parser.add_argument("--cpu-devices", type=int, metavar="N", help="split a CPU into N devices, for a mesh")
    parser.add_argument("--core", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--parent", type=int, help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace) -> int:
    """Train, and print a line per budget."""
    _stay_on(arguments.core)
    _die_with(arguments.parent)
    import jax

    if arguments.cpu_devices:
        jax.config.update("jax_num_cpu_devices", arguments.cpu_devices)
    from moejax.cli.progress import training_progress
    from moejax.train.loop import train

    training, folder = _training(arguments)
    with training_progress(training, quiet=arguments.parent is not None) as progress:
        rows = train(training, folder, data_folder=arguments.data and Path(arguments.data), progress=progress)
    if arguments.json:
        print(json.dumps(rows, indent=2))
    elif arguments.parent is None:
        _print(rows)
        print(f"rows, metrics and checkpoints: {folder}")
    return 0


def _training(arguments: argparse.Namespace):
    from moejax.cli.config_file import load
    from moejax.config import build
    from moejax.train.auto import choose_hyperparameters
    from moejax.train.training import Training

    if arguments.config:
        chosen = choose_hyperparameters(load(Training, arguments.config, arguments.overrides))
        if chosen.derivation:
            print(chosen.derivation, file=sys.stderr)
        training = chosen.training
        return training, Path(arguments.out or f"runs/{training.name}")
    if not arguments.out:
        raise UserError("Nothing to train was named; give --config=FILE.py, or --out=DIR to go on with a training.")
    path = Path(arguments.out, "training.json")
    if not path.is_file():
        raise UserError(f"{arguments.out} holds no training to go on with; start one with --config=FILE.py.")
    return build(Training, json.loads(path.read_text()), str(path)), Path(arguments.out)


def _print(rows) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=rows[0]["model"], title_justify="left")
    for heading in ("tokens", "loss, nats/token", "bits/byte", "load CV", "tokens/s"):
        table.add_column(heading, justify="right")
    for row in rows:
        bits = "–" if row["bits_per_byte"] is None else f"{row['bits_per_byte']:.4f}"
        load_cv = "–" if row["load_cv"] is None else f"{row['load_cv']:.3f}"
        table.add_row(
            f"{row['tokens']:,}",
            f"{row['loss']:.4f}",
            bits,
            load_cv,
            f"{row['tokens_per_second']:,.0f}",
        )
    Console().print(table)


def _stay_on(core: int | None) -> None:
    """Keep this process on one core, so that XLA starts one thread and neighbours do not disturb each other."""
    if core is not None and sys.platform == "linux":
        os.sched_setaffinity(0, {core})


def _die_with(parent: int | None) -> None:
    """End this process soon after its parent is gone, however the parent went."""
    if parent is None:
        return

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.3)
        print("The study that started this training is gone; stopping.", file=sys.stderr)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
