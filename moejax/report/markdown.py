"""The report as Markdown: what the page says without its figures, for a repository, an issue or a chat."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from moejax.quantities import format
from moejax.report.findings import Findings, best_per_budget, experts, versions
from moejax.report.wording import confirmations, size, worth
from moejax.study.decision import family

BEST = 12
"""Best runs that are listed, the last of them the largest."""


def harmless(text: str) -> str:
    """Markdown in which names that somebody else chose are no HTML: every ``<`` is shown, and opens nothing."""
    return text.replace("<", "&lt;")


def markdown(found: Findings) -> str:
    """The text."""
    return harmless(_markdown(found))


def _markdown(found: Findings) -> str:
    concluded = found.concluded
    laws, decisions = concluded.analysed.laws, concluded.analysed.decisions
    parts = [
        f"# {concluded.name}",
        f"{len(found.runs):,} runs of {found.runs['model'].nunique():,} models, {len(laws)} laws fitted, "
        f"{len(decisions)} optima checked. Figures and all numbers: `report.html`, `report.json`.",
        *(f"> {note}" for note in concluded.notes),
    ]
    if concluded.signals:
        parts.append("## Honest signals")
        parts.append(_list(f"{'✓' if s.holds else '✗'} {s.fact}: {s.found}" for s in concluded.signals))
    parts += ["## Best runs", _best(found)]
    if laws:
        headings = ["law", "R²", "MAE, fitted", "MAE, held out", "naive MAE", "held out"]
        rows = [
            [
                law.name,
                f"{law.fit.metrics.r_squared:.4f}",
                f"{law.fit.metrics.mae:.4f}",
                f"{law.held_out.mae:.4f}",
                _or_dash(law.held_out.naive_mae, lambda v: f"{v:.4f}"),
                f"{law.held_out.held_out_runs} runs: {law.held_out.split}",
            ]
            for law in laws
        ]
        parts += ["## Laws", table(headings, rows)]
        parts += [concluded.analysed.choice.sentence] if concluded.analysed.choice else []
        for law in laws:
            rows = [
                [name, format(value), f"{format(law.intervals[name].low)} – {format(law.intervals[name].high)}"]
                for name, value in law.fit.coefficients.items()
            ]
            parts += [f"### {law.name}", table(["coefficient", "fitted", "bootstrap, 90 %"], rows)]
            parts += [_list(law.fit.warnings)] if law.fit.warnings else []
    for number, decision in enumerate(decisions):
        parts += ["## Decisions"] if not number else []
        verdict = "closed form checked" if decision.checked.holds else "closed form not confirmed"
        parts.append(f"### {decision.law}, {family(decision)}, {decision.flops:.3g} FLOPs: {verdict}")
        parts.append(table(["", "closed form", "jax.grad", "numerical argmin", "90 %"], confirmations(decision)))
        parts.append(" ".join([f"The budget is {decision.extrapolation:.2g} times the largest.", *worth(decision)]))
    if found.next_runs:
        parts += ["## Next runs", _next(found.next_runs)]
    parts += ["## What these runs cannot tell", _list(concluded.analysed.limits)]
    used = "; ".join(", ".join(f"{name} {version}" for name, version in one.items()) for one in versions(found.runs))
    hashes = ", ".join(f"{law.name} {law.fit.data_hash}" for law in laws)
    corpus = f"corpus {concluded.corpus.sha256}" if concluded.corpus else ""
    provenance = [
        text for text in (f"trained with {used}" if used else "", corpus, f"data of the fits: {hashes}") if text
    ]
    parts += ["## Provenance", _list(provenance)]
    return "\n\n".join(parts) + "\n"


def table(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table as Markdown."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(value: Any) -> str:
    return " ".join(str(value).replace("|", "\\|").splitlines())


def _best(found: Findings) -> str:
    best = best_per_budget(found.runs)
    rows = [
        [
            _or_dash(run.get("tokens"), lambda v: f"{v:,.0f}"),
            run["model"],
            experts(run),
            _or_dash(run.get("params_active"), size),
            _or_dash(run.get("params_total"), size),
            _or_dash(run.get("flops"), lambda v: f"{v:.2e}"),
            f"**{run['loss']:.4f}**" if run["loss"] == best["loss"].min() else f"{run['loss']:.4f}",
        ]
        for _, run in best.tail(BEST).iterrows()
    ]
    return table(["tokens", "model", "experts", "active", "total", "FLOPs", "loss, nats/token"], rows)


def _next(proposed: dict[str, Any]) -> str:
    rows = [
        [
            run.get("label") or number + 1,
            *(_or_dash(run.get(name), size) for name in ("params_active", "params_total", "tokens")),
            f"{run['flops']:.2e}",
            f"{run['variance_left']:.1%}",
        ]
        for number, run in enumerate(proposed["runs"])
    ]
    return table(["run", "active", "total", "tokens", "FLOPs", "variance left"], rows)


def _list(lines: Any) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _or_dash(value: Any, write: Callable[[Any], str]) -> str:
    return "–" if value is None or value != value else write(value)
