"""The five documents, recomputed."""

import dataclasses
import json
from collections import Counter
from math import log2, log10
from pathlib import Path

import pytest

from moejax.__main__ import main
from moejax.laws import ALIASES
from moejax.laws.active_params import ACTIVE_PARAMS
from moejax.laws.mixtures.sparsity import ABNAR_2025, best_sparsity, dense_threshold
from moejax.papers.errata import causes, errata
from moejax.papers.record import ERROR, MATCH, RULE, UNEXPLAINED, VERDICTS, Reading
from moejax.papers.reproduce import PAPERS, as_text, changes, recorded, tally
from moejax.papers.zhao.table_6 import table_6

ERRATA = Path(__file__).parents[2] / "docs" / "errata.md"


def test_hundreds_of_quantities_of_all_five_documents_are_recomputed(records):
    assert Counter(record.paper for record in records) == {
        "zhao": 305,
        "abnar": 113,
        "chapter_002": 85,
        "tian": 211,
        "li": 97,
    }
    assert set(PAPERS) <= set(ALIASES)
    assert len({record.key for record in records}) == len(records)


def test_every_verdict_is_the_one_on_record(records):
    """marin #8096."""
    assert changes(records, recorded()) == []
    counts = tally(records)
    assert all(sum(row[kind] for row in counts.values()) > 0 for kind in VERDICTS)
    assert sum(sum(row.values()) for row in counts.values()) == len(records)


def test_another_printed_number_is_another_verdict(records):
    for record in records:
        if record.kind == MATCH and isinstance(record.computed, float) and record.published[0] not in "<>":
            wrong = dataclasses.replace(record, published=str(float(record.published.removeprefix("about ")) * 3 + 7))
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
    assert all(record.agreeing for record in printed)


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


def test_mini_s_leverage_is_not_above_7_at_the_activation_ratio_that_it_states(by_key):
    exponent = 1.23 - 7.61e-2 * 22 + 1.67e-2 * log2(12) ** 2 - 1.17e-1 * log2(12)
    record = by_key["tian | Section 5 | EL of MoE-mini at its stated A = 3.4 % and G = 12, C = 1e22"]
    stated, routed_alone = (((ratio + 1 / (1 / 1.63e-2)) ** exponent) for ratio in (0.034, 12 / 384))
    assert record.kind == ERROR
    assert record.computed == pytest.approx(stated, rel=1e-12)
    assert f"{routed_alone:.4g}" in record.note


def test_a_leverage_above_7_survives_the_rounding_of_the_coefficients_that_are_printed(by_key):
    over = "EL at A = 3.1 %, G = 12, C = 1e22, over all coefficients that round to Table 6's"
    lowest, highest = (by_key[f"tian | Eq. 4 and Table 6 | {end} {over}"].computed for end in ("lowest", "highest"))
    printed = by_key["tian | Abstract, Sections 1 and 5 | EL at A = 3.1 %, G = 12, C = 1e22"].computed
    assert 7 < lowest < printed < highest


def test_no_row_chooses_its_own_tolerance(records):
    assert {field.name for field in dataclasses.fields(Reading)} == {"computed", "name", "rounding"}
    stated = [record for record in records if record.tolerance.endswith("%")]
    assert len(stated) > 10
    assert {record.tolerance for record in stated} == {"±10 %"}
    assert all(record.published.startswith("about ") for record in stated)


def test_the_more_a_backbone_weighs_the_sooner_abnar_s_active_parameters_stop_falling(by_key):
    name = "abnar | Section 2.1 and Figure 3b | N_a* with S from 0 to 0.98 at C = 1e20"
    name = f"{name}, parameters outside the experts being"
    by_active = [by_key[f"{name} {ratio} times the active experts'"] for ratio in ("0.1", "1", "2")]
    by_total = [by_key[f"{name} {share} % of all"] for share in (10, 25, 50)]
    assert {record.computed for record in by_active} == {"falls"}
    assert {record.computed for record in by_total} == {"turns"}
    turns = [float(record.note.split("S = ")[1].split()[0]) for record in by_total]
    assert turns == sorted(turns, reverse=True)
    assert turns[0] > turns[-1]


def test_one_slip_that_many_numbers_inherit_is_one_cause(records):
    inherited = [record for record in records if "inherit the 2.83" in record.note]
    assert len(inherited) > 3
    assert causes(inherited) == 1
    assert causes(record for record in records if record.kind == ERROR) < sum(r.kind == ERROR for r in records)


