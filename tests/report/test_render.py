"""The renderer: one result, several ways to show it; in a terminal of any width every cell can be read."""

import json
import re
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from moejax.report import render
from moejax.result import Column, Result, Table, Written, column, percent
from moejax.wording import LONGEST_SENTENCE, LONGEST_WORD, one_line

COLUMNS = [
    Column("model"),
    Column("total"),
    Column("tokens", words=True),
    Column("note", words=True),
    Column("loss", ".4f", unit="nats/token"),
    Column("a heading that is long", ".6f"),
    Column("cost", ",.2f"),
    Column("nobody knows", ".1f"),
]
ROWS = [
    ["moe-64-8e1-1s", "263.6K", "262K 524K", "held out by sequence", 1.23451, 0.000123, 12345.67, None],
    ["dense-32", 26816, "262K", "", 2.3456, 0.000456, float("nan"), None],
]
RESULT = Result(
    title="Two models", warnings=["One is dense."], tables=[Table("title", COLUMNS, ROWS, ["Below."])], notes=["- end"]
)


def test_every_way_to_show_a_result_says_the_same(capsys):
    render.show(RESULT)
    ways = (capsys.readouterr().out, render.text(RESULT), render.markdown(RESULT))
    sentences = ("Two models", "One is dense.", "title", "Below.", "end")
    for shown, words in (*((way, sentences) for way in ways), (render.html_table(RESULT.tables[0]), ())):
        for word in (*words, "1.2345", "0.000456", "12,345.67", "–"):
            assert word in shown
        assert "nobody knows" not in shown, "a column in which nothing is known is left out"
    data = json.loads(render.json(RESULT))
    assert data["warnings"] == ["One is dense."]
    assert data["tables"][0]["rows"][1]["loss_nats_per_token"] == 2.3456
    assert data["tables"][0]["rows"][1]["cost"] is None


@dataclass(frozen=True)
class Law:
    name: str = column("law")
    mae: float = column("MAE", ".4f", unit="nats/token")
    parent: "Law | None" = None


def test_a_table_is_declared_by_the_fields_of_its_rows_or_by_columns_that_read_them():
    laws = [Law("a", 0.01234), Law("b", 0.2, Law("a", 0.5))]
    declared = Table.of("Errors", Law, laws, ["note"], key="errors")
    assert declared.cells() == [["a", "0.0123"], ["b", "0.2000"]]
    assert [one.heading for one in declared.columns] == ["law", "MAE, nats/token"]
    assert (declared.notes, declared.key) == (["note"], "errors")
    columns = [
        Column("law", value="name"),
        Column("parent", ".1f", value="parent.mae"),
        Column("in all", ".1f", value=lambda law: law.mae + 1),
    ]
    assert Table.of("", columns, laws).cells() == [["a", "–", "1.0"], ["b", "0.5", "1.2"]]


def test_a_value_with_its_own_words_is_the_value_in_json():
    result = Result(tables=[Table("", [Column("answer")], [[Written(0.5, "one half")]])])
    assert "one half" in render.text(result)
    assert json.loads(render.json(result))["tables"][0]["rows"] == [{"answer": 0.5}]


def test_names_of_frame_columns_have_no_punctuation():
    headings = ["FLOPs, cumulative", "tokens/s", "behind (90 %)", "S*", "the paper's", "R²", "S"]
    columns = [*map(Column, headings), Column("loss", unit="nats/token")]
    assert list(render.frame(Result(tables=[Table("", columns, [range(8)])]))) == [
        *("FLOPs_cumulative", "tokens_per_s", "behind_90_percent", "S", "the_papers", "R²", "S_2"),
        "loss_nats_per_token",
    ]


def test_the_data_of_a_result_are_its_json(capsys):
    render.show(Result(tables=[Table("title", [Column("a")], [["x"]])], data={"a": 1}), as_json=True)
    assert json.loads(capsys.readouterr().out) == {"a": 1}


def test_html_escapes_names_and_marks_what_is_not_determined():
    table = Table("<b>", [Column("a"), Column("<i>")], [["<script>", "not determined"]])
    text = render.html_table(table)
    assert not re.search("<(b|i|script)>", text)
    assert '<span class="badge open">not determined</span>' in text


def test_a_share_is_a_percentage():
    assert Column("share", percent()).written(0.1234) == "12.3%"


