"""docs/errata.md: for a document's authors, what does not follow from it, and what does under which reading."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from moejax.reproduce.papers import PAPERS, tally
from moejax.reproduce.record import ERROR, MATCH, NOT_CHECKABLE, UNDER_READING, VERDICTS, Record, written

_INTRODUCTION = """\
# What the papers print, recomputed

`moejax reproduce --errata docs/errata.md` writes this page; it is not edited by hand. Every number below was computed
from the document's own formulas, constants and tables by the laws and counts in `moejax/laws`, and compared with the
printed digits. It is meant for the authors first: what is listed here is what a reader who recomputes their document
stumbles over, and in most cases a digit, a unit or a definition settles it. If a formula was misread, the file of the
paper in `moejax/reproduce` is where to say so.
"""


def errata(records: Sequence[Record]) -> str:
    """The page, in Markdown."""
    parts = [_INTRODUCTION, _counts(records)]
    for paper in dict.fromkeys(record.paper for record in records):
        parts.append(_paper(paper, [record for record in records if record.paper == paper]))
    return "\n".join(parts)


def _counts(records: Sequence[Record]) -> str:
    counts = tally(records)
    lines = [f"| | {' | '.join(VERDICTS)} | all |", f"|---|{'---:|' * (len(VERDICTS) + 1)}"]
    for paper, row in counts.items():
        lines.append(f"| {_name(paper)} | {' | '.join(map(str, row.values()))} | {sum(row.values())} |")
    meanings = [f"- **{kind}**: {meaning}." for kind, meaning in VERDICTS.items()]
    return "\n".join([*lines, "", *meanings, ""])


def _name(paper: str) -> str:
    return _plain(PAPERS[paper].title.split(', "')[0].split(', "')[0])


def _paper(paper: str, records: Sequence[Record]) -> str:
    count = tally(records)[paper]
    lines = [
        f"## {_plain(PAPERS[paper].title)}",
        "",
        f"Of {len(records)} quantities, {count[MATCH]} come out as printed.",
        "",
        *_section("What does not follow", _of(records, ERROR), _by_note, _differences),
        *_section("What follows under a reading", _of(records, UNDER_READING), _by_reading, _under_reading),
        *_section("What cannot be checked", _of(records, NOT_CHECKABLE), _by_note, _unchecked),
    ]
    return "\n".join(lines)


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
    # What has no note of its own stands with its neighbours in the same table or section.
    return (record.note,) if record.note else (record.where, "")


def _by_reading(record: Record) -> tuple[str, ...]:
    return (record.found.name if record.found else "", record.note)


def _differences(records: list[Record]) -> list[str]:
    note = f": {records[0].note}" if records[0].note else ""
    return [f"- **{_places(records)}**{_plain(note)}.", *(f"  - {_difference(record)}" for record in records)]


def _difference(record: Record) -> str:
    unit = f" {record.unit}" if record.unit else ""
    others = [reading for reading in record.readings[1:] if reading.computed != record.readings[0].computed]
    tried = "; ".join(f"{written(r.computed)}{unit} with {r.name}" for r in others if not isinstance(r.computed, str))
    also = f" (also tried: {tried})" if tried else ""
    return _plain(f"{record.quantity}: {record.how} {record.printed}{unit}, computed {record.shown}{unit}{also}")


def _under_reading(records: list[Record]) -> list[str]:
    name = records[0].found.name if records[0].found else ""
    note = f"; {records[0].note}" if records[0].note else ""
    head = f"- **{_plain(name)}**: {_plain(_places_with_counts(records) + note)}."
    if len(records) > 6:
        return [head]
    return [head, *(f"  - {_difference_under(record)}" for record in records)]


def _difference_under(record: Record) -> str:
    unit = f" {record.unit}" if record.unit else ""
    first = record.readings[0]
    plainly = f", {written(first.computed)}{unit} without it" if not first.name and first.computed is not None else ""
    bare = plainly if first.computed != record.computed else ""
    return _plain(f"{record.quantity}: {record.how} {record.printed}{unit}, computed {record.shown}{unit}{bare}")


def _unchecked(records: list[Record]) -> list[str]:
    shown = [record for record in records if record.computed is not None]
    if shown:
        return [_plain(f"- {r.where}: {r.quantity}: not printed, computed {written(r.computed)}") + "." for r in shown]
    note = records[0].note or "nothing is printed that they could be computed from"
    return [f"- {_plain(_places_with_counts(records))}: {_plain(note)}."]


def _places(records: Iterable[Record]) -> str:
    return _plain("; ".join(dict.fromkeys(record.where for record in records)))


def _places_with_counts(records: Iterable[Record]) -> str:
    counts = Counter(record.where for record in records)
    return ", ".join(f"{count} in {where}" for where, count in counts.items())


def _plain(text: str) -> str:
    """Text whose stars, underscores, bars and brackets Markdown leaves alone."""
    return re.sub(r"([*_|<>])", r"\\\1", text)
