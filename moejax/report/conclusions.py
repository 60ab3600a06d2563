"""The conclusions of a study as one ``Result`` for the terminal and for Markdown, and formats of sizes, losses and
ranges.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from moejax.fit.annealed import LEVEL
from moejax.quantities import format, format_bytes
from moejax.report.findings import (
    Findings,
    at_largest_budget,
    best_per_budget,
    compute_budgets,
    experts,
    parts,
    versions,
)
from moejax.result import NOT_DETERMINED, Column, Result, Table, Written, percent, size
from moejax.run_table import DataFrame
from moejax.study.analysis import FittedLaw
from moejax.study.compute_optimum import ComputeOptimum, family
from moejax.wording import counted

if TYPE_CHECKING:
    from moejax.interval import Interval
    from moejax.study.analysis import HeldOutCheck


VARIABLES = {"params_active": "active parameters", "tokens": "tokens", "loss": "loss, nats/token"}
"""Names of an optimum's parts."""


def number(name: str, value: float | int, digits: int = 4) -> str:
    """A variable of an optimum: losses in decimals, sizes with a letter."""
    return f"{value:.{digits}f}" if name == "loss" and abs(value) < 100 else size(value, digits)


def interval(name: str, found: Interval) -> str:
    """The range of a resampled answer; a dash where the runs tell nothing of it."""
    if not math.isfinite(found.low) and not math.isfinite(found.high):
        return "–"
    low, high = number(name, found.low, 3), number(name, found.high, 3)
    return f"{low} – {high}"


def confirmations(decision: ComputeOptimum) -> list[tuple[str, ...]]:
    """Variable, closed form, what autodiff says there, numerical argmin, interval, verdict: a row per variable."""
    checked = decision.checked
    autodiff = {"params_active": f"slope {checked.residual:.1e}", "tokens": f"curvature {checked.curvature:.2e}"}
    return [
        (
            words,
            number(name, checked.value[name]),
            autodiff.get(name, ""),
            number(name, checked.numeric[name]),
            interval(name, decision.intervals[name]),
            NOT_DETERMINED if decision.intervals[name].uninformative else "",
        )
        for name, words in VARIABLES.items()
    ]


TENTH = math.log(1.1)
"""E-folds in a tenth more."""


def worth(decision: ComputeOptimum) -> list[str]:
    """Return the value of 10 % more of each limit, in sentences."""
    words = {
        "flops": "A tenth more training FLOPs",
        "expansion": "A tenth more total parameters at as many active ones",
    }
    return [
        f"{words[name]} would change the least loss by {price * TENTH:+.2g} nats/token."
        for name, price in decision.prices.items()
    ]


def against_naive(check: HeldOutCheck) -> str:
    """Compare a law's held-out error with that of predicting no improvement."""
    if not check.naive_mae:
        return "there is no naive prediction to compare with"
    share = check.mae / check.naive_mae - 1
    word = "less" if share < 0 else "more"
    return f"{abs(share):.0%} {word} than the {check.naive_mae:.4f} of predicting no improvement"


BEST, BRIEF_BEST = 12, 6
"""Best runs that are listed, the last of them the largest; and in a terminal."""
BRIEF_RECIPE = ("leverage", "joint", "power-law")
"""Tables of a paper's procedure that a terminal is shown."""
MOST_PREDICTED = 60
"""Predicted losses that are listed."""
BRIEF_LIMITS = 2
"""Limits that a terminal is told; the others are counted, and left to the report."""

COLUMNS = {
    "model": Column("model", words=True),
    "experts": Column("experts", words=True),
    "params_active": Column("active", size),
    "params_total": Column("total", size),
    "tokens": Column("tokens", ",.0f"),
    "flops": Column("FLOPs", ".2e"),
    "loss": Column("loss", ".4f"),
    "bits_per_byte": Column("bits/byte", ".4f"),
    "load_cv": Column("load CV", ".3f"),
    "max_violation": Column("worst load", lambda value: f"{1 + value:.2f}"),
    "dropped_share": Column("dropped", percent()),
    "tokens_per_second": Column("tokens/s", ",.0f"),
}
"""Columns of a run table as reports show them."""
BEST_COLUMNS = ("tokens", *(name for name in list(COLUMNS)[:8] if name != "tokens"))

