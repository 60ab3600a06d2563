"""Check whether a scaling law is accurate enough to launch a large training run.

Book chapter "MoE Scaling Laws" (chapter 002), "How a frontier team validates a scaling-law prediction before launch".
The chapter requires "two orders of magnitude in activated count and G"; the check requires them of both quantities. The
chapter may mean only the active parameters. G then only needs to determine its exponent, which the next check covers;
the verdict mentions this if G spans less. "Re-fit a single correction term from one or two 16 B-activated runs"
(Listing 2, observation 3) is implemented as the refit of one coefficient to the held-out runs.
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
from moejax.fit.runs import Runs, draws_of
from moejax.fit.search.fit_law import Progress, fit_law
from moejax.fit.search.objective import Squared, outputs
from moejax.fit.search.starts import WarmStart
from moejax.fit.selection.holdout import Split
from moejax.fit.selection.metrics import predict
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
"""Minimum number of groups of runs. Runs of one model share a random effect and count as one group."""
SPAN = 100.0
"""Two orders of magnitude, in active parameters and in G."""
TOLERANCE_NATS = 0.02
"""Tolerance for the difference between a held-out run's loss and its prediction."""
BLIND_TO_EXPERTS = frozenset({"params_active", "params_embedding", "tokens", "unique_tokens", "flops"})
"""Inputs of dense laws. A law that reads only these inputs does not depend on G."""