def test_a_larger_model_of_the_same_rate_has_more_than_twice_the_active_width_at_the_documents_own_mu(by_key):
    beta = 0.2 * 22 + 4 / 3 * (0.2 - 1)
    found = by_key["li | Appendix F | growth of beta from 7B to 14B at r_a = 0.2 and mu = 22 ('roughly 2')"]
    assert found.computed == pytest.approx((2 * beta + 4 / 3) / beta)
    assert found.kind == UNEXPLAINED, "the text is about a large mu"


@pytest.mark.slow
def test_no_mean_of_huber_losses_at_the_stated_delta_is_as_large_as_printed(records):
    found = [record for record in records if "mean Huber loss" in record.quantity]
    assert [record.verdict for record in found] == ["document error"] * 2
    # Beyond delta a Huber loss is a straight line: delta·(|r| - delta/2).
    assert found[1].computed == pytest.approx(1e-3 * (0.0058**0.5 - 0.5e-3))


def test_what_the_document_leaves_open_is_no_error_of_it(by_key):
    found = by_key["tian | Table 1 | N_a of MoE-mini"]
    assert found.kind == UNEXPLAINED
    assert dataclasses.replace(found, undefined=False).kind == ERROR


@pytest.mark.parametrize("reading", ACTIVE_PARAMS.values(), ids=ACTIVE_PARAMS)
def test_the_dense_model_is_best_below_the_threshold_and_not_above(reading):
    threshold = dense_threshold(ABNAR_2025, 1e20, reading)
    assert best_sparsity(ABNAR_2025, 1e20, 0.9 * threshold, reading) <= 0
    assert best_sparsity(ABNAR_2025, 1e20, 1.1 * threshold, reading) > 0


def test_equation_33_lies_below_the_optimum_by_as_much_as_its_limits_say(by_key):
    missing = [by_key[f"zhao | Eq. 33 | L* of Eqs. 30 to 32 less that of Eq. 33, at C = {c}"] for c in ("1e22", "1e24")]
    assert [record.kind for record in missing] == [MATCH, ERROR]
    limits = [by_key[f"zhao | Eq. 33 | C up to which it lies within {t} nats of Eqs. 30 to 32"] for t in (0.005, 0.05)]
    assert limits[0].computed < limits[1].computed
    end = by_key["zhao | Eq. 33 | L* at N = 1T as C grows without end"]
    assert end.computed > 1.87


def test_the_page_for_the_authors_is_what_the_command_writes(records):
    assert ERRATA.read_text() == errata(records)


def test_the_page_names_every_document_and_every_difference(records):
    page = errata(records)
    assert RULE in page
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
    printed = capsys.readouterr()
    assert "Verdicts" in printed.out
    assert "tolerance" in printed.out
    assert RULE[:40] in " ".join(printed.out.split())


def test_a_convention_is_named_where_it_was_chosen(verdicts, capsys):
    assert main(["reproduce", "--paper", "abnar", "--verdicts", verdicts()]) == 0
    assert "convention" not in capsys.readouterr().err
    chosen = ["--active-convention", "backbone_by_total"]
    assert main(["reproduce", "--paper", "abnar", "--verdicts", verdicts(), *chosen]) == 0
    assert "backbone_by_total" in capsys.readouterr().err


def test_a_changed_verdict_is_named_and_gives_status_1(verdicts, capsys):
    key = "li | Table 8 | sum of the LLaMA-1 recipe"
    assert main(["reproduce", "--paper", "li", "--verdicts", verdicts(**{key: "match"})]) == 1
    told = capsys.readouterr().err
    assert key in told
    assert "was 'match' and is now 'document error'" in told


def test_a_quantity_that_comes_or_goes_is_a_change(records):
    known = recorded()
    first = records[0]
    assert "no recorded verdict" in changes(records, {k: v for k, v in known.items() if k != first.key})[0]
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
        (["--paper", "li", "--verdicts", "nowhere.json"], "nowhere.json does not exist"),
        (["--paper", "li", "--json", f"{__file__}/x.json"], "test_reproduce.py"),
    ],
)
def test_mistakes_are_answered_in_sentences(words, sentence, capsys):
    assert main(["reproduce", *words]) == 2
    assert sentence in capsys.readouterr().err
