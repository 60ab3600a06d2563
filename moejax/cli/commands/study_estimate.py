"""Implement ``moejax study --dry-run``: print the table of runs and their cost before training."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from moejax.cli.commands.exportable import check_exportable
from moejax.cli.commands.load_study import load_study
from moejax.laws.chips import find
from moejax.quantities import format, format_bytes
from moejax.report import render
from moejax.result import Column, Result, Table
from moejax.say import say
from moejax.study import analysis
from moejax.study.estimate import EstimatedDownstream, StudyEstimate, estimate
from moejax.study.outcomes import try_outcomes
from moejax.study.stages import later
from moejax.study.study import Study
from moejax.wording import counted


def run(arguments: argparse.Namespace) -> int:
    """Estimate a study's cost on a named chip, and print it."""
    study, _ = load_study(arguments)
    study.check()
    check_exportable(arguments.exportable, study.models)
    outcomes = try_outcomes(study, lambda one: check_exportable(arguments.exportable, one.models))
    study = outcomes.expected
    found = estimate(study, find(arguments.chip), mfu=arguments.mfu, price=arguments.price)
    render.show(summary(study, found), as_json=arguments.json)
    for warning in analysis.warnings(study):
        say(f"moejax: {warning}")
    if outcomes.said:
        say(f"moejax: {outcomes.said}")
    if found.downstream:
        say(f"moejax: {_asked(found.downstream)}")
    if study.unknown_stages:
        before = study.stages[[stage.name for stage in study.stages].index(study.unknown_stages[0]) - 1]
        say(
            f"moejax: {later(study)} They are not counted; for a dry run to count them, give {before.name} the model "
            f"that is expected to win it, as expected=NAME beside its other settings."
        )
    return 0


def _asked(found: EstimatedDownstream) -> str:
    """Return sentences about the downstream evaluation of the checkpoints."""
    harness = ""
    if found.needs_harness:
        lacks = "is not installed here; pip install 'moejax[eval]'"
        harness = f" lm-evaluation-harness {'is installed' if found.has_harness else lacks}."
    return (
        f"downstream asks {counted(found.tasks, 'task')} of {counted(found.checkpoints, 'checkpoint')}, "
        f"{counted(found.scores, 'score')}.{harness} They are not in the FLOPs: each million tokens of a task's texts "
        f"takes {1e6 * found.flops_per_token:.3g} over all checkpoints."
    )


def as_data(study: Study, found: StudyEstimate) -> dict[str, Any]:
    """Return an estimate as plain data with exact numbers."""
    before = [None, *(one.name for one in study.stages)]
    stages = [
        {"name": one.name, "models": list(study.models_of(one)), "made_from": source}
        for one, source in zip(study.stages, before, strict=False)
    ]
    stated = [asdict(stated) for stated in study.stated]
    asked = found.downstream and {**asdict(found.downstream), "scores": found.downstream.scores}
    return {**asdict(found), "totals": found.totals, "stated": stated, "stages": stages, "downstream": asked}


def summary(study: Study, found: StudyEstimate) -> Result:
    """Return the trainings with their cost, the totals, and the assumptions."""
    chip = f"{found.chip.name}, {found.chip.flops_per_second / 1e12:g} TFLOP/s in bfloat16, at {found.mfu:.0%} MFU"
    notes = list(dict.fromkeys(one.note for one in found.trainings if one.note))
    columns = (
        Column("model"),
        Column("total", format),
        Column("active", format),
        Column("tokens", words=True),
        Column("batch", lambda value: format(value, 3)),
        Column("rate", ".3g"),
        Column("FLOPs", ".3g"),
        Column("state", lambda value: format_bytes(value, 3)),
        Column("sequence", lambda value: format_bytes(value, 3)),
        Column("chips"),
        Column("chip-hours", ",.3g"),
        Column("cost", ",.2f"),
        Column("note"),
    )
    rows = [
        [
            one.model,
            one.params_total,
            one.params_active,
            " ".join(format(budget, 3) for budget in one.budgets_tokens),
            one.batch_tokens,
            one.learning_rate,
            one.flops,
            one.state_bytes,
            one.sequence_bytes,
            "none" if one.chips_at_least is None else one.chips_at_least,
            one.chip_hours,
            one.cost,
            notes.index(one.note) + 1 if one.note else None,
        ]
        for one in found.trainings
    ]
    numbered = [f"{number:>4}  {note}" for number, note in enumerate(notes, start=1)]
    return Result(
        tables=[Table(f"{study.name} on {chip}", columns, rows, numbered), _totals(study, found)],
        notes=[
            "state: parameters, gradients and AdamW's moments in float32. sequence: activations and logits of one, "
            "layers computed again. chips: fewest whose memory holds both. FLOPs: trunk and branches, attention not "
            "halved."
        ],
        data=as_data(study, found),
    )


def _totals(study: Study, found: StudyEstimate) -> Table:
    stated = {one.quantity: one for one in study.stated}
    rows = []
    for name, value in found.totals.items():
        paper = stated.get(name)
        rows.append([name.replace("_", " "), value, *((paper.value, paper.source) if paper else (None, None))])
    columns = (Column(""), Column("here", _written), Column("the paper's", _written), Column("source", words=True))
    return Table("Altogether", columns, rows)


def _written(value: float) -> str:
    return f"{value:,.0f}" if 100 <= value < 1e7 or value == int(value) < 1e7 else f"{value:.4g}"
