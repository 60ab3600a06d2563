"""Write the conclusions of a study, run table or fit as one page with figures."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

from moejax.cli.options import argument, flag_of, given, option, out
from moejax.cli.out_folder import check_outputs, out_folder
from moejax.cli.progress import progress_display
from moejax.cli.shared import Positive, TableOptions
from moejax.errors import UserError
from moejax.folder import fit_in
from moejax.json_text import json_text
from moejax.ranges import Resamples
from moejax.run_table import ENDINGS, TABLE
from moejax.say import say
from moejax.wording import listed

EXAMPLE = """\
  moejax report runs/quickstart
  moejax report runs.csv --map params_active=N_a --map params_total=N --flops 1e24
  moejax report fit
  moejax report runs/quickstart --json > conclusions.json"""
OUTPUTS = ("report.html", "report.md", "report.json", "runs.parquet", "loss-vs-compute.pdf")


@dataclass(frozen=True, kw_only=True)
class ReportCommand(TableOptions, name="report"):
    """Write an HTML page, with Markdown and JSON files, about a trained study (its folder), a table of runs (to which
    laws are fitted), or a fit (its folder or fit.json).
    """

    source: str = argument("folder of a study or a fit, run table, or fit.json", metavar="DIR|RUNS|FIT")
    out: Path | None = out("output folder, for a table or a fit (default: NAME-report next to it)")
    laws: str = option(
        "",
        "laws to fit, separated by commas (default: the most common ones that the columns allow)",
        metavar="NAMES",
        group="a run table",
    )
    flops: Positive | None = option(
        None,
        "budget of the decisions (default: ten times the largest run's FLOPs)",
        metavar="NUMBER",
        group="a run table",
    )
    resamples: Resamples = option(300, "number of bootstrap resamples", metavar="COUNT", group="a run table")

    @property
    def _place(self) -> tuple[Path, Path]:
        source = fit_in(Path(self.source))
        return source, self.out or source.parent / f"{source.name.split('.')[0]}-report"

    def check(self) -> None:
        source, folder = self._place
        of_study = not source.name.endswith((".json", *ENDINGS))
        if not source.name.endswith(ENDINGS):
            read = {"json", "source"} if of_study else {"json", "source", "out"}
            if unread := [name for name in given(self) if name not in read]:
                names = listed(flag_of(ReportCommand, name) for name in unread)
                kind, table = ("a study", source / TABLE) if of_study else ("a fit", "its run table")
                raise UserError(
                    f"{source} is {kind}, and its report does not use {names}. Leave {names} out, or give "
                    f"{table} for a report of these runs."
                )
        if not of_study:
            check_outputs(folder, OUTPUTS)

    def run(self) -> None:
        from moejax.laws import law_name
        from moejax.papers.plots import ALL
        from moejax.papers.recipes import STUDY_RECIPES
        from moejax.report import fit_report, render
        from moejax.report.conclusions import brief
        from moejax.report.findings import read
        from moejax.report.page import as_data, write_report
        from moejax.study.run import conclude, conclude_runs

        source, folder = self._place
        if source.name.endswith(".json"):
            fit = fit_report.ReportedFit.load(source)
            with out_folder(folder), progress_display() as update:
                path = fit_report.write_fit_report(fit, folder, ALL, update)
            render.show(fit_report.summary(fit), as_json=self.json)
        else:
            table = self.read(source, ()) if source.name.endswith(ENDINGS) else None
            # A study's own folder belongs to moejax, so its report is replaced there.
            with out_folder(None if table is None else folder), progress_display() as update:
                if table is not None:
                    concluded = conclude_runs(
                        table,
                        source.name,
                        folder,
                        update,
                        laws=[law_name(name) for name in self.laws.split(",") if name],
                        flops=self.flops,
                        resamples=self.resamples,
                    )
                else:
                    concluded = conclude(source, update, STUDY_RECIPES)
                update(1.0, "drawing")
                path = write_report(concluded)
            if self.json:
                print(json_text(as_data(concluded)))
            else:
                result, said = brief(read(concluded)), () if table is None else table.notes
                # Notes on the table are printed when it is read.
                render.show(replace(result, warnings=[text for text in result.warnings if text not in said]))
        if not self.json:
            say("", f"report: {path.resolve()}", file=sys.stdout)
