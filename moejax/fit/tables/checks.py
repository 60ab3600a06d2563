"""Check tables of runs. Each check has a function that finds faults, a sentence that reports a fault, and a remedy.

``ROW_CHECKS`` are rules that every row must meet. ``ADVICE`` reports properties of valid tables that a user should
know.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from jaxtyping import Float

from moejax import run_table
from moejax.errors import UserError
from moejax.fit.runs import SHARES
from moejax.fit.sweeps.settings import MEASURED, SETTINGS, sweep_note, swept
from moejax.fit.tables.column_names import as_factor, looks_like, map_option, our_name, quoted
from moejax.fit.tables.dense_models import EQUAL
from moejax.fit.tables.table import Rows, RunTable, is_field, rows_in_words
from moejax.fit.tables.units import gaps, swapped
from moejax.fit.uncertainty.extrapolation import COUNTED_ALIKE, SIZES
from moejax.laws import LAWS, called
from moejax.laws.dense.chinchilla import FLOPS_PER_PARAM_AND_TOKEN
from moejax.laws.design import FIELDS
from moejax.laws.predict import POSITIVE
from moejax.run_table import COLUMNS, DataFrame
from moejax.wording import argument, command, listed, nearest, option_hint, some

Fault = tuple[Mapping[str, Any], Rows | None]
"""Fields of a check's sentence, and a mask of the affected rows."""


@dataclass(frozen=True)
class Check:
    """A property of a table, with the sentence that reports it."""

    faults: Callable[[RunTable], Iterator[Fault]]
    """Function that yields the sentence's fields and the affected rows for each fault."""
    sentence: str
    remedy: str = ""

    def said(self, given: Mapping[str, Any]) -> str:
        """Return the sentence and the remedy for a fault with these fields."""
        text = f"{self.sentence} {self.remedy}".strip().format(**given)
        return f"R{text[1:]}" if self.sentence.startswith("{rows}") else text


# Rows that no fit can use.


def _texts(table: RunTable) -> Iterator[Fault]:
    for column in table.needed:
        if column in table.texts:
            yield {"column": column, "example": table.texts[column].example}, table.texts[column].rows


def _missing(table: RunTable) -> Iterator[Fault]:
    for column in table.needed:
        missing = ~np.isfinite(table.values(column))
        yield {"column": column}, missing & ~table.texts[column].rows if column in table.texts else missing


def _positive(table: RunTable) -> list[str]:
    return [name for name in (*POSITIVE, table.loss) if table.has(name)]


def _not_positive(table: RunTable) -> Iterator[Fault]:
    for column in _positive(table):
        yield {"column": column}, table.values(column) <= 0


def _beyond(table: RunTable) -> Iterator[Fault]:
    # A law of scores reads the loss.
    for column in dict.fromkeys((*_positive(table), *({"loss"} & {*table.needed}))):
        yield {"column": column, "range": run_table.WITHIN}, run_table.beyond(table.frame[column]).to_numpy()


def _negative_loss(table: RunTable) -> Iterator[Fault]:
    # For a law that reads the loss, a score may be given at the ideal loss of 0.
    if table.loss != "loss" and "loss" in table.needed:
        yield {}, table.values("loss") < 0


def _broken_rules(table: RunTable) -> Iterator[Fault]:
    for column in (*table.needed, *table.compared):
        if column in COLUMNS and column not in _positive(table) and column != "loss":
            rules = run_table.broken_rules(column, table.frame[column], whole=column not in table.mapping)
            yield from (({"column": column, "rule": rule}, broken.to_numpy()) for rule, broken in rules.items())


def _more_active_than_total(table: RunTable) -> Iterator[Fault]:
    if table.has("params_active", "params_total"):
        yield {}, table.values("params_active") > EQUAL * table.values("params_total")


def _more_chosen_than_experts(table: RunTable) -> Iterator[Fault]:
    if {"top_k", "num_experts"} <= {*table.needed}:
        experts = table.values("num_experts")
        yield {}, (table.values("top_k") > experts) & (experts > 1)


