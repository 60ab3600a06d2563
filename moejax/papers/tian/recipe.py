"""Run the procedure of Tian et al. (2025): compute leverage from loss-compute curves, and fit laws to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from moejax.errors import UserError
from moejax.fit.fit_result import FitResult
from moejax.fit.runs import Runs, budgets
from moejax.fit.search.fit_law import Progress
from moejax.fit.search.starts import Sobol, Starts
from moejax.fit.selection.metrics import predict
from moejax.fit.tables.read_runs import ReadRuns, read_runs
from moejax.fit.uncertainty.covariance import with_uncertainty
from moejax.interval import in_percent
from moejax.json_text import finite
from moejax.papers.tian.leverage_laws import (
    INPUTS,
    TRAINED_BELOW,
    FunctionalForm,
    JointLaw,
    architecture,
    functional_forms,
    joint_law,
)
from moejax.papers.tian.leverages import Family, leverages
from moejax.papers.tian.power_laws import LEAST_SPLITS, PowerLaws, allocation_law, hyperparameter_law, points_of
from moejax.report.stored_structure import flops_by
from moejax.result import Column, Result, Table, percent
from moejax.run_table import DataFrame
from moejax.wording import told

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True)
class MeasuredLeverage:
    """Leverages by Algorithm 1, and the laws fitted to them."""

    dense: Family
    families: tuple[Family, ...]
    left_out: tuple[str, ...]
    points: Runs
    """Leverage of every group at every trained budget; ``loss`` contains the leverage."""
    intervals: Float[np.ndarray, "points 2"]
    """Lower and upper bound of every leverage's interval."""
    level: float
    undefined: int
    """Number of points without a leverage, because their loss is below the dense curve's asymptote."""
    forms: tuple[FunctionalForm, ...]
    joint: JointLaw | None
    without_joint: str
    """Reason why Eq. 4 is not fitted, as a sentence; empty if it is fitted."""

    def frame(self) -> pd.DataFrame:
        """Return a table with a row per leverage and its prediction by Eq. 4; ``role`` marks fitted and held-out
        points."""
        import pandas as pd

        ratio, granularity = architecture(self.points)
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
        """Return a table of leverages with a row per group and a column per budget."""
        (ratio, granularity), flops = architecture(self.points), self.points.design.flops
        spent = np.unique(flops).tolist()
        columns = (Column("A", percent(2)), Column("G", ".4g"), *(Column(f"C = {one:.2g}", ".3f") for one in spent))
        measured = dict(zip(zip(ratio, granularity, flops, strict=True), self.points.loss.tolist(), strict=True))
        families = sorted(set(zip(ratio.tolist(), granularity.tolist(), strict=True)))
        rows = [[*family, *(measured.get((*family, one)) for one in spent)] for family in families]
        reach = np.median(np.sqrt(self.intervals[:, 1] / self.intervals[:, 0])) - 1
        notes = [
            f"{len(flops)} leverages are defined, {self.undefined} are undefined",
            f"{in_percent(self.level)} intervals from the curves' noise: ±{100 * reach:.2g} % (median)",
        ]
        return Table("Efficiency leverage by Algorithm 1", columns, rows, notes, key="leverage")

    def curves(self) -> Table:
        """Return a table of the loss-compute curves, starting with the dense curve."""
        columns = (
            Column("activation", ".4g", value=lambda one: "dense" if one is self.dense else one.activation_ratio),
            Column("granularity", ".4g", value=lambda one: None if one is self.dense else one.granularity),
            Column("budgets", ".4g", value="budgets"),
            Column("scale", ".4g", value=lambda one: one.curve.coefficients["scale"]),
            Column("exponent", ".4f", value=lambda one: one.curve.coefficients["exponent"]),
            Column("irreducible", ".4f", value=lambda one: one.curve.coefficients["irreducible"]),
            Column("least_flops", ".3g", value=lambda one: float(one.spent.min())),
            Column("most_flops", ".3g", value=lambda one: float(one.spent.max())),
        )
        notes = [f"Left out: {sentence}" for sentence in self.left_out]
        title = "Loss-compute curves, L(C) = scale·C^exponent + irreducible"
        return Table.of(title, columns, (self.dense, *self.families), notes)

    def compared(self) -> Table:
        """Return a table of R² for Eqs. 1 to 3 and the forms of Tables 16 and 17."""
        r_squared: dict[tuple[str, str], list[float]] = {}
        for one in self.forms:
            r_squared.setdefault((one.factor, one.form), []).append(one.r_squared)
        columns = (Column("factor"), Column("form", words=True), Column("fits"), Column("median R² of log EL", ".4f"))
        rows = [[*named, len(each), float(np.median(each))] for named, each in r_squared.items()]
        return Table("Functional forms, one factor varied", columns, rows)

    def to_json(self) -> dict[str, Any]:
        """Return plain data for JSON, keyed by name; values that are not finite are null."""
        joint = self.joint
        families = [
            {"activation_ratio": f.activation_ratio, "granularity": f.granularity, "curve": f.curve.to_json()}
            for f in self.families
        ]
        return {
            "dense": self.dense.curve.to_json(),
            "families": families,
            "left_out": list(self.left_out),
            "leverages": self.points.loss.tolist(),
            "leverage_intervals": self.intervals.tolist(),
            "undefined": self.undefined,
            "forms": finite(self.forms),
            "joint": joint and joint.fit.to_json(),
            "without_joint": self.without_joint or None,
            "held_out": joint and joint.held_out and finite(joint.held_out),
            "residuals": joint and finite(joint.residuals),
        }


