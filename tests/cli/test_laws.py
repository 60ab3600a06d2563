"""``moejax laws``."""

import json

import pytest

from moejax.__main__ import main
from moejax.laws import ALIASES, LAWS, PUBLISHED


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


@pytest.mark.parametrize(
    ("words", "sentence"),
    [(["show", "zhoa"], "zhao"), (["show"], "arguments are required: NAME"), (["list"], "choose from 'show'")],
)
def test_mistakes_are_answered_in_sentences(words, sentence, capsys):
    assert main(["laws", *words]) == 2
    assert sentence in capsys.readouterr().err
