"""Implement ``moejax reproduce``: recompute the numbers of five documents and compare them with the printed ones."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from moejax.cli.out_folder import check_outputs, out_file
from moejax.cli.progress import progress_display
from moejax.folder import write_text
from moejax.json_text import json_text
from moejax.laws.active_params import ACTIVE_PARAMS, DEFAULT, convention, sentence
from moejax.papers.errata import errata
from moejax.papers.record import ERROR, RULE, UNDER_READING, UNEXPLAINED, VERDICTS
from moejax.papers.reproduce import PAPERS, chosen, reproduce, tally
from moejax.papers.verdicts import as_text, changes, recorded
from moejax.report import render
from moejax.result import Column, Result, Table
from moejax.say import say
from moejax.stored import foreign_json, read_bytes


def run(arguments: argparse.Namespace) -> int:
    """Compute, print and write; return 1 if a verdict changed."""
    papers = chosen(arguments.paper)
    for path in (arguments.json, arguments.errata, arguments.record):
        if path and path != "-":
            check_outputs(Path(path).parent, (Path(path).name,))
    taken = convention(arguments.active_convention)
    name = next(key for key, one in ACTIVE_PARAMS.items() if one == taken)
    known = _read(Path(arguments.verdicts)) if arguments.verdicts else recorded()
    with progress_display() as update:
        records = reproduce(papers, update, active_convention=name)
    verdicts = json_text([record.as_json() for record in records], ensure_ascii=False)
    if arguments.json == "-":
        print(verdicts)
    else:
        render.show(summary(records))
    for path, content in (
        (arguments.json, verdicts + "\n"),
        (arguments.errata, errata(records)),
    ):
        if path and path != "-":
            _write(Path(path), content)
    if arguments.record:
        _write(Path(arguments.record), as_text(records))
        return 0
    if arguments.active_convention and "abnar" in papers:
        say(sentence(taken))
    if name != DEFAULT:
        say(f"Verdicts on record are by the convention {DEFAULT}: none is held to them.")
        return 0
    changed = changes(records, known)
    for change in changed:
        say(change)
    return 1 if changed else 0


def _read(path: Path) -> dict[str, str]:
    remedy = f"--record {path} writes a file of verdicts"
    return foreign_json(read_bytes(path, remedy=remedy), path, shape=dict[str, str], remedy=remedy)


def _write(path: Path, text: str) -> None:
    with out_file(path):
        write_text(path, text)


def summary(records: list[Any]) -> Result:
    """Return the numbers that differ from the printed ones, in a table per paper, and the number of verdicts of each
    kind.
    """
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
            [r.where, r.quantity, r.printed, r.tolerance, r.shown, r.kind, r.found.name if r.found else r.note]
            for r in records
            if r.paper == paper and r.kind in (UNDER_READING, ERROR, UNEXPLAINED)
        ]
        tables.append(Table(f"{PAPERS[paper].title}: what is not simply as printed", columns, rows))
    rows = [[paper, *row.values(), sum(row.values())] for paper, row in counts.items()]
    total = [sum(row[kind] for row in counts.values()) for kind in VERDICTS]
    heads = [Column(name) for name in ("paper", *VERDICTS, "all")]
    tables.append(Table("Verdicts", heads, [*rows, ["all", *total, sum(total)]], [RULE]))
    return Result(tables=tables)