@dataclass(frozen=True, kw_only=True)
class TianRecipe:
    """Results of the procedure on a table."""

    leverage: MeasuredLeverage | None
    without_leverage: str
    """Reason why there is no leverage, as a sentence; empty if there is leverage."""
    hyperparameters: tuple[PowerLaws, ...]
    allocation: tuple[PowerLaws, ...]

    @property
    def laws(self) -> dict[str, Any]:
        """Fitted laws that figures use, keyed by law name: Eq. 4 (``leverage``) and the hyperparameter law of MoE
        models."""
        joint = self.leverage and self.leverage.joint
        laws: dict[str, Any] = {"leverage": joint.law} if joint else {}
        mixtures = [one.law for one in self.hyperparameters if one.part == "mixtures"]
        return laws | ({"hyperparameters": mixtures[0]} if mixtures else {})

    def fits(self, dropped: tuple[str, ...] = ()) -> dict[str, FitResult]:
        """Return every fit with its uncertainty, keyed by name. A saved fit then gives intervals without the runs.

        ``leverage`` is Eq. 4; ``curve-dense`` and ``curve-A4.62-G2`` are loss-compute curves, with A in percent.

        Args:
          dropped: messages about omitted table rows, with reasons.
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
        """Return the non-empty tables of leverages, curves, forms, coefficients and power laws, keyed by file name."""
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
        """Return tables of curves, leverages, functional forms, the joint law, and the power laws."""
        warnings: list[str] = []
        tables: list[Table] = []
        if self.leverage is None:
            warnings.append(f"The efficiency leverage was not computed: {self.without_leverage}")
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
        """Return plain data for JSON, keyed by name; values that are not finite are null."""
        measured = self.leverage
        return {
            "recipe": "tian",
            "leverage": measured and measured.to_json(),
            "without_leverage": self.without_leverage or None,
            "hyperparameters": [law.to_json() for law in self.hyperparameters],
            "allocation": [law.to_json() for law in self.allocation],
        }


def in_model_scale(runs: Runs, table: DataFrame) -> tuple[Runs, str]:
    """Return the runs with C = M·D by Appendix I, without logits, and a sentence about this convention.

    If the table does not store the architectures, return the runs unchanged and an empty sentence.
    """
    flops = flops_by("tian", table)
    if flops is None:
        return runs, ""
    note = (
        "FLOPs are M·D by Tian et al. (2025), Appendix I, without logits, computed from the column architecture; "
        "--map flops=flops keeps the table's FLOPs."
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
    """Fit curves, leverages, univariate forms and the joint law, and power laws if the runs have their columns.

    A group of models shares activation ratio and granularity. Its curve is fitted to the lowest loss at each budget
    (``runs.budgets``). The dense group has an activation ratio of 1. Laws that the runs do not determine are omitted,
    with the reason. Eq. 4 has no G terms if fewer than three granularities were trained.

    Args:
      learning_rate: learning rate of every run, for the hyperparameter law (Eq. 5), which also needs ``batch_tokens``.
      starts: initial guesses for the leverage laws; by default 2,048 points scaled by the data.

    Raises:
      UserError: a field is missing, or the runs determine no leverage, hyperparameter or allocation law.
    """
    ratio, granularity = architecture(runs)
    budget, flops = budgets(runs.design.flops)
    parts, family = _parts(ratio), _families(ratio, granularity)
    hyperparameters = hyperparameter_law(runs, budget, flops, parts, learning_rate, batch_tokens, family)
    allocation = allocation_law(runs, budget, parts, family)
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
    ratio, granularity = architecture(runs)
    budget, _ = budgets(runs.design.flops)
    laws = allocation_law(runs, budget, _parts(ratio), _families(ratio, granularity))
    if not laws:
        raise UserError(
            f"Fewer than three budgets of these runs have {LEAST_SPLITS} splits into model scale and tokens; train at "
            f"three budgets or more, each with {LEAST_SPLITS} model sizes."
        )
    return points_of(laws)


def _as_frame(table: Table) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame([*table.rows], columns=[column.name for column in table.columns])


def _parts(ratio: np.ndarray) -> dict[str, np.ndarray]:
    return {"mixtures": ratio != 1, "dense": ratio == 1}


def _families(ratio: np.ndarray, granularity: np.ndarray) -> np.ndarray:
    """Return a group number for every run. Runs with equal activation ratio and granularity form a group."""
    return np.unique(np.stack([ratio, granularity]), axis=1, return_inverse=True)[1]


def _measured(
    runs: Runs, starts: Starts, *, level: float = 0.9, seed: int = 0, progress: Progress | None = None
) -> MeasuredLeverage:
    """Compute the leverages, and fit laws to them.

    Raises:
      UserError: the dense runs have too few budgets, or no leverage is defined.
    """
    ratio, granularity = architecture(runs)
    budget, flops = budgets(runs.design.flops)
    measured = leverages(runs, ratio, granularity, budget, flops, level=level, seed=seed, progress=progress)
    defined = np.isfinite(measured.value) & (measured.value > 0)
    rows, leverage = measured.rows[defined], measured.value[defined]
    if not len(rows):
        raise UserError(
            "No leverage is defined: every MoE model's loss is below the asymptote of the dense curve. Train dense "
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
        forms=functional_forms(points, starts),
        joint=joint,
        without_joint=reason,
    )


@dataclass(frozen=True, kw_only=True)
class Followed:
    """The procedure applied to a moejax run table."""

    recipe: TianRecipe
    read: ReadRuns
    runs: Runs
    """All runs, with compute by the paper's convention."""

    @property
    def result(self) -> Result:
        """Summary of the procedure's results."""
        return self.recipe.summary()

    def to_json(self) -> dict[str, Any]:
        """Return the results as plain data for JSON, keyed by name."""
        return self.recipe.to_json()


def follow(table: Path, models: Sequence[str], seed: int) -> Followed:
    """Apply the procedure to the named models of a moejax run table, or to all models if ``models`` is empty.

    Raises:
      UserError: the runs do not meet the procedure's requirements.
    """
    read = read_runs(table, INPUTS, trust_units=True)
    runs, _ = in_model_scale(read.runs, read.frame)
    kept = np.isin(read.frame["model"], models) if models else np.ones(len(runs), bool)
    tried = {name: read.frame[name].to_numpy(np.float64)[kept] for name in ("learning_rate", "batch_tokens")}
    return Followed(recipe=tian(runs.where(kept), **tried, seed=seed), read=read, runs=runs)
