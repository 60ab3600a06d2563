"""Training from beginning to end: a trunk, a branch per budget, a row per branch. Interrupted anywhere, it goes on."""

from __future__ import annotations

import functools
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from moejax.data.corpus import Corpus, Summary, open_corpus
from moejax.folder import claim, only_writer, write_json
from moejax.train.checkpoint import Checkpoints
from moejax.train.mesh import batch_sharding, check_divides, make_mesh
from moejax.train.metrics import TRUNK, MetricsLog, branch_name
from moejax.train.row import Measured, make_row
from moejax.train.schedule import WarmupStableDecay
from moejax.train.step import Program, TrainState, make_program
from moejax.train.training import Training

Progress = Callable[[int, dict[str, Any]], None]
"""Called at every log with the steps taken so far, over trunk and branches, and the metrics logged."""


@dataclass(frozen=True)
class Leg:
    """A trunk or a branch: one stretch of steps under one schedule, with its own checkpoints."""

    name: str
    start: int
    end: int
    schedule: WarmupStableDecay
    steps_before: int
    """Steps of the legs before this one."""


def train(
    training: Training,
    folder: Path,
    *,
    data_folder: Path | None = None,
    progress: Progress = lambda steps, values: None,
) -> list[dict[str, Any]]:
    """Train all budgets in ``folder`` and return their run rows, in order.

    What ``folder`` already holds of this training is kept: finished rows are not trained again, an unfinished trunk or
    branch goes on from its newest checkpoint, and the numbers are those of an uninterrupted run. ``data_folder``
    shares one tokenised corpus between trainings.

    Raises:
      ValueError: the training or the mesh makes no sense, or the folder belongs to another training.
    """
    training.check()
    claim(folder, "training.json", training.as_json())
    with only_writer(folder):
        corpus = open_corpus(training.recipe.data, data_folder or folder / "data")
        _check_corpus(training, corpus.summary(), folder)
        rows = [_read_row(folder, budget) for budget in training.recipe.budgets_tokens]
        if None not in rows:
            progress(training.recipe.total_steps, {})
            return rows  # type: ignore[return-value]
        mesh = make_mesh(training.recipe.mesh)
        check_divides(training.recipe.batch_sequences, mesh)
        with jax.set_mesh(mesh):
            return _train(training, folder, corpus, make_program(training, mesh), progress)


def legs(training: Training) -> tuple[Leg, list[Leg]]:
    """The trunk, and a branch per budget."""
    optimizer = training.recipe.optimizer

    def schedule(decay_start: float, decay_steps: float) -> WarmupStableDecay:
        return WarmupStableDecay(
            peak=optimizer.learning_rate,
            warmup_steps=float(training.recipe.warmup_steps),
            decay_start=decay_start,
            decay_steps=decay_steps,
            final_share=optimizer.final_share,
            shape=optimizer.decay_shape,
        )

    trunk = Leg(TRUNK, 0, training.recipe.trunk_steps, schedule(math.inf, 1.0), 0)
    branches, before = [], trunk.end
    for budget in training.recipe.budgets_tokens:
        start, end = training.recipe.decay_start(budget), training.recipe.steps(budget)
        branches.append(Leg(branch_name(budget), start, end, schedule(float(start), float(end - start)), before))
        before += end - start
    return trunk, branches


def _train(
    training: Training, folder: Path, corpus: Corpus, program: Program, progress: Progress
) -> list[dict[str, Any]]:
    trunk, branches = legs(training)
    log = MetricsLog(folder / "metrics.jsonl")
    run = _Runner(training, folder, corpus, program, log, progress)
    rows = []
    with Checkpoints(folder / "checkpoints" / TRUNK, keep=[branch.start for branch in branches]) as trunk_saves:
        if (trunk_saves.latest() or 0) < trunk.end:
            run.leg(trunk, trunk_saves, first=lambda batches: program.init(training.seed))
        for budget, branch in zip(training.recipe.budgets_tokens, branches, strict=True):
            row = _read_row(folder, budget)
            if row is None:
                with Checkpoints(folder / "checkpoints" / branch.name) as saves:
                    from_trunk = functools.partial(trunk_saves.restore, branch.start, program)
                    state = run.leg(branch, saves, first=from_trunk)
                row = make_row(training, budget, corpus.summary(), run.measure(state, branch))
                write_json(_row_path(folder, budget), row)
            progress(branch.steps_before + branch.end - branch.start, {})
            rows.append(row)
    return rows


