"""Write docs/errata.md: the printed numbers that do not follow from their document, or only under an assumption."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

from moejax.papers.record import (
    ERROR,
    MATCH,
    NOT_CHECKABLE,
    RULE,
    UNDER_READING,
    UNEXPLAINED,
    VERDICTS,
    Record,
    written,
)
from moejax.papers.reproduce import PAPERS, tally
from moejax.report.render import markdown_table
from moejax.result import Column, Table

_INTRODUCTION = """\
# What the papers print, recomputed

`make errata` writes this page; it is not edited by hand. Every number below was computed
from the document's own formulas, constants and tables by the laws and counts in `moejax/laws`, and compared with the
printed digits. The page is meant for the documents' authors: it lists the differences that a reader finds when
recomputing a document. In most cases a digit, a unit or a definition would resolve them. If a formula was misread,
please correct the paper's file in `moejax/papers`.

{rule} The tolerance of every number is in parentheses after it.
"""


_UNCHECKED = "Numbers that cannot be checked"
_NESTED = "    - "
"""Indentation of a nested list; the site's Markdown needs four spaces."""


def errata(records: Sequence[Record]) -> str:
    """Return the page in Markdown."""
    parts = [_INTRODUCTION.format(rule=RULE), _counts(records)]
    for paper in dict.fromkeys(record.paper for record in records):
        parts.append(_paper(paper, [record for record in records if record.paper == paper]))
    return "\n".join(parts)


def section(page: str, paper: str) -> str:
    """Return the section of one paper in the page; empty if there is none."""
    return page.partition(f"## {_plain(PAPERS[paper].title)}\n")[2].partition("\n## ")[0]


def findings(section: str, places: Collection[str]) -> list[str]:
    """Return the Markdown entries of a paper's section that name one of ``places``, written as in ``places_in``.

    Numbers that cannot be checked are omitted.
    """
    checked = section.partition(f"\n### {_UNCHECKED}\n")[0]
    entries = [entry.partition("\n\n")[0].rstrip() for entry in re.split(r"^- ", checked, flags=re.MULTILINE)[1:]]
    return [f"- {entry}" for entry in entries if not places_in(entry).isdisjoint(places)]


def places_in(text: str) -> set[str]:
    """Return the numbered equations and tables that a text names, each as ``Eq. 4`` or ``Table 6``, ranges expanded."""
    places = {f"{kind} {number}" for kind, number in re.findall(r"\b(Eq\.|Table) (\d+)(?!\.?\d)", text)}
    for kind, numbers in re.findall(r"\b(Eq|Table)s\.? (\d+(?:(?:, | and | to )\d+)*)", text):
        ends = [int(number) for number in re.findall(r"\d+", numbers)]
        every = range(ends[0], ends[-1] + 1) if " to " in numbers else ends
        places |= {f"{kind}{'.' if kind == 'Eq' else ''} {number}" for number in every}
    return places


def paper_of(text: str) -> str | None:
    """Return the paper whose title up to ``, "`` (usually the authors) appears in a text, or None."""
    return next((paper for paper in PAPERS if PAPERS[paper].title.split(', "')[0] in text), None)


def anchor(paper: str) -> str:
    """Return the anchor of a paper's section for links."""
    words = re.sub(r"[^\w\s-]", "", PAPERS[paper].title).strip().lower()
    return re.sub(r"[-\s]+", "-", words)


def _counts(records: Sequence[Record]) -> str:
    columns = [Column(""), *map(Column, VERDICTS), Column("all")]
    rows = [[_name(paper), *row.values(), sum(row.values())] for paper, row in tally(records).items()]
    meanings = [f"- **{kind}**: {meaning}." for kind, meaning in VERDICTS.items()]
    return "\n".join([markdown_table(Table("", columns, rows), str), "", *meanings, ""])


def _name(paper: str) -> str:
    return _plain(PAPERS[paper].title.split(', "')[0])