def _negative_weight(table: RunTable) -> Iterator[Fault]:
    if table.weight is not None:
        yield {"column": table.weight}, table.values(table.weight) < 0


ROW_CHECKS = (
    Check(_texts, "{column} is not a number (such as {example})"),
    Check(_missing, "{column} is empty or not finite"),
    Check(_not_positive, "{column} is not above 0"),
    Check(_beyond, "{column} is not {range}"),
    Check(_negative_loss, "loss is below 0"),
    Check(_broken_rules, "{column} is not {rule}"),
    Check(_more_active_than_total, "params_active exceeds params_total"),
    Check(_more_chosen_than_experts, "top_k exceeds num_experts"),
    Check(_negative_weight, "the weight {column} is below 0"),
)
"""Rules that the cells of every row must meet."""


def check_rows(table: RunTable, *, drop: bool) -> None:
    """Drop the rows that break a rule, with notes.

    Raises:
      UserError: a row breaks a rule and ``drop`` is False, or no row is left.
    """
    notes, bad = [], np.zeros(len(table.frame), bool)
    for check in ROW_CHECKS:
        for given, rows in check.faults(table):
            if rows is not None and rows.any():
                where = f"{int(rows.sum())} of {len(rows)} rows ({table.called(rows)})"
                notes.append(f"{table.named}: {check.sentence.format(**given)} in {where}")
                bad |= rows
    if notes and not drop:
        remedy = (
            f"Correct the rows, select other rows with {argument('where')}, or pass {argument('drop_invalid', True)}."
        )
        raise UserError(
            f"{'; '.join(notes)}. {_total_of_dense_models(table)}{_one_count_of_dense_models(table)}{remedy}"
        )
    if bad.all():
        raise UserError(f"{'; '.join(notes) or f'{table.named} has no rows'}. No row is left; correct the table.")
    table.keep(~bad)
    table.dropped += [f"Dropped: {note}." for note in notes]


def _total_of_dense_models(table: RunTable) -> str:
    if not {"params_active", "params_total"} <= {*table.needed} or table.frame["params_total"].notna().all():
        return ""
    total, active = (table.source.get(name, name) for name in ("params_total", "params_active"))
    option = map_option("params_total", f"where({total} > 0, {total}, {active})")
    return f"If models without a total are dense, {option} fills it in. "


def _one_count_of_dense_models(table: RunTable) -> str:
    """Return the mapping that gives dense models one parameter count, if only they have more active than total
    parameters."""
    rows = next((rows for _, rows in _more_active_than_total(table)), None)
    if rows is None or not rows.any() or not table.has("num_experts"):
        return ""
    experts = table.values("num_experts")
    if not (experts[rows] <= 1).all():
        return ""
    own = {name: table.source.get(name, name) for name in ("num_experts", "params_total", "params_active")}
    only_dense = f"{own['num_experts']} {_only_dense(experts)}"
    option = map_option("params_active", f"where({only_dense}, {own['params_total']}, {own['params_active']})")
    return f"All of these are dense models, whose parameters are all active; {option} counts them once. "


def _only_dense(experts: Float[np.ndarray, " rows"]) -> str:
    """Return the comparison that the numbers of experts of exactly the dense models meet."""
    return "== 0" if (experts[experts <= 1] == 0).all() else "<= 1"


# Properties of valid tables that a user should know.


def duplicates(table: RunTable) -> Rows:
    """Return a mask of rows that repeat an earlier row's sizes and loss exactly, usually because a run is listed twice.

    Without size columns no row is marked, because equal losses alone are no evidence. Rows that differ in a seed or a
    setting are not duplicates. If another column is fitted, such as the best learning rate, rows that differ in the
    loss are not duplicates either.
    """
    if not table.sizes:
        return np.zeros(len(table.frame), bool)
    names = [*table.sizes, table.loss]
    apart = ("seed", "loss", *SETTINGS)
    others = [str(c) for c in table.frame.columns if our_name(str(c)) in apart and str(c) not in names]
    return table.frame.duplicated([*names, *others]).to_numpy()


