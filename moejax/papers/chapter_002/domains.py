"""Fit a law per domain of a data mixture, aggregate them by the domains' shares, and compare with a single law.

Book chapter "MoE Scaling Laws" (chapter 002), Engineering Reality, 3: "Production teams carry a separate beta_i per
domain and aggregate; treating beta as a single number is a 0.02-nat mispredict."
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from moejax.errors import UserError
from moejax.fit.fit_result import FitResult
from moejax.fit.runs import Runs
from moejax.fit.search.fit_law import Progress, fit_law
from moejax.fit.selection.holdout import Split
from moejax.fit.selection.metrics import Metrics, errors, predict
from moejax.fit.uncertainty.covariance import with_uncertainty
from moejax.json_text import finite
from moejax.laws.law import Law
from moejax.result import Column, Result, Table
from moejax.run_table import DataFrame, numbers
from moejax.wording import counted, listed, some

if TYPE_CHECKING:
    import pandas as pd

Each = Float[np.ndarray, " runs"]

LOSS, SHARE = "loss_", "share_"
"""Prefixes of the columns for a domain's loss and its share of the validation targets."""
MISPREDICTED_NATS = 0.02
"""Error due to a single beta for all domains, according to the chapter, in nats."""
AGGREGATE = "aggregate"
"""Name of the aggregate's law, next to the domains' names."""
ONE_LAW, BY_DOMAIN = "aggregate, one law", "aggregate, law per domain"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Domain:
    """Loss and share of one domain, per run."""

    loss: Each
    """Loss in nats per token of the domain."""
    share: Each
    """Share of the validation targets; the shares of all domains sum to 1. A domain that is only evaluated separately
    has share 0."""


