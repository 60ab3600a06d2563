"""Fit the leverage laws of Tian et al. (2025): Eqs. 1 to 3, each in one factor, and the joint law (Eq. 4)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import scipy.optimize
import scipy.stats
from jaxtyping import Float

from moejax.errors import UserError
from moejax.fit.fit_result import FitResult
from moejax.fit.runs import Runs
from moejax.fit.search.fit_law import fit_law
from moejax.fit.search.objective import Squared
from moejax.fit.search.starts import Starts
from moejax.fit.selection.metrics import Metrics, metrics, predict
from moejax.fit.sweeps.budget_losses import LEAST_BUDGETS
from moejax.float64 import float64
from moejax.laws.mixtures.leverage import Leverage, optimal_granularity
from moejax.laws.mixtures.routed import saturate
from moejax.result import Column, Table

INPUTS = Leverage.inputs
TRAINED_BELOW = 6.0
"""Leverage below which the joint law is fitted; larger leverages test it (Section 4.2.3)."""
NO_START, NO_MAXIMUM = 1e-12, 1e12
"""Bounds at which the saturating transform of an activation ratio has no effect."""
LEAST_VALUES = 3
"""Minimum number of values of a factor for Eq. 4 to determine its effect."""
NO_GRANULARITY = {"granularity_square": 0.0, "granularity_slope": 0.0}
"""Coefficients fixed at 0 to remove the G terms from Eq. 4."""
SATURATING_COEFFICIENTS = 4
LOGS: Mapping[str, tuple[Callable[[np.ndarray], np.ndarray], Mapping[str, int]]] = {
    "G": (np.log2, {"log-polynomial (Eq. 2)": 2, "power law": 1}),
    "C": (np.log10, {"power law (Eq. 3)": 1}),
}
"""Logarithm of each factor, and degrees of its polynomial forms."""


@dataclass(frozen=True, kw_only=True)
class FunctionalForm:
    """One functional form of leverage in one factor, with the other two fixed."""

    factor: str
    form: str
    held: dict[str, float]
    points: int
    coefficients: dict[str, float]
    r_squared: float
    """R² of log leverage."""


@dataclass(frozen=True, kw_only=True)
class Residuals:
    """Measured minus predicted leverage, over fitted and held-out points (Figure 17)."""

    mean: float
    deviation: float
    normal: float
    """p-value of the Shapiro-Wilk test for normal residuals; NaN below 3 points."""


@dataclass(frozen=True, kw_only=True)
class JointLaw:
    """Eq. 4 fitted to leverages below ``TRAINED_BELOW``, and tested on the others."""

    fit: FitResult
    held_out: Metrics | None
    """Errors on the held-out leverages; None if there are none."""
    residuals: Residuals

    @property
    def law(self) -> Leverage:
        """Fitted Eq. 4."""
        return self.fit.law

    @property
    def best_granularity(self) -> float | None:
        """Granularity with the greatest leverage; None if there is no maximum (gamma at most 0)."""
        if self.law.granularity_square <= 0:
            return None
        # The optimum depends on neither activation ratio nor compute.
        return float(optimal_granularity(self.law, 0.1, 1e20).value["granularity"])

    def table(self) -> Table:
        """Return a table of coefficients and errors."""
        fit, tested, left = self.fit, self.held_out, self.residuals
        notes = [
            f"R² {fit.metrics.r_squared:.4f}, RMSE {fit.metrics.rmse:.4f}",
            f"held out ({tested.runs} leverages of at least {TRAINED_BELOW:g}): RMSE {tested.rmse:.4f}"
            if tested
            else f"no leverage of {TRAINED_BELOW:g} or more to test on",
            f"residuals: mean {left.mean:.4f}, SD {left.deviation:.4f}, Shapiro-Wilk p {left.normal:.3g}",
        ]
        if self.best_granularity is not None:
            notes.append(f"best granularity at every A and C: G* = {self.best_granularity:.3g}")
        if fit.fixed:
            notes.append(f"fewer than {LEAST_VALUES} granularities: {', '.join(fit.fixed)} are fixed at 0")
        title = f"Joint law (Eq. 4), fitted to leverages below {TRAINED_BELOW:g}"
        columns = (Column("coefficient"), Column("value", ".6g"))
        return Table(title, columns, [*fit.coefficients.items()], notes, key="joint")


def architecture(runs: Runs) -> tuple[np.ndarray, np.ndarray]:
    """Return activation ratio and granularity of every run, rounded so that equal architectures have equal values."""
    if missing := [name for name in INPUTS if getattr(runs.design, name) is None]:
        raise UserError(
            f"The recipe reads {', '.join(INPUTS)}, but the runs have no {', '.join(missing)}. Name these columns with "
            f"--map OURS=THEIRS, or add them."
        )
    with float64():
        ratio, granularity = (np.asarray(x, float) for x in (runs.design.activation_ratio, runs.design.granularity))
    return np.round(ratio, 6), np.array([float(f"{g:.2g}") for g in granularity])


def joint_law(points: Runs, starts: Starts) -> JointLaw:
    """Fit Eq. 4 to the leverages below ``TRAINED_BELOW``, and compute residuals of all and errors on larger leverages.

    ``points.loss`` contains the leverages.

    Raises:
      UserError: there are too few leverages or activation ratios.
    """
    small = points.loss < TRAINED_BELOW
    ratio, granularity = architecture(points.where(small)) if small.any() else (np.zeros(0), np.zeros(0))
    if (several := len(np.unique(ratio))) < LEAST_VALUES:
        raise UserError(
            f"The leverages below {TRAINED_BELOW:g} have {several} activation ratios, but {LEAST_VALUES} are needed; "
            f"train MoE models with other ratios at the small budgets."
        )
    fixed = NO_GRANULARITY if len(np.unique(granularity)) < LEAST_VALUES else {}
    free = len(dataclasses.fields(Leverage)) - len(fixed)
    if small.sum() < free:
        raise UserError(
            f"There are {small.sum()} leverages below {TRAINED_BELOW:g}, but Eq. 4 has {free} free coefficients; train "
            f"more MoE models at the small budgets."
        )
    fit = fit_law(Leverage, points.only(small), starts=starts, fixed=fixed)
    left = points.loss - predict(fit.law, points, fit.output)
    return JointLaw(
        fit=fit,
        held_out=metrics(fit.law, points.only(~small), fit.output) if not small.all() else None,
        residuals=Residuals(
            mean=float(left.mean()),
            deviation=float(left.std()),
            normal=float(scipy.stats.shapiro(left).pvalue) if len(left) > 2 else float("nan"),
        ),
    )


def functional_forms(points: Runs, starts: Starts) -> tuple[FunctionalForm, ...]:
    """Fit Eqs. 1 to 3, with the alternatives of Tables 16 and 17, at each combination of the two other factors."""
    ratio, granularity = architecture(points)
    factors = {"A": ratio, "G": granularity, "C": np.asarray(points.design.flops)}
    forms = []
    for factor, values in factors.items():
        others = {name: v for name, v in factors.items() if name != factor}
        for held in sorted(set(zip(*others.values(), strict=True))):
            same = np.all([v == h for v, h in zip(others.values(), held, strict=True)], axis=0)
            if len(np.unique(values[same])) < LEAST_BUDGETS:
                continue
            own = points.only(same)
            logs = np.log(own.loss[same])
            fits = _in_ratio(own, starts) if factor == "A" else _in_logs(factor, values[same], logs)
            forms += [
                FunctionalForm(
                    factor=factor,
                    form=form,
                    held=dict(zip(others, map(float, held), strict=True)),
                    points=int(same.sum()),
                    coefficients=coefficients,
                    r_squared=_r_squared(logs, predicted),
                )
                for form, coefficients, predicted in fits
            ]
    return tuple(forms)


_Fit = tuple[str, dict[str, float], Float[np.ndarray, " points"]]
"""Name of a form, its coefficients, and predicted log leverages."""


def _in_ratio(points: Runs, starts: Starts) -> Iterator[_Fit]:
    """Fit Eq. 1 and a plain power law, both as Eq. 4 with the other factors' coefficients at 0."""
    none = {"flops_slope": 0.0, "granularity_square": 0.0, "granularity_slope": 0.0}
    plain = none | {"ratio_start": NO_START, "ratio_maximum": NO_MAXIMUM}
    kept = points.weight > 0
    for form, fixed in (("saturating power law (Eq. 1)", none), ("power law", plain)):
        fit = fit_law(Leverage, points, starts=starts, fixed=fixed, penalty=Squared())
        free = {name: value for name, value in fit.coefficients.items() if name not in fixed}
        yield form, free, np.log(predict(fit.law, points, fit.output)[kept])


