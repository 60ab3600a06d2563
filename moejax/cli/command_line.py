"""Words after ``moejax``: finds the command, and turns mistakes into sentences.

Exit status: 0 done, 2 the user's mistake, 1 ours, 75 interrupted and to be started again, 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import moejax
from moejax.cli import COMMANDS
from moejax.cli.errors import UserError
from moejax.cli.given_files import check_files
from moejax.cli.given_settings import check_settings

DONE, USERS = 0, 2

_INTRODUCTION = """\
moejax: decide what Mixture-of-Experts model to train, and then train it.

  moejax study --config=configs/studies/quickstart.py      a sweep, its laws, a decision, a report
  moejax train --config=configs/tiny.py                    one model, seconds on a CPU
  moejax fit runs.csv --law effective_params               a law from a table of runs
"""

_CONVENTIONS = """\
every command:
  moejax COMMAND --help      what it does, its options, an example
  --json                     the result on stdout as JSON; messages go to stderr
  --out DIR                  where results are written
  numbers                    as people write them: 30B, 1.5T, 1e22
  --config=FILE.py           an ml-collections file; --config.a.b=VALUE changes one setting

exit status: 0 done, 2 a mistake in what was asked (said in a sentence), 1 a mistake of moejax, 130 stopped,
             75 interrupted by SIGTERM or by another machine's end: the same command goes on
"""


def parser_of(name: str) -> argparse.ArgumentParser:
    """What reads the words after a command's name."""
    command = importlib.import_module(f"moejax.cli.{name}")
    parser = argparse.ArgumentParser(
        prog=f"moejax {name}",
        description=command.HELP,
        epilog=f"example:\n{command.EXAMPLE}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.add_arguments(parser)
    return parser


def split_overrides(words: list[str]) -> tuple[list[str], list[str]]:
    """Words without, and the words that are, overrides: ``--config.a.b=value`` or ``--config.a.b value``."""
    rest, overrides = [], []
    words = list(words)
    while words:
        word = words.pop(0)
        if not word.startswith("--config."):
            rest.append(word)
        elif "=" in word or not words or words[0].startswith("--"):
            overrides.append(word)
        else:
            overrides.append(f"{word}={words.pop(0)}")
    return rest, overrides


def run(words: Sequence[str]) -> int:
    """Run one command and return its exit status."""
    arguments = list(words)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_help())
        return DONE
    if arguments[0] == "--version":
        print(f"moejax {moejax.__version__}")
        return DONE
    name, *rest = arguments
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(COMMANDS)}."
        return _fail(f"{name} is no command; {hint}")
    command = importlib.import_module(f"moejax.cli.{name}")
    try:
        given, overrides = split_overrides(rest)
        options = parser_of(name).parse_args(given)
        if overrides and not getattr(options, "config", None):
            raise UserError(f"{overrides[0]} changes a setting of a config file, and no --config=FILE.py was given.")
        options.overrides, options.command_line = overrides, rest
        _check_out(options)
        check_files(options)
        check_settings(options)
        return command.run(options)
    except ValueError as error:
        if not _is_sentence(error):
            raise
        return _fail(str(error))
    except BrokenPipeError:
        # The reader of our output went away (as in `moejax laws | head`).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE


def _check_out(options: argparse.Namespace) -> None:
    """Say at once, and not after the work, that results cannot be written to a folder."""
    out = getattr(options, "out", None)
    if out is None or "://" in str(out) or getattr(options, "out_is_file", False):
        return
    at = next((path for path in (Path(out), *Path(out).parents) if path.exists()), None)
    if at is not None and not at.is_dir():
        raise UserError(f"The results cannot be written to {out}: {at} is a file; choose another --out.")


def _is_sentence(error: ValueError) -> bool:
    """Whether moejax raised this itself, as a sentence for the user, and not a library because of a mistake of ours."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return last is not None and Path(last.tb_frame.f_code.co_filename).is_relative_to(Path(moejax.__file__).parent)


def _help() -> str:
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:<{width}}   {line}" for name, line in COMMANDS.items())
    return f"{_INTRODUCTION}\ncommands:\n{commands}\n\n{_CONVENTIONS}"


def _fail(message: str) -> int:
    print(f"moejax: {message}", file=sys.stderr)
    return USERS