def _where(table: RunTable, rows: Rows) -> dict[str, Any]:
    return {"rows": rows_in_words(table.frame.index[rows]), "count": int(rows.sum())}


def _duplicated(table: RunTable) -> Iterator[Fault]:
    if (same := duplicates(table)).any():
        yield {**_where(table, same), "option": argument("drop_duplicates", True)}, same


def _replicates(table: RunTable) -> Rows:
    if not table.sizes:
        return np.zeros(len(table.frame), bool)
    return table.frame.duplicated(list(table.sizes)).to_numpy() & ~duplicates(table)


def _other_experts(table: RunTable) -> Iterator[Fault]:
    if (rows := _replicates(table)).any() and (reason := _unread_experts(table)):
        yield {**_where(table, rows), "reason": reason}, rows


def _settings(table: RunTable) -> Iterator[Fault]:
    apart = _replicates(table).any() and not table.is_tuned and not _unread_experts(table)
    if apart and (settings := swept(table.frame, table.sizes)):
        yield {"note": sweep_note(table.frame, table.sizes, settings)}, None


def _replicated(table: RunTable) -> Iterator[Fault]:
    rows = _replicates(table)
    if rows.any() and not _unread_experts(table) and (table.is_tuned or not swept(table.frame, table.sizes)):
        yield {**_where(table, rows), "differing": _differing(table)}, rows


def _differing(table: RunTable) -> str:
    frame, sizes = table.frame, list(table.sizes)
    others = [name for name in frame.columns if name not in (*sizes, table.loss) and name not in MEASURED]
    alike = frame[frame.duplicated(sizes, keep=False)].groupby(sizes, sort=False)[others]
    share = (alike.nunique(dropna=False) > 1).mean()
    differing = [str(name) for name in others if share[name] >= 0.5]
    return f", although they differ in {some(differing, most=4)}" if differing else ""


EXPERTS = ("num_experts", "top_k", "params_total")
"""Columns that distinguish MoE models from dense models and from each other."""


def _unread_experts(table: RunTable) -> str:
    """Return a clause on the expert columns in which otherwise equal runs differ, with remedies; empty if none differ.

    A remedy is given only if the table has the columns that it needs.
    """
    frame, sizes, law = table.frame, list(table.sizes), table.law
    if isinstance(law, tuple):
        return ""
    experts = frame[[name for name in EXPERTS if table.has(name)]].copy()
    if table.has("num_experts"):
        dense = experts["num_experts"] <= 1
        only_dense = f"num_experts {_only_dense(table.values('num_experts'))}"
        # Expert columns of a dense model have no meaning, so they are set to 0.
        experts.loc[dense, [name for name in experts if name != "params_total"]] = 0
    elif table.has("params_active", "params_total"):
        dense = frame["params_total"] <= frame["params_active"]
        only_dense = "params_total <= params_active"
    else:
        return ""
    levels = experts.assign(**{name: frame[name] for name in sizes}).groupby(sizes, sort=False)
    unread = [name for name in experts if name not in sizes]
    differ = [name for name in unread if (levels[name].nunique(dropna=False) > 1).any()]
    if not differ:
        return ""
    phrase = f"they differ in {listed(differ)}, which {called(law)} does not read"
    mixtures, remedies = int((~dense).sum()), []
    if mixtures:
        phrase += f" ({mixtures} of {len(frame)} rows are MoE models)"
        if len(unread) == len(experts.columns) and dense.sum() >= len(fields(law)):
            remedies.append(f"keep the dense models with {argument('where', only_dense)}")
    readers = [name for name, other in LAWS.items() if _reads(other, frame, {*sizes}, {*differ})]
    if readers:
        # This law describes both dense models and MoE models, so it is preferred.
        remedies.append(f"fit {'effective_params' if 'effective_params' in readers else readers[0]}")
    return "; ".join([phrase, *([" or ".join(remedies)] if remedies else [])])


