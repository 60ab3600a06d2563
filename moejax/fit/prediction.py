"""What a run that is not yet trained will reach, with the range that its measured loss should fall in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.stats
from jaxtyping import Float

from moejax.fit.bootstrap import Bootstrap
from moejax.fit.fit_result import FitResult
from moejax.fit.metrics import predict
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


def predict_runs(result: FitResult, runs: Runs, resampled: Bootstrap, design: Design, level: float = 0.9) -> Predicted:
    """Ranges that hold the measured losses of new runs with a probability, if the law's form holds there.

    The variance of log loss is that of the resampled laws' predictions and, added to it, what the law leaves of the
    runs it was fitted to (lack of fit and noise between seeds, which no number of resamples makes smaller). With few
    runs the range is a Student-t's.

    Args:
      design: fields with one entry per new run.

    Raises:
      ValueError: ``level`` is not between 0 and 1.
    """
    if not 0 < level < 1:
        raise ValueError(f"The level is {level}; give a share between 0 and 1, such as 0.9.")
    count = max(np.size(getattr(design, name)) for name in type(result.law).inputs)
    new = runs_from(design, np.ones(count))
    middle = np.log(predict(result.law, new, result.output))
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


def _each(resampled: Bootstrap) -> list[Any]:
    """The resampled laws one by one."""
    stacked = coefficients(resampled.laws)
    law = type(resampled.laws)
    return [law(**{name: float(v[i]) for name, v in stacked.items()}) for i in range(len(resampled.values))]
