"""Run a study from its config to its conclusions: training, table, fits, decisions, checks. Finished parts are kept."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fsspec.implementations.dirfs import DirFileSystem

from moejax import run_table
from moejax.config import build, check_fields, dump
from moejax.data.corpus import Summary, check_sources, open_corpus, read_summary
from moejax.errors import UserError
from moejax.fit.tables.column_names import with_derived
from moejax.fit.tables.read_runs import ReadRuns
from moejax.folder import check_as_written, check_replaceable, only_writer, outputs_of, write_text
from moejax.laws import LAWS
from moejax.run_table import TABLE
from moejax.storage import is_remote, matching, open_storage, read_text
from moejax.stored import claim, parse_json, refuse_another, sealed, write_json
from moejax.study.analysis import Analysed, Recipes, SanityCheck, analyse, sanity_checks, tuning
from moejax.study.annealed import StudyAnnealed, check_table, conclude_annealed
from moejax.study.cloud import Mount, holds_corpus
from moejax.study.downstream import FOLDER as SCORES
from moejax.study.downstream import DownstreamScores, conclude_downstream
from moejax.study.executor import Executor, LocalExecutor, ProgressCallback, Task, slots, train_all
from moejax.study.stages import (
    StageResult,
    ask_for_config,
    each_stage,
    later,
    results,
    stored_stages,
    write_stages,
)
from moejax.study.status import REMEDY, RunStatus, identity, progress, run_statuses
from moejax.study.study import Analysis, Downstream, Study
from moejax.train.directory.identity import TRAINING
from moejax.train.directory.row_file import row_file
from moejax.train.training import vmap_groups
from moejax.wording import argument, command, counted, listed, some, told

ASKED = "downstream.json"
"""File in a study's folder with the requested downstream tasks."""


@dataclass(frozen=True)
class Concluded:
    """Conclusions of a study, and the folder that holds them."""

    study: Study | None
    """The study; None for a table of runs that were not trained by a study."""
    folder: Path
    corpus: Summary | None
    sanity_checks: list[SanityCheck]
    analysed: Analysed
    table: str = ""
    """Name of the table, if there is no study."""
    notes: tuple[str, ...] = ()
    """Notes on reading the table."""
    stages: tuple[StageResult, ...] = ()
    """Results of the study's stages, if any."""
    downstream: DownstreamScores | None = None
    """Scores of the checkpoints, if the study has downstream tasks."""
    annealed: StudyAnnealed | None = None
    """Predicted losses of untrained budgets, if the study requests them."""

    @property
    def name(self) -> str:
        """Name of the study or table."""
        return self.study.name if self.study else self.table

    def to_json(self) -> dict[str, Any]:
        """Return all conclusions as plain data, keyed by name, such as ``laws`` and ``decisions``."""
        analysed = self.analysed
        return {
            "study": self.study.identity() if self.study else {"name": self.name},
            "corpus": self.corpus,
            "notes": self.notes,
            "sanity_checks": self.sanity_checks,
            "stages": self.stages,
            "runs": run_table.records(run_table.read(self.folder / TABLE)),
            "laws": analysed.laws,
            "decisions": analysed.decisions,
            "selection": analysed.selection,
            "limits": analysed.limits,
            "recipe": analysed.recipe,
            "downstream": self.downstream,
            "annealed": self.annealed,
        }


def read_study(url: str | Path) -> Study:
    """Read the study of a local or remote folder.

    Raises:
      UserError: the folder holds no study.
    """
    settings, storage = identity(url), open_storage(url)
    for name, kind, file in (("analysis", Analysis, "analysis.json"), ("downstream", Downstream, ASKED)):
        if (text := read_text(storage, file)) is not None:
            settings[name] = dump(parse_json(text, kind, f"{url}/{file}", remedy=REMEDY))
    study = build(Study, settings, f"{url}/study.json")
    stages = [replace(stage, make=ask_for_config) if number else stage for number, stage in enumerate(study.stages)]
    return stored_stages(replace(study, stages=tuple(stages)), storage)