def _reads(law: Any, frame: DataFrame, inputs: set[str], differ: set[str]) -> bool:
    """Return whether a law of the loss reads all of ``inputs`` and some of ``differ``, and has all its inputs."""
    needed = set(law.inputs)
    if "loss" not in law.outputs or not inputs <= needed or not needed & differ or not needed <= set(frame.columns):
        return False
    return bool(np.isfinite(frame[list(needed)].to_numpy(np.float64)).all())


def _constant(table: RunTable) -> Iterator[Fault]:
    if len(table.frame) > 1 and (flat := [name for name in table.inputs if np.ptp(table.values(name)) == 0]):
        yield {"columns": ", ".join(flat)}, None


TOGETHER = 0.01
"""Standard deviation of the log ratio of two columns below which the columns count as proportional."""


def _proportional(table: RunTable) -> Iterator[Fault]:
    sizes = {name: table.values(name) for name in table.inputs if name in SIZES}
    logs = {name: np.log(size) for name, size in sizes.items() if (size > 0).all() and np.std(np.log(size)) > TOGETHER}
    for one, other in itertools.combinations(logs, 2):
        ratio = logs[one] - logs[other]
        if len(table.frame) > 2 and np.std(ratio) < TOGETHER:
            smaller, larger = sorted((one, other), key=lambda name: logs[name].mean())
            yield {"larger": larger, "smaller": smaller, "ratio": f"{np.exp(np.abs(ratio.mean())):.4g}"}, None


ORIGINS = (
    *("source", "dataset", "corpus", "data_source", "train_data", "tokenizer", "eval_set", "validation_set", "paper"),
)
"""Columns that give the origin of a loss; losses with different origins are not comparable."""


def _several_origins(table: RunTable) -> Iterator[Fault]:
    for column in map(str, table.frame.columns):
        cells = table.frame[column]
        if (
            column.lower() in ORIGINS
            and column not in _used(table)
            and 1 < (count := cells.nunique()) <= len(cells) / 2
        ):
            first = cells.value_counts().index[0]
            value = json.dumps(first) if isinstance(first, str) else first
            option = argument("where", f"{quoted(column)} == {value}")
            each = option_hint(f"; to hold out each, pass {command('--each', column)}")
            yield {"column": column, "count": count, "option": option, "each": each}, None


def _other_flops(table: RunTable) -> Iterator[Fault]:
    if table.has("flops", "params_active", "tokens"):
        size = table.values("params_active") * table.values("tokens")
        ratio = table.values("flops") / (FLOPS_PER_PARAM_AND_TOKEN * size)
        # Cells that the law does not read may be empty.
        known = ratio[np.isfinite(ratio)]
        if known.size and (known.min() <= 1 / COUNTED_ALIKE or known.max() >= COUNTED_ALIKE):
            yield {"low": known.min(), "high": known.max()}, None


ALIKE = 0.85
"""Similarity (by difflib) from which a column name counts as a misspelling of a moejax name."""


def _used(table: RunTable) -> set[str]:
    return {*table.inputs, table.loss, *filter(None, (table.group, table.weight))}


def _similar_names(table: RunTable) -> Iterator[Fault]:
    missing = [name for name in FIELDS if not table.has(name)]
    for column in map(str, table.frame.columns):
        if column not in _used(table) and not is_field(column) and our_name(column) == column:
            near = next(iter([*nearest(column, missing, ALIKE), looks_like(column, missing)]), None)
            if near is not None:
                yield {"column": column, "name": near, "option": map_option(near, quoted(column))}, None


LARGEST_VOCABULARY = 262_144
"""Largest vocabulary of a public language model (Gemma); uniform guessing has a loss of ln 262,144 = 12.5 nats."""
UNTRAINED = 7.0
"""Value that few losses of trained language models (nats per token) exceed, but most perplexities exceed."""


def _perplexities(table: RunTable) -> Iterator[Fault]:
    if table.output == "loss" and (median := float(np.median(table.values(table.loss)))) > UNTRAINED:
        expression, _ = as_factor(table.source.get(table.loss, table.loss), map(str, table.frame.columns))
        option = map_option(table.loss, f"log({expression})")
        bits = map_option(table.loss, f"{expression} * 0.6931")
        yield {"column": table.loss, "median": f"{median:.4g}", "option": option, "bits": bits}, None