@dataclass(frozen=True, kw_only=True)
class Correction:
    """A coefficient fitted to the proxies, and refitted to larger runs with the other coefficients fixed."""

    name: str
    symbol: str
    before: float
    fit: FitResult
    """Fit with this coefficient refitted and the other coefficients fixed."""
    low: float
    high: float
    """Bounds of the refitted coefficient's 90 % confidence interval; NaN if the proxies' fit has no covariance."""
    miss_before: float
    miss_after: float
    """Predicted minus measured loss, in nats per token, of the larger run with the largest error."""

    @property
    def after(self) -> float:
        """The refitted coefficient."""
        return self.fit.coefficients[self.name]

    def to_json(self) -> dict[str, Any]:
        """Return plain data for JSON, keyed by name; missing interval bounds are null."""
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
    """Refit one coefficient to larger runs by least squares of log loss; the others keep the values fitted to the
    proxies.

    The interval includes the uncertainty of the other coefficients, to first order, and the noise of the larger runs.
    Each group's random effect has the proxies' scatter, because one group cannot determine its own.

    Args:
      proxies: a fit to the proxies, with its uncertainty.
      name: name or symbol of a coefficient.

    Raises:
      UserError: the law has no such coefficient, or the coefficient does not affect any of the larger runs.
    """
    name = coefficient_named(proxies.law, name)
    larger = larger.where(larger.weight > 0)
    if not np.any(_slopes(proxies.law, larger, name, proxies.output)):
        raise UserError(
            f"{name} does not affect the loss of any of the {len(larger)} larger runs, so they cannot determine it (an "
            f"exponent of G needs an MoE model). Refit another coefficient, or hold out other runs."
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
    """Return the largest error (predicted minus measured loss, in nats per token) among runs with positive weight."""
    misses = (predict(fit.law, runs, fit.output) - runs.loss)[runs.weight > 0]
    return float(misses[np.argmax(np.abs(misses))])


def _slopes(law: Law, runs: Runs, name: str, output: str) -> np.ndarray:
    """Return the derivative of every run's predicted loss with respect to a coefficient."""
    with float64():
        value = jnp.asarray(getattr(law, name), jnp.float64)
        return np.asarray(jax.jacfwd(lambda one: _predicted(law, name, one, runs, output))(value))


def _predicted(law: Law, name: str, value: jax.Array, runs: Runs, output: str) -> jax.Array:
    return outputs(dataclasses.replace(law, **{name: value}), runs.design, output)


def _with_uncertainty(
    proxies: FitResult, fit: FitResult, larger: Runs, name: str
) -> tuple[FitResult, tuple[float, float]]:
    """Return the refitted law with its uncertainty, and the bounds of the coefficient's 90 % interval."""
    known = proxies.uncertainty
    # The larger runs are too few to estimate a scatter.
    fit = dataclasses.replace(fit, noise=proxies.noise)
    if known is None or not known.axes:
        return fit, (math.nan, math.nan)
    at = fit.coefficients[name]

    def refitted(law: Law, log_loss: jax.Array) -> jax.Array:
        """Take a Newton step from the optimum, so that derivatives of the result are derivatives of the refitted
        coefficient."""

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
    luck = proxies.noise * math.sqrt(sum(each[larger.group == one].sum() ** 2 for one in np.unique(larger.group)))
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
    """One condition with its outcome; ``holds`` is None if the table has too little data to check it."""

    name: str
    outcome: str
    holds: bool | None


@dataclass(frozen=True, kw_only=True)
class LaunchCheck:
    """The law fitted to the proxies, with the launch conditions."""

    fit: FitResult
    """Law fitted to the proxies, with its uncertainty."""
    checks: tuple[Condition, ...]
    correction: Correction | None = None
    """Coefficient refitted to the larger runs, if any."""

    @property
    def best(self) -> FitResult:
        """Law to use for the launch: the corrected law if a coefficient was refitted."""
        return self.fit if self.correction is None else self.correction.fit

    def fits(self) -> dict[str, FitResult]:
        """Return the fits, keyed by name: the proxies' fit, and the corrected fit if there is one."""
        return {"proxies": self.fit} | ({} if self.correction is None else {"corrected": self.correction.fit})

    @property
    def go(self) -> bool:
        """True if every check holds."""
        return all(check.holds for check in self.checks)

    def summary(self) -> Result:
        """Return the verdict and its conditions, for readers who do not know fitting."""
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
        note = "The other coefficients keep the values fitted to the proxies; low to high is the refit's 90 % interval."
        return [Table("Correction by the held-out runs", columns, [row], [note], key="correction")]

    def to_json(self) -> dict[str, Any]:
        """Return plain data for JSON, keyed by name."""
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
      correction: name or symbol of one coefficient to refit to the held-out runs; empty for no refit. The held-out runs
        are predicted before the refit, the pilot after it.
      dropped: messages about omitted table rows, with reasons.

    Raises:
      UserError: the law cannot be fitted to the proxies or has no such coefficient; the held-out runs do not determine
        the coefficient; or the pilot contains runs of the table.
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
            name="the search converged, and the proxies determine every coefficient",
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
    """Raise ``UserError`` if the pilot contains runs of the table, because a law must be tested on other runs."""

    def numbers(of: Runs) -> list[tuple[float, ...]]:
        inputs = known(of.design)
        columns = [*(inputs[name] for name in law.inputs if name in inputs), of.loss]
        return list(zip(*(np.broadcast_to(column, len(of)).tolist() for column in columns), strict=True))

    seen = {one for one, weight in zip(numbers(runs), runs.weight, strict=True) if weight > 0}
    again = [name for name, one in zip(pilot.names, numbers(pilot), strict=True) if one in seen]
    if again:
        raise UserError(
            f"The pilot contains {counted(len(again), 'run')} of the run table ({some(again, most=3)}; equal sizes and "
            f"loss), so it cannot test a law that was fitted to this table. Give --pilot only the first losses of the "
            f"large training run, and remove them from the table."
        )


def _spans_of_expansion(law: type, proxies: Runs) -> list[Condition]:
    """Check that G spans two orders of magnitude; return no check for a law without expert inputs."""
    if {*law.inputs} <= BLIND_TO_EXPERTS:
        return []
    name, design = f"G, total / active parameters, spans a factor of {SPAN:.0f}", proxies.design
    if design.params_total is None or design.params_active is None:
        return [Condition(name=name, outcome="the table has no total and active parameters", holds=None)]
    with float64():
        expansion = np.asarray(design.expansion, np.float64)[proxies.weight > 0]
    # The expansion is a quotient, so rounding may make a span of 100 slightly smaller.
    span = float(expansion.max() / expansion.min())
    holds = bool(span >= SPAN * (1 - 1e-9))
    other = "" if holds else "; if the chapter means only active parameters, G only needs to determine its exponent"
    return [Condition(name=name, outcome=f"a factor of {span:.3g}{other}", holds=holds)]


def _predicts(what: str, fit: FitResult, runs: Runs, tolerance: float) -> Condition:
    """Check that every run is within a tolerance of its prediction."""
    worst, count = worst_miss(fit, runs), int((runs.weight > 0).sum())
    return Condition(
        name=f"{what} within {tolerance:g} nats of the prediction",
        outcome=f"the worst of {count} is predicted {abs(worst):.4f} nats too {'high' if worst > 0 else 'low'}",
        holds=abs(worst) <= tolerance,
    )