CONFIRMATIONS = (
    Column(""),
    Column("closed form"),
    Column("jax.grad", words=True),
    Column("numerical argmin"),
    Column("bootstrap, 90 %", words=True),
    Column("", words=True),
)


def conclusions(found: Findings) -> Result:
    """Everything: sanity checks, best runs, laws with their coefficients, decisions, next runs, limits, provenance."""
    concluded = found.concluded
    analysed = concluded.analysed
    return Result(
        title=concluded.name,
        warnings=concluded.notes,
        tables=[
            Table("", notes=[_lead(found)]),
            *_sanity_checks(found),
            *stages_table(found),
            best(found, BEST),
            *losses_by_part(found),
            *laws_table(found),
            *map(coefficients, analysed.laws),
            *map(decision_table, analysed.decisions),
            *annealed_tables(found),
            *recipe_tables(found),
            *downstream_tables(found),
            *next_table(found),
            Table("What these runs cannot tell", notes=[f"- {limit}" for limit in analysed.limits]),
            Table("Provenance", notes=[f"- {line}" for line in _provenance(found)]),
        ],
    )


def brief(found: Findings) -> Result:
    """Return the short form for a terminal: the largest of the best runs, the first limit, no coefficients."""
    limits, analysed = found.concluded.analysed.limits, found.concluded.analysed
    rest = len(limits) - BRIEF_LIMITS
    more = [f"- and {rest} more, in the report"] if rest > 0 else []
    return Result(
        title=_lead(found),
        warnings=found.concluded.notes,
        tables=[
            *(_sanity_checks(found) or [Table("Sanity checks: the table does not say what they need.")]),
            *(replace(table, notes=()) for table in stages_table(found)),
            best(found, BRIEF_BEST),
            *(replace(table, notes=()) for table in losses_by_part(found, BRIEF_BEST)),
            *(laws_table(found) or [Table(f"Laws: {no_law(found)}")]),
            *(replace(decision_table(decision), notes=()) for decision in analysed.decisions),
            *([] if analysed.decisions else [Table(f"Decisions: {no_decision(found)}")]),
            *_annealed_brief(found),
            *recipe_tables(found, BRIEF_RECIPE),
            *(table for table in downstream_tables(found) if table.key == "links"),
            Table("Limits", notes=[*(f"- {limit}" for limit in limits[:BRIEF_LIMITS]), *more]),
        ],
    )


def recipe_tables(found: Findings, keys: Sequence[str] = ()) -> list[Table]:
    """Return the results of the paper's procedure that the study ends with; only tables of ``keys`` if given."""
    followed = found.concluded.analysed.recipe
    if followed is None:
        return []
    result = followed.result
    said = [Table(result.title, notes=result.warnings)] if result.warnings else []
    return [*said, *(table for table in result.tables if not keys or table.key in keys)]


def annealed_tables(found: Findings) -> list[Table]:
    """Return errors of predictions for left-out branches, and predictions for budgets that were not trained."""
    annealed = found.concluded.annealed
    if annealed is None:
        return []
    columns = (
        Column("model", words=True),
        Column("branches"),
        Column("mean error", ".4f"),
        Column("largest", ".4f"),
        Column(f"in {LEVEL:.0%} ranges"),
        Column("interpolated", ".4f"),
    )
    rows = [[name, *one.summary.values()] for name, one in annealed.models.items()]
    notes = [
        "Each branch is left out once and predicted from its trunk's curve and the other branches: errors in "
        "nats/token, and how many losses lie in ranges by the errors of the others. Interpolated: the mean error of a "
        "line in logarithms between the ends of the nearest other branches.",
        *annealed.not_predicted,
    ]
    tested = Table("Annealed losses that were predicted and measured", columns, rows, notes, key="annealed")
    if not len(annealed.predicted):
        return [tested]
    columns = (*(COLUMNS[name] for name in ("model", "tokens", "flops", "loss")), Column(f"{LEVEL:.0%} range"))
    rows = [
        [
            *(row[name] for name in ("model", "tokens", "flops", "loss")),
            f"[{row['loss_low']:.4f}, {row['loss_high']:.4f}]",
        ]
        for row in annealed.predicted.head(MOST_PREDICTED).to_dict("records")
    ]
    more = len(annealed.predicted) - len(rows)
    notes = [
        "Predicted, not measured: no branch was trained to these budgets. Ranges are by the errors of the branches "
        "that were left out. annealed.parquet has them beside the measured rows, told apart by the column "
        "is_predicted; the laws here are fitted to measured rows alone." + (f" {more} more are in it." if more else "")
    ]
    return [tested, Table("Annealed losses of budgets that were not trained", columns, rows, notes, key="predicted")]


