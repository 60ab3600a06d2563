"""Every law that a table allows, on the same runs, under the same penalty, tested on the same held-out runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from moejax.errors import UserError
from moejax.fit.choice import Compared, by_error
from moejax.fit.comparison import Comparison
from moejax.fit.fit_law import Progress, fit_law
from moejax.fit.holdout import Split, beyond, hold_out
from moejax.fit.objective import Penalty
from moejax.fit.runs import Runs
from moejax.wording import told


def compare(
    laws: Mapping[str, Any],
    runs: Runs,
    splits: Iterable[Split],
    *,
    penalty: Penalty | None = None,
    fixed: Mapping[str, float] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Comparison:
    """Fit every law to all runs and to what each split leaves.

    Args:
      fixed: coefficients that are given, to every law that has them.

    Raises:
      UserError: nothing is held out, a given coefficient is in no law, or no law can be fitted to these runs; the
        sentence has every law's reason.
    """
    splits, fixed = list(splits), dict(fixed or {})
    if not splits:
        raise UserError("Laws are compared by held-out runs; give at least one split.")
    names = {name: {f.name for f in fields(law)} for name, law in laws.items()}
    if unknown := [name for name in fixed if not any(name in known for known in names.values())]:
        raise UserError(f"None of the laws has a coefficient {unknown[0]}; they have {_listed(names.values())}.")
    found, left_out = [], {}
    for number, (name, law) in enumerate(laws.items()):
        if progress:
            progress("laws", number, len(laws))
        given = {key: value for key, value in fixed.items() if key in names[name]}
        try:
            fit = fit_law(law, runs, penalty=penalty, fixed=given, seed=seed)
            held_out = hold_out(law, runs, splits, penalty=penalty, fixed=given, seed=seed)
        except ValueError as error:
            left_out[name] = told(error)
            continue
        found.append(Compared(name=name, fit=fit, held_out=tuple(held_out)))
    if not found:
        raise UserError("No law can be fitted: " + " ".join(f"{name}: {why}" for name, why in left_out.items()))
    return Comparison(
        laws=tuple(by_error(found)),
        left_out=left_out,
        splits=tuple(splits),
        beyond=beyond(runs, splits),
        fixed=fixed,
        seed=seed,
    )


def of_the_loss(laws: Mapping[str, type], names: Sequence[str] = ()) -> dict[str, type]:
    """The laws that predict a loss, or those that are named."""
    return {name: law for name, law in laws.items() if (name in names if names else "loss" in law.outputs)}


def _listed(names: Iterable[Iterable[str]]) -> str:
    return ", ".join(dict.fromkeys(name for known in names for name in known))
