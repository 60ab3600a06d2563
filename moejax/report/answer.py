"""The answer of a study, as the last lines of its terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

from moejax.quantities import format_bytes
from moejax.report.findings import Findings, best_per_budget, experts, read
from moejax.report.wording import confirmations, size
from moejax.study.decision import family
from moejax.study.run import Concluded

WIDTH = 100
LINES = 40
"""About as much as a terminal shows; limits beyond it are counted and left to the report."""
BUDGETS = 6
"""Budgets whose best model is named; the largest ones."""


def answer(concluded: Concluded) -> str:
    """Signals, best models, laws, decisions with their confirmations, and limits: plain text, 100 columns."""
    found = read(concluded)
    lines = [
        *_title(found),
        "",
        *_signals(concluded),
        "",
        *_best(found),
        "",
        *_laws(concluded),
        "",
        *_decisions(concluded),
        "",
    ]
    return "\n".join([*lines, *_limits(concluded.analysed.limits, LINES - len(lines))])


def _title(found: Findings) -> list[str]:
    runs, corpus = found.runs, found.concluded.corpus
    title = f"{found.concluded.name}: {len(runs)} runs of {runs['model'].nunique()} models"
    if corpus is None:
        return [title]
    text = f"{format_bytes(corpus.train.bytes)} of text ({corpus.source}, {corpus.train.documents:,} documents)"
    return [f"{title} on {text}"]


def _signals(concluded: Concluded) -> list[str]:
    if not concluded.signals:
        return ["Honest signals: the table does not say what they need."]
    lines = ["Honest signals"]
    for signal in concluded.signals:
        mark = "  holds:         " if signal.holds else "  DOES NOT HOLD: "
        lines += textwrap.wrap(f"{signal.fact}: {signal.found}", WIDTH, initial_indent=mark, subsequent_indent=" " * 17)
    return lines


def _best(found: Findings) -> list[str]:
    rows = [
        [
            _written(run, "tokens", lambda value: f"{value:,.0f}"),
            run["model"],
            experts(run),
            _written(run, "params_active", size),
            _written(run, "params_total", size),
            _written(run, "flops", lambda value: f"{value:.2e}"),
            f"{run['loss']:.4f}",
            _written(run, "bits_per_byte", lambda value: f"{value:.4f}"),
        ]
        for _, run in best_per_budget(found.runs).tail(BUDGETS).iterrows()
    ]
    headings = ["tokens", "model", "experts", "active", "total", "FLOPs", "loss", "bits/byte"]
    return ["Best model per token budget", *_columns([headings, *rows], left=(1, 2))]


def _written(run: Any, name: str, write: Callable[[float], str]) -> str:
    value = run.get(name)
    return "–" if value is None or value != value else write(value)


def _laws(concluded: Concluded) -> list[str]:
    if not concluded.analysed.laws:
        return ["Laws: none could be fitted to these runs; the limits say why."]
    headings = ["law", "R²", "MAE, fitted runs", "MAE, held out", "naive MAE", "held out"]
    rows = [
        [
            law.name,
            f"{law.fit.metrics.r_squared:.4f}",
            f"{law.fit.metrics.mae:.4f}",
            f"{law.held_out.mae:.4f}",
            "–" if law.held_out.naive_mae is None else f"{law.held_out.naive_mae:.4f}",
            f"{law.held_out.held_out_runs} runs: {law.held_out.split}",
        ]
        for law in concluded.analysed.laws
    ]
    choice = concluded.analysed.choice
    return [
        "Laws (errors in nats/token)",
        *_columns([headings, *rows], left=(0, 5)),
        *([choice.sentence] if choice else []),
    ]


def _decisions(concluded: Concluded) -> list[str]:
    decisions = concluded.analysed.decisions
    if not decisions:
        return ["Decisions: none of the laws has a closed form for its optimum."]
    beyond = f"{decisions[0].extrapolation:.2g} times the largest trained"
    lines = [f"Compute-optimal for {decisions[0].flops:.3g} FLOPs = 6 · active · tokens, {beyond}"]
    lines += [_row("", "closed form", "jax.grad", "numeric argmin", "bootstrap, 90 %")]
    for decision in decisions:
        verdict = "closed form checked" if decision.checked.holds else "CLOSED FORM NOT CONFIRMED"
        lines += [f"  {decision.law}, {family(decision)}: {verdict}"]
        lines += [_row(*cells) for cells in confirmations(decision)]
    return lines


def _row(name: str, closed: str, autodiff: str, argmin: str, resampled: str) -> str:
    return f"    {name:<17}{closed:>11}  {autodiff:<18}{argmin:>14}  {resampled}".rstrip()


def _limits(limits: list[str], room: int) -> list[str]:
    lines, shown = ["Limits"], 0
    for limit in limits:
        wrapped = textwrap.wrap(limit, WIDTH, initial_indent="  - ", subsequent_indent="    ")
        if shown and len(lines) + len(wrapped) >= room:
            break
        lines, shown = lines + wrapped, shown + 1
    rest = len(limits) - shown
    return [*lines, f"  - and {rest} more, in the report"] if rest else lines


def _columns(rows: list[list[Any]], left: tuple[int, ...]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  "
        + "  ".join(
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