def _annealed_brief(found: Findings) -> list[Table]:
    """Annealed losses in a line, and the models of which nothing is predicted."""
    annealed = found.concluded.annealed
    if annealed is None:
        return []
    said = "none could be predicted."
    if annealed.models:
        known = annealed.summary
        said = (
            f"{known['inside']} of {known['branches']} branches left out are in {LEVEL:.0%} ranges, mean error "
            f"{known['mean_error']:.4f} nats/token"
        )
    return [Table(f"Annealed losses: {said}", notes=annealed.not_predicted)]


def downstream_tables(found: Findings) -> list[Table]:
    """Return the relation of each task's error to the loss, and the scores of every model at its largest budget."""
    downstream = found.concluded.downstream
    if downstream is None:
        return []
    columns = (
        Column("task", words=True),
        Column("scores"),
        Column("error", ".1f"),
        Column("form"),
        Column("R²", ".3f"),
        Column("transfer, nats", "+.3f"),
        Column("90 %"),
        Column("at equal loss", words=True),
    )
    rows = []
    for one in downstream.links:
        errors = downstream.scores.loc[downstream.scores["task"] == one.task, "error"]
        ends = f"{errors.min():.1f} to {errors.max():.1f}"
        interval = one.transfer and f"[{one.transfer.low:+.3f}, {one.transfer.high:+.3f}]"
        fitted = [None, None] if one.fit is None else [one.link, one.fit.metrics.r_squared]
        middle = one.transfer and one.transfer.middle
        rows.append([one.task, len(errors), Written(errors.min(), ends), *fitted, middle, interval, one.verdict])
    notes = [
        "The error is what a score lacks to 100 %. A model of sparsity S errs as a dense one whose loss is higher by "
        "transfer·log(1/(1-S)): above 0, sparser models err more at equal loss.",
        *(f"{one.task}: {sentence}" for one in downstream.links for sentence in one.left_out),
        *(
            f"{one.task}: {sentence}"
            for one in downstream.links
            if one.fit is not None
            for sentence in one.fit.warnings
        ),
        *([f"{downstream.missing} scores are still to be asked; run the study again."] if downstream.missing else []),
    ]
    links = (
        [Table("Errors in tasks by the loss", columns, rows, notes, key="links")] if rows or downstream.missing else []
    )
    return [*links, _scores_table(downstream.scores)]


def _scores_table(scores: DataFrame) -> Table:
    """Scores of every model at its largest budget, a task a column."""
    last = at_largest_budget(scores)
    tasks = list(dict.fromkeys(last["task"]))
    known = {(row["model"], row["task"]): row["score"] for row in last.to_dict("records")}
    runs = last.drop_duplicates("model")
    rows = [
        [run["model"], run["tokens"], run["loss"], *(known.get((run["model"], task)) for task in tasks)]
        for run in runs.to_dict("records")
    ]
    columns = (
        Column("model", words=True),
        Column("tokens", ",.0f"),
        Column("loss", ".4f"),
        *(Column(str(task), ".1f") for task in tasks),
    )
    note = "Scores in per cent where they are shares of the documents; all budgets are in scores.parquet."
    return Table("Scores at the largest budget", columns, rows, [note], key="scores")


