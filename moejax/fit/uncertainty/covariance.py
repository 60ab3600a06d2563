"""Compute the covariance of a fit from the curvature at its optimum, and the variance of runs around the fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from moejax.errors import UserError
from moejax.fit.fit_result import FitResult
from moejax.fit.runs import RESAMPLED, Runs, draws_of, sums_by_group
from moejax.fit.selection.metrics import predict
from moejax.fit.uncertainty.derivatives import FitDerivatives, derivatives
from moejax.fit.uncertainty.extrapolation import flops_convention, ranges, where_decided
from moejax.fit.uncertainty.noise import CLIPPED, left_by, log_residuals, noise
from moejax.fit.uncertainty.uncertainty import (
    COVARIANCES,
    WHOLE,
    Leverages,
    Uncertainty,
    alone,
    parts,
    set_alone,
    stretch,
)
from moejax.fit.uncertainty.undetermined import FLAT, undetermined
from moejax.laws.curves.schedule_sums import REACH
from moejax.laws.formula_law import SIGNS, FormulaLaw, assumed_signs
from moejax.laws.law import Law, coefficients, is_power
from moejax.wording import argument, command, counted, option_hint, some

Matrix = Float[np.ndarray, "free free"]

NO_LUCK = 1e-12
"""Share of the largest variance, along axes that are orthonormal over the runs, below which a variance is rounding
error."""


@dataclass(frozen=True, kw_only=True)
class Draws:
    """Contributions of the draws (groups of runs, or single runs) to a fit, along axes orthonormal over the runs."""

    axes: Float[np.ndarray, "axes free"]
    """Step of the coordinates per unit of each axis, rotated so that the fit's covariance is diagonal."""
    deviations: Float[np.ndarray, " axes"]
    """Standard deviation of the fit along each axis."""
    leverages: Leverages

    @property
    def seen(self) -> float:
        """Number of directions in which some draw has a residual; in the other directions the variance between draws is
        unknown."""
        return len(self.axes) - float(np.trace(alone(self.leverages, len(self.axes))))

    @property
    def covariance(self) -> Matrix:
        """Covariance of the coordinates."""
        steps = self.deviations[:, None] * self.axes
        return steps.T @ steps


def draws_at(at: FitDerivatives, labels: np.ndarray, hidden: float | np.ndarray = 0.0) -> Draws:
    """Return the cluster-robust covariance CR2 (Bell and McCaffrey 2002) of the fit, linearized at its optimum.

    The covariance is B⁻¹ · (sum over groups of g·gᵀ) · B⁻¹. B is the expected Hessian of the objective, and g is a
    group's gradient, computed from psi (the penalty's derivative) multiplied by (I - H_gg)^(-1/2). I is the identity
    and H_gg the group's block of the hat matrix: a group with leverage pulls the fit towards itself, so its residuals
    are too small by a known factor. Psi is linear in the fitted values to first order, so the result for least squares
    applies.

    If only one group determines a direction, it has no residual in that direction. Its variance in that direction is
    taken from the other groups.

    Args:
      hidden: additional variance of every run's psi (the penalty's derivative) that residuals do not show, independent
        between runs.
    """
    root = np.sqrt(at.weight)
    rows, psi = root[:, None] * at.jacobian, root * at.psi
    # Basis with orthonormal columns over the runs: H = Q·Qᵀ.
    size, turned = np.linalg.svd(rows, full_matrices=False)[1:]
    kept = ~undetermined(size)
    basis = rows @ turned[kept].T / size[kept]
    slopes, leverages = [], []
    for own in _rows_by_label(labels, at.weight > 0):
        left, leverage, right = np.linalg.svd(basis[own], full_matrices=False)
        # Compute Qᵀ·(I - H_gg)^(-1/2)·psi without a runs-by-runs matrix.
        slopes.append(right.T @ (leverage * stretch(leverage) * (left.T @ psi[own])))
        leverages.append(leverage[:, None] * right)
    seen, lost = np.stack(slopes).T @ np.stack(slopes), alone(leverages, int(kept.sum()))
    # Runs whose optima are on a grid may have residuals of 0; without this term, their variance would be 0.
    seen = seen + (basis.T * (at.weight * hidden)) @ basis
    like_others = np.trace(seen) / max(int(kept.sum()) - np.trace(lost), WHOLE)
    variances, ways = np.linalg.eigh(seen + like_others * lost)
    # With fewer groups than coefficients, some directions have no variance. Rounding leaves about 1e-24 in these
    # directions, and later steps would divide by it.
    variances = np.where(variances > NO_LUCK * variances.max(), variances, 0.0)
    there = np.linalg.pinv(at.curvature, rcond=FLAT, hermitian=True)
    return Draws(
        axes=(ways.T * size[kept]) @ turned[kept] @ there,
        deviations=np.sqrt(variances),
        leverages=tuple(rows @ ways for rows in leverages),
    )


