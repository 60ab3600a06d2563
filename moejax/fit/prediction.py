"""What a run that is not yet trained will reach, with the range that its measured loss should fall in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import scipy.stats
from jaxtyping import Float

from moejax.fit.answers import Answer
from moejax.fit.bootstrap import Bootstrap, check_level
from moejax.fit.covariance import standard_errors
from moejax.fit.decide import beyond_in_words, reach
from moejax.fit.fit_result import FitResult
from moejax.fit.metrics import predict
from moejax.fit.problem import outputs
from moejax.fit.runs import Runs, runs_from
from moejax.laws.design import Design
from moejax.laws.law import coefficients


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """Ranges for new runs, one entry each."""

    low: Float[np.ndarray, " designs"]
    loss: Float[np.ndarray, " designs"]
    high: Float[np.ndarray, " designs"]
    from_coefficients: float
    """Share of the variance, over all designs, that is due to the coefficients; the rest is lack of fit."""


def predict_runs(
    result: FitResult,
    runs: Runs,
    resampled: Bootstrap | None,
    design: Design,
    level: float = 0.9,
    *,
    covariance: str = "sandwich",
    by: str = "group",
) -> Predicted:
    """Ranges that hold the measured losses of new runs with a probability, if the law's form holds there.

    The variance of log loss is that of the coefficients (from the resampled laws' predictions, or by the delta
    method where none are given) and, added to it, what the law leaves of the runs it was fitted to (lack of fit and
    noise between seeds, which no number of resamples makes smaller). With few runs the range is a Student-t's.

    Args:
      design: fields with one entry per new run.

    Raises:
      ValueError: ``level`` is not between 0 and 1.
    """
    level = check_level(level)
    count = max(np.size(getattr(design, name)) for name in type(result.law).inputs)
    new = runs_from(design, np.ones(count))
    middle = np.log(predict(result.law, new, result.output))
    if resampled is None:

        def log_loss(law: Any) -> Any:
            return jnp.log(outputs(law, new.design, result.output))

        spread = np.asarray(standard_errors(result, runs, log_loss, kind=covariance, by=by), np.float64) ** 2
    else:
        moved = np.stack([np.log(predict(law, new, result.output)) for law in _each(resampled)])
        # Laws that give no number there are left out; the interval of a decision counts them.
        spread = np.nanvar(np.where(np.isfinite(moved), moved, np.nan), axis=0)
    freedom = max(result.metrics.runs - (len(result.coefficients) - len(result.fixed)), 1)
    left = result.metrics.rmse_log**2 * result.metrics.runs / freedom
    reach = float(scipy.stats.t.ppf((1 + level) / 2, freedom)) * np.sqrt(spread + left)
    return Predicted(
        low=np.exp(middle - reach),
        loss=np.exp(middle),
        high=np.exp(middle + reach),
        from_coefficients=float(np.sum(spread) / np.sum(spread + left)) if np.sum(spread + left) else 0.0,
    )


@dataclass(frozen=True, kw_only=True)
class Foretold:
    """One run that is not yet trained."""

    answer: Answer
    predicted: Predicted
    level: float
    by_resamples: bool
    """Whether the coefficients' share comes from resampled fits, or from standard errors."""

    def text(self, runs: Runs, level: float) -> str:
        """The prediction, its range and what the range is made of, in words."""
        p = self.predicted
        source = "resamples" if self.by_resamples else "standard errors"
        lines = [
            f"{self.answer.title}: {p.loss[0]:.5g}, {level:.0%} of such runs in [{p.low[0]:.5g}, {p.high[0]:.5g}] "
            f"({p.from_coefficients:.0%} of the variance from coefficients, by {source}; the rest lack of fit)"
        ]
        return "\n".join([*lines, *(f"! {sentence}" for sentence in beyond_in_words(reach(self.answer.given), runs))])

    def to_json(self) -> dict[str, Any]:
        """As plain data; what is not finite is null."""
        p = self.predicted
        ends = {"low": p.low[0], self.answer.name: p.loss[0], "high": p.high[0]}
        return {
            "given": dict(self.answer.given),
            **{name: float(value) if np.isfinite(value) else None for name, value in ends.items()},
            "level": self.level,
            "from_coefficients": p.from_coefficients,
            "by": "resamples" if self.by_resamples else "standard errors",
        }


def foretell(
    result: FitResult,
    runs: Runs,
    answer: Answer,
    resampled: Bootstrap | None = None,
    level: float = 0.9,
    *,
    covariance: str = "sandwich",
    by: str = "group",
) -> Foretold:
    """The range of one run that is described by what an answer is asked at.

    Raises:
      ValueError: as ``predict_runs``.
    """
    design = Design(**answer.given)
    predicted = predict_runs(result, runs, resampled, design, level, covariance=covariance, by=by)
    return Foretold(answer=answer, predicted=predicted, level=level, by_resamples=resampled is not None)


def _each(resampled: Bootstrap) -> list[Any]:
    """The resampled laws one by one."""
    stacked = coefficients(resampled.laws)
    law = type(resampled.laws)
    return [law(**{name: float(v[i]) for name, v in stacked.items()}) for i in range(len(resampled.values))]
