"""Render a ``Result`` for the terminal and as plain text, Markdown, JSON, HTML and LaTeX."""

from __future__ import annotations

import dataclasses
import html as html_escapes
import io
import itertools
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from moejax.errors import UserError
from moejax.json_text import finite, json_text
from moejax.result import MISSING, NOT_DETERMINED, NOT_SET, Column, Result, Shown, Table, Written
from moejax.say import say
from moejax.wording import counted, one_line, some

if TYPE_CHECKING:
    from pandas import DataFrame
    from rich.console import Console
    from rich.text import Text

GAP, NARROW = 3, 2
"""Spaces between columns, usually and in narrow tables."""
NARROWEST = 20
"""Minimum line width in characters, whatever the terminal reports."""
WORDS = 16
"""Minimum width to which a column of words is wrapped before the table is split in two."""
OPEN = (NOT_DETERMINED, NOT_SET)
"""Verdicts that HTML tables mark with a badge."""
PIPE = 140
"""Line width without a terminal."""


def show(answer: Shown, *, as_json: bool = False, as_latex: bool = False) -> None:
    """Print a result to stdout as text, as JSON, or as its main table in LaTeX with warnings on stderr.

    Args:
      answer: a ``Result``, or an answer with a summary, as ``moejax.fit`` and ``moejax.design`` return.
      as_json: True to print JSON.
      as_latex: True to print the main table in LaTeX.

    Example:
      >>> mj.show(mj.fit("runs.csv", "chinchilla"))
    """
    if not isinstance(answer, Shown):
        raise TypeError(f"show takes a Result or an answer that has a summary; got {type(answer).__name__}.")
    result = answer.summary()
    if as_json:
        print(json(result))
        return
    if as_latex:
        if result.warnings:
            say(*(f"! {warning}" for warning in result.warnings))
        print(latex(result))
        return
    if not (sys.stdout.isatty() or "COLUMNS" in os.environ):
        print(text(result))
        return
    from rich.console import Console

    console = Console(force_jupyter=False)
    # Some terminals report a width of 0.
    console.width = max(console.width, NARROWEST)
    _print(result, console)


def text(result: Result, width: int = PIPE, *, wrap: bool = False) -> str:
    """Return the result as plain text. Tables, and sentences if ``wrap``, are at most ``width`` characters wide."""
    from rich.console import Console

    into = io.StringIO()
    # In a notebook, Rich would display the text instead of writing it.
    console = Console(file=into, width=width, color_system=None, force_terminal=False, force_jupyter=False)
    _print(result, console, wrap=width if wrap else None)
    return "\n".join(line.rstrip() for line in into.getvalue().splitlines()).strip("\n")


BRIEF_ROWS, BRIEF_WIDTH = 6, 120
"""Maximum number of rows of a ``repr``, and of characters per line."""


def brief(answer: Shown) -> str:
    """Return an answer in a few lines, for its ``repr``: title, lead, first warning, and main table of ``glance()``."""
    result = answer.glance()
    main = _table(result, None) if any(table.columns for table in result.tables) else Table("")
    name = type(answer).__name__
    heading = " – ".join(one for one in (result.title, main.title) if one not in ("", name))
    sentences = [f"{name}: {heading}" if heading else name, *result.lead]
    if result.warnings:
        more = len(result.warnings) - 1
        others = f" ({counted(more, 'more warning')})" if more else ""
        sentences.append(f"! {result.warnings[0]}{others}")
    lines = [textwrap.shorten(one_line(sentence), 2 * BRIEF_WIDTH, placeholder=" …") for sentence in sentences]
    columns, cells = main.shown()
    wide = [max(map(len, [column.heading, *(row[i] for row in cells)])) for i, column in enumerate(columns)]
    fitting = [i for i in range(len(columns)) if sum(wide[: i + 1]) + GAP * i <= BRIEF_WIDTH]
    if fitting:
        kept = Table("", [columns[i] for i in fitting], [[row[i] for i in fitting] for row in cells[:BRIEF_ROWS]])
        lines.append(text(Result(tables=[kept]), BRIEF_WIDTH))
    if len(cells) > BRIEF_ROWS:
        lines.append(f"… {counted(len(cells) - BRIEF_ROWS, 'more row')}")
    methods = [f".{name}()" for name in ("summary", "to_frame", "to_latex", "plot") if hasattr(answer, name)]
    return "\n".join([*lines, f"mj.show(…) prints everything; {' '.join(methods)}"])


