"""Count parameters, FLOPs and bytes of an architecture, per part and under each paper's convention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from moejax.architecture import Architecture
from moejax.laws import PUBLISHED
from moejax.laws.accounting import design_of, flops_per_token, mtp_params, params
from moejax.laws.catalogue import CATALOGUE
from moejax.laws.conventions import FLOPS, PARAMS
from moejax.laws.memory import kv_cache_bytes, training_memory
from moejax.laws.predict import effective_params
from moejax.quantities import format, format_bytes
from moejax.result import Column, Result, Table, percent


def count(name: str, architecture: Architecture, sequence_length: int) -> dict[str, Any]:
    """Return all counts as plain data, keyed by quantity."""
    counts, modules = params(architecture), mtp_params(architecture)
    flops = flops_per_token(architecture, sequence_length)
    stated = CATALOGUE.get(name.lower())
    return {
        "name": name,
        "sequence_length": sequence_length,
        "params": asdict(counts),
        "params_total": counts.total,
        "params_active": counts.active,
        "params_embedding": counts.vocabulary,
        "mtp_params": asdict(modules),
        "params_mtp": modules.total,
        "params_mtp_active": modules.active,
        "flops_per_token_forward": asdict(flops),
        "flops_per_token_training": flops.training,
        "params_effective": {
            key: effective
            for sets in PUBLISHED.values()
            for key, one in sets.items()
            if (effective := effective_params(one.law, design_of(architecture, 1.0))) is not None
        },
        "params_by_convention": {
            key: {"total": c.total(architecture), "active": c.active(architecture), "source": c.source}
            for key, c in PARAMS.items()
        },
        "flops_per_token_by_convention": {
            key: {"training": c.per_token(architecture, sequence_length), "source": c.source}
            for key, c in FLOPS.items()
        },
        "bytes": {
            "adamw_float32": training_memory(architecture, 0).total,
            "activations_per_token_bfloat16": training_memory(architecture, 1).activations,
            "activations_per_token_recomputed": training_memory(architecture, 1, recompute=True).activations,
            "kv_cache_per_token_bfloat16": kv_cache_bytes(architecture, 1),
        },
        "published": None
        if stated is None
        else {
            "params_total": stated.params_total,
            "params_active": stated.params_active,
            "computed": stated.computed(),
            "source": stated.source,
            "note": stated.note,
        },
    }


_BYTES = {
    "adamw_float32": "parameters, gradients and AdamW's moments in float32",
    "activations_per_token_bfloat16": "activations per token in bfloat16",
    "activations_per_token_recomputed": "activations per token, with layer recomputation",
    "kv_cache_per_token_bfloat16": "key-value cache per token in bfloat16",
}


def summary(counts: dict[str, Any]) -> Result:
    """Return the counts as tables."""
    total, forward = counts["params_total"], counts["flops_per_token_forward"]
    all_forward = sum(forward.values())
    share, source = Column("share", percent(2)), Column("source", words=True)
    tables = [
        _params(f"Parameters of {counts['name']}", counts["params"], total, counts["params_active"]),
        Table(
            f"FLOPs per token, sequences of {counts['sequence_length']}, not halved for causality",
            (Column("part"), Column("FLOPs", format), share),
            [
                *_shares(forward, all_forward),
                ["forward", all_forward, ""],
                ["training", counts["flops_per_token_training"], ""],
            ],
        ),
        Table(
            "Parameters by convention",
            (Column("convention"), Column("total", format), Column("active", format), source),
            [[k, c["total"], c["active"], c["source"]] for k, c in counts["params_by_convention"].items()],
        ),
        Table(
            "Effective parameters, of the dense model with the same loss",
            (Column("constants"), Column("parameters", format), share),
            [[k, n, n / total] for k, n in counts["params_effective"].items()],
        ),
        Table(
            "Training FLOPs per token by convention",
            (Column("convention"), Column("FLOPs", format), source),
            [[k, c["training"], c["source"]] for k, c in counts["flops_per_token_by_convention"].items()],
        ),
        Table(
            "Memory",
            (Column("what"), Column("bytes", format_bytes)),
            [[_BYTES[k], n] for k, n in counts["bytes"].items()],
        ),
    ]
    if modules := counts["params_mtp"]:
        note = "The parameters above do not include these modules; the training FLOPs above include them."
        title, active = "Modules of multi-token prediction", counts["params_mtp_active"]
        tables.insert(1, _params(title, counts["mtp_params"], modules, active, [note]))
    if (stated := counts["published"]) is not None:
        columns = (Column("parameters"), Column("stated", format), Column("counted this way", format))
        total, active, *_ = stated["computed"]
        rows = [["total", stated["params_total"], total], ["active", stated["params_active"], active]]
        notes = [stated["note"]] if stated["note"] else []
        tables.append(Table(f"Published: {stated['source']}", columns, rows, notes))
    return Result(tables=tables, data=counts)


def _params(title: str, parts: dict[str, int], total: int, active: int, notes: Sequence[str] = ()) -> Table:
    columns = (Column("part"), Column("parameters", format), Column("share", percent(2)))
    rows = [*_shares(parts, total), ["total", total, ""], ["active", active, active / total]]
    return Table(title, columns, rows, notes)


def _shares(parts: dict[str, int], total: int) -> list[list[Any]]:
    return [[part.replace("_", " "), n, n / total] for part, n in parts.items() if n]
