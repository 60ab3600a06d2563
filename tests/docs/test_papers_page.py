"""The page of the papers names commands, studies and figures that exist, and counts that are on record."""

import importlib.util
import re
import shlex
from collections import Counter
from pathlib import Path

import pytest

from moejax.cli import COMMANDS
from moejax.cli.command_line import parser_of, split_overrides
from moejax.papers.numbered_figures import NUMBERED
from moejax.papers.plots import ALL
from moejax.papers.record import ERROR, MATCH, NOT_CHECKABLE, UNDER_READING, UNEXPLAINED
from moejax.papers.verdicts import recorded

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
                parser_of(name).parse_args(split_overrides(words)[0])
        except (SystemExit, ValueError):
            refused.append(f"{line}: {capsys.readouterr().err}")
    assert not refused


@pytest.mark.parametrize("title", SECTIONS)
def test_every_study_that_a_row_names_can_be_built_and_every_tiny_one_is_named(title):
    name, _ = SECTIONS[title]
    spec = importlib.util.spec_from_file_location(name, f"configs/studies/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    study = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(study)
    named = {
        group
        for code in shown(section(title))
        for group in re.findall(rf"(?:^|…|/)(?:{name}\.py)?:([A-Za-z][\w-]*)$", code.removesuffix(" --dry-run"))
    }
    for group in named:
        assert study.get_config(group).models, group
    tiny = set(re.findall(r":(tiny(?:-\w+)?)\b", Path(f"configs/studies/{name}.py").read_text()))
    assert tiny <= named, "a tiny study has no row that says what it gave"


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
        "are the document's errors": verdicts[ERROR],
        "(?:is|are) unexplained": verdicts[UNEXPLAINED],
        "cannot be checked": verdicts[NOT_CHECKABLE],
    }
    for words, count in said.items():
        assert re.findall(rf"(\d+) {words}", numbers[1]) == [str(count)] * (count > 0), words
    drawn = len(NUMBERED[paper].drawn)
    assert f"{drawn} of {drawn} drawn" in text
