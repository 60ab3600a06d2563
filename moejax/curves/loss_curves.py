"""Fit a law of loss curves; predict held-out curves and the loss under new schedules.

Neighboring points of a curve are correlated. Blocks of a curve (``read_curves.BLOCKS``), or whole curves if there are
enough, count as independent draws.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from moejax.curves.read_curves import BLOCKS, Curves, LossCurve, columns_at, most_blocks, runs_of
from moejax.errors import UserError
from moejax.fit.fit_result import FitResult
from moejax.fit.search.fit_law import Search, fit_law
from moejax.fit.search.objective import outputs
from moejax.fit.selection.metrics import errors as errors_of
from moejax.fit.uncertainty.covariance import with_uncertainty
from moejax.fit.uncertainty.extrapolation import outside
from moejax.laws import ALIASES_OF_CURVES, CURVE_LAWS
from moejax.laws.curves.schedule_sums import reach_at
from moejax.laws.design import Design
from moejax.laws.law import Law
from moejax.run_table import DataFrame
from moejax.wording import did_you_mean

STARTS = 128
SEARCH = Search(screened=8, rounds=((20, 3),))
"""Search with few initial guesses, since nearly all reach the same optimum."""
SECOND_SEARCH = Search(screened=32, rounds=((20, 8),))
"""Second search if only one initial guess reached the optimum. It uses four times as many initial guesses, plus that
optimum."""
NO_DROPS = "the learning rate falls, but the fitted curves do not determine the effect (drop_scale)"
MANY_CURVES = 12
"""Minimum number of curves from which each curve counts as one draw, so that errors include random effects of the
curves."""


def curve_law(name: str) -> type:
    """Return a law of loss curves by its name or the name of its paper.

    Raises:
      UserError: the name is unknown; the message suggests similar names.
    """
    asked = name.strip().lower().replace("-", "_")
    known = ALIASES_OF_CURVES.get(asked, asked)
    if known not in CURVE_LAWS:
        raise UserError(
            f"There is no loss-curve law '{name}'; {did_you_mean(asked, [*CURVE_LAWS, *ALIASES_OF_CURVES])}"
        )
    return CURVE_LAWS[known]


def fit_curves(
    curves: Curves,
    law: Any = "multi_power",
    *,
    blocks: int | None = None,
    intervals: bool = True,
    seed: int = 0,
    **options: Any,
) -> FitResult:
    """Fit a law of loss curves to the curves of one model.

    Args:
      curves: the result of ``moejax.read_curves``.
      law: a law's name or class, or a law instance, whose coefficients are an additional initial guess.
      blocks: number of draws per curve; by default ``BLOCKS``, or 1 if there are at least ``MANY_CURVES`` curves.
      intervals: True to compute the covariance, which takes longer than the fit.
      seed: seed of the search.
      options: options of ``fit_law``, such as ``fixed={"rate_exponent": 0.6}`` or the number of initial guesses,
        ``starts``.

    Returns:
      The fit, like that of ``moejax.fit``.

    Raises:
      UserError: the curves do not determine the law.

    Example:
      >>> curves = mj.read_curves(["runs/constant", "runs/cosine"])
      >>> mj.fit_curves(curves, "multi_power")
    """
    cls = curve_law(law) if isinstance(law, str) else law
    for curve in curves.curves:
        _check_falls(curve)
    if blocks is None:
        blocks = BLOCKS if len(curves.curves) < MANY_CURVES else 1
    elif blocks > (most := max((most_blocks(curve) for curve in curves.curves), default=blocks)):
        raise UserError(
            f"blocks is {blocks:,}, but a block needs two points and no curve has points for more than {most} blocks. "
            f"Give at most {most}."
        )
    runs = runs_of(curves, blocks=blocks)
    starts = options.pop("starts", STARTS)
    fit = fit_law(cls, runs, seed=seed, **{"starts": starts, "search": SEARCH} | options)
    if "search" not in options and round(fit.agreeing * fit.polished) < 2:
        more = 4 * (starts if isinstance(starts, int) else STARTS)
        fit = fit_law(fit.law, runs, seed=seed, starts=more, search=SECOND_SEARCH, **options)
    return with_uncertainty(fit, runs) if intervals else fit


def _check_falls(curve: LossCurve) -> None:
    """Raise ``UserError`` if a loss rises although the learning rate does not: no law of loss curves describes this."""
    after = np.flatnonzero(curve.steps >= curve.warmup_steps)
    third = len(after) // 3
    if third < 4 or curve.rates[curve.steps[after[-1]] - 1] > curve.rates[curve.steps[after[0]] - 1]:
        return
    first, last = curve.loss[after[:third]], curve.loss[after[-third:]]
    if last.min() > first.max():
        raise UserError(
            f"The loss of {curve.name} rises: it is {first.min():.4g} to {first.max():.4g} in the first third of its "
            f"points after the warm-up and {last.min():.4g} to {last.max():.4g} in the last third. Loss-curve laws "
            f"describe falling losses; leave the curve out, or cut it before it diverges."
        )


def knows_drops(result: FitResult) -> bool:
    """Return whether the fitted curves determine the effect of a drop of the learning rate."""
    return "drop_scale" not in {*result.unidentified, *result.not_determined}


def predict_curve(
    result: FitResult, rates: Float[np.ndarray, " updates"], steps: Int[np.ndarray, " points"], level: float = 0.9
) -> DataFrame:
    """Predict the loss after given updates of a schedule.

    The table has columns ``step``, ``lr``, ``loss``, ``low``, ``high`` and ``reason``. A measured loss is between
    ``low`` and ``high``, the ends of its prediction interval, with probability ``level``. ``reason`` explains a missing
    interval. The law does not describe the warm-up.

    Raises:
      UserError: a step is beyond the end of the schedule, or the level is not between 0 and 1.
    """
    steps = np.asarray(steps, np.int64)
    if len(steps) and not (steps.min() >= 1 and steps.max() <= len(rates)):
        raise UserError(f"Steps must be between 1 and {len(rates)}; got {steps.min()} to {steps.max()}.")
    falls = bool((np.diff(rates) < 0).any())
    known = knows_drops(result)
    predicted = result.prediction_intervals(Design(columns=columns_at(rates, steps, known or falls)), level)
    # If no fitted learning rate falls, drop_scale keeps its initial guess, and its spread has no meaning.
    ranged = known or not falls
    reasons = list(predicted.unknown) if ranged else [NO_DROPS] * len(steps)
    return pd.DataFrame(
        {
            "step": steps,
            "lr": np.asarray(rates)[steps - 1],
            "loss": predicted.loss,
            "low": predicted.low if ranged else np.nan,
            "high": predicted.high if ranged else np.nan,
            "reason": reasons,
        }
    )


def losses_at(law: Law, rates: np.ndarray, steps: np.ndarray) -> Any:
    """Return a law's losses after given updates of a schedule; differentiable in the law's coefficients."""
    return outputs(law, Design(columns=columns_at(rates, steps)), "loss")


def reach_beyond(result: FitResult, rates: Float[np.ndarray, " updates"]) -> tuple[float, str]:
    """Return a schedule's largest extrapolation factor and the ``REACH`` column in which it occurs.

    The factor is above 1 beyond the largest fitted value and below 1 under the smallest. If the schedule is within all
    fitted ranges, the factor is 1 and the name is empty.
    """
    reached = {name: float(values[0]) for name, values in reach_at(rates, np.array([len(rates)])).items()}
    far = outside(reached, result.fitted)
    if not far:
        return 1.0, ""
    name = max(far, key=lambda one: max(far[one], 1 / max(far[one], 1e-300)))
    return far[name], name


@dataclass(frozen=True, kw_only=True)
class HeldOutCurve:
    """A held-out curve and the errors of the law on it."""

    name: str
    points: int
    r_squared: float
    mae: float
    """Mean absolute error, nats per token."""
    rmse: float
    relative: float
    """Mean relative error."""
    worst: float
    """Largest relative error."""
    last_error: float
    """Predicted minus measured loss at the last step."""
    inside: float
    """Share of points within their prediction intervals; NaN if no point has one."""
    beyond: float
    """Extrapolation factor at the last step (``reach_beyond``)."""
    beyond_in: str
    """Column of the extrapolation factor; empty within the fitted range."""
    predicted: DataFrame
    """Table of ``predict_curve`` with a column ``measured``."""


def held_out_curve(result: FitResult, curve: LossCurve, level: float = 0.9) -> HeldOutCurve:
    """Return the errors of a fit on a curve, at all points after the warm-up."""
    after = curve.steps >= curve.warmup_steps
    steps, loss = curve.steps[after], curve.loss[after]
    predicted = predict_curve(result, curve.rates, steps, level).assign(measured=loss)
    errors = errors_of(predicted["loss"].to_numpy(), loss, np.ones_like(loss))
    relative = np.abs(predicted["loss"] / loss - 1)
    within = (predicted["low"] <= loss) & (loss <= predicted["high"])
    beyond, beyond_in = reach_beyond(result, curve.rates)
    return HeldOutCurve(
        name=curve.name,
        points=len(loss),
        r_squared=errors.r_squared,
        mae=errors.mae,
        rmse=errors.rmse,
        relative=float(relative.mean()),
        worst=float(relative.max()),
        last_error=float(predicted["loss"].iloc[-1] - loss[-1]),
        inside=float(within[predicted["low"].notna()].mean()),
        beyond=beyond,
        beyond_in=beyond_in,
        predicted=predicted,
    )