def _rows_by_label(labels: np.ndarray, kept: Bool[np.ndarray, " runs"]) -> list[np.ndarray]:
    """Return the indices of the kept rows of every label, in the order of labels."""
    rows = np.flatnonzero(kept)
    rows = rows[np.argsort(labels[rows], kind="stable")]
    return np.split(rows, np.flatnonzero(np.diff(labels[rows])) + 1)


def gauss_newton(at: FitDerivatives, hidden: float | np.ndarray = 0.0) -> Matrix:
    """Return dispersion · B⁻¹, where B is the expected Hessian; valid if residuals are independent and identically
    distributed.

    Args:
      hidden: as in ``draws_at``.
    """
    inverse = np.linalg.pinv(at.curvature, rcond=FLAT, hermitian=True)
    return inverse * at.dispersion + inverse @ (at.jacobian.T * (at.weight * hidden)) @ at.jacobian @ inverse


def hidden_share(result: FitResult, runs: Runs) -> float:
    """Return the share of the grid's variance (``Runs.resolution``) that residuals do not show; 0 without a grid.

    If the best settings of all models are on the same grid values, a fit to these settings can have residuals of 0.
    """
    if not runs.coarseness:
        return 0.0
    residual = log_residuals(predict(result.law, runs, result.output), runs.loss, runs.weight)
    return max(1 - (noise(residual, runs.weight, result.free) / runs.coarseness) ** 2, 0.0)


def _hidden(result: FitResult, runs: Runs, at: FitDerivatives) -> Any:
    """Return the variance of every run's psi due to the grid that residuals do not show."""
    if runs.resolution is None:
        return 0.0
    size = runs.loss if result.penalty.residual == "nats" else 1.0
    return hidden_share(result, runs) * (at.stiffness * runs.resolution * size) ** 2


