"""The procedure of Tian et al. (2025): efficiency leverage from loss-compute curves, and the laws fitted to it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.stats
from jaxtyping import Float, Int

from moejax.errors import UserError
from moejax.fit.fit_law import Progress, fit_law
from moejax.fit.fit_result import FitResult
from moejax.fit.leverages import LEAST_BUDGETS, Family, leverages
from moejax.fit.metrics import Metrics, metrics, predict
from moejax.fit.objective import Squared
from moejax.fit.power_laws import PowerLaws, allocation_law, hyperparameter_law
from moejax.fit.runs import Runs, budgets
from moejax.fit.starts import Sobol, Starts
from moejax.float64 import float64
from moejax.laws.leverage import Leverage
from moejax.result import Column, Result, Table

INPUTS = Leverage.inputs
TRAINED_BELOW = 6.0
"""Section 4.2.3: the joint law is fitted to smaller leverages and tested on the rest."""
NO_START, NO_MAXIMUM = 1e-12, 1e12
"""Ends between which the saturating transform of an activation ratio does nothing."""


@dataclass(frozen=True, kw_only=True)
class FunctionalForm:
    """One functional form of leverage in one factor, the other two held."""

    factor: str
    form: str
    held: dict[str, float]
    points: int
    coefficients: dict[str, float]
    r_squared: float
    """R² of log leverage."""


@dataclass(frozen=True, kw_only=True)
class Residuals:
    """Measured less predicted leverage, over fitted and held-out points (Figure 17)."""

    mean: float
    deviation: float
    normal: float
    """Probability, by Shapiro and Wilk, of residuals at least this far from normal if they were; NaN below 3 points."""


@dataclass(frozen=True, kw_only=True)
class TianRecipe:
    """What the procedure finds in a table."""

    dense: FitResult
    families: tuple[Family, ...]
    left_out: tuple[str, ...]
    points: Runs
    """Leverage of every family at every budget it was trained at; ``loss`` holds the leverage."""
    intervals: Float[np.ndarray, "points 2"]
    """Both ends of every leverage's interval."""
    level: float
    undefined: int
    """Points without a leverage: the mixture's loss lies below what the dense curve ever reaches."""
    forms: tuple[FunctionalForm, ...]
    joint: FitResult
    held_out: Metrics | None
    residuals: Residuals
    hyperparameters: tuple[PowerLaws, ...]
    allocation: tuple[PowerLaws, ...]

    @property
    def law(self) -> Leverage:
        """Eq. 4 as fitted."""
        return self.joint.law

    def summary(self) -> Result:
        """Curves, leverage, forms, joint law, side laws."""
        curves = [["dense", None, self.dense], *([f.activation_ratio, f.granularity, f.curve] for f in self.families)]
        curve_columns = (
            *(Column(name, ".4g") for name in ("activation", "granularity", "scale")),
            *(Column(name, ".4f") for name in ("exponent", "irreducible")),
        )
        reach = np.median(np.sqrt(self.intervals[:, 1] / self.intervals[:, 0])) - 1
        r_squared: dict[tuple[str, str], list[float]] = {}
        for one in self.forms:
            r_squared.setdefault((one.factor, one.form), []).append(one.r_squared)
        form_columns = (
            Column("factor"),
            Column("form", words=True),
            Column("fits"),
            Column("median R² of log EL", ".4f"),
        )
        r, joint, tested = self.residuals, self.joint.metrics, self.held_out
        return Result(
            title="Tian et al. (2025) on this table",
            warnings=self.joint.warnings,
            tables=[
                Table(
                    "Loss-compute curves, L(C) = scale·C^exponent + irreducible",
                    curve_columns,
                    [[*named, *(fit.coefficients[c.name] for c in curve_columns[2:])] for *named, fit in curves],
                    [f"Left out: {sentence}" for sentence in self.left_out],
                ),
                Table(
                    f"{len(self.points)} leverages by Algorithm 1, {self.undefined} more undefined",
                    form_columns,
                    [[*named, len(each), float(np.median(each))] for named, each in r_squared.items()],
                    [f"{self.level:.0%} intervals of leverages by the curves' noise: ±{100 * reach:.2g} % (median)"],
                ),
                Table(
                    f"Joint law (Eq. 4), fitted to leverages below {TRAINED_BELOW:g}",
                    (Column("coefficient"), Column("value", ".6g")),
                    [*self.joint.coefficients.items()],
                    [
                        f"R² {joint.r_squared:.4f}, RMSE {joint.rmse:.4f}",
                        f"held out ({tested.runs} at or above): RMSE {tested.rmse:.4f}"
                        if tested
                        else f"no leverage of {TRAINED_BELOW:g} or more to test on",
                        f"residuals: mean {r.mean:.4f}, SD {r.deviation:.4f}, Shapiro-Wilk p {r.normal:.3g}",
                    ],
                ),
                *(law.table() for law in (*self.hyperparameters, *self.allocation)),
            ],
            data=self.to_json(),
        )

    def to_json(self) -> dict[str, Any]:
        """As plain data; what is not a number is null."""
        families = [
            {"activation_ratio": f.activation_ratio, "granularity": f.granularity, "curve": f.curve.to_json()}
            for f in self.families
        ]
        return {
            "recipe": "tian",
            "dense": self.dense.to_json(),
            "families": families,
            "left_out": list(self.left_out),
            "leverages": [float(value) for value in self.points.loss],
            "leverage_intervals": self.intervals.tolist(),
            "undefined": self.undefined,
            "forms": [_finite(dataclasses.asdict(form)) for form in self.forms],
            "joint": self.joint.to_json(),
            "held_out": None if self.held_out is None else _finite(dataclasses.asdict(self.held_out)),
            "residuals": _finite(dataclasses.asdict(self.residuals)),
            "hyperparameters": [law.to_json() for law in self.hyperparameters],
            "allocation": [law.to_json() for law in self.allocation],
        }


