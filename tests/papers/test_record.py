"""How a computed number is held to a printed one."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moejax.papers.record import (
    ERROR,
    MATCH,
    NOT_CHECKABLE,
    ROUNDINGS,
    UNDER_READING,
    Reading,
    Record,
    readings,
    same,
    trend,
)


def record(published, *values, **rest):
    return Record(paper="p", where="Table 1", quantity="q", published=published, readings=readings(*values), **rest)


@pytest.mark.parametrize(
    ("published", "computed", "kind"),
    [
        ("6.78", 6.7779, MATCH),
        ("6.78", 6.7851, ERROR),
        ("2.40", 2.4019, MATCH),
        ("2404", 2401.9, ERROR),
        ("5e22", 5.4e22, MATCH),
        ("1e22", 9.4e21, ERROR),
        ("1e22", 9.6e21, MATCH),
        ("1.05e11", 1.0195e11, ERROR),
        ("65", 67.82, ERROR),
        ("about 20", 18.0, MATCH),
        ("about 20", 17.98, ERROR),
        ("about -0.16", -0.175, MATCH),
        ("-7.61e-2", -0.07612, MATCH),
        (">7", 7.2, MATCH),
        (">7", 6.98, ERROR),
        ("<=4", 4.0, MATCH),
        ("rises", "rises", MATCH),
        ("rises", "falls", ERROR),
        ("0.0059", None, NOT_CHECKABLE),
        (None, 437400, NOT_CHECKABLE),
    ],
)
def test_a_verdict_follows_from_the_printed_digits(published, computed, kind):
    assert record(published, computed).kind == kind


@given(st.integers(-(10**6), 10**6), st.integers(0, 4))
def test_what_is_printed_by_rounding_agrees_and_two_units_off_does_not(count, decimals):
    value, unit = count / 7, 10.0**-decimals
    published = f"{value:.{decimals}f}"
    assert Reading(value).agrees(published)
    assert not Reading(value + 2 * unit).agrees(published)
    assert not Reading(value - 2 * unit).agrees(published)


@given(st.floats(-1e6, 1e6), st.sampled_from(sorted(ROUNDINGS)))
def test_every_rounding_accepts_one_number_of_a_row(value, rounding):
    accepted = [whole for whole in range(int(value) - 3, int(value) + 4) if ROUNDINGS[rounding](value, whole, 1.0)]
    assert 1 <= len(accepted) <= 2, "two where the value lies on the border"
    assert all(abs(whole - value) < 1.001 for whole in accepted)


def test_a_reading_counts_only_where_the_documents_own_words_fail():
    up = Reading(46.2, "rounded up", "up")
    assert record("47", 46.2, up).verdict == f"{UNDER_READING} rounded up"
    assert record("46", 46.2, up).verdict == MATCH
    assert record("48", 46.2, up).verdict == ERROR


@pytest.mark.parametrize(
    ("published", "computed", "tolerance"),
    [
        ("6.78", 6.7779, "±0.005"),
        ("2404", 2401.9, "±0.5"),
        ("1.05e11", 1.0195e11, "±5e8"),
        ("1e22", 6.9e21, "±5e20"),
        ("about 20", 110.0, "±10 %"),
        (">7", 7.2, ""),
        ("rises", "falls", ""),
        ("0.0059", None, ""),
    ],
)
def test_every_row_shows_the_tolerance_that_its_digits_give(published, computed, tolerance):
    assert record(published, computed).tolerance == tolerance


@given(st.floats(1e-6, 1e6), st.integers(0, 3), st.floats(-3, 3))
def test_the_tolerance_that_is_shown_is_the_one_that_decides(value, decimals, off):
    published = f"{value:.{decimals}e}"
    one = record(published, float(published) + off * 10.0 ** (int(published.partition("e")[2]) - decimals))
    within = abs(one.readings[0].computed - float(published)) <= float(one.tolerance[1:]) * (1 + 1e-6)
    if abs(abs(one.readings[0].computed - float(published)) / float(one.tolerance[1:]) - 1) > 1e-3:
        assert (one.kind == MATCH) == within


def test_an_explanation_is_one_sentence_with_both_numbers():
    wrong = record("2.013", 1.8733, unit="nats", note="the terms are too large")
    assert wrong.explanation == "Computed 1.8733 nats where 2.013 is printed; the terms are too large."
    assert record("rises", "falls").explanation == "Computed falls where rises is stated."
    assert dataclasses.replace(wrong, implied=True).explanation.startswith(
        "Computed 1.8733 nats where 2.013 is implied"
    )


def test_a_small_number_is_shown_as_it_is_printed():
    assert record("1.52e-3", 0.0018422).shown == "1.8422e-3"
    assert record("446", 418).shown == "418"


def test_trends_have_no_exceptions():
    assert [trend(values) for values in ([1, 2, 3], [3, 2, 1], [1, 3, 2], [1, 1, 2], [2, 2, 2])] == [
        "rises",
        "falls",
        "turns",
        "turns",
        "stays",
    ]
    assert same(1.0, 1.0 + 1e-12) == "holds"
    assert same(1.0, 1.001) == "fails"
