"""Run the procedure of Tian et al. (2025): efficiency leverage from loss-compute curves, and the laws fitted to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.optimize
import scipy.stats
from jaxtyping import Float, Int

from moejax.errors import UserError
from moejax.fit.fit_result import FitResult
from moejax.fit.runs import Runs, budgets
from moejax.fit.search.fit_law import Progress, fit_law
from moejax.fit.search.objective import Squared
from moejax.fit.search.starts import Sobol, Starts
from moejax.fit.selection.metrics import Metrics, metrics, predict
from moejax.fit.stored_structure import flops_by
from moejax.fit.sweeps.leverages import LEAST_BUDGETS, Family, leverages
from moejax.fit.tables.read_runs import ReadRuns, read_runs
from moejax.fit.uncertainty.covariance import with_uncertainty
from moejax.float64 import float64
from moejax.interval import in_percent
from moejax.json_text import finite
from moejax.laws.mixtures.leverage import Leverage, optimal_granularity
from moejax.laws.mixtures.routed import saturate
from moejax.papers.tian.power_laws import LEAST_SPLITS, PowerLaws, allocation_law, hyperparameter_law, points_of
from moejax.result import Column, Result, Table, percent
from moejax.wording import told

if TYPE_CHECKING:
    import pandas as pd

INPUTS = Leverage.inputs
TRAINED_BELOW = 6.0
"""Leverage below which the joint law is fitted; larger leverages test it (Section 4.2.3)."""
NO_START, NO_MAXIMUM = 1e-12, 1e12
"""Bounds at which the saturating transform of an activation ratio has no effect."""
LEAST_VALUES = 3
"""Minimum number of values of a factor that Eq. 4 needs to determine its effect."""
NO_GRANULARITY = {"granularity_square": 0.0, "granularity_slope": 0.0}
"""Fixed coefficients of Eq. 4 without its terms of G."""


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
class MeasuredLeverage:
    """Leverages by Algorithm 1, and the laws fitted to them."""

    dense: Family
    families: tuple[Family, ...]
    left_out: tuple[str, ...]
    points: Runs
    """Leverage of every group at every budget it was trained at; ``loss`` holds the leverage."""
    intervals: Float[np.ndarray, "points 2"]
    """Both bounds of every leverage's interval."""
    level: float
    undefined: int
    """Number of points without a leverage, whose loss is below the asymptote of the dense curve."""
    forms: tuple[FunctionalForm, ...]
    joint: JointLaw | None
    without_joint: str
    """Reason why Eq. 4 is not fitted, as a sentence; empty if it is."""

    def frame(self) -> pd.DataFrame:
        """Return a row per leverage with the prediction of Eq. 4; ``role`` marks the points it was fitted to."""
        import pandas as pd

        ratio, granularity = _architecture(self.points)
        table: dict[str, Any] = {
            "activation_ratio": ratio,
            "granularity": granularity,
            "flops": self.points.design.flops,
            "measured_efficiency_leverage": self.points.loss,
            "low": self.intervals[:, 0],
            "high": self.intervals[:, 1],
        }
        if self.joint is not None:
            table["predicted_efficiency_leverage"] = predict(self.joint.law, self.points, self.joint.fit.output)
            table["role"] = np.where(self.points.loss < TRAINED_BELOW, "fitted", "validation")
        return pd.DataFrame(table)

    def table(self) -> Table:
        """Return the leverages, a row per group and a column per budget."""
        (ratio, granularity), flops = _architecture(self.points), self.points.design.flops
        spent = np.unique(flops).tolist()
        columns = (Column("A", percent(2)), Column("G", ".4g"), *(Column(f"C = {one:.2g}", ".3f") for one in spent))
        found = dict(zip(zip(ratio, granularity, flops, strict=True), self.points.loss.tolist(), strict=True))
        families = sorted(set(zip(ratio.tolist(), granularity.tolist(), strict=True)))
        rows = [[*family, *(found.get((*family, one)) for one in spent)] for family in families]
        reach = np.median(np.sqrt(self.intervals[:, 1] / self.intervals[:, 0])) - 1
        notes = [
            f"{len(flops)} leverages, {self.undefined} more undefined",
            f"{in_percent(self.level)} intervals by the curves' noise: ±{100 * reach:.2g} % (median)",
        ]
        return Table("Efficiency leverage by Algorithm 1", columns, rows, notes, key="leverage")

    def curves(self) -> Table:
        """Return the loss-compute curves, the dense one first."""
        names = ("scale", "exponent", "irreducible")
        columns = (
            *(Column(name, ".4g") for name in ("activation", "granularity", "budgets", "scale")),
            *(Column(name, ".4f") for name in names[1:]),
            *(Column(name, ".3g") for name in ("least_flops", "most_flops")),
        )
        rows = [
            ["dense" if family is self.dense else family.activation_ratio, None, family.budgets]
            + [family.curve.coefficients[name] for name in names]
            + [float(at(family.runs.design.flops[family.runs.weight > 0])) for at in (np.min, np.max)]
            for family in (self.dense, *self.families)
        ]
        for row, family in zip(rows[1:], self.families, strict=True):
            row[1] = family.granularity
        return Table(
            "Loss-compute curves, L(C) = scale·C^exponent + irreducible",
            columns,
            rows,
            [f"Left out: {sentence}" for sentence in self.left_out],
        )

    def compared(self) -> Table:
        """Return the R² of Eqs. 1 to 3 and of the forms of Tables 16 and 17."""
        r_squared: dict[tuple[str, str], list[float]] = {}
        for one in self.forms:
            r_squared.setdefault((one.factor, one.form), []).append(one.r_squared)
        columns = (
            Column("factor"),
            Column("form", words=True),
            Column("fits"),
            Column("median R² of log EL", ".4f"),
        )
        rows = [[*named, len(each), float(np.median(each))] for named, each in r_squared.items()]
        return Table("Functional forms, one factor varied", columns, rows)


