"""Check the units of counts: implausible sizes, and FLOPs that contradict sizes and tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from moejax.errors import UserError
from moejax.fit.tables.column_names import as_factor, map_option, said_unit, written
from moejax.fit.tables.table import rows_in_words
from moejax.laws.dense.chinchilla import FLOPS_PER_PARAM_AND_TOKEN
from moejax.laws.design import COUNTED, POSSIBLE, THOUSAND, WORDS, kind_of
from moejax.quantities import format
from moejax.run_table import DataFrame
from moejax.wording import argument, lies, listed

Values = Float[np.ndarray, " rows"]

USUAL = {"params": (1e6, 1e13), "tokens": (1e8, 1e15), "flops": (1e15, 1e27)}
"""Usual smallest and largest value of each kind of size in fitted runs; a guessed unit must bring the numbers between
them."""

THOUSANDS = {1e3: "thousands", 1e6: "millions", 1e9: "billions", 1e12: "trillions"}
FACTORS = {
    "params": {factor: word for factor, word in THOUSANDS.items() if factor < 1e12},
    "tokens": THOUSANDS,
    "flops": {1e18: "exaFLOPs", 8.64e19: "petaFLOP/s-days", 1e15: "petaFLOPs", 1e12: "teraFLOPs", 1e9: "gigaFLOPs"},
}
"""Units that tables use without naming them, by their factor to plain counts."""


@dataclass(frozen=True)
class Source:
    """The source of a moejax column."""

    expression: str
    """Expression, written so that it can be multiplied."""
    unit: float | None
    """Factor of the unit in the column's name; None without a unit or if several columns are read."""


def check_units(
    frame: DataFrame, read_from: Mapping[str, str], named: str, inputs: Sequence[str] = (), *, trusted_by: str = ""
) -> tuple[dict[str, str], list[str]]:
    """Return the faults of columns with wrong units, keyed by column, and notes on wrong units that are accepted.

    FLOPs that contradict sizes and tokens always raise an error, because any of the three may be wrong.

    Args:
      read_from: expressions for columns that are computed or that the file has under another name.
      inputs: columns that the law reads; by default, all columns.
      trusted_by: file or option that accepts wrong units; empty if they are errors.

    Raises:
      UserError: a column that the law reads has wrong units, and they are not accepted.
    """
    values = {name: frame[name].to_numpy(np.float64) for name in COUNTED if name in frame.columns}
    values = {name: column for name, column in values.items() if np.isfinite(column).all() and (column > 0).all()}
    sources = {}
    for name in values:
        expression, source = as_factor(read_from.get(name, name), map(str, frame.columns))
        sources[name] = Source(expression, None if source is None else said_unit(source))
    wrong = {}
    for name, column in values.items():
        low, high = POSSIBLE[kind_of(name)]
        rows = (column < low) | (column > high)
        if rows.any():
            wrong[name] = _out_of_range(name, column, rows, frame.index, values, sources)
    contradicted = {} if wrong else _contradicted(values, frame.index, sources)
    wrong |= contradicted or ({} if wrong else _per_param(values, sources))
    if trusted_by:
        return {}, [f"Units accepted by {trusted_by}: {why}." for why in wrong.values()]
    if reasons := [why for name, why in wrong.items() if name in (inputs or wrong) or name in contradicted]:
        raise UserError(
            f"{named}: {'; '.join(reasons)}. If the numbers are correct, pass {argument('trust_units', True)}."
        )
    return wrong, []


def _out_of_range(
    name: str,
    column: Values,
    wrong: Bool[np.ndarray, " rows"],
    index: Any,
    values: Mapping[str, Values],
    sources: Mapping[str, Source],
) -> str:
    kind = kind_of(name)
    low, high = POSSIBLE[kind]
    few = column < low
    some_only = wrong.any() and not wrong.all() and _apart(column, wrong)
    shown = column[wrong] if some_only else column
    where = f"{int(wrong.sum())} of {len(column)} rows ({rows_in_words(index[wrong])})" if some_only else "all rows"
    limit = f"at least {format(low)}" if few.any() else f"at most {format(high)}"
    said = f"{lies(name, shown.min(), shown.max(), where)}, but a run has {limit} {WORDS[kind]}"
    factors = _factors(name, shown, wrong if some_only else None, values, sources) if few.any() else []
    if not factors:
        return f"{said}; give plain {WORDS[kind]} ({map_option(name, '… * FACTOR')})"
    units = listed([_word(kind, factor) for factor in factors], "or")
    named = f", as its name {sources[name].expression} suggests" if factors == [sources[name].unit] else ""
    remedies = [_remedy(name, factor, sources, low if some_only else None) for factor in factors]
    return f"{said}. Are these {units}{named}? Pass {', or '.join(remedies)}"