def _worse_than_chance(table: RunTable) -> Iterator[Fault]:
    losses = table.values(table.loss)
    if table.output != "loss" or np.median(losses) > UNTRAINED:
        return
    known = table.has("vocab_size")
    chance = np.broadcast_to(np.log(table.values("vocab_size") if known else LARGEST_VOCABULARY), losses.shape)
    if (worse := losses > chance).any():
        limit = f"{float(np.max(chance[worse])):.4g}"
        name = "ln(vocab_size)" if known else f"ln({LARGEST_VOCABULARY:,})"
        option = argument("where", f"{quoted(table.loss)} < {limit}")
        yield {**_where(table, worse), "loss": table.loss, "name": name, "limit": limit, "option": option}, worse


def _percentages(table: RunTable) -> Iterator[Fault]:
    if table.output in SHARES and (above := int((table.values(table.loss) > 1).sum())):
        every = above == len(table.frame)
        given = {"above": above, "count": len(table.frame), "column": table.loss}
        given["remedy"] = (
            f"If it is in percent, pass {map_option(table.loss, f'{table.loss} / 100')}."
            if every
            else "The other rows are not above 1; check that all rows are in one unit."
        )
        yield given, None


def _unit_gaps(table: RunTable) -> Iterator[Fault]:
    yield from (({"note": note}, None) for note in gaps(table.frame, table.inputs))


def _swapped_columns(table: RunTable) -> Iterator[Fault]:
    yield from (({"note": note}, None) for note in swapped(table.frame, table.law_inputs, table.source))


ADVICE = (
    Check(_unit_gaps, "{note}"),
    Check(_swapped_columns, "{note}"),
    Check(
        _perplexities,
        "The median of the column {column} is {median}; trained models rarely exceed 7 nats per token.",
        "If it is a perplexity, pass {option}. If it is in bits, pass {bits}.",
    ),
    Check(
        _worse_than_chance,
        "{rows} ({count} in all): {loss} is above {name} = {limit} nats, the loss of uniform guessing. The run "
        "may have diverged.",
        "To leave these rows out, pass {option}.",
    ),
    Check(
        _percentages, "{column} is above 1 in {above} of {count} rows, but a share of answers is at most 1.", "{remedy}"
    ),
    Check(
        _duplicated,
        "{rows} ({count} in all) repeat the sizes and loss of an earlier row exactly. Each counts as a run, so "
        "standard errors may be too small.",
        "If they are one run listed twice, pass {option}.",
    ),
    Check(
        _other_experts,
        "{rows} ({count} in all) repeat the sizes of an earlier row with another loss, but are not replicates: "
        "{reason}.",
    ),
    Check(_settings, "{note}"),
    Check(
        _replicated,
        "{rows} ({count} in all) repeat the sizes of an earlier row with another loss. They count as "
        "replicates{differing}.",
    ),
    Check(
        _constant,
        "Equal in all rows: {columns}. A coefficient that depends only on these columns cannot be determined.",
        "Add runs with other values.",
    ),
    Check(
        _proportional,
        "{larger} is {ratio} times {smaller} in all rows, so their effects on the loss cannot be separated, and no "
        "best ratio can be determined.",
        "Train some runs at other ratios.",
    ),
    Check(
        _several_origins,
        "Column {column} has {count} values, and all rows are fitted together. Losses on other data or with another "
        "tokenizer are not comparable.",
        "To keep one value, pass {option}{each}.",
    ),
    Check(
        _other_flops,
        "flops are {low:.2f} to {high:.2f} times 6 · params_active · tokens. Laws that read sizes and tokens use "
        "6 · params_active · tokens to split a budget and to measure extrapolation.",
    ),
    Check(_similar_names, "Column {column} is not read.", "If it is {name}, pass {option}."),
)
"""Properties of valid tables that a user should know."""


def advice(table: RunTable) -> list[str]:
    """Return the sentences of the checks that apply to a valid table."""
    return [check.said(given) for check in ADVICE for given, _ in check.faults(table)]
