"""Docstrings follow the style of the Flax and pandas documentation, as far as a machine can check."""

import ast
import re
from pathlib import Path

import pytest

import moejax

ROOT = Path(moejax.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
CLAUSE = re.compile(r"(What|Of|Who|Where|How|That|Whether)\b")
BARE_DECIMAL = re.compile(r"(?<![\w.)\]*`])\.\d+(?![\w%])")


def docstrings(path):
    """Line and text of every docstring of a module, its classes, functions and attributes."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        for child in ast.iter_child_nodes(node):
            value = child.value.value if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant) else None
            if isinstance(value, str):
                yield child.lineno, value.strip()


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_docstring_starts_with_a_verb_or_a_noun_phrase(path):
    assert [f"{line}: {text[:60]}" for line, text in docstrings(path) if CLAUSE.match(text)] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_decimals_of_a_docstring_have_a_leading_zero(path):
    assert [f"{line}: {text[:60]}" for line, text in docstrings(path) if BARE_DECIMAL.search(text)] == []


PAGES = [
    *(p for p in sorted(Path("docs").glob("*.md")) if p.stem not in {"log", "settings", "errata", "gallery", "api"}),
    *sorted(Path("docs/walkthroughs").glob("*.md")),
    Path("README.md"),
    Path("CONTRIBUTING.md"),
]
MOST_WORDS = 30


def sentences(text):
    """Return the sentences of a page, without code, tables and headings; inline code counts as one word."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^( {4}|\s*\||#).*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"^(> |- |\d+\. )", "\n\n", text, flags=re.MULTILINE)
    text = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "`code`", text))
    for paragraph in re.split(r"\n\s*\n", text):
        yield from re.split(r"(?<=[.:!?])\s+(?!et al)", " ".join(paragraph.split()))


@pytest.mark.docs
@pytest.mark.parametrize("page", PAGES, ids=str)
def test_a_sentence_of_a_page_has_at_most_thirty_words(page):
    assert [s for s in sentences(page.read_text(encoding="utf-8")) if len(s.split()) > MOST_WORDS] == []
