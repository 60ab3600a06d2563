"""Check whether a scaling law is good enough to launch a large training run, and give a verdict.

Book chapter "MoE Scaling Laws" (chapter 002), "How a frontier team validates a scaling-law prediction before launch".
Its "two orders of magnitude in activated count and G" is required of both. In another reading only the active
parameters must span it, and G must only vary enough to determine its exponent. The next check covers that reading, and
the verdict mentions it if G spans less. "Re-fit a single correction term from one or two 16 B-activated runs" (Listing
2, observation 3) is the refit of one coefficient to the held-out runs.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from moejax.errors import UserError
from moejax.fit.fit_result import FitResult
from moejax.fit.runs import Runs
from moejax.fit.search.fit_law import Progress, fit_law
from moejax.fit.search.objective import Squared, outputs
from moejax.fit.search.starts import WarmStart
from moejax.fit.selection.holdout import Split
from moejax.fit.selection.metrics import predict
from moejax.fit.uncertainty.bootstrap import draws_of
from moejax.fit.uncertainty.covariance import with_uncertainty
from moejax.fit.uncertainty.extrapolation import where_decided
from moejax.fit.uncertainty.uncertainty import keeps_sign
from moejax.float64 import float64
from moejax.json_text import finite
from moejax.laws import called
from moejax.laws.design import known
from moejax.laws.law import Law, coefficients
from moejax.result import Column, Result, Table
from moejax.wording import counted, did_you_mean, some

FEWEST_PROXIES = 20
"""Minimum number of groups of runs. Budgets of one model share a random effect and count as one group."""
SPAN = 100.0
"""Two orders of magnitude, in active parameters and in G."""
TOLERANCE_NATS = 0.02
"""Tolerance for the difference of the held-out run's loss from its prediction."""
BLIND_TO_EXPERTS = frozenset({"params_active", "params_embedding", "tokens", "unique_tokens", "flops"})
"""Inputs of dense laws. A law with no other inputs has no G."""


@dataclass(frozen=True, kw_only=True)
class Correction:
    """A coefficient as fitted to the proxies, and as refitted to larger runs with the others held fixed."""

    name: str
    symbol: str
    before: float
    fit: FitResult
    """Fit with the coefficient refitted; the others are held fixed."""
    low: float
    high: float
    """Ends of its 90 % confidence interval; NaN if the proxies give no covariance."""
    miss_before: float
    miss_after: float
    """Predicted minus measured loss of the larger run with the largest error, in nats per token."""

    @property
    def after(self) -> float:
        """The refitted coefficient."""
        return self.fit.coefficients[self.name]

    def to_json(self) -> dict[str, Any]:
        """Return plain data; unknown ends become null."""
        ends = finite({"low": self.low, "high": self.high})
        misses = {"miss_before": self.miss_before, "miss_after": self.miss_after}
        return {"name": self.name, "before": self.before, "after": self.after, **ends, **misses}


def coefficient_named(law: Law | type, name: str) -> str:
    """Return the field of a coefficient, given its name or its symbol.

    Raises:
      UserError: the law has no such coefficient.
    """
    cls = law if isinstance(law, type) else type(law)
    letters = {f.metadata["symbol"]: f.name for f in dataclasses.fields(cls) if not f.metadata.get("static")}
    if name not in (*letters, *letters.values()):
        words = did_you_mean(name, [*letters.values(), *letters])
        raise UserError(f"{called(cls)} has no coefficient {name!r} to refit; {words}")
    return letters.get(name, name)


