"""Show the state and the estimated cost of a study as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from moejax.json_text import fields
from moejax.quantities import clock, format, format_bytes
from moejax.report.trainings import state_text
from moejax.result import Column, Result, Table, Written, percent
from moejax.study.estimate import EstimatedDownstream, StudyEstimate
from moejax.study.stages import later
from moejax.study.status import RunStatus, seconds_left
from moejax.study.study import Study
from moejax.train.directory.attempts import STATES
from moejax.wording import counted, install_command

MOST_SHOWN = 20
"""Maximum number of training runs in the table of a study's state."""


STATUS = (
    Column("model", value="model"),
    Column("state", words=True, value=lambda one: state_text(one)),
    Column("runs", value=lambda one: f"{len(one.rows)}/{one.runs}"),
    Column("of steps", percent(0), value="share"),
    # A non-finite loss is a known value and is shown.
    Column("loss", value=lambda one: None if one.loss is None else Written(one.loss, f"{one.loss:.3f}")),
    Column("started", value="attempts"),
    Column("device-hours", ",.3g", value=lambda one: one.device_seconds / 3600),
    Column("left", clock, value="seconds_left"),
    Column("where", words=True, value="where"),
)


def study_status(study: Study, url: str, statuses: Sequence[RunStatus], price: float | None) -> Result:
    """Return the state of a study's training runs, problems first, and their totals."""
    states = {state: sum(one.state == state for one in statuses) for state in STATES}
    runs_done, runs = sum(len(one.rows) for one in statuses), sum(one.runs for one in statuses)
    hours, left = sum(one.device_seconds for one in statuses) / 3600, seconds_left(statuses)
    cost = None if price is None else hours * price
    # Training runs with problems are never among the omitted rows.
    order = ("failed", "interrupted", "running", "waiting", "done")
    shown = sorted(statuses, key=lambda one: order.index(one.state))
    rest = len(shown) - MOST_SHOWN
    more = [f"and {rest} more, the first of them {shown[MOST_SHOWN].state} (--json lists all)"] if rest > 0 else []
    models = ", ".join(f"{count} {state}" for state, count in states.items() if count)
    spent = f"{hours:,.3g} device-hours" + ("" if cost is None else f", {cost:,.2f}")
    pace = f"; about {clock(left)} left at this pace" if left else ""
    return Result(
        tables=[Table.of(f"{study.name} in {url}", STATUS, shown[:MOST_SHOWN], more)],
        notes=[
            *(f"{one.model} {one.state}: {one.why}" for one in shown if one.why),
            *([later(study)] if study.unknown_stages else []),
            f"{runs_done} of {runs} runs; models: {models}; spent {spent}{pace}",
        ],
        data={
            "study": study.name,
            "unknown_stages": study.unknown_stages,
            "states": states,
            "runs_done": runs_done,
            "runs": runs,
            "share": sum(one.share * one.flops for one in statuses) / sum(one.flops for one in statuses),
            "device_hours": hours,
            "cost": cost,
            "seconds_left": left,
            "models": [{**fields(one), "rows": len(one.rows)} for one in statuses],
        },
    )


def study_estimate(study: Study, estimate: StudyEstimate) -> Result:
    """Return the cost of each training run, the totals, and the assumptions."""
    peak = f"{estimate.chip.flops_per_second / 1e12:g} TFLOP/s in bfloat16"
    chip = f"{estimate.chip.name}, {peak}, at {estimate.mfu:.0%} MFU"
    notes = list(dict.fromkeys(one.note for one in estimate.trainings if one.note))
    columns = (
        Column("model", value="model"),
        Column("total", format, value="params_total"),
        Column("active", format, value="params_active"),
        Column("tokens", words=True, value=lambda one: " ".join(format(budget, 3) for budget in one.budgets_tokens)),
        Column("batch", lambda value: format(value, 3), value="batch_tokens"),
        Column("rate", ".3g", value="learning_rate"),
        Column("FLOPs", ".3g", value="flops"),
        Column("state", lambda value: format_bytes(value, 3), value="state_bytes"),
        Column("sequence", lambda value: format_bytes(value, 3), value="sequence_bytes"),
        Column("chips, at least", value=lambda one: one.chips_at_least or "none"),
        Column("chip-hours", lambda value: format(value, 3), value="chip_hours"),
        Column("cost", lambda value: format(value, 3), value="cost"),
        Column("note", value=lambda one: notes.index(one.note) + 1 if one.note else None),
    )
    numbered = [f"{number:>4}  {note}" for number, note in enumerate(notes, start=1)]
    return Result(
        tables=[
            Table.of(f"{study.name} on {chip}", columns, estimate.trainings, numbered),
            _estimate_totals(study, estimate),
        ],
        notes=[
            "state: parameters, gradients and AdamW's moments. sequence: activations and logits of one sequence, with "
            "recomputation. chips, at least: smallest number whose memory holds both; moejax launch requests chips "
            "that hold a step with the recipe's batch, mesh and remat. FLOPs: trunk and branches; attention is "
            "not halved for causality, but in chip-hours it is. Without shared trunks: as if each budget were trained "
            "from its first step."
        ],
        data=_as_data(study, estimate),
    )


def _estimate_totals(study: Study, estimate: StudyEstimate) -> Table:
    stated = {one.quantity: (one.value, one.source) for one in study.stated}
    rows = [[name.replace("_", " "), value, *stated.get(name, (None, None))] for name, value in estimate.totals.items()]
    columns = (Column(""), Column("here", _written), Column("the paper's", _written), Column("source", words=True))
    return Table("Totals", columns, rows)


def _written(value: float) -> str:
    return f"{value:,.0f}" if 100 <= value < 1e7 or value == int(value) < 1e7 else f"{value:.4g}"


def _as_data(study: Study, estimate: StudyEstimate) -> dict[str, Any]:
    """Return an estimate as plain data, keyed by field, with exact numbers."""
    before = [None, *(one.name for one in study.stages)]
    stages = [
        {"name": one.name, "models": list(study.models_of(one)), "made_from": source}
        for one, source in zip(study.stages, before, strict=False)
    ]
    asked = estimate.downstream and {**fields(estimate.downstream), "scores": estimate.downstream.scores}
    more = {"totals": estimate.totals, "stated": study.stated, "stages": stages, "downstream": asked}
    return {**fields(estimate), **more}


def downstream_in_words(asked: EstimatedDownstream) -> str:
    """Return sentences about the cost of evaluating the checkpoints on downstream tasks."""
    harness = ""
    if asked.needs_harness:
        lacks = f"is not installed here; run {install_command('eval')}"
        harness = f" lm-evaluation-harness {'is installed' if asked.has_harness else lacks}."
    return (
        f"Downstream evaluation: {counted(asked.tasks, 'task')} on {counted(asked.checkpoints, 'checkpoint')}, "
        f"{counted(asked.scores, 'score')}.{harness} The FLOPs above do not include it: each million tokens of a "
        f"task's text takes {1e6 * asked.flops_per_token:.3g} FLOPs over all checkpoints."
    )
