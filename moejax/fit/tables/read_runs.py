"""Read tables of runs as ``Runs`` for a law; notes report every ambiguity and dropped row."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from moejax import run_table
from moejax.errors import UserError
from moejax.fit.runs import Runs, runs_from
from moejax.fit.sweeps import settings
from moejax.fit.sweeps.settings import is_setting, smooth_best_by
from moejax.fit.tables.checks import advice, check_rows, duplicates
from moejax.fit.tables.column_names import (
    OUTPUTS,
    flops_of_size,
    inverses,
    is_formula,
    law_of_formula,
    map_option,
    our_name,
    quoted,
    with_our_names,
)
from moejax.fit.tables.dense_models import fill_dense_rows
from moejax.fit.tables.expression import mapped, select
from moejax.fit.tables.table import RunTable, group_labels, naming_column, rows_in_words, training_notes
from moejax.fit.tables.units import check_units
from moejax.fit.tables.weights import weights_of
from moejax.float64 import float64
from moejax.laws import called, law_class
from moejax.laws.design import FIELDS, design_from
from moejax.laws.design import known as known_fields
from moejax.laws.formula_law import FormulaLaw, spent_in_rows
from moejax.quantities import format
from moejax.result import Column, Plotted, Result, Table
from moejax.run_sources.column_mapping import ColumnMapping, column_mapping
from moejax.run_table import DataFrame, Series
from moejax.wording import argument, counted, did_you_mean, listed, nearest, shown


@dataclass(frozen=True, kw_only=True, repr=False)
class ReadRuns(Plotted):
    """Runs, with notes on how they were read."""

    runs: Runs
    rows: np.ndarray
    """Row of every run in the file, counted from 1 below the header."""
    frame: DataFrame
    """Table rows of the runs, so that runs can be split by any column."""
    notes: tuple[str, ...]
    dropped: tuple[str, ...] = ()
    """Notes on the rows that were left out, with reasons."""
    read_from: Mapping[str, str] = field(default_factory=dict)
    """Expression on the file's columns for each moejax column that has another name in the file."""
    reading: Mapping[str, Any] = field(default_factory=dict)
    """Options of ``read_runs`` that differ from their defaults."""
    tried_settings: np.ndarray | None = None
    """Number of settings in the sweep of every run, 1 for a run without a sweep; None without ``best_by``."""

    def summary(self) -> Result:
        """Return the smallest and largest value of every column that laws can read, and the notes."""
        values = {**known_fields(self.runs.design), self.runs.output: self.runs.loss}
        return Result(
            title=f"{counted(len(self.rows), 'run')}, {counted(len(self.notes), 'note')}",
            tables=[Table.of("Columns", COLUMNS_READ, [(name, np.asarray(one)) for name, one in values.items()])],
            notes=self.notes,
        )

    def to_frame(self, table: str | None = None) -> DataFrame:
        """Return the rows of the runs, or the table of ``summary()`` with a title.

        Raises:
          UserError: no table has this title.
        """
        return self.frame.copy() if table is None else super().to_frame(table)


COLUMNS_READ = (
    Column("column", value=lambda one: one[0]),
    Column("smallest", format, value=lambda one: float(np.min(one[1]))),
    Column("largest", format, value=lambda one: float(np.max(one[1]))),
    Column("values", value=lambda one: len(np.unique(one[1]))),
)
"""Columns of ``ReadRuns.summary``; each row is a pair of a column's name and its values."""


