"""Resolve the columns of run tables and the names in formulas.

The module maps other projects' column names to moejax's names and derives columns with ``Design``. It classifies each
name in a formula as a column, a field or a coefficient.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from moejax import run_table
from moejax.errors import UserError
from moejax.fit.tables.dense_models import MORE_THAN_DENSE, ExpertSign, sign_of_experts
from moejax.fit.tables.expression import evaluate
from moejax.float64 import float64
from moejax.laws import LAWS
from moejax.laws.dense.chinchilla import training_flops
from moejax.laws.design import DERIVED, FIELDS, Design
from moejax.laws.formula_law import LETTERS as FORMULA_LETTERS
from moejax.laws.formula_law import FormulaLaw, formula_law
from moejax.laws.law import Sign
from moejax.run_sources.column_mapping import ColumnMapping
from moejax.run_table import DataFrame, Series
from moejax.wording import argument, lies, listed, nearest, shown

SYNONYMS: dict[str, tuple[str, ...]] = {
    "loss": (
        *("val_loss", "valid_loss", "validation_loss", "loss_val", "loss_valid", "loss_validation", "eval_loss"),
        *("loss_eval", "test_loss", "final_loss", "final_val_loss", "lm_loss", "val_lm_loss", "nll"),
        *("val_loss_final", "loss_final", "final_eval_loss", "eval_loss_final"),
    ),
    "params_active": (
        *("active_params", "params_act", "activated_params", "params_activated", "active_parameters"),
        *("n_active", "n_act", "n_a", "na", "nact", "nactive", "n_activated", "num_active_params", "n_active_params"),
        *("active_param_count", "act_params", "activated_parameters", "parameters_active", "parameters_activated"),
        *("num_activated_params", "active_model_size"),
    ),
    "params_total": (
        *("total_params", "total_parameters", "n_total", "n_tot", "ntotal", "ntot", "num_total_params"),
        *("total_param_count", "parameters_total", "params_tot", "total_model_size", "tot_params", "tot_parameters"),
        *("n_params_total", "num_params_total"),
    ),
    "params_embedding": ("embedding_params", "embedding_parameters", "n_embedding_params"),
    "tokens": (
        *("n_tokens", "num_tokens", "token_count", "train_tokens", "training_tokens", "tokens_trained"),
        *("tokens_seen", "total_tokens", "trained_tokens", "toks"),
    ),
    "unique_tokens": ("n_unique_tokens", "num_unique_tokens", "dataset_tokens"),
    "flops": (
        *("flop", "compute", "training_flops", "training_flop", "train_flops", "total_flops", "training_compute"),
        *("train_compute", "compute_flops", "flops_total", "n_flops"),
    ),
    "num_experts": (
        *("n_experts", "n_expert", "experts", "n_routed_experts", "num_routed_experts"),
        *("routed_experts", "num_local_experts", "expert_count", "n_exp", "num_exp", "nexp", "nexperts"),
    ),
    "top_k": ("topk", "num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_top_k", "moe_topk"),
    "num_shared_experts": ("n_shared_experts", "shared_experts"),
    "model_dim": ("d_model", "hidden_size", "n_embd", "model_width", "hidden_dim"),
    "num_layers": ("n_layers", "n_layer", "layers", "num_hidden_layers", "depth"),
    "expert_hidden": ("moe_intermediate_size", "d_expert", "expert_dim", "moe_ffn_hidden_size", "expert_hidden_dim"),
    "vocab_size": ("vocab", "n_vocab"),
    "sequence_length": ("seq_len", "seq_length", "seqlen", "context_length", "max_seq_len"),
    "learning_rate": ("lr", "max_lr", "peak_lr", "peak_learning_rate", "max_learning_rate"),
    "weight_decay": ("wd",),
    "warmup_tokens": ("n_warmup_tokens",),
    "schedule": ("lr_schedule", "lr_scheduler", "scheduler"),
    "model": ("name", "run_name", "model_name", "run", "exp_name", "experiment_name", "experiment"),
}
"""Synonyms of each column of ``run_table.COLUMNS``, in lower case with one underscore between words."""

ROW_NAMES = ("exp", "id", "run_id", "exp_id", "experiment_id")
"""Names of columns that are read as ``model`` if no other column is and their cells are distinct texts."""

ONE_SIZE = (
    *("params", "n_params", "num_params", "parameters", "num_parameters", "n_parameters", "param_count"),
    *("parameter_count", "model_size", "model_params"),
)
"""Names of the only size column in a table of dense models, whose active and total parameters are equal."""

BATCH = ("batch_size", "bs", "bsz", "global_batch_size", "batch")
"""Names of a batch size in tokens or in sequences."""

LETTERS = {"N": "params", "D": "tokens", "C": "flops", "L": "loss"}
"""Letters that papers use as column names, in upper case only."""

FEWEST_BATCH_TOKENS = 32_768
"""Batch sizes below this limit count as sequences, because fitted runs have larger batches in tokens."""

UNITS = {
    **dict.fromkeys(("k", "thousand", "thousands"), 1e3),
    **dict.fromkeys(("m", "mn", "million", "millions"), 1e6),
    **dict.fromkeys(("b", "bn", "billion", "billions"), 1e9),
    **dict.fromkeys(("t", "tn", "trillion", "trillions"), 1e12),
}
"""Factors of unit suffixes in column names: ``params_b``, ``tokens (billions)``."""

COUNTED = ("params_active", "params_total", "params_embedding", "tokens", "unique_tokens", "flops")
"""Columns whose names may end in a unit."""


@dataclass(frozen=True)
class NamedTable:
    """A table with columns added under moejax's names."""

    frame: DataFrame
    read_from: Mapping[str, str]
    """Expression on the original columns for every added column."""
    said: tuple[str, ...]
    """Sentences that list which column is read from which expression."""
    undecided: tuple[str, ...]
    """Messages about names that could be read from several columns, with options to choose one."""

    def notes(self, columns: ColumnMapping | None = None) -> tuple[str, ...]:
        """Return the messages to show. A saved mapping confirms the names, so that they are not listed again."""
        return self.undecided if columns is not None and columns.saved_in else (*self.said, *self.undecided)