def uncertainty(result: FitResult, runs: Runs, *, kind: str = "sandwich", by: str = "group") -> Uncertainty:
    """Estimate the covariance of a fit, which gives standard errors and intervals.

    Raises:
      UserError: the fit was made to other runs, or ``kind`` or ``by`` is unknown.
    """
    if kind not in COVARIANCES or by not in RESAMPLED:
        raise UserError(
            f"Choose {' or '.join(COVARIANCES)} errors, by {' or '.join(RESAMPLED)}; got {kind!r} errors by {by!r}."
        )
    at = derivatives(result, runs, past_zero=True)
    count, draw_count = draws_of(runs, "run"), draws_of(runs, by)
    hidden = _hidden(result, runs, at)
    axes, deviations, leverages, why_none = np.zeros((0, len(at.point))), np.zeros(0), (), ""
    if not (np.isfinite(at.jacobian).all() and np.isfinite(at.curvature).all()):
        # The law overflows at some run.
        why_none = "the law's derivatives are not finite at some run"
    elif not at.jacobian[at.weight > 0].any():
        why_none = "the law's derivatives are 0 at every run, so no run determines a coefficient"
    elif kind == "gauss_newton" and count <= len(at.point):
        why_none = _few_draws(result, count, "run")
    elif kind == "gauss_newton":
        covariance = gauss_newton(at, hidden)
        variances, ways = np.linalg.eigh((covariance + covariance.T) / 2)
        axes, deviations = ways.T[variances > 0], np.sqrt(variances[variances > 0])
    elif draw_count == 1:
        why_none = f"all {count} runs are one {by}, so the variance between {by}s is unknown{_apart(by, count > 1)}"
    else:
        draws = draws_at(at, RESAMPLED[by](runs), hidden)
        if draws.seen > WHOLE:
            axes, deviations, leverages = draws.axes, draws.deviations, draws.leverages
        else:
            why_none = _few_draws(result, draw_count, by, _apart(by, count > draw_count))
    moved = _shares(result.law, coefficient_slopes(at), axes)
    finite = [number for number, axis in enumerate(moved) if all(map(np.isfinite, axis.values()))]
    spent = {name: ends for name, ends in where_decided(runs).items() if name == "flops"}
    return Uncertainty(
        ranges=spent | ranges(runs, dict.fromkeys((*type(result.law).inputs, *REACH))),
        covariance=kind,
        by=by,
        degrees_of_freedom=left_by(count, len(at.point)),
        axes=tuple(moved[number] for number in finite),
        deviations=tuple(float(deviations[number]) for number in finite),
        # Leverages are not rounded, because a leverage of 1 must stay exactly 1.
        leverages=tuple(tuple(tuple(map(float, row[finite])) for row in rows) for rows in leverages),
        draw_count=draw_count if kind == "sandwich" else 0,
        why_none=why_none,
        few=result.too_few(draw_count, by) if kind == "sandwich" and not why_none else "",
        flops_convention=flops_convention(runs),
    )


def with_uncertainty(
    result: FitResult, runs: Runs, *, covariance: str = "sandwich", by: str = "group", dropped: tuple[str, ...] = ()
) -> FitResult:
    """Return the fit with its uncertainty and warnings, so that its file can be used without the runs.

    Raises:
      UserError: the fit was made to other runs.
    """
    known = uncertainty(result, runs, kind=covariance, by=by)
    fit = replace(result, uncertainty=known)
    warnings = (
        *filter(None, [fit.without_intervals]),
        *grid_warnings(fit, runs),
        *sign_warnings(fit),
        *leverage_warnings(fit, runs, known),
    )
    return replace(result, uncertainty=replace(known, warnings=warnings, dropped=tuple(dropped)))


def _few_draws(result: FitResult, count: int, by: str, remedy: str = "") -> str:
    return (
        f"with {counted(result.free, 'coefficient')} the law passes through all {counted(count, by)}, so no residuals "
        f"are left to estimate the errors; train more {by}s, or fix coefficients ({argument('fixed')}){remedy}"
    )


def _apart(by: str, several: bool) -> str:
    """Return the remedy if the runs of a group may be independent."""
    if by != "group" or not several:
        return ""
    return (
        f"; if runs of a group are independent, name a column that distinguishes them ({argument('group', 'COLUMN')})"
    )


def _itself(law: Law) -> Law:
    """Return the law itself. The function is shared so that its compiled derivatives serve all fits of an objective."""
    return law


def coefficient_slopes(at: FitDerivatives) -> dict[str, np.ndarray]:
    """Return the derivatives of every free coefficient with respect to the coordinates, keyed by coefficient."""
    slopes, names = at.slopes(_itself), [*at.objective.signs]
    return {name: slopes[names.index(name)] for name in at.objective.free}


FEW = 2.0
"""Degrees of freedom below which a coefficient's standard error depends mostly on one draw."""
UNSEEN = 0.01
"""Share of a coefficient's variance, determined by only one draw, above which a warning is given."""


