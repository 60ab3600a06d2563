"""What users of other stacks complain about: each thread of the guide's table is named by its test."""

import ast
import re
from pathlib import Path

import pytest

ROW = re.compile(r"\| (?P<threads>[^|]*#\d+[^|]*) \| [^|]* \| `(?P<file>tests/[\w/]+\.py)::(?P<test>\w+)` \|")
pytestmark = pytest.mark.docs
ROWS = [match.groupdict() for match in ROW.finditer(Path("CONTRIBUTING.md").read_text())]


def test_the_table_is_read_whole():
    table = Path("CONTRIBUTING.md").read_text().split("| complaint |")[1].split("\n\n")[0]
    assert len(ROWS) == len(table.splitlines()) - 2 > 20


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["threads"])
def test_the_test_that_rules_a_complaint_out_names_its_threads(row):
    functions = {n.name: n for n in ast.parse(Path(row["file"]).read_text()).body if isinstance(n, ast.FunctionDef)}
    said = " ".join((ast.get_docstring(functions[row["test"]]) or "").split())
    for threads in row["threads"].split("; "):
        assert threads.strip() in said