def asks_for_laws(found: Findings) -> bool:
    """Return whether laws were to be fitted: those of a study are named in its analysis."""
    study = found.concluded.study
    return study is None or bool(study.analysis.laws)


def no_law(found: Findings) -> str:
    """Why there is no law, in the end of a sentence."""
    if asks_for_laws(found):
        return "none could be fitted to these runs; the limits say why."
    return "none was asked for (analysis.laws)."


def no_decision(found: Findings) -> str:
    """Why nothing is decided, in the end of a sentence."""
    if not found.concluded.analysed.laws:
        return "none, for no law " + ("could be fitted." if asks_for_laws(found) else "was asked for.")
    return "none of the laws has a closed form for its optimum."


def _lead(found: Findings) -> str:
    runs, corpus = found.runs, found.concluded.corpus
    lead = f"{found.concluded.name}: {counted(len(runs), 'run')} of {counted(runs['model'].nunique(), 'model')}"
    if corpus is None:
        return lead
    return (
        f"{lead} on {format_bytes(corpus.train.bytes)} of text ({corpus.source}, {corpus.train.documents:,} documents)"
    )


def stages_table(found: Findings) -> list[Table]:
    """Every stage with its winner; none of a study without stages."""
    columns = (
        Column("stage"),
        Column("models"),
        Column("winner", words=True),
        Column("loss", ".4f"),
        Column("second", words=True),
        Column("loss above", ".4f"),
        Column("compared with", words=True),
    )
    rows = []
    for one in found.concluded.stages:
        losses, ranking = one.losses, one.ranking
        second = ranking[1] if len(ranking) > 1 else None
        references = ", ".join(f"{name} {losses[name]:.4f}" for name in one.references)
        above = losses[second] - losses[one.winner] if second else None
        rows.append([one.name, len(losses), one.winner, losses[one.winner], second, above, references or None])
    note = "Each stage is made from the rows of the one before; its winner has the least loss at its largest budget."
    return [Table("Stages", columns, rows, [note])] if rows else []


def _sanity_checks(found: Findings) -> list[Table]:
    words = {True: "holds", False: "DOES NOT HOLD", None: "not checked"}
    rows = [[words[check.holds], f"{check.fact}: {check.found}"] for check in found.concluded.sanity_checks]
    return [Table("Sanity checks", (Column(""), Column("", words=True)), rows)] if rows else []


def best(found: Findings, most: int) -> Table:
    """The best runs, a budget a row, the largest last."""
    return runs_table(f"Best model per {budget_of(found)}", best_per_budget(found.runs).tail(most), BEST_COLUMNS)


def losses_by_part(found: Findings, most: int | None = None) -> list[Table]:
    """Losses of the models at their largest budgets on each part of the text, of the ``most`` whose loss is least;
    none of a single source."""
    names = parts(found.runs)
    if not names:
        return []
    last = at_largest_budget(found.runs)
    shown = last if most is None else last.nsmallest(most, "loss").sort_index()
    rows = [
        [run[name] for name in ("model", "tokens", "loss", *(f"loss_{part}" for part in names))]
        for run in shown.to_dict("records")
    ]
    columns = (*(COLUMNS[name] for name in ("model", "tokens", "loss")), *(Column(part, ".4f") for part in names))
    note = "The loss is over the parts that training begins with; that of a part is over its own held-out text."
    return [Table("Loss by part of the text, nats/token", columns, rows, [note], key="parts")]


def budget_of(found: Findings) -> str:
    """Return the kind of budget for which the best runs are listed."""
    return "token budget" if compute_budgets(found.runs) is None else "compute budget"


def runs_table(title: str, runs: DataFrame, names: Sequence[str] = tuple(COLUMNS)) -> Table:
    """Runs as a table: of the columns ``names`` those that are known."""
    read = [experts if name == "experts" else operator.methodcaller("get", name) for name in names]
    rows = [[of(run) for of in read] for run in runs.to_dict("records")]
    return Table(title, [COLUMNS[name] for name in names], rows)


