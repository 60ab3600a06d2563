"""The page on the laws runs, and links the page of every law."""

import re
from pathlib import Path

import pytest

from moejax.laws import LAWS

PAGE = (Path(__file__).parents[2] / "docs" / "laws.md").read_text()


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
def test_an_example_prints_the_numbers_in_its_comments(code, capsys):
    exec(code, {})
    printed = [float(number) for number in re.findall(r"\d+\.\d+(?:e[+-]?\d+)?", capsys.readouterr().out)]
    for promised in re.findall(r"(?<![\w.])(\d+\.\d+(?:e\d+)?)(?=[,\n ]|$)", "\n".join(re.findall("#(.*)", code))):
        digits = len(promised.split("e")[0].replace(".", "").lstrip("0"))
        assert any(f"{number:.{digits - 1}e}" == f"{float(promised):.{digits - 1}e}" for number in printed), promised


@pytest.mark.docs
@pytest.mark.parametrize("name", LAWS)
def test_the_list_of_laws_links_the_page_of_every_law(name):
    assert f"[`{name}`](laws/{name}.md)" in PAGE.partition("## The laws, one by one")[2]
