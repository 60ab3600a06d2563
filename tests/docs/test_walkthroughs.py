"""Walkthroughs run as they stand, each in a folder of its own: Python, files, commands; they print what is shown."""

import contextlib
import importlib.util
import io
import re
import shlex
from pathlib import Path

import pytest

from moejax.__main__ import main

PAGES = sorted(Path("docs/walkthroughs").glob("*.md"))
COMPILED = {"plan_671b"}
BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"[-+]?\d[\d_,]*\.?\d*(?:e[-+]?\d+)?|[-+]?\.\d+")


def agrees(shown: str, printed: str) -> bool:
    """Whether a printed line begins with the shown one, numbers within a tenth of themselves."""
    words, said = shown.split(), printed.split()
    return len(said) >= len(words) and all(_same(a, b) for a, b in zip(words, said, strict=False))


def _same(shown: str, printed: str) -> bool:
    if NUMBER.sub("#", shown) != NUMBER.sub("#", printed):
        return False
    pairs = zip(NUMBER.findall(shown), NUMBER.findall(printed), strict=True)
    values = [(float(a.replace(",", "")), float(b.replace(",", ""))) for a, b in pairs]
    return all(abs(a - b) <= 0.1 * max(abs(a), abs(b)) for a, b in values)


def run(page: str, said: io.StringIO) -> list[str]:
    """Run a page's blocks in order; returns the shown lines that were not printed by the block before them."""
    names: dict = {}
    missing, before = [], 0
    for language, title, text in BLOCK.findall(page):
        if language == "text":
            printed = said.getvalue()[before:].splitlines()
            missing += [line for line in text.splitlines() if not any(agrees(line, other) for other in printed)]
            continue
        before = len(said.getvalue())
        if title:
            Path(title).write_text(text)
        elif language == "python":
            exec(compile(text, "walkthrough", "exec"), names)
        else:
            for command in text.splitlines():
                program, *words = shlex.split(command)
                assert program == "moejax"
                assert main(words) == 0, command
    return missing


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
@pytest.mark.slow
def test_a_walkthrough_prints_what_it_shows(page, tmp_path, monkeypatch):
    if page.stem in COMPILED and importlib.util.find_spec("libtpu") is None:
        pytest.skip("libtpu is not installed (extra: plan)")
    text = page.read_text()
    assert "```text" in text
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        missing = run(text, said)
    assert not missing, said.getvalue()


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("flops 1.000e+22", "flops   1.0001e+22  more", True),
        ("flops 1.000e+22", "flops 1.3e+22", False),
        ("a 5 b", "a 5", False),
        ("[+0.1, +0.2]", "[+0.101, +0.199]", True),
        ("True 3", "False 3", False),
    ],
)
def test_numbers_may_differ_by_a_tenth_and_words_not_at_all(shown, printed, same):
    assert agrees(shown, printed) == same
