"""Every command by its declaration: help, examples, ranges, exclusions, places to write to, mistyped options."""

import dataclasses
import re
import shlex
import subprocess
import typing
from pathlib import Path

import pytest

from moejax.__main__ import main
from moejax.cli import COMMANDS, command_module, reference
from moejax.cli.command_line import split_overrides
from moejax.cli.options import REQUIRED, Command, check, flag_of, given, kind_of
from moejax.cli.parser import parse_command
from moejax.errors import UserError

MODULES = {name: command_module(name) for name in COMMANDS}
CLASSES = dict(Command.NAMES)


def options(cls, **about):
    """Fields of a command that are options, with a truthy value of each metadata that is named."""
    return [f for f in dataclasses.fields(cls) if f.metadata and all(map(f.metadata.get, about))]


def valid(cls, name):
    """A value that a field may have, and that is not its default."""
    kind, allowed = kind_of(typing.get_type_hints(cls, include_extras=True)[name])
    if allowed is not None:
        value = next(number for number in (0.5, 1, 20, 5000) if number in allowed)
        return (value,) if typing.get_origin(kind) is tuple else value
    if kind is bool:
        return True
    return ("x", "y") if typing.get_origin(kind) is tuple else "x"


def made(cls, **values):
    """A command with these options and the required ones."""
    required = [f.name for f in dataclasses.fields(cls) if f.default is REQUIRED] + list(cls.ONE_OF[:1])
    return cls(**{**{name: valid(cls, name) for name in required}, **values})


def outside(allowed):
    """Numbers on both sides of a range."""
    below = allowed.low if allowed.without_low else allowed.low - 1
    above = allowed.high if allowed.without_high else allowed.high * 2 + 1
    return [number for number in (below, above) if number not in allowed]


RANGES = [
    pytest.param(name, f.name, number, id=f"{name} {flag_of(cls, f.name)} {number:g}")
    for name, cls in CLASSES.items()
    for f in options(cls)
    if (allowed := kind_of(typing.get_type_hints(cls, include_extras=True)[f.name])[1]) is not None
    for number in outside(allowed)
]
RULES = [
    pytest.param(name, f.name, other, id=f"{name} {flag_of(cls, f.name)} {other}")
    for name, cls in CLASSES.items()
    for f in options(cls, excludes=True)
    for other in f.metadata["excludes"]
]
NEEDS = [
    pytest.param(name, f.name, other, id=f"{name} {flag_of(cls, f.name)} {other}")
    for name, cls in CLASSES.items()
    for f in options(cls, needs=True)
    for other in f.metadata["needs"]
]
PLACES = [
    pytest.param(name, f.name, id=f"{name} {flag_of(cls, f.name)}")
    for name, cls in CLASSES.items()
    for f in options(cls, output=True)
    if f.name == "out" and not name.startswith(("launch", "train"))
]


