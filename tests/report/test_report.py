"""The page and its data: whole, self-contained, written in one piece."""

import dataclasses
import json
import re
from html.parser import HTMLParser

import pytest

from moejax.__main__ import main
from moejax.cli.command_line import DONE, USERS
from moejax.report.conclusions import BRIEF_BEST, brief, conclusions, losses_by_part, settings_table
from moejax.report.findings import read, summary
from moejax.report.page import DATA, FIGURES, PAGE, as_data, page, write_report
from moejax.report.render import markdown
from moejax.study.compute_optimum import family
from moejax.study.stages import StageResult

VOID = {"meta", "link", "br", "hr", "img", "input", "col", "wbr"}


class Page(HTMLParser):
    """Collects a page's references, names and sections, and whether every element is closed in its turn."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.references: list[str] = []
        self.names: list[str] = []
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "srcset", "action", "data"):
                self.references.append(value)
            if name == "id":
                self.names.append(value)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="session")
def html(concluded):
    return write_report(concluded).read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def parsed(html):
    return Page(html)


def test_every_element_is_closed_and_every_name_is_unique(parsed):
    assert parsed.open == []
    assert len(set(parsed.names)) == len(parsed.names)


def test_the_page_needs_no_network(html, parsed):
    assert all(reference.startswith(("#", "data:")) for reference in parsed.references)
    assert not re.search(r"@import|url\(\s*['\"]?https?:", html)
    assert "script" not in parsed.tags


def test_links_within_the_page_have_their_targets(parsed):
    anchors = {reference[1:] for reference in parsed.references if reference.startswith("#")}
    assert anchors <= set(parsed.names)


def test_every_section_and_every_figure_is_there_with_its_data(parsed):
    sections = {"answer", "sanity_checks", "corpus", "runs", "training", "laws", "decisions", "limits", "provenance"}
    assert sections | set(FIGURES) <= set(parsed.names)
    assert sum(reference.startswith("data:text/csv") for reference in parsed.references) == len(FIGURES) + 1


def test_the_page_is_light_and_dark_and_prints(html):
    assert "prefers-color-scheme: dark" in html
    assert "@media print" in html


def test_the_page_is_under_8_megabytes(html):
    assert len(html.encode()) < 8e6


@pytest.fixture
def without_figures(monkeypatch):
    """Drawing is most of a report's time."""
    monkeypatch.setattr("moejax.report.page.draw_all", lambda found: {})


def test_limits_are_on_the_page_when_an_interval_spans_everything(undetermined, html, without_figures):
    text = write_report(undetermined).read_text(encoding="utf-8")
    assert text.count("not determined") > html.count("not determined")
    assert any("are not determined" in limit for limit in undetermined.analysed.limits)
    # An optimum is a headline only where the runs determine it.
    assert '<p class="big">Not determined</p>' in text
    assert '<p class="big">Not determined</p>' not in html


def test_a_law_of_active_parameters_alone_decides_for_any_expansion(concluded):
    said = {(decision.law, family(decision)) for decision in concluded.analysed.decisions}
    assert {label for law, label in said if law == "chinchilla"} == {"any expansion"}
    assert "dense" in {label for law, label in said if law == "effective_params"}


def test_a_study_that_asks_for_no_law_says_so(concluded, without_figures):
    study = dataclasses.replace(concluded.study, analysis=dataclasses.replace(concluded.study.analysis, laws=()))
    analysed = dataclasses.replace(concluded.analysed, laws=[], decisions=[], selection=None)
    without = dataclasses.replace(concluded, study=study, analysed=analysed)
    said = write_report(without).read_text(encoding="utf-8"), markdown(brief(read(without)))
    assert all("was requested" in text and "could be fitted" not in text for text in said)


def test_a_coefficient_that_the_data_did_not_set_is_marked(concluded, html, without_figures):
    first, *others = concluded.analysed.laws
    unidentified = dataclasses.replace(
        first, fit=dataclasses.replace(first.fit, unidentified={"irreducible": "nothing depends on it"})
    )
    analysed = dataclasses.replace(concluded.analysed, laws=[unidentified, *others])
    text = write_report(dataclasses.replace(concluded, analysed=analysed)).read_text(encoding="utf-8")
    badge = '<span class="badge open">not set by the data</span>'
    assert (html.count(badge), text.count(badge)) == (0, 1)


def test_the_data_are_json_that_any_reader_takes(concluded, without_figures):
    write_report(concluded)

    def refuse(text):
        raise AssertionError(f"{text} is no JSON")

    read = json.loads((concluded.folder / DATA).read_text(), parse_constant=refuse)
    assert read == json.loads(json.dumps(as_data(concluded)))
    assert len(read["runs"]) == read["summary"]["runs"]


