"""Measure the cost of logging and checkpoints during training.

    taskset -c 0 python benchmarks/overhead.py

The model is an MoE model of ``configs/studies/quickstart.py`` on its data. Rounds alternate between a bare loop over
batches and the loop of ``moejax train``, with the log, time accounting, and complete checkpoints. Time before the first
step is excluded. Rounds of the same work differ by more than the measured cost, so log lines and checkpoints are at
least ``--often`` times as frequent as in the config, and the extra time is divided by this factor. Medians over rounds
are compared in wall and processor time; if other work shares the machine, use the processor time.
"""

import argparse
import dataclasses
import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import jax

from moejax.cli.config_file import load
from moejax.data.corpus import open_corpus
from moejax.study.study import Study
from moejax.train.batches import read_batches
from moejax.train.directory.attempts import AttemptRecorder
from moejax.train.directory.metrics import TensorBoardLogger
from moejax.train.hooks import Profile
from moejax.train.host import keep_memory
from moejax.train.loop import Trainer
from moejax.train.mesh import make_mesh
from moejax.train.processes import ProcessGroup
from moejax.train.program import make_program
from moejax.train.run import RunCheckpoints, TrainingRun
from moejax.train.stopping import Stop
from moejax.train.training import Phase, phases

CONFIG = Path(__file__).parent.parent / "configs" / "studies" / "quickstart.py"


class Seconds(NamedTuple):
    """Wall seconds, and processor seconds of all threads."""

    clock: float
    processor: float


def now() -> Seconds:
    return Seconds(time.perf_counter(), time.process_time())


def since(began: Seconds) -> Seconds:
    return Seconds(*(b - a for a, b in zip(began, now(), strict=True)))


class FromTheFirstStep(Stop):
    """A record of the time at which the steps of a phase began."""

    def stepping(self):
        self.began = now()
        return super().stepping()


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--model", default="moe-64-8e2")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--often", type=int, default=8, help="number of checkpoints per round")
    options = parser.parse_args()
    keep_memory()
    study = load(Study, str(CONFIG), [])
    (training,) = (one for one in study.trainings() if one.name == options.model)
    recipe, steps = training.recipe, training.recipe.checkpoint_steps
    often = dataclasses.replace(
        recipe,
        log_every_steps=max(1, recipe.log_every_steps // options.often),
        checkpoint_tokens=recipe.checkpoint_tokens // options.often,
    )
    training = dataclasses.replace(training, recipe=often)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        corpus = open_corpus(recipe.data, folder / "data")
        mesh = make_mesh(recipe.mesh)
        with jax.set_mesh(mesh):
            program = make_program(training, mesh)
            trunk, _ = phases(training)
            phase = Phase(trunk.name, 0, steps, trunk.schedule, 0)

            def trainer(name: str, number: int, stop: Stop) -> Trainer:
                out = folder / f"{name}-{number}"
                out.mkdir()
                loggers = [TensorBoardLogger(out / "tensorboard")] if name == "TensorBoard too" else []
                run = TrainingRun(
                    training=training,
                    folder=out,
                    rows=[],
                    attempts=AttemptRecorder(out, metadata={"versions": {}}),
                    group=ProcessGroup(),
                    log=print,
                )
                run.metrics.loggers = loggers
                profiler = Profile(None, out, print)
                return Trainer([run], program, corpus, run.group, stop, profiler, lambda steps, line: None, print)

            def bare(name: str, number: int) -> Seconds:
                state = jax.block_until_ready(program.init(0))
                run = trainer(name, number, Stop()).runs[0]
                step, batches = program.compiled_step(), read_batches([run.training], corpus, mesh, phase, 0)
                began = now()
                for _ in range(steps):
                    state, _ = step(state, next(batches), phase.schedule)
                jax.block_until_ready(state)
                return since(began)

            def trained(name: str, number: int) -> Seconds:
                stop = FromTheFirstStep()
                here = trainer(name, number, stop)
                state = jax.block_until_ready(program.init(0))
                with RunCheckpoints(here.runs, program, phase) as checkpoints:
                    here.train_phase(phase, checkpoints, lambda: state)
                    return since(stop.began)

            contenders = {"steps alone": bare, "log and checkpoints": trained, "TensorBoard too": trained}
            taken: dict[str, list[Seconds]] = {name: [] for name in contenders}
            # The first round includes compilation and does not count.
            for number in range(options.rounds + 1):
                for name, contender in contenders.items():
                    seconds = contender(name, number)
                    if number:
                        taken[name].append(seconds)
    print(f"{training.name}: {steps} steps of {recipe.batch_tokens:,} tokens, a line every {often.log_every_steps}, a "
          f"checkpoint every {often.checkpoint_steps}; {options.rounds} rounds. The config asks for a line every "
          f"{recipe.log_every_steps}, a checkpoint every {recipe.checkpoint_steps}.")  # fmt: skip
    middle = {name: Seconds(*map(statistics.median, zip(*found, strict=True))) for name, found in taken.items()}
    for kind in Seconds._fields:
        alone = getattr(middle["steps alone"], kind)
        for name, found in middle.items():
            times = [getattr(seconds, kind) for seconds in taken[name]]
            per_step, more = 1000 * getattr(found, kind) / steps, getattr(found, kind) / alone - 1
            spread = f"({min(times):.2f} to {max(times):.2f} s)"
            print(f"{kind:>10}  {name:<20} {per_step:7.2f} ms a step {more:+7.2%}  {spread}; as the config asks "
                  f"{more / options.often:+.2%}")  # fmt: skip


if __name__ == "__main__":
    main()