def tian(
    runs: Runs,
    *,
    learning_rate: Float[np.ndarray, " runs"] | None = None,
    batch_tokens: Float[np.ndarray, " runs"] | None = None,
    starts: Starts | None = None,
    level: float = 0.9,
    seed: int = 0,
    progress: Progress | None = None,
) -> TianRecipe:
    """Curves, leverages, univariate forms, the joint law; and, where their columns are given, the side laws.

    A family is what shares activation ratio and granularity; its curve goes through the lowest loss at each budget
    (FLOPs within 10 %). The dense family has an activation ratio of 1.

    Args:
      learning_rate: of every run; with ``batch_tokens``, gives the hyperparameter law (Eq. 5).
      starts: of the laws of leverage; 2,048 points scaled by the data, if not given.

    Raises:
      UserError: a field is missing, no dense family has enough budgets, or too few leverages are defined.
    """
    starts = starts or Sobol(seed=seed)
    ratio, granularity = _architecture(runs)
    budget, flops = budgets(runs.design.flops)
    measured = leverages(runs, ratio, granularity, budget, flops, level=level, seed=seed, progress=progress)
    defined = np.isfinite(measured.value) & (measured.value > 0)
    rows, leverage = measured.rows[defined], measured.value[defined]
    if not len(rows):
        raise UserError("No leverage is defined: every mixture's loss lies below what the dense curve ever reaches.")
    points = dataclasses.replace(
        runs.where(rows), loss=leverage, weight=np.ones(len(rows)), output="efficiency_leverage"
    )
    # The curves were read at the budgets, not at what each run happened to spend.
    points = dataclasses.replace(points, design=dataclasses.replace(points.design, flops=flops[budget[rows]]))
    joint, held_out, residuals = joint_law(points, starts)
    mixtures = {"mixtures": ratio != 1, "dense": ratio == 1}
    return TianRecipe(
        dense=measured.dense,
        families=measured.families,
        left_out=measured.left_out,
        points=points,
        intervals=np.stack([measured.low[defined], measured.high[defined]], axis=1),
        level=level,
        undefined=int((~defined).sum()),
        forms=tuple(_forms(points, ratio[rows], granularity[rows], budget[rows], flops, starts)),
        joint=joint,
        held_out=held_out,
        residuals=residuals,
        hyperparameters=hyperparameter_law(runs, budget, flops, mixtures, learning_rate, batch_tokens),
        allocation=allocation_law(runs, budget, flops, mixtures),
    )


