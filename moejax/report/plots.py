"""List all named figures, and write the gallery, a page of the documentation that shows them.

Gallery figures that need a table use ``gallery/NAME.csv`` next to the page if it exists, otherwise synthetic data.
Their captions name the source.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from PIL import Image

from moejax import run_table
from moejax.errors import UserError
from moejax.fit.runs import Runs
from moejax.fit.selection.holdout import Split
from moejax.fit.tables.column_names import with_derived
from moejax.folder import atomic_write, write_text
from moejax.laws.law import Law
from moejax.laws.predict import published
from moejax.report import synthetic
from moejax.report.figures import (
    compute,
    evidence,
    isoflop,
    law_curves,
    loss_curves,
    predictions,
    running,
    runs,
)
from moejax.report.figures.figure import Figure, FigureInputs
from moejax.report.figures.style import PAPER, RC
from moejax.report.stored_structure import with_structure
from moejax.run_table import DataFrame
from moejax.say import ProgressCallback
from moejax.wording import argument, did_you_mean, option_hint, some


@dataclass(frozen=True, kw_only=True)
class FromRuns:
    """Functions that make a figure's table from a run table."""

    reads: tuple[str, ...]
    """``Design`` fields that the runs must have."""
    table: Callable[[Runs, Split | None, Any], DataFrame]
    """``table(runs, held_out, law)`` returns the figure's table; ``law`` is a user's fitted law, or None."""
    count: Callable[[Runs, DataFrame], tuple[Runs, str]] = lambda runs, table: (runs, "")
    """``count(runs, table)`` returns the runs with compute by the paper's convention, and a sentence about the
    convention.
    """


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A named figure."""

    name: str
    """Its name on the command line."""
    source: str = "ours"
    """The paper and figure that it follows; ``ours`` if none."""
    section: str = "Ours"
    """Its heading in the gallery."""
    shows: str
    """Its content in a few words."""
    draw: Callable[[FigureInputs], Figure]
    law: str = ""
    """Name of the law that it draws, with published constants unless a fit of the same law is given."""
    columns: tuple[str, ...] = ()
    """Columns of the table that it reads."""
    file: str = ""
    """File of a command that contains the table."""
    from_runs: FromRuns | None = None
    """Functions that make its table by fits to a run table."""
    example: Callable[[], DataFrame] | None = None
    """A function that returns a synthetic table; None if the figure needs no table."""

    @property
    def needs_table(self) -> bool:
        """True if the figure cannot be drawn without a table."""
        return self.example is not None


def by_name(*plots: Plot) -> dict[str, Plot]:
    """Return a dictionary of figures, keyed by name."""
    return {plot.name: plot for plot in plots}


PREDICTIONS = Plot(
    name="predicted",
    draw=predictions.by_law,
    columns=("law", "role", "output", "measured", "predicted"),
    example=synthetic.predictions,
    shows="predictions against measurements, a panel per law",
)
"""Figure of predictions by several laws, on which papers' figures are based."""

