"""Relate the error of a task to the pretraining loss, and test whether sparse models transfer worse.

Two forms are fitted over runs of any size and budget: a bounded sigmoid and a power law. Abnar et al. (2025), Section
4, plot the relation without a formula. The better form is fitted again with ``transfer``: a model of sparsity S has the
error of a dense model whose loss is higher by transfer·log(1/(1-S)). If the interval of ``transfer`` is above 0,
sparser models have more errors than dense models of the same loss.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from moejax.errors import UserError
from moejax.fit.fit_result import FitResult
from moejax.fit.runs import Runs, runs_from
from moejax.fit.search.fit_law import fit_law
from moejax.fit.selection.metrics import predict
from moejax.fit.uncertainty.covariance import with_uncertainty
from moejax.interval import Interval
from moejax.json_text import fields
from moejax.laws.design import design_from
from moejax.laws.formula import formula
from moejax.laws.formula_law import FormulaLaw, formula_law
from moejax.laws.scores.accuracy_from_loss import AccuracyFromLoss
from moejax.wording import told

LINKS: Mapping[str, str] = {
    "sigmoid": f"error = ceiling*s, {formula(AccuracyFromLoss).text.partition(', with ')[2]}",
    "power": "error = scale*L^exponent",
}
"""Forms of a task's error as a function of L, keyed by name. L is the loss, or with ``transfer`` the equivalent loss of
a dense model. The law ``accuracy_from_loss`` has the same sigmoid.
"""
_LOSS = {False: "L = loss", True: "L = loss - transfer*log(1 - sparsity)"}
"""Definitions of L, keyed by whether ``transfer`` is fitted. With transfer, L is the loss of a dense model that has the
same error as the sparse model.
"""
_SIGNS = dict.fromkeys(("ceiling", "k", "L_0", "scale", "exponent"), "+") | {"transfer": "any"}
READS = ("loss", "sparsity")

DataFrame = Any


def link_law(link: str, *, transfer: bool = False) -> type[FormulaLaw]:
    """Return the formula law of a link."""
    text = f"{LINKS[link]}, {_LOSS[transfer]}"
    known = {name: name for name in ("error", *READS)}
    suggested = dict(formula_law(text, known=known).formula.signs)
    return formula_law(text, signs={name: _SIGNS[name] for name in suggested}, known=known)


@dataclass(frozen=True, kw_only=True)
class ScoreLink:
    """A task's error as a function of the loss, in the form with the lower AICc."""

    task: str
    link: str
    fit: FitResult | None
    """Fit of the form; None if no form could be fitted."""
    transfer: Interval | None
    """Equivalent increase of the loss in nats per e-fold of 1/(1-S), with its interval; None if not determined."""
    left_out: tuple[str, ...]
    """Sentences on forms that were not fitted and runs that were not read, with reasons."""

    @property
    def verdict(self) -> str:
        """Conclusion on sparse models at equal loss."""
        if self.transfer is None:
            return "not determined"
        if self.transfer.low > 0:
            return "sparser models err more"
        return "sparser models err less" if self.transfer.high < 0 else "no difference seen"

    def to_json(self) -> dict[str, Any]:
        """Return the fields and the verdict as plain data, keyed by name."""
        return {**fields(self), "verdict": self.verdict}


def with_fitted(table: DataFrame, links: Sequence[ScoreLink]) -> DataFrame:
    """Return a table of scores with ``fitted_error``, the error that each task's form predicts from the run's loss."""
    fitted = np.full(len(table), np.nan)
    for one in links:
        own = np.flatnonzero((table["task"] == one.task).to_numpy())
        if one.fit is not None and len(own):
            losses = table["loss"].to_numpy(np.float64)[own]
            fitted[own] = predict(one.fit.law, _runs(losses, np.zeros_like(losses), np.ones_like(losses)), "error")
    return table.assign(fitted_error=fitted)


def score_links(
    table: DataFrame, links: Sequence[str] = tuple(LINKS), *, seed: int = 0, level: float = 0.9
) -> list[ScoreLink]:
    """Fit every task of a table with columns ``task``, ``loss``, ``error`` and, for transfer, ``sparsity``.

    Runs with the same ``group`` (or ``model``, if there is no ``group``) are one group, and intervals are by group. The
    form with the lower AICc is kept.
    """
    every = []
    for task in dict.fromkeys(table["task"]):
        every.append(_of_task(str(task), table[table["task"] == task], links, seed, level))
    return every


def _of_task(task: str, table: DataFrame, links: Sequence[str], seed: int, level: float) -> ScoreLink:
    left_out = []
    every = len(table)
    table = table[np.isfinite(table["loss"].astype(float)) & (table["error"].astype(float) > 0)]
    if len(table) < every:
        left_out.append(f"{every - len(table)} of {every} scores have no finite loss or no error above 0.")
    if not len(table):
        return ScoreLink(task=task, link="", fit=None, transfer=None, left_out=tuple(left_out))
    label = next((name for name in ("group", "model") if name in table), None)
    sparsity = table["sparsity"].to_numpy(np.float64) if "sparsity" in table else np.zeros(len(table))
    runs = _runs(
        table["loss"].to_numpy(np.float64),
        sparsity,
        table["error"].to_numpy(np.float64),
        None if label is None else list(table[label]),
    )
    fits: dict[str, FitResult] = {}
    for link in links:
        try:
            fits[link] = _fitted(link_law(link), runs, seed)
        except UserError as error:
            left_out.append(f"The {link} was not fitted: {told(error)}")
    if not fits:
        return ScoreLink(task=task, link="", fit=None, transfer=None, left_out=tuple(left_out))
    # AICc is infinite if there are too few runs for the number of coefficients.
    best = min(fits, key=lambda link: (fits[link].aicc, len(fits[link].coefficients)))
    transfer = None
    if len({*np.round(sparsity, 9)}) > 1:
        try:
            transfer = _transfer(_fitted(link_law(best, transfer=True), runs, seed), level)
        except UserError as error:
            left_out.append(f"Transfer was not fitted: {told(error)}")
    return ScoreLink(task=task, link=best, fit=fits[best], transfer=transfer, left_out=tuple(left_out))


def _fitted(law: type[FormulaLaw], runs: Runs, seed: int) -> FitResult:
    return with_uncertainty(fit_law(law, runs, seed=seed), runs)


def _transfer(fit: FitResult, level: float) -> Interval | None:
    if not fit.has_covariance:
        return None
    one = fit.conf_int(level).loc["transfer"]
    if not math.isfinite(one["std_err"]):
        return None
    return Interval(
        low=float(one["low"]),
        middle=float(one["value"]),
        high=float(one["high"]),
        deviation=float(one["std_err"]),
    )


def _runs(losses: np.ndarray, sparsity: np.ndarray, errors: np.ndarray, group: list[Any] | None = None) -> Runs:
    # A Design derives sparsity from the number of experts; one expert is active here.
    design = design_from({"loss": losses, "num_experts": 1 / (1 - sparsity), "top_k": np.ones_like(sparsity)})
    return runs_from(design, errors, group=group if group is not None else range(len(errors)), output="error")