def _paper(paper: str, records: Sequence[Record]) -> str:
    count = tally(records)[paper]
    lines = [
        f"## {_plain(PAPERS[paper].title)}",
        "",
        f"Of {len(records)} quantities, {count[MATCH]} match the document. {_causes(_of(records, ERROR))}".rstrip(),
        "",
        *_section("Numbers that do not follow", _of(records, ERROR), _by_note, _differences),
        *_section("Unexplained numbers", _of(records, UNEXPLAINED), _by_note, _differences),
        *_section("Numbers that agree under an assumption", _of(records, UNDER_READING), _by_reading, _under_reading),
        *_section(_UNCHECKED, _of(records, NOT_CHECKABLE), _by_note, _unchecked),
    ]
    return "\n".join(lines)


def causes(records: Iterable[Record]) -> int:
    """Return the number of distinct causes of differences; one mistake affects every number computed from it."""
    return len({_by_note(record) for record in records})


def _causes(errors: list[Record]) -> str:
    return f"{len(errors)} numbers do not follow from it; they have {causes(errors)} causes." if errors else ""


def _of(records: Sequence[Record], kind: str) -> list[Record]:
    return [record for record in records if record.kind == kind]


def _section(
    title: str,
    records: list[Record],
    group: Callable[[Record], tuple[str, ...]],
    write: Callable[[list[Record]], list[str]],
) -> list[str]:
    if not records:
        return []
    groups: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        groups.setdefault(group(record), []).append(record)
    return [f"### {title}", "", *(line for members in groups.values() for line in write(members)), ""]


def _by_note(record: Record) -> tuple[str, ...]:
    # Records without a note are grouped by their table or section.
    return (record.note,) if record.note else (record.where, "")


def _by_reading(record: Record) -> tuple[str, ...]:
    return (record.agreeing.name if record.agreeing else "", record.note)


def _differences(records: list[Record]) -> list[str]:
    note = f": {records[0].note}" if records[0].note else ""
    return [f"- **{_places(records)}**{_plain(note)}.", *(f"{_NESTED}{_difference(record)}" for record in records)]


def _difference(record: Record) -> str:
    unit = f" {record.unit}" if record.unit else ""
    others = [reading for reading in record.readings[1:] if reading.computed != record.readings[0].computed]
    tried = "; ".join(f"{written(r.computed)}{unit} with {r.name}" for r in others if not isinstance(r.computed, str))
    also = f" (also tried: {tried})" if tried else ""
    return _plain(f"{record.quantity}: {_printed(record)}, computed {record.shown}{unit}{also}")


def _printed(record: Record) -> str:
    unit = f" {record.unit}" if record.unit else ""
    tolerance = f" ({record.tolerance})" if record.tolerance else ""
    return f"{record.how} {record.printed}{unit}{tolerance}"


def _under_reading(records: list[Record]) -> list[str]:
    name = records[0].agreeing.name if records[0].agreeing else ""
    note = f"; {records[0].note}" if records[0].note else ""
    head = f"- **{_plain(name)}**: {_plain(_places_with_counts(records) + note)}."
    if len(records) > 6:
        return [head]
    return [head, *(f"{_NESTED}{_difference_under(record)}" for record in records)]


def _difference_under(record: Record) -> str:
    unit = f" {record.unit}" if record.unit else ""
    first = record.readings[0]
    plainly = f", {written(first.computed)}{unit} without it" if not first.name and first.computed is not None else ""
    bare = plainly if first.computed != record.computed else ""
    return _plain(f"{record.quantity}: {_printed(record)}, computed {record.shown}{unit}{bare}")


def _unchecked(records: list[Record]) -> list[str]:
    shown = [record for record in records if record.computed is not None]
    if shown:
        return [_plain(f"- {r.where}: {r.quantity}: not printed, computed {written(r.computed)}") + "." for r in shown]
    note = records[0].note or "the document does not print the data behind them"
    return [f"- {_plain(_places_with_counts(records))}: {_plain(note)}."]


def _places(records: Iterable[Record]) -> str:
    return _plain("; ".join(dict.fromkeys(record.where for record in records)))


def _places_with_counts(records: Iterable[Record]) -> str:
    counts = Counter(record.where for record in records)
    return ", ".join(f"{count} in {where}" for where, count in counts.items())


def _plain(text: str) -> str:
    """Escape stars, underscores, bars and brackets for Markdown."""
    return re.sub(r"([*_|>])", r"\\\1", text).replace("<", "&lt;")
