"""Write ``docs/api.md``: the public names of ``moejax`` and of the modules that scripts import, with their purposes.

``make settings`` runs this file as a program, which regenerates the page. On the site, each ``:::`` line becomes the
full documentation of its module.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import moejax
from moejax.report.render import markdown_table
from moejax.result import Column, Table

PAGE = Path("docs", "api.md")
SECTIONS = {
    "`import moejax as mj`": ("api.commands",),
    "Laws": ("architecture", "laws.design", "laws.law", "laws.claim", "laws.predict", "laws.accounting"),
    "Run tables and fits": (
        *("run_table", "fit.tables.read_runs", "fit.search.fit_law", "fit.uncertainty.bootstrap"),
        *("fit.selection.holdout", "fit.uncertainty.estimates"),
    ),
    "Designs": ("design.problem", "design.decide", "design.frontier", "design.leverage"),
    "Models": ("routing.routing", "routing.moe_block", "model.transformer", "model.runtime"),
    "Training and studies": ("train.training", "train.step", "study.study"),
}
"""Modules of each section."""
HEAD = """\
# Python

[In a notebook](notebook.md) shows the functions of `import moejax as mj`. This page lists them and the modules that
scripts import most often. Annotations give array shapes, and names give units.
"""
FOOT = "*Written by `make settings` from the docstrings; it is not edited by hand.*"


def page() -> str:
    """Return the page in Markdown."""
    parts = [HEAD]
    for title, names in SECTIONS.items():
        modules = [f"moejax.{name}" for name in names]
        if modules == ["moejax.api.commands"]:
            columns = [Column(name, words=True) for name in ("name", "purpose")]
            offered = {name: getattr(moejax, name) for name in dir(moejax) if name != "__version__"}
            # An earlier name of a function has no row.
            own = {name: one for name, one in offered.items() if one.__name__.rpartition(".")[2] == name}
            rows = [[f"`mj.{name}`", _purpose(one)] for name, one in own.items()]
        else:
            columns = [Column(name, words=True) for name in ("module", "name", "purpose")]
            rows = [row for module in modules for row in _rows(module)]
        table = markdown_table(Table("", columns, rows), lambda text: text.replace("|", "\\|").replace("<", "&lt;"))
        parts.append("\n".join([f"## {title}\n", f"{table}\n", *(f"::: {module}" for module in modules), ""]))
    return "\n".join([*parts, FOOT, ""])


def _rows(name: str) -> Iterator[list[str]]:
    module, shown = importlib.import_module(name), f"`{name}`"
    for key, one in vars(module).items():
        if not key.startswith("_") and callable(one) and getattr(one, "__module__", "") == name:
            yield [shown, f"`{key}`", _purpose(one)]
            shown = ""


def _purpose(one: object) -> str:
    """Return the first sentence of a docstring."""
    text = inspect.getdoc(getattr(one, "__wrapped__", one)) or ""
    paragraph = " ".join(text.partition("\n\n")[0].split())
    return re.split(r"(?<=[.])\s", paragraph)[0].removesuffix(".").replace("``", "`")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
