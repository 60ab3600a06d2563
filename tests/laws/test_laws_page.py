"""The examples on the page of laws print the numbers in their comments."""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "laws.md").read_text()


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
def test_an_example_prints_the_numbers_in_its_comments(code, capsys):
    exec(code, {})
    printed = [float(number) for number in re.findall(r"\d+\.\d+(?:e[+-]?\d+)?", capsys.readouterr().out)]
    for promised in re.findall(r"(?<![\w.])(\d+\.\d+(?:e\d+)?)(?=[,\n ]|$)", "\n".join(re.findall("#(.*)", code))):
        digits = len(promised.split("e")[0].replace(".", "").lstrip("0"))
        assert any(f"{number:.{digits - 1}e}" == f"{float(promised):.{digits - 1}e}" for number in printed), promised
