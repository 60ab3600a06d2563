"""Convert a study's conclusions to a ``Result`` for the terminal and Markdown, and to tables for the page."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from moejax.curves.annealed import LEVEL, AnnealedErrors
from moejax.quantities import format, format_bytes
from moejax.report.findings import (
    Findings,
    at_largest_budget,
    best_per_budget,
    compute_budgets,
    experts,
    parts,
    swept_by,
    versions,
)
from moejax.result import LOW_HIGH, NOT_DETERMINED, Column, Result, Table, Written, columns_of, percent, size
from moejax.run_table import DataFrame
from moejax.study.analysis import FittedLaw, best_settings, counted_runs
from moejax.study.compute_optimum import ComputeOptimum, family

if TYPE_CHECKING:
    from moejax.interval import Interval
    from moejax.study.analysis import HeldOutCheck
    from moejax.study.score_links import ScoreLink
    from moejax.study.stages import StageResult

BEST, BRIEF_BEST = 12, 6
"""Maximum numbers of best runs in the text report and in the terminal."""
BRIEF_RECIPE = ("leverage", "joint", "power-law")
"""Keys of the tables of a paper's procedure that the terminal shows."""
MOST_PREDICTED = 60
"""Maximum number of predicted losses in a table."""
BRIEF_LIMITS = 1
"""Maximum number of limits in the terminal."""


def conclusions(findings: Findings) -> Result:
    """Return the full report: sanity checks, best runs, laws with coefficients, decisions, next runs, limits,
    provenance.
    """
    concluded = findings.concluded
    analysed = concluded.analysed
    return Result(
        title=concluded.name,
        lead=what_to_train(findings),
        warnings=concluded.notes,
        tables=[
            Table("", notes=[_lead(findings)]),
            *_sanity_checks(findings),
            *stages_table(findings),
            best(findings, BEST),
            *settings_table(findings),
            *losses_by_part(findings),
            *laws_table(findings),
            *map(coefficients, analysed.laws),
            *map(decision_table, analysed.decisions),
            *annealed_tables(findings),
            *recipe_tables(findings),
            *downstream_tables(findings),
            *next_table(findings),
            Table("Limits of these runs", notes=[f"- {limit}" for limit in analysed.limits]),
            Table("Provenance", notes=[f"- {line}" for line in _provenance(findings)]),
        ],
    )


def brief(findings: Findings) -> Result:
    """Return the short report for a terminal: best runs of the largest budgets, first limits, and no coefficients."""
    analysed = findings.concluded.analysed
    rest = len(analysed.limits) - BRIEF_LIMITS
    limits = [f"- {limit}" for limit in analysed.limits[:BRIEF_LIMITS]]
    explained = [
        *stages_table(findings),
        best(findings, BRIEF_BEST),
        *settings_table(findings),
        *losses_by_part(findings, BRIEF_BEST),
    ]
    return Result(
        title=_lead(findings),
        lead=what_to_train(findings),
        warnings=findings.concluded.notes,
        tables=[
            *(_sanity_checks(findings) or [Table("Sanity checks: the table lacks the necessary columns.")]),
            *(replace(table, notes=()) for table in explained),
            *(laws_table(findings) or [Table(f"Laws: {no_law(findings)}")]),
            *(replace(decision_table(decision), notes=()) for decision in analysed.decisions),
            *([] if analysed.decisions else [Table(f"Decisions: {no_decision(findings)}")]),
            *_annealed_brief(findings),
            *recipe_tables(findings, BRIEF_RECIPE),
            *(table for table in downstream_tables(findings) if table.key == "links"),
            Table("Limits", notes=[*limits, f"- and {rest} more, in the report"] if rest > 0 else limits),
        ],
    )


def _lead(findings: Findings) -> str:
    runs, corpus = findings.runs, findings.concluded.corpus
    lead = f"{findings.concluded.name}: {counted_runs(runs)}"
    if corpus is None:
        return lead
    text = f"{format_bytes(corpus.train.bytes)} of text ({corpus.source}, {corpus.train.documents:,} documents)"
    return f"{lead} on {text}"