def _word(kind: str, factor: float) -> str:
    return {**THOUSANDS, **FACTORS[kind]}[factor]


def _apart(column: Values, wrong: Bool[np.ndarray, " rows"]) -> bool:
    """Return whether the wrong rows have a different unit, and are not just the smallest values of a column."""
    rest = column[~wrong]
    gap = min(abs(np.log10(rest.min() / column[wrong].max())), abs(np.log10(column[wrong].min() / rest.max())))
    return bool(gap > THOUSAND / 2)


def _factors(
    name: str,
    shown: Float[np.ndarray, " shown"],
    rows: Bool[np.ndarray, " rows"] | None,
    values: Mapping[str, Values],
    sources: Mapping[str, Source],
) -> list[float]:
    """Return candidate units, most likely first; a single unit if the column's name or 6·N·D determines it."""
    kind, unit = kind_of(name), sources[name].unit
    if unit is not None and _within(POSSIBLE[kind], shown * unit):
        return [unit]
    known = {n: v if rows is None else v[rows] for n, v in values.items()}
    if name in ("params_active", "tokens", "flops") and {"params_active", "tokens", "flops"} <= set(known):
        others_hold = all(
            _within(POSSIBLE[kind_of(n)], known[n]) for n in ("params_active", "tokens", "flops") if n != name
        )
        wanted = float(np.median(_counted(known)))
        wanted = 1 / wanted if name == "flops" else wanted
        near = min(FACTORS[kind], key=lambda factor: abs(np.log10(factor / wanted)))
        if others_hold and abs(np.log10(near / wanted)) < THOUSAND / 2:
            return [near]
    fits = _usual(kind, shown)
    if kind == "flops":
        middle = float(np.log10(np.prod(USUAL[kind])) / 2)
        return sorted(fits, key=lambda factor: abs(np.log10(np.median(shown) * factor) - middle))
    off = {factor: _off_balance(name, shown * factor, known, sources) for factor in fits}
    return [
        factor for factor in sorted(off, key=lambda f: (off[f], f)) if off[factor] <= max(MOST_OFF, min(off.values()))
    ]


def _within(limits: tuple[float, float], column: Float[np.ndarray, " any"]) -> bool:
    return bool(limits[0] <= column.min() and column.max() <= limits[1])


def _usual(kind: str, column: Float[np.ndarray, " any"]) -> list[float]:
    """Return the units that bring numbers into the usual range, whose lower limit is extended by a factor of 10."""
    low, high = USUAL[kind]
    return [factor for factor in FACTORS[kind] if _within((low / 10, high), column * factor)]


def _off_balance(
    name: str,
    column: Float[np.ndarray, " any"],
    known: Mapping[str, Float[np.ndarray, " any"]],
    sources: Mapping[str, Source],
) -> float:
    """Return the distance in decades between a column's tokens per parameter and the balanced ratio; 0 if there is no
    other column to compare with.

    If the other column's numbers are implausible too, its best matching unit is used.
    """
    others = ("tokens",) if kind_of(name) == "params" else ("params_active", "params_total")
    other = next((each for each in others if each in known), None)
    if other is None:
        return 0.0
    kind, unit = kind_of(other), sources[other].unit
    if _within(POSSIBLE[kind], known[other]):
        factors = [1.0]
    else:
        factors = [unit] if unit is not None else _usual(kind, known[other])
    per_param = [np.median(column / (factor * known[other])) for factor in factors]
    per_param = per_param if kind == "params" else [1 / ratio for ratio in per_param]
    # Units are compared by this number, so rounding errors must not decide between equal units.
    return min((round(abs(float(np.log10(ratio / BALANCED_PER_PARAM))), 6) for ratio in per_param), default=0.0)