def read_runs(
    path: Any,
    law: Any = None,
    *,
    mapping: Mapping[str, str] | None = None,
    where: Sequence[str] = (),
    loss: str = "loss",
    group: str | None = None,
    weight: str | None = None,
    drop_invalid: bool = False,
    drop_duplicates: bool = False,
    best_by: Sequence[str] = (),
    smooth: bool = False,
    trust_units: bool = False,
    also_told_apart_by: Sequence[str] = (),
) -> ReadRuns:
    """Read runs from a file, for one law or for all laws.

    Columns under other common names (``val_loss``, ``active_params``, ``lr``) are read, and reported in the notes.

    Args:
      path: a CSV, Parquet or JSON-lines file, a study's directory, a tracker's storage (``moejax.run_sources.source``),
        or a pandas DataFrame.
      law: a law, its name, a formula, or the names of the required Design fields. Without a law, every column that
        some law reads is read if all rows have it.
      mapping: maps a moejax column to a table column or to arithmetic: ``{"tokens": "step * 520000"}``. It takes
        precedence over the mapping that is saved next to a file (``moejax.run_sources.column_mapping``), as does
        ``group``.
      where: conditions on the columns that a row must meet, in the language of ``moejax.fit.tables.expression``.
      loss: the fitted column; by default ``loss``, or the law's output if the law does not predict a loss.
      group: a column whose equal values form a group; by default ``group``, if the table has this column. In a table
        without it, rows that differ only in tokens and FLOPs are a group. If the table has no sizes either, rows with
        the same run or model name are a group. If it has no names either, rows with equal inputs are a group.
      weight: a column with the weight of each row; 0 excludes a row. By default every row has weight 1, except that
        predicted losses (column ``is_predicted``) are weighted by their ``loss_standard_error``.
      drop_invalid: True to drop rows with an invalid loss, size or weight, with a note; False to raise an error.
      drop_duplicates: True to drop rows that repeat an earlier row's sizes and loss, with a note; False to keep them
        with a note, because rounded tables contain such rows by chance.
      best_by: swept columns, such as a learning rate; of rows that differ only in these, the row with the lowest loss
        is kept.
      smooth: replace each best row by the minimum of a quadratic through the runs near it (``smooth_best_by``),
        weighted by its standard error if ``weight`` is not given.
      trust_units: True to accept implausible or contradictory sizes, tokens and FLOPs, such as numbers in billions,
        with a note; False to raise an error.
      also_told_apart_by: further Design fields that distinguish runs, in addition to the inputs of ``law``, if the
        table has them; runs that differ in these fields are not replicates.

    Raises:
      UserError: a column is missing or unknown, has no numbers, or has invalid numbers.

    Example:
      >>> runs = mj.read_runs("runs.csv")
      >>> runs.notes
      >>> runs = mj.read_runs("runs.csv", mapping={"tokens": "step * 524288"}, group="run")
    """
    law = () if law is None else law
    where, best_by = ([one] if isinstance(one, str) else list(one) for one in (where, best_by))
    reading = {
        "mapping": dict(mapping or {}),
        "where": where,
        "loss": "" if loss == "loss" else loss,
        "group": group,
        "weight": weight,
        "drop_invalid": drop_invalid,
        "drop_duplicates": drop_duplicates,
        "best_by": best_by,
        "smooth": smooth,
        "trust_units": trust_units,
    }
    if smooth and not best_by:
        raise UserError(
            f"{argument('smooth')} needs the settings of a sweep; add {argument('best_by', 'learning_rate')}."
        )
    columns = column_mapping(path, mapping, trust_units=trust_units, group=group)
    group = columns.group
    table, undecided = _named_columns(path, law, columns, loss)
    table.notes += columns.notes
    undecided = (*undecided, *columns.notes)
    table.weight, table.group = weight, group
    table.frame = mapped(table.frame, replace(columns, expressions=table.mapping), table.named)
    fill_dense_rows(table)
    table.frame, selected = select(table.frame, where, table.named)
    table.notes += selected
    require(table, table.needed, undecided)
    if group is not None and not table.has(group):
        hint = did_you_mean(group, [str(column) for column in table.frame.columns if column not in table.source])
        raise UserError(f"{table.named} has no column {group} to group runs by; {hint}")
    _check_decimals(table)
    table.parse_numbers(name for name in dict.fromkeys((*table.needed, *FIELDS)) if table.has(name))
    table.compared = [name for name in also_told_apart_by if table.has(name) and name not in table.needed]
    check_rows(table, drop=drop_invalid)
    table.notes += _other_budget(table)
    wrong_units, accepted = check_units(
        table.frame, table.source, table.named, table.law_inputs, trusted_by=columns.trusted_by
    )
    table.notes += accepted
    known = _known_columns(table, wrong_units, also_told_apart_by)
    steps = _best_of_sweeps(table, best_by, known, undecided, smooth=smooth, drop=drop_invalid) if best_by else None
    if drop_duplicates:
        _drop_duplicates(table)
    runs = _runs(table, known, steps, smooth=smooth)
    tried = table.tried_settings
    believed = replace(table, frame=table.frame.drop(columns=list(wrong_units)))
    fitted = {"loss": table.loss} if table.loss not in ("loss", table.output) else {}
    return ReadRuns(
        runs=runs,
        rows=table.frame.index.to_numpy() + 1,
        frame=table.frame.reset_index(drop=True),
        notes=(*table.notes, *table.dropped, *advice(believed)),
        dropped=tuple(table.dropped),
        read_from={**table.source, **fitted},
        reading={name: value for name, value in reading.items() if value},
        tried_settings=None if tried is None else np.asarray(tried[table.frame.index]),
    )


