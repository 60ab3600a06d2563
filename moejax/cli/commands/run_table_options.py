"""Read a table of runs and its held-out splits by options of the command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from moejax.cli.number import pairs
from moejax.errors import UserError
from moejax.fit.selection.holdout import each_value, folds, split_by
from moejax.fit.tables.read_runs import read_runs
from moejax.say import say


def read_table(arguments: argparse.Namespace, law: Any, also_told_apart_by: Sequence[str] = ()) -> Any:
    """Return the runs that the arguments describe, for a law or columns, and print notes about them to stderr."""
    read = read_without_words(arguments, law, also_told_apart_by)
    for note in read.notes:
        say(note)
    return read


def read_without_words(arguments: argparse.Namespace, law: Any, also_told_apart_by: Sequence[str] = ()) -> Any:
    """Return the same runs without printing notes."""
    return read_runs(
        arguments.runs,
        law,
        mapping=dict(pairs(arguments.map, "--map")),
        where=arguments.where,
        loss=arguments.loss,
        group=arguments.group,
        weight=arguments.weight,
        drop_invalid=arguments.drop_invalid,
        drop_duplicates=arguments.drop_duplicates,
        best_by=_names(arguments.best_by, "--best-by"),
        smooth=arguments.smooth,
        trust_units=arguments.trust_units,
        also_told_apart_by=also_told_apart_by,
    )


def _names(text: str | None, option: str) -> list[str]:
    """Return the columns that an option names, each once."""
    if text is None:
        return []
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise UserError(f"{option} is {text!r} and names no column; name those that were swept, or leave it out.")
    return names


def splits_of(read: Any, arguments: argparse.Namespace) -> list[Any]:
    """Return the splits of --hold-out, --each and --folds."""
    splits = [split_by(read, text) for text in arguments.hold_out]
    splits += each_value(read, arguments.each) if arguments.each else []
    return splits + (list(folds(read.runs, arguments.folds, seed=arguments.seed)) if arguments.folds else [])