def _in_logs(factor: str, values: Float[np.ndarray, " points"], logs: Float[np.ndarray, " points"]) -> Iterator[_Fit]:
    """Fit polynomials of log leverage in the factor's logarithm, with the base of Eq. 4."""
    log, forms = LOGS[factor]
    for form, degree in forms.items():
        polynomial = np.polynomial.Polynomial.fit(log(values), logs, degree).convert()
        named = {f"power_{power}": float(weight) for power, weight in enumerate(polynomial.coef)}
        yield form, named, polynomial(log(values))
    if factor == "G" and len(np.unique(values)) > SATURATING_COEFFICIENTS:
        yield _saturating(values, logs)


def _saturating(granularity: np.ndarray, logs: np.ndarray) -> _Fit:
    """Fit Table 17's third form, EL = exp(constant)·Ĝ^exponent, where Ĝ is saturated like A in Eq. 1.

    The paper does not print this form. It is inferred to have a constant as in Eq. 2, because EL is not 1 at G = 1, and
    the lower bound 0, as for A. At fixed bounds of Ĝ, log EL is linear in the other two coefficients, so only the
    bounds are searched.
    """

    def linear(ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        start = np.exp(ends[0])
        columns = np.stack([np.ones_like(logs), np.log(saturate(granularity, start, start + np.exp(ends[1]), 0))], 1)
        weights = np.linalg.lstsq(columns, logs, rcond=None)[0]
        return weights, columns @ weights - logs

    every = [(start, above) for start in (-2.0, 0.0, 2.0) for above in (0.0, 2.0, 5.0)]
    bounds = ([np.log(1e-3), np.log(1e-3)], [np.log(1e3), np.log(1e6)])
    solved = [scipy.optimize.least_squares(lambda ends: linear(ends)[1], one, bounds=bounds) for one in every]
    best = min(solved, key=lambda one: one.cost).x
    weights, missed = linear(best)
    named = {
        "constant": float(weights[0]),
        "exponent": float(weights[1]),
        "granularity_start": float(np.exp(best[0])),
        "granularity_maximum": float(np.exp(best[0]) + np.exp(best[1])),
    }
    return "power law, saturating", named, logs + missed


def _r_squared(measured: np.ndarray, predicted: np.ndarray) -> float:
    spread = np.sum((measured - measured.mean()) ** 2)
    return float(1 - np.sum((measured - predicted) ** 2) / spread) if spread > 0 else float("nan")
