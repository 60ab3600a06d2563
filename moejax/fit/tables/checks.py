"""Check valid tables for duplicates, constant columns, and misspelled column names."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import pandas as pd

from moejax import run_table
from moejax.errors import UserError
from moejax.fit.tables.column_names import as_factor, looks_like, map_option, our_name, quoted
from moejax.fit.uncertainty.extrapolation import SIZES
from moejax.laws import LAWS, called
from moejax.laws.dense.chinchilla import FLOPS_PER_PARAM_AND_TOKEN
from moejax.laws.design import FIELDS
from moejax.run_table import COLUMNS
from moejax.wording import command, listed, nearest, some

SETTINGS = (
    *("learning_rate", "batch_tokens", "weight_decay", "schedule", "warmup_tokens", "decay_tokens"),
    "sequence_length",
)
"""Settings that are tuned for a model and its tokens, by our names; others count by ``our_name``."""

TUNED_SHARE = 0.5
"""Share of the groups of equal inputs in which a setting must vary to count as swept."""


def swept(frame: Any, inputs: Sequence[str]) -> list[str]:
    """Return the settings, by the table's own names, that vary among rows of equal inputs."""
    columns = [str(c) for c in frame.columns if our_name(str(c)) in SETTINGS and str(c) not in inputs]
    repeated = frame[frame.duplicated(list(inputs), keep=False)] if inputs else frame[:0]
    if not columns or not len(repeated):
        return []
    levels = repeated.groupby(list(inputs), sort=False)[columns].nunique(dropna=False)
    varying = [name for name in columns if (levels[name] > 1).mean() >= TUNED_SHARE]
    # A setting under two names (the file's, and ours derived from it) is named once, as in the file.
    theirs = {our_name(name): name for name in reversed(varying) if name not in SETTINGS}
    return [name for name in varying if name not in theirs]


def sentence(frame: Any, inputs: Sequence[str], settings: Sequence[str], option: str = "--best-by ") -> str:
    """Return a sentence that the rows are a sweep over settings, with the option that keeps the best of each."""
    groups = frame.groupby(list(inputs), sort=False).ngroups
    extra = int(frame.duplicated(list(inputs)).sum())
    return (
        f"{extra} of {len(frame)} rows repeat an earlier row's sizes with another {listed(settings, 'or')}: a sweep, "
        f"not replicates. A law of sizes is of the best of each of the {groups} groups; {option}{','.join(settings)} "
        f"keeps that and drops the rest. As it is, every setting counts as a run."
    )


def check_settings(frame: Any, inputs: Sequence[str], loss: str, settings: Sequence[str], named: str) -> None:
    """Raise ``UserError`` for settings that the table cannot have swept.

    Raises:
      UserError: the table lacks a column, or a column is an input of the law or the loss.
    """
    columns = [str(column) for column in frame.columns]
    for name in settings:
        if name not in columns:
            raise UserError(f"{named} has no column {name} for --best-by; the columns are {', '.join(columns)}.")
        if name in inputs or name == loss:
            raise UserError(
                f"--best-by names {name}, which {'is fitted' if name == loss else 'the law reads'}; name what was "
                f"tuned at equal {', '.join(inputs) or 'sizes'}, such as learning_rate."
            )


def best_by(
    frame: Any, inputs: Sequence[str], loss: str, settings: Sequence[str], named: str
) -> tuple[Any, tuple[str, ...]]:
    """Return the row of the lowest loss among those that differ only in settings, and notes on the dropped rows.

    Rows of several seeds (column ``seed``) are replicates and each keeps its best, unless ``seed`` is a setting.

    Raises:
      UserError: no column distinguishes models, or no row has a loss.
    """
    alike = _alike(frame, inputs, settings)
    if not alike:
        raise UserError(f"{named} has no column that tells models apart; --best-by keeps the best run of each.")
    losses = run_table.numbers(frame[loss], where=named)
    ranked = frame.assign(**{loss: losses})[np.isfinite(losses)]
    if not len(ranked):
        raise UserError(f"{named} has no {loss} by which --best-by could choose.")
    kept = np.sort(ranked.groupby(alike, sort=False, dropna=False)[loss].idxmin().to_numpy())
    best = frame.loc[kept]
    notes = [
        f"Dropped: {len(frame) - len(best)} of {len(frame)} rows, which are not the best by {listed(settings)} of "
        f"their {', '.join(alike)}; {len(best)} are kept."
        + (" The best of several seeds is the luckiest: leave seed out of --best-by." if "seed" in settings else "")
    ]
    return best, (*notes, *_at_ends(frame, best, alike, settings))