class _Runner:
    """What the legs of one training share: the compiled step, the data and the log."""

    def __init__(
        self,
        training: Training,
        folder: Path,
        corpus: Corpus,
        program: Program,
        log: MetricsLog,
        progress: Progress,
    ):
        self.training, self.folder, self.corpus = training, folder, corpus
        self.program, self.log, self.progress = program, log, progress
        self.sharding = batch_sharding(program.mesh)
        self.seconds = 0.0
        self.validation = corpus.validation()

    def leg(self, leg: Leg, saves: Checkpoints, first: Callable[[Any], TrainState]) -> TrainState:
        """Take the steps of a leg from its newest checkpoint, or from ``first``, to its end."""
        training = self.training
        batches = self.corpus.batches(
            batch=training.recipe.batch_sequences,
            seed=training.seed,
            process=jax.process_index(),
            processes=jax.process_count(),
        )
        latest = saves.latest()
        state = first(batches) if latest is None else saves.restore(latest, self.program, batches)
        first_step = int(state.step)
        self.seconds = self.log.rewind(leg.name, first_step)
        recipe = training.recipe
        every = max(1, recipe.checkpoint_tokens // recipe.batch_tokens) if recipe.checkpoint_tokens else leg.end
        # Branches start from the trunk's checkpoints.
        stops = {recipe.decay_start(budget) for budget in recipe.budgets_tokens} if leg.name == TRUNK else set()
        if first_step == leg.end:
            return state
        # Compiled ahead, so that the seconds that are logged are seconds of training.
        step = self.program.compiled_step()
        started = time.perf_counter()
        for position in range(first_step + 1, leg.end + 1):
            rows = next(batches)
            batch = {name: jax.make_array_from_process_local_data(self.sharding, rows[name]) for name in rows}
            state, metrics = step(state, batch, leg.schedule)
            saves_here = position % every == 0 or position == leg.end or position in stops
            if position % training.recipe.log_every_steps == 0 or saves_here:
                values = {name: float(value) for name, value in metrics.items()}
                now = time.perf_counter()
                self.seconds, started = self.seconds + now - started, now
                done = leg.steps_before + position - leg.start
                tokens = position * training.recipe.batch_tokens
                self.log.write(
                    leg.name, position, {"tokens": tokens, "steps_done": done, "seconds": self.seconds, **values}
                )
                self.log.flush()
                self.progress(done, values)
                if values["skipped_in_a_row"] >= recipe.guard.patience:
                    saves.save(state, batches)
                    raise ValueError(self._given_up(values, leg, position))
            if saves_here:
                saves.save(state, batches)
        return state

    def measure(self, state: TrainState, branch: Leg) -> Measured:
        """Loss and routing on the fixed validation windows, and what the log tells of the training."""
        rows, size = self.validation.rows, self.training.recipe.batch_sequences
        count, nats, sums = len(rows["tokens"]), 0.0, []
        for start in range(0, count, size):
            # The last batch is filled up with its first row, which then counts for nothing.
            numbers = np.arange(start, start + size)
            real = numbers < count
            numbers = np.where(real, numbers, start)
            batch = {name: self._placed(array[numbers]) for name, array in rows.items()}
            costs, routing = self.program.evaluate(state.params, state.balance_bias, batch, self._placed(real))
            nats += float(np.asarray(costs, np.float64)[real].sum())
            sums.append(routing)
        routing = None if sums[0] is None else jax.tree.map(lambda *parts: sum(parts), *sums)
        return Measured(nats, self.validation.targets, self.validation.bytes, routing, self.log.lines(), branch.name)

    def _placed(self, rows: np.ndarray) -> jax.Array:
        """Rows of a global batch, which every process holds whole, on the devices."""
        return jax.make_array_from_callback(rows.shape, self.sharding, lambda index: rows[index])

    def _given_up(self, values: dict[str, float], leg: Leg, step: int) -> str:
        first = step - int(values["skipped_in_a_row"])
        order = self.training.recipe.data.order_seed
        seed = self.training.seed if order is None else order
        return (
            f"{self.training.name} diverged: no step of its {leg.name} could be taken from step {first} to {step}, "
            f"where the loss is {values['loss']} and the gradient norm {values['gradient_norm']}. Those were the "
            f"batches {first} to {step - 1} of the data order of seed {seed}. The state before them is saved in "
            f"{self.folder}; lower optimizer.learning_rate or lengthen the warm-up, in a new --out."
        )


def _check_corpus(training: Training, text: Summary, folder: Path) -> None:
    path = folder / "corpus.json"
    now = {"source": text.source, "sha256": text.sha256, "tokenizer": text.tokenizer}
    known = json.loads(path.read_text()) if path.exists() else now
    if known["sha256"] != text.sha256:
        raise ValueError(
            f"{folder} was trained on text with SHA-256 {known['sha256'][:12]}…, and {text.source} is now "
            f"{text.sha256[:12]}… (another Python?); go on with the text it was started with, or start anew in another "
            f"--out."
        )
    if known["tokenizer"] != text.tokenizer:
        raise ValueError(
            f"{folder} was trained with a tokenizer of SHA-256 {known['tokenizer'][:12]}…, and {text.source} now comes "
            f"with {text.tokenizer[:12]}…; give the set that it was started with, or start anew in another --out."
        )
    write_json(path, now)
    if training.architecture.vocab_size < text.vocab_size:
        raise ValueError(
            f"vocab_size is {training.architecture.vocab_size}, but {text.source} has tokens up to "
            f"{text.vocab_size - 1}; set vocab_size to at least {text.vocab_size}."
        )


def _row_path(folder: Path, budget_tokens: int) -> Path:
    return folder / f"{branch_name(budget_tokens)}.json"


def _read_row(folder: Path, budget_tokens: int) -> dict[str, Any] | None:
    path = _row_path(folder, budget_tokens)
    return json.loads(path.read_text()) if path.exists() else None