def test_nothing_unfinished_is_left_beside_the_report(concluded, html):
    assert not [path for path in concluded.folder.iterdir() if path.name.startswith(".") and PAGE in path.name]


def test_names_are_written_as_text_not_as_markup(concluded, monkeypatch):
    monkeypatch.setitem(vars(concluded.study), "name", "<script>alert(1)</script>")
    assert "script" not in Page(write_report(concluded).read_text(encoding="utf-8")).tags


@pytest.mark.parametrize("left", ["nothing", "no table", "no corpus"])
def test_a_folder_without_a_trained_study_is_refused_in_a_sentence(tmp_path, folder, capsys, left):
    kept = {"nothing": (), "no table": ("study.json", "analysis.json")}
    for name in kept.get(left, ("study.json", "analysis.json", "runs.parquet")):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    assert main(["report", str(tmp_path)]) == USERS
    error = capsys.readouterr().err
    assert error.startswith("moejax: ")
    assert str(tmp_path) in error
    assert "Traceback" not in error


@pytest.mark.slow
def test_the_command_concludes_and_writes_the_report(folder, capsys):
    assert main(["report", str(folder), "--json"]) == DONE
    assert json.loads(capsys.readouterr().out) == json.loads((folder / DATA).read_text())
    assert (folder / PAGE).exists()


def test_the_winner_of_the_last_stage_is_not_called_the_best_model_trained(concluded):
    found = read(concluded)
    worst = found.runs.loc[found.runs["loss"].idxmax(), "model"]
    stage = StageResult(name="depth", rows=found.runs[found.runs["model"] == worst].to_dict("records"))
    for stages, title in (((), "Best model trained"), ((stage,), "Winner of the last stage, depth")):
        text = page(dataclasses.replace(found, concluded=dataclasses.replace(concluded, stages=stages)), {})
        assert f"<h2>{title}</h2>" in text
        assert ("Best model trained" in text) == (not stages)


def test_a_study_that_sweeps_a_setting_reports_its_best_values(concluded):
    analysis = dataclasses.replace(concluded.study.analysis, laws=(), best_by=("learning_rate",))
    analysed = dataclasses.replace(concluded.analysed, laws=[], decisions=[], selection=None)
    study = dataclasses.replace(concluded.study, analysis=analysis)
    found = read(dataclasses.replace(concluded, study=study, analysed=analysed))
    runs = found.runs.iloc[[0, 0, 0]].reset_index(drop=True)
    runs = runs.assign(learning_rate=[1e-3, 2e-3, 4e-3], loss=[3.02, 3.0, 3.01])
    found = dataclasses.replace(found, runs=runs)
    (table,) = settings_table(found)
    cells = dict(zip([one.name for one in table.columns], table.cells()[0], strict=True))
    assert (cells["setting"], cells["best"], cells["loss"], cells["values tried"]) == (
        "learning_rate",
        "0.002",
        "3.0000",
        "3",
    )
    assert 2e-3 < float(cells["minimum of quadratic"]) < 4e-3
    short = brief(found)
    assert short.lead == [f"The lowest loss, 3.0000, is that of {runs['model'][0]}, with learning_rate 0.002."]
    assert "Best settings" in [one.title for one in short.tables]
    assert "## Best settings" in markdown(conclusions(found))
    assert "<h3>Best settings</h3>" in page(found, {})
    (best,) = summary(found)["best_settings"]
    assert (best["setting"], best["best"], best["tried"], best["end"]) == ("learning_rate", 2e-3, 3, "")
    assert settings_table(read(concluded)) == []


def test_losses_on_each_part_of_a_mixture_are_a_table_of_the_largest_budgets(concluded):
    found = read(concluded)
    assert losses_by_part(found) == []
    # A loss of another kind, as of a domain of a table of one's own, is no part that training has measured.
    runs = found.runs.assign(loss_code=found.runs["loss"] + 1, bits_per_byte_code=1.0, loss_other=9.0)
    (table,) = losses_by_part(dataclasses.replace(found, runs=runs))
    assert [column.name for column in table.columns] == ["model", "tokens", "loss", "code"]
    assert [row[0] for row in table.rows] == list(runs["model"].unique())
    largest = runs.groupby("model")["tokens"].max()
    for model, tokens, loss, code in table.rows:
        assert tokens == largest[model]
        assert code == loss + 1
    (few,) = losses_by_part(dataclasses.replace(found, runs=runs), BRIEF_BEST)
    assert {row[2] for row in few.rows} == set(sorted(row[2] for row in table.rows)[:BRIEF_BEST])
