"""Parse the command line, run the command, and turn user errors into sentences.

Exit status: 0 success, 2 user error, 1 bug in moejax or failed check, 75 interrupted (run the command again), 130
stopped by Ctrl-C.
"""

from __future__ import annotations

import dataclasses
import errno
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import moejax
from moejax.cli import COMMANDS
from moejax.cli.options import Command, check
from moejax.cli.out_folder import check_out
from moejax.cli.parser import parse_command
from moejax.cli.process import check_flags, keep_libtpu_quiet, refused_variable
from moejax.errors import ChildError, UserError, out_of_memory
from moejax.folder import is_file, reading
from moejax.say import discard, each_note_once, say
from moejax.wording import did_you_mean, in_command, says

DONE, OTHERS, USERS = 0, 1, 2

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
  moejax --completion        completion for bash: eval "$(moejax --completion)"
  numbers                    with or without suffixes: 30B, 1.5T, 1e22
  --config=FILE.py           an ml-collections file; --config.a.b=VALUE changes one setting

exit status: 0 done, 2 invalid input (the message names the remedy), 1 a bug in moejax or a failed check
             (reproduce, study), 130 stopped by Ctrl-C, 75 interrupted by SIGTERM or the loss of another machine:
             run the same command again
"""


def split_overrides(words: list[str]) -> tuple[list[str], list[str]]:
    """Separate overrides (``--config.a.b=value`` or ``--config.a.b value``) from the other arguments."""
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
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        # Characters that the terminal's encoding lacks (–, µ, names that are not UTF-8) are written as \\u2013.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            return _run(list(words))
        finally:
            # Flush here to report errors. At the end of the process this would not be possible.
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader of the output has exited, as in `moejax laws | head`.
        discard(sys.stdout)
        return DONE
    except OSError as error:
        discard(sys.stdout)
        if error.errno not in CONDITIONS:
            raise
        at = f"{error.filename}: " if error.filename else ""
        return _fail(f"{at}{CONDITIONS[error.errno]} ({says('the system', error)}).")


def _open_closed_streams() -> None:
    """Redirect streams that the caller closed (``>&-``) to the null device, so that the command runs as usual.

    Descriptors 1 and 2 are reopened too. A file that the command opens next would otherwise get the free descriptor and
    receive the output.
    """
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            if nowhere != number:
                try:
                    os.fstat(number)
                except OSError:
                    os.dup2(nowhere, number)
            setattr(sys, name, open(nowhere, "w", encoding="utf-8", closefd=False))  # noqa: SIM115 -- until the end


CONDITIONS = {
    errno.ENOSPC: "the disk is full; free some space and run the command again",
    errno.EDQUOT: "your disk quota is exceeded; free some space and run the command again",
    errno.EFBIG: "the file exceeds the maximum file size; raise the limit (ulimit -f), or choose another disk",
    errno.ENAMETOOLONG: "this name is too long for the disk; give a shorter one",
    errno.EACCES: "you have no permission to read or write this; choose another path, or ask for permission",
    errno.EPERM: "you have no permission to read or write this; choose another path, or ask for permission",
    errno.EROFS: "this disk is read-only; choose a path on another disk",
    errno.ENOENT: "no such file or folder; give an existing one",
    errno.EISDIR: "this is a folder, where a file is needed; name a file",
    errno.ENOTDIR: "a part of this path is a file instead of a folder; choose another path",
    errno.ELOOP: "this symbolic link points back to itself; name a file",
    errno.EMFILE: "too many files are open; raise the limit (ulimit -n) and run the command again",
    errno.EIO: "the disk reported an input/output error; repair it and run the command again",
}
"""Operating-system errors outside moejax's control, each with the remedy."""


def _run(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(_help())
        return DONE
    if words[0] == "--version":
        print(f"moejax {moejax.__version__}")
        return DONE
    if words[0] == "--completion":
        # Only completion imports the options of every command.
        from moejax.cli.reference import completion

        print(completion())
        return DONE
    name, *rest = words
    if name not in COMMANDS:
        return _fail(f"{name} is not a command; {did_you_mean(name, COMMANDS)}")
    with in_command(), each_note_once():
        return _run_command(name, rest)


def _run_command(name: str, rest: list[str]) -> int:
    try:
        given, overrides = split_overrides(rest)
        command = parse_command(name, given, {"overrides": tuple(overrides), "words": tuple(rest)})
        if overrides and not getattr(command, "config", None):
            raise UserError(
                f"{overrides[0]} changes a setting of a config file; also name the file, with --config=FILE.py."
            )
        inputs, outputs = _files(command)
        with reading(inputs):
            for field, place in outputs.items():
                if field.metadata["metavar"] == "DIR":
                    check_out(place, field.metadata.get("files", ()))
            check(command)
            check_flags()
            keep_libtpu_quiet()
            command.prepare()
            return command.run() or DONE
    except UserError as error:
        return _fail(str(error))
    except ChildError as error:
        return _fail(str(error), OTHERS)
    except Exception as error:
        if sentence := refused_variable(error) or out_of_memory(error):
            return _fail(sentence)
        raise


def _files(command: Command) -> tuple[list[Path], dict[dataclasses.Field[Any], str | Path]]:
    inputs, outputs = [], {}
    for field in dataclasses.fields(command):
        value = getattr(command, field.name)
        if field.metadata.get("output"):
            outputs |= {} if value is None else {field: value}
            continue
        for text in value if isinstance(value, tuple) else (value,):
            if isinstance(text, str | Path):
                words = (str(text), str(text).partition(":")[0])
                inputs += [Path(word) for word in words if is_file(Path(word))]
    return inputs, outputs


def _help() -> str:
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:<{width}}   {line}" for name, line in COMMANDS.items())
    return f"{_INTRODUCTION}\ncommands:\n{commands}\n\n{_CONVENTIONS}"


def _fail(message: str, status: int = USERS) -> int:
    # Items of a list at the end of a message are indented by two spaces.
    sentence, *items = f"moejax: {message}".split("\n  ")
    say(sentence, *(f"  {item}" for item in items))
    return status
