"""List laws, and show one with its published constants."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

from moejax.laws import ALIASES, LAWS, PUBLISHED
from moejax.laws.law import PROVENANCE, coefficients
from moejax.laws.predict import law_name
from moejax.quantities import format
from moejax.result import Column, Result, Table


def describe(name: str) -> dict[str, Any]:
    """Return all data of one law as plain values.

    Raises:
      UserError: the law is unknown; the message has the nearest names.
    """
    law = law_name(name)
    cls: Any = LAWS[law]
    return {
        "law": law,
        "aliases": [alias for alias, known in ALIASES.items() if known == law],
        "statement": inspect.cleandoc(cls.__doc__).replace("``", ""),
        "inputs": list(cls.inputs),
        "outputs": dict(cls.outputs),
        "coefficients": {
            f.name: {"symbol": f.metadata["symbol"], "meaning": f.metadata["meaning"]} for f in dataclasses.fields(cls)
        },
        "constants": {
            key: {
                "values": {name: _plain(value) for name, value in coefficients(p.law).items()},
                "source": p.source,
                "provenance": p.provenance,
                "data": p.data,
                "fitted": {variable: list(bounds) for variable, bounds in p.fitted.items()},
                "dense": p.dense,
                "remark": p.remark,
            }
            for key, p in PUBLISHED[law].items()
        },
    }


def _plain(value: Any) -> Any:
    """Return a coefficient as a number, or an array or sequence of coefficients as lists of numbers."""
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else float(value)


def every_law() -> Result:
    """Return a table of all laws."""
    every = [describe(name) for name in LAWS]
    rows = [
        [
            law["law"],
            ", ".join(law["aliases"]),
            ", ".join(law["inputs"]),
            ", ".join(law["outputs"]),
            ", ".join(law["constants"]) or "none published",
        ]
        for law in every
    ]
    columns = [Column(name, words=True) for name in ("law", "also called", "reads", "predicts", "constants")]
    notes = ["`moejax laws show NAME` prints the form, its source and its constants."]
    return Result(tables=[Table("Laws", columns, rows)], notes=notes, data=every)


def one_law(name: str) -> Result:
    """Return the form of a law, its coefficients and its published constants."""
    law = describe(name)
    sets = law["constants"]
    outputs = "; ".join(f"{output} ({unit})" for output, unit in law["outputs"].items())
    rows = [
        [c["symbol"], key, *(_text(s["values"].get(key)) for s in sets.values()), c["meaning"]]
        for key, c in law["coefficients"].items()
    ]
    columns = [Column("symbol"), Column("name", words=True), *map(Column, sets), Column("meaning", words=True)]
    notes = []
    for key, s in sets.items():
        notes.append(f"{key}: {s['source']} ({s['provenance']}: {PROVENANCE[s['provenance']]}).")
        notes += [f"  data: {s['data']}"] if s["data"] else []
        notes += [
            f"  fitted for {variable} between {format(low)} and {format(high)}"
            for variable, (low, high) in s["fitted"].items()
        ]
        notes += ["  fitted to dense models alone"] if s["dense"] else []
        notes += [f"  {s['remark']}"] if s["remark"] else []
    lead = [*law["statement"].splitlines(), "", f"reads     {', '.join(law['inputs'])}", f"predicts  {outputs}"]
    return Result(
        title=law["law"],
        tables=[Table("", notes=lead), Table("Coefficients", columns, rows)],
        notes=notes or ["No constants are published; fit the law to runs with `moejax fit`."],
        data=law,
    )


def _text(value: Any) -> str:
    if value is None:
        return "chosen"
    return f"{value:.6g}" if isinstance(value, float) else " ".join(_text(v) for v in value)