@pytest.mark.parametrize("width", [30, 40, 60, 80, 200])
def test_no_number_and_no_word_is_cut_at_any_width(width, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    render.show(Result(tables=[Table("title", COLUMNS[:-1], [row[:-1] for row in ROWS])]))
    said = capsys.readouterr().out
    assert max(len(line.rstrip()) for line in said.splitlines()) <= width
    found = re.split(r"\s+", said)
    for cell in [cell for row in RESULT.tables[0].shown()[1] for cell in row] + [c.heading for c in COLUMNS[:-1]]:
        for word in cell.split():
            assert word in found


def test_a_wide_terminal_has_one_table_and_a_narrow_one_repeats_the_first_column(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    render.show(RESULT)
    assert capsys.readouterr().out.count("dense-32") == 1
    monkeypatch.setenv("COLUMNS", "40")
    render.show(RESULT)
    said = capsys.readouterr().out
    assert said.count("moe-64-8e1-1s") > 1


def test_where_nothing_is_said_of_a_row_it_is_left_out_below(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    columns = [Column("model"), Column("first number of all"), Column("second number of all")]
    rows = [["moe-64-8e1-1s", "1.5", "12,345.67"], ["dense-32", "2", ""]]
    render.show(Result(tables=[Table("title", columns, rows)]))
    assert capsys.readouterr().out.count("dense-32") == 1


@pytest.mark.parametrize("width", ["0", "1", "7"])
def test_a_terminal_of_no_width_is_shown_every_cell(width, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", width)
    render.show(RESULT)
    found = "".join(capsys.readouterr().out.split())
    for word in [word for row in RESULT.tables[0].shown()[1] for cell in row[1:] for word in cell.split()]:
        assert word in found


HOSTILE = [
    "T\n# h1\n| a | b |",
    "![x](http://evil/x.png) [x](javascript:alert(1)) <b> &lt;b&gt; [a]: /b",
    *("1. x", "12) x", "+ x", "- x", "- - -", "***", "---", "=== ", "> q", ">q", "    code", "```", "# h", "a #"),
    *("~~~", "a\\|b", "a|b", "a\\", "a\\\\|", "`a", "`` ` ``", "_a_ __b__ a_b *c* **d** ~e~ $f$"),
    *("[x] y", "[a]: /b", "[^1]: c", "[a][a] [b]"),
    "\x1b[31mred\u202e\x07\u2028",
    "x" * 300_000,
    "x " * 300_000,
]
TEXTS = st.sampled_from(HOSTILE) | st.text() | st.text("\\|`*_[]()<>&#!~-+=.1 a\n")
"""Names as somebody careless or hostile gives them."""


def _blocks(tokens):
    """What a page of Markdown is made of: kinds, and their texts as they are read."""
    for token in tokens:
        if token.type == "inline":
            assert {part.type for part in token.children or ()} <= {"text"}, token.content
            yield "".join(part.content for part in token.children or ())
        elif token.nesting == 1 and token.type in ("heading_open", "blockquote_open", "list_item_open", "tr_open"):
            yield token.tag
        elif not token.nesting:
            yield token.type


@given(name=TEXTS, other=TEXTS)
def test_a_page_of_markdown_has_what_the_result_has_whatever_the_names(name, other):
    table = Table(
        f"t {name}", [Column(f"c {name}"), Column("d")], [[name, other], ["x", f"y {name}"]], [f"n {name}", name]
    )
    found = Result(f"T {name}", [name, other], [table], [f"- {name}", "end"])
    read = list(_blocks(MarkdownIt("commonmark").enable("table").parse(render.markdown(found))))
    said, also = one_line(name).strip(), one_line(other).strip()
    first = ["h1", one_line(f"T {name}"), "blockquote", said, "blockquote", also, "h2", one_line(f"t {name}")]
    cells = ["tr", one_line(f"c {name}"), "d", "tr", said, also, "tr", "x", one_line(f"y {name}")]
    item = ["li", one_line(name.removeprefix("- ")).strip()] if name.startswith("- ") else [said]
    last = [one_line(f"n {name}"), *item, "li", said, "end"]
    assert [part.strip() for part in read if part] == [part.strip() for part in (*first, *cells, *last) if part.strip()]


@given(TEXTS)
def test_what_is_shown_can_be_printed_and_is_short(name):
    found = Result(name, [name], [Table(name, [Column(name), Column(name)], [[name, name]], [name])], [name])
    for shown in (render.text(found), render.markdown(found), render.html_table(found.tables[0])):
        assert all(line.isprintable() for line in shown.split("\n"))
        # An escape has several characters.
        assert len(shown) < 80 * LONGEST_SENTENCE
    assert json.loads(render.json(found))["title"] == name


def test_a_long_name_keeps_both_ends():
    shown = one_line("a" * 300_000 + "b")
    assert len(shown) == LONGEST_WORD
    assert (shown[0], shown[-1]) == ("a", "b")


def test_columns_of_one_name_are_all_in_json():
    columns = [Column("v"), Column("v"), Column("loss", unit="nats/token"), Column("loss nats per token"), Column("")]
    rows = json.loads(render.json(Result(tables=[Table("", columns, [[1, 2, 3, 4, 5]])])))["tables"][0]["rows"]
    assert rows == [{"v": 1, "v_2": 2, "loss_nats_per_token": 3, "loss_nats_per_token_2": 4, "name": 5}]


def test_a_table_in_latex_has_numbers_and_symbols_as_mathematics():
    columns = (Column("law", words=True), Column("in", symbol=True), Column("flops", ".3g"), Column("90 % interval"))
    rows = [["50 %", "alpha_N", -1.5e-7, "[-2e-07, 1]"], ["flops = 1e+21, top_k = 8", "N_act*", 2, "R² ≥ 0.9"]]
    rows += [["params_active", "a_b_c", None, ""]]
    result = Result("A_B", tables=[Table("Laws", columns, rows)])
    assert render.latex(result).splitlines() == [
        r"% A_B; needs \usepackage{booktabs}",
        r"\begin{tabular}{lrrr}",
        r"\toprule",
        r"law & in & $C$ & 90 \% interval \\",
        r"\midrule",
        r"50 \% & $\alpha_{N}$ & $-1.5 \times 10^{-7}$ & $[-2 \times 10^{-7},\ 1]$ \\",
        r"$C = 1 \times 10^{21}$, top\_k $= 8$ & $N_{\mathrm{act}}^*$ & $2$ & R$^2$ $\geq$ 0.9 \\",
        r"$N_{\mathrm{act}}$ & $a_{\mathrm{b\_c}}$ & -- &  \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_latex_prints_the_table_and_warnings_apart(capsys):
    render.show(Result(warnings=["careful"], tables=[Table("T", [Column("x")], [[1]])]), as_latex=True)
    printed = capsys.readouterr()
    assert printed.out.startswith("% needs \\usepackage{booktabs}\n\\begin{tabular}")
    assert printed.err == "! careful\n"
