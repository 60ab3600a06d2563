"""Recompute the numbers of five papers and compare them with the printed numbers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moejax.cli.options import local, option
from moejax.cli.out_folder import check_outputs, out_file
from moejax.cli.progress import progress_display
from moejax.cli.shared import ConventionOptions
from moejax.folder import write_text
from moejax.json_text import json_text
from moejax.say import say

EXAMPLE = """\
  moejax reproduce
  moejax reproduce --paper zhao --json zhao.json
  moejax reproduce --errata errata.md"""


@dataclass(frozen=True, kw_only=True)
class ReproduceCommand(ConventionOptions, name="reproduce"):
    """Recompute every computable number of five papers on Mixture-of-Experts scaling, and compare it with the printed
    number. Each comparison has a verdict. The exit status is 1 if a verdict differs from the recorded one.
    """

    paper: str | None = option(None, "one of zhao, abnar, chapter_002, tian, li", metavar="NAME")
    json: Any = option(
        None,
        "write every record as JSON to FILE; without FILE, to stdout instead of the tables",
        metavar="FILE",
        bare="-",
        read=local,
        output=True,
    )
    errata: Path | None = option(
        None, "write the numbers that cannot be reproduced, as Markdown for the authors", metavar="FILE", output=True
    )
    verdicts: Path | None = option(
        None, "compare with the verdicts in this file instead of the recorded ones", metavar="FILE"
    )
    record: Path | None = option(None, "write the verdicts in the format of --verdicts", metavar="FILE", output=True)

    def run(self) -> int:
        from moejax.laws.active_params import ACTIVE_PARAMS, DEFAULT, convention, sentence
        from moejax.papers.errata import errata
        from moejax.papers.reproduce import as_text, changes, chosen, read_verdicts, recorded, reproduce, summary
        from moejax.report import render

        papers = chosen(self.paper)
        shown = self.json == Path("-")
        for path in (None if shown else self.json, self.errata, self.record):
            if path is not None:
                check_outputs(path.parent, (path.name,))
        taken = convention(self.active_convention)
        name = next(key for key, one in ACTIVE_PARAMS.items() if one == taken)
        known = read_verdicts(self.verdicts) if self.verdicts else recorded()
        with progress_display() as update:
            records = reproduce(papers, update, active_convention=name)
        every = json_text([record.as_json() for record in records], ensure_ascii=False)
        if shown:
            print(every)
        else:
            render.show(summary(records))
        for path, content in (
            (None if shown else self.json, every + "\n"),
            (self.errata, errata(records)),
            (self.record, as_text(records)),
        ):
            if path is not None:
                with out_file(path):
                    write_text(path, content)
        if self.record:
            return 0
        if self.active_convention and "abnar" in papers:
            say(sentence(taken))
        if name != DEFAULT:
            say(f"Recorded verdicts use the convention {DEFAULT}, so no verdict is compared.")
            return 0
        changed = changes(records, known)
        for change in changed:
            say(change)
        return 1 if changed else 0
