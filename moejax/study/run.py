"""A study from its config to its conclusions: train, table, fits, decisions, checks. Each part is kept when done."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moejax import run_table
from moejax.config import build, dump
from moejax.data.corpus import Summary, open_corpus, read_summary
from moejax.folder import claim, only_writer, write_json
from moejax.study.analysis import Analysed, analyse
from moejax.study.local import rows, train_all
from moejax.study.signals import Signal, signals
from moejax.study.study import Study

TABLE = "runs.parquet"

Update = Callable[[float, str], None]


@dataclass(frozen=True)
class Concluded:
    """What a study found, and where it lies."""

    study: Study
    folder: Path
    corpus: Summary
    signals: list[Signal]
    analysed: Analysed


def read_study(folder: Path) -> Study:
    """The study that a folder belongs to.

    Raises:
      ValueError: the folder holds none.
    """
    try:
        identity = json.loads((folder / "study.json").read_text())
    except OSError:
        raise ValueError(f"{folder} holds no study; start one with moejax study --config=FILE.py.") from None
    asked = folder / "analysis.json"
    analysis = json.loads(asked.read_text()) if asked.exists() else {}
    return build(Study, {**identity, "analysis": analysis}, str(folder / "study.json"))


def train_study(study: Study, folder: Path, *, workers: int | None = None, update: Update) -> Path:
    """Train what is not trained yet, and write the run table; returns its path.

    Raises:
      ValueError: the study makes no sense, the folder belongs to another one, or trainings failed.
    """
    study.check()
    study.check_data()
    claim(folder, "study.json", study.identity())
    with only_writer(folder):
        write_json(folder / "analysis.json", dump(study.analysis))
        open_corpus(study.recipe.data, folder / "data")
        trainings = study.trainings()
        (folder / "models").mkdir(exist_ok=True)
        train_all(trainings, folder / "models", folder / "data", workers=workers, update=update)
        found = rows(trainings, folder / "models")
        found.sort(key=lambda row: (row["params_active"], row["params_total"], row["model"], row["tokens"]))
        groups = study.groups()
        named = [{"study": study.name, **row, "group": groups[row["model"]]} for row in found]
        return run_table.write(named, folder / TABLE)


def conclude(folder: Path, update: Update) -> Concluded:
    """Fit, decide and check on the run table of a trained study.

    Raises:
      ValueError: the folder holds no study, its table is not there yet, or it does not say what was trained on.
    """
    study = read_study(folder)
    table = folder / TABLE
    if not table.exists():
        raise ValueError(
            f"{folder} has no {TABLE} yet; let its training end with moejax study --resume --out {folder}."
        )
    if not (folder / "data" / "corpus.json").exists():
        raise ValueError(
            f"{folder} has no data/corpus.json, which says what its models were trained on; copy it there."
        )
    analysed = analyse(table, study.analysis, update)
    (folder / "fits").mkdir(exist_ok=True)
    for law in analysed.laws:
        law.fit.save(folder / "fits" / f"{law.name}.json")
    frame = run_table.read(table)
    found = signals(frame.to_dict("records"))
    return Concluded(study, folder, read_summary(folder / "data"), found, analysed)


def as_json(concluded: Concluded) -> dict[str, Any]:
    """All conclusions as plain data."""
    analysed = concluded.analysed
    return {
        "study": concluded.study.identity(),
        "corpus": dump(concluded.corpus),
        "signals": dump(concluded.signals),
        "runs": json.loads(run_table.read(concluded.folder / TABLE).to_json(orient="records")),
        "laws": [{**dump_except(law, "fit"), "fit": law.fit.to_json()} for law in analysed.laws],
        "decisions": dump(analysed.decisions),
        "limits": analysed.limits,
    }


def dump_except(value: Any, name: str) -> dict[str, Any]:
    """A dataclass as plain data, without one field."""
    return {f: dump(v) for f, v in vars(value).items() if f != name}
