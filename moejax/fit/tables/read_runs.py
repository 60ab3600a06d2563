"""Read tables of runs into the runs of a law; every doubt is reported, and no row is dropped silently."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Bool

from moejax import run_table
from moejax.errors import UserError
from moejax.expression import condition, evaluate
from moejax.fit.runs import SHARES, Runs, gives_a_size, runs_from
from moejax.fit.sweeps.swept_optimum import is_setting, precision, smooth_best_by, standard_error_column
from moejax.fit.tables import checks as table_checks
from moejax.fit.tables.checks import check_losses, check_table, duplicates, rows_in_words
from moejax.fit.tables.column_names import (
    OUTPUTS,
    Named,
    inverses,
    is_formula,
    law_of_formula,
    map_option,
    our_name,
    quoted,
    with_our_names,
)
from moejax.fit.tables.dense_rows import EQUAL, with_dense_rows
from moejax.fit.tables.units import exchanged, gaps, wrong_units
from moejax.float64 import float64
from moejax.laws import called
from moejax.laws.design import FIELDS, design_from
from moejax.laws.formula_law import FormulaLaw, spent_in_rows
from moejax.laws.predict import POSITIVE, law_class
from moejax.wording import command, counted, listed, nearest, shown, some, told


@dataclass(frozen=True, kw_only=True)
class ReadRuns:
    """Runs, with notes on how they were read."""

    runs: Runs
    rows: np.ndarray
    """Row of every run in the file, counted from 1 below the header."""
    frame: Any
    """The rows as a pandas DataFrame, for splits by any column."""
    notes: tuple[str, ...]
    dropped: tuple[str, ...] = ()
    """Notes on the rows that were left out, with reasons."""
    read_from: Mapping[str, str] = field(default_factory=dict)
    """Expression on the file's columns for each of our columns that has another name in the file."""


