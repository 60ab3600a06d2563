"""Suites of tasks agree with what their documents print."""

import math

import pytest

from moejax.errors import UserError
from moejax.evaluation.suites import SUITES, suite_of
from moejax.papers.tian.tables import TABLE_7, TASKS

TIAN = SUITES["tian-2025"]


def test_tians_suite_has_the_tasks_of_table_7_by_category():
    by_category: dict[str, list[str]] = {}
    for one in TIAN.tasks:
        by_category.setdefault(one.category, []).append(one.name)
    assert {category: tuple(names) for category, names in by_category.items()} == TASKS
    assert all(bool(one.task) != bool(one.left_out) for one in TIAN.tasks)
    assert {one.category for one in TIAN.tasks if "sandbox" in one.left_out} == {"Code"}


@pytest.mark.parametrize(("model", "overall"), [(0, 44.0), (1, 45.5)])
def test_averages_of_the_printed_scores_are_those_of_table_2(model, overall):
    scores: dict[str, float] = {}
    for category, names in TASKS.items():
        scores |= dict(zip(names, TABLE_7[category][2 + model], strict=True))
    found = TIAN.averages(scores)
    assert found["overall"] == (pytest.approx(overall, abs=0.06), 34, 34)
    for category, row in TABLE_7.items():
        # Printed means are rounded or cut off.
        assert found[category][0] == pytest.approx(float(row[model]), abs=0.11)


def test_scores_are_read_under_the_harness_s_names_and_what_is_missing_is_named():
    results = {one.task: {one.metric: 0.25, f"{one.metric}_stderr": 0.1} for one in TIAN.run_here}
    scores = TIAN.scores(results)
    assert set(scores.values()) == {25.0}
    found = TIAN.averages(scores)
    assert found["Language"] == (25.0, 1, 2)
    assert math.isnan(found["Code"][0])
    with pytest.raises(UserError, match="Task mmlu has no score acc,none, which the suite uses for MMLU"):
        TIAN.scores({**results, "mmlu": {"f1,none": 1.0}})
    assert sorted(name for names in TIAN.shots().values() for name in names) == sorted(
        one.task for one in TIAN.run_here
    )
    with pytest.raises(UserError, match="did you mean"):
        suite_of("tian-2024")
