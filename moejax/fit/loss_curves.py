"""Fit a law of loss curves, and ask it: curves that were held out, and the loss under a schedule nobody ran.

Points of one curve are no independent draws: stretches of it are (``read_curves.BLOCKS``), or whole curves where there
are enough of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from moejax.errors import UserError
from moejax.fit.covariance import with_uncertainty
from moejax.fit.extrapolation import outside
from moejax.fit.fit_law import Search, fit_law
from moejax.fit.fit_result import FitResult
from moejax.fit.metrics import errors as errors_of
from moejax.fit.objective import outputs
from moejax.fit.prediction import predict_runs
from moejax.fit.read_curves import BLOCKS, Curves, LossCurve, columns_at, most_blocks, runs_of
from moejax.laws import ALIASES_OF_CURVES, CURVE_LAWS
from moejax.laws.design import Design
from moejax.laws.schedule_sums import reach_at
from moejax.run_table import DataFrame
from moejax.wording import did_you_mean

STARTS = 128
SEARCH = Search(screened=8, rounds=((20, 3),))
"""Few starts serve: nearly all that are polished end at one optimum."""
SECOND_SEARCH = Search(screened=32, rounds=((20, 8),))
"""From four times as many starts and the optimum, where a single start ended there."""
NO_DROPS = "the fitted curves do not tell what a falling rate gains (drop_scale), and this one's rate falls"
MANY_CURVES = 12
"""From so many curves on, a curve is one draw, and its luck as a whole is seen."""


def curve_law(name: str) -> type:
    """A law of loss curves from its name or its paper's.

    Raises:
      UserError: for an unknown name, with the nearest ones.
    """
    asked = name.strip().lower().replace("-", "_")
    known = ALIASES_OF_CURVES.get(asked, asked)
    if known not in CURVE_LAWS:
        raise UserError(
            f"There is no law of loss curves '{name}'; {did_you_mean(asked, [*CURVE_LAWS, *ALIASES_OF_CURVES])}"
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
    """A law of loss curves fitted to the curves of one model.

    Args:
      law: its name, its class, or a law, whose coefficients are one more start.
      blocks: stretches of a curve that count as one draw each; ``BLOCKS`` if not given, 1 from ``MANY_CURVES`` on.
      intervals: whether the covariance is computed, which takes longer than the fit.
      options: of ``fit_law``, such as ``fixed={"rate_exponent": 0.6}`` or a number of ``starts``.

    Raises:
      UserError: the curves cannot set the law.
    """
    cls = curve_law(law) if isinstance(law, str) else law
    for curve in curves.curves:
        _check_falls(curve)
    if blocks is None:
        blocks = BLOCKS if len(curves.curves) < MANY_CURVES else 1
    elif blocks > (most := max((most_blocks(curve) for curve in curves.curves), default=blocks)):
        raise UserError(
            f"blocks is {blocks:,}, and no curve has points for more than {most} stretches of two: a draw is a stretch "
            f"of a curve, never a point. Give at most {most}."
        )
    runs = runs_of(curves, blocks=blocks)
    starts = options.pop("starts", STARTS)
    found = fit_law(cls, runs, seed=seed, **{"starts": starts, "search": SEARCH} | options)
    if "search" not in options and round(found.agreeing * found.polished) < 2:
        more = 4 * (starts if isinstance(starts, int) else STARTS)
        found = fit_law(found.law, runs, seed=seed, starts=more, search=SECOND_SEARCH, **options)
    return with_uncertainty(found, runs) if intervals else found


def _check_falls(curve: LossCurve) -> None:
    """Raise ``UserError`` if a loss ends above where it began although the rate did not rise: no law of curves does."""
    after = np.flatnonzero(curve.steps >= curve.warmup_steps)
    third = len(after) // 3
    if third < 4 or curve.rates[curve.steps[after[-1]] - 1] > curve.rates[curve.steps[after[0]] - 1]:
        return
    first, last = curve.loss[after[:third]], curve.loss[after[-third:]]
    if last.min() > first.max():
        raise UserError(
            f"The loss of {curve.name} rises: it is {first.min():.4g} to {first.max():.4g} in the first third of its "
            f"points after the warm-up and {last.min():.4g} to {last.max():.4g} in the last. A law of curves describes "
            f"a loss that falls; leave the curve out, or cut it before it diverges."
        )


def knows_drops(result: FitResult) -> bool:
    """Whether the fitted curves determined what a drop of the rate takes off."""
    return "drop_scale" not in {*result.unidentified, *result.not_determined}


def predict_curve(
    result: FitResult, rates: Float[np.ndarray, " updates"], steps: Int[np.ndarray, " points"], level: float = 0.9
) -> DataFrame:
    """The loss after some updates of a schedule: columns ``step``, ``lr``, ``loss``, ``low``, ``high``, ``reason``.

    The range is that of a measured loss, ``reason`` says why there is none. Steps during the warm-up are not described.

    Raises:
      UserError: a step lies beyond the schedule, or the level is not between 0 and 1.
    """
    steps = np.asarray(steps, np.int64)
    if len(steps) and not (steps.min() >= 1 and steps.max() <= len(rates)):
        raise UserError(f"Steps lie between {steps.min()} and {steps.max()}; the schedule has 1 to {len(rates)}.")
    falls = bool((np.diff(rates) < 0).any())
    known = knows_drops(result)
    found = predict_runs(result, None, None, Design(columns=columns_at(rates, steps, known or falls)), level)
    # Where no fitted rate fell the scale of drops is nothing but where the search began, however little it moves.
    ranged = known or not falls
    reasons = list(found.unknown) if ranged else [NO_DROPS] * len(steps)
    return pd.DataFrame(
        {
            "step": steps,
            "lr": np.asarray(rates)[steps - 1],
            "loss": found.loss,
            "low": found.low if ranged else np.nan,
            "high": found.high if ranged else np.nan,
            "reason": reasons,
        }
    )


def losses_at(law: Any, rates: Any, steps: Any) -> Any:
    """What a law gives after some updates of a schedule; a function of the law to ask a spread about."""
    return outputs(law, Design(columns=columns_at(rates, steps)), "loss")


def reach_beyond(result: FitResult, rates: Float[np.ndarray, " updates"]) -> tuple[float, str]:
    """How far a schedule lies beyond the fitted ones, and in which column of ``REACH``: where it does so most.

    Above 1 it is over the largest that was fitted, below 1 over the smallest; 1 and no name within all of them.
    """
    reached = {name: float(values[0]) for name, values in reach_at(rates, np.array([len(rates)])).items()}
    far = outside(reached, result.fitted)
    if not far:
        return 1.0, ""
    name = max(far, key=lambda one: max(far[one], 1 / max(far[one], 1e-300)))
    return far[name], name


@dataclass(frozen=True, kw_only=True)
class HeldOutCurve:
    """A curve that was not fitted, and how the law predicts it."""

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
    """Predicted less measured loss at the last step."""
    inside: float
    """Share of points in their ranges; NaN where none has one."""
    beyond: float
    """As ``reach_beyond`` has it at its last step."""
    beyond_in: str
    """The column that this is of; empty within."""
    predicted: DataFrame
    """As ``predict_curve`` gives it, and ``measured``."""


def held_out_curve(result: FitResult, curve: LossCurve, level: float = 0.9) -> HeldOutCurve:
    """How a fit predicts a curve, at all of its points after the warm-up."""
    after = curve.steps >= curve.warmup_steps
    steps, loss = curve.steps[after], curve.loss[after]
    predicted = predict_curve(result, curve.rates, steps, level).assign(measured=loss)
    found = errors_of(predicted["loss"].to_numpy(), loss, np.ones_like(loss))
    relative = np.abs(predicted["loss"] / loss - 1)
    within = (predicted["low"] <= loss) & (loss <= predicted["high"])
    beyond, beyond_in = reach_beyond(result, curve.rates)
    return HeldOutCurve(
        name=curve.name,
        points=len(loss),
        r_squared=found.r_squared,
        mae=found.mae,
        rmse=found.rmse,
        relative=float(relative.mean()),
        worst=float(relative.max()),
        last_error=float(predicted["loss"].iloc[-1] - loss[-1]),
        inside=float(within[predicted["low"].notna()].mean()),
        beyond=beyond,
        beyond_in=beyond_in,
        predicted=predicted,
    )


def annealed_loss(
    result: FitResult,
    trunk: LossCurve,
    start: int,
    decay: Float[np.ndarray, " updates"],
    level: float = 0.9,
) -> dict[str, Any]:
    """The loss at the end of a branch that leaves a trunk after ``start`` updates and makes those of ``decay``."""
    rates = np.concatenate([trunk.rates[:start], decay])
    return predict_curve(result, rates, np.array([len(rates)]), level).iloc[-1].to_dict()