def read_runs(
    path: Any,
    law: Any,
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
    """Read the runs of a law from a file.

    Columns under other common names (``val_loss``, ``active_params``, ``lr``) are read, and reported in the notes.

    Args:
      path: a CSV, Parquet or JSON-lines file, a study's directory, a tracker's storage (``moejax.run_sources.source``),
        or a pandas DataFrame.
      law: a law, its name, a formula, or the names of the required Design fields.
      mapping: our column to a column of the table, or to arithmetic on its columns: ``{"tokens": "step * 520000"}``.
      where: conditions on the columns that a row must meet, in the language of ``moejax.expression``.
      loss: the fitted column; default for a law of another output: the column of that output.
      group: a column whose equal values form a group; default: ``group`` if the table has it. Without it, runs that
        differ only in tokens and FLOPs are a group; without a size, runs of one training run or model by name; without
        names, runs of equal inputs.
      weight: a column with the weight of each row; 0 excludes a row. By default every row has weight 1, except that
        predicted losses (column ``is_predicted``) are weighted by their ``loss_standard_error``.
      drop_invalid: drop rows with an invalid loss, size or weight, with a note; else they raise an error.
      drop_duplicates: drop rows that repeat an earlier row's sizes and loss, with a note; else they are kept with a
        note, because rounded tables have them by chance.
      best_by: swept columns, such as a learning rate: of rows that differ only in them, the one of the lowest loss is
        kept.
      smooth: instead of that run, use the minimum of a quadratic through the runs near it (``swept_optimum``), weighted
        by its standard error if ``weight`` is not given.
      trust_units: accept implausible or contradictory sizes, tokens and FLOPs, with a note; else they raise an error,
        like numbers in billions.
      also_told_apart_by: further Design fields, besides the inputs of ``law``, that distinguish runs if the table has
        them; runs that differ in them are no replicates.

    Raises:
      UserError: a column is missing or unknown, has no numbers, or has invalid numbers.
    """
    frame = run_table.read_as_it_is(path) if isinstance(path, (str, Path)) else run_table.with_flat_cells(path)
    about = tuple(frame.attrs.get("notes", ()))
    frame = as_is = _with_index(frame)
    named = str(path) if isinstance(path, (str, Path)) else "The table"
    mapping = dict(mapping or {})
    if isinstance(law, str):
        law = law_of_formula(law, as_is, mapping=mapping, loss=loss) if is_formula(law) else law_class(law)
    if loss != "loss" and isinstance(law, type) and _reads_loss(law) and loss not in law.outputs:
        # The law of a score reads the named loss, and is fitted to the score.
        mapping, loss = {"loss": quoted(loss), **mapping}, "loss"
    ours = with_our_names(frame, mapping, given=() if loss == "loss" or loss in OUTPUTS else ("loss",))
    where = [where] if isinstance(where, str) else where
    frame, filled = with_dense_rows(mapped(ours.frame, mapping, named), _named_rows)
    frame, selected = select(frame, where, named)
    notes = (*about, *ours.notes, *filled, *selected)
    inputs = law if isinstance(law, tuple) else law.inputs
    loss = loss if isinstance(law, tuple) else fitted_column(law, loss)
    output = loss if loss in OUTPUTS or (not isinstance(law, tuple) and loss in law.outputs) else "loss"
    if isinstance(law, type) and issubclass(law, FormulaLaw):
        notes = (law.formula.sentence, *notes)
    needed = (*inputs, loss, *([] if weight is None else [weight]))
    _require(frame, needed, named, ours)
    _check_decimals(frame[loss], loss, named)
    frame, texts = _numeric(frame, [name for name in dict.fromkeys((*needed, *FIELDS)) if name in frame.columns])
    compared = [name for name in also_told_apart_by if name in frame.columns and name not in needed]
    frame, dropped = _sound(frame, needed, loss, weight, texts, named, drop_invalid, mapping, ours.read_from, compared)
    notes += _other_budget(law, frame)
    source = {**ours.read_from, **mapping}
    wrong = {} if trust_units else check_units(frame, source, named, inputs)
    unread = {name: text.said for name, text in texts.items()} | wrong
    notes += tuple(f"Column {name} is not read: {why}." for name, why in unread.items() if name not in needed)
    read = [name for name in dict.fromkeys((*FIELDS, *inputs)) if name in frame.columns and name not in wrong]
    gap = {name: ~np.isfinite(frame[name].to_numpy(np.float64)) for name in read}
    known = [name for name in read if not gap[name].any()]
    # An entirely empty column distinguishes nothing, and text is already reported.
    partial = [name for name in read if gap[name].any() and not gap[name].all()]
    if unclear := [name for name in partial if name in also_told_apart_by]:
        them = "it" if len(unclear) == 1 else "them"
        raise UserError(
            f"{named}: {_gaps(frame, unclear, gap)}, and models are compared by {them}; fill the cells (0 "
            f"experts if dense), or select other rows with --where."
        )
    if untold := [name for name in partial if name not in unread]:
        notes += (
            f"{_gaps(frame, untold, gap)}, so runs are not told apart by {'it' if len(untold) == 1 else 'them'}.",
        )
    # Requested columns that are not Design fields do not distinguish runs.
    told_apart_by = known if isinstance(law, tuple) and not {*inputs} & {*FIELDS} else list(inputs)
    sizes = list(dict.fromkeys((*told_apart_by, *(name for name in also_told_apart_by if name in known))))
    resolution = None
    if best_by:
        best_by = [best_by] if isinstance(best_by, str) else best_by
        best_by = [_theirs_or_ours(name, frame) for name in best_by]
        judge = "loss" if output != "loss" else loss
        _require(frame, (judge,), named, ours)
        if judge != loss:
            frame, texts_of_it = _numeric(frame, [judge])
            frame, unsound = _sound(frame, (judge,), judge, None, texts_of_it, named, drop_invalid, mapping, {})
            dropped += unsound
        table_checks.check_settings(frame, told_apart_by, judge, best_by, named)
        # Models of different sizes are different sweeps, even if the law does not read a size.
        named_sizes = [name for name in mapping if name not in (*table_checks.NO_SIZES, *best_by, judge, group, weight)]
        models = list(dict.fromkeys((*told_apart_by, *known, *named_sizes)))
        best = smooth_best_by if smooth else table_checks.best_by
        swept = frame
        frame, beaten = best(swept, models, judge, best_by, named)
        dropped += beaten
        if not smooth and is_setting(swept, loss, best_by, named):
            resolution = table_checks.resolution(swept, frame, models, best_by, loss)
    elif smooth:
        raise UserError(
            "--smooth is about the settings that --best-by names; add --best-by learning_rate, for example."
        )
    if drop_duplicates:
        frame, repeated = _once(frame, sizes, loss)
        dropped += repeated
    design = design_from({name: frame[name].to_numpy(np.float64) for name in known})
    label = group
    if group:
        _require(frame, (group,), named, ours)
    elif "group" in frame.columns:
        if len(frame) > 1 and frame["group"].nunique(dropna=False) == 1:
            notes += ("Column group is the same in all rows: runs that share their sizes are a group instead.",)
        else:
            label = "group"
    if label is None and not gives_a_size(design):
        label = next((name for name in (*TRAININGS, *NAMES) if name in frame and frame[name].nunique() > 1), None)
    labels, said = (None, ()) if label is None else _labels(frame, label)
    notes += said
    runs = runs_from(
        design,
        frame[loss].to_numpy(np.float64),
        weight=_weights(frame, loss, output, weight, smooth, named),
        group=labels,
        output=output,
    )
    runs = replace(
        _labelled(runs, frame), resolution=None if resolution is None else resolution[frame.index].to_numpy(np.float64)
    )
    notes += _of_one_training(runs, frame) if label is None else ()
    used = [name for name in (label, weight) if name is not None]
    believed = frame.drop(columns=list(wrong))
    unsure = () if trust_units else (*gaps(believed, told_apart_by), *exchanged(believed, inputs, source))
    if output == "loss":
        unsure = (*unsure, *check_losses(frame, loss, source.get(loss, loss)))
    elif output in SHARES and (above := int((frame[loss] > 1).sum())):
        unsure = (
            *unsure,
            f"{counted(above, 'row')} of {len(frame)} {'has' if above == 1 else 'have'} {loss} above 1, which no share "
            f"of answers is: ranges know no end at 1. "
            + (
                f"If it is in percent, {map_option(loss, f'{loss} / 100')} makes it a share."
                if above == len(frame)
                else "The others are not: look whether all are in one unit."
            ),
        )
    return ReadRuns(
        runs=runs,
        rows=frame.index.to_numpy() + 1,
        frame=frame.reset_index(drop=True),
        notes=(
            *notes,
            *dropped,
            *_weighed(runs, weight),
            *_predicted(frame, weight),
            *unsure,
            *check_table(
                believed, told_apart_by, loss, used, None if isinstance(law, tuple) else law, bool(best_by), sizes
            ),
        ),
        dropped=dropped,
        read_from={**source, **({"loss": loss} if loss not in ("loss", output) else {})},
    )


OTHER_BUDGET = 1.25
"""Ratio of a budget's formula to the column of its name above which, or below whose inverse, the two disagree."""


def _other_budget(law: Any, frame: Any) -> tuple[str, ...]:
    """Return a note if the budget of a formula disagrees with the column of its name in every row."""
    if not (isinstance(law, type) and issubclass(law, FormulaLaw) and law.formula.budget):
        return ()
    with float64():
        name, spent = spent_in_rows(law, {column: frame[column].to_numpy(np.float64) for column in law.inputs})
    if name not in frame.columns or frame[name].dtype.kind not in "iuf":
        return ()
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.asarray(spent) / frame[name].to_numpy(np.float64)
        apart = np.abs(np.log(ratio)) > np.log(OTHER_BUDGET)
    if not apart.all():
        return ()
    return (
        f"The budget {law.formula.budget!r} is {ratio.min():.3g} to {ratio.max():.3g} times the column {name}; "
        f"decisions count by the budget.",
    )


def _gaps(frame: Any, names: Sequence[str], gap: Mapping[str, Any]) -> str:
    """Return the rows in which columns are empty or not finite, by column."""
    return " and ".join(f"{name} is empty or not finite in {rows_in_words(frame.index[gap[name]])}" for name in names)


def fitted_column(law: Any, loss: str = "loss") -> str:
    """Return the fitted column of a law: the named one, or the law's only output.

    A law of scores that reads the loss is fitted to its output: ``loss`` then names the column of the loss.

    Raises:
      UserError: no column is named and the law has several outputs, or the named one is none of its outputs.
    """
    if "loss" in law.outputs or loss in law.outputs:
        return loss
    name = called(law if isinstance(law, type) else type(law))
    if loss != "loss" and not _reads_loss(law):
        raise UserError(
            f"{name} predicts {' and '.join(law.outputs)}, and --loss names the column {loss}; if that holds one of "
            f"these, say which: {map_option(next(iter(law.outputs)), quoted(loss))}, and leave --loss out or name the "
            f"output."
        )
    if len(law.outputs) > 1:
        raise UserError(
            f"{name} predicts {' and '.join(law.outputs)} and no loss, and a fit is to one of them: name its column, "
            f"as --loss {next(iter(law.outputs))}. Coefficients of another output alone are then no part of the fit."
        )
    return next(iter(law.outputs))


def _reads_loss(law: Any) -> bool:
    return "loss" in law.inputs


def check_units(frame: Any, read_from: Mapping[str, str], named: str, inputs: Sequence[str] = ()) -> dict[str, str]:
    """Return the columns with wrong units, with the reason; all columns count if no ``inputs`` are given.

    FLOPs that contradict sizes and tokens raise an error whichever of the three the law reads: any may be wrong.

    Raises:
      UserError: a column that the law reads has wrong units.
    """
    wrong = wrong_units(frame, read_from, rows_in_words)
    wanted = inputs or tuple(wrong)
    asked = [why for name, why in wrong.items() if name in wanted or (name == "flops" and "6 ·" in why)]
    if asked:
        raise UserError(f"{named}: {'; '.join(asked)}. If the numbers are right as they are, pass --trust-units.")
    return wrong


def _labelled(runs: Runs, frame: Any) -> Runs:
    """Return the runs labelled by their rows in the file, and by the models that a column names."""
    rows = [f"row {row + 1}" for row in frame.index]
    name = _naming(frame)
    if name is None:
        return replace(runs, labels=tuple(rows))
    models = tuple(map(str, frame[name]))
    labels = tuple(f"{row} ({model})" for row, model in zip(rows, models, strict=True))
    return replace(runs, labels=labels, models=models)


def _with_index(frame: Any) -> Any:
    """Return the table with rows numbered from 0, and named index levels as columns."""
    kept = [name for name in frame.index.names if name is not None and name not in frame.columns]
    return frame.reset_index(level=kept).reset_index(drop=True) if kept else frame.reset_index(drop=True)


def _labels(frame: Any, column: str) -> tuple[list[Any], tuple[str, ...]]:
    """Return the label of each row's group by a column; each row with an empty cell is its own group."""
    empty = (frame[column].isna() | (frame[column].astype(str).str.strip() == "")).to_numpy()
    labels = [(row,) if empty[row] else label for row, label in enumerate(frame[column])]
    count = int(empty.sum())
    if not count:
        return labels, ()
    return labels, (
        f"Column {column} is empty in {count} of {len(frame)} rows ({rows_in_words(frame.index[empty])}); each of "
        f"them is a group of its own.",
    )


NAMES = ("model", "name", "run")
"""Columns whose cells name rows, in this order."""
TRAININGS = ("run", "run_name", "run_id", "run_uuid")
"""Columns that name a training run; ``model`` and ``name`` may name a group of them."""


def _of_one_training(runs: Runs, frame: Any) -> tuple[str, ...]:
    """Return a note if rows of one training run are in several groups, or rows of several runs are in one group."""
    column = next((name for name in TRAININGS if name in frame.columns), None)
    if column is None:
        return ()
    names, groups = frame[column].nunique(), len(np.unique(runs.group))
    if names == len(frame) > groups:
        return (
            f"Rows that differ in tokens alone are one group, {groups} in all, as checkpoints of a training share "
            f"luck; the column {column} names every row another training. If they are, {command('--group', column)} "
            f"counts each by itself, and intervals rest on more groups.",
        )
    split = frame.assign(_group=runs.group).groupby(column, sort=False)["_group"].nunique()
    if not (split > 1).any():
        return ()
    return (
        f"{int((split > 1).sum())} of {len(split)} names in the column {column} have rows in several groups, which "
        f"count as independent runs. If the rows of a name are one training, say {command('--group', column)}.",
    )


def _theirs_or_ours(name: str, frame: Any) -> str:
    """Return a column by its own name, or by our name if the table has it under another."""
    if name in frame.columns:
        return name
    ours = our_name(name)
    if ours in frame.columns:
        return ours
    return next((str(c) for c in frame.columns if our_name(str(c)) in (name, ours)), name)


def mapped(frame: Any, mapping: Mapping[str, str], named: str) -> Any:
    """Return the table with our columns added, from its columns or arithmetic on them.

    Raises:
      UserError: a column cannot be computed.
    """
    computed = {}
    for name, expression in mapping.items():
        if expression in frame.columns:
            computed[name] = frame[expression]
            continue
        try:
            computed[name] = evaluate(expression, frame)
        except ValueError as error:
            near = nearest(expression, map(str, frame.columns))
            hint = f" Did you mean {' or '.join(near)}?" if near else ""
            raise UserError(
                f"{named}: {name}={expression} cannot be computed: {told(error).rstrip('.')}.{hint}"
            ) from error
    return frame.assign(**computed)


def select(frame: Any, where: Sequence[str], named: str) -> tuple[Any, tuple[str, ...]]:
    """Return the rows that meet all conditions, and notes with their number.

    Raises:
      UserError: a condition cannot be applied, or no row meets it.
    """
    notes = []
    for text in where:
        before = len(frame)
        try:
            frame = frame[condition(text, frame)]
        except ValueError as error:
            raise UserError(f"{named}: the condition {text!r} cannot be applied: {told(error).rstrip('.')}.") from error
        notes.append(f"{len(frame)} of {before} rows meet {text!r}.")
        if not len(frame):
            raise UserError(f"{named}: no row meets {text!r}.")
    return frame.copy(), tuple(notes)


def _require(frame: Any, names: Sequence[str], named: str, ours: Named) -> None:
    columns = [str(column) for column in frame.columns if column not in ours.read_from]
    missing = [name for name in dict.fromkeys(names) if name not in frame.columns]
    if not missing:
        return
    meanings = {name: run_table.COLUMNS[name].meaning if name in run_table.COLUMNS else "wanted" for name in missing}
    # A column that has one of our names is not a misspelling of another.
    strange = [column for column in columns if column not in run_table.COLUMNS]
    near = dict.fromkeys(
        c for name in missing for c in nearest(name, strange if name in run_table.COLUMNS else columns)
    )
    # A column name may contain control characters, which must not reach the terminal.
    one = len(missing) == 1 and near
    shown = [repr(c) if not c.isprintable() else c for c in (near if one else columns)]
    hint = f"did you mean {' or '.join(shown)}?" if one else f"the columns are {', '.join(shown)}."
    said = " ".join(ours.undecided).replace("'", " ").split()
    others = inverses(missing, columns)
    unsaid = [name for name in missing if name not in others and not any(word.startswith(f"{name}=") for word in said)]
    asked = f" Say which is which: {' '.join(f'--map {name}=COLUMN' for name in unsaid)}." if unsaid else ""
    if others:
        options = " ".join(map_option(name, expression) for name, expression in others.items())
        asked += f" What the table has gives {listed(others)}: {options}."
    raise UserError(
        f"{named} has no column {', none '.join(f'{name} ({meaning})' for name, meaning in meanings.items())}; {hint}"
        + "".join([asked, *(f" {note}" for note in ours.undecided)])
    )


class _Text(NamedTuple):
    """Cells of a numeric column that are not numbers, usually text."""

    what: str
    said: str
    rows: Any
    """Mask of the rows with such cells."""


def _numeric(frame: Any, names: Sequence[str]) -> tuple[Any, dict[str, _Text]]:
    """Return the table with the given columns as numbers (NaN for text), and the text cells by column."""
    numbers, texts = {}, {}
    for name in names:
        try:
            numbers[name] = run_table.numbers(frame[name])
        except ValueError:
            wrong = np.array([not _is_number(value) for value in frame[name]])
            numbers[name] = run_table.numbers(frame[name].where(~wrong))
            first = frame[name][wrong].iloc[0]
            what = "is text" if isinstance(first, str) else "is no number"
            texts[name] = _Text(what, f"it holds {shown(first)} in {rows_in_words(frame.index[wrong])}", wrong)
    return frame.assign(**numbers), texts


def _is_number(value: Any) -> bool:
    try:
        run_table.numbers(pd.Series([value]))
    except ValueError:
        return False
    return True


def _check_decimals(column: Any, loss: str, named: str) -> None:
    """Raise ``UserError`` for losses like 3,874, whose comma may be a decimal point.

    Two commas separate thousands: 110,678,115.
    """
    commas = [value for value in column if isinstance(value, str) and "," in value]
    if commas and max(value.count(",") for value in commas) == 1:
        raise UserError(
            f"{named}: column {loss} has {shown(commas[0])}, whose comma would be read as one of thousands; "
            f"write losses with decimal points, and without other marks."
        )


def _sound(
    frame: Any,
    needed: Sequence[str],
    loss: str,
    weight: str | None,
    texts: Mapping[str, _Text],
    named: str,
    drop: bool,
    mapping: Mapping[str, str],
    read_from: Mapping[str, str],
    compared: Sequence[str] = (),
) -> tuple[Any, tuple[str, ...]]:
    """Return the valid rows, or raise an error about the others; values from ``mapping`` need not be integers.

    Columns in ``compared`` may be empty, unlike those in ``needed``.
    """
    none = _Text("", "", np.zeros(len(frame), bool))
    faults = {f"{name} {texts[name].what} ({texts[name].said})": texts[name].rows for name in needed if name in texts}
    faults |= {
        f"{name} is empty or not finite": ~np.isfinite(frame[name]) & ~texts.get(name, none).rows for name in needed
    }
    positive = [name for name in (*POSITIVE, loss) if name in frame.columns]
    faults |= {f"{name} is not above 0": frame[name] <= 0 for name in positive}
    faults |= {f"{name} is not {run_table.WITHIN}": run_table.beyond(frame[name]) for name in positive if name != loss}
    counts = [name for name in (*needed, *compared) if name in run_table.COLUMNS and name not in positive]
    if "loss" in counts:
        # For a law that reads the loss, a score may be given at the ideal loss of 0.
        counts.remove("loss")
        faults["loss is below 0"] = frame["loss"] < 0
    faults |= {
        f"{name} is not {wanted}": broken
        for name in counts
        for wanted, broken in run_table.broken_rules(name, frame[name], whole=name not in mapping).items()
    }
    if {"params_active", "params_total"} <= set(frame.columns):
        faults["params_active exceeds params_total"] = frame["params_active"] > EQUAL * frame["params_total"]
    if {"top_k", "num_experts"} <= {*needed}:
        faults["top_k exceeds num_experts"] = (frame["top_k"] > frame["num_experts"]) & (frame["num_experts"] > 1)
    if weight is not None:
        faults[f"the weight {weight} is below 0"] = frame[weight] < 0
    notes = []
    bad = np.zeros(len(frame), bool)
    for what, rows in faults.items():
        if (wrong := frame.index[np.asarray(rows)]).size:
            notes.append(f"{named}: {what} in {len(wrong)} of {len(frame)} rows ({_named_rows(frame, wrong)})")
            bad |= np.asarray(rows)
    if notes and not drop:
        diverged = " A run that diverged has no loss to fit." if not np.isfinite(frame[loss]).all() else ""
        if {"params_active", "params_total"} <= {*needed} and (frame["params_total"].isna()).any():
            total, active = (read_from.get(name, mapping.get(name, name)) for name in ("params_total", "params_active"))
            whole = map_option("params_total", f"where({total} > 0, {total}, {active})")
            diverged += f" If models without a total are dense, {whole} gives it."
        raise UserError(
            "; ".join(notes) + f".{diverged} Correct the rows, select others with --where, or pass --drop-invalid."
        )
    if bad.all():
        raise UserError("; ".join(notes) + ". No row is left.")
    return frame[~bad], tuple(f"Dropped: {note}." for note in notes)


def _named_rows(frame: Any, rows: Any) -> str:
    """Return rows by number, with the names of their runs if a column has them, as in trackers' tables."""
    column = _naming(frame)
    named = "" if column is None else f": {some([str(one) for one in frame.loc[rows, column]], most=3)}"
    return f"{rows_in_words(rows)}{named}"


def _naming(frame: Any) -> str | None:
    return next((column for column in NAMES if column in frame.columns), None)


def _once(frame: Any, told_apart_by: Sequence[str], loss: str) -> tuple[Any, tuple[str, ...]]:
    """Return the table without duplicates, and a note on the dropped rows."""
    again = duplicates(frame, told_apart_by, loss)
    rows = frame.index[again]
    note = f"Dropped: {rows_in_words(rows)} ({len(rows)} in all), which repeat an earlier row's sizes and loss exactly."
    return frame[~again], (note,) if len(rows) else ()


PREDICTED = "is_predicted"
"""Column that marks losses that were not measured."""
WIDEST = 1e6
"""Upper limit of a standard error of a loss; squares of larger ones might overflow."""


def _weights(frame: Any, loss: str, output: str, weight: str | None, smooth: bool, named: str) -> Any:
    """Return the weights: the given column, else the precisions of predicted or smoothed losses, else None.

    Raises:
      UserError: a predicted loss has no standard error.
    """
    if weight is not None:
        return frame[weight].to_numpy(np.float64)
    column, guessed = standard_error_column(loss), _is_predicted(frame)
    if guessed.any():
        errors = (
            run_table.numbers(frame[column]).to_numpy(np.float64) if column in frame else np.full(len(frame), np.nan)
        )
        if not ((errors[guessed] > 0) & (errors[guessed] < WIDEST)).all():
            raise UserError(
                f"{named} has predicted losses (column {PREDICTED}) without a standard error above 0 and below "
                f"{WIDEST:,.0f} in {column}, by which they would count; leave them out "
                f"(--where '{PREDICTED} == 0'), or say what they count (--weight COLUMN)."
            )
        errors = np.where(guessed, errors, 0.0)
    elif smooth and column in frame:
        errors = frame[column].to_numpy(np.float64)
    else:
        return None
    # Residuals of a fit are logarithmic, as the standard errors of settings already are.
    return precision(errors / frame[loss].to_numpy(np.float64) if output == "loss" else errors)


def _is_predicted(frame: Any) -> Bool[np.ndarray, " rows"]:
    """Return a mask of the rows with predicted losses, from a column of 0 and 1, or of false and true.

    Raises:
      UserError: the cell of a row is empty or invalid.
    """
    if PREDICTED not in frame.columns:
        return np.zeros(len(frame), bool)
    words = frame[PREDICTED].map(lambda flag: {"true": 1, "false": 0}.get(str(flag).strip().lower(), flag))
    flags = np.asarray(pd.to_numeric(words, errors="coerce"), np.float64)
    says = np.isfinite(flags)
    # In other tables a column of this name may hold predictions, which do not mark rows.
    if not np.isin(flags[says], (0.0, 1.0)).all():
        return np.zeros(len(frame), bool)
    if not says.all():
        raise UserError(
            f"Column {PREDICTED} is {frame[PREDICTED].iloc[int(np.argmin(says))]!s} in "
            f"{rows_in_words(frame.index[~says])}; write 0 where the loss was measured and 1 where it was predicted."
        )
    return flags == 1


def _predicted(frame: Any, weight: str | None) -> tuple[str, ...]:
    """Return a note on losses that were predicted, and on their weight."""
    guessed = _is_predicted(frame)
    if not guessed.any():
        return ()
    counts = "by its standard error" if weight is None else f"as {weight} says"
    return (
        f"{int(guessed.sum())} of {len(frame)} losses were not measured but predicted (column {PREDICTED}); each "
        f"counts {counts}. Errors of a law on them are no test of it.",
    )


def _weighed(runs: Runs, weight: str | None) -> tuple[str, ...]:
    """Return notes on excluded rows and weights, or raise an error if all weights are 0."""
    out = int((runs.weight == 0).sum())
    if out == len(runs):
        raise UserError(f"The weight {weight} is 0 in every row; give at least one row a weight above 0.")
    kept = runs.weight[runs.weight > 0]
    notes = (f"{out} of {len(runs)} rows have a {weight} of 0 and take no part.",) if out else ()
    if weight is None or (kept == 1).all():
        return notes
    between = f"{kept.min():.4g} to {kept.max():.4g}" if np.ptp(kept) else f"{kept[0]:.4g}"
    return (
        *notes,
        f"A row counts as the mean of as many runs as {weight} says ({between}); ranges of new runs are of one run.",
    )
