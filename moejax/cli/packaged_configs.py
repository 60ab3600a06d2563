"""moejax's own config files, by the names under which help and pages show them, wherever moejax is installed."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import moejax

FOLDER = "configs"
"""Its name beside a reader's work, in a checkout and in the installed package."""


def folder() -> Path:
    """Where they are: in the installed package, or beside it in a checkout."""
    package = Path(moejax.__file__).parent
    return next((path for path in (package / FOLDER, package.parent / FOLDER) if path.is_dir()), package / FOLDER)


def files() -> list[PurePosixPath]:
    """Paths of all of them below ``folder()``."""
    here = folder()
    return sorted(PurePosixPath(path.relative_to(here).as_posix()) for path in here.rglob("*.py"))


def names() -> list[str]:
    """All of them by the names that help and pages show."""
    return [f"{FOLDER}/{path}" for path in files()]


def find(name: str) -> Path | None:
    """The file of a config by its name: ``configs/studies/zhao.py``, ``studies/zhao`` or ``zhao``; None for others."""
    asked = PurePosixPath(name)
    asked = asked.with_suffix("") if asked.suffix == ".py" else asked
    for path in files():
        if asked in (FOLDER / path.with_suffix(""), path.with_suffix(""), PurePosixPath(path.stem)):
            return folder() / path
    return None
