"""The page of the papers names commands, studies and figures that exist, and counts that are on record."""

import importlib.util
import re
import shlex
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from moejax.__main__ import main
from moejax.cli import COMMANDS
from moejax.cli.command_line import DONE, split_overrides
from moejax.cli.parser import parse_command
from moejax.papers.plots import ALL, DOCUMENTS
from moejax.papers.record import ERROR, MATCH, NOT_CHECKABLE, UNDER_READING, UNEXPLAINED
from moejax.papers.reproduce import recorded

pytestmark = pytest.mark.docs
PAGE = Path("docs/papers.md").read_text()
SECTIONS = {
    "Zhao": ("zhao", "zhao"),
    "Abnar": ("abnar", "abnar"),
    "chapter 002": ("chapter_002", "chapter_002"),
    "Tian": ("tian", "tian"),
    "ICLR 2026": ("iclr_2026", "li"),
}
"""By what stands in a section's title: its study, and its name in ``moejax reproduce``."""


def section(title):
    (found,) = (text for text in PAGE.split("\n## ")[1:] if title in text.splitlines()[0])
    return found


def shown(text):
    """What stands as code within lines."""
    return re.findall(r"`([^`\n]+)`", text)


def test_every_command_in_a_row_is_one_that_can_be_given(capsys):
    refused = []
    for line in (words for words in shown(PAGE) if words.startswith("moejax ") and "…" not in words):
        _, name, *words = shlex.split(line)
        assert name in COMMANDS
        try:
            if words:
                parse_command(name, split_overrides(words)[0])
        except (SystemExit, ValueError):
            refused.append(f"{line}: {capsys.readouterr().err}")
    assert not refused


@cache
def study_of(name):
    spec = importlib.util.spec_from_file_location(name, f"configs/studies/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    study = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(study)
    return study


@pytest.mark.parametrize("title", SECTIONS)
def test_every_study_that_a_row_names_can_be_built(title):
    name, _ = SECTIONS[title]
    study = study_of(name)
    named = {
        group
        for code in shown(section(title))
        for group in re.findall(rf"(?:^|…|/)(?:{name}\.py)?:([A-Za-z][\w-]*)$", code.removesuffix(" --dry-run"))
    }
    for group in named:
        assert study.get_config(group).models, group


@pytest.mark.parametrize("title", SECTIONS)
def test_every_tiny_study_has_a_row_with_its_wall_time_and_what_it_gave(title):
    name, _ = SECTIONS[title]
    with pytest.raises(ValueError, match="there are ") as refused:
        study_of(name).get_config("none")
    offered = str(refused.value).partition("there are ")[2].split(", ")
    tiny = {group for group in offered if group.startswith("tiny")}
    assert tiny
    told = set()
    for row in section(title).splitlines():
        own = {group for group in tiny if f":{group}`" in row}
        measured = re.findall(r"\b\d+ (?:runs )?in \d+ (?:s|minutes)\b(?=[^|]{20})", row)
        told |= own if len(measured) >= len(own) else set()
    assert told == tiny


def items(text, kind):
    """Numbers of the tables or figures, or letters of the appendices, that the first cells of a section's rows name."""
    cells = " ".join(row.split("|")[1] for row in text.splitlines() if row.startswith("| "))
    found = set()
    one = r"(?:[A-Z]\b(?!\.\d)|[A-Z](?=\.\d)|\d+)[.\da-c]*"
    for several in re.findall(rf"\b{kind}s? ((?:{one}(?:, | to | and )?)+)", cells):
        for part in re.split(r", | and ", several.strip(" ,")):
            first, *last = (re.match(r"[A-Z]|\d+", end)[0] for end in part.split(" to ") if end)
            codes = [int(end) if end.isdigit() else ord(end) for end in (first, *last)]
            found |= {str(code) if first.isdigit() else chr(code) for code in range(codes[0], codes[-1] + 1)}
    return found


@pytest.mark.parametrize(
    ("title", "tables", "figures", "appendices"),
    [
        ("Zhao", range(1, 7), range(1, 18), "ABCDEFGHIJKL"),
        ("Abnar", range(1, 4), range(1, 16), "ABCDEF"),
        ("Tian", range(1, 18), range(1, 18), "ABCDEFGHIJKLMN"),
        ("ICLR 2026", range(4, 9), (1, 7), "DEF"),
    ],
)
def test_every_table_figure_and_appendix_of_a_paper_is_in_a_row(title, tables, figures, appendices):
    text = section(title)
    assert items(text, "Table") == set(map(str, tables))
    assert {number for number in items(text, "Figure") if number.isdigit()} == set(map(str, figures))
    assert items(text, "Appendix") | items(text, "Appendice") == set(appendices)


COMPUTED = ("count", "design", "predict", "ranges")
"""Commands that need no runs and take seconds."""


@pytest.mark.slow
def test_what_a_row_computes_from_laws_and_shapes_alone_ends_with_an_answer(capsys):
    # NAME, and a path as zhao/fit.json, stand for what the reader has.
    commands = {line for line in shown(PAGE) if re.match(rf"moejax ({'|'.join(COMPUTED)}) [^…/]*$", line)}
    commands = {line for line in commands if "NAME" not in line}
    assert len(commands) > 10
    for line in sorted(commands):
        assert main(shlex.split(line)[1:]) == DONE, f"{line}: {capsys.readouterr().err}"


def test_every_figure_that_a_row_names_exists():
    named = {
        word
        for code in shown(PAGE)
        if code.startswith("moejax plot ")
        for word in re.findall(r" ([a-z]+(?:-[\w]+)+)", code)
    }
    assert named <= set(ALL)


@pytest.mark.parametrize("title", SECTIONS)
def test_counts_of_figures_and_numbers_are_those_on_record(title):
    _, paper = SECTIONS[title]
    # A match under a reading is recorded with the reading.
    own = (verdict for key, verdict in recorded().items() if key.startswith(f"{paper} |"))
    verdicts = Counter(UNDER_READING if verdict.startswith(UNDER_READING) else verdict for verdict in own)
    text = section(title)
    (numbers,) = re.findall(r"^\| all (\d+) numbers \|.*\| (.*) \|$", text, re.MULTILINE)
    assert int(numbers[0]) == sum(verdicts.values())
    said = {
        "match": verdicts[MATCH] + verdicts[UNDER_READING],
        "of them under a reading": verdicts[UNDER_READING],
        "(?:is|are) the document's errors?": verdicts[ERROR],
        "(?:is|are) unexplained": verdicts[UNEXPLAINED],
        "cannot be checked": verdicts[NOT_CHECKABLE],
    }
    for words, count in said.items():
        assert re.findall(rf"(\d+) {words}", numbers[1]) == [str(count)] * (count > 0), words
    drawn = len(DOCUMENTS[paper].figures)
    assert f"{drawn} of {drawn} drawn" in text