def _alike(frame: Any, inputs: Sequence[str], settings: Sequence[str]) -> list[str]:
    """Return the columns whose equal values form one sweep."""
    return [*inputs, *(["seed"] if "seed" in frame.columns and "seed" not in settings else [])]


def resolution(frame: Any, best: Any, inputs: Sequence[str], settings: Sequence[str], target: str) -> Any:
    """Return the standard deviation of the logarithm of a setting due to the grid, for each best row.

    The true optimum is within one grid step around the best tried value: the step's width divided by √12. The value is
    0 if only one value was tried.

    Args:
      best: rows of ``frame`` kept by ``best_by``.
      target: a setting, or a setting in another unit.
    """
    values = run_table.numbers(frame[target]).to_numpy(np.float64)
    logs = np.log(np.where(values > 0, values, np.nan))
    kept, widths = frame.index.isin(best.index), np.zeros(len(frame))
    for rows in frame.groupby(_alike(frame, inputs, settings), sort=False, dropna=False).indices.values():
        tried = np.unique(logs[rows][np.isfinite(logs[rows])])
        for row in rows[kept[rows] & np.isfinite(logs[rows])] if len(tried) > 1 else ():
            at = int(np.searchsorted(tried, logs[row]))
            widths[row] = np.diff(tried)[max(at - 1, 0) : at + 1].mean()
    return pd.Series(widths / np.sqrt(12), index=frame.index)[kept]


def _at_ends(frame: Any, best: Any, alike: Sequence[str], settings: Sequence[str]) -> tuple[str, ...]:
    """Return a note if best rows are at the edge of the grid, where a better setting may be outside."""
    at_ends = []
    for name in settings:
        if our_name(name) == "seed":
            # Seeds have no order.
            continue
        try:
            values = frame[name].astype("float64")
        except (TypeError, ValueError):
            continue
        ends = frame[list(alike)].assign(low=values, high=values).groupby(list(alike), sort=False, dropna=False)
        ends = ends.agg({"low": "min", "high": "max"}).reset_index()
        both = best[list(alike)].assign(at=values[best.index]).merge(ends, on=list(alike))
        tried = both["low"] < both["high"]
        count = int((tried & ((both["at"] == both["low"]) | (both["at"] == both["high"]))).sum())
        if count:
            at_ends.append(f"{name} in {count} of {int(tried.sum())}")
    if not at_ends:
        return ()
    return (f"The best is at an end of the sweep of {some(at_ends)} groups: a better setting may lie beyond.",)


SHOWN = 5
"""Number of rows that a sentence names."""
COUNTED_ALIKE = 1.05
"""Largest ratio of FLOPs to 6 N D, or the inverse, that counts as equal."""
MEASURED = tuple(COLUMNS)[list(COLUMNS).index("loss") :]
"""Columns of a run table that are measured in training, and so differ between any two runs."""
NO_SIZES = (*SETTINGS, *MEASURED, "seed")
"""Columns that do not identify a run's model."""
EXPERTS = ("num_experts", "top_k", "params_total")
"""Columns that distinguish mixtures from dense models and from each other."""
ALIKE = 0.85
"""Similarity (by difflib) from which a column name counts as a misspelling of ours."""