def with_our_names(
    frame: DataFrame, mapping: Mapping[str, str] | None = None, *, given: Iterable[str] = ()
) -> NamedTable:
    """Add columns under moejax's names for columns with other names; the original columns are kept.

    A name is added only if exactly one column matches it. Names that the table already has, that the user maps, or that
    are in ``given`` are not added. The notes list every added column and every ambiguity.
    """
    mapping = dict(mapping or {})
    taken = {*map(str, frame.columns), *mapping, *given}
    candidates: dict[str, list[tuple[str, float]]] = {}
    for column in map(str, frame.columns):
        for name, unit in _meanings(column):
            of_cells = unit != 1 and frame[column].map(_ends_in_letter).all()
            candidates.setdefault(name, []).append((column, 1.0 if of_cells else unit))
    named = (column for column in map(str, frame.columns) if _plain(column) in ROW_NAMES and _are_names(frame[column]))
    if "model" not in candidates and (column := next(named, None)) is not None:
        candidates["model"] = [(column, 1.0)]
    sizes = candidates.pop("one_size", [])
    batches = candidates.pop("batch", [])
    notes = []
    read: dict[str, tuple[str, float]] = {}
    for name, columns in candidates.items():
        if name in taken:
            continue
        if len(columns) > 1:
            names = listed([column for column, _ in columns], "or")
            options = [map_option(name, _expression(*one)) for one in columns]
            option = argument("loss", "COLUMN") if name == "loss" else listed(options, "or")
            notes.append(f"{name} could be read from {names}; choose one: {option}.")
            continue
        read[name] = columns[0]
    # An ambiguous column also counts as present, although the user must choose it first.
    there = {*taken, *candidates}
    if len(sizes) == 1 and not {"params_active", "params_total"} & there:
        if sign := _sign_of_experts(frame, read, mapping):
            notes.append(_which_size(*sizes[0], sign))
        else:
            read["params_active"] = read["params_total"] = sizes[0]
    elif len(sizes) == 1 and "params_active" in there and "params_total" not in there:
        read["params_total"] = sizes[0]
    for column in dict.fromkeys(column for column, _ in read.values() if said_unit(column)):
        if (lettered := frame[column].map(_ends_in_letter)).any():
            notes.append(
                f"{int(lettered.sum())} of {len(frame)} cells of {column} have their own unit, such as "
                f"{shown(frame[column][lettered].iloc[0])}; the unit in the column's name does not apply to them."
            )
    added = {name: frame[column] if unit == 1 else _times(frame[column], unit) for name, (column, unit) in read.items()}
    expressions = {name: _expression(column, unit) for name, (column, unit) in read.items()}
    if len(batches) == 1 and "batch_tokens" not in taken:
        _read_batch(frame, batches[0][0], added, expressions, notes)
    by_source: dict[str, list[str]] = {}
    for name, expression in expressions.items():
        by_source.setdefault(expression, []).append(name)
    pairs = [f"{listed(names)} from {expression}" for expression, names in by_source.items()]
    said = (f"Columns under other names: {', '.join(pairs)}.",) if pairs else ()
    return NamedTable(frame.assign(**added), expressions, said, tuple(notes))


