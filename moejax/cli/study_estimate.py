"""``moejax study --dry-run``: the table of runs and what they cost, before anything is spent."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from moejax.json_text import json_text

if TYPE_CHECKING:
    from moejax.study.estimate import Estimate, EstimatedTraining
    from moejax.study.study import Study


def print_estimate(study: Study, chip: str, mfu: float, price: float | None, *, as_json: bool) -> None:
    """Estimate a study on a chip by its name, and print it.

    Raises:
      UserError: no such chip, an MFU or price that cannot be, or a study that makes no sense.
    """
    from moejax.laws.chips import find
    from moejax.study.estimate import estimate

    found = estimate(study, find(chip), mfu=mfu, price=price)
    if as_json:
        print(json_text(as_data(study, found)))
    else:
        _print(study, found)
    for doubt in study.doubts():
        print(f"moejax: {doubt}", file=sys.stderr)


def as_data(study: Study, found: Estimate) -> dict[str, Any]:
    """An estimate as plain data, with exact numbers."""
    return {**asdict(found), "totals": found.totals, "stated": [asdict(stated) for stated in study.stated]}


def _print(study: Study, found: Estimate) -> None:
    from moejax.cli.table import show

    assumed = f"{found.chip.name}, {found.chip.flops_per_second / 1e12:g} TFLOP/s in bfloat16, at {found.mfu:.0%} MFU"
    notes = list(dict.fromkeys(one.note for one in found.trainings if one.note))
    columns = [
        "model",
        "total",
        "active",
        "tokens",
        "batch",
        "rate",
        "FLOPs",
        "state",
        "sequence",
        "chips",
        "chip-hours",
    ]
    columns += ["cost"] * (found.price is not None) + ["note"] * bool(notes)
    show(f"{study.name} on {assumed}", columns, [_row(one, notes) for one in found.trainings], words=["tokens"])
    for number, note in enumerate(notes, start=1):
        print(f"{number:>4}  {note}")
    if notes:
        print()
    _print_totals(study, found)
    print(
        "state: parameters, gradients and AdamW's moments in float32. sequence: activations and logits of one, layers\n"
        "computed again. chips: fewest whose memory holds both. FLOPs: trunk and branches, attention not halved."
    )


def _row(one: EstimatedTraining, notes: list[str]) -> list[str]:
    from moejax.quantities import format, format_bytes

    row = [one.model, *(format(count) for count in (one.params_total, one.params_active))]
    row += [" ".join(format(budget, 3) for budget in one.budgets_tokens), format(one.batch_tokens, 3)]
    row += [f"{one.learning_rate:.3g}", f"{one.flops:.3g}"]
    row += [format_bytes(one.state_bytes, 3), format_bytes(one.sequence_bytes, 3)]
    row += ["none" if one.chips_at_least is None else str(one.chips_at_least), f"{one.chip_hours:,.3g}"]
    row += [] if one.cost is None else [f"{one.cost:,.2f}"]
    return row + ([str(notes.index(one.note) + 1) if one.note else ""] if notes else [])


def _print_totals(study: Study, found: Estimate) -> None:
    from moejax.cli.table import show

    stated = {one.quantity: one for one in study.stated}
    rows = []
    for name, value in found.totals.items():
        paper = stated.get(name)
        beside = ["", ""] if paper is None else [_written(paper.value), paper.source]
        rows.append([name.replace("_", " "), _written(value), *beside])
    show(
        "Altogether",
        ["", "here", *(["the paper's", "source"] if stated else [])],
        [row if stated else row[:2] for row in rows],
        words=["source"],
    )


def _written(value: float) -> str:
    return f"{value:,.0f}" if 100 <= value < 1e7 or value == int(value) < 1e7 else f"{value:.4g}"