def leverage_warnings(result: FitResult, runs: Runs, known: Uncertainty) -> tuple[str, ...]:
    """Return warnings about coefficients whose standard errors depend on one draw, grouped by draw."""
    if known.why_none:
        return (f"There are no standard errors: {known.why_none}.",)
    if not known.leverages:
        return ()
    by, spread = known.by, result.spread(_itself, allow_few=True)
    leverages = [np.reshape(rows, (-1, len(known.axes))) for rows in known.leverages]
    contrasts = np.array([[axis.get(name, 0.0) for axis in known.axes] for name in result.coefficients])
    size = np.maximum(np.sum(contrasts**2, axis=1, keepdims=True), 1e-300)
    lost = parts(set_alone(leverages), contrasts) / size
    own = lost.sum(axis=1)
    most = np.where(own > UNSEEN, lost.argmax(axis=1), parts(leverages, contrasts).argmax(axis=1))
    labels = RESAMPLED[by](runs)
    present = np.unique(labels[runs.weight > 0])
    told: dict[tuple[int, bool], list[int]] = {}
    for number, name in enumerate(result.coefficients):
        shared = own[number] <= UNSEEN and spread.degrees_of_freedom[number] >= FEW
        if not (shared or name in result.without_error):
            told.setdefault((int(most[number]), bool(own[number] > UNSEEN)), []).append(number)
    sentences = []
    for (draw, unseen), numbers in told.items():
        rows = (labels == present[draw]) & (runs.weight > 0)
        which = f"one {by} ({runs.called(rows)})"
        names = some([[*result.coefficients][number] for number in numbers], most=len(numbers))
        if unseen:
            sizes = sorted({f"{100 * lost[number, draw]:.2g} %" for number in numbers}, key=lambda one: float(one[:-2]))
            much = " to ".join([*sizes[:1], *sizes[1:][-1:]])
            sentences.append(
                f"Only {which} separates {names} from the other coefficients: {much} of the variance is in a direction "
                f"that no other {by} determines. The noise of this {by} cannot be estimated, so the standard error "
                f"assumes the noise of the other {by}s. Train another {by} that differs in the same way."
            )
        else:
            fewest = f"{min(spread.degrees_of_freedom[number] for number in numbers):.2g}"
            degrees = f"{fewest} degree{'s' * (fewest != '1')} of freedom"
            wide = f"interval{' is' if len(numbers) == 1 else 's are'} wide"
            sentences.append(
                f"{names} {'depends' if len(numbers) == 1 else 'depend'} mostly on {which}: {degrees}, so the {wide}. "
                f"Train more {by}s that differ in the same way."
            )
    return tuple(sentences)


def grid_warnings(result: FitResult, runs: Runs) -> tuple[str, ...]:
    """Return a warning if residuals are smaller than a sweep's grid steps."""
    if not hidden_share(result, runs):
        return ()
    return (
        f"The best {result.output} of a sweep is uncertain by {runs.coarseness:.2g} in its logarithm because of the "
        f"grid. Residuals scatter by less, because similar models share a grid value. Standard errors and prediction "
        f"intervals include the grid's uncertainty; intervals by resamples, AICc and BIC do not. "
        f"{argument('smooth', True)} uses the minimum between the tried values.",
    )


FAR_FROM_0 = 2.5
"""Distance from 0, in standard errors, below which a coefficient with an assumed sign gets a warning."""


def _any_sign(name: str, effect: str) -> str:
    return option_hint(f" {command('--either', name)} {effect}.")