def rows_in_words(rows: Any) -> str:
    """Return rows by their number in the file, counted from 1 below the header."""
    numbers = [str(row + 1) for row in rows]
    return f"row{'s' * (len(numbers) > 1)} {', '.join(numbers[:SHOWN])}" + (", …" if len(numbers) > SHOWN else "")


def check_table(
    frame: Any,
    inputs: Sequence[str],
    loss: str,
    used: Sequence[str] = (),
    law: type | None = None,
    tuned: bool = False,
    sizes: Sequence[str] | None = None,
) -> tuple[str, ...]:
    """Return notes about a table.

    Args:
      inputs: columns that determine a run's prediction.
      used: columns that are read besides ``inputs`` and ``loss``.
      law: the law to be fitted, if known.
      tuned: True if the rows are already optima of sweeps.
      sizes: columns that distinguish runs; default ``inputs``.
    """
    return (
        *_repeats(frame, inputs if sizes is None else sizes, loss, law, tuned),
        *_never_vary(frame, inputs),
        *_vary_together(frame, inputs),
        *_several_origins(frame, {*inputs, loss, *used}),
        *_counted_otherwise(frame),
        *_slips(frame, {*inputs, loss, *used}),
    )


def duplicates(frame: Any, inputs: Sequence[str], loss: str) -> Any:
    """Return a mask of rows that repeat an earlier row's sizes and loss exactly, most often a run listed twice.

    Without sizes there are none, because equal losses alone prove nothing. Rows that differ in a seed or a setting are
    no duplicates; nor are rows that differ in the loss if another column is fitted, such as the best learning rate.
    """
    if not inputs:
        return np.zeros(len(frame), bool)
    apart = ("seed", "loss", *SETTINGS)
    others = [str(c) for c in frame.columns if our_name(str(c)) in apart and str(c) not in (*inputs, loss)]
    return frame.duplicated([*inputs, loss, *others])


def _repeats(frame: Any, inputs: Sequence[str], loss: str, law: type | None, tuned: bool) -> tuple[str, ...]:
    if not inputs:
        return ()
    same = duplicates(frame, inputs, loss)
    replicates = frame.duplicated(list(inputs)) & ~same
    notes = []
    if same.any():
        notes.append(
            f"{rows_in_words(frame.index[same])} ({same.sum()} in all) repeat an earlier row's sizes and loss "
            f"exactly; each is kept and counts as a run, so that standard errors may be too small. If they are one run "
            f"listed twice, pass --drop-duplicates."
        )
    if replicates.any() and law is not None and (unread := _unread_experts(frame, inputs, law)):
        notes.append(
            f"{rows_in_words(frame.index[replicates])} ({replicates.sum()} in all) repeat an earlier row's sizes with "
            f"another loss, and are no replicates: {unread}."
        )
    elif replicates.any() and not tuned and (settings := swept(frame, inputs)):
        notes.append(sentence(frame, inputs, settings))
    elif replicates.any():
        notes.append(
            f"{rows_in_words(frame.index[replicates])} ({replicates.sum()} in all) repeat an earlier row's sizes with "
            f"another loss; they are kept as replicates{_differing(frame, inputs, loss)}."
        )
    return tuple(note[0].upper() + note[1:] for note in notes)


def _differing(frame: Any, inputs: Sequence[str], loss: str) -> str:
    """Return a phrase with the other columns that differ among rows of equal sizes; some may matter."""
    others = [name for name in frame.columns if name not in (*inputs, loss) and name not in MEASURED]
    alike = frame[frame.duplicated(list(inputs), keep=False)].groupby(list(inputs), sort=False)[others]
    share = (alike.nunique(dropna=False) > 1).mean()
    differing = [str(name) for name in others if share[name] >= 0.5]
    return f", though they differ in {some(differing, most=4)}" if differing else ""


