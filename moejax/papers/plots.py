"""Collect the five documents' figures, and draw figures by name from published laws, a fit or a table."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from moejax import run_table
from moejax.errors import UserError
from moejax.fit.fit_result import FitResult, check_runs_of, load_of_runs
from moejax.fit.selection.holdout import split_by
from moejax.fit.tables.column_names import with_our_names
from moejax.fit.tables.expression import mapped, select
from moejax.fit.tables.read_runs import ReadRuns
from moejax.fit.tables.units import check_units
from moejax.fit.uncertainty.estimates import decided_design
from moejax.json_text import finite
from moejax.laws.active_params import convention
from moejax.papers.abnar import figures as abnar
from moejax.papers.abnar import score_figures as abnar_scores
from moejax.papers.chapter_002 import figures as chapter_002
from moejax.papers.documents import ABNAR, CHAPTER_002, LI, TIAN, ZHAO
from moejax.papers.li import figures as li
from moejax.papers.tian import budget_figures, isoflop_figures, leverage_figures
from moejax.papers.tian import score_figures as tian_scores
from moejax.papers.zhao import coefficient_figures, expert_figures, loss_figures, prediction_figures
from moejax.report import sources
from moejax.report.figures import evidence
from moejax.report.figures.compute import compute_table
from moejax.report.figures.figure import FORMATS, Figure, write_figure
from moejax.report.figures.isoflop import isoflop_table, leverage_table
from moejax.report.plots import PLOTS, FromRuns, Plot, chosen, draw, example_of, figures_of, inputs_of
from moejax.result import Column, Result, Table
from moejax.run_sources.column_mapping import ColumnMapping
from moejax.run_table import DataFrame
from moejax.say import ProgressCallback, say, say_once
from moejax.wording import counted, did_you_mean, told

MODULES = (
    *(coefficient_figures, expert_figures, loss_figures, prediction_figures),
    *(abnar, abnar_scores),
    *(budget_figures, isoflop_figures, leverage_figures, tian_scores),
    *(chapter_002, li),
)
"""Modules that register figures when they are imported."""
DOCUMENTS = {"zhao": ZHAO, "abnar": ABNAR, "tian": TIAN, "chapter_002": CHAPTER_002, "li": LI}
"""Documents, keyed by their names in ``moejax reproduce``."""
ALL = {plot.name: plot for document in DOCUMENTS.values() for plot in document.in_order().values()} | PLOTS
"""All figures by name."""
EVIDENCE = ("fit", "profile", "influence", "starts", "loss-vs-compute", "isoflop", "leverage")
"""Figures whose tables are computed from a fit and its runs."""


SYNTHETIC = "its points are synthetic"


@dataclass(frozen=True, kw_only=True)
class PlotOptions:
    """Data for figures: a fit, runs, and options for reading the runs."""

    fit: Path | None
    runs: Path | None
    read: Callable[[Any, Any, str, Mapping[str, Any] | None], ReadRuns]
    """Function ``read(table, law_or_columns, loss_column)`` that returns the runs."""
    mapping: ColumnMapping
    where: Sequence[str]
    loss: str
    drop_invalid: bool
    synthetic: bool
    hold_out: str | None
    estimand: str | None
    decide: Sequence[Mapping[str, float]]
    """Given quantities of decisions, for ``estimand``."""
    predict: Sequence[Mapping[str, float]]
    """Quantities of runs to predict, for ``estimand``."""
    flops: float | None
    folders: Sequence[Path]
    """Folders of training runs or studies, for the figure ``loss``."""
    active_convention: str | None


@dataclass(frozen=True)
class DrawnFigures:
    """Drawn figures by name, the names of a paper's omitted figures, and why requested figures are not drawn."""

    figures: Mapping[str, Figure]
    left_out: Sequence[str]
    failed: Mapping[str, UserError]


def figures_and_folders(words: Sequence[str]) -> tuple[list[str], list[Path]]:
    """Split words into figures and, after the figure ``loss``, folders of training runs or studies."""
    start = words.index("loss") if "loss" in words else len(words)
    folders = [word for word in words[start:] if not figures_of(word, ALL)]
    return [word for word in words if word not in folders], list(map(Path, folders))


