"""What a study found, as one ``Result``: what its terminal says and its page of Markdown holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from moejax.quantities import format, format_bytes
from moejax.report.findings import Findings, best_per_budget, experts, versions
from moejax.report.wording import confirmations, size, worth
from moejax.result import Column, Result, Table, Written, percent
from moejax.study.analysis import FittedLaw
from moejax.study.decision import Decision, family

BEST, BRIEF_BEST = 12, 6
"""Best runs that are listed, the last of them the largest; and in a terminal."""
BRIEF_LIMITS = 3
"""Limits that a terminal is told; the others are counted, and left to the report."""

SIZES = (Column("active", size), Column("total", size))
RUNS = (
    Column("tokens", ",.0f"),
    Column("model", words=True),
    Column("experts", words=True),
    *SIZES,
    Column("FLOPs", ".2e"),
    Column("loss", ".4f"),
    Column("bits/byte", ".4f"),
)
LAWS = (
    Column("law"),
    Column("R²", ".4f"),
    Column("MAE, fitted", ".4f"),
    Column("MAE, held out", ".4f"),
    Column("naive MAE", ".4f"),
    Column("held out", words=True),
)
CONFIRMATIONS = (
    Column(""),
    Column("closed form"),
    Column("jax.grad", words=True),
    Column("numerical argmin"),
    Column("bootstrap, 90 %", words=True),
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
            *_signals(found),
            _best(found, BEST),
            *_laws(found),
            *map(_coefficients, analysed.laws),
            *map(_decision, analysed.decisions),
            *_next(found),
            Table("What these runs cannot tell", notes=[f"- {limit}" for limit in analysed.limits]),
            Table("Provenance", notes=[f"- {line}" for line in _provenance(found)]),
        ],
    )


def brief(found: Findings) -> Result:
    """What fits a terminal: of the best runs the largest, of the limits the first; no coefficients."""
    limits, analysed = found.concluded.analysed.limits, found.concluded.analysed
    rest = len(limits) - BRIEF_LIMITS
    more = [f"- and {rest} more, in the report"] if rest > 0 else []
    return Result(
        title=_lead(found),
        warnings=found.concluded.notes,
        tables=[
            *(_signals(found) or [Table("Honest signals: the table does not say what they need.")]),
            _best(found, BRIEF_BEST),
            *(_laws(found) or [Table("Laws: none could be fitted to these runs; the limits say why.")]),
            *(replace(_decision(decision), notes=()) for decision in analysed.decisions),
            *([] if analysed.decisions else [Table("Decisions: none of the laws has a closed form for its optimum.")]),
            Table("Limits", notes=[*(f"- {limit}" for limit in limits[:BRIEF_LIMITS]), *more]),
        ],
    )


def _lead(found: Findings) -> str:
    runs, corpus = found.runs, found.concluded.corpus
    lead = f"{found.concluded.name}: {len(runs):,} runs of {runs['model'].nunique():,} models"
    if corpus is None:
        return lead
    return (
        f"{lead} on {format_bytes(corpus.train.bytes)} of text ({corpus.source}, {corpus.train.documents:,} documents)"
    )


def _signals(found: Findings) -> list[Table]:
    rows = [["holds" if s.holds else "DOES NOT HOLD", f"{s.fact}: {s.found}"] for s in found.concluded.signals]
    return [Table("Honest signals", (Column(""), Column("", words=True)), rows)] if rows else []


def _best(found: Findings, most: int) -> Table:
    rows = [
        [run.get("tokens"), run["model"], experts(run), *(run.get(column) for column in MEASURED)]
        for _, run in best_per_budget(found.runs).tail(most).iterrows()
    ]
    return Table("Best model per token budget", RUNS, rows, key="best")


MEASURED = ("params_active", "params_total", "flops", "loss", "bits_per_byte")


def _laws(found: Findings) -> list[Table]:
    analysed = found.concluded.analysed
    rows = [
        [
            law.name,
            law.fit.metrics.r_squared,
            law.fit.metrics.mae,
            law.held_out.mae,
            law.held_out.naive_mae,
            f"{law.held_out.held_out_runs} runs: {law.held_out.split}",
        ]
        for law in analysed.laws
    ]
    notes = [analysed.choice.sentence] if analysed.choice else []
    return [Table("Laws (errors in nats/token)", LAWS, rows, notes)] if rows else []


def _coefficients(law: FittedLaw) -> Table:
    rows = [
        [name, value, Written([law.intervals[name].low, law.intervals[name].high], _ends(law.intervals[name]))]
        for name, value in law.fit.coefficients.items()
    ]
    columns = (Column("coefficient"), Column("fitted", format), Column("bootstrap, 90 %"))
    return Table(f"Coefficients of {law.name}", columns, rows, [f"- {warning}" for warning in law.fit.warnings])


def _ends(interval: Any) -> str:
    return f"{format(interval.low)} – {format(interval.high)}"


def _decision(decision: Decision) -> Table:
    checked = "closed form checked" if decision.checked.holds else "CLOSED FORM NOT CONFIRMED"
    beyond = f"{decision.extrapolation:.2g} times the largest trained"
    return Table(
        f"{decision.law}, {family(decision)}, for {decision.flops:.3g} FLOPs, {beyond}: {checked}",
        CONFIRMATIONS,
        confirmations(decision),
        worth(decision),
    )


def _next(found: Findings) -> list[Table]:
    """The runs that ``moejax next`` proposed into the same folder."""
    if not found.next_runs:
        return []
    names = ("params_active", "params_total", "tokens", "flops", "variance_left")
    columns = (
        Column("run"),
        *SIZES,
        Column("tokens", size),
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
