"""Tables of the terminal: whatever its width, every cell can be read."""

import re

import pytest

from moejax.cli.table import show

COLUMNS = ["model", "total", "tokens", "note", "loss", "a heading that is long", "cost"]
ROWS = [
    ["moe-64-8e1-1s", "263.6K", "262K 524K", "held out by sequence", "1.2345", "0.000123", "12,345.67"],
    ["dense-32", "26816", "262K", "", "2.3456", "0.000456", ""],
]


@pytest.mark.parametrize("width", [30, 40, 60, 80, 200])
def test_no_number_and_no_word_is_cut_at_any_width(width, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    show("title", COLUMNS, ROWS, words=["tokens", "note"])
    said = capsys.readouterr().out
    assert max(len(line.rstrip()) for line in said.splitlines()) <= width
    found = re.split(r"\s+", said)
    for cell in [cell for row in ROWS for cell in row] + COLUMNS:
        for word in cell.split():
            assert word in found


def test_a_wide_terminal_has_one_table_and_a_narrow_one_repeats_the_first_column(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    show("title", COLUMNS, ROWS)
    assert capsys.readouterr().out.count("dense-32") == 1
    monkeypatch.setenv("COLUMNS", "40")
    show("title", COLUMNS, ROWS)
    said = capsys.readouterr().out
    assert said.count("moe-64-8e1-1s") > 1
    # Where nothing is said of a row, it is left out below.
    assert "12,345.67" in said.split("dense-32")[-1]


@pytest.mark.parametrize("width", ["0", "1", "7"])
def test_a_terminal_of_no_width_is_shown_every_cell(width, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", width)
    show("title", COLUMNS, ROWS, words=["tokens", "note"])
    found = "".join(capsys.readouterr().out.split())
    for word in [word for row in ROWS for cell in row[1:] for word in cell.split()]:
        assert word in found