def draw_named(names: Sequence[str], given: GivenData, update: ProgressCallback) -> DrawnFigures:
    """Draw figures by figure name or paper name. For a paper, omit figures that cannot be drawn.

    Raises:
      UserError: no figure can be drawn.
    """
    plots = chosen(names, ALL)
    every, left_out, failed = {}, [], {}
    for number, plot in enumerate(plots):
        update(number / len(plots), f"drawing {plot.name}")
        try:
            every[plot.name] = given.figure(plot)
        except UserError as error:
            if len(plots) == 1 or (plot is plots[-1] and not every):
                raise
            if plot.name in names:
                failed[plot.name] = error
            else:
                left_out.append(plot.name)
    return DrawnFigures(every, left_out, failed)


def draw_paper(
    paper: str,
    given: GivenData,
    folder: Path,
    formats: Sequence[str],
    update: ProgressCallback,
    width: float | None = None,
) -> Result:
    """Draw a document's figures into a folder, and return each figure's files or the reason why it is not drawn."""
    asked = paper.strip().lower().replace("-", "_")
    if asked not in DOCUMENTS:
        raise UserError(f"There is no paper '{paper}' to draw; {did_you_mean(asked, DOCUMENTS)}")
    figures = {number: plot.name for number, plot in DOCUMENTS[asked].in_order().items()}
    # All figures are computed before the first is written.
    every: dict[str, Figure] = {}
    reasons: dict[str, str] = {}
    given.check_table()
    for done, (number, name) in enumerate(figures.items()):
        update(done / len(figures), f"drawing {name}")
        try:
            every[number] = given.figure(ALL[name])
        except UserError as error:
            reasons[number] = told(error)
    if not every:
        said = dict.fromkeys(reasons.values())
        raise UserError(f"No figure of {paper} can be drawn: {' '.join(said)}")
    files = {
        number: write(folder, ALL[figures[number]], figure, formats, width)["files"] for number, figure in every.items()
    }
    order = sorted(figures, key=_by_number)
    alone = {number: given.law_alone[figures[number]] for number in every if figures[number] in given.law_alone}
    made_up = {number for number in every if figures[number] in given.synthetic}
    rows, first = [], {}
    for number in order:
        about = [alone.get(number), SYNTHETIC if number in made_up else None]
        said = "; ".join([", ".join(files[number]), *filter(None, about)]) if number in files else ""
        reason = reasons.get(number, "")
        # A reason that several figures share is printed once.
        before = first.setdefault(reason, number)
        rows.append(
            [number, said or (reason if before == number else f"not drawn, for the same reason as figure {before}")]
        )
    columns = (Column("figure"), Column("files, or why it is not drawn", words=True))
    data = {
        "paper": paper,
        "figures": [
            {"number": number, "name": figures[number], "files": files[number]}
            | {"without_runs": alone.get(number), "synthetic": number in made_up}
            if number in files
            else {"number": number, "not_drawn": reasons[number]}
            for number in order
        ],
    }
    without = f" {len(alone)} of them show no runs." if alone else ""
    without += f" {len(made_up)} of them show synthetic points; the images do not state this." if made_up else ""
    said = f"{len(files)} of {len(order)} figures drawn, each with its data as CSV.{without}"
    return Result(tables=[Table("", columns, rows)], notes=[said], data=data)


def _by_number(number: str) -> tuple[int, str]:
    """Return a sort key for the document's order: 1a, 1b, 2, …; figures without a number come last."""
    digits = number.rstrip("abcdefghijklmnopqrstuvwxyz")
    return (int(digits) if digits else sys.maxsize, number)


def write(
    folder: Path, plot: Plot, figure: Figure, formats: Sequence[str], width: float | None = None
) -> dict[str, Any]:
    """Write a figure with its data, and return its description, keyed by name."""
    files = write_figure(folder, plot.name, lambda: figure, formats, width)
    data = {"title": figure.title, "caption": figure.caption, "source": plot.source}
    return {**data, "files": [str(folder / file) for file in files], "rows": finite(list(figure.rows))}


