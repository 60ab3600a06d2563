"""The five documents, recomputed."""

import dataclasses
import json
from collections import Counter
from math import log2, log10
from pathlib import Path

import pytest

from moejax.__main__ import main
from moejax.laws import ALIASES
from moejax.reproduce.errata import errata
from moejax.reproduce.papers import PAPERS, tally
from moejax.reproduce.record import MATCH, VERDICTS
from moejax.reproduce.verdicts import as_text, changes, recorded
from moejax.reproduce.zhao_experiments import table_6

ERRATA = Path(__file__).parents[2] / "docs" / "errata.md"


def test_hundreds_of_quantities_of_all_five_documents_are_recomputed(records):
    assert Counter(record.paper for record in records) == {
        "zhao": 289,
        "abnar": 85,
        "chapter_002": 74,
        "tian": 183,
        "li": 94,
    }
    assert set(PAPERS) <= set(ALIASES)
    assert len({record.key for record in records}) == len(records)


def test_every_verdict_is_the_one_on_record(records):
    """marin #8096."""
    assert changes(records, recorded()) == []


def test_every_kind_of_verdict_occurs_and_is_counted(records):
    counts = tally(records)
    assert all(sum(row[kind] for row in counts.values()) > 0 for kind in VERDICTS)
    assert sum(sum(row.values()) for row in counts.values()) == len(records)


def test_another_printed_number_is_another_verdict(records):
    for record in records:
        if record.kind == MATCH and isinstance(record.computed, float) and record.published[0] not in "<>":
            wrong = dataclasses.replace(record, published=str(float(record.published) * 3 + 7))
            assert wrong.verdict != MATCH, record.key
    errors = [record for record in records if record.kind == "document error" and isinstance(record.computed, str)]
    assert errors
    for record in errors:
        assert dataclasses.replace(record, published=record.computed).verdict == MATCH or record.readings[0].name


def test_every_printed_number_is_a_number_a_word_or_a_bound(records):
    for record in records:
        assert record.published is None or record.published, record.key
        assert record.explanation.endswith(".")
        assert record.explanation[0].isupper()


def test_tables_2_3_4_and_6_of_zhao_are_whole(records):
    places = Counter(record.where for record in records if record.paper == "zhao")
    assert places["Table 2"] == 12
    assert places["Table 1"] == 10
    assert places["Table 3"] == 9 * (2 + 4)
    assert places["Table 4"] == 9 * (2 + 6)
    assert len(table_6()) == 446
    printed = [r for r in records if r.paper == "zhao" and r.where == "Table 3" and "within" in r.quantity]
    assert len(printed) == 36
    assert all(record.found for record in printed)


def test_the_optimal_share_of_a_671b_model_by_hand(by_key):
    e, f, m, n, k, h, c, alpha = 0.1577, 7.2446, 5.1395, -3.2363, 0.0013, 0.0450, 31.0958, 0.2383
    const = e * 7 + f / 7 + m * 0.31**2 + n * 0.31
    share = (alpha * (k * const + c) / (h * 671e9**alpha * const)) ** (1 / (alpha + 1))
    found = by_key["zhao | Table 4 | Deepseek-V3.1: theoretical N_a/N"]
    assert found.computed == pytest.approx(100 * share, rel=1e-12)
    assert found.published == "22.02"


def test_the_loss_of_the_dense_70b_model_by_hand(by_key):
    loss = 1.69 + 406.4 * 70e9**-0.34 + 410.7 * (3.4e24 / (6 * 70e9)) ** -0.28
    found = by_key["chapter_002 | Manual walkthrough | dense 70B: loss"]
    assert found.computed == pytest.approx(loss, rel=1e-12)
    assert found.verdict == "document error"


def test_the_leverage_of_the_headline_by_hand(by_key):
    saturated = 1 / (1 / (0.031 + 1 / (1 / 1.63e-2 - 1 / 5.28e16)) + 1 / 5.28e16)
    exponent = 1.23 - 7.61e-2 * log10(1e22) + 1.67e-2 * log2(12) ** 2 - 1.17e-1 * log2(12)
    found = by_key["tian | Abstract, Sections 1 and 5 | EL at A = 3.1 %, G = 12, C = 1e22"]
    assert found.computed == pytest.approx(saturated**exponent, rel=1e-12)


def test_the_page_for_the_authors_is_what_the_command_writes(records):
    assert ERRATA.read_text() == errata(records)


def test_the_page_names_every_document_and_every_difference(records):
    page = errata(records)
    assert page.count("\n## ") == len(PAPERS)
    assert page.count("\n    - ") >= sum(record.kind == "document error" for record in records)


@pytest.fixture
def verdicts(records, tmp_path):
    """A file of verdicts, of which one can be changed."""

    def write(**changed):
        known = json.loads(as_text(records)) | changed
        path = tmp_path / "verdicts.json"
        path.write_text(json.dumps(known))
        return str(path)

    return write


def test_the_command_is_content_when_nothing_has_changed(verdicts, capsys):
    assert main(["reproduce", "--paper", "li", "--verdicts", verdicts()]) == 0
    assert "Verdicts" in capsys.readouterr().out


def test_a_changed_verdict_is_named_and_gives_status_1(verdicts, capsys):
    key = "li | Table 8 | sum of the LLaMA-1 recipe"
    assert main(["reproduce", "--paper", "li", "--verdicts", verdicts(**{key: "match"})]) == 1
    told = capsys.readouterr().err
    assert key in told
    assert "was 'match' and is 'document error'" in told


def test_a_quantity_that_comes_or_goes_is_a_change(records):
    known = recorded()
    first = records[0]
    assert "no verdict on record" in changes(records, {k: v for k, v in known.items() if k != first.key})[0]
    assert "no longer computed" in changes(records, known | {"zhao | Table 9 | nothing": "match"})[0]


def test_json_has_every_record_with_its_verdict_and_readings(capsys, tmp_path):
    path = tmp_path / "li.json"
    assert main(["reproduce", "--paper", "li", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert main(["reproduce", "--paper", "li", "--json", str(path), "--errata", str(tmp_path / "li.md")]) == 0
    assert json.loads(path.read_text()) == printed
    assert {
        "paper",
        "where",
        "quantity",
        "inputs",
        "published",
        "computed",
        "reading",
        "verdict",
        "explanation",
    } <= set(printed[0])
    assert "ICLR 2026" in (tmp_path / "li.md").read_text()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--paper", "zaho"], "zhao"),
        (["--paper", "li", "--verdicts", "nowhere.json"], "nowhere.json cannot be read"),
        (["--paper", "li", "--json", "nowhere/x.json"], "cannot be written"),
    ],
)
def test_mistakes_are_answered_in_sentences(words, sentence, capsys):
    assert main(["reproduce", *words]) == 2
    assert sentence in capsys.readouterr().err