def correct(proxies: FitResult, larger: Runs, name: str) -> Correction:
    """Refit one coefficient to larger runs by least squares of log loss, with all others fixed at the proxies' values.

    The interval includes the uncertainty of the other coefficients, to first order, and the noise of the larger runs.
    Each group's random effect has the proxies' scatter, because one group does not show its own.

    Args:
      proxies: a fit with its uncertainty.
      name: name or symbol of a coefficient.

    Raises:
      UserError: the law has no such coefficient, or the coefficient does not affect any of the larger runs.
    """
    name = coefficient_named(proxies.law, name)
    larger = larger.where(larger.weight > 0)
    if not np.any(_slopes(proxies.law, larger, name, proxies.output)):
        raise UserError(
            f"{name} changes the loss of none of the {len(larger)} larger runs, so they cannot refit it (an exponent "
            f"of G needs a mixture); refit another coefficient, or hold out other runs."
        )
    held = {other: value for other, value in proxies.coefficients.items() if other != name}
    start = WarmStart((proxies.law,))
    fit = fit_law(proxies.law, larger, penalty=Squared(), starts=start, fixed=held, output=proxies.output)
    fit, (low, high) = _with_uncertainty(proxies, fit, larger, name)
    return Correction(
        name=name,
        symbol=next(f.metadata["symbol"] for f in dataclasses.fields(proxies.law) if f.name == name),
        before=proxies.coefficients[name],
        fit=fit,
        low=low,
        high=high,
        miss_before=worst_miss(proxies, larger),
        miss_after=worst_miss(fit, larger),
    )


def worst_miss(fit: FitResult, runs: Runs) -> float:
    """Return the largest error (predicted minus measured loss, nats per token) among the runs with a
    positive weight."""
    misses = (predict(fit.law, runs, fit.output) - runs.loss)[runs.weight > 0]
    return float(misses[np.argmax(np.abs(misses))])


def _slopes(law: Law, runs: Runs, name: str, output: str) -> np.ndarray:
    """Return the derivative of every run's predicted loss in a coefficient."""
    with float64():
        value = jnp.asarray(getattr(law, name), jnp.float64)
        return np.asarray(jax.jacfwd(lambda one: _predicted(law, name, one, runs, output))(value))


def _predicted(law: Law, name: str, value: jax.Array, runs: Runs, output: str) -> jax.Array:
    return outputs(dataclasses.replace(law, **{name: value}), runs.design, output)


def _with_uncertainty(
    proxies: FitResult, fit: FitResult, larger: Runs, name: str
) -> tuple[FitResult, tuple[float, float]]:
    """Return the refitted law with its uncertainty, and the ends of the coefficient's 90 % interval."""
    known = proxies.uncertainty
    # A few runs and one coefficient do not estimate a scatter.
    fit = dataclasses.replace(fit, noise=proxies.scatter)
    if known is None or not known.axes:
        return fit, (math.nan, math.nan)
    at = fit.coefficients[name]

    def refitted(law: Law, log_loss: jax.Array) -> jax.Array:
        """Take a Newton step from the least misfit; its derivatives are those of the refitted coefficient."""

        def misfit(value: jax.Array) -> jax.Array:
            predicted = _predicted(law, name, value, larger, proxies.output)
            return jnp.sum(larger.weight * (jnp.log(predicted) - log_loss) ** 2)

        return at - jax.grad(misfit)(at) / jax.lax.stop_gradient(jax.hessian(misfit)(at))

    step = jax.jit(refitted)
    with float64():
        exact = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), fit.law)
        log_loss = jnp.log(jnp.asarray(larger.loss, jnp.float64))
        by_law, by_run = jax.grad(step, argnums=(0, 1))(exact, log_loss)
        spread = dataclasses.replace(proxies, law=exact).spread(lambda law: step(law, log_loss))
    slopes, values = (coefficients(jax.tree.map(float, one)) for one in (by_law, exact))
    each = np.asarray(by_run)
    luck = proxies.scatter * math.sqrt(sum(each[larger.group == one].sum() ** 2 for one in np.unique(larger.group)))
    spread = dataclasses.replace(spread, errors=np.hypot(spread.errors, luck))
    low, high = (float(end[0]) for end in spread.ends(0.9, keeps_sign(fit.law)[name]))
    if not math.isfinite(low):
        return fit, (low, high)
    moved = [
        {**axis, name: sum(slopes[c] * values[c] * share for c, share in axis.items()) / at} for axis in known.axes
    ]
    beyond = where_decided(larger)
    ends = {of: (*own, *beyond.get(of, own)) for of, own in known.ranges.items()}
    inherited = dataclasses.replace(
        known,
        ranges={of: (min(every), max(every)) for of, every in ends.items()},
        axes=(*moved, {name: 1.0}),
        deviations=(*known.deviations, luck / abs(at)),
        leverages=(),
        degrees_of_freedom=max(1, known.draw_count - len(values)),
        draw_count=0,
    )
    return dataclasses.replace(fit, uncertainty=inherited), (low, high)


