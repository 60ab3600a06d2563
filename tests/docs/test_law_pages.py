"""Every law has its page, as the command writes it, with a formula that is drawn as it is written."""

import contextlib
import dataclasses
import io
import json
import re
import shlex
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest

from moejax.__main__ import main
from moejax.float64 import float64
from moejax.laws import LAWS, PUBLISHED
from moejax.laws.design import design_from
from moejax.laws.formula import formula, parse
from moejax.laws.law import coefficients, in_units
from moejax.papers.errata import findings, paper_of, places_in, section
from moejax.reference import laws as law_pages
from moejax.reference.laws import DESIGNED, write_pages
from moejax.report.mathml import GREEK, block, inline

DOCS = Path("docs")
ERRATA, GALLERY = ((DOCS / name).read_text() for name in ("errata.md", "gallery.md"))
LATIN = {sign: name for name, sign in GREEK.items()}


def written(element):
    """A formula in the docstrings' notation, from how it is drawn."""
    parts = [written(child) for child in element]
    match element.tag:
        case "mi" | "mn" | "mo":
            return {"−": "-", "∑": "Σ"}.get(element.text, LATIN.get(element.text, element.text))
        case "mspace":
            return " "
        case "mfrac":
            return f"(({parts[0]})/({parts[1]}))"
        case "msup":
            return f"({parts[0]})^({parts[1]})"
        case "msub":
            return f"log{parts[1]}" if parts[0] == "log" else f"{parts[0]}_{parts[1]}"
        case "munder":
            return parts[0]
        case "math" | "mrow":
            return "".join(parts)
    raise AssertionError(element.tag)


def drawn(html):
    """Every paragraph of a block, as it is written."""
    return ["".join(written(math) for math in p.iter("math")) for p in ElementTree.fromstring(html).iter("p")]


@pytest.mark.parametrize("name", LAWS)
def test_a_formula_is_drawn_as_it_is_written(name):
    equations = formula(LAWS[name]).equations
    assert tuple(parse(text)[0] for text in drawn(block(equations))) == equations


@pytest.mark.parametrize(
    "text",
    [
        "y = a·(b + c)/d - (e - f)",
        "y = (a/b)^c·(a·b)^-(c + d)",
        "y = (log2 x)²·ln (a·b)",
        "y = 2^(a/(b·c) - d/(e + f))",
    ],
)
def test_parentheses_stand_where_they_change_the_value(text):
    (equation,) = parse(text)
    assert parse(drawn(block([equation]))[0]) == (equation,)


def test_no_parentheses_stand_where_they_do_not():
    (equation,) = parse("y = (a·b) + (c^d)/(e + f)")
    assert "(" not in block([equation])


def test_a_greek_name_becomes_its_letter_and_an_index_stands_below():
    assert inline(parse("y = lambda_max")[0].right) == "<math><msub><mi>λ</mi><mi>max</mi></msub></math>"


@pytest.mark.parametrize("name", LAWS)
def test_a_page_is_what_the_command_writes(name):
    assert (DOCS / "laws" / f"{name}.md").read_text() == law_pages.page(name, ERRATA, GALLERY), "run `make laws`"


def test_the_command_writes_a_page_for_every_law(tmp_path, monkeypatch):
    monkeypatch.setattr(law_pages, "page", lambda name, *_: f"# {name}\n")
    (tmp_path / "errata.md").write_text(ERRATA)
    (tmp_path / "gallery.md").write_text(GALLERY)
    assert main(["laws", "--pages", str(tmp_path)]) == 0
    assert {path.stem for path in (tmp_path / "laws").iterdir()} == set(LAWS)
    assert {path.stem for path in (DOCS / "laws").iterdir()} == set(LAWS)


def test_pages_are_written_anew_and_what_is_no_page_of_a_law_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(law_pages, "LAWS", {"kaplan": LAWS["kaplan"]})
    for name in ("errata.md", "gallery.md"):
        (tmp_path / name).write_bytes((DOCS / name).read_bytes())
    folder = write_pages(tmp_path)
    (folder / "gone.md").write_text((folder / "kaplan.md").read_text())
    (folder / "mine.md").write_text("my own")
    assert main(["laws", "--pages", str(tmp_path)]) == 0
    assert {path.name for path in folder.glob("*.md")} == {"kaplan.md", "mine.md"}


def test_a_folder_without_the_errata_is_answered_in_a_sentence(tmp_path, capsys):
    assert main(["laws", "--pages", str(tmp_path)]) == 2
    assert "write it with `moejax reproduce --errata`" in capsys.readouterr().err


@pytest.mark.docs
@pytest.mark.parametrize("name", [name for name in LAWS if PUBLISHED[name]])
def test_a_page_has_every_constant_to_its_digits(name):
    constants = (DOCS / "laws" / f"{name}.md").read_text().partition("## Constants")[2]
    table = constants.strip().partition("\n\n")[0].splitlines()
    head, _, *rows = [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in table]
    assert head[2:] == list(PUBLISHED[name])
    assert [field for _, field, *_ in rows] == list(coefficients(next(iter(PUBLISHED[name].values())).law))
    for _, field, *shown in rows:
        exact = [getattr(entry.law, field) for entry in PUBLISHED[name].values()]
        assert [float(value) for value in shown] == pytest.approx(exact, rel=1e-8)


