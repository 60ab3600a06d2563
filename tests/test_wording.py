"""What libraries say is never passed for a sentence of ours."""

import ast
from pathlib import Path

import pytest

from moejax import quantities, wording
from moejax.json_text import json_text
from moejax.say import say
from moejax.stored import foreign_json
from moejax.wording import install_command, says, told

ROOT = Path(wording.__file__).parent


def test_a_librarys_words_are_one_short_line():
    assert says("json", ValueError("Expecting value.\nat line 3")) == "json reported: Expecting value"
    assert says("tokenizers", KeyError("decoder")) == "tokenizers reported: KeyError: 'decoder'"
    assert says("the disk", FileNotFoundError(2, "No such file", "/x")) == "system error: No such file"
    assert says("pyarrow", ValueError()) == "pyarrow reported: ValueError"
    assert says("xla", ValueError("x" * 900)) == f"xla reported: {'x' * 199}…"
    assert says("Orbax", ValueError(f"{'x' * 900}\nno space"), end=True).endswith("xx no space")


def test_a_message_names_options_in_a_command_and_arguments_in_python():
    assert (wording.argument("sequence_length"), wording.option_hint(" (--out)")) == ("`sequence_length`", "")
    with wording.in_command():
        assert (wording.argument("sequence_length"), wording.argument("most")) == ("--sequence-length", "--k")
        assert wording.option_hint(" (--out)") == " (--out)"
    assert wording.argument("most") == "`most`"


@pytest.mark.parametrize(
    ("name", "value", "typed", "in_python"),
    [
        ("group", "run name", "--group 'run name'", 'group="run name"'),
        ("mapping", {"tokens": "D * 1e9", "loss": "L"}, "--map 'tokens=D * 1e9' --map loss=L", None),
        ("fixed", {"irreducible": "1.6"}, "--fix irreducible=1.6", 'fixed={"irreducible": 1.6}'),
        ("where", 'arch == "moe"', "--where 'arch == \"moe\"'", "where=['arch == \"moe\"']"),
        ("best_by", "lr,wd", "--best-by lr,wd", 'best_by=["lr", "wd"]'),
        ("drop_invalid", True, "--drop-invalid", "drop_invalid=True"),
    ],
)
def test_a_message_shows_an_option_or_an_argument_with_its_value(name, value, typed, in_python):
    assert wording.argument(name, value) == (in_python or 'mapping={"tokens": "D * 1e9", "loss": "L"}')
    with wording.in_command():
        assert wording.argument(name, value) == typed


def test_of_ten_thousand_known_names_an_unknown_one_is_told_a_few():
    said = wording.did_you_mean("=", [f"task_{number}" for number in range(10_000)])
    assert said.endswith("task_39 and 9960 more.")
    assert len(said) < 600
    assert wording.did_you_mean("arc_esay", ["arc_easy", "piqa"]) == "did you mean arc_easy?"


def test_what_moejax_did_not_raise_as_a_sentence_is_told_as_a_librarys_words():
    for call, found in (
        (lambda: quantities.parse("many"), "'many' is not a number"),
        (lambda: foreign_json("{", "x", remedy="mend it"), "x cannot be read: it is not JSON"),
        (lambda: json_text(object()), "Python reported: TypeError: Object of type object is not JSON serializable"),
    ):
        with pytest.raises((ValueError, TypeError)) as raised:
            call()
        assert told(raised.value).startswith(found)


def test_what_python_raises_is_no_sentence_of_ours():
    with pytest.raises(ValueError, match="could not convert") as raised:
        float("x")
    assert told(raised.value) == "Python reported: could not convert string to float: 'x'"


WORDS = {"args", "msg", "message", "reason", "strerror"}
"""What holds the words of a library's exception."""
PASSED = {"says", "told", "in_words", "isinstance", "type", "getattr", "print_exception", "set_exception"}
"""What an exception that was caught may be given to: it is told, looked at or raised elsewhere, not shown as it is."""
READ = {
    "plan/plan.py": "XLA says what does not fit in numbers, which are read out of it",
    "folder.py": "the same error again, of the file that was to be written",
    "cli/command_line.py": "a variable that JAX names is looked for in them",
    "train/directory/checkpoint.py": "the cause of the sentence that quotes Orbax",
}
"""Where else the words of an exception are used, and why."""


def _used(handler):
    """Uses of a caught exception by which its words may reach people without ``says`` or ``told``."""
    compared = {id(part) for node in ast.walk(handler) if isinstance(node, ast.Compare) for part in ast.walk(node)}
    for node in ast.walk(handler):
        named = [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.Name) and part.id == handler.name]
        if not named or id(node) in compared:
            continue
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called not in PASSED:
                yield node
        elif isinstance(node, ast.FormattedValue) or (isinstance(node, ast.Attribute) and node.attr in WORDS):
            yield node


def test_no_exception_is_shown_without_saying_whose_words_it_has():
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            # A UserError is a sentence, and may be shown.
            if isinstance(node, ast.ExceptHandler) and node.name and ast.unparse(node.type) != "UserError":
                found.update((path.relative_to(ROOT).as_posix(), ast.unparse(use)) for use in _used(node))
    assert {path: use for path, use in found.items() if path not in READ} == {}
    assert found.keys() == READ.keys()


@pytest.mark.parametrize(
    "shown",
    ["raise ValueError(f'no: {error}')", "say(str(error))", "say(error.strerror)", "raise Own(error)", "f(error.args)"],
)
def test_the_rule_sees_an_exception_that_is_shown(shown):
    handler = ast.parse(f"try:\n    pass\nexcept OSError as error:\n    {shown}").body[0].handlers[0]  # type: ignore[attr-defined]
    assert list(_used(handler))


def test_extras_are_installed_from_the_checkout_if_moejax_was(tmp_path):
    assert install_command("hf", tmp_path) == "pip install 'moejax[hf]'"
    (tmp_path / "pyproject.toml").touch()
    assert install_command("hf", tmp_path) == f"pip install -e '{tmp_path}[hf]'"


PRINTS = {
    "say.py": "lines that can be printed",
    "report/render.py": "results",
    "plan/process.py": "JSON, to the process that asked",
    "cli/command_line.py": "help and version, which hold no names",
    "cli/commands/laws.py": "BibTeX of our own, which is copied whole",
    "cli/commands/launch.py": "commands to be copied whole, whose control characters are refused",
    "cli/commands/reproduce.py": "JSON",
    "cli/commands/sample.py": "a model's text, which a file is given as it is",
}
"""Where something else than JSON is printed without ``say``, and what."""


def test_whatever_names_are_in_it_what_people_are_told_is_lines_that_can_be_printed(capsys):
    say("fitted a\x1b[2Jb", "Wrote x\ny.")
    assert capsys.readouterr().err == "fitted a\\x1b[2Jb\nWrote x\\ny.\n"
    found = set()
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "sys.stdout.write"):
                found.update(
                    [] if ast.unparse(node).startswith("print(json_text(") else [path.relative_to(ROOT).as_posix()]
                )
    assert found == PRINTS.keys()
