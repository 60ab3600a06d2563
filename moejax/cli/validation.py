"""Validate a command's arguments before JAX is imported: missing files, unknown settings, invalid output folders."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from moejax import run_table
from moejax.cli import config_file
from moejax.cli.out_folder import check_outputs
from moejax.cli.settings import Open, settings_of
from moejax.errors import UserError
from moejax.say import say

INPUTS = ("runs", "source", "pilot", "candidates", "fit", "law", "config", "verdicts", "tokenizer", "model")
"""Options that may name an input file."""


def validate(arguments: argparse.Namespace, outputs: tuple[str, ...]) -> None:
    """Validate arguments independently of the computation. ``outputs`` are the names of the files written to ``--out``.

    Raises:
      UserError: a file is missing, a setting does not exist, or the results cannot be written.
    """
    validate_out(arguments, outputs)
    validate_files(arguments)
    validate_settings(arguments)


def input_files(arguments: argparse.Namespace) -> list[Path]:
    """Return the input files among a command's arguments."""
    given = [str(value) for name in INPUTS if isinstance(value := getattr(arguments, name, None), str | Path)]
    return [Path(text) for word in given for text in (word, word.partition(":")[0]) if _is_file(Path(text))]


def validate_out(arguments: argparse.Namespace, outputs: tuple[str, ...]) -> None:
    """Raise ``UserError`` if results cannot be written to ``--out``."""
    out = getattr(arguments, "out", None)
    if out is not None and any(ord(letter) < 32 or ord(letter) == 127 for letter in str(out)):
        raise UserError(f"--out is {str(out)!r}; a folder's name has no line breaks or other control characters here.")
    if out is None or "://" in str(out) or getattr(arguments, "out_is_file", False):
        return
    at = next((path for path in (Path(out), *Path(out).parents) if path.exists()), None)
    if at is not None and not at.is_dir():
        raise UserError(f"The results cannot be written to {out}: {at} is a file; choose another --out.")
    check_outputs(Path(out), outputs)


def validate_files(arguments: argparse.Namespace) -> None:
    """Raise ``UserError`` if a config, table or fit that a command reads does not exist."""
    if (config := getattr(arguments, "config", None)) and not is_one_of_many(arguments):
        file = config_file.find(config)
        if not Path(config.partition(":")[0]).exists():
            say(f"moejax: {config} is not here, so moejax's own is read: {file}")
    for name in ("runs", "pilot", "candidates"):
        if (table := getattr(arguments, name, None)) is not None and not Path(table).exists():
            run_table.check_source(table)
    for name in ("fit", "law"):
        if str(fit := getattr(arguments, name, None)).endswith(".json"):
            validate_fit(Path(str(fit)))


def fit_in(source: Path) -> Path:
    """Return the fit in a folder of ``moejax fit``; any other path is returned unchanged."""
    fit = source / "fit.json"
    return fit if _is_file(fit) and not (source / "study.json").exists() else source


def law_or_fit(text: str) -> str:
    """Return a law's name, or the file of a fit given by its file or folder; a type for ``add_argument``.

    The name of a law takes precedence over a folder of this name. With a slash it is the folder.
    """
    fit = fit_in(Path(text))
    return text if fit == Path(text) or ("/" not in text and _is_law(text)) else str(fit)


def _is_law(text: str) -> bool:
    # Laws import JAX, which is worth it only if a folder has a fit.
    from moejax.laws.predict import law_name

    try:
        return text == "all" or bool(law_name(text))
    except UserError:
        return False


def validate_fit(path: Path) -> None:
    """Raise ``UserError`` if the file does not exist."""
    if not path.is_file():
        raise UserError(f"There is no fit at {path}; moejax fit --out DIR writes DIR/fit.json.")


def validate_settings(arguments: argparse.Namespace) -> None:
    """Raise ``UserError`` for an override ``--config.a.b=VALUE`` that is wrong for any config file."""
    described = getattr(arguments, "described", ())
    if described and arguments.overrides and not is_one_of_many(arguments):
        known = settings_of(*described)
        for word in arguments.overrides:
            if _is_decided(known, word.partition("=")[0].split(".")[1:]):
                config_file.override(known, word)


def is_one_of_many(arguments: argparse.Namespace) -> bool:
    """Return whether this is one of several processes, which must report errors to the others first."""
    return getattr(arguments, "distributed", False) or getattr(arguments, "processes", None) is not None


def _is_decided(known: Any, path: Sequence[str]) -> bool:
    """Return whether the kind of a setting, or its absence, is known without the config file."""
    for key in path:
        if not isinstance(known, dict):
            return not isinstance(known, list)
        if key not in known:
            return not isinstance(known, Open)
        known = known[key]
    return not isinstance(known, Open)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False
