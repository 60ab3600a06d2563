"""The last lines of a study in a terminal."""

import dataclasses
import math
import re

import pytest
from known_study import conclude_without_fitting, write_study

from moejax.quantities import SUFFIXES
from moejax.report import render
from moejax.report.conclusions import brief
from moejax.report.findings import read
from moejax.report.page import as_data
from moejax.result import size

NUMBER = re.compile(r"(?<![\w.\-])(\d[\d,]*\.?\d*(?:e[+-]?\d+)?)([KMBT]?)(?![\w\-])")
WORDS = {"90": "of resamples in an interval, or of pairs that must fall", "6": "FLOPs per parameter and token"}
"""Numbers of the answer's own sentences."""


LINES, WIDTH = 55, 100
"""About as much as a terminal shows."""


def answer(concluded) -> str:
    return render.text(brief(read(concluded)), WIDTH, wrap=True)


def _numbers(value) -> list[float]:
    if isinstance(value, dict):
        return [number for item in value.values() for number in _numbers(item)]
    if isinstance(value, list):
        return [number for item in value for number in _numbers(item)]
    if isinstance(value, str):
        return [float(text[1].replace(",", "")) for text in NUMBER.finditer(value)]
    return [float(value)] if isinstance(value, int | float) and not isinstance(value, bool) else []


def _rounding(text: str, letter: str) -> tuple[float, float]:
    """The number that was written, and half a unit of its last digit."""
    mantissa, _, power = text.replace(",", "").partition("e")
    unit = SUFFIXES[letter] * 10.0 ** int(power or 0)
    decimals = len(mantissa.partition(".")[2])
    # Zeros at the end of a fraction are not written, so a short number may stand for one with four digits.
    return float(mantissa) * unit, 0.5000001 * unit * 10.0**-decimals


def test_every_number_of_the_answer_is_in_the_data(concluded):
    known = _numbers(as_data(concluded))
    shown = [match for match in NUMBER.finditer(answer(concluded)) if match[1] not in WORDS]
    assert len(shown) > 50
    for match in shown:
        value, tolerance = _rounding(match[1], match[2])
        assert any(abs(number - value) <= tolerance for number in known), match[0]


def test_the_answer_fits_a_terminal(concluded, undetermined):
    for conclusions in (concluded, undetermined):
        lines = answer(conclusions).splitlines()
        assert len(lines) <= LINES
        assert max(map(len, lines)) <= WIDTH


def test_an_interval_that_spans_everything_is_called_not_determined(concluded, undetermined):
    assert "not determined" not in answer(concluded)
    assert answer(undetermined).count("not determined") >= 6


def test_every_optimum_stands_beside_its_confirmations(concluded):
    text = answer(concluded)
    for decision in concluded.analysed.decisions:
        optimum = size(decision.checked.value["params_active"])
        slope = f"slope {decision.checked.residual:.1e}"
        # Closed form and argmin agree to the digits that are shown.
        assert any(line.count(optimum) == 2 and slope in line for line in text.splitlines())


def test_an_optimum_that_fails_its_check_is_said_to_fail(concluded):
    first, *others = concluded.analysed.decisions
    wrong = dataclasses.replace(first, checked=dataclasses.replace(first.checked, residual=0.1))
    analysed = dataclasses.replace(concluded.analysed, decisions=[wrong, *others])
    assert answer(dataclasses.replace(concluded, analysed=analysed)).count("NOT CONFIRMED") == 1


def test_losses_above_the_unigram_entropy_are_a_signal_that_does_not_hold(tmp_path):
    folder = write_study(tmp_path / "study", noise=0.8)
    assert "DOES NOT HOLD" in answer(conclude_without_fitting(folder, spread=0.02))


@pytest.mark.parametrize("value", [1, 999, 1000, 26_816, 99_994, 99_996, 274_200, 1e9, 3.2e-7])
def test_sizes_keep_four_digits(value):
    text = size(value)
    letter = text[-1] if text[-1] in "KMBT" else ""
    assert math.isclose(float(text.removesuffix(letter)) * SUFFIXES[letter], value, rel_tol=6e-4)