class GivenData:
    """The user's fit and tables for figures, each read once."""

    def __init__(self, options: PlotOptions):
        self.options = options
        self.fit = load_of_runs(options.fit) if options.fit else None
        self.tables: dict[str, Any] = {}
        self.made: dict[Any, Any] = {}
        self.law_alone: dict[str, str] = {}
        """Figures that show none of the user's runs, with the reason."""
        self.synthetic: set[str] = set()
        """Figures whose points are synthetic."""

    def figure(self, plot: Plot) -> Figure:
        """Return one figure.

        Raises:
          UserError: the figure cannot be drawn, or the table has no data for it.
        """
        inputs = self.inputs(plot)
        if inputs.synthetic:
            self.synthetic.add(plot.name)
        figure = draw(plot, inputs)
        if not figure.rows:
            raise UserError(
                f"{plot.name} has nothing to draw: no row of the table has all of {', '.join(plot.columns)}. Add these "
                f"columns, or name them with --map."
            )
        if plot.law and plot.columns and inputs.table is not None and not (inputs.synthetic or plot.needs_table):
            # For figures that exist without a table, only the added rows are runs.
            bare = draw(plot, replace(inputs, table=None))
            if _points(bare) == _points(figure):
                why = (
                    "the fits to the runs gave no value for this figure"
                    if plot.from_runs
                    else "no run with a loss has the fixed values of this figure's curves"
                )
                self.law_alone[plot.name] = f"only the law is drawn; {why}"
        return figure

    def inputs(self, plot: Plot) -> Any:
        """Return the inputs of one figure."""
        name = plot.name
        if self.options.synthetic and plot.needs_table:
            return example_of(plot)
        table = self._table(name)
        if name in EVIDENCE and self.fit is not None and table is None:
            raise UserError(
                f"{name} needs a fit and the runs that it was fitted to, but no runs were given. Give them with "
                f"--runs, or give predictions.csv from the folder of {self.options.fit}."
            )
        if name in EVIDENCE and self.fit is not None and table is not None and not {*plot.columns} <= {*table}:
            table = self._evidence(name, self.fit)
        if plot.from_runs is not None and table is not None and not {*plot.columns} <= {*table}:
            table = self._from_runs(plot, plot.from_runs)
        law = self.fit.law if self.fit is not None and plot.law else None
        words = f"the fit in {self.options.fit}" if law is not None else ""
        found = replace(
            inputs_of(plot, law=law, law_name=words, table=table),
            active_params=convention(self.options.active_convention),
        )
        if table is not None and not plot.columns:
            self.law_alone[name] = "only the law is drawn; this figure shows no points of a table"
        elif table is not None and found.table is None:
            self.law_alone[name] = f"only the law is drawn; points need {', '.join(plot.columns)}"
        return found

    def _table(self, name: str) -> Any:
        path = self.options.runs
        if name == "loss" and self.options.folders:
            return sources.losses_table(*self.options.folders)
        if name == "loss" and path is None:
            raise UserError(
                "The figure loss needs the logs of training runs. Add the folder of a training run or a study: "
                "moejax plot loss runs/quickstart."
            )
        if path is None:
            return None
        key = name if self._differs_by_figure() else ""
        if key not in self.tables:
            self.tables[key] = _renamed(sources.read(name, path), self.options, of_runs=not key)
        return self.tables[key]

    def check_table(self) -> None:
        """Raise ``UserError`` once if the table cannot be read, instead of once per figure."""
        if self.options.runs is not None and not self._differs_by_figure():
            self._table("")

    def _differs_by_figure(self) -> bool:
        """Return whether --runs is a folder or a plan, from which figures read different tables."""
        path = self.options.runs
        return path is not None and (path.is_dir() or path.suffix == ".json")

    def _from_runs(self, plot: Plot, make: FromRuns) -> Any:
        """Return a figure's table, computed from fits to the run table. Figures with the same function share the
        table."""
        if make.table not in self.made:
            try:
                read = self._read(make.reads)
            except UserError as error:
                raise UserError(f"{plot.name} needs runs with {', '.join(make.reads)}. {error}") from error
            split = split_by(read, self.options.hold_out) if self.options.hold_out else None
            law = self.fit.law if self.fit is not None and plot.law else None
            is_given = "flops" in self.options.mapping.expressions
            runs, note = (read.runs, "") if is_given else make.count(read.runs, read.frame)
            for sentence in filter(None, (note, f"{plot.name}: fitting to {len(runs)} runs.")):
                say(sentence)
            self.made[make.table] = make.table(runs, split, law)
        return self.made[make.table]

    def _read(self, law: Any, output: str | None = None, usual: Mapping[str, Any] | None = None) -> Any:
        """Return the runs for a law or columns.

        Args:
          output: the fitted column if --loss is not given.
          usual: options for reading that the command does not give, such as those of a fit.
        """
        loss = output if output and self.options.loss == "loss" else self.options.loss
        assert self.options.runs is not None
        return self.options.read(sources.run_table_of(self.options.runs), law, loss, usual)

    def _evidence(self, name: str, fit: FitResult) -> Any:
        # For a law with several outputs, the table does not state which output was fitted.
        read = self._read(type(fit.law), fit.output if len(fit.law.outputs) > 1 else None, fit.reading)
        check_runs_of(fit, read.runs)
        options = self.options
        target = options.flops or next((given["flops"] for given in options.decide if "flops" in given), None)
        tables: dict[str, Callable[[], DataFrame]] = {
            "fit": lambda: evidence.fit_table(fit, read.runs),
            "loss-vs-compute": lambda: compute_table(
                fit, read.runs.design, read.runs.loss, flops=options.flops, **_decided(fit, options.decide)
            ),
            "isoflop": lambda: isoflop_table(fit, read.runs, flops=target),
            "leverage": lambda: leverage_table(fit, read.runs, flops=target),
            "starts": lambda: evidence.starts_table(fit, read.runs),
            "profile": lambda: evidence.profile_table(fit, read.runs),
            "influence": lambda: evidence.influence_table(
                fit, read, options.estimand, decide=options.decide, predict=options.predict
            ),
        }
        return tables[name]()


