"""Training from beginning to end: a trunk, a branch per budget, a row per branch. Interrupted anywhere, it goes on."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from moejax.data.corpus import Corpus, Summary, open_corpus
from moejax.folder import only_writer, write_json
from moejax.train.checkpoint import Checkpoints
from moejax.train.identity import decisive_changes, own
from moejax.train.legs import Leg, legs
from moejax.train.mesh import check_fits, make_mesh
from moejax.train.metrics import TRUNK, MetricsLog, branch_name
from moejax.train.processes import WAIT_SECONDS, Together
from moejax.train.row import make_row
from moejax.train.runner import Progress, Runner
from moejax.train.step import make_program
from moejax.train.stopping import Stop
from moejax.train.training import Training

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
    say: Callable[[str], None] = lambda text: None,
    progress: Progress = lambda steps, values: None,
) -> list[dict[str, Any]]:
    """Train all budgets in ``folder`` and return their run rows, in order.

    What ``folder`` already holds of this training is kept: finished rows are not trained again, an unfinished trunk or
    branch goes on from its newest whole checkpoint, and the numbers are those of an uninterrupted run, on whatever
    mesh and number of processes. With ``accept_changes`` it goes on with other settings. ``data_folder`` shares one
    tokenised corpus between trainings. ``say`` hears what a person should know.
    Processes wait for each other ``wait_seconds``.

    Raises:
      ValueError: the training or the mesh makes no sense, the folder belongs to another training, or the disk is full.
      Stopped: ``stop`` asked for it, and everything is saved.
    """
    together = Together(wait_seconds)
    together.check_same("settings", {"out": str(folder), **training.as_json()})
    together.do(training.check)
    with contextlib.ExitStack() as held:

        def take() -> None:
            own(folder, training, accept=accept_changes, say=say)
            held.enter_context(only_writer(folder))

        together.do(take if together.first else _nothing)
        corpus = _open(training, folder, data_folder, together)
        mesh = together.do(lambda: make_mesh(training.recipe.mesh))
        together.do(
            lambda: check_fits(
                training.architecture, training.recipe.batch_sequences, training.recipe.microbatches, mesh
            )
        )
        rows = together.told([_read_row(folder, budget) for budget in training.recipe.budgets_tokens])
        if None not in rows:
            progress(training.recipe.total_steps, {})
            return rows  # type: ignore[return-value]
        with jax.set_mesh(mesh), _saying_so(folder):
            log = MetricsLog(folder / "metrics.jsonl", writes=together.first)
            program = make_program(training, mesh)
            runner = Runner(training, corpus, program, log, together, stop or Stop(together.count), progress, say)
            return _train(runner, folder, rows)


def _train(runner: Runner, folder: Path, rows: list[dict[str, Any] | None]) -> list[dict[str, Any]]:
    training, together = runner.training, runner.together
    trunk, branches = legs(training)
    recipe, found = training.recipe, []
    open_saves = functools.partial(
        Checkpoints, together=together, newest=recipe.keep_checkpoints, every=recipe.keep_every_steps, say=runner.say
    )
    starts = {branch.start for branch in branches}
    with open_saves(folder / "checkpoints" / TRUNK, keep=sorted(starts)) as trunk_saves:
        waiting = [branch.start for branch, row in zip(branches, rows, strict=True) if row is None]
        if (trunk_saves.newest() or 0) < max(waiting):
            runner.leg(trunk, trunk_saves, runner.first, starts)
        for budget, branch, row in zip(recipe.budgets_tokens, branches, rows, strict=True):
            if row is None:
                from_trunk = functools.partial(runner.trunk_at, branch.start, trunk, trunk_saves)
                with open_saves(folder / "checkpoints" / branch.name) as saves:
                    state = runner.leg(branch, saves, from_trunk, set())
                row = together.told(_finish(runner, folder, budget, branch, state))
            runner.progress(branch.steps_before + branch.end - branch.start, {})
            found.append(row)
    return found


def _finish(runner: Runner, folder: Path, budget: int, branch: Leg, state: Any) -> dict[str, Any] | None:
    """Measure a branch and write its row; only the first process returns it."""
    measured = runner.measure(state, branch)

    def write() -> dict[str, Any]:
        row = make_row(runner.training, budget, runner.corpus.summary(), measured)
        changed = decisive_changes(folder)
        if changed:
            mark = hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()[:8]
            row["fingerprint"] = f"{row['fingerprint']}-changed-{mark}"
        write_json(_row_path(folder, budget), row)
        return row

    return runner.together.do(write if runner.together.first else _nothing)


def _open(training: Training, folder: Path, data_folder: Path | None, together: Together) -> Corpus:
    """The corpus, which the first process prepares if it is not yet, and the others open afterwards."""
    config, place = training.recipe.data, data_folder or folder / "data"

    def prepare() -> Corpus:
        corpus = open_corpus(config, place)
        _check_corpus(training, corpus.summary(), folder)
        return corpus

    corpus = together.do(prepare if together.first else _nothing, wait_seconds=PREPARING_SECONDS)
    return together.do(lambda: corpus or open_corpus(config, place))


@contextlib.contextmanager
def _saying_so(folder: Path) -> Any:
    """A full disk as a sentence."""
    try:
        yield
    except OSError as error:
        raise ValueError(
            f"{folder} cannot be written to ({error}). What was saved there is whole: make room, or mend the disk, and "
            f"the same command goes on."
        ) from error


def _nothing() -> None: ...


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