def sign_warnings(result: FitResult) -> tuple[str, ...]:
    """Return warnings about coefficients near 0 whose sign was assumed from the formula.

    The other sign may fit better, and an interval with a fixed sign cannot contain 0.
    """
    described = {field.name: field.metadata for field in dataclasses.fields(result.law)}
    if not isinstance(result.law, FormulaLaw):
        return ()
    errors = dict(zip(result.coefficients, result.spread(_itself, allow_few=True).errors, strict=True))
    assumed = assumed_signs(type(result.law))
    at_the_end = tuple(
        f"The sign of {name} was assumed ({SIGNS[assumed[name]]}). At the end of the search {name} has no effect, so "
        f"the other sign may fit better.{_any_sign(name, 'searches both signs')}"
        for name in result.unidentified
        if name in assumed
    )
    return at_the_end + tuple(
        f"The sign of {name} was assumed ({SIGNS[sign]}), so its interval cannot contain 0; it is "
        f"{abs(result.coefficients[name]) / errors[name]:.2g} standard errors from "
        f"0.{_any_sign(name, 'tests whether it differs from 0')}"
        for name, sign in assumed.items()
        # If exponents are fitted, a scale's distance from 0 depends on the units of the columns.
        if all(map(is_power, described[name]["dimension"].values()))
        and name not in result.without_error
        and abs(result.coefficients[name]) < FAR_FROM_0 * errors[name]
    )


def _shares(law: Law, slopes: Mapping[str, np.ndarray], axes: np.ndarray) -> list[dict[str, float]]:
    """Return a dictionary per axis: the change of every fitted coefficient per unit of the axis, as a share of the
    coefficient, keyed by name."""
    values = {name: float(value) for name, value in coefficients(law).items() if name in slopes and value != 0}
    return [{name: float(slopes[name] @ axis) / value for name, value in values.items()} for axis in axes]


MOST_SHARED = 0.99
"""Upper limit of the intraclass correlation: the runs of a group are never a single run."""


@dataclass(frozen=True, kw_only=True)
class VarianceComponents:
    """Normal noise of log loss with a random intercept for each group."""

    noise: float
    """Standard deviation of a run's log loss, including the random intercept."""
    shared: float | None
    """Intraclass correlation, the group's share of the variance.

    None if the runs do not determine it: no group has two runs, or there are no more groups than coefficients.
    """


def variance_components(result: FitResult, runs: Runs) -> VarianceComponents:
    """Estimate the variance of runs around their fitted law, from two sums of squares of residuals.

    By Henderson's third method (1953), the sums of squares over all runs and over the group means are set to their
    expectations after a least-squares fit. For a robust penalty the residual is psi divided by the mean stiffness, so
    that the variance matches the coefficients' standard errors. Residuals are clipped as in ``noise``.

    Raises:
      UserError: the fit was made to other runs.
    """
    at = derivatives(result, runs)
    kept = at.weight > 0
    root = np.sqrt(at.weight[kept])
    residual = at.psi[kept] / np.average(at.stiffness[kept], weights=at.weight[kept])
    if result.penalty.residual == "nats":
        residual = residual / runs.loss[kept]
    residual = root * np.clip(residual, -CLIPPED * result.noise, CLIPPED * result.noise)
    basis, size, _ = np.linalg.svd(root[:, None] * at.jacobian[kept], full_matrices=False)
    basis = basis[:, ~undetermined(size)]
    weight, together, taken = (
        sums_by_group(part, runs.group[kept]) for part in (root**2, root * residual, root[:, None] * basis)
    )
    total, between = residual @ residual, np.sum(together**2 / weight)
    # Residual maker for the intercepts, M = diag(weight) - taken·takenᵀ: its diagonal, and the squares of its columns.
    lost = np.sum(taken**2, axis=1)
    met = weight - lost
    squares = met**2 - lost**2 + np.einsum("gf,fh,gh->g", taken, taken.T @ taken, taken)
    # Expected sums of squares per variance of runs and of groups.
    degrees_of_freedom = left_by(len(residual), basis.shape[1])
    expected = np.array([[degrees_of_freedom, met.sum()], [np.sum(met / weight), np.sum(squares / weight)]])
    shared = None
    if basis.shape[1] < len(weight) < len(residual):
        own, groups = np.linalg.solve(expected, [total, between])
        shared = float(np.clip(groups / max(own + groups, 1e-300), 0.0, MOST_SHARED))
    # The total variance follows from the total sum of squares and the shared part.
    variance = total / np.dot([1 - (shared or 0.0), shared or 0.0], expected[0])
    return VarianceComponents(noise=float(np.sqrt(variance)), shared=shared)