def _are_names(cells: Series) -> bool:
    return bool(cells.is_unique) and all(isinstance(cell, str) for cell in cells)


def our_name(column: str) -> str:
    """Return moejax's name for a column, or the column's own name if there is none."""
    name = next((name for name, _ in _meanings(column)), column)
    return "batch_tokens" if name == "batch" else name


def _meanings(column: str) -> list[tuple[str, float]]:
    """Return a list with moejax's name for a column and the factor of its unit; empty if there is no such name."""
    if column in run_table.COLUMNS:
        return []
    if column in LETTERS:
        name = LETTERS[column]
        return [("one_size" if name == "params" else name, 1.0)]
    plain = _plain(column)
    if plain in BATCH:
        return [("batch", 1.0)]
    if plain not in _BY_SYNONYM and "." in column:
        # Experiment trackers flatten nested settings: model.num_layers.
        last = column.rpartition(".")[2]
        return _meanings(column.partition(".")[2]) or ([(last, 1.0)] if last in run_table.COLUMNS else [])
    if (name := _BY_SYNONYM.get(plain)) is not None:
        return [(name, 1.0)]
    stem, unit = _stem_and_unit(plain)
    if lettered := re.fullmatch(r"([A-Z]) ?[(\[](\w+)[)\]]", column):
        # A letter with a unit in brackets: N (M).
        stem = LETTERS.get(lettered[1], stem)
    name = _BY_SYNONYM.get(stem, stem)
    return [] if unit is None or name not in (*COUNTED, "one_size") else [(name, unit)]


_LIKE = {
    "params_total": ({"total", "tot", "ntotal", "ntot", "full", "all"}, {"params", "param", "parameters", "size", "n"}),
    "num_experts": ({"n", "num", "number", "count", "total"}, {"exp", "exps", "expert", "experts"}),
    "tokens": ({"token", "tokens", "tok", "toks"}, None),
}
"""Word sets per field. A column's name resembles the field if it has a word from each set."""
_NO_TOTALS = {"per", "batch", "step", "seq", "sequence", "second", "sec", "shared", "active", "act"}


def looks_like(column: str, missing: Iterable[str]) -> str | None:
    """Return the field among ``missing`` that a column's name resembles; None if there is none."""
    words = {*_plain(column).split("_")}
    for name in missing:
        if name in _LIKE and not words & _NO_TOTALS and all(words & one for one in _LIKE[name] if one is not None):
            return name
    return None


def said_unit(column: str) -> float | None:
    """Return the factor of the unit at the end of a column's name: 1e9 for ``seen (B)``; None without a unit."""
    return _stem_and_unit(_plain(column))[1]