PLOTS = by_name(
    Plot(name="kaplan", draw=law_curves.kaplan, law="kaplan", shows="loss by parameters and tokens"),
    Plot(name="chinchilla", draw=law_curves.chinchilla, law="chinchilla", shows="loss by parameters and tokens"),
    Plot(name="loss-compute", draw=law_curves.loss_compute, law="loss_compute", shows="loss by compute"),
    Plot(
        name="over-training", draw=law_curves.over_training, law="over_training", shows="loss by tokens per parameter"
    ),
    Plot(name="width-depth", draw=law_curves.width_depth, law="width_depth", shows="loss by width, at equal size"),
    Plot(name="error-from-loss", draw=law_curves.error_from_loss, law="error_from_loss", shows="task error by loss"),
    Plot(
        name="accuracy-from-loss",
        draw=law_curves.accuracy_from_loss,
        law="accuracy_from_loss",
        shows="task accuracy by loss",
    ),
    Plot(name="data-constrained", draw=law_curves.data_constrained, law="data_constrained", shows="loss by epochs"),
    Plot(name="granularity", draw=law_curves.granularity, law="granularity", shows="loss by granularity"),
    Plot(name="expert-count", draw=law_curves.expert_count, law="expert_count", shows="loss by number of experts"),
    Plot(name="routed", draw=law_curves.routed, law="routed", shows="loss by number of experts"),
    Plot(
        name="fitted-here",
        draw=predictions.fitted_here,
        columns=PREDICTIONS.columns,
        example=synthetic.predictions,
        shows="laws without constants, predicted and measured loss",
    ),
    Plot(
        name="held-out-ranges",
        draw=predictions.held_out_runs,
        columns=("split", "run", "output", "level", "measured", "predicted", "low", "high", "half_ranges"),
        file="held_out.csv of `moejax fit --hold-out`",
        example=synthetic.held_out,
        shows="held-out runs with their prediction intervals",
    ),
    Plot(
        name="runs",
        draw=runs.loss_vs_compute,
        columns=("loss", "flops"),
        example=synthetic.runs,
        shows="loss by FLOPs, with the frontier",
    ),
    Plot(
        name="loss-vs-compute",
        draw=compute.loss_vs_compute,
        columns=("kind", "family", "flops", "loss"),
        example=synthetic.budgets,
        shows="a fitted law and its runs by FLOPs, with bands",
    ),
    Plot(
        name="isoflop",
        draw=isoflop.isoflop,
        columns=("kind", "family", "budget", "loss"),
        example=synthetic.isoflops,
        shows="loss by size at each budget, of a fit and its runs",
    ),
    Plot(
        name="leverage",
        draw=isoflop.leverage,
        columns=("family", "over", "expansion", "flops", "leverage"),
        example=synthetic.leverages,
        shows="efficiency leverage by a fit, by compute and expansion",
    ),
    Plot(
        name="fit",
        draw=predictions.through_runs,
        columns=("law", "output", "measured", "predicted"),
        example=synthetic.fitted,
        shows="predictions of a fit, and residuals by input",
    ),
    Plot(
        name="profile",
        draw=evidence.profiles,
        columns=("estimand", "value", "rise", "limit"),
        example=synthetic.profiles,
        shows="profile likelihood of each estimand",
    ),
    Plot(
        name="influence",
        draw=evidence.influence,
        columns=("run", "estimand", "estimate", "if_removed"),
        example=synthetic.influences,
        shows="most influential runs of an estimate",
    ),
    Plot(
        name="starts",
        draw=evidence.starts,
        columns=("objective",),
        example=synthetic.ends,
        shows="objective reached by each initial guess",
    ),
    Plot(
        name="expert-loads",
        draw=running.loads,
        columns=("layer", "expert", "tokens", "load"),
        example=synthetic.loads,
        shows="load of every expert over tokens",
    ),
    Plot(
        name="loss",
        draw=loss_curves.losses_over_tokens,
        columns=("run", "phase", "tokens", "smoothed"),
        example=synthetic.losses,
        shows="losses of training runs over tokens, with branches",
    ),
    Plot(
        name="restarts",
        draw=running.restarts,
        columns=("model", "start_seconds", "end_seconds", "outcome"),
        example=synthetic.attempts,
        shows="attempts of training runs over time",
    ),
    Plot(
        name="plan",
        draw=running.plan_bars,
        columns=("plan", "quantity", "part", "value"),
        example=synthetic.plans,
        shows="memory and seconds of plans",
    ),
)
"""Figures that belong to no paper, keyed by name; ``moejax.papers.plots.ALL`` also has the papers' figures."""


def chosen(words: Sequence[str], plots: Mapping[str, Plot]) -> list[Plot]:
    """Return the figures selected by words: a figure's name, a paper such as ``zhao`` for all its figures, or ``all``.

    Raises:
      UserError: a word is neither a figure nor a paper; the message lists the nearest names.
    """
    named: dict[str, Plot] = {}
    for word in words:
        own = figures_of(word, plots)
        if not own:
            every = option_hint("--list names all.") or "mj.plot.names() lists all."
            raise UserError(f"Unknown figure '{word}'; {did_you_mean(_plain(word), plots)} {every}")
        named |= {name: plots[name] for name in own}
    return list(named.values())


def figures_of(word: str, plots: Iterable[str]) -> list[str]:
    """Return the names of the figures that a word selects; none if it is neither a figure nor a paper."""
    asked = _plain(word)
    return [asked] if asked in plots else [one for one in plots if asked == "all" or one.startswith(f"{asked}-")]


def _plain(word: str) -> str:
    return word.lower().replace("_", "-").replace(" ", "-")


def inputs_of(plot: Plot, *, law: Law | None = None, law_name: str = "", table: DataFrame = None) -> FigureInputs:
    """Return the inputs of a figure: the given law, or else the published constants of the figure's law, and the table.

    Raises:
      UserError: the law is not of the figure's form, or the table is missing or lacks columns.
    """
    words = ""
    if plot.law:
        known = published(plot.law)
        if law is not None and type(law) is not type(known.law):
            raise UserError(
                f"{plot.name} draws a law of the form {type(known.law).__name__}, but the fit is a "
                f"{type(law).__name__}; leave the fit out to draw the published constants."
            )
        law, words = (known.law, known.source) if law is None else (law, law_name or "the fitted law")
    if table is not None:
        table = with_derived(table)
        if not {*plot.columns} <= {*table}:
            table = with_structure(table)
    missing = [column for column in plot.columns if table is not None and column not in table]
    if plot.needs_table and (table is None or missing):
        kind = plot.file or ("one, or a run table," if plot.from_runs else "one")
        what = f"has no column {some(missing, most=6)}" if missing else "is missing"
        raise UserError(
            f"{plot.name} ({plot.source}) needs a table with {', '.join(plot.columns)}, but the table {what}; give "
            f"{kind} as {argument('table')}, or {argument('synthetic', True)} to see the figure with synthetic data."
        )
    return FigureInputs(law=law if plot.law else None, name=words, table=None if missing else table)