def _unread_experts(frame: Any, inputs: Sequence[str], law: type) -> str:
    """Return a phrase on the expert columns in which otherwise equal runs differ, with remedies; empty if none differ.

    Each remedy is named only if the table has the columns it needs.
    """
    experts = frame[[name for name in EXPERTS if name in frame.columns]].copy()
    if "num_experts" in experts:
        dense = experts["num_experts"] <= 1
        only_dense = "num_experts == 0" if (experts["num_experts"][dense] == 0).all() else "num_experts <= 1"
        # Expert columns of a dense model have no meaning, so they are set to 0.
        experts.loc[dense, [name for name in experts if name != "params_total"]] = 0
    elif {"params_active", "params_total"} <= set(frame.columns):
        dense = frame["params_total"] <= frame["params_active"]
        only_dense = "params_total <= params_active"
    else:
        return ""
    levels = experts.assign(**{name: frame[name] for name in inputs}).groupby(list(inputs), sort=False)
    unread = [name for name in experts if name not in inputs]
    differ = [name for name in unread if (levels[name].nunique(dropna=False) > 1).any()]
    if not differ:
        return ""
    said = f"they differ in {listed(differ)}, and {called(law)} does not read {'them' if len(differ) > 1 else 'it'}"
    remedies = []
    mixtures = int((~dense).sum())
    if mixtures and len(unread) == len(experts.columns) and dense.sum() >= len(fields(law)):
        remedies.append(f"keep the dense ones with {command('--where', only_dense)}")
    readers = [name for name, other in LAWS.items() if _reads(other, frame, {*inputs}, {*differ})]
    if readers:
        # This law describes both dense models and mixtures, so it is preferred.
        remedies.append(f"fit {'effective_params' if 'effective_params' in readers else readers[0]}")
    count = [f"{mixtures} of {len(frame)} rows are mixtures"] if mixtures else []
    return ": ".join([said, "; ".join([*count, *([", or ".join(remedies)] if remedies else [])])]).removesuffix(": ")


def _reads(law: Any, frame: Any, inputs: set[str], differ: set[str]) -> bool:
    """Return whether a law of the loss reads all of ``inputs`` and some of ``differ``, with all its inputs known."""
    needed = set(law.inputs)
    if "loss" not in law.outputs or not inputs <= needed or not needed & differ or not needed <= set(frame.columns):
        return False
    return bool(np.isfinite(frame[list(needed)].to_numpy(np.float64)).all())


def _never_vary(frame: Any, inputs: Sequence[str]) -> tuple[str, ...]:
    if len(frame) < 2:
        return ()
    flat = [name for name in inputs if np.ptp(frame[name].to_numpy(np.float64)) == 0]
    if not flat:
        return ()
    return (f"The same in all rows: {', '.join(flat)}. A coefficient that only this sets apart cannot be found.",)


ORIGINS = (
    "source",
    "dataset",
    "corpus",
    "data_source",
    "train_data",
    "tokenizer",
    "eval_set",
    "validation_set",
    "paper",
)
"""Columns of origin: losses of runs that differ in them are not comparable."""


def _several_origins(frame: Any, used: set[str]) -> tuple[str, ...]:
    """Return a note if rows of several data sets or projects are fitted together."""
    notes = []
    for column in map(str, frame.columns):
        if column.lower() not in ORIGINS or column in used:
            continue
        count = frame[column].nunique()
        if 1 < count <= len(frame) / 2:
            first = frame[column].value_counts().index[0]
            keep = (
                command("--where", f"{quoted(column)} == {json.dumps(first)}") if isinstance(first, str) else "--where"
            )
            notes.append(
                f"Column {column} has {count} values, and rows of all are fitted as one: losses on other data or by "
                f"other tokenizers follow other constants. {keep} keeps one, --each {column} holds each out."
            )
    return tuple(notes)


TOGETHER = 0.01
"""Standard deviation of the log ratio of two columns below which they are proportional."""