def _stem_and_unit(plain: str) -> tuple[str, float | None]:
    stem, _, unit = plain.rpartition("_")
    return stem.removesuffix("_in"), UNITS.get(unit) if stem else None


def _plain(column: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", column).lower()).strip("_")


_BY_SYNONYM = {other: name for name, others in SYNONYMS.items() for other in others}
_BY_SYNONYM |= dict.fromkeys(ONE_SIZE, "one_size")
# moejax's names also match in other spellings: "Learning Rate", "numExperts".
_BY_SYNONYM |= {name: name for name in run_table.COLUMNS}


def _sign_of_experts(
    frame: DataFrame, read: Mapping[str, tuple[str, float]], mapping: Mapping[str, str]
) -> ExpertSign | None:
    ours = frame.assign(**{name: frame[column] for name, (column, _) in read.items()})
    known = {}
    for name in MORE_THAN_DENSE:
        if name in ours.columns:
            known[name] = ours[name]
        if name in mapping:
            # Mapping the table later reports expressions that cannot be computed.
            with suppress(UserError):
                known[name] = pd.Series(evaluate(mapping[name], ours))
    mapped = {name for expression in mapping.values() for name in re.findall(r"\w+", expression)}
    readable = {*run_table.COLUMNS, *mapped, *(column for column, _ in read.values())}
    unread = [column for column in map(str, frame.columns) if column not in readable]
    named = {column: frozenset({column, *_plain(column).split("_")}) for column in unread}
    return sign_of_experts(known, {column: (words, frame[column]) for column, words in named.items()})


def _which_size(column: str, unit: float, sign: ExpertSign) -> str:
    expression = _expression(column, unit)
    active, total = (map_option(name, expression) for name in ("params_active", "params_total"))
    if sign.active is not None:
        other = map_option("params_active", _expression(sign.active, said_unit(sign.active) or 1.0))
        return (
            f"{column} could be params_total or params_active, since {sign.reason}. Pass {total} {other}, or "
            f"{active} {total} if all models are dense."
        )
    other = map_option("params_active", "NAME")
    return (
        f"{column} could be params_total or params_active, since {sign.reason}. Pass {active} if it counts the "
        f"active parameters, {total} if it counts all parameters (and {other} for the active ones), "
        f"or both for dense models."
    )


def _read_batch(
    frame: DataFrame, column: str, added: dict[str, Any], expressions: dict[str, str], notes: list[str]
) -> None:
    """Read a batch size as tokens, or as sequences if their length is known; otherwise add a note."""
    try:
        values = run_table.numbers(frame[column]).to_numpy(np.float64)
        length = added.get("sequence_length", frame.get("sequence_length"))
        lengths = None if length is None else run_table.numbers(length)
    except ValueError:
        return
    if not np.isfinite(values).any():
        return
    if np.nanmin(values) >= FEWEST_BATCH_TOKENS:
        added["batch_tokens"], expressions["batch_tokens"] = frame[column], quoted(column)
    elif lengths is not None:
        added["batch_tokens"] = values * lengths.to_numpy(np.float64)
        expressions["batch_tokens"] = f"{quoted(column)} * {expressions.get('sequence_length', 'sequence_length')}"
    else:
        notes.append(
            f"{lies(column, np.nanmin(values), np.nanmax(values))}: it counts sequences, not tokens; "
            f"to read it, pass {map_option('batch_tokens', f'{quoted(column)} * SEQUENCE_LENGTH')}."
        )


def _times(series: Series, unit: float) -> Any:
    """Convert a column to plain counts; non-numeric text is kept, so that the table checks report it.

    Cells with their own unit are not multiplied.
    """
    try:
        return run_table.numbers(series) * np.where(series.map(_ends_in_letter), 1.0, unit)
    except ValueError:
        return series


def _ends_in_letter(cell: Any) -> bool:
    return isinstance(cell, str) and cell.strip()[-1:].isalpha()


def _expression(column: str, unit: float) -> str:
    return quoted(column) if unit == 1 else f"{quoted(column)} * {written(unit)}"


def written(factor: float) -> str:
    """Return a factor as written in an expression: ``1e9``, ``1000``, ``8.64e19``."""
    mantissa, _, power = f"{factor:g}".partition("e")
    return f"{mantissa}e{int(power)}" if power else mantissa


def quoted(column: str) -> str:
    """Return a column's name as ``--map`` and ``--where`` read it, with backticks if needed."""
    return column if column.isidentifier() and not keyword.iskeyword(column) else f"`{column}`"


def as_factor(expression: str, columns: Iterable[str]) -> tuple[str, str | None]:
    """Return a ``--map`` expression for use inside another expression, and its column if it is only a column name."""
    # A full column name is accepted even without backticks.
    names = (expression, expression.removeprefix("`").removesuffix("`"))
    column = next((name for name in columns if name in names), None)
    return (f"({expression})" if column is None else quoted(column)), column


def map_option(name: str, expression: str) -> str:
    """Return the argument that reads a moejax column from an expression on the table's columns."""
    return argument("mapping", {name: expression})


def with_derived(table: DataFrame) -> DataFrame:
    """Add the missing columns of ``DERIVED`` that follow from the table's other columns.

    Missing FLOPs are computed as 6 · active parameters · tokens.
    """
    arrays = {name: table[name].to_numpy(dtype=np.float64) for name in FIELDS if name in table}
    with float64(), np.errstate(divide="ignore", invalid="ignore"):
        design = Design(**arrays)
        for name, inputs in DERIVED.items():
            if name not in table and set(inputs) <= set(arrays):
                table = table.assign(**{name: np.asarray(getattr(design, name))})
    if "flops" not in table and {"params_active", "tokens"} <= set(arrays):
        table = table.assign(**training_flops({name: arrays[name] for name in ("params_active", "tokens")}))
    return table


_ROUTED = "round(active_experts * (1 - shared_share))"
_INVERSES: tuple[dict[str, str], ...] = (
    {"top_k": _ROUTED, "num_shared_experts": f"active_experts - {_ROUTED}"},
    {"num_shared_experts": "top_k * shared_share / (1 - shared_share)"},
    {"num_shared_experts": "active_experts - top_k"},
    {"top_k": "active_experts - num_shared_experts"},
    {"params_total": "params_active * expansion"},
    {"params_active": "params_total / expansion"},
    {"expert_hidden": "2 * model_dim / granularity"},
    {"flops": "6 * params_active * tokens"},
)
"""``--map`` expressions that recover ``Design`` fields from derived quantities."""


def inverses(
    missing: Iterable[str], columns: Iterable[str], source: Mapping[str, str] = MappingProxyType({})
) -> dict[str, str]:
    """Return expressions on the file's columns, keyed by the missing column that they compute; empty if there are none.

    Args:
      source: expressions on the file's columns for columns that are not read under their own names.
    """
    missing, columns = {*missing}, [*columns]
    factors = {**{name: name for name in columns}, **{n: as_factor(text, columns)[0] for n, text in source.items()}}
    for each in _INVERSES:
        read = {name for expression in each.values() for name in _FIELD.findall(expression)} - {"round"}
        if {*each} <= missing and read <= {*factors}:
            return {
                name: _FIELD.sub(lambda field: factors.get(field[0], field[0]), expression)
                for name, expression in each.items()
            }
    return {}


_FIELD = re.compile(r"[a-z_]{3,}")


def flops_of_size(columns: Iterable[str], source: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the only column of sizes, and the expression that computes FLOPs if this column counts active parameters.
    Return None if there is no such column, or no tokens.
    """
    columns = [*columns]
    sizes = [(column, unit) for column in columns for name, unit in _meanings(column) if name == "one_size"]
    if len(sizes) != 1:
        return None
    size = _expression(*sizes[0])
    inverse = inverses(["flops"], columns, {**source, "params_active": size})
    return (sizes[0][0], inverse["flops"]) if inverse else None


MISSPELT, SLIP = 4, 0.8
"""Minimum length, and minimum similarity to a column, of a name that counts as a misspelled column."""


def is_formula(text: str) -> bool:
    """Return whether the text that selects a law is a formula."""
    return "=" in text


OUTPUTS = frozenset(output for law in LAWS.values() for output in law.outputs) - {"loss"}
"""Outputs of laws other than the loss. A column with one of these names holds that output, not a loss."""


def law_of_formula(
    text: str,
    frame: DataFrame,
    *,
    mapping: Mapping[str, str] | None = None,
    loss: str = "loss",
    signs: Mapping[str, Sign] | None = None,
    budget: str = "",
) -> type[FormulaLaw]:
    """Return the law of a formula whose names are a table's columns, or moejax's names for them.

    Args:
      frame: the table before columns are renamed.
      mapping: expressions on the table's columns by moejax column name, as in ``read_runs``.
      loss: name of the column that holds the loss.
      signs: signs of coefficients, where they differ from the signs that the formula suggests.
      budget: cost as a formula in two of the columns, as in ``formula_law``.

    Raises:
      UserError: the formula is invalid, or a name matches several columns or is close to a column's name.
    """
    mapping = dict(mapping or {})
    ours = with_our_names(frame, mapping)
    columns = _columns(ours, mapping, loss)
    law = formula_law(text, signs=signs, known=columns, budget=budget)
    if len(law.outputs) > 1:
        raise UserError(f"The formula {text!r} has several targets ({listed(law.outputs)}); fit one target at a time.")
    for name, _ in law.formula.signs:
        if len(name) >= MISSPELT and (near := nearest(name, columns, SLIP)):
            raise UserError(
                f"The formula {text!r} has {name}, which is not a column; did you mean {listed(near[:2], 'or')}? If it "
                f"is a coefficient, choose another name."
            )
        if meant := FORMULA_LETTERS.get(name) or (name if name in (*FIELDS, *DERIVED) else ""):
            needed = DERIVED.get(meant, (meant,))
            raise UserError(
                f"{name} in the formula {text!r} means {meant}, but the table has no {listed(needed, 'or')}. Pass "
                f"{map_option(needed[0], 'COLUMN')}, or choose another name for the coefficient."
            )
    read = {name for name, _ in law.formula.columns}
    if "N" in read and "N" not in ours.frame.columns and _differ(ours.frame):
        raise UserError(
            f"N in the formula {text!r} could be params_active or params_total, which differ in this table; write "
            f"params_active or params_total."
        )
    return law


def _columns(ours: NamedTable, mapping: Mapping[str, str], loss: str) -> dict[str, str]:
    """Map every name of the table to its name in a Design; the loss maps to ``loss``."""
    present = [*map(str, ours.frame.columns), *mapping]
    columns = {name: name for name in present if name not in DERIVED}
    columns |= {name: name for name, fields in DERIVED.items() if set(fields) <= set(present)}
    read_from = {**ours.read_from, **mapping}
    # A dense table's only size column is both params_active and params_total; laws of dense models read params_active.
    for field in sorted(FIELDS, key=lambda name: name != "params_active"):
        theirs = read_from.get(field, "")
        for name in present:
            same = mapping.get(name, name)
            if theirs in (same, quoted(same)) and columns.get(name) == name and name not in FIELDS:
                columns[name] = field
    # A column of another output is not a loss, even if it is named as the fitted column.
    losses = {read_from.get("loss"), None if our_name(loss) in OUTPUTS else loss}
    columns |= {name: "loss" for name in present if name in losses}
    letters = {letter: field for letter, field in FORMULA_LETTERS.items() if field in (*present, "loss")}
    if "params_active" not in present and "params_total" in present:
        letters["N"] = "params_total"
    return letters | columns


def _differ(frame: DataFrame) -> bool:
    if not {"params_active", "params_total"} <= set(frame.columns):
        return False
    return not np.array_equal(frame["params_active"].to_numpy(), frame["params_total"].to_numpy())