def fetch(url: str, folder: Path) -> None:
    """Copy a study's rows, and the files that describe their origin, into a local folder.

    Files of an earlier copy are replaced if they differ. Other files are never replaced.

    Raises:
      UserError: there is no study, or ``folder`` belongs to another study or has other files with these names.
    """
    study, storage = read_study(url), open_storage(url)
    claim(folder, "study.json", study.identity())
    files = {path: read_text(storage, path) for path in ("data/corpus.json", *_gathered(storage))}
    files["analysis.json"] = sealed(dump(study.analysis))
    if study.downstream != Downstream():
        files[ASKED] = sealed(dump(study.downstream))
    with only_writer(folder), outputs_of(folder):
        changed = {path: text for path, text in files.items() if text is not None and _differs(folder / path, text)}
        for path in changed:
            try:
                check_replaceable(folder / path)
            except ValueError as error:
                raise UserError(
                    f"{folder / path} was not gathered from {url} or was changed since; gather into another --out, "
                    "or move the file away."
                ) from error
        for path, text in changed.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            write_text(folder / path, text)


def _gathered(storage: DirFileSystem) -> list[str]:
    return [
        *matching(storage, "models/*/*.json"),
        *matching(storage, "stages/*.json"),
        *matching(storage, f"{SCORES}/*/*.json"),
    ]


def _differs(path: Path, text: str) -> bool:
    return not path.is_file() or path.read_bytes() != text.encode()


def materialize(study: Study, folder: Path, *, corpus: bool = True) -> None:
    """Create a study's folder with the identity of each training run and, unless ``corpus`` is False, its corpus.

    Raises:
      UserError: the study is invalid, or the folder belongs to another study.
    """
    study.check()
    study.check_data()
    if corpus:
        check_sources(study.recipe.data, folder / "data")
    claim(folder, "study.json", study.identity())
    with only_writer(folder):
        write_stages(study, folder)
        write_json(folder / "analysis.json", dump(study.analysis))
        if study.downstream != Downstream() or (folder / ASKED).exists():
            write_json(folder / ASKED, dump(study.downstream))
        if corpus:
            open_corpus(study.recipe.data, folder / "data")
        for training in study.trainings():
            claim(folder / "models" / training.name, TRAINING, training.as_json())


def materialize_at(study: Study, url: str, mount: Mount | None = None) -> None:
    """Create a study's folder locally, then copy it to an object store that is mounted at ``mount``.

    Raises:
      UserError: the study is invalid, the folder belongs to another study, or a part of the corpus is not visible to
        the machines.
    """
    if not is_remote(url):
        materialize(study, Path(url))
        return
    check_owner(study, url)
    storage = open_storage(url)
    with tempfile.TemporaryDirectory() as here:
        materialize(study, Path(here, "study"), corpus=mount is None or not holds_corpus(mount, study.recipe.data))
        for path in sorted(Path(here, "study").rglob("*")):
            there = path.relative_to(Path(here, "study")).as_posix()
            # A training run may have been resumed with other settings. The stored file records its own identity.
            if path.is_file() and path.name != ".lock" and not (path.name == TRAINING and storage.exists(there)):
                storage.makedirs(there.rpartition("/")[0], exist_ok=True)
                storage.put_file(str(path), there)


def check_owner(study: Study, url: str | Path) -> None:
    """Raise ``UserError`` if a local or remote folder belongs to another study."""
    text = read_text(open_storage(url), "study.json")
    if text is not None:
        refuse_another(url, parse_json(text, dict, f"{url}/study.json", remedy=REMEDY), study.identity())


def train_study(
    study: Study,
    folder: Path,
    *,
    workers: int | None = None,
    vmap: int = 1,
    executor: Executor | None = None,
    tasks: Sequence[Task] | None = None,
    update: ProgressCallback,
    log: Callable[[str], None] = lambda text: None,
) -> Path:
    """Train all untrained models on this machine or with ``executor``. Write the run table and return its path.

    ``tasks`` are training runs with their resource requests. Without them, training runs that differ only in seed,
    learning rate and weight decay are vmapped, at most ``vmap`` in a process. Fewer runs share a process if a worker
    would otherwise be idle. Without ``tasks``, a study's stages are trained one after another.

    Raises:
      UserError: the study is invalid, the folder belongs to another study, training runs failed, or a stage cannot be
        made from the rows of the previous one.
    """
    check_owner(study, folder)
    table = folder / TABLE
    for known in each_stage(study, folder, log) if tasks is None else [study]:
        table = _train(known, folder, workers, vmap, executor, tasks, update, log)
    return table


