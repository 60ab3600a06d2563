"""The answer of a study, as the last lines of its terminal."""

from __future__ import annotations

import textwrap
from typing import Any

from moejax.fit.bootstrap import Interval
from moejax.quantities import format
from moejax.report.findings import Findings, best_per_budget, experts, read
from moejax.study.decision import Decision
from moejax.study.run import Concluded

WIDTH = 100
LINES = 40
"""About as much as a terminal shows; limits beyond it are counted and left to the report."""
BUDGETS = 6
"""Budgets whose best model is named; the largest ones."""

VARIABLES = {"params_active": "active parameters", "tokens": "tokens", "loss": "loss, nats/token"}
"""What an optimum consists of, in words."""


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


def number(name: str, value: float, digits: int = 4) -> str:
    """A variable of an optimum as a person writes it: losses in decimals, sizes with a letter."""
    return f"{value:.{digits}f}" if name == "loss" else format(value, digits)


def interval(name: str, found: Interval) -> str:
    """The range of a resampled answer, and whether it determines anything."""
    low, high = number(name, found.low, 3), number(name, found.high, 3)
    return f"[{low}, {high}]" + (" not determined" if found.says_nothing else "")


def _title(found: Findings) -> list[str]:
    runs = found.runs
    return [f"{found.concluded.study.name}: {len(runs)} runs of {runs['model'].nunique()} models"]


def _signals(concluded: Concluded) -> list[str]:
    lines = ["Honest signals"]
    for signal in concluded.signals:
        mark = "  holds:         " if signal.holds else "  DOES NOT HOLD: "
        lines += textwrap.wrap(f"{signal.fact}: {signal.found}", WIDTH, initial_indent=mark, subsequent_indent=" " * 17)
    return lines


def _best(found: Findings) -> list[str]:
    rows = [
        [
            f"{run['tokens']:,.0f}",
            run["model"],
            experts(run),
            format(run["params_active"]),
            format(run["params_total"]),
            f"{run['flops']:.2e}",
            f"{run['loss']:.4f}",
            f"{run['bits_per_byte']:.4f}",
        ]
        for _, run in best_per_budget(found.runs).tail(BUDGETS).iterrows()
    ]
    headings = ["tokens", "model", "experts", "active", "total", "FLOPs", "loss", "bits/byte"]
    return ["Best model per token budget", *_columns([headings, *rows], left=(1, 2))]


def _laws(concluded: Concluded) -> list[str]:
    headings = ["law", "R²", "MAE, fitted runs", "MAE, held out", "naive MAE", "held out"]
    rows = [
        [
            law.name,
            f"{law.fit.metrics.r_squared:.4f}",
            f"{law.fit.metrics.mae:.4f}",
            f"{law.held_out.mae:.4f}",
            f"{law.held_out.naive_mae:.4f}",
            f"{law.held_out.held_out_runs} runs: {law.held_out.split}",
        ]
        for law in concluded.analysed.laws
    ]
    return ["Laws (errors in nats/token)", *_columns([headings, *rows], left=(0, 5))]


def _decisions(concluded: Concluded) -> list[str]:
    decisions = concluded.analysed.decisions
    if not decisions:
        return ["Decisions: none of the laws has a closed form for its optimum."]
    lines = [f"Compute-optimal for {decisions[0].flops:.3g} FLOPs, where 6 · active · tokens is the budget"]
    lines += [_row("", "closed form", "jax.grad", "numerical argmin", "bootstrap, 90 %")]
    for decision in decisions:
        verdict = "confirmed" if decision.checked.holds else "NOT CONFIRMED"
        lines += [f"  {decision.law}, {family(decision)}: {verdict}"]
        lines += [_row(*cells) for cells in confirmations(decision)]
    return lines


def family(decision: Decision) -> str:
    """Which models a decision is about: dense, or the ratio of their total to their active parameters."""
    return "dense" if decision.expansion == 1 else f"total/active = {decision.expansion:.2f}"


def confirmations(decision: Decision) -> list[tuple[str, str, str, str, str]]:
    """Variable, closed form, what autodiff says there, numerical argmin, and interval: a row per variable."""
    checked = decision.checked
    autodiff = {"params_active": f"slope {checked.residual:.1e}", "tokens": f"curvature {checked.curvature:.2e}"}
    return [
        (
            words,
            number(name, checked.value[name]),
            autodiff.get(name, ""),
            number(name, checked.numeric[name]),
            interval(name, decision.intervals[name]),
        )
        for name, words in VARIABLES.items()
    ]


def _row(name: str, closed: str, autodiff: str, argmin: str, resampled: str) -> str:
    return f"    {name:<17}{closed:>11}  {autodiff:<18}{argmin:>17}  {resampled}".rstrip()


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