def _named_columns(path: Any, law: Any, columns: ColumnMapping, loss: str) -> tuple[RunTable, tuple[str, ...]]:
    """Load a table, resolve the law, and add columns under moejax's names; also return notes on ambiguous names."""
    is_path, mapping = isinstance(path, (str, Path)), dict(columns.expressions)
    frame = run_table.read_as_it_is(path) if is_path else run_table.with_flat_cells(path)
    notes = list(frame.attrs.get("notes", ()))
    levels = [name for name in frame.index.names if name is not None and name not in frame.columns]
    frame = (frame.reset_index(level=levels) if levels else frame).reset_index(drop=True)
    if isinstance(law, str):
        law = law_of_formula(law, frame, mapping=mapping, loss=loss) if is_formula(law) else law_class(law)
    if loss != "loss" and isinstance(law, type) and "loss" in law.inputs and loss not in law.outputs:
        # A score law reads the named loss column, and is fitted to the score.
        mapping, loss = {"loss": quoted(loss), **mapping}, "loss"
    ours = with_our_names(frame, mapping, given=() if loss == "loss" or loss in OUTPUTS else ("loss",))
    if _is_formula_law(law):
        notes.insert(0, law.formula.sentence)
    outputs = () if isinstance(law, tuple) else law.outputs
    loss = loss if isinstance(law, tuple) else fitted_column(law, loss)
    table = RunTable(
        frame=ours.frame,
        named=str(path) if is_path else "The table",
        law=law,
        loss=loss,
        output=loss if loss in OUTPUTS or loss in outputs else "loss",
        mapping=mapping,
        read_from=ours.read_from,
        notes=[*notes, *ours.notes(columns)],
    )
    return table, ours.undecided


def _is_formula_law(law: Any) -> bool:
    return isinstance(law, type) and issubclass(law, FormulaLaw)


def fitted_column(law: Any, loss: str = "loss") -> str:
    """Return the column that a law is fitted to: ``loss``, or the law's only output.

    A score law that reads the loss is fitted to its output; ``loss`` is then the name of the loss column.

    Raises:
      UserError: no column is named and the law has several outputs, or the named column is not one of its outputs.
    """
    if "loss" in law.outputs or loss in law.outputs:
        return loss
    first, *others = law.outputs
    predicts = f"{called(law if isinstance(law, type) else type(law))} predicts {listed(law.outputs)}"
    if loss != "loss" and "loss" not in law.inputs:
        raise UserError(
            f"{predicts}, but {argument('loss')} names the column {loss}. If it holds {first}, pass "
            f"{map_option(first, quoted(loss))} instead of {argument('loss')}."
        )
    if others:
        raise UserError(
            f"{predicts}, but a fit has one output. Name its column, such as {argument('loss', first)}; "
            f"coefficients that affect only other outputs are not fitted."
        )
    return first


