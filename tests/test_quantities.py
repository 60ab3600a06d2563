"""Numbers as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moejax import quantities
from moejax.errors import UserError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("30B", 30e9),
        ("1.5T", 1.5e12),
        ("14.8 t", 14.8e12),
        ("1e22", 1e22),
        ("2.5e3M", 2.5e9),
        ("4096", 4096),
        ("4,096", 4096),
        ("1_000", 1000),
        (" 7b ", 7e9),
        (".5", 0.5),
        ("-1", -1),
        ("−1", -1),
        ("2.00×10¹⁹", 2e19),
        ("1.31 × 10^20", 1.31e20),
        ("1.5*10^9", 1.5e9),
        ("2x10**-3", 2e-3),
        ("10⁻³", 1e-3),
        ("-10^2", -100),
        ("1 500 000", 1.5e6),
        ("1\u202f500\u00a0000.5", 1_500_000.5),
        ("110,678,115", 110_678_115),
        ("**3.125**", 3.125),
        ("__ *7B* __", 7e9),
    ],
)
def test_people_write_numbers_with_letters_exponents_and_separators(text, value):
    assert quantities.parse(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "B",
        "many",
        "1.5X",
        "1e",
        "1 2",
        "1,5",
        "1 500,000",
        "12 34 567",
        "10^",
        "2×",
        "**",
        "nan",
        "inf",
        "1e999",
        "-1e61",
        "1e-61",
        "1" * 100_000,
    ],
    ids=len,
)
def test_what_is_not_a_number_is_said_in_a_sentence(text):
    with pytest.raises(ValueError, match=r"number.*\."):
        quantities.parse(text)


def test_counts_are_whole():
    assert quantities.parse_whole_number("1.5K") == 1500
    with pytest.raises(ValueError, match="whole"):
        quantities.parse_whole_number("1.5")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (30_532_122_624, "30.53B"),
        (14.8e12, "14.8T"),
        (671e9, "671B"),
        (999_999, "1M"),
        (4096, "4096"),
        (4100.7, "4.101K"),
        (262_144, "262.1K"),
        (8, "8"),
        (0, "0"),
        (0.35, "0.35"),
        (2.291e24, "2.291e+24"),
        (-1500, "-1500"),
        (1e-5, "1.000e-05"),
        (float("inf"), "inf"),
    ],
)
def test_numbers_are_written_as_people_read_them(value, text):
    assert quantities.format(value) == text


@pytest.mark.parametrize("cell", [" " * 50_000 + "x", "1" + " " * 50_000 + "x", "9" * 50_000])
def test_a_long_text_is_refused_in_a_sentence(cell):
    with pytest.raises(UserError, match="characters, and numbers have at most 100"):
        quantities.parse(cell)


@pytest.mark.parametrize(("value", "text"), [(1e22, "1e22"), (1.5e9, "1.5e9"), (0.95, "0.95"), (12_345_678, "1.23e7")])
def test_a_short_number_has_no_plus_in_its_exponent(value, text):
    assert quantities.short(value, 3) == text


def test_bytes_have_their_own_letters():
    assert quantities.format_bytes(10.74e12) == "10.74 TB"
    assert quantities.format_bytes(70_272) == "70.27 kB"
    assert quantities.format_bytes(999_999) == "1 MB"
    assert quantities.format_bytes(0) == "0 B"


@given(st.floats(min_value=1e-6, max_value=1e30))
def test_what_is_written_is_read_back(value):
    assert quantities.parse(quantities.format(value, digits=6)) == pytest.approx(value, rel=1e-5)