def _vary_together(frame: Any, inputs: Sequence[str]) -> tuple[str, ...]:
    """Return a note if sizes vary only together, so that their effects cannot be separated."""
    sizes = {name: frame[name].to_numpy(np.float64) for name in inputs if name in SIZES}
    logs = {name: np.log(size) for name, size in sizes.items() if (size > 0).all() and np.std(np.log(size)) > TOGETHER}
    notes = []
    for one, other in itertools.combinations(logs, 2):
        ratio = logs[one] - logs[other]
        if len(frame) > 2 and np.std(ratio) < TOGETHER:
            smaller, larger = sorted((one, other), key=lambda name: logs[name].mean())
            notes.append(
                f"{larger} is {np.exp(np.abs(ratio.mean())):.4g} times {smaller} in all rows: they do not tell what "
                f"each does to the loss, nor the loss at another ratio, nor which ratio is best. Train some runs at "
                f"other ratios."
            )
    return tuple(notes)


def _counted_otherwise(frame: Any) -> tuple[str, ...]:
    """Return a note if the table's FLOPs differ from those by which laws split a budget."""
    if not {"flops", "params_active", "tokens"} <= set(frame.columns):
        return ()
    size = frame["params_active"].to_numpy(np.float64) * frame["tokens"].to_numpy(np.float64)
    ratio = frame["flops"].to_numpy(np.float64) / (FLOPS_PER_PARAM_AND_TOKEN * size)
    low, high = np.nanmin(ratio), np.nanmax(ratio)
    if not np.isfinite([low, high]).all() or (low > 1 / COUNTED_ALIKE and high < COUNTED_ALIKE):
        return ()
    return (
        f"flops are {low:.2f} to {high:.2f} times 6 · params_active · tokens. Laws that read sizes and tokens split a "
        f"budget, and say how far it lies beyond the runs, by the latter.",
    )


def _slips(frame: Any, used: set[str]) -> tuple[str, ...]:
    missing = [name for name in FIELDS if name not in frame.columns]
    notes = []
    for column in map(str, frame.columns):
        if column not in used and column not in COLUMNS and column not in FIELDS and our_name(column) == column:
            near = nearest(column, missing, ALIKE)[:1] or filter(None, [looks_like(column, missing)])
            notes += [
                f"Column {column} is not read. If it is {name}, say {map_option(name, quoted(column))}."
                for name in near
            ]
    return tuple(notes)


LARGEST_VOCABULARY = 262_144
"""Largest vocabulary of a public language model (Gemma); uniform guessing has a loss of ln 262,144 = 12.5 nats."""
UNTRAINED = 7.0
"""Loss in nats per token that few trained language models exceed, but most perplexities do."""


def check_losses(frame: Any, loss: str, read_from: str) -> tuple[str, ...]:
    """Return notes about losses that no trained model has: of diverged runs, or in another unit.

    Args:
      read_from: column or expression of the file for the loss.
    """
    losses = frame[loss].to_numpy(np.float64)
    if np.median(losses) > UNTRAINED:
        remedy = map_option(loss, f"log({as_factor(read_from, map(str, frame.columns))[0]})")
        return (
            f"Half of the column {loss} is above {UNTRAINED:g} nats per token (median {np.median(losses):.4g}), where "
            f"hardly any trained model is. Is it a perplexity? Then say {remedy}. If it is in bits, multiply "
            f"by 0.6931.",
        )
    known = "vocab_size" in frame.columns
    chance = np.log(frame["vocab_size"].to_numpy(np.float64) if known else float(LARGEST_VOCABULARY))
    worse = losses > chance
    if not worse.any():
        return ()
    what = "ln(vocab_size)" if known else f"ln({LARGEST_VOCABULARY:,})"
    highest = float(np.max(np.broadcast_to(chance, losses.shape)[worse]))
    words = rows_in_words(frame.index[worse])
    return (
        f"{words[0].upper()}{words[1:]} ({worse.sum()} in all): {loss} is above {what} = {highest:.4g} nats, that of a "
        f"model that knows nothing. Did the training diverge? Leave it out: "
        f"{command('--where', f'{quoted(loss)} < {highest:.4g}')}.",
    )
