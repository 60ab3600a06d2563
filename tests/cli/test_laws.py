"""``moejax laws``."""

import json

import pytest

from moejax.__main__ import main
from moejax.laws import ALIASES, ALIASES_OF_CURVES, CURVE_LAWS, LAWS, PUBLISHED


def test_the_list_names_every_law_and_every_set_of_constants(capsys):
    assert main(["laws", "--json"]) == 0
    listed = {law["law"]: law for law in json.loads(capsys.readouterr().out)}
    assert list(listed) == list(LAWS)
    assert {law: list(entry["constants"]) for law, entry in listed.items()} == {
        law: list(sets) for law, sets in PUBLISHED.items()
    }
    assert main(["laws"]) == 0
    printed = capsys.readouterr().out
    assert all(law in printed for law in LAWS)


@pytest.mark.parametrize("name", [*LAWS, *ALIASES])
def test_every_law_can_be_shown_by_its_name_and_its_papers(name: str, capsys):
    assert main(["laws", "show", name]) == 0
    printed = capsys.readouterr().out
    law = ALIASES.get(name, name)
    assert printed.startswith(law)
    for constants in PUBLISHED[law].values():
        assert constants.source in printed


def test_a_laws_page_has_its_form_its_units_and_its_constants(capsys):
    assert main(["laws", "show", "zhao", "--json"]) == 0
    law = json.loads(capsys.readouterr().out)
    assert law["outputs"] == {"loss": "nats per token"}
    assert law["coefficients"]["irreducible"]["symbol"] == "epsilon"
    assert law["constants"]["zhao-2025"]["values"]["irreducible"] == 1.8182
    assert "e·G + f/G" in law["statement"]


@pytest.mark.parametrize("name", [*LAWS, *ALIASES, *CURVE_LAWS, *ALIASES_OF_CURVES])
def test_every_law_and_every_paper_can_be_cited_and_a_missing_arxiv_number_is_named(name, capsys):
    assert main(["cite", name]) == 0
    printed = capsys.readouterr().out
    assert main(["cite", name, "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)
    assert entries, f"{name} has no source in moejax.laws.references.REFERENCES; add its document"
    for entry in entries:
        assert entry["bibtex"].startswith(f"@misc{{{entry['key']},\n")
        assert entry["bibtex"] in printed
        number = entry["arxiv"]
        assert (f"arXiv:{number}\n@misc" if number else "no arXiv number is known\n@misc") in printed


def test_sets_of_constants_of_other_documents_are_cited_too(capsys):
    assert main(["cite", "hyperparameters", "--json"]) == 0
    assert [one["arxiv"] for one in json.loads(capsys.readouterr().out)] == ["2507.17702", "2401.02954"]
    assert main(["cite", "zhoa"]) == 2
    assert "zhao" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["show", "zhoa"], "zhao"),
        (["show"], "arguments are required: NAME"),
        (["list"], "has no action 'list'; write moejax laws show NAME"),
    ],
)
def test_mistakes_are_answered_in_sentences(words, sentence, capsys):
    assert main(["laws", *words]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["laws", "zhao"], "moejax laws has no action 'zhao'; write moejax laws show NAME."),
        (["study", "runs/x"], "has no action 'runs/x'; write moejax study status DIR or moejax study gather DIR."),
    ],
)
def test_an_action_that_was_left_out_is_named_with_its_arguments(words, sentence, capsys):
    assert main(words) == 2
    assert sentence in capsys.readouterr().err