def laws_table(found: Findings) -> list[Table]:
    """Every law with its errors, and how its fit went; none if no law was fitted."""
    errors = [Column(name, ".4f") for name in ("R²", "MAE, fitted", "MAE, held out", "naive MAE")]
    columns = (
        Column("law"),
        *errors,
        Column("starts agreeing", percent(0)),
        Column("condition", ".2g"),
        Column("held out", words=True),
    )
    rows = [
        [
            law.name,
            law.fit.metrics.r_squared,
            law.fit.metrics.mae,
            law.held_out.mae,
            law.held_out.naive_mae,
            law.fit.agreeing,
            law.fit.condition_number,
            f"{law.held_out.held_out_runs} runs: {law.held_out.split}",
        ]
        for law in found.concluded.analysed.laws
    ]
    selection = found.concluded.analysed.selection
    return (
        [Table("Laws (errors in nats/token)", columns, rows, [selection.sentence] if selection else [])] if rows else []
    )


def coefficients(law: FittedLaw) -> Table:
    """Fitted values, what the resamples say of them, and what each means."""
    columns = (
        Column("coefficient"),
        Column("symbol"),
        Column("fitted", format),
        Column("bootstrap, 90 %"),
        Column("median", format),
        Column("", words=True),
        Column("meaning", words=True),
    )
    meanings = {field.name: field.metadata for field in dataclasses.fields(law.fit.law)}
    rows = [
        [
            name,
            meanings[name]["symbol"],
            value,
            Written([law.intervals[name].low, law.intervals[name].high], _ends(law.intervals[name])),
            law.intervals[name].middle,
            _verdict(name, law),
            meanings[name]["meaning"],
        ]
        for name, value in law.fit.coefficients.items()
    ]
    return Table(f"Coefficients of {law.name}", columns, rows, [f"- {warning}" for warning in law.fit.warnings])


def _verdict(name: str, law: FittedLaw) -> str:
    interval = law.intervals[name]
    if state := law.fit.state(name):
        return state
    if interval.undefined > 0:
        return f"no answer in {interval.undefined:.1%} of resamples"
    return NOT_DETERMINED if interval.uninformative else ""


def _ends(interval: Any) -> str:
    finite = math.isfinite(interval.low) or math.isfinite(interval.high)
    return f"{format(interval.low)} – {format(interval.high)}" if finite else "–"


def decision_table(decision: ComputeOptimum) -> Table:
    """Return an optimum beside its confirmations."""
    checked = "algebra checked" if decision.checked.holds else "CLOSED FORM NOT CONFIRMED"
    beyond = f"{decision.extrapolation:.2g} times the largest trained"
    return Table(
        f"{decision.law}, {family(decision)}, for {decision.flops:.3g} FLOPs, {beyond}: {checked}",
        CONFIRMATIONS,
        confirmations(decision),
        worth(decision),
    )


def next_table(found: Findings) -> list[Table]:
    """The runs that ``moejax next`` proposed into the same folder."""
    if not found.next_runs:
        return []
    names = ("params_active", "params_total", "tokens", "flops", "variance_left")
    columns = (
        Column("run"),
        *(Column(name, size) for name in ("active", "total", "tokens")),
        Column("FLOPs", ".2e"),
        Column("variance left", percent()),
    )
    rows = [
        [run.get("label") or f"{number}", *(run.get(name) for name in names)]
        for number, run in enumerate(found.next_runs["runs"], start=1)
    ]
    return [Table("Next runs", columns, rows, key="next")]


def _provenance(found: Findings) -> Sequence[str]:
    laws, corpus = found.concluded.analysed.laws, found.concluded.corpus
    used = "; ".join(", ".join(f"{name} {version}" for name, version in one.items()) for one in versions(found.runs))
    hashes = ", ".join(f"{law.name} {law.fit.data_hash}" for law in laws)
    return [
        *([f"trained with {used}"] if used else []),
        *([f"corpus {corpus.sha256}"] if corpus else []),
        *([f"data of the fits: {hashes}"] if hashes else []),
        "figures and all numbers: report.html, report.json",
    ]
