"""Refit a single coefficient of a fitted law to larger runs."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from moejax.errors import UserError
from moejax.fit.fit_result import FitResult
from moejax.fit.runs import Runs
from moejax.fit.search.fit_law import fit_law
from moejax.fit.search.objective import Squared, outputs
from moejax.fit.search.starts import WarmStart
from moejax.fit.selection.metrics import predict
from moejax.fit.uncertainty.extrapolation import where_decided
from moejax.fit.uncertainty.uncertainty import keeps_sign
from moejax.float64 import float64
from moejax.json_text import finite
from moejax.laws import called
from moejax.laws.law import coefficients
from moejax.wording import did_you_mean


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


def coefficient_named(law: Any, name: str) -> str:
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


def _slopes(law: Any, runs: Runs, name: str, output: str) -> np.ndarray:
    """Return the derivative of every run's predicted loss in a coefficient."""
    with float64():
        value = jnp.asarray(getattr(law, name), jnp.float64)
        return np.asarray(jax.jacfwd(lambda one: _predicted(law, name, one, runs, output))(value))


def _predicted(law: Any, name: str, value: Any, runs: Runs, output: str) -> Any:
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

    def refitted(law: Any, log_loss: Any) -> Any:
        """Take a Newton step from the least misfit; its derivatives are those of the refitted coefficient."""

        def misfit(value: Any) -> Any:
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