def _sanity_checks(findings: Findings) -> list[Table]:
    words = {True: "holds", False: "DOES NOT HOLD", None: "not checked"}
    columns = (
        Column("", value=lambda check: words[check.holds]),
        Column("", words=True, value=lambda check: f"{check.fact}: {check.found}"),
    )
    checks = findings.concluded.sanity_checks
    return [Table.of("Sanity checks", columns, checks)] if checks else []


STAGES = (
    Column("stage", value="name"),
    Column("models", value=lambda stage: len(stage.losses)),
    Column("winner", words=True, value="winner"),
    Column("loss", ".4f", value=lambda stage: stage.losses[stage.winner]),
    Column("second", words=True, value=lambda stage: next(iter(stage.ranking[1:]), None)),
    Column("loss above", ".4f", value=lambda stage: _behind(stage)),
    Column(
        "compared with",
        words=True,
        value=lambda stage: ", ".join(f"{name} {stage.losses[name]:.4f}" for name in stage.references) or None,
    ),
)


def _behind(stage: StageResult) -> float | None:
    best = [stage.losses[name] for name in stage.ranking[:2]]
    return best[1] - best[0] if len(best) > 1 else None


def stages_table(findings: Findings) -> list[Table]:
    """Return a table of the stages with their winners; empty for a study without stages."""
    note = (
        "Each stage is built from the rows of the previous stage. Its winner has the lowest loss at its largest budget."
    )
    stages = findings.concluded.stages
    return [Table.of("Stages", STAGES, stages, [note])] if stages else []


