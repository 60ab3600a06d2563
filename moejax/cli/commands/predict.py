"""Implement ``moejax predict``: print the predictions of published laws for a model and a number of tokens."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from moejax.cli.commands.architecture import load_architecture
from moejax.cli.number import pairs
from moejax.cli.parsers.predict import DESIGN_OPTIONS, WHOLE
from moejax.errors import UserError
from moejax.laws import LAWS, PUBLISHED
from moejax.laws.accounting import design_of, flops_per_token
from moejax.laws.active_params import convention, sentence
from moejax.laws.dense.chinchilla import FLOPS_PER_PARAM_AND_TOKEN
from moejax.laws.design import Design, known
from moejax.laws.predict import AS_DENSE, beyond_in_words, check_design, check_scale, law_name, predict, published
from moejax.quantities import format, parse
from moejax.report import render
from moejax.result import Column, Result, Table
from moejax.say import say
from moejax.wording import told

Ask = Callable[[argparse.Namespace, Design], tuple[list[dict[str, Any]], dict[str, str]]]
"""A function that returns the laws' answers for a design, and the reasons why other laws were not evaluated."""


def run(arguments: argparse.Namespace) -> int:
    """Evaluate the laws and print their predictions."""
    return predicted(arguments, _ask_all if arguments.law == "all" else _ask_one)


def predicted(arguments: argparse.Namespace, ask: Ask) -> int:
    """Print the answers of ``ask`` for the design of the options."""
    design = design_of_options(arguments)
    check_design(design)
    check_scale(design)
    answers, unasked = ask(arguments, design)
    assumed = _assumed(arguments)
    render.show(summary(design, answers, unasked, assumed), as_json=arguments.json)
    if not arguments.json:
        for law, why in unasked.items():
            say(f"not asked: {law}: {why}")
    return 0


def design_of_options(arguments: argparse.Namespace) -> Design:
    """Return the design that the options describe."""
    typed = {name: getattr(arguments, name) for name in DESIGN_OPTIONS if getattr(arguments, name) is not None}
    columns = {name: parse(value) for name, value in pairs(arguments.column, "--column")}
    if own := next((name for name in columns if name in (*DESIGN_OPTIONS, "loss")), ""):
        raise UserError(f"--column {own}=… has an option of its own; give --{own.replace('_', '-')}.")
    columns = (columns if arguments.loss is None else columns | {"loss": arguments.loss}) or None
    found = load_architecture(arguments)
    if found is None:
        return _by_convention(Design(**typed, columns=columns), arguments.active_convention)
    implied = replace(design_of(found[1], arguments.tokens), **typed, columns=columns)
    if implied.flops is None and implied.tokens is not None:
        per_token = flops_per_token(found[1], arguments.sequence_length).training
        return replace(implied, flops=float(per_token * implied.tokens))
    return implied


def _by_convention(design: Design, name: str | None) -> Design:
    """Return the design with active parameters, and tokens from its FLOPs, if an active-parameter convention is
    given.
    """
    if name is None:
        return design
    taken = convention(name)
    lacking = [field for field in ("params_total", "num_experts", "top_k") if getattr(design, field) is None]
    if lacking or design.params_active is not None:
        what = "params_active is given" if not lacking else f"{' and '.join(lacking)} are not"
        raise UserError(
            f"--active-convention gives active parameters from --params-total, --num-experts and --top-k, and {what}; "
            f"leave it out, or give these three alone."
        )
    found = replace(design, params_active=float(taken(design.params_total, float(design.sparsity))))
    if found.tokens is None and found.flops is not None:
        return replace(found, tokens=found.flops / (FLOPS_PER_PARAM_AND_TOKEN * found.params_active))
    return found


def _assumed(arguments: argparse.Namespace) -> str:
    """Return sentences about the given convention, and about numbers that no model can have."""
    said = [] if arguments.active_convention is None else [sentence(convention(arguments.active_convention))]
    given = {name: getattr(arguments, name) for name in WHOLE}
    broken = [f"{name} {format(value)}" for name, value in given.items() if value is not None and value % 1]
    if broken:
        said.append(f"No model has {' or '.join(broken)}: the law is asked between models.")
    return " ".join(said)