@dataclass(frozen=True, kw_only=True)
class JointLaw:
    """Eq. 4 fitted to leverages below ``TRAINED_BELOW``, and tested on the others."""

    fit: FitResult
    held_out: Metrics | None
    """Errors on the leverages that were not fitted; None if there are none."""
    residuals: Residuals

    @property
    def law(self) -> Leverage:
        """Fitted Eq. 4."""
        return self.fit.law

    @property
    def best_granularity(self) -> float | None:
        """Granularity of greatest leverage; None if there is no maximum (gamma of 0 or less)."""
        if self.law.granularity_square <= 0:
            return None
        # The optimum depends on neither activation ratio nor compute.
        return float(optimal_granularity(self.law, 0.1, 1e20).value["granularity"])

    def table(self) -> Table:
        """Return a table of coefficients and errors."""
        fit, tested, left = self.fit, self.held_out, self.residuals
        notes = [
            f"R² {fit.metrics.r_squared:.4f}, RMSE {fit.metrics.rmse:.4f}",
            f"held out ({tested.runs} at or above): RMSE {tested.rmse:.4f}"
            if tested
            else f"no leverage of {TRAINED_BELOW:g} or more to test on",
            f"residuals: mean {left.mean:.4f}, SD {left.deviation:.4f}, Shapiro-Wilk p {left.normal:.3g}",
        ]
        if self.best_granularity is not None:
            notes.append(f"best granularity at every A and C: G* = {self.best_granularity:.3g}")
        if fit.fixed:
            notes.append(f"fewer than {LEAST_VALUES} granularities: {', '.join(fit.fixed)} are held at 0")
        title = f"Joint law (Eq. 4), fitted to leverages below {TRAINED_BELOW:g}"
        columns = (Column("coefficient"), Column("value", ".6g"))
        return Table(title, columns, [*fit.coefficients.items()], notes, key="joint")


