"""List the laws, show or cite one law, or write a page for each law."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from moejax.cli.options import Command, argument, option
from moejax.cli.progress import progress_display
from moejax.say import say

EXAMPLE = """\
  moejax laws show five_factor
  moejax cite five_factor
  moejax laws --pages docs"""


@dataclass(frozen=True, kw_only=True)
class LawsCommand(Command, name="laws"):
    """List the laws with their inputs and published constants, show one law, or write their pages."""

    pages: Path | None = option(
        None,
        "write DIR/laws/NAME.md for every law, replacing older pages; DIR must contain errata.md and gallery.md",
        metavar="DIR",
        output=True,
    )

    def run(self) -> None:
        from moejax.report import render
        from moejax.report.laws import every_law

        if self.pages:
            _write_pages(self.pages)
        else:
            render.show(every_law(), as_json=self.json)


def _write_pages(docs: Path) -> None:
    # Pages import figures and papers, which a list of laws does not need.
    from moejax.cli.out_folder import out_folder
    from moejax.reference.laws import write_pages

    with out_folder(docs, shared=True), progress_display() as update:
        say(write_pages(docs, update), file=sys.stdout)


@dataclass(frozen=True, kw_only=True)
class LawsShowCommand(Command, name="laws show"):
    """Show one law with its coefficients and published constants."""

    law: str = argument("name of a law or its paper", metavar="NAME")

    def run(self) -> None:
        from moejax.report import render
        from moejax.report.laws import one_law

        render.show(one_law(self.law), as_json=self.json)


@dataclass(frozen=True, kw_only=True)
class CiteCommand(Command, name="cite"):
    """Print BibTeX entries and arXiv numbers of a law's papers: first for its form, then for its constants."""

    law: str = argument("name of a law or its paper", metavar="LAW")

    def run(self) -> None:
        from moejax.json_text import json_text
        from moejax.laws.references import references_of

        references = references_of(self.law)
        if self.json:
            entries = [{"key": one.key, "arxiv": one.arxiv or None, "bibtex": one.bibtex()} for one in references]
            print(json_text(entries))
            return
        # BibTeX ignores text outside entries.
        print("\n\n".join(f"% {one.where}\n{one.bibtex()}" for one in references))
