"""Docstrings follow the style of the Flax and pandas documentation, as far as a machine can check."""

import ast
import pkgutil
import re
from functools import cache
from pathlib import Path

import pytest

import moejax

ROOT = Path(moejax.__file__).parent
CLAUSE = re.compile(r"(What|Of|Who|Where|How|That|Whether)\b")
BARE_DECIMAL = re.compile(r"(?<![\w.)\]*`])\.\d+(?![\w%])")


def docstrings(tree):
    """Line and text of every docstring of a module, its classes, functions and attributes."""
    for node in ast.walk(tree):
        value = node.value.value if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) else None
        if isinstance(value, str):
            yield node.lineno, value.strip()


@pytest.fixture(scope="module")
def texts():
    """Docstrings of all modules and the texts of their messages, each with its place."""
    found, shown = [], []
    for path in sorted(ROOT.rglob("*.py")):
        tree, place = ast.parse(path.read_text(encoding="utf-8")), path.relative_to(ROOT)
        found += [(f"{place}:{line}", text) for line, text in docstrings(tree)]
        shown += [(str(place), text) for text in messages(tree, is_of_commands=path.parent.name == "commands")]
    return found, shown


def test_a_docstring_starts_with_a_verb_or_a_noun_phrase(texts):
    assert [f"{place}: {text[:60]}" for place, text in texts[0] if CLAUSE.match(text)] == []


def test_decimals_of_a_docstring_have_a_leading_zero(texts):
    assert [f"{place}: {text[:60]}" for place, text in texts[0] if BARE_DECIMAL.search(text)] == []


PRIVATE_PHRASES = re.compile(
    r"\b(said|told|stands?|bears?|lies|lie|goes on|go on|comes out|luck|nobody|as it is|either sign|beside|for ever)\b"
    r"|\b(it|that|which|this|laws?|fits?|files?|tables?|pages?|runs?|logs?|rows?|columns?) says?\b"
    r"|\bwhat (is|was|has) no\b"
)
"""Phrases that messages and help texts avoid, and standard English has better words for."""


def strings(node):
    """Return the texts of an expression, formatted values left out."""
    for child in ast.walk(node):
        if isinstance(child, ast.JoinedStr):
            yield " ".join(v.value for v in child.values if isinstance(v, ast.Constant) and isinstance(v.value, str))
        elif isinstance(child, ast.Constant) and isinstance(child.value, str):
            yield child.value


def messages(tree, is_of_commands):
    """Return the texts of errors, messages and help of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            shown = node.args if name in {"UserError", "say", "warn", "option", "argument"} else []
            for value in [*shown, *(k.value for k in node.keywords if k.arg in {"help", "description"})]:
                yield from strings(value)
        elif isinstance(node, ast.ClassDef) and is_of_commands:
            yield ast.get_docstring(node) or ""


def test_a_message_uses_standard_words(texts):
    assert [f"{place}: {text}" for place, text in texts[1] if PRIVATE_PHRASES.search(text)] == []


PAGES = [
    *(
        p
        for p in sorted(Path("docs").glob("*.md"))
        if p.stem not in {"log", "settings", "settings-of-commands", "errata", "gallery", "api"}
    ),
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


@cache
def python():
    """Return all Python of the repository."""
    paths = (path for top in ("moejax", "benchmarks", "tests") for path in Path(top).rglob("*.py"))
    return "\n".join(path.read_text(encoding="utf-8") for path in paths)


SETTINGS = set(re.findall(r"^\| `([\w.]+)`", Path("docs/settings.md").read_text(encoding="utf-8"), re.MULTILINE))
OF_OTHER_TOOLS = {"--build-arg", "--no-deps", "--no-index", "--target"}
OF_OTHER_TOOLS |= {"--implicit-dirs", "--allow-delete", "--allow-overwrite", "--ntasks-per-node"}
PLACEHOLDER = re.compile(r"NAME|FILE|PACKAGE|DIR|STUDY|my_study")


def is_known(name):
    """Return whether a name of a page exists: an option, a setting, a path or a dotted name of Python."""
    if name.startswith("--"):
        field = name[2:].replace("-", "_")
        known = name in OF_OTHER_TOOLS or name.startswith("--config")
        return known or bool(re.search(rf"{name}\b|^    {field}: |\"{field}\"", python(), re.MULTILINE))
    if "/" in name:
        return Path(name).exists()
    if name.startswith("moejax."):
        try:
            pkgutil.resolve_name(name)
        except (AttributeError, ImportError):
            return False
        return True
    return name in SETTINGS or any(setting.startswith(f"{name}.") for setting in SETTINGS)


NAME = re.compile(
    r"--[a-z][a-z-]+\b|(?<![\w/])(?:moejax|tests|benchmarks|configs|launch)/[\w/.-]*\w|\bmoejax(?:\.\w+)+|\brecipe(?:\.[a-z]\w+)+"
)


@pytest.mark.docs
@pytest.mark.parametrize("page", PAGES, ids=str)
def test_names_of_a_page_exist(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    code = re.findall(r"`([^`\n]+)`", text)
    names = {name for one in code for name in NAME.findall(one) if not PLACEHOLDER.search(one)}
    assert [name for name in sorted(names) if not is_known(name)] == []