def test_the_list_of_laws_is_what_the_command_writes():
    index = (DOCS / "laws.md").read_text()
    assert law_pages.with_list(index) == index, "run `make laws`"


def test_errata_are_found_by_the_equations_and_tables_that_they_name():
    assert places_in("Eqs. 1 and 4; Tables 8 to 10, Table 3") == {
        *("Eq. 1", "Eq. 4", "Table 8", "Table 9", "Table 10", "Table 3")
    }
    assert places_in("Eq. 1.5 and 4 in Table 1, 16 in Table 6") == {"Table 1", "Table 6"}
    tian = section(ERRATA, "tian")
    assert findings(tian, {"Table 6"})[0].startswith("- **Section 4.2.2**")
    assert not any("cannot" in entry or "\n#" in entry for entry in findings(tian, places_in("Eqs. 1 to 99")))


def test_a_paper_is_known_by_how_its_title_begins():
    assert paper_of("Zhao et al. (2025), Eq. 9") == "zhao"
    assert paper_of("Kaplan et al. 2020, Table 2") is None


@pytest.mark.docs
@pytest.mark.parametrize("page", sorted((DOCS / "laws").iterdir()), ids=lambda page: page.stem)
def test_a_link_to_a_heading_of_another_page_leads_to_one(page):
    for target, anchor in re.findall(r"\]\(([^)#:]+)#([^)]+)\)", page.read_text()):
        headings = re.findall(r"^#+ (.*)$", (page.parent / target).read_text(), re.M)
        slugs = {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}
        assert anchor in slugs


PREDICTIONS = [
    (page.stem, line)
    for page in sorted((DOCS / "laws").iterdir())
    for line in re.findall(r"^moejax predict .*$", page.read_text(), re.M)
]


@pytest.mark.parametrize(("name", "line"), PREDICTIONS, ids=[name for name, _ in PREDICTIONS])
def test_a_shown_prediction_says_what_stands_below_it(name, line, capsys):
    assert main(shlex.split(line)[1:]) == 0
    shown = re.search(r"^predicts with .*$", (DOCS / "laws" / f"{name}.md").read_text(), re.M)[0]
    printed = capsys.readouterr().out
    for value in re.findall(r"` (\d[\w.+-]*\w)", shown.partition(" (")[0]):
        assert value in printed


@pytest.mark.slow
@pytest.mark.parametrize("name", DESIGNED)
def test_a_shown_design_is_decided(name):
    shown = re.search(r"^moejax design .*$", (DOCS / "laws" / f"{name}.md").read_text(), re.M)[0]
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(shlex.split(shown)[1:]) == 0


def runs_of(name):
    """Thirty-two runs whose outcome the law gives, with published constants or with any."""
    chance = np.random.default_rng(0)
    active, tokens = 10 ** chance.uniform(7, 9, 32), 10 ** chance.uniform(9, 11, 32)
    top_k, shared = chance.integers(1, 9, 32) * 1.0, chance.integers(0, 3, 32) * 1.0
    columns = {
        "params_total": active * chance.uniform(2, 16, 32),
        "params_active": active,
        "tokens": tokens,
        "flops": 6 * active * tokens,
        "num_experts": top_k * chance.integers(2, 32, 32),
        "top_k": top_k,
        "num_shared_experts": shared,
        "model_dim": chance.integers(4, 16, 32) * 128.0,
        "expert_hidden": chance.integers(1, 16, 32) * 128.0,
        "num_layers": chance.integers(4, 80, 32) * 1.0,
        "unique_tokens": tokens / 10 ** chance.uniform(0, 2, 32),
    }
    cls = LAWS[name]
    signs = {f.name: f.metadata["sign"] for f in dataclasses.fields(cls)}
    with float64():
        plain = cls(**{field: -0.3 if sign == "-" else 0.3 for field, sign in signs.items()})
        known = in_units(plain, {"params": 1e-8, "tokens": 1e-10, "flops": 1e-19})
        law = next((entry.law for entry in PUBLISHED[name].values()), known)
        # Below 1.2 nats the published law of errors is below 0; bits per byte of accuracies lie there.
        losses = (0.5, 2.0) if "accuracy" in cls.outputs else (1.5, 5.0)
        reads_loss = {"loss": chance.uniform(*losses, 32)} if "loss" in cls.inputs else {}
        columns |= reads_loss
        found = jax.vmap(law)(design_from(columns))
    return pd.DataFrame(columns | (found if isinstance(found, dict) else {"loss": found}))


FITS = [
    (page.stem, line)
    for page in sorted((DOCS / "laws").iterdir())
    for line in re.findall(r"^moejax fit .*--law.*$", page.read_text(), re.M)
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "line"), FITS, ids=[name for name, _ in FITS])
def test_a_shown_fit_finds_what_runs_of_the_law_follow(name, line, tmp_path, monkeypatch, capsys):
    runs_of(name).to_csv(tmp_path / "runs.csv", index=False)
    monkeypatch.chdir(tmp_path)
    assert main([*shlex.split(line)[1:], "--starts", "256", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["rmse_log"] < 0.01