def law_and_constants(text: str, constants: str | None) -> tuple[str, str | None]:
    """Return the law that ``--law`` names, with its paper's constants if it is named by its paper and none are given.

    Raises:
      UserError: there is no such law.
    """
    law = law_name(text)
    if constants is None:
        constants = next((key for key in PUBLISHED[law] if key.startswith(text.lower())), None)
    return law, constants


def _ask(name: str, constants: str | None, design: Design) -> dict[str, Any]:
    law, constants = law_and_constants(name, constants)
    chosen = published(law, constants)
    said = predict(chosen, design)
    return {
        "law": law,
        "constants": constants or next(iter(PUBLISHED[law])),
        "source": chosen.source,
        "provenance": chosen.provenance,
        "values": dict(said.values),
        "units": dict(said.units),
        "extrapolated": dict(said.extrapolated),
        "unchecked": list(said.unchecked),
        "as_dense": said.as_dense,
        "params_effective": said.params_effective,
        "remark": chosen.remark,
    }


def _ask_one(arguments: argparse.Namespace, design: Design) -> tuple[list[dict[str, Any]], dict[str, str]]:
    return [_ask(arguments.law, arguments.constants, design)], {}


def _ask_all(arguments: argparse.Namespace, design: Design) -> tuple[list[dict[str, Any]], dict[str, str]]:
    answers, unasked = [], {}
    for law in LAWS:
        try:
            answers += [_ask(law, constants, design) for constants in PUBLISHED[law]]
            if not PUBLISHED[law]:
                unasked[law] = "no constants are published; fit it to runs"
        except ValueError as why:
            unasked[law] = told(why)
    if not answers:
        raise UserError("No law can be asked with so little. Give --arch NAME --tokens N, or --params-active N ….")
    return answers, unasked


def _known(design: Design) -> dict[str, float | int]:
    given = known(design)
    return {name: given[name] for name in (*DESIGN_OPTIONS, *(design.columns or {})) if name in given}


def summary(design: Design, answers: list[dict[str, Any]], unasked: dict[str, str], assumed: str) -> Result:
    """Return the laws' answers as a table."""
    rows = []
    for a in answers:
        for i, (output, value) in enumerate(a["values"].items()):
            law, constants, beyond = (a["law"], a["constants"], _distance(a)) if i == 0 else ("", "", "")
            rows.append([law, constants, f"{output.replace('_', ' ')} ({a['units'][output]})", value, beyond])
        if effective := a.get("params_effective"):
            rows.append(["", "", "effective parameters, of the dense model with this loss", effective, ""])
    columns = (
        Column("law"),
        Column("constants", words=True),
        Column("quantity", words=True),
        Column("value", format),
        Column("beyond the fitted range", words=True),
    )
    note = "Losses of different laws are of different data and tokenisers: compare designs under one law."
    if len(answers) == 1:
        note = f"{answers[0]['source']} ({answers[0]['provenance']}). {answers[0]['remark']}".rstrip()
    notes = [note, *([assumed] if assumed else []), *([AS_DENSE] if any(a.get("as_dense") for a in answers) else [])]
    given = _known(design)
    return Result(
        title="design: " + ", ".join(f"{name} {format(value)}" for name, value in given.items()),
        tables=[Table("Predictions", columns, rows)],
        notes=notes,
        data={"design": given, "predictions": answers, "not_asked": unasked}
        | ({"active_convention": assumed} if assumed else {}),
    )


def _distance(answer: dict[str, Any]) -> str:
    words = beyond_in_words(answer["extrapolated"])
    if answer.get("as_dense"):
        words.insert(0, "dense models alone")
    if answer["unchecked"]:
        words.append(f"unknown for {', '.join(answer['unchecked'])}")
    return "; ".join(words) or "within"