@dataclass(frozen=True, kw_only=True)
class TianRecipe:
    """Results of the procedure on a table."""

    leverage: MeasuredLeverage | None
    without_leverage: str
    """Reason why there is no leverage, as a sentence; empty if there is one."""
    hyperparameters: tuple[PowerLaws, ...]
    allocation: tuple[PowerLaws, ...]

    @property
    def laws(self) -> dict[str, Any]:
        """Fitted laws for figures by name: Eq. 4, and the hyperparameter law of mixtures."""
        joint = self.leverage and self.leverage.joint
        laws: dict[str, Any] = {"leverage": joint.law} if joint else {}
        mixtures = [one.law for one in self.hyperparameters if one.part == "mixtures"]
        return laws | ({"hyperparameters": mixtures[0]} if mixtures else {})

    def fits(self, dropped: tuple[str, ...] = ()) -> dict[str, FitResult]:
        """Return every fit by name, with the uncertainty that a file needs to answer without the runs.

        ``leverage`` is Eq. 4; ``curve-dense`` and ``curve-A4.62-G2`` are loss-compute curves, with A in percent.

        Args:
          dropped: rows of the table that were left out, with reasons.
        """
        if self.leverage is None:
            return {}
        measured, fits = self.leverage, {}
        if measured.joint is not None:
            points = measured.points.only(measured.points.loss < TRAINED_BELOW)
            fits["leverage"] = with_uncertainty(measured.joint.fit, points, dropped=dropped)
        for family in (measured.dense, *measured.families):
            own = f"A{100 * family.activation_ratio:.3g}-G{family.granularity:g}"
            name = "dense" if family is measured.dense else own
            fits[f"curve-{name}"] = with_uncertainty(family.curve, family.runs, dropped=dropped)
        return fits

    def tables(self) -> dict[str, pd.DataFrame]:
        """Return the tables that are not empty: leverages, curves, forms, coefficients, power laws and their runs."""
        import pandas as pd

        tables: dict[str, pd.DataFrame] = {}
        if self.leverage is not None:
            tables["leverages"] = self.leverage.frame()
            tables["loss_curves"] = _as_frame(self.leverage.curves())
            tables["forms"] = pd.DataFrame(
                [
                    {"factor": one.factor, "form": one.form, **one.held, "points": one.points}
                    | {"r_squared": one.r_squared, **one.coefficients}
                    for one in self.leverage.forms
                ]
            )
            if self.leverage.joint is not None:
                fitted = self.leverage.joint.fit.coefficients
                tables["coefficients"] = pd.DataFrame({"coefficient": [*fitted], "value": [*fitted.values()]})
        every = (*self.hyperparameters, *self.allocation)
        tables["power_laws"] = pd.DataFrame([row for one in every for row in one.rows()])
        for name, laws in (("near_optimal", self.hyperparameters), ("best_sizes", self.allocation)):
            tables[name] = points_of(laws)
        return {name: table for name, table in tables.items() if len(table)}

    def summary(self) -> Result:
        """Return curves, leverages, functional forms, the joint law, and the power laws."""
        warnings: list[str] = []
        tables: list[Table] = []
        if self.leverage is None:
            warnings.append(f"No leverage: {self.without_leverage}")
        else:
            measured = self.leverage
            tables += [measured.curves(), measured.table(), measured.compared()]
            if measured.joint is None:
                warnings.append(f"Eq. 4 is not fitted: {measured.without_joint}")
            else:
                warnings += measured.joint.fit.warnings
                tables.append(measured.joint.table())
        return Result(
            title="Tian et al. (2025) on this table",
            warnings=warnings,
            tables=[*tables, *(law.table() for law in (*self.hyperparameters, *self.allocation))],
            data=self.to_json(),
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain data; values that are not finite are null."""
        measured = self.leverage
        return {
            "recipe": "tian",
            "leverage": None if measured is None else _leverage_json(measured),
            "without_leverage": self.without_leverage or None,
            "hyperparameters": [law.to_json() for law in self.hyperparameters],
            "allocation": [law.to_json() for law in self.allocation],
        }


def _leverage_json(measured: MeasuredLeverage) -> dict[str, Any]:
    families = [
        {"activation_ratio": f.activation_ratio, "granularity": f.granularity, "curve": f.curve.to_json()}
        for f in measured.families
    ]
    joint = measured.joint
    return {
        "dense": measured.dense.curve.to_json(),
        "families": families,
        "left_out": list(measured.left_out),
        "leverages": [float(value) for value in measured.points.loss],
        "leverage_intervals": measured.intervals.tolist(),
        "undefined": measured.undefined,
        "forms": [finite(form) for form in measured.forms],
        "joint": None if joint is None else joint.fit.to_json(),
        "without_joint": measured.without_joint or None,
        "held_out": None if joint is None or joint.held_out is None else finite(joint.held_out),
        "residuals": None if joint is None else finite(joint.residuals),
    }


def in_model_scale(runs: Runs, table: Any) -> tuple[Runs, str]:
    """Return the runs with C = M·D by Appendix I, without logits, and a sentence about it.

    If the table does not store the architectures, return the runs unchanged and an empty sentence.
    """
    flops = flops_by("tian", table)
    if flops is None:
        return runs, ""
    note = (
        "FLOPs are M·D of Tian et al. (2025), Appendix I, without logits, by the column architecture; "
        "--map flops=flops keeps the table's own."
    )
    return dataclasses.replace(runs, design=dataclasses.replace(runs.design, flops=flops)), note


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
    """Fit curves, leverages, univariate forms and the joint law; and power laws if their columns are given.

    A group of models shares activation ratio and granularity. Its curve is fitted to the lowest loss at each budget
    (``runs.budgets``). The dense group has an activation ratio of 1. Laws that the runs do not determine are left out,
    with the reason. Eq. 4 has no terms of G if fewer than three granularities were trained.

    Args:
      learning_rate: learning rate of every run; with ``batch_tokens``, gives the hyperparameter law (Eq. 5).
      starts: starts of the laws of leverage; default: 2,048 points scaled by the data.

    Raises:
      UserError: a field is missing, or the runs determine no law of leverage, hyperparameters or allocation.
    """
    ratio, granularity = _architecture(runs)
    budget, flops = budgets(runs.design.flops)
    parts, family = _parts(ratio), _families(ratio, granularity)
    hyperparameters = hyperparameter_law(runs, budget, flops, parts, learning_rate, batch_tokens, family)
    allocation = allocation_law(runs, budget, flops, parts, family)
    leverage, reason = None, ""
    try:
        leverage = _measured(runs, starts or Sobol(seed=seed), level=level, seed=seed, progress=progress)
    except UserError as error:
        reason = told(error)
        if not hyperparameters and not allocation:
            raise
    return TianRecipe(
        leverage=leverage, without_leverage=reason, hyperparameters=hyperparameters, allocation=allocation
    )


def leverage_table(runs: Runs) -> pd.DataFrame:
    """Return ``MeasuredLeverage.frame`` of some runs.

    Raises:
      UserError: the runs give no leverage.
    """
    return _measured(runs, Sobol()).frame()


def curve_table(runs: Runs) -> pd.DataFrame:
    """Return the loss-compute curves of some runs, in the format of ``loss_curves.csv``.

    Raises:
      UserError: the runs give no leverage.
    """
    return _as_frame(_measured(runs, Sobol()).curves())


def size_table(runs: Runs) -> pd.DataFrame:
    """Return the best model scale and tokens of every budget, in the format of ``best_sizes.csv``.

    Raises:
      UserError: no budget has enough model sizes.
    """
    ratio, granularity = _architecture(runs)
    laws = allocation_law(runs, *budgets(runs.design.flops), _parts(ratio), _families(ratio, granularity))
    if not laws:
        raise UserError(
            f"Fewer than three budgets of these runs were split in {LEAST_SPLITS} ways into model scale and tokens; "
            f"train at three budgets or more, each with {LEAST_SPLITS} sizes of model."
        )
    return points_of(laws)


def _as_frame(table: Table) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame([*table.rows], columns=[column.name for column in table.columns])


def _parts(ratio: np.ndarray) -> dict[str, np.ndarray]:
    return {"mixtures": ratio != 1, "dense": ratio == 1}


def _families(ratio: np.ndarray, granularity: np.ndarray) -> np.ndarray:
    """Return a number per activation ratio and granularity."""
    return np.unique(np.stack([ratio, granularity]), axis=1, return_inverse=True)[1]


def _measured(
    runs: Runs, starts: Starts, *, level: float = 0.9, seed: int = 0, progress: Progress | None = None
) -> MeasuredLeverage:
    """Return the leverages, and the laws fitted to them.

    Raises:
      UserError: the dense runs have too few budgets, or no leverage is defined.
    """
    ratio, granularity = _architecture(runs)
    budget, flops = budgets(runs.design.flops)
    measured = leverages(runs, ratio, granularity, budget, flops, level=level, seed=seed, progress=progress)
    defined = np.isfinite(measured.value) & (measured.value > 0)
    rows, leverage = measured.rows[defined], measured.value[defined]
    if not len(rows):
        raise UserError(
            "No leverage is defined: every mixture's loss lies below what the dense curve ever reaches; train dense "
            "models at larger budgets."
        )
    points = dataclasses.replace(
        runs.where(rows), loss=leverage, weight=np.ones(len(rows)), output="efficiency_leverage"
    )
    # The curves are evaluated at the budgets, not at the FLOPs of each run.
    points = dataclasses.replace(points, design=dataclasses.replace(points.design, flops=flops[budget[rows]]))
    joint, reason = None, ""
    try:
        joint = joint_law(points, starts)
    except UserError as error:
        reason = told(error)
    return MeasuredLeverage(
        dense=measured.dense,
        families=measured.families,
        left_out=measured.left_out,
        points=points,
        intervals=np.stack([measured.low[defined], measured.high[defined]], axis=1),
        level=level,
        undefined=int((~defined).sum()),
        forms=tuple(_forms(points, ratio[rows], granularity[rows], budget[rows], flops, starts)),
        joint=joint,
        without_joint=reason,
    )


def _architecture(runs: Runs) -> tuple[np.ndarray, np.ndarray]:
    """Return activation ratio and granularity of every run, rounded so that equal architectures have equal values."""
    if missing := [name for name in INPUTS if getattr(runs.design, name) is None]:
        raise UserError(
            f"The recipe reads {', '.join(INPUTS)}, and the runs have no {', '.join(missing)}; name "
            f"their columns with --map OURS=THEIRS, or add them."
        )
    with float64():
        ratio, granularity = (np.asarray(x, float) for x in (runs.design.activation_ratio, runs.design.granularity))
    return np.round(ratio, 6), np.array([float(f"{g:.2g}") for g in granularity])


def joint_law(points: Runs, starts: Starts) -> JointLaw:
    """Fit Eq. 4 to the leverages below ``TRAINED_BELOW``; return it with its errors on the others, and all residuals.

    ``points.loss`` holds the leverages.

    Raises:
      UserError: there are too few leverages or activation ratios.
    """
    small = points.loss < TRAINED_BELOW
    ratio, granularity = _architecture(points.where(small)) if small.any() else (np.zeros(0), np.zeros(0))
    if (several := len(np.unique(ratio))) < LEAST_VALUES:
        raise UserError(
            f"Its leverages below {TRAINED_BELOW:g} have {several} activation ratios; {LEAST_VALUES} are needed: train "
            f"mixtures of further ratios at the small budgets."
        )
    fixed = NO_GRANULARITY if len(np.unique(granularity)) < LEAST_VALUES else {}
    free = len(dataclasses.fields(Leverage)) - len(fixed)
    if small.sum() < free:
        raise UserError(
            f"There are {small.sum()} leverages below {TRAINED_BELOW:g}, and it has {free} coefficients to set; train "
            f"more mixtures at the small budgets."
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


def _forms(
    points: Runs,
    ratio: np.ndarray,
    granularity: np.ndarray,
    budget: Int[np.ndarray, " points"],
    flops: np.ndarray,
    starts: Starts,
) -> list[FunctionalForm]:
    """Fit Eqs. 1 to 3 at each pair of fixed other factors, with the alternatives of Tables 16 and 17."""
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
    """Fit Eq. 1 and the plain power law: both are Eq. 4 with the other factors' coefficients at 0."""
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
    """Fit polynomials of log leverage in the factor's logarithm, with the base of Eq. 4."""
    log, forms = LOGS[factor]
    x, y = log(values[same]), np.log(points.loss[same])
    fits = []
    for form, degree in forms.items():
        weights = np.polynomial.Polynomial.fit(x, y, degree).convert().coef
        predicted = np.polynomial.Polynomial(weights)(x)
        named = {f"power_{power}": float(weight) for power, weight in enumerate(weights)}
        fits.append({"form": form, "coefficients": named, "r_squared": _share(y, predicted)})
    if factor == "G" and len(np.unique(x)) > SATURATING_COEFFICIENTS:
        fits.append(_saturating(values[same], y))
    return fits


SATURATING_COEFFICIENTS = 4


def _saturating(granularity: np.ndarray, logs: np.ndarray) -> dict[str, Any]:
    """Fit Table 17's third form, EL = exp(constant)·Ĝ^exponent with Ĝ saturated as A in Eq. 1.

    The paper does not print it. Inferred: a constant as in Eq. 2, since EL is not 1 at G = 1, and a lower bound of 0,
    as for A. At given bounds log EL is linear in the other two coefficients, so that only the bounds are searched.
    """

    def linear(ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        start = np.exp(ends[0])
        columns = np.stack([np.ones_like(logs), np.log(saturate(granularity, start, start + np.exp(ends[1]), 0))], 1)
        weights = np.linalg.lstsq(columns, logs, rcond=None)[0]
        return weights, columns @ weights - logs

    every = [(start, above) for start in (-2.0, 0.0, 2.0) for above in (0.0, 2.0, 5.0)]
    bounds = ([np.log(1e-3), np.log(1e-3)], [np.log(1e3), np.log(1e6)])
    found = [scipy.optimize.least_squares(lambda ends: linear(ends)[1], one, bounds=bounds) for one in every]
    best = min(found, key=lambda one: one.cost).x
    weights, missed = linear(best)
    named = {
        "constant": float(weights[0]),
        "exponent": float(weights[1]),
        "granularity_start": float(np.exp(best[0])),
        "granularity_maximum": float(np.exp(best[0]) + np.exp(best[1])),
    }
    return {"form": "power law, saturating", "coefficients": named, "r_squared": _share(logs, logs + missed)}


LOGS: dict[str, Any] = {
    "G": (np.log2, {"log-polynomial (Eq. 2)": 2, "power law": 1}),
    "C": (np.log10, {"power law (Eq. 3)": 1}),
}


def _share(measured: np.ndarray, predicted: np.ndarray) -> float:
    spread = np.sum((measured - measured.mean()) ** 2)
    return float(1 - np.sum((measured - predicted) ** 2) / spread) if spread > 0 else float("nan")


@dataclass(frozen=True, kw_only=True)
class Followed:
    """The procedure applied to a run table of moejax."""

    found: TianRecipe
    read: ReadRuns
    runs: Runs
    """All runs, with compute as the paper counts it."""

    @property
    def result(self) -> Result:
        """Summary of the procedure's results."""
        return self.found.summary()

    def to_json(self) -> dict[str, Any]:
        """Return the results as plain data."""
        return self.found.to_json()


def follow(table: Path, models: Sequence[str], seed: int) -> Followed:
    """Apply the procedure to a run table of moejax, to all models if ``models`` is empty.

    Raises:
      UserError: the runs do not meet the procedure's requirements.
    """
    read = read_runs(table, INPUTS, trust_units=True)
    runs, _ = in_model_scale(read.runs, read.frame)
    kept = np.isin(read.frame["model"], models) if models else np.ones(len(runs), bool)
    tried = {name: read.frame[name].to_numpy(np.float64)[kept] for name in ("learning_rate", "batch_tokens")}
    return Followed(found=tian(runs.where(kept), **tried, seed=seed), read=read, runs=runs)
