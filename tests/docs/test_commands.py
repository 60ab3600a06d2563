"""Every command that a page, a config or a help text shows is one that the command line takes."""

import re
import shlex
from pathlib import Path

import pytest

from moejax.cli import COMMANDS, command_module
from moejax.cli.command_line import split_overrides
from moejax.cli.parser import parse_command

pytestmark = pytest.mark.docs
PAGES = [
    Path("README.md"),
    Path("CONTRIBUTING.md"),
    Path("AGENTS.md"),
    *sorted(Path("docs").rglob("*.md")),
    *sorted(Path("configs").rglob("*.py")),
]
# Pages that show whole commands within lines and tables; others name parts of them there.
INLINE = [Path("README.md"), *(Path("docs", f"{name}.md") for name in ("commands", "train_your_own", "gpus_and_tpus"))]
SKILLS = sorted(Path("skills").rglob("SKILL.md"))
CODE = re.compile(r"^```\w*(?: [^\n]*)?\n(.*?)^```$|^ {4}(moejax [^\n]*)$", re.MULTILINE | re.DOTALL)


def commands(text: str) -> list[str]:
    """Its lines that are commands; comments and redirections left out."""
    found = (re.match(r"(?:Command:)?\s*(moejax +[a-z].*)", line) for line in text.splitlines())
    return [re.split(r"  +[#(]| > [\w./-]+$", match[1])[0].strip() for match in found if match]


def code(page: Path) -> str:
    """What a page shows as code; all of a config file. What a backslash continues is one line."""
    text = re.sub(r"\\\n\s*", "", page.read_text())
    return text if page.suffix == ".py" else "\n".join(a or b for a, b in CODE.findall(text))


SHOWN = [
    (str(source), line)
    for source, text in (
        *((page, code(page)) for page in PAGES),
        *((page, "\n".join(re.findall(r"`(moejax [^`…]* [^`…]*)`", page.read_text()))) for page in [*INLINE, *SKILLS]),
        *((name, command_module(name).EXAMPLE) for name in COMMANDS),
    )
    for line in commands(text)
]
MAKE = [
    (str(page), target)
    for page in PAGES
    # The log's entries name what there was on their day.
    if page.name != "log.md"
    for target in re.findall(r"(?:^|`)make ([a-z][a-z-]*)", page.read_text(), re.M)
]


def test_every_shown_command_is_one_that_can_be_given(capsys):
    refused = []
    for source, line in SHOWN:
        _, name, *words = shlex.split(line, comments=True)
        try:
            parse_command(name, split_overrides(words)[0])
        except (SystemExit, ValueError):
            refused.append(f"{source}: {line}: {capsys.readouterr().err}")
    assert not refused


def test_every_command_is_shown_by_a_page():
    pages = {line.split()[1] for source, line in SHOWN if source.endswith(".md")}
    assert pages >= set(COMMANDS)


def test_every_shown_make_target_exists():
    targets = set(re.findall(r"^([a-z-]+):", Path("Makefile").read_text(), re.M))
    assert not [(page, target) for page, target in MAKE if target not in targets]