def _train(
    study: Study,
    folder: Path,
    workers: int | None,
    vmap: int,
    executor: Executor | None,
    tasks: Sequence[Task] | None,
    update: ProgressCallback,
    log: Callable[[str], None],
) -> Path:
    """Train the known models of a study."""
    check_as_written(folder / TABLE)
    check_table(study.analysis, folder)
    materialize(study, folder)
    trainings, storage = study.trainings(), open_storage(folder)
    known: dict[str, RunStatus] = {}

    def state() -> tuple[float, str]:
        known.update({one.model: one for one in run_statuses(storage, trainings, known)})
        return progress(list(known.values()))

    with only_writer(folder):
        state()
        for one in known.values():
            if one.state != "done" and one.why:
                log(f"{one.model}, resuming: {one.why}")
        if tasks is None:
            unfinished = [one for one in trainings if known[one.name].state != "done"]
            most = min(vmap, -(-len(unfinished) // len(slots(workers)))) if unfinished else 1
            packs = vmap_groups(unfinished, most)
            tasks = [Task(training=first, beside=tuple(rest), study=folder) for first, *rest in packs]
        left = [task for task in tasks if known[task.name].state != "done"]
        try:
            train_all(executor or LocalExecutor(workers), left, state, update)
        except UserError as error:
            raise UserError(f"{told(error)} {later(study)}".strip()) from error
        return write_table(study, folder)


def write_table(study: Study, folder: Path) -> Path:
    """Gather the rows of a study's folder, one file each, into its run table, and return its path.

    The table does not depend on the engine or on the order of training.

    Raises:
      UserError: there is no row yet, the table was modified after it was written, or the row of a run in the table is
        missing.
    """
    check_as_written(folder / TABLE)
    rows = [row for one in run_statuses(open_storage(folder), study.trainings()) for row in one.rows]
    if not rows:
        raise UserError(f"{folder} has no row yet; see {command('moejax', 'study', 'status', folder)}.")
    _check_kept(folder, rows)
    rows.sort(key=lambda row: (row["params_active"], row["params_total"], row["model"], row["tokens"]))
    groups = study.groups()
    stages = {name: {"stage": stage.name} for stage in reversed(study.stages) for name in study.models_of(stage)}
    named = [
        {"study": study.name, **stages.get(row["model"], {}), **row, "group": groups[row["model"]]} for row in rows
    ]
    return run_table.write(named, folder / TABLE)


def _check_kept(folder: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Raise ``UserError`` if a run of the run table is not among the rows."""
    table = folder / TABLE
    if not table.exists():
        return
    there = {(row["model"], row["tokens"]) for row in rows}
    written = run_table.read(table)[["model", "tokens"]].itertuples(index=False)
    lost = [f"models/{model}/{row_file(int(tokens))}" for model, tokens in written if (model, tokens) not in there]
    if lost:
        raise UserError(
            f"{table} has {counted(len(lost), 'run')} without a complete row in {folder}: {some(lost)}. Restore "
            f"{'it' if len(lost) == 1 else 'them'}, or move {TABLE} away to write the table from the other rows."
        )


def conclude(folder: Path, update: ProgressCallback, recipes: Recipes = MappingProxyType({})) -> Concluded:
    """Fit laws to a trained study's run table, compute decisions and checks, and apply the study's recipe, a key of
    ``recipes``.

    Raises:
      UserError: the folder holds no study, its table does not exist yet, or the description of its corpus is missing.
    """
    study = read_study(folder)
    table = folder / TABLE
    if not table.exists():
        raise UserError(
            f"{folder} has no {TABLE} yet; finish its training with "
            f"{command('moejax', 'study', '--resume', '--out', folder)}."
        )
    if not (folder / "data" / "corpus.json").exists():
        raise UserError(
            f"{folder} has no data/corpus.json, which records the training data of its models; copy it there."
        )
    # Read and check all inputs before the slow fits.
    summary, frame = read_summary(folder / "data"), run_table.read(table)
    annealed = conclude_annealed(study.trainings(), study.analysis, folder, update)
    analysed = analyse(table, study.analysis, update, recipes)
    _save_fits(analysed, folder)
    rows = frame.to_dict("records")
    stages = tuple(results(study, rows))
    downstream = conclude_downstream(study, folder)
    return Concluded(
        study,
        folder,
        summary,
        sanity_checks(rows),
        analysed,
        notes=tuning(frame, study.analysis),
        stages=stages,
        downstream=downstream,
        annealed=annealed,
    )


def _save_fits(analysed: Analysed, folder: Path) -> None:
    (folder / "fits").mkdir(exist_ok=True)
    for law in analysed.laws:
        law.fit.save(folder / "fits" / f"{law.name}.json")


MOST_LAWS = ("chinchilla", "effective_params", "expert_count", "five_factor", "sparsity")
"""Laws that are fitted to a table by default."""


def conclude_runs(
    read: ReadRuns,
    name: str,
    folder: Path,
    update: ProgressCallback,
    *,
    laws: Sequence[str] = (),
    flops: float | None = None,
    resamples: int = 300,
) -> Concluded:
    """Fit laws to runs that ``read_runs`` read, and compute decisions and checks, like ``conclude_table``.

    Args:
      name: the table's name in messages.
      laws: laws to fit; see ``conclude_table``, also for ``flops`` and ``resamples``.

    Raises:
      UserError: like ``conclude_table``, or the runs have weights, which this analysis does not use.
    """
    if weighted := [option for option in ("weight", "smooth") if option in read.reading]:
        raise UserError(
            f"A report of a table fits laws without {argument(weighted[0])}; leave it out, or fit a law with it and "
            "report the fit."
        )
    frame = read.frame.assign(group=[f"group {number + 1}" for number in read.runs.group])
    if "loss" in read.reading:
        frame["loss"] = frame[read.reading["loss"]]
    return conclude_table(frame, name, folder, update, laws=laws, flops=flops, resamples=resamples, notes=read.notes)


def conclude_table(
    table: run_table.DataFrame,
    name: str,
    folder: Path,
    update: ProgressCallback,
    *,
    laws: Sequence[str] = (),
    flops: float | None = None,
    resamples: int = 300,
    notes: Sequence[str] = (),
) -> Concluded:
    """Fit laws to any table of runs, and compute decisions and checks. Keep the table in ``folder`` with moejax's
    columns.

    Args:
      laws: laws to fit; by default the laws in ``MOST_LAWS`` whose columns the table has.
      flops: budget of the decision; by default ten times the FLOPs of the largest run.

    Raises:
      UserError: the table has no losses.
    """
    if "loss" not in table:
        near = ", ".join(map(str, table.columns[:12]))
        raise UserError(f"{name} has no column loss; the columns are {near}. Name it: {argument('loss', 'COLUMN')}.")
    runs = with_derived(run_table.check(table, where=name)).reset_index(drop=True)
    empty = runs["loss"].isna()
    if empty.all():
        raise UserError(f"{name} has no run with a loss.")
    notes = (*notes, *([f"{int(empty.sum())} rows have no loss and are omitted."] if empty.any() else []))
    runs = runs[~empty].reset_index(drop=True)
    sizes = [size for size in ("params_total", "params_active", "num_experts", "top_k") if size in runs]
    labels = runs.groupby(sizes, dropna=False).ngroup() if sizes else runs.index.to_series()
    if "model" not in runs:
        runs["model"] = [f"group {int(label) + 1}" for label in labels]
    unnamed = runs["model"].isna()
    runs.loc[unnamed, "model"] = [f"row {row + 1}" for row in runs.index[unnamed]]
    shapes = runs.groupby(labels)["model"].transform("first")
    if runs["model"].nunique() == len(runs):
        # Every row has its own name: rows of one shape and one group are a model with the name of its first run.
        by = [labels, runs["group"]] if "group" in runs else labels
        runs["model"] = runs.groupby(by)["model"].transform("first")
    if "group" not in runs:
        runs["group"] = runs["model"]
    folder.mkdir(parents=True, exist_ok=True)
    path = run_table.write(runs, folder / TABLE)
    full = {str(column) for column in runs.columns if runs[column].notna().all()}
    chosen = tuple(laws) or tuple(law for law in MOST_LAWS if set(LAWS[law].inputs) <= full)
    if chosen and not laws:
        notes = (*notes, f"The laws of this report are {listed(chosen)}; moejax compare tests all laws of the columns.")
    if flops is None:
        flops = 10 * float(runs["flops"].max()) if "flops" in full else Analysis.decision_flops
    sizes = [size for size in ("tokens", "params_active", "flops") if size in full and runs[size].nunique() > 1]
    analysis = Analysis(laws=chosen, resamples=resamples, decision_flops=flops, hold_out=(*sizes, "tokens")[0])
    check_fields(analysis, "analysis")
    analysed = analyse(path, analysis, update)
    _save_fits(analysed, folder)
    named = runs.assign(model=shapes) if runs["model"].nunique() == len(runs) else runs
    rows = named.sort_values([c for c in ("model", "tokens") if c in runs]).to_dict("records")
    checked = sanity_checks(rows) if "tokens" in runs else []
    return Concluded(None, folder, None, checked, analysed, table=name, notes=tuple(notes))