def _architecture(runs: Runs) -> tuple[np.ndarray, np.ndarray]:
    """Activation ratio and granularity of every run, rounded so that equal ones are equal."""
    if missing := [name for name in INPUTS if getattr(runs.design, name) is None]:
        raise UserError(f"The recipe reads {', '.join(INPUTS)}, and the runs have no {', '.join(missing)}.")
    with float64():
        ratio, granularity = (np.asarray(x, float) for x in (runs.design.activation_ratio, runs.design.granularity))
    return np.round(ratio, 5), np.array([float(f"{g:.2g}") for g in granularity])


def joint_law(points: Runs, starts: Starts) -> tuple[FitResult, Metrics | None, Residuals]:
    """Eq. 4 on the leverages below ``TRAINED_BELOW``, its errors on the others, and what is left of all.

    ``points.loss`` holds the leverages.
    """
    small = points.loss < TRAINED_BELOW
    fit = fit_law(Leverage, points.only(small), starts=starts)
    left = points.loss - predict(fit.law, points, fit.output)
    return (
        fit,
        metrics(fit.law, points.only(~small), fit.output) if not small.all() else None,
        Residuals(
            mean=float(left.mean()),
            deviation=float(left.std()),
            normal=float(scipy.stats.shapiro(left).pvalue) if len(left) > 2 else float("nan"),
        ),
    )


def _forms(
    points: Runs,
    ratio: np.ndarray,
    granularity: np.ndarray,
    budget: Int[np.ndarray, " points"],
    flops: np.ndarray,
    starts: Starts,
) -> list[FunctionalForm]:
    """Eqs. 1 to 3 wherever the other two factors are held, with the alternatives of Tables 16 and 17."""
    factors = {"A": ratio, "G": granularity, "C": flops[budget]}
    forms = []
    for factor, values in factors.items():
        others = {name: v for name, v in factors.items() if name != factor}
        for held in sorted(set(zip(*others.values(), strict=True))):
            same = np.all([v == h for v, h in zip(others.values(), held, strict=True)], axis=0)
            if len(np.unique(values[same])) < LEAST_BUDGETS:
                continue
            common = {"factor": factor, "held": dict(zip(others, map(float, held), strict=True))}
            fits = _in_ratio(points.only(same), starts) if factor == "A" else _in_logs(factor, points, values, same)
            forms += [FunctionalForm(**common, points=int(same.sum()), **one) for one in fits]
    return forms


def _in_ratio(points: Runs, starts: Starts) -> list[dict[str, Any]]:
    """Eq. 1 and the plain power law: both are Eq. 4 with the other factors' coefficients at 0."""
    none = {"flops_slope": 0.0, "granularity_square": 0.0, "granularity_slope": 0.0}
    plain = none | {"ratio_start": NO_START, "ratio_maximum": NO_MAXIMUM}
    kept = points.weight > 0
    fits = []
    for form, fixed in (("saturating power law (Eq. 1)", none), ("power law", plain)):
        fit = fit_law(Leverage, points, starts=starts, fixed=fixed, penalty=Squared())
        predicted = np.log(predict(fit.law, points, fit.output)[kept])
        free = {name: value for name, value in fit.coefficients.items() if name not in fixed}
        fits.append({"form": form, "coefficients": free, "r_squared": _share(np.log(points.loss[kept]), predicted)})
    return fits


def _in_logs(factor: str, points: Runs, values: np.ndarray, same: np.ndarray) -> list[dict[str, Any]]:
    """Polynomials of log leverage in the factor's logarithm, of the base that Eq. 4 has."""
    log, forms = LOGS[factor]
    x, y = log(values[same]), np.log(points.loss[same])
    fits = []
    for form, degree in forms.items():
        weights = np.polynomial.Polynomial.fit(x, y, degree).convert().coef
        predicted = np.polynomial.Polynomial(weights)(x)
        named = {f"power_{power}": float(weight) for power, weight in enumerate(weights)}
        fits.append({"form": form, "coefficients": named, "r_squared": _share(y, predicted)})
    return fits


LOGS: dict[str, Any] = {
    "G": (np.log2, {"log-polynomial (Eq. 2)": 2, "power law": 1}),
    "C": (np.log10, {"power law (Eq. 3)": 1}),
}


def _share(measured: np.ndarray, predicted: np.ndarray) -> float:
    spread = np.sum((measured - measured.mean()) ** 2)
    return float(1 - np.sum((measured - predicted) ** 2) / spread) if spread > 0 else float("nan")


def _finite(plain: dict[str, Any]) -> dict[str, Any]:
    return {k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in plain.items()}