def require(table: RunTable, names: Sequence[str], undecided: Sequence[str] = ()) -> None:
    """Check that a table has the columns ``names``.

    Raises:
      UserError: a column is missing; the message lists similar names, and expressions that compute the column.
    """
    missing = [name for name in dict.fromkeys(names) if not table.has(name)]
    if not missing:
        return
    columns = [str(column) for column in table.frame.columns if column not in table.read_from]
    read = {name for expression in table.read_from.values() for name in _names_in(expression)}
    # A column with a moejax name, or that is read under one, is not a misspelling of another name.
    others = [column for column in columns if column not in run_table.COLUMNS and column not in read]
    near = dict.fromkeys(c for name in missing for c in nearest(name, others if name in run_table.COLUMNS else columns))
    # A column name may contain control characters, which must not reach the terminal.
    safe = [
        column if column.isprintable() else repr(column) for column in (near if len(missing) == 1 and near else columns)
    ]
    hint = f"did you mean {' or '.join(safe)}?" if len(missing) == 1 and near else f"the columns are {', '.join(safe)}."
    computed = inverses(missing, columns, table.source)
    offered = " ".join(undecided)
    asked = [n for n in missing if n not in computed and not re.search(rf"\b{re.escape(n)}(=|\": )", offered)]
    remedies = [f"Name the columns: {argument('mapping', dict.fromkeys(asked, 'COLUMN'))}."] if asked else []
    if asked and not others and set(missing) <= {*run_table.COLUMNS}:
        hint = f"all of its columns are read already, so add {listed(asked)} to the table."
        remedies = []
    if computed:
        options = argument("mapping", computed)
        remedies.append(f"{listed(computed)} can be computed from the other columns: {options}.")
    elif "flops" in missing and (of_size := flops_of_size(columns, table.source)):
        size, expression = of_size
        remedies.append(
            f"If {size} counts active parameters, flops can be computed: {map_option('flops', expression)}."
        )
    meanings = [f"{n} ({run_table.COLUMNS[n].meaning})" if n in run_table.COLUMNS else n for n in missing]
    raise UserError(" ".join([f"{table.named} has no column {' or '.join(meanings)}; {hint}", *remedies, *undecided]))


def _names_in(expression: str) -> list[str]:
    """Return the columns that an expression reads."""
    return [quoted_name or name for quoted_name, name in re.findall(r"`([^`]*)`|([^\W\d]\w*)", expression)]


def _check_decimals(table: RunTable) -> None:
    """Raise ``UserError`` for losses like 3,874, whose comma may be a decimal point.

    In 110,678,115 the commas must separate thousands.
    """
    losses = table.frame[table.loss]
    commas = losses[[isinstance(cell, str) and "," in cell for cell in losses]]
    if len(commas) and max(cell.count(",") for cell in commas) == 1:
        raise UserError(
            f"{table.named}: column {table.loss} has {shown(commas.iloc[0])} in {rows_in_words(commas.index)}, whose "
            f"comma would be read as a thousands separator; write losses with decimal points."
        )


OTHER_BUDGET = 1.25
"""Factor from which a formula's budget and the table's column with the same name disagree."""


def _other_budget(table: RunTable) -> list[str]:
    """Return a note if, in every row, a formula's budget disagrees with the table's column of the same name."""
    if not _is_formula_law(table.law) or not table.law.formula.budget:
        return []
    with float64():
        name, spent = spent_in_rows(table.law, {column: table.values(column) for column in table.law_inputs})
    if not table.has(name) or table.frame[name].dtype.kind not in "iuf":
        return []
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.asarray(spent) / table.values(name)
        apart = np.abs(np.log(ratio)) > np.log(OTHER_BUDGET)
    if not apart.all():
        return []
    return [
        f"The budget {table.law.formula.budget!r} is {ratio.min():.3g} to {ratio.max():.3g} times the column {name}; "
        f"decisions use the budget."
    ]