@dataclass(frozen=True, kw_only=True)
class DomainLaws:
    """One law for the aggregate and one per domain, fitted to the runs that are not held out."""

    runs: Runs
    """Runs with the aggregate as their loss."""
    held_out: Split
    domains: Mapping[str, Domain]
    single: FitResult
    fits: Mapping[str, FitResult]
    """Fits, keyed by domain."""
    notes: tuple[str, ...] = ()

    @property
    def aggregated(self) -> Each:
        """Aggregate of the domain laws' predictions for every run."""
        return sum(
            (self.domains[name].share * predict(fit.law, self.runs) for name, fit in self.fits.items()),
            np.zeros(len(self.runs)),
        )

    @property
    def mispredicted(self) -> float:
        """Largest difference between the single law and the aggregated domain laws at a held-out run, in nats per
        token."""
        gap = np.abs(predict(self.single.law, self.runs) - self.aggregated)
        return float(gap[self._held_out].max())

    @property
    def _held_out(self) -> np.ndarray:
        return self.held_out.held_out & (self.runs.weight > 0)

    def errors(self) -> dict[str, dict[str, Metrics]]:
        """Return errors, keyed by method (single law, aggregate of domain laws), then by ``fitted`` or ``held_out``."""
        kept = self.runs.weight > 0
        parts = {"fitted": kept & ~self.held_out.held_out, "held_out": self._held_out}
        predicted = {ONE_LAW: predict(self.single.law, self.runs), BY_DOMAIN: self.aggregated}
        return {
            name: {part: errors(values[own], self.runs.loss[own], self.runs.weight[own]) for part, own in parts.items()}
            for name, values in predicted.items()
        }

    def all_fits(self) -> dict[str, FitResult]:
        """Return all fits, keyed by name: the aggregate's fit and the domains' fits."""
        return {AGGREGATE: self.single, **self.fits}

    def table(self) -> pd.DataFrame:
        """Return a table of measured and predicted loss per run and domain, and of the predicted loss due to finite
        tokens."""
        import pandas as pd

        role = np.where(self.held_out.held_out, "held out", "fitted")
        one, far = self.runs.design, dataclasses.replace(self.runs.design, tokens=np.full(len(self.runs), np.inf))
        endless = dataclasses.replace(self.runs, design=far)
        parts = []
        for name, fit in self.fits.items():
            predicted = predict(fit.law, self.runs)
            with np.errstate(invalid="ignore"):
                left = predicted - predict(fit.law, endless)
            parts.append((name, self.domains[name].loss, predicted, left))
        nothing = np.full(len(self.runs), np.nan)
        parts += [
            (ONE_LAW, self.runs.loss, predict(self.single.law, self.runs), nothing),
            (BY_DOMAIN, self.runs.loss, self.aggregated, nothing),
        ]
        every = [
            pd.DataFrame(
                {
                    "domain": name,
                    "role": role,
                    "tokens": one.tokens,
                    "measured": measured,
                    "predicted": predicted,
                    "data_term": left,
                }
            )
            for name, measured, predicted, left in parts
        ]
        return pd.concat(every, ignore_index=True)

    def summary(self) -> Result:
        """Return the coefficients by domain, the errors of both methods, and the difference of their predictions."""
        columns = (
            Column("aggregate predicted by"),
            Column("MAE fitted", ".5f"),
            Column("MAE held out", ".5f"),
            Column("RMSE held out", ".5f"),
        )
        rows = [
            [name, one["fitted"].mae, one["held_out"].mae, one["held_out"].rmse] for name, one in self.errors().items()
        ]
        note = (
            f"On the held-out runs ({self.held_out.name}), the single law differs from the aggregated domain laws by "
            f"at most {self.mispredicted:.4f} nats; chapter 002 states {MISPREDICTED_NATS} nats."
        )
        return Result(
            title=f"A law per domain: {listed([*self.fits])}",
            warnings=tuple(f"{name}: {said}" for name, fit in self.all_fits().items() for said in fit.warnings),
            tables=[self._coefficients(), Table("Aggregate", columns, rows, [note], key="aggregate")],
            notes=self.notes,
            data=self.to_json(),
        )

    def _coefficients(self) -> Table:
        law = self.single.law
        symbols = {f.name: f.metadata["symbol"] for f in dataclasses.fields(law) if not f.metadata.get("static")}
        symbol = symbols.get(EXPONENT)
        ends = (Column(f"{symbol} low", ".4g"), Column(f"{symbol} high", ".4g")) if symbol else ()
        columns = (Column("domain"), Column("share", ".3f"), *(Column(one, ".4g") for one in symbols.values()), *ends)
        rows = []
        for name, fit in self.all_fits().items():
            share = float(self.domains[name].share.mean()) if name in self.domains else 1.0
            coefficients = {row.name: row for row in fit.coefficient_rows(0.9)}
            interval = (coefficients[EXPONENT].low, coefficients[EXPONENT].high) if symbol else ()
            rows.append([name, share, *(coefficients[one].value for one in symbols), *interval])
        note = f"{symbol}: 90 % intervals by standard errors." if symbol else ""
        return Table("Coefficients by domain", columns, rows, [note] if note else [], key="domains")

    def to_json(self) -> dict[str, Any]:
        """Return plain data for JSON, keyed by name."""
        return {
            "recipe": "domains",
            "held_out": self.held_out.name,
            "shares": {name: float(domain.share.mean()) for name, domain in self.domains.items()},
            "fits": {name: fit.to_json() for name, fit in self.all_fits().items()},
            "errors": finite(self.errors()),
            "mispredicted_nats": self.mispredicted,
        }


EXPONENT = "tokens_exponent"
"""Field of the coefficient beta."""


