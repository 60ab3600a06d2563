"""Proposed runs as a table in a terminal, and as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from moejax.experimental_design.study_text import names_of
from moejax.laws.design import FIELDS
from moejax.quantities import format

if TYPE_CHECKING:
    from moejax.experimental_design.candidates import Candidates
    from moejax.experimental_design.propose import Proposal


def show(proposal: Proposal, titles: Sequence[str], inputs: Sequence[str]) -> None:
    """Print."""
    from moejax.cli import table

    plan, laws = proposal.plan, proposal.posteriors
    for name, fit in proposal.fits.items():
        for sentence in fit.warnings:
            print(f"! {name}: {sentence}")
        if values := proposal.assumed.get(name):
            told = ", ".join(f"{one} = {value:g}" for one, value in values.items())
            print(f"! {name}: planned as if {told}, as published: where a fit loses it, no run seems to tell of it.")
    for i, title in enumerate(titles):
        rows = [
            [name, f"{posterior.weight:.2f}", format(np.exp(posterior.answers[i])), _said(proposal, name, i)]
            for name, posterior in laws.items()
        ]
        table.show(title, ["law", "probability", "so far", "standard deviation"], rows)
    chosen = proposal.candidates.only(plan.order)
    sizes = _sizes(proposal, inputs)
    rows, spent = [], 0.0
    for number, left in enumerate(plan.left):
        spent += float(chosen.flops[number])
        values = [format(float(getattr(chosen.design, name)[number])) for name in sizes]
        costs = [f"{chosen.flops[number]:.3g}", f"{spent:.3g}", f"{np.sqrt(left):.3g}"]
        rows.append([_label(chosen, number), *values, *costs])
    heads = [SHORT.get(name, name) for name in sizes]
    columns = ["run", *heads, "FLOPs", "so far", "deviation left"]
    table.show("To train next, the most telling per FLOP first", columns, rows)
    for sentence in sentences(proposal, titles):
        print(sentence)


SHORT = {"params_total": "total", "params_active": "active", "num_experts": "experts", "num_shared_experts": "shared"}


def _label(chosen: Candidates, number: int) -> str:
    """The name that the run has in the study that trains it, or its row."""
    if chosen.architectures:
        return names_of(chosen.architectures)[number]
    return chosen.labels[number] if chosen.labels else str(number + 1)


def _said(proposal: Proposal, name: str, answer: int) -> str:
    number = list(proposal.posteriors).index(name)
    deviation = float(proposal.posteriors[name].deviations[answer])
    if proposal.plan.unidentified[number][answer]:
        return "not identified by these runs"
    return spread(deviation)


def spread(deviation: float) -> str:
    """A standard deviation of a logarithm: in percent, or as a factor where it is large."""
    return f"{deviation:.2%}" if deviation < 0.3 else f"a factor {np.exp(min(deviation, 700.0)):.3g}"


def sentences(proposal: Proposal, titles: Sequence[str]) -> list[str]:
    """What the runs are expected to do, in words."""
    plan, found = proposal.plan, []
    for title, before, after in zip(titles, plan.before, plan.after, strict=True):
        found.append(
            f"{title}: expected standard deviation {spread(float(before))} before, {spread(float(after))} after."
        )
    for number, name in enumerate(proposal.posteriors):
        for title, was, remains in zip(titles, plan.unidentified[number], plan.still_unidentified[number], strict=True):
            if was:
                ending = "would still not identify it: raise --flops or --k" if remains else "would identify it"
                found.append(f"! The runs so far do not identify {title} under {name}; those proposed {ending}.")
    if plan.bound:
        found.append(
            f"No runs of this budget among the candidates leave less than {np.sqrt(plan.bound):.3g} of the deviation; "
            f"these leave {np.sqrt(plan.left[-1]):.3g}."
        )
    return found


def _sizes(proposal: Proposal, inputs: Sequence[str]) -> list[str]:
    """Which fields of a design are shown: the sizes, and where a run has no name all that the laws read."""
    design = proposal.candidates.design
    wanted = ["params_total", "params_active", *(() if proposal.candidates.architectures else inputs), "tokens"]
    return [n for n in dict.fromkeys(wanted) if getattr(design, n) is not None and n != "flops"]


def plain(proposal: Proposal, titles: Sequence[str], inputs: Sequence[str]) -> dict[str, Any]:
    """As plain data."""
    plan = proposal.plan
    chosen = proposal.candidates.only(plan.order)
    known = [name for name in FIELDS if getattr(chosen.design, name) is not None]
    return {
        "noise": proposal.noise,
        "laws": {
            name: {
                "probability": posterior.weight,
                "assumed": dict(proposal.assumed.get(name, {})),
                "answers": dict(zip(titles, np.exp(posterior.answers).tolist(), strict=True)),
                "deviation_of_log": dict(zip(titles, posterior.deviations.tolist(), strict=True)),
                "unidentified": [t for t, u in zip(titles, plan.unidentified[i], strict=True) if u],
                "still_unidentified": [t for t, u in zip(titles, plan.still_unidentified[i], strict=True) if u],
            }
            for i, (name, posterior) in enumerate(proposal.posteriors.items())
        },
        "runs": [
            {
                "label": _label(chosen, i),
                **{name: float(getattr(chosen.design, name)[i]) for name in known},
                "flops": float(chosen.flops[i]),
                "variance_left": float(plan.left[i]),
            }
            for i in range(len(plan.order))
        ],
        "flops": float(chosen.flops.sum()),
        "deviation_of_log_before": dict(zip(titles, plan.before.tolist(), strict=True)),
        "deviation_of_log_after": dict(zip(titles, plan.after.tolist(), strict=True)),
        "variance_left_at_least": plan.bound,
    }