def _remedy(name: str, factor: float, sources: Mapping[str, Source], below: float | None) -> str:
    source, times = sources[name].expression, written(factor)
    if below is None:
        return map_option(name, f"{source} * {times}")
    return map_option(name, f"where({source} < {below:g}, {source} * {times}, {source})")


def _counted(values: Mapping[str, Values]) -> Values:
    return values["flops"] / (FLOPS_PER_PARAM_AND_TOKEN * values["params_active"] * values["tokens"])


def _contradicted(values: Mapping[str, Values], index: Any, sources: Mapping[str, Source]) -> dict[str, str]:
    """Return a message, keyed by ``flops``, if some rows' FLOPs are nearer to 6·N·D times a power of 1,000 than to
    6·N·D. N are active parameters and D tokens."""
    if not {"params_active", "tokens", "flops"} <= set(values):
        return {}
    ratio = _counted(values)
    powers = np.rint(np.log10(ratio) / THOUSAND).astype(int)
    wrong = powers != 0
    if not wrong.any():
        return {}
    many = "all" if wrong.all() else f"{int(wrong.sum())} of {len(wrong)}"
    which = "" if wrong.all() else f" ({rows_in_words(index[wrong])})"
    said = (
        f"flops are {np.median(ratio[wrong]):.3g} times 6 · params_active · tokens in {many} rows{which}: one of the "
        f"three is in another unit"
    )
    if wrong.all() and len(set(powers)) == 1:
        factor = 10.0 ** (THOUSAND * int(powers[0]))
        both = [
            one
            for one in _together("params_active", values, sources)
            if len(one) > 1 and np.prod([*one.values()]) == factor
        ]
        if both:
            units = " and ".join(
                f"{name} in {_word(kind_of(name), f)}" for name, f in _every_size(both[0], values).items()
            )
            maps = " ".join(_remedy(name, f, sources, None) for name, f in _every_size(both[0], values).items())
            return {"flops": f"{said.rpartition(':')[0]}, as with {units}. Pass {maps}"}
        by = {"tokens": factor, "params_active": factor, "flops": 1 / factor}
        by = {name: f for name, f in by.items() if sources[name].unit == f} or by
        said += f". Write {', or '.join(_remedy(name, f, sources, None) for name, f in by.items())}"
    return {"flops": said}


PER_PARAM = (1e-3, 1e6)
"""Possible tokens per parameter of a table's median run, from first checkpoints to heavily overtrained models."""
USUAL_PER_PARAM = (0.1, 1e4)
"""Range into which guessed units must bring the tokens per parameter."""
BALANCED_PER_PARAM = 20.0
MOST_OFF = 2.0
"""Decades from the balanced ratio within which a unit remains plausible even if another unit is more balanced."""


def _per_param(values: Mapping[str, Values], sources: Mapping[str, Source]) -> dict[str, str]:
    """Return messages, keyed by column, if sizes and tokens are possible separately but not together: a wrong ratio, or
    both tiny.

    Numbers in millions may look like plain counts of toy models. FLOPs distinguish the two cases; without FLOPs the
    user must choose.
    """
    size = next((name for name in ("params_active", "params_total") if name in values), None)
    if size is None or "tokens" not in values:
        return {}
    ratio = float(np.median(values["tokens"] / values[size]))
    tiny = all(values[name].max() < USUAL[kind_of(name)][0] for name in (size, "tokens")) and "flops" not in values
    if PER_PARAM[0] <= ratio <= PER_PARAM[1] and not tiny:
        return {}
    likely = next(iter(_together(size, values, sources)), None)
    if likely is None:
        return {} if tiny else {"tokens": f"tokens are {ratio:.3g} times {size} at the median, which is not plausible"}
    why = "toy models, or another unit" if tiny else f"{ratio:.3g} tokens per parameter at the median is not plausible"
    seen = " and ".join(lies(name, values[name].min(), values[name].max()) for name in (size, "tokens")) + f": {why}"
    return {
        name: f"{seen}. Are {name} {_word(kind_of(name), factor)}? Pass {_remedy(name, factor, sources, None)}"
        if number == 0
        else f"are {name} {_word(kind_of(name), factor)} too? Pass {_remedy(name, factor, sources, None)}"
        for number, (name, factor) in enumerate(_every_size(likely, values).items())
    }