@dataclass(frozen=True, kw_only=True)
class Condition:
    """One condition with its outcome; ``holds`` is None if the table has too little data for it."""

    name: str
    outcome: str
    holds: bool | None


@dataclass(frozen=True, kw_only=True)
class LaunchCheck:
    """The law fitted to the proxies, with the checks for launching on it."""

    fit: FitResult
    """Law fitted to the proxies, with its uncertainty."""
    checks: tuple[Condition, ...]
    correction: Correction | None = None
    """Coefficient refitted to the larger runs, if any."""

    @property
    def best(self) -> FitResult:
        """Law to launch on: the corrected one if a coefficient was refitted."""
        return self.fit if self.correction is None else self.correction.fit

    def fits(self) -> dict[str, FitResult]:
        """Return the law of the proxies, and the corrected law if there is one, by name."""
        return {"proxies": self.fit} | ({} if self.correction is None else {"corrected": self.correction.fit})

    @property
    def go(self) -> bool:
        """True if every check holds."""
        return all(check.holds for check in self.checks)

    def summary(self) -> Result:
        """Return the verdict and its conditions, for readers without knowledge of fitting."""
        words = {True: "holds", False: "FAILS", None: "not checked"}
        rows = [[words[check.holds], check.name, check.outcome] for check in self.checks]
        columns = (Column(""), Column("check", words=True), Column("outcome", words=True))
        return Result(
            title="Launch check: " + ("go" if self.go else "do not launch on this law yet"),
            warnings=self.fit.warnings,
            tables=[Table("", columns, rows, key="launch"), *self._correction()],
            data=self.to_json(),
        )

    def _correction(self) -> list[Table]:
        refit = self.correction
        if refit is None:
            return []
        columns = (
            Column("coefficient"),
            Column("by the proxies", ".4g"),
            Column("refitted", ".4g"),
            Column("low", ".4g"),
            Column("high", ".4g"),
            Column("worst miss before", "+.4f", "nats"),
            Column("after", "+.4f", "nats"),
        )
        name = f"{refit.name} ({refit.symbol})"
        row = [name, refit.before, refit.after, refit.low, refit.high, refit.miss_before, refit.miss_after]
        note = "The other coefficients are those of the proxies; low to high is a 90 % interval of the refitted one."
        return [Table("Correction by the held-out runs", columns, [row], [note], key="correction")]

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "go": self.go,
            "checks": [asdict(check) for check in self.checks],
            "fit": self.fit.to_json(),
            "correction": None if self.correction is None else self.correction.to_json(),
        }