def example_of(plot: Plot) -> FigureInputs:
    """Return inputs for the gallery: published constants, and a synthetic table if the figure needs a table."""
    table = plot.example() if plot.example is not None else None
    inputs = inputs_of(plot, table=table)
    return replace(inputs, synthetic=table is not None)


def draw(plot: Plot, inputs: FigureInputs) -> Figure:
    """Draw a figure in the style of all figures."""
    with rc_context(RC):
        return plot.draw(inputs)


GALLERY, GALLERY_PAGE = "gallery", "gallery.md"
QUALITIES = ((130, 256), (130, 64), (110, 64), (95, 48), (80, 32))
"""Pairs of dots per inch and palette colors, tried in order until the image is small enough."""
LARGEST_BYTES = 60_000


def write_gallery(docs: Path, plots: Iterable[Plot], update: ProgressCallback = lambda share, text: None) -> Path:
    """Draw figures into ``gallery/``, write ``gallery.md`` with a section per topic, and return the page's path."""
    plots = list(plots)
    folder = docs / GALLERY
    folder.mkdir(parents=True, exist_ok=True)
    entries: dict[str, list[str]] = {plot.section: [] for plot in plots}
    for number, plot in enumerate(plots):
        update(number / len(plots), f"drawing {plot.name}")
        inputs, data = _gallery_inputs(plot, folder)
        figure = draw(plot, inputs)
        with atomic_write(folder / f"{plot.name}.png") as partial:
            partial.write_bytes(small_png(figure))
        entries[plot.section].append(_entry(plot, figure, data))
    text = [_INTRODUCTION, *(f"## {heading}\n\n" + "\n".join(own) for heading, own in entries.items())]
    write_text(docs / GALLERY_PAGE, "\n".join(text))
    update(1.0, "drawn")
    return docs / GALLERY_PAGE


def small_png(figure: Figure) -> bytes:
    """Return the figure as a palette PNG, smaller than ``LARGEST_BYTES`` if one of ``QUALITIES`` allows it."""
    content = b""
    for dots, colors in QUALITIES:
        with rc_context(RC):
            drawn = io.BytesIO()
            figure.drawing.savefig(drawn, format="png", dpi=dots, facecolor=PAPER, metadata={"Software": None})
        image = Image.open(drawn).convert("RGB").quantize(colors, dither=Image.Dither.NONE)
        out = io.BytesIO()
        image.save(out, format="png", optimize=True)
        content = out.getvalue()
        if len(content) < LARGEST_BYTES:
            break
    return content


def _gallery_inputs(plot: Plot, folder: Path) -> tuple[FigureInputs, str]:
    """Return a figure's inputs, and a sentence about their data."""
    data = folder / f"{plot.name}.csv"
    if data.exists():
        inputs = inputs_of(plot, table=run_table.read_as_it_is(data))
        return replace(inputs, synthetic=False), f" Data: [{GALLERY}/{data.name}]({GALLERY}/{data.name})."
    inputs = example_of(plot)
    return inputs, " The data are synthetic examples." if inputs.synthetic else ""


def _entry(plot: Plot, figure: Figure, data: str) -> str:
    data = "" if "synthetic" in figure.caption else data
    table = f" --runs {'RUNS' if 'loss' in plot.columns else 'TABLE'}" if plot.needs_table else ""
    return (
        f"### {plot.name}\n\n![{figure.title}]({GALLERY}/{plot.name}.png)\n\n**{figure.title}** ({plot.source}). "
        f"{figure.caption}{data}\n\n`moejax plot {plot.name}{table}`\n"
    )


_INTRODUCTION = """\
# Gallery

Every figure that `moejax plot NAME` draws, written by `make gallery`. Curves are laws with their published
coefficients; `--fit fit.json` uses your coefficients, and `--runs runs.csv` adds or replaces the points. Each figure
comes with its data as CSV; `--format png,svg,pdf` chooses the files, `--list` names the figures and the columns they
read.

No paper published the losses of its runs. Figures of runs therefore show the 27 runs of the quickstart (the tables in
`gallery/`) or synthetic data, as each caption states.
"""