def _every_size(units: Mapping[str, float], values: Mapping[str, Values]) -> dict[str, float]:
    """Return units keyed by column. All size columns get the unit of the given one, because a table writes all sizes in
    one unit."""
    of_sizes = [factor for name, factor in units.items() if name != "tokens"]
    sizes = {name: factor for name in values if kind_of(name) == "params" for factor in of_sizes}
    return {**sizes, **{name: factor for name, factor in units.items() if name == "tokens"}}


def _together(size: str, values: Mapping[str, Values], sources: Mapping[str, Source]) -> list[dict[str, float]]:
    """Return combinations of units, keyed by column, that bring sizes, tokens and their ratio to usual values.

    Combinations with the fewest units and the most balanced ratio are first. If a column's name gives a unit, only this
    unit is tried.
    """
    choices = {
        name: (1.0, *FACTORS[kind_of(name)]) if sources[name].unit is None else (sources[name].unit,)
        for name in (size, "tokens")
    }
    together = []
    for by_size in choices[size]:
        for by_tokens in choices["tokens"]:
            moved = {size: values[size] * by_size, "tokens": values["tokens"] * by_tokens}
            usual = all(_within(USUAL[kind_of(name)], column) for name, column in moved.items())
            ratio = float(np.median(moved["tokens"] / moved[size]))
            changed = {name: by for name, by in ((size, by_size), ("tokens", by_tokens)) if by != 1}
            if changed and usual and USUAL_PER_PARAM[0] <= ratio <= USUAL_PER_PARAM[1]:
                # Of equally balanced combinations, equal units for both come first.
                order = (len(changed), abs(np.log10(ratio / BALANCED_PER_PARAM)), by_size != by_tokens, by_size)
                together.append((order, changed))
    return [changed for _, changed in sorted(together, key=lambda one: one[0])]


def gaps(frame: DataFrame, names: Sequence[str]) -> tuple[str, ...]:
    """Return notes on columns with a gap of a factor of 1,000 or more, which may be due to two units."""
    notes = []
    for name in names:
        if name not in COUNTED or name == "flops":
            continue
        levels = np.unique(frame[name].to_numpy(np.float64))
        steps = levels[1:] / levels[:-1]
        if len(steps) and steps.max() >= 10**THOUSAND:
            at = int(np.argmax(steps))
            notes.append(
                f"{name} has no value between {levels[at]:.4g} and {levels[at + 1]:.4g}, a factor of {steps[at]:.3g}; "
                f"check that all rows are in one unit."
            )
    return tuple(notes)


FEW_PER_PARAM = 1.0
"""Tokens per parameter of the median run below which sizes and tokens may be swapped."""


def swapped(frame: DataFrame, inputs: Sequence[str], read_from: Mapping[str, str]) -> tuple[str, ...]:
    """Return notes on pairs of columns that may be swapped.

    Args:
      inputs: inputs of the law.
      read_from: as in ``check_units``.
    """

    def if_they_are(one: str, other: str) -> str:
        first, second = (read_from.get(name, name) for name in (one, other))
        return f"If the two columns are swapped, pass {argument('mapping', {one: second, other: first})}."

    notes = []
    size = next((name for name in ("params_active", "params_total") if name in inputs), None)
    if size is not None and "tokens" in inputs:
        ratio = float(np.median(frame["tokens"] / frame[size]))
        if ratio < FEW_PER_PARAM:
            notes.append(
                f"The median run has {ratio:.2g} tokens per parameter ({size}); 1 to 10,000 are usual. "
                + if_they_are(size, "tokens")
            )
    if {"tokens", "unique_tokens"} <= {*inputs} and (frame["tokens"] <= frame["unique_tokens"]).all():
        more = (frame["tokens"] < frame["unique_tokens"]).any()
        notes.append(
            "No row has more tokens than unique_tokens, so the effect of repeated tokens cannot be determined."
            + f" {if_they_are('tokens', 'unique_tokens')}" * bool(more)
        )
    return tuple(notes)