def _setting(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 1 else format(value)


COLUMNS = {
    "model": Column("model", words=True, value="model"),
    "experts": Column("experts", words=True, value=experts),
    "params_active": Column("active", size, value="params_active"),
    "params_total": Column("total", size, value="params_total"),
    "tokens": Column("tokens", ",.0f", value="tokens"),
    "flops": Column("FLOPs", ".2e", value="flops"),
    "loss": Column("loss", ".4f", value="loss"),
    "bits_per_byte": Column("bits/byte", ".4f", value="bits_per_byte"),
    "load_cv": Column("load CV", ".3f", value="load_cv"),
    "max_violation": Column("worst load", lambda value: f"{1 + value:.2f}", value="max_violation"),
    "dropped_share": Column("dropped", percent(), value="dropped_share"),
    "tokens_per_second": Column("tokens/s", ",.0f", value="tokens_per_second"),
}
"""Columns of a run table in reports."""
BEST_COLUMNS = ("tokens", *(name for name in list(COLUMNS)[:8] if name != "tokens"))


def runs_table(
    title: str,
    runs: DataFrame,
    names: Sequence[str] = tuple(COLUMNS),
    more: Sequence[Column] = (),
    notes: Sequence[str] = (),
    key: str = "",
) -> Table:
    """Return runs as a table with the columns ``names`` and ``more``; columns without values are omitted."""
    return Table.of(title, [*(COLUMNS[name] for name in names), *more], runs.to_dict("records"), notes, key)


def best(findings: Findings, most: int) -> Table:
    """Return the best run of each budget, in ascending order of budgets."""
    swept = [Column(name, value=name) for name in swept_by(findings)]
    title, runs = f"Best model per {budget_of(findings)}", best_per_budget(findings.runs).tail(most)
    return runs_table(title, runs, BEST_COLUMNS, swept)


SETTINGS = (
    *(COLUMNS[name] for name in ("model", "experts", "params_active", "params_total", "tokens")),
    Column("setting", words=True, value="setting"),
    Column("best", _setting, value="best"),
    Column("loss", ".4f", value="loss"),
    Column("values tried", value="tried"),
    Column("smallest", _setting, value="low"),
    Column("largest", _setting, value="high"),
    Column("minimum of quadratic", _setting, value="minimum"),
    Column("loss there", ".4f", value="minimum_loss"),
    Column("no minimum", words=True, value="no_minimum"),
)


def settings_table(findings: Findings) -> list[Table]:
    """Return a table of the best value of each swept setting per architecture and budget; empty without a sweep."""
    rows = best_settings(findings.runs, swept_by(findings))
    seeds = {row.get("seed") for row in rows}
    columns = [*SETTINGS[:5], *([Column("seed", value="seed")] if len(seeds) > 1 else []), *SETTINGS[5:]]
    note = (
        "The best value has the lowest loss of the tried values. The minimum is that of a quadratic in the settings' "
        "logarithms through the runs near the best."
    )
    return [Table.of("Best settings", columns, rows, [note], key="settings")] if rows else []


def budget_of(findings: Findings) -> str:
    """Return the kind of budget by which best runs are listed."""
    return "token budget" if compute_budgets(findings.runs) is None else "compute budget"


def losses_by_part(findings: Findings, most: int | None = None) -> list[Table]:
    """Return each model's loss on each part of the text, at its largest budget; empty for a single source.

    Args:
      most: maximum number of models; the models with the lowest losses are kept.
    """
    names = parts(findings.runs)
    if not names:
        return []
    last = at_largest_budget(findings.runs)
    shown = last if most is None else last.nsmallest(most, "loss").sort_index()
    columns = [Column(part, ".4f", value=f"loss_{part}") for part in names]
    note = (
        "The overall loss uses the held-out text of the parts in the initial training mixture; the loss of a part uses "
        "its own held-out text."
    )
    title = "Loss by part of the text, nats/token"
    return [runs_table(title, shown, ("model", "tokens", "loss"), columns, notes=[note], key="parts")]


LAWS = (
    Column("law", value="name"),
    Column("R²", ".4f", value="fit.metrics.r_squared"),
    Column("MAE, fitted", ".4f", value="fit.metrics.mae"),
    Column("MAE, held out", ".4f", value="held_out.mae"),
    Column("naive MAE", ".4f", value="held_out.naive_mae"),
    Column("initial guesses agreeing", percent(0), value="fit.agreeing"),
    Column("condition", ".2g", value="fit.condition_number"),
    Column("held out", words=True, value=lambda law: f"{law.held_out.held_out_runs} runs: {law.held_out.split}"),
)


def laws_table(findings: Findings) -> list[Table]:
    """Return a table of the laws with their errors and fit diagnostics; empty if no law was fitted."""
    analysed = findings.concluded.analysed
    notes = [analysed.selection.sentence] if analysed.selection else []
    return [Table.of("Laws (errors in nats/token)", LAWS, analysed.laws, notes)] if analysed.laws else []


def asks_for_laws(findings: Findings) -> bool:
    """Return whether laws were requested. A run table always requests them; a study does so with ``analysis.laws``."""
    study = findings.concluded.study
    return study is None or bool(study.analysis.laws)


def no_law(findings: Findings) -> str:
    """Return the reason why there is no law, as the end of a sentence."""
    if asks_for_laws(findings):
        return "no law could be fitted to these runs; the limits state the reasons."
    return "no law was requested (analysis.laws)."


def no_decision(findings: Findings) -> str:
    """Return the reason why nothing is decided, as the end of a sentence."""
    if not findings.concluded.analysed.laws:
        return "no law " + ("could be fitted." if asks_for_laws(findings) else "was requested.")
    return "none of the laws has a closed form for its optimum."


def preferred(findings: Findings) -> FittedLaw | None:
    """Return the preferred law; None if no law was selected."""
    analysed = findings.concluded.analysed
    chosen = analysed.selection.preferred if analysed.selection else ""
    return next((law for law in analysed.laws if law.name == chosen), None)


def what_to_train(findings: Findings) -> list[str]:
    """Return a list of one sentence: the preferred law's optimum with its interval, or the reason why there is none."""
    analysed = findings.concluded.analysed
    law = preferred(findings)
    decision = next((one for one in analysed.decisions if law and one.law == law.name), None)
    if decision is None and analysed.decisions:
        return [f"What to train: no preferred law has an optimum; the decision below uses {analysed.decisions[0].law}."]
    if decision is None and not asks_for_laws(findings) and (swept := swept_by(findings)):
        best = findings.runs.loc[findings.runs["loss"].idxmin()]
        values = ", ".join(f"{name} {Column(name, _setting).written(best[name])}" for name in swept)
        return [f"The lowest loss, {best['loss']:.4f}, is that of {best['model']}, with {values}."]
    if decision is None:
        return [f"What to train: {no_decision(findings)}"]
    value, intervals = decision.checked.value, decision.intervals
    asked = f"For {decision.flops:.3g} FLOPs, {decision.extrapolation:.2g} times the largest trained, {decision.law}"
    each = [f"{size(value[name], 3)} {VARIABLES[name]}" for name in ("params_active", "tokens")]
    if decision.few:
        return [f"{asked} ({family(decision)}): train {' on '.join(each)}; no intervals: {decision.few}."]
    if lost := [VARIABLES[name] for name in ("params_active", "tokens") if intervals[name].uninformative]:
        return [f"{asked} has {' and '.join(each)}; these runs do not determine the {' and '.join(lost)}."]
    ends = [f"{_ends(intervals[name], lambda end: size(end, 3))}" for name in ("params_active", "tokens")]
    return [f"{asked} ({family(decision)}): train {' on '.join(each)}; 90 % of resamples: {' and '.join(ends)}."]


def against_naive(check: HeldOutCheck) -> str:
    """Return a phrase that compares a law's held-out error with that of the naive prediction, which is each model's
    loss at its largest fitted budget."""
    if not check.naive_mae:
        return "without a naive prediction for comparison"
    share = check.mae / check.naive_mae - 1
    word = "less" if share < 0 else "more"
    naive = f"{check.naive_mae:.4f}, the error of predicting each model's loss at its largest fitted budget"
    return f"{abs(share):.0%} {word} than {naive}"


def coefficients(law: FittedLaw) -> Table:
    """Return the fitted coefficients, their intervals and meanings."""
    about = {field.name: field.metadata for field in dataclasses.fields(law.fit.law)}
    columns = (
        Column("coefficient", value=str),
        Column("symbol", value=lambda name: about[name]["symbol"]),
        Column("fitted", format, value=law.fit.coefficients.get),
        Column("bootstrap, 90 %", keys=LOW_HIGH, value=lambda name: _bounds(law.intervals[name])),
        Column("median", format, value=lambda name: law.intervals[name].middle),
        Column("", words=True, value=lambda name: _verdict(name, law)),
        Column("meaning", words=True, value=lambda name: about[name]["meaning"]),
    )
    notes = [f"- {warning}" for warning in law.fit.warnings]
    return Table.of(f"Coefficients of {law.name}", columns, law.fit.coefficients, notes)


def _bounds(interval: Interval, write: Callable[[float], str] = format) -> Written:
    return Written((interval.low, interval.high), _ends(interval, write))


def _verdict(name: str, law: FittedLaw) -> str:
    interval = law.intervals[name]
    if state := law.fit.state(name):
        return state
    if interval.undefined > 0:
        return f"no answer in {interval.undefined:.1%} of resamples"
    return NOT_DETERMINED if interval.uninformative else ""


def _range(low: float, high: float, write: str) -> Written:
    return Written((low, high), f"[{low:{write}}, {high:{write}}]")


def _ends(interval: Interval, write: Callable[[float], str]) -> str:
    known = math.isfinite(interval.low) or math.isfinite(interval.high)
    return f"{write(interval.low)} – {write(interval.high)}" if known else "–"


VARIABLES = {"params_active": "active parameters", "tokens": "tokens", "loss": "loss, nats/token"}
"""Variables of an optimum by name."""


def number(name: str, value: float | int, digits: int = 4) -> str:
    """Format the value of an optimum's variable ``name``: losses as decimals, sizes with a suffix."""
    return f"{value:.{digits}f}" if name == "loss" and abs(value) < 100 else size(value, digits)


def decision_table(decision: ComputeOptimum) -> Table:
    """Return a table of an optimum with its interval and its numerical check, one row per variable."""
    checked, intervals = decision.checked, decision.intervals
    autodiff = {"params_active": f"slope {checked.residual:.1e}", "tokens": f"curvature {checked.curvature:.2e}"}

    def ends(name: str) -> Written:
        return _bounds(intervals[name], lambda value: number(name, value, 3))

    def written(name: str, value: float) -> Written:
        return Written(value, number(name, value))

    def verdict_of(name: str) -> str:
        return NOT_DETERMINED if intervals[name].uninformative and not decision.few else ""

    columns = (
        Column("", value=VARIABLES.get),
        Column("closed form", value=lambda name: written(name, checked.value[name])),
        Column("jax.grad", words=True, value=lambda name: autodiff.get(name, "")),
        Column("numerical argmin", value=lambda name: written(name, checked.numeric[name])),
        Column("bootstrap, 90 %", words=True, keys=LOW_HIGH, value=ends),
        Column("", words=True, keys=("verdict",), value=verdict_of),
    )
    verdict = "algebra checked" if checked.holds else "CLOSED FORM NOT CONFIRMED"
    beyond = f"{decision.extrapolation:.2g} times the largest trained"
    title = f"{decision.law}, {family(decision)}, for {decision.flops:.3g} FLOPs, {beyond}: {verdict}"
    few = [f"! {decision.few}: intervals would be too small and are not shown."] if decision.few else []
    return Table.of(title, columns, VARIABLES, [*few, *worth(decision)])


TENTH = math.log(1.1)
"""Logarithm of 1.1, the factor of an increase by 10 %."""


def worth(decision: ComputeOptimum) -> list[str]:
    """Return a sentence for each constraint that states how much 10 % more of it changes the lowest loss."""
    words = {"flops": "training FLOPs", "expansion": "total parameters at equal active parameters"}
    return [
        f"10 % more {words[name]} would change the lowest loss by {price * TENTH:+.2g} nats/token."
        for name, price in decision.prices.items()
    ]


def annealed_tables(findings: Findings) -> list[Table]:
    """Return prediction errors for left-out branches, and predictions for untrained budgets."""
    annealed = findings.concluded.annealed
    if annealed is None:
        return []
    notes = [
        "Each branch is left out once and predicted from its trunk's curve and the other branches. Errors are in "
        "nats/token; prediction intervals are computed from the errors of the other branches. Interpolated: the mean "
        "error of log-log interpolation between the ends of the nearest other branches.",
        *annealed.not_predicted,
    ]
    title = "Annealed losses that were predicted and measured"
    errors = {name: model.summary for name, model in annealed.models.items()}
    columns = [Column("model", words=True), *columns_of(AnnealedErrors)]
    rows = [[name, *vars(one).values()] for name, one in errors.items()]
    tested = Table(title, columns, rows, notes, key="annealed")
    if not len(annealed.predicted):
        return [tested]
    more = max(len(annealed.predicted) - MOST_PREDICTED, 0)
    note = (
        "These losses are predicted, not measured: no branch was trained to these budgets. Prediction intervals are "
        "computed from the errors of the left-out branches. annealed.parquet contains measured and predicted rows, "
        "distinguished by the column is_predicted; the laws here are fitted only to measured rows."
        + (f" It has {more} more predictions." if more else "")
    )
    span = Column(
        f"{LEVEL:.0%} prediction interval",
        keys=LOW_HIGH,
        value=lambda row: _range(row["loss_low"], row["loss_high"], ".4f"),
    )
    predicted = runs_table(
        "Annealed losses at untrained budgets",
        annealed.predicted.head(MOST_PREDICTED),
        ("model", "tokens", "flops", "loss"),
        [span],
        notes=[note],
        key="predicted",
    )
    return [tested, predicted]


def _annealed_brief(findings: Findings) -> list[Table]:
    annealed = findings.concluded.annealed
    if annealed is None:
        return []
    said = "no loss could be predicted."
    if annealed.models:
        said = (
            f"{annealed.inside} of {len(annealed.left_out)} left-out branches are in their {LEVEL:.0%} prediction "
            f"intervals, mean error {annealed.mean_error:.4f} nats/token"
        )
    return [Table(f"Annealed losses: {said}", notes=annealed.not_predicted)]


def recipe_tables(findings: Findings, keys: Sequence[str] = ()) -> list[Table]:
    """Return the tables of the paper's procedure at the end of the study; only the tables with these ``keys`` if
    given.
    """
    followed = findings.concluded.analysed.recipe
    if followed is None:
        return []
    result = followed.result
    warnings = [Table(result.title, notes=result.warnings)] if result.warnings else []
    return [*warnings, *(table for table in result.tables if not keys or table.key in keys)]


def downstream_tables(findings: Findings) -> list[Table]:
    """Return tables of each task's error as a function of the loss, and of each model's scores at its largest
    budget.
    """
    downstream = findings.concluded.downstream
    if downstream is None:
        return []

    def errors(link: ScoreLink) -> DataFrame:
        return downstream.scores.loc[downstream.scores["task"] == link.task, "error"]

    columns = (
        Column("task", words=True, value="task"),
        Column("scores", value=lambda one: len(errors(one))),
        Column("error", keys=("error_low", "error_high"), value=lambda one: _span(errors(one))),
        Column("form", value=lambda one: one.fit and one.link),
        Column("R²", ".3f", value="fit.metrics.r_squared"),
        Column("transfer, nats", "+.3f", value="transfer.middle"),
        Column(
            "90 %",
            keys=LOW_HIGH,
            value=lambda one: one.transfer and _range(one.transfer.low, one.transfer.high, "+.3f"),
        ),
        Column("at equal loss", words=True, value="verdict"),
    )
    links = downstream.links
    notes = [
        "The error is 100 % minus the score. A model of sparsity S (share of idle experts) has the error of a dense "
        "model whose loss is higher by transfer·log(1/(1-S)). If transfer is positive, sparser models have larger "
        "errors at equal loss.",
        *(f"{one.task}: {sentence}" for one in links for sentence in one.left_out),
        *(f"{one.task}: {sentence}" for one in links if one.fit for sentence in one.fit.warnings),
        *([f"{downstream.missing} scores are missing; run the study again."] if downstream.missing else []),
    ]
    fitted = [Table.of("Task errors by loss", columns, links, notes, key="links")]
    return [*(fitted if links or downstream.missing else []), _scores_table(downstream.scores)]


def _span(errors: DataFrame) -> Written:
    low, high = float(errors.min()), float(errors.max())
    return Written((low, high), f"{low:.1f} to {high:.1f}")


def _scores_table(scores: DataFrame) -> Table:
    last = at_largest_budget(scores)
    known = {(row["model"], row["task"]): row["score"] for row in last.to_dict("records")}
    tasks = [
        Column(str(task), ".1f", value=lambda run, task=task: known.get((run["model"], task)))
        for task in last["task"].unique()
    ]
    note = "Scores that are shares of documents are in percent; scores.parquet has all budgets."
    runs = last.drop_duplicates("model")
    names = ("model", "tokens", "loss")
    return runs_table("Scores at the largest budget", runs, names, tasks, notes=[note], key="scores")


def next_table(findings: Findings) -> list[Table]:
    """Return the runs that ``moejax next`` proposed, if its output is in the same folder."""
    if not findings.next_runs:
        return []
    columns = (
        Column("run", value="label"),
        *(Column(COLUMNS[name].name, size, value=name) for name in ("params_active", "params_total", "tokens")),
        COLUMNS["flops"],
        Column("variance left", percent(), value="variance_left"),
    )
    runs = [{"label": f"{number}", **run} for number, run in enumerate(findings.next_runs["runs"], start=1)]
    return [Table.of("Next runs", columns, runs, key="next")]


def _provenance(findings: Findings) -> Sequence[str]:
    laws, corpus = findings.concluded.analysed.laws, findings.concluded.corpus
    every = versions(findings.runs)
    used = "; ".join(", ".join(f"{name} {version}" for name, version in one.items()) for one in every)
    hashes = ", ".join(f"{law.name} {law.fit.data_hash}" for law in laws)
    return [
        *([f"trained with {used}"] if used else []),
        *([f"corpus {corpus.sha256}"] if corpus else []),
        *([f"data of the fits: {hashes}"] if hashes else []),
        "figures and all numbers: report.html, report.json",
    ]