def launch_check(
    law: type,
    runs: Runs,
    held_out: Split,
    *,
    pilot: Runs | None = None,
    correction: str = "",
    dropped: tuple[str, ...] = (),
    tolerance_nats: float = TOLERANCE_NATS,
    seed: int = 0,
    progress: Progress | None = None,
) -> LaunchCheck:
    """Fit a law to the proxies and test it on the held-out runs.

    Args:
      held_out: larger proxies that the law must predict.
      pilot: first part of the real training run, as runs of growing token counts.
      correction: name or letter of one coefficient to refit to the held-out runs; none if empty. The held-out runs are
        predicted before the refit, the pilot after it.
      dropped: rows of the table that were left out, with reasons.

    Raises:
      UserError: the law cannot be fitted to the proxies or has no such coefficient; the held-out runs do not determine
        it; or the pilot has runs of the table.
    """
    if pilot is not None:
        _check_pilot(law, runs, pilot)
    proxies = runs.only(~held_out.held_out)
    fitted = fit_law(law, proxies, seed=seed, progress=progress)
    fit = with_uncertainty(fitted, proxies, dropped=dropped)
    larger = runs.only(held_out.held_out)
    corrected = correct(fit, larger, correction) if correction else None
    trained = draws_of(proxies, "group")
    sizes = runs.design.params_active
    kept = np.ones(1) if sizes is None else sizes[proxies.weight > 0]
    span = float(kept.max() / kept.min())
    checks = [
        Condition(
            name=f"at least {FEWEST_PROXIES} proxies",
            outcome=f"{trained} prox{'y' if trained == 1 else 'ies'}",
            holds=trained >= FEWEST_PROXIES,
        ),
        Condition(
            name=f"active parameters span a factor of {SPAN:.0f}",
            outcome=f"a factor of {span:.3g}",
            holds=None if sizes is None else span >= SPAN,
        ),
        *_spans_of_expansion(type(fit.law), proxies),
        Condition(
            name="the search converged, and the proxies set every coefficient",
            outcome=f"{len(fitted.warnings)} warnings",
            holds=not fitted.warnings,
        ),
        _predicts(f"held-out runs ({held_out.name})", fit, larger, tolerance_nats),
    ]
    if pilot is None:
        checks.append(Condition(name="the pilot's early curve", outcome="no pilot was given", holds=None))
    else:
        by, law_of_it = (fit, "") if corrected is None else (corrected.fit, f" ({corrected.symbol} refitted)")
        checks.append(_predicts(f"the pilot's early curve{law_of_it}", by, pilot, tolerance_nats))
    return LaunchCheck(fit=fit, checks=tuple(checks), correction=corrected)


def _check_pilot(law: type, runs: Runs, pilot: Runs) -> None:
    """Raise ``UserError`` if the pilot has runs of the table: a law must not be tested on runs it was fitted to."""

    def numbers(of: Runs) -> list[tuple[float, ...]]:
        inputs = known(of.design)
        columns = [*(inputs[name] for name in law.inputs if name in inputs), of.loss]
        return list(zip(*(np.broadcast_to(column, len(of)).tolist() for column in columns), strict=True))

    seen = {one for one, weight in zip(numbers(runs), runs.weight, strict=True) if weight > 0}
    again = [name for name, one in zip(pilot.names, numbers(pilot), strict=True) if one in seen]
    if again:
        raise UserError(
            f"The pilot has {counted(len(again), 'run')} of the table itself ({some(again, most=3)}; the same sizes "
            f"and loss), and tests no law that was fitted to them; give --pilot the first losses of the large training "
            f"alone, and leave them out of the table."
        )


def _spans_of_expansion(law: type, proxies: Runs) -> list[Condition]:
    """Check that G spans two orders of magnitude; return no check for a law without expert inputs."""
    if {*law.inputs} <= BLIND_TO_EXPERTS:
        return []
    name, design = f"G, total over active parameters, spans a factor of {SPAN:.0f}", proxies.design
    if design.params_total is None or design.params_active is None:
        return [Condition(name=name, outcome="the table has no total and active parameters", holds=None)]
    with float64():
        expansion = np.asarray(design.expansion, np.float64)[proxies.weight > 0]
    # The expansion is a quotient, so a span of 100 may be low by a rounding error.
    span = float(expansion.max() / expansion.min())
    holds = bool(span >= SPAN * (1 - 1e-9))
    other = "" if holds else "; were it asked of active parameters alone, G need only set its exponent (next check)"
    return [Condition(name=name, outcome=f"a factor of {span:.3g}{other}", holds=holds)]


def _predicts(what: str, fit: FitResult, runs: Runs, tolerance: float) -> Condition:
    """Check that every run is within a tolerance of its prediction."""
    worst, count = worst_miss(fit, runs), int((runs.weight > 0).sum())
    return Condition(
        name=f"{what} within {tolerance:g} nats of the prediction",
        outcome=f"the worst of {count} is predicted {abs(worst):.4f} nats too {'high' if worst > 0 else 'low'}",
        holds=abs(worst) <= tolerance,
    )