def domains_of(frame: DataFrame, shares: Mapping[str, float] | None = None) -> dict[str, Domain]:
    """Return the domains of a table, keyed by name.

    Losses are the columns ``loss_NAME``. Shares are those of ``shares``, or else the columns ``share_NAME``.

    Raises:
      UserError: there are fewer than two domains, a share has no loss column, or a number is missing or invalid.
    """
    losses = [str(name).removeprefix(LOSS) for name in frame.columns if str(name).startswith(LOSS)]
    names = [*shares] if shares else [name for name in losses if f"{SHARE}{name}" in frame.columns]
    if missing := [name for name in names if name not in losses]:
        raise UserError(
            f"The table has no column {LOSS}{missing[0]} for the domain that --shares names; it has "
            f"{some([LOSS + name for name in losses], most=10) if losses else 'no column for a domain'}. Correct "
            f"--shares, or add the column."
        )
    if len(names) < 2:
        has = f"the table has {some([LOSS + name for name in losses], most=10)}" if losses else "the table has neither"
        raise UserError(
            f"A law per domain needs columns {LOSS}NAME and {SHARE}NAME for at least two domains, but {has}. Train on "
            f"a mixture (recipe.data.mixture), or pass the shares: --shares NAME=SHARE,…"
        )
    if odd := [name for name in names if not _NAME.fullmatch(name)]:
        raise UserError(
            f"The domain name {odd[0]!r} is invalid: a name may only have letters, digits, '.', '_' and '-', because "
            f"it names a file. Rename the column with --map."
        )
    held = {
        name: np.full(len(frame), float(shares[name])) if shares else _column(frame, f"{SHARE}{name}", or_zero=True)
        for name in names
    }
    total = sum(held.values(), np.zeros(len(frame)))
    if len(empty := np.flatnonzero(total == 0)):
        raise UserError(
            f"The shares of {listed(names)} are all 0 in row {empty[0] + 1}; exclude such rows with --where, or pass "
            f"--shares NAME=SHARE,…"
        )
    return {name: Domain(loss=_column(frame, f"{LOSS}{name}"), share=held[name] / total) for name in names}


def _column(frame: DataFrame, name: str, *, or_zero: bool = False) -> Each:
    values = numbers(frame[name]).to_numpy(np.float64)
    wrong = np.flatnonzero(~(np.isfinite(values) & ((values >= 0) if or_zero else (values > 0))))
    if len(wrong):
        rule = "0 or more" if or_zero else "above 0"
        raise UserError(
            f"Column {name} must be {rule}, but is {values[wrong[0]]:g} in row {wrong[0] + 1} "
            f"({counted(len(wrong), 'row')} in all); exclude such rows with --where."
        )
    return values


OFF = 1e-3
"""Difference in nats between the aggregate and the column loss up to which no note is printed, because sums are
rounded."""


def domain_laws(
    law: Law | type,
    runs: Runs,
    held_out: Split,
    domains: Mapping[str, Domain],
    *,
    dropped: tuple[str, ...] = (),
    seed: int = 0,
    progress: Progress | None = None,
) -> DomainLaws:
    """Fit a law to the aggregate, the domains' losses weighted by their shares, and to the losses of each domain.

    Args:
      domains: losses and shares of the same runs.
      dropped: messages about omitted table rows, with reasons.

    Raises:
      UserError: the law cannot be fitted to the runs that are not held out.
    """
    aggregate = sum((one.share * one.loss for one in domains.values()), np.zeros(len(runs)))
    together = dataclasses.replace(runs, loss=aggregate)

    def fitted(loss: Each) -> FitResult:
        kept = dataclasses.replace(runs, loss=loss).only(~held_out.held_out)
        return with_uncertainty(fit_law(law, kept, seed=seed, progress=progress), kept, dropped=dropped)

    return DomainLaws(
        runs=together,
        held_out=held_out,
        domains=dict(domains),
        single=fitted(aggregate),
        fits={name: fitted(one.loss) for name, one in domains.items()},
        notes=_beside_the_loss(aggregate, runs, domains),
    )


def _beside_the_loss(aggregate: Each, runs: Runs, domains: Mapping[str, Domain]) -> tuple[str, ...]:
    """Return a note if the aggregate differs from the column loss, because of other shares or because no shares give
    the loss."""
    off = np.where(runs.weight > 0, np.abs(aggregate - runs.loss), 0.0)
    if off.max() <= OFF:
        return ()
    said = f"The aggregate by these shares differs from the column loss by up to {off.max():.4f} nats"
    losses = np.stack([one.loss for one in domains.values()])
    outside = np.maximum(losses.min(0) - runs.loss, runs.loss - losses.max(0))
    none = (runs.weight > 0) & (outside > OFF)
    if not none.any():
        return (f"{said}: the column uses other shares.",)
    first = int(none.argmax())
    ends = f"{losses[:, first].min():.4f} to {losses[:, first].max():.4f}"
    return (
        f"{said}. No shares give the loss of {runs.called(none)} ({runs.loss[first]:.4f}) from these domains' losses "
        f"({ends}): the losses are from other text, or a domain is missing.",
    )
