"""Compute all records of the five documents, and compare their verdicts with the recorded verdicts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path

from moejax.errors import UserError
from moejax.float64 import float64
from moejax.laws.active_params import DEFAULT
from moejax.papers.abnar import records as abnar
from moejax.papers.chapter_002 import records as chapter_002
from moejax.papers.li import records as li
from moejax.papers.record import ERROR, RULE, UNDER_READING, UNEXPLAINED, VERDICTS, Record, Records
from moejax.papers.tian import records as tian
from moejax.papers.zhao import records as zhao
from moejax.result import Column, Result, Table
from moejax.stored import foreign_json, read_bytes
from moejax.wording import did_you_mean


@dataclass(frozen=True)
class Paper:
    """A document with the function that yields its records."""

    title: str
    records: Callable[[], Records]


PAPERS = {
    "zhao": Paper(zhao.TITLE, zhao.records),
    "abnar": Paper(abnar.TITLE, abnar.records),
    "chapter_002": Paper(chapter_002.TITLE, chapter_002.records),
    "tian": Paper(tian.TITLE, tian.records),
    "li": Paper(li.TITLE, li.records),
}
"""Documents by name, as in ``moejax.laws.ALIASES``."""


def chosen(name: str | None) -> list[str]:
    """Return a list with the named paper, or with all papers for None.

    Raises:
      UserError: there is no such paper; the message suggests similar names.
    """
    if name is None:
        return list(PAPERS)
    asked = name.strip().lower().replace("-", "_")
    if asked not in PAPERS:
        raise UserError(f"There is no paper '{name}' to reproduce; {did_you_mean(asked, PAPERS)}")
    return [asked]


def reproduce(
    papers: Iterable[str],
    update: Callable[[float, str], None] = lambda share, text: None,
    *,
    active_convention: str = DEFAULT,
) -> list[Record]:
    """Compute every record of some papers in float64, and report progress to ``update``.

    For documents that do not define active parameters, ``active_convention`` is tried first.
    """
    papers, records, first = list(papers), [], abnar.READINGS[active_convention]
    expected = sum(key.split(" | ")[0] in papers for key in recorded()) or 1
    with float64():
        for paper in papers:
            for record in PAPERS[paper].records():
                readings = sorted(record.readings, key=lambda one: one.name != first)
                # Reorder only readings that differ by convention.
                tried = {one.name for one in record.readings} >= set(abnar.READINGS.values())
                records.append(replace(record, readings=tuple(readings)) if tried else record)
                update(min(1.0, len(records) / expected), f"{paper}: {record.where}")
    return records


def tally(records: Iterable[Record]) -> dict[str, dict[str, int]]:
    """Return each paper's number of records by kind of verdict."""
    counts = Counter((record.paper, record.kind) for record in records)
    return {paper: {kind: counts[paper, kind] for kind in VERDICTS} for paper in dict.fromkeys(p for p, _ in counts)}


def summary(records: list[Record]) -> Result:
    """Return a table per paper of numbers that differ from the printed ones, and a table that counts the verdicts."""
    counts = tally(records)
    columns = (
        Column("where"),
        Column("quantity", words=True),
        Column("printed"),
        Column("tolerance"),
        Column("computed"),
        Column("verdict", words=True),
        Column("reading or remark", words=True),
    )
    tables = []
    for paper in counts:
        rows = [
            [r.where, r.quantity, r.printed, r.tolerance, r.shown, r.kind, r.agreeing.name if r.agreeing else r.note]
            for r in records
            if r.paper == paper and r.kind in (UNDER_READING, ERROR, UNEXPLAINED)
        ]
        tables.append(Table(f"{PAPERS[paper].title}: numbers that differ from the document's", columns, rows))
    rows = [[paper, *row.values(), sum(row.values())] for paper, row in counts.items()]
    total = [sum(row[kind] for row in counts.values()) for kind in VERDICTS]
    heads = [Column(name) for name in ("paper", *VERDICTS, "all")]
    tables.append(Table("Verdicts", heads, [*rows, ["all", *total, sum(total)]], [RULE]))
    return Result(tables=tables)


def recorded() -> dict[str, str]:
    """Return the verdicts last recorded by ``moejax reproduce --record``, keyed by ``Record.key``."""
    text = (files("moejax.papers") / "verdicts.json").read_text(encoding="utf-8")
    return foreign_json(text, "verdicts.json", shape=dict[str, str], remedy="install moejax again")


def as_text(records: Iterable[Record]) -> str:
    """Return the content of ``verdicts.json`` for these records."""
    return json.dumps({record.key: record.verdict for record in records}, indent=0, ensure_ascii=False) + "\n"


def changes(records: Iterable[Record], known: Mapping[str, str]) -> list[str]:
    """Return a sentence for every verdict that differs from the recorded one, is new, or is missing."""
    now = {record.key: record for record in records}
    papers = {record.paper for record in now.values()}
    told = [
        f"{key}: the verdict was '{known[key]}' and is now '{record.verdict}'. {record.explanation}"
        for key, record in now.items()
        if key in known and known[key] != record.verdict
    ]
    told += [
        f"{key}: this quantity has no recorded verdict; it is now '{now[key].verdict}'." for key in now.keys() - known
    ]
    gone = [key for key in known.keys() - now.keys() if key.split(" | ")[0] in papers]
    return sorted(
        told
        + [f"{key}: this quantity has the recorded verdict '{known[key]}' but is no longer computed." for key in gone]
    )


def read_verdicts(path: Path) -> dict[str, str]:
    """Return the verdicts in a file written by ``--record``, keyed by ``Record.key``."""
    remedy = f"--record {path} writes a file of verdicts"
    return foreign_json(read_bytes(path, remedy=remedy), path, shape=dict[str, str], remedy=remedy)