@pytest.mark.parametrize("name", CLASSES)
def test_every_command_has_help_with_its_options_and_an_example(name, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([*name.split(), "--help"])
    assert stopped.value.code == 0
    said = capsys.readouterr().out
    assert " ".join(CLASSES[name].__doc__.split())[:50] in " ".join(said.split())
    assert all(
        flag_of(CLASSES[name], f.name) in said for f in options(CLASSES[name]) if f.metadata["help"] != "==SUPPRESS=="
    )
    if " " not in name:
        assert f"moejax {name}" in said.split("example:")[1]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_example_is_a_command_that_can_be_given(name):
    for line in MODULES[name].EXAMPLE.splitlines():
        command = line[line.index("moejax ") :] if line.strip() else line
        _, word, *words = shlex.split(command.partition("  #")[0].partition(" > ")[0])
        parse_command(word, split_overrides(words)[0])


@pytest.mark.parametrize(("name", "field", "number"), RANGES)
def test_a_number_outside_its_range_is_refused_with_the_range(name, field, number):
    cls = CLASSES[name]
    kind = typing.get_type_hints(cls)[field]
    value = (number,) if typing.get_origin(kind) is tuple else number
    if cls.__dataclass_fields__[field].default == value:
        return
    with pytest.raises(UserError, match=f"{flag_of(cls, field)} is .*; give a (whole )?number"):
        check(made(cls, **dict.fromkeys(cls.ONE_OF[:1], "x"), **{field: value}))


@pytest.mark.parametrize(("name", "field", "other"), RULES)
def test_options_that_exclude_each_other_are_named(name, field, other):
    cls = CLASSES[name]
    with pytest.raises(UserError, match="exclude each other; give one of them"):
        check(made(cls, **{name: valid(cls, name) for name in (field, other)}))


@pytest.mark.parametrize(("name", "field", "other"), NEEDS)
def test_an_option_that_needs_another_names_it(name, field, other):
    cls = CLASSES[name]
    needed = f"{flag_of(cls, field)} needs {re.escape(flag_of(cls, other))}; give both, or neither"
    with pytest.raises(UserError, match=needed):
        check(made(cls, **{field: valid(cls, field)}))


@pytest.mark.parametrize("place", ["s3://bucket/x", "file:///results", ""])
@pytest.mark.parametrize(("name", "field"), PLACES)
def test_commands_that_write_to_a_folder_take_no_store(name, field, place, capsys):
    assert main([*name.split(), flag_of(CLASSES[name], field), place]) == 2
    said = capsys.readouterr().err
    assert "is not a local path" in said or "is empty; give a local path" in said


@pytest.mark.parametrize("name", CLASSES)
def test_a_mistyped_option_names_the_nearest_one(name, capsys):
    cls = CLASSES[name]
    flag = next(flag_of(cls, f.name) for f in options(cls) if not f.metadata.get("place"))
    required = [word for f in dataclasses.fields(cls) if f.default is REQUIRED for word in words_for(cls, f)]
    assert main([*name.split(), *required, f"{flag}x=1"]) == 2
    said = capsys.readouterr().err
    assert f"{flag}x is not an option of moejax {name}; did you mean " in said
    assert flag in said


def words_for(cls, field):
    value = "1" if field.name in ("flops", "bootstrap") else "x"
    return [value] if field.metadata.get("place") else [flag_of(cls, field.name), value]


def test_given_options_differ_from_their_defaults():
    command = parse_command("fit", ["runs.csv", "--law", "zhao", "--seed", "0", "--hold-out", "tokens"])
    assert sorted(given(command)) == ["hold_out", "law", "runs"]
    assert command.hold_out == ("tokens",)


def test_an_option_before_an_action_is_read(capsys):
    assert parse_command("data", ["--json", "show", "set"]).json
    assert parse_command("study", ["--price", "2", "status", "runs"]).price == 2
    with pytest.raises(UserError, match="--vmap is not an option of moejax study status"):
        parse_command("study", ["--vmap", "2", "status", "runs"])


@pytest.mark.parametrize("words", [["--tokens"], ["--tokens", "-7B"], ["--tokens", "--json"]])
def test_an_option_without_a_value_tells_how_one_is_written(words):
    with pytest.raises(UserError, match="--tokens has no value; write --tokens=VALUE, also for a value that begins"):
        parse_command("predict", ["--law", "chinchilla", *words])


def test_an_option_after_the_end_of_the_options_is_told_its_place():
    assert parse_command("fit", ["--law", "chinchilla", "--", "-runs.csv"]).runs == Path("-runs.csv")
    with pytest.raises(UserError, match="--law comes after --, which ends the options; write the option before --"):
        parse_command("fit", ["--", "runs.csv", "--law"])


def test_the_reference_page_is_what_make_settings_writes():
    assert reference.PAGE.read_text() == reference.page(), "An option has changed; run make settings."


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("moejax fi", ["fit"]),
        ("moejax fit runs.csv --boot", ["--bootstrap"]),
        ("moejax data pre", ["prepare"]),
        ("moejax data prepare x --tok", ["--tokenizer"]),
        ("moejax study --resu", ["--resume"]),
        ("moejax study status x --pri", ["--price"]),
    ],
)
def test_bash_completes_commands_actions_and_options(line, words, tmp_path):
    typed = f"COMP_WORDS=({line}); COMP_CWORD={len(line.split()) - 1}"
    ask = f'{reference.completion()}\n{typed}; _moejax; echo "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.split() == words
