"""Draw figures from published laws, a fit, or a table."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moejax.cli.options import argument, option
from moejax.cli.out_folder import out_folder
from moejax.cli.progress import progress_display
from moejax.cli.shared import ConventionOptions, Positive, TableOptions, numbers
from moejax.errors import UserError
from moejax.folder import fit_in
from moejax.json_text import json_text
from moejax.ranges import FigureWidth
from moejax.say import say
from moejax.wording import listed

if TYPE_CHECKING:
    from moejax.papers.plots import GivenData

EXAMPLE = """\
moejax plot --list
moejax plot zhao-3 abnar-4 tian-1b
moejax plot --paper abnar --synthetic
moejax plot zhao --fit fit.json --runs runs.parquet --out figures --format png,svg,pdf
moejax plot fit profile influence starts --fit fit.json --runs runs.csv
moejax plot influence --fit fit.json --runs runs.csv --estimand 'L*' --decide flops=1e22,expansion=16
moejax plot loss-vs-compute --fit fit/fit.json --runs runs.csv --flops 1e24 --format pdf
moejax plot loss-vs-compute --fit fit/fit.json --runs runs.csv --decide flops=1e24,expansion=16 --width 3.3
moejax plot isoflop leverage --fit fit/fit.json --runs runs.csv
moejax plot zhao-5 --runs compared/predicted_vs_actual.csv
moejax plot zhao-6 zhao-12 --runs runs.csv --hold-out params_total
moejax plot plan --runs plan/plan.json
moejax plot loss runs/quickstart
moejax plot restarts --runs runs/quickstart"""


@dataclass(frozen=True, kw_only=True)
class PlotCommand(TableOptions, ConventionOptions, name="plot"):
    """Draw figures by name: papers' figures, from their laws or from your fit and runs, and figures of a fit or a
    training run.
    """

    ONE_OF = ("names", "paper", "list", "gallery")
    names: tuple[str, ...] = argument(
        "names of figures or a paper (zhao, abnar, chapter_002, tian, li); the figure loss is followed by folders of "
        "training runs or studies",
        metavar="NAME",
        default=(),
    )
    paper: str | None = option(
        None,
        "draw every numbered figure of a paper (zhao, abnar, chapter_002, tian, li), or state why a figure is not "
        "drawn",
        metavar="NAME",
        excludes=("names",),
    )
    list: bool = option(False, "list every figure with its content", excludes=("names", "paper"))
    fit: Path | None = option(
        None,
        "path of a fit.json, or of the folder that contains it: draw the fitted law",
        metavar="FIT",
        read=lambda text: fit_in(Path(text)),
    )
    runs: Path | None = option(
        None, "a run table, or the table that a figure needs; a study's folder; plan.json", metavar="TABLE"
    )
    estimand: str | None = option(
        None,
        "coefficient, decision or predicted loss for the figure influence (default: the last coefficient)",
        metavar="NAME",
    )
    decide: tuple[str, ...] = option(
        (),
        "given values of a decision, such as flops=1e24,expansion=16: its curve and model in loss-vs-compute, or "
        "--estimand of influence",
        metavar="NAME=VALUE,…",
        needs=("fit",),
    )
    predict: tuple[str, ...] = option(
        (),
        "untrained run whose predicted loss is --estimand loss, such as params_active=7B,tokens=1T",
        metavar="NAME=VALUE,…",
        needs=("estimand",),
    )
    flops: Positive | None = option(
        None, "target budget for loss-vs-compute and isoflop; largest budget for leverage", metavar="NUMBER"
    )
    hold_out: str | None = option(
        None,
        "held-out runs of figures that fit laws to --runs: COLUMN, COLUMN:LEAST or COLUMN=VALUE (default: none)",
        metavar="COLUMN",
    )
    synthetic: bool = option(False, "draw figures that need a table from synthetic data")
    format: str = option("png,svg", "formats (png, svg, pdf), separated by commas", metavar="NAMES")
    width: FigureWidth | None = option(
        None,
        "width of the images (default: 7.2; 3.3 fits a column of a two-column paper); narrow panels are stacked",
        metavar="INCHES",
    )
    out: Path = option(Path("figures"), "output folder", metavar="DIR", output=True)
    gallery: Path | None = option(None, "write DIR/gallery.md with every figure, and exit", metavar="DIR", output=True)

    def run(self) -> None:
        from moejax.papers.plots import (
            ALL,
            GivenData,
            draw_named,
            draw_paper,
            every_figure,
            figures_and_folders,
            formats_of,
            write,
        )
        from moejax.report import render
        from moejax.report.plots import write_gallery

        if self.list:
            render.show(every_figure(), as_json=self.json)
            return
        if self.gallery:
            with out_folder(self.gallery, shared=True), progress_display() as update:
                say(write_gallery(self.gallery, ALL.values(), update), file=sys.stdout)
            return
        names, folders = figures_and_folders(self.names)
        if folders and self.runs is not None and {*names} == {"loss"}:
            raise UserError(
                f"The figure loss is drawn from the folders after its name ({listed(map(str, folders))}), so --runs "
                f"{self.runs} would not be used. Leave it out, or add it to these folders."
            )
        formats, given = formats_of(self.format), GivenData(self._options(folders))
        if self.paper is not None:
            with out_folder(self.out), progress_display() as update:
                result = draw_paper(self.paper, given, self.out, formats, update, self.width)
            render.show(result, as_json=self.json)
            return
        with progress_display() as update:
            drawn = draw_named(names, given, update)
        if self.runs is not None:
            self.keep_mapping(self.runs)
        for name in filter(given.law_alone.get, drawn.figures):
            say(f"{name}: {given.law_alone[name]}.")
        if left_out := drawn.left_out:
            say(f"Left out: {', '.join(left_out)}; moejax plot {left_out[0]} shows what it needs.")
        with out_folder(self.out):
            written = {
                name: write(self.out, ALL[name], figure, formats, self.width) for name, figure in drawn.figures.items()
            }
        if self.json:
            print(json_text(written))
        else:
            self._say(written, given)
        if drawn.failed:
            raise UserError(" ".join(f"{name} is not drawn: {error}" for name, error in drawn.failed.items()))

    def _say(self, written: Mapping[str, Any], given: GivenData) -> None:
        from moejax.papers.plots import SYNTHETIC

        for name, one in written.items():
            made_up = f" ({SYNTHETIC})" if name in given.synthetic else ""
            say(f"{name}: {one['title']}. {', '.join(one['files'])}{made_up}", f"  {one['caption']}", file=sys.stdout)
        say(f"Wrote to {self.out}.")

    def _options(self, folders: Sequence[Path]):
        from moejax.papers.plots import PlotOptions

        return PlotOptions(
            fit=self.fit,
            runs=self.runs,
            read=lambda table, law, loss, usual: replace(self, loss=loss).read(table, law, usual=usual),
            mapping=self.mapping(self.runs),
            where=self.where,
            loss=self.loss,
            drop_invalid=self.drop_invalid,
            synthetic=self.synthetic,
            hold_out=self.hold_out,
            estimand=self.estimand,
            decide=[numbers(text.split(","), "--decide") for text in self.decide],
            predict=[numbers(text.split(","), "--predict") for text in self.predict],
            flops=self.flops,
            folders=folders,
            active_convention=self.active_convention,
        )