def _decided(fit: FitResult, given: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Return the design of a decision to mark and its loss, as arguments of ``compute_table``; empty without one."""
    if len(given) > 1:
        raise UserError("loss-vs-compute marks one decision; give --decide once.")
    return dict(zip(("chosen", "chosen_loss"), decided_design(fit, given[0]), strict=True)) if given else {}


def _points(figure: Figure) -> int:
    return sum(all(value == value for value in row.values()) for row in figure.rows)


def _renamed(table: DataFrame, options: PlotOptions, of_runs: bool) -> DataFrame:
    """Return the rows that --where selects, with columns renamed by --map and --loss."""
    mapping = dict(options.mapping.expressions)
    if options.loss != "loss":
        mapping["loss"] = options.loss
    named = str(options.runs)
    ours = with_our_names(table, mapping)
    added = mapped(ours.frame, replace(options.mapping, expressions=mapping), named)
    kept, notes = select(added, options.where, named)
    for note in (*options.mapping.notes, *ours.notes(options.mapping), *notes):
        say_once(note)
    if options.drop_invalid and (invalid := run_table.invalid_rows(kept, computed=mapping)).any():
        say(f"{counted(int(invalid.sum()), 'row')} of {named} with invalid values left out.")
        kept = kept[~invalid]
    checked = run_table.check(kept, where=named, computed=mapping)
    if of_runs and "loss" in checked:
        read_from = {**ours.read_from, **mapping}
        _, accepted = check_units(checked, read_from, named, trusted_by=options.mapping.trusted_by)
        for note in accepted:
            say(note)
    return checked


def formats_of(text: str) -> list[str]:
    """Return the formats in a comma-separated text."""
    names = [name.strip().lower().lstrip(".") for name in text.split(",") if name.strip()]
    if not names:
        raise UserError(f"--format {text!r} names no format; choose from {', '.join(FORMATS)}.")
    for name in names:
        if name not in FORMATS:
            raise UserError(f"Unknown figure format '{name}'; choose from {', '.join(FORMATS)}.")
    return names


def every_figure() -> Result:
    """Return all figures in one table per paper."""
    papers: dict[str, list[tuple[str, ...]]] = {}
    for name, plot in ALL.items():
        paper, _, where = plot.source.partition(", ")
        mark = "*" if plot.needs_table else " "
        papers.setdefault(paper, []).append((f"{mark} {name}", where.replace("Figure", "Fig."), plot.shows))
    columns = (Column(""), Column("", words=True), Column("", words=True))
    names = ("shows", "source", "law", "columns", "needs_table")
    notes = [
        "* needs a table; moejax plot NAME lists its columns. The other figures show a law, and runs given as --runs."
    ]
    data = {name: {key: getattr(plot, key) for key in names} for name, plot in ALL.items()}
    return Result(tables=[Table(paper, columns, rows) for paper, rows in papers.items()], notes=notes, data=data)