def _known_columns(table: RunTable, wrong_units: Mapping[str, str], also: Sequence[str]) -> list[str]:
    """Return the fields that every row has, and set ``table.inputs`` and ``table.sizes``.

    Raises:
      UserError: models are compared by a column that is empty in some rows.
    """
    unread = {name: f"it holds {text.example}" for name, text in table.texts.items()} | dict(wrong_units)
    needed = table.needed
    table.notes += [f"Column {name} is not read: {why}." for name, why in unread.items() if name not in needed]
    inputs = table.law_inputs
    read = [name for name in dict.fromkeys((*FIELDS, *inputs)) if table.has(name) and name not in wrong_units]
    gaps = {name: ~np.isfinite(table.values(name)) for name in read}
    known = [name for name in read if not gaps[name].any()]
    # An entirely empty column distinguishes nothing, and text is already reported.
    partial = [name for name in read if gaps[name].any() and not gaps[name].all()]
    for names, is_error in (
        ([n for n in partial if n in also], True),
        ([n for n in partial if n not in unread], False),
    ):
        cells = " and ".join(
            f"{name} is empty or not finite in {rows_in_words(table.frame.index[gaps[name]])}" for name in names
        )
        if names and is_error:
            raise UserError(
                f"{table.named}: {cells}, but models are compared by {listed(names)}. Fill the cells (0 experts if "
                f"dense), or select other rows with {argument('where')}."
            )
        if names:
            table.notes.append(f"{cells}, so runs are not distinguished by {listed(names)}.")
    # Requested columns that are not Design fields do not distinguish runs.
    fields_alone = isinstance(table.law, tuple) and not {*inputs} & {*FIELDS}
    table.inputs = known if fields_alone else list(inputs)
    table.sizes = list(dict.fromkeys((*table.inputs, *(name for name in also if name in known))))
    return known


def _best_of_sweeps(
    table: RunTable, best_by: Sequence[str], known: Sequence[str], undecided: Sequence[str], *, smooth: bool, drop: bool
) -> Any:
    """Keep the best run of each sweep; if a setting is fitted, return its errors due to the grid."""
    best_by = [_present_name(name, table) for name in best_by]
    judge = "loss" if table.output != "loss" else table.loss
    require(table, (judge,), undecided)
    if judge != table.loss:
        judged = replace(table, law=(), loss=judge, weight=None, mapping={**table.mapping}, read_from={}, compared=())
        judged.parse_numbers([judge])
        check_rows(judged, drop=drop)
        table.frame = judged.frame
    settings.check_settings(table.frame, table.inputs, judge, best_by, table.named)
    # Models of different sizes are different sweeps, even if the law does not read a size.
    others = (*settings.NO_SIZES, *best_by, judge, table.group, table.weight)
    models = list(dict.fromkeys((*table.inputs, *known, *(name for name in table.mapping if name not in others))))
    swept = table.frame
    best = smooth_best_by if smooth else settings.best_by
    table.frame, notes = best(swept, models, judge, best_by, table.named)
    table.dropped += notes
    table.is_tuned = True
    table.tried_settings = settings.tried_settings(swept, table.frame, models, best_by)
    if smooth or not is_setting(swept, table.loss, best_by, table.named):
        return None
    return settings.resolution(swept, table.frame, models, best_by, table.loss)


def _present_name(name: str, table: RunTable) -> str:
    """Return the name under which the table has a column: the given name, moejax's name or a synonym."""
    ours = our_name(name)
    same = (str(c) for c in table.frame.columns if our_name(str(c)) in (name, ours))
    return next((one for one in (name, ours) if table.has(one)), None) or next(same, name)


def _drop_duplicates(table: RunTable) -> None:
    again = duplicates(table)
    if again.any():
        rows = rows_in_words(table.frame.index[again])
        table.dropped.append(
            f"Dropped: {rows} ({again.sum()} in all), which repeat the sizes and loss of an earlier row exactly."
        )
        table.keep(~again)


def _runs(table: RunTable, known: Sequence[str], steps: Series, *, smooth: bool) -> Runs:
    design = design_from({name: table.values(name) for name in known})
    labels = group_labels(table, design)
    runs = runs_from(
        design,
        table.values(table.loss),
        weight=weights_of(table, smooth=smooth),
        group=labels,
        output=table.output,
    )
    if labels is None:
        table.notes += training_notes(table, runs)
    rows = [f"row {row + 1}" for row in table.frame.index]
    column = naming_column(table.frame)
    models = () if column is None else tuple(map(str, table.frame[column]))
    return replace(
        runs,
        labels=tuple(f"{row} ({model})" for row, model in zip(rows, models, strict=True)) if models else tuple(rows),
        models=models,
        resolution=None if steps is None else steps[table.frame.index].to_numpy(np.float64),
    )