def _print(result: Result, console: Console, wrap: int | None = None) -> None:
    def wrapped(text: str) -> str:
        """Wrap a text if ``wrap`` is given. Terminals wrap lines themselves, and unwrapped lines are easier to copy."""
        if wrap is None:
            return text
        return textwrap.fill(text, wrap, subsequent_indent=" " * (len(text) - len(text.lstrip(" -!"))))

    def say(sentence: str, first: str = "", style: str = "") -> None:
        console.print(literal(wrapped(first + one_line(sentence)), style), soft_wrap=True)

    if result.title:
        say(result.title)
        console.print()
    for sentence in result.lead:
        say(sentence, style="bold")
    if result.lead:
        console.print()
    for warning in result.warnings:
        say(warning, "! ")
    if result.warnings:
        console.print()
    for table in result.tables:
        if table.title:
            say(table.title, style="bold")
        if table.columns:
            _print_grid(table, console)
        for note in table.notes:
            say(note)
        if table.notes or not table.columns:
            console.print()
    for note in result.notes:
        say(note)


def _print_grid(shown: Table, console: Console) -> None:
    """Print a table. Columns that do not fit continue below, with the first column repeated.

    The first column and columns of words are left-aligned; numbers are right-aligned and never wrapped.
    """
    from rich.table import Table as Grid

    columns, rows = shown.shown()
    rows = [[one_line(cell) for cell in row] for row in rows]
    wrapped = [column.words and i > 0 for i, column in enumerate(columns)]
    cells = [[row[i] for row in rows] for i in range(len(columns))]
    heads = [one_line(column.heading) for column in columns]
    wide = [_width([head, *cells[i]]) for i, head in enumerate(heads)]
    gap = GAP
    if sum(wide) + GAP * (len(wide) - 1) > console.width:
        gap, heads = NARROW, [_folded(head, _width(cells[i])) for i, head in enumerate(heads)]
    wide = [_width([head, *cells[i]]) for i, head in enumerate(heads)]
    least = [min(w, max(WORDS, _longest(cells[i]))) if wrapped[i] else w for i, w in enumerate(wide)]
    pieces = _pieces(least, gap, console.width)
    for piece in pieces:
        grid = Grid(box=None, pad_edge=False, padding=(0, gap, 0, 0), show_header=any(heads[i] for i in piece))
        for i in piece:
            grid.add_column(
                literal(heads[i]),
                justify="left" if i == 0 or wrapped[i] else "right",
                no_wrap=not wrapped[i] and (i > 0 or wide[0] <= console.width // 2),
                overflow="fold",
                header_style="dim",
            )
        for row in rows:
            if piece == pieces[0] or any(row[i] for i in piece[1:]):
                grid.add_row(*(literal(row[i]) for i in piece))
        console.print(grid)
        console.print()


def literal(text: str, style: str = "") -> Text:
    """Return a Rich text without markup, since names may contain brackets."""
    from rich.text import Text

    return Text(text, style=style)


def _pieces(least: Sequence[int], gap: int, width: int) -> list[list[int]]:
    """Split the columns into pieces that each fit next to the first column; return their column numbers."""
    if not least:
        return []
    pieces, first = [[0]], min(least[0], width // 2)
    for i in range(1, len(least)):
        room = width - first - sum(gap + least[j] for j in pieces[-1][1:])
        if room < gap + least[i] and len(pieces[-1]) > 1:
            pieces.append([0])
        pieces[-1].append(i)
    return pieces


def _folded(head: str, width: int) -> str:
    """Wrap a heading to the width of its column or of its longest word."""
    return "\n".join(textwrap.wrap(head, max(width, _longest([head]), 1), break_long_words=False))


def _width(cells: Sequence[str]) -> int:
    from rich.cells import cell_len

    return max((cell_len(line) for cell in cells for line in cell.splitlines()), default=0)


def _longest(cells: Sequence[str]) -> int:
    """Return the width of the longest word, the minimum width after wrapping."""
    return max((_width([word]) for cell in cells for word in cell.split()), default=0)


def markdown(result: Result, level: int = 1) -> str:
    """Return the result as Markdown with escaped texts; its title is a heading of ``level``."""
    return "\n\n".join(_markdown_parts(result, level)) + "\n"


def _markdown_parts(result: Result, level: int) -> Iterator[str]:
    if result.title:
        yield f"{'#' * level} {_inline(result.title)}"
    yield from map(_paragraph, result.lead)
    yield from (f"> {_paragraph(warning)}" for warning in result.warnings)
    for table in result.tables:
        if table.title:
            yield f"{'#' * (level + 1)} {_inline(table.title)}"
        if table.columns:
            yield markdown_table(table)
        yield from _paragraphs_and_lists(table.notes)
    yield from _paragraphs_and_lists(result.notes)


def _paragraphs_and_lists(sentences: Sequence[str]) -> Iterator[str]:
    """Yield sentences as paragraphs; consecutive sentences with a leading dash form a list."""
    for is_list, group in itertools.groupby(sentences, lambda sentence: sentence.startswith("- ")):
        if is_list:
            yield "\n".join(f"- {_paragraph(sentence.removeprefix('- '))}" for sentence in group)
        else:
            yield from map(_paragraph, group)


_SIGNS = re.compile(r"[&<|\\*`#~$]|\](?=\()|(?<![^\W_])_|_(?![^\W_])")
"""Characters that start Markdown syntax: an element, emphasis, code, a link or a formula."""
_ENTITIES = {"&": "&amp;", "<": "&lt;", "|": "&#124;", "\\": "&#92;"}
"""Characters that a backslash does not escape in some Markdown readers, mainly in table rows."""
_BEGINNING = re.compile(r"^([0-9]*)(?=[>[]|([-+]+|[.)])( |$))")
"""Places where a backslash prevents a line from starting a list, a quotation, a rule or a link definition."""


def _paragraph(text: str) -> str:
    """Return a text escaped as a paragraph of Markdown."""
    return _BEGINNING.sub(r"\1\\", _inline(text))


def _inline(text: str) -> str:
    """Return a text escaped as a heading or a cell of Markdown. Reference: CommonMark 0.31, sections 2.4 and 2.5."""
    return _SIGNS.sub(lambda sign: _ENTITIES.get(sign[0], f"\\{sign[0]}"), one_line(text).strip())


def markdown_table(table: Table, write: Callable[[str], str] = _inline) -> str:
    """Return a table as Markdown; ``write`` escapes the text of a cell."""
    columns, rows = table.shown()
    rule = ["---" if i == 0 or column.words else "---:" for i, column in enumerate(columns)]
    lines = [list(map(write, [column.heading for column in columns])), rule, *(list(map(write, row)) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


NOTEBOOK = '<div class="moejax"><style>.moejax td:first-child, .moejax .words {text-align: left}</style>'
"""Style that left-aligns words, because notebooks right-align all table cells."""


def html(result: Result) -> str:
    """Return the result as HTML for a notebook, with escaped texts."""
    parts = [NOTEBOOK] + ([f"<h3>{_escaped(result.title)}</h3>"] if result.title else [])
    parts += [f"<p><strong>{_escaped(sentence)}</strong></p>" for sentence in result.lead]
    parts += [f"<p><strong>! {_escaped(warning)}</strong></p>" for warning in result.warnings]
    for table in result.tables:
        parts += [f"<h4>{_escaped(table.title)}</h4>"] if table.title else []
        parts += [html_table(table)] if table.columns else []
        parts += [f"<p>{_escaped(note)}</p>" for note in table.notes]
    return "\n".join([*parts, *(f"<p>{_escaped(note)}</p>" for note in result.notes), "</div>"])


def frame(result: Result, table: str | None = None) -> DataFrame:
    """Return a table of the result as a DataFrame whose columns are its JSON keys; see ``Shown.to_frame``."""
    import pandas as pd

    rows = pd.DataFrame(_records(_table(result, table)))
    for name in rows:
        # A column of numbers with unknown numbers has the type object.
        if rows[name].dtype == object and not any(isinstance(value, str | bool | list | dict) for value in rows[name]):
            rows[name] = pd.to_numeric(rows[name])
    return rows


_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", MISSING: "--"} | {
    sign: f"\\{sign}" for sign in "&%$#_{}"
}
_LATEX |= {"<": "$<$", ">": "$>$", "|": "$|$", "≤": r"$\leq$", "≥": r"$\geq$", "≈": r"$\approx$", "²": "$^2$"}
_GREEK = re.compile(
    "alpha|beta|gamma|delta|epsilon|zeta|eta|iota|kappa|lambda|mu|nu|xi|rho|sigma|tau|phi|chi|psi|omega"
)
SYMBOLS = {"params_active": "N_act", "params_total": "N", "tokens": "D", "flops": "C", "loss": "L"}
"""Symbols of quantities, which LaTeX shows instead of the names in cells and headings."""
_NUMBER = re.compile(r"[-+]?\d+(\.\d+)?(e[-+]?\d+)?")
_INTERVAL = re.compile(rf"\[({_NUMBER.pattern}), ({_NUMBER.pattern})\]")


def latex(result: Result) -> str:
    """Return the result's LaTeX tables, or else its main table, as booktabs tabulars."""
    tables = result.for_latex or [dataclasses.replace(_table(result, None), notes=())]
    about = f"% {one_line(result.title)}; needs \\usepackage{{booktabs}}".replace("% ;", "%")
    return "\n".join([about, "\n\n".join(map(_tabular, tables))])


def _tabular(table: Table) -> str:
    columns, rows = table.shown()
    sides = "".join("l" if i == 0 or column.words else "r" for i, column in enumerate(columns))
    heads = " & ".join(_latex_cell(column.heading, symbol=False) for column in columns)
    lines = [" & ".join(_latex_cell(cell, c.symbol) for cell, c in zip(row, columns, strict=True)) for row in rows]
    rules = (rf"\begin{{tabular}}{{{sides}}}", r"\toprule", rf"{heads} \\", r"\midrule")
    notes = [rf"\par\smallskip{{\footnotesize {latex_text(note)}\par}}" for note in table.notes]
    return "\n".join([*rules, *(rf"{line} \\" for line in lines), r"\bottomrule", r"\end{tabular}", *notes])


def _latex_cell(text: str, symbol: bool) -> str:
    if (symbol and text) or text in SYMBOLS:
        text = SYMBOLS.get(text, text)
        letter, _, below = text.removesuffix("*").partition("_")
        letter, below = map(_latex_name, (letter, below))
        star = "^*" if text.endswith("*") else ""
        return f"${letter}_{{{below}}}{star}$" if below else f"${letter}{star}$"
    given = [one.partition(" = ") for one in text.split(", ")]
    if all(is_ for _, is_, _ in given):
        pairs = [f"{_latex_cell(name, False)} $=$ {_latex_cell(value, False)}" for name, _, value in given]
        return ", ".join(pair.replace("$ $", " ") for pair in pairs)
    if interval := _INTERVAL.fullmatch(text):
        return rf"$[{_latex_number(interval[1])},\ {_latex_number(interval[4])}]$"
    return f"${_latex_number(text)}$" if _NUMBER.fullmatch(text) else latex_text(text)


def _latex_name(name: str) -> str:
    if _GREEK.fullmatch(name):
        return rf"\{name}"
    return name if len(name) < 2 else rf"\mathrm{{{latex_text(name)}}}"


def _latex_number(text: str) -> str:
    return re.sub(r"e([-+]?)0*(\d+)", lambda e: rf" \times 10^{{{e[1].strip('+')}{e[2]}}}", text)


def latex_text(text: str) -> str:
    """Return a text on one line with LaTeX's special characters escaped."""
    return "".join(_LATEX.get(sign, sign) for sign in one_line(text))


def _table(result: Result, table: str | None) -> Table:
    asked = result.main if table is None else table
    tables = [one for one in result.tables if one.columns]
    found = [one for one in tables if one.title == asked] if isinstance(asked, str) else tables[asked:][:1]
    if not found:
        raise UserError(
            f"The result has no table {table!r}; give one of its tables: "
            f"{some([one.title for one in tables]) or 'none'}."
        )
    return found[0]


def html_table(table: Table) -> str:
    """Return a table as an HTML element with escaped texts."""
    columns, rows = table.shown()
    classes = ["" if i == 0 else ' class="words"' if column.words else ' class="n"' for i, column in enumerate(columns)]
    heads = "".join(f"<th{c}>{_escaped(column.heading)}</th>" for c, column in zip(classes, columns, strict=True))
    lines = "".join(
        "<tr>" + "".join(f"<td{c}>{_html_cell(cell)}</td>" for c, cell in zip(classes, row, strict=True)) + "</tr>\n"
        for row in rows
    )
    return f"<table>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{lines}</tbody>\n</table>"


def _html_cell(text: str) -> str:
    return f'<span class="badge open">{text}</span>' if text in OPEN else _escaped(text)


def _escaped(text: str) -> str:
    return html_escapes.escape(one_line(text), quote=True)


def json(result: Result) -> str:
    """Return the result's data as JSON. Without data, return its texts and tables, with a dictionary per row."""
    return json_text(result.data if result.data is not None else finite(_as_data(result)))


def _as_data(result: Result) -> dict[str, Any]:
    return {
        "title": result.title,
        **({"lead": list(result.lead)} if result.lead else {}),
        "warnings": list(result.warnings),
        "tables": [{"title": one.title, "rows": _records(one), "notes": list(one.notes)} for one in result.tables],
        "notes": list(result.notes),
    }


def _records(table: Table) -> list[dict[str, Any]]:
    columns: list[tuple[str, ...]] = []
    for column in table.columns:
        columns.append(column.keys or (_key(column, [name for keys in columns for name in keys]),))
    return [
        {name: one for keys, value in zip(columns, row, strict=True) for name, one in _by_key(keys, value)}
        for row in table.rows
    ]


def _by_key(keys: tuple[str, ...], value: object) -> Iterator[tuple[str, Any]]:
    """Yield the keys of a column with their values: a value has one key, an interval two."""
    plain = value.value if isinstance(value, Written) else value
    if len(keys) == 1:
        yield keys[0], plain
    else:
        assert plain is None or isinstance(plain, Sequence)
        yield from zip(keys, plain or [None] * len(keys), strict=True)


def _key(column: Column, taken: Sequence[str]) -> str:
    """Return a column's JSON key with its unit, such as ``loss_nats_per_token``, without punctuation. Duplicate keys
    get a number."""
    words = f"{column.name} {column.unit}".replace("/", " per ").replace("%", " percent ").replace("'", "")
    key = "_".join(re.findall(r"\w+", words)) or "name"
    every = itertools.chain([key], (f"{key}_{number}" for number in itertools.count(2)))
    return next(one for one in every if one not in taken)
