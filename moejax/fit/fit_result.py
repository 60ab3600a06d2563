"""Represent the result of a fit: coefficients, diagnostics and uncertainty, and their storage in a file."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from jaxtyping import Float

from moejax.config import build, restored
from moejax.errors import UserError
from moejax.fit.runs import Runs, runs_from
from moejax.fit.search.objective import PENALTIES, Huber, Penalty, outputs
from moejax.fit.selection.metrics import Metrics, predict
from moejax.fit.uncertainty import uncertainty as uncertainties
from moejax.fit.uncertainty.noise import Outlier, left_by, outliers_in_words
from moejax.fit.uncertainty.uncertainty import (
    COVARIANCES,
    STANDARD,
    PredictionIntervals,
    Resamples,
    Spread,
    Uncertainty,
    ends,
    keeps_sign,
    share_ends,
)
from moejax.fit.uncertainty.undetermined import Probes, apart, coefficients_along, how_to_determine, moves
from moejax.float64 import float64
from moejax.interval import check_level, in_percent
from moejax.json_text import finite
from moejax.laws import CURVE_LAWS, stored_law
from moejax.laws.design import Design, design_from, known, value_of
from moejax.laws.law import Law, coefficients, require_inputs, without_effect
from moejax.laws.predict import predict as predict_one
from moejax.laws.scores.chained_law import ChainedLaw
from moejax.result import (
    LOW_HIGH,
    NOT_DETERMINED,
    NOT_SET,
    OF_ANOTHER,
    Column,
    Plotted,
    Result,
    Table,
    Written,
    imported,
    percent,
)
from moejax.stored import Missing, read_json, write_json
from moejax.wording import argument, command, counted, listed, says, told

if TYPE_CHECKING:
    from pandas import DataFrame

SCHEMA = 4
NO_COVARIANCE = (
    "The fit has no covariance, and so no intervals: an older moejax wrote it, or it has too few runs. Fit again, to "
    "more runs if there are few, with moejax.fit or moejax fit --out."
)

ALSO_FITS = "other laws of this form fit the runs equally well and give other values"
"""Reason for a missing standard error if another local optimum fits equally well."""

MEDIANS = 3.0
"""Ratio of noise to Huber's delta above which few residuals are below delta, where the penalty is quadratic."""
DRAWS = 200
"""Number of laws drawn from the covariance."""
EFFICIENT = 1.345
"""Huber's delta, in standard deviations of normal noise, at which the fit's variance is that of least squares /
0.95."""


class CoefficientRow(NamedTuple):
    """A coefficient with its standard error and interval."""

    name: str
    symbol: str
    meaning: str
    value: float
    error: float
    low: float
    high: float
    is_open: bool = False
    """True if the bootstrap does not determine the coefficient (``Interval.uninformative``)."""


PUBLIC = (
    *("law", "coefficients", "output", "conf_int", "predict", "summary", "plot", "to_frame", "to_latex"),
    *("save", "load", "to_json", "warnings", "not_determined", "remedy", "metrics", "aicc", "bic", "noise"),
    *("outliers", "fixed", "fitted", "held_out", "alternatives", "converged", "reading", "seed", "method"),
)
"""Names of a ``FitResult`` that editors complete."""

HELD_OUT = ("held_out", "held_out_together", "held_out_runs")
"""Entries of ``fit.json``, and fields of ``Answers``, with the errors on held-out runs."""


@dataclass(frozen=True, kw_only=True, repr=False)
class FitResult(Plotted):
    """A fitted law and the uncertainty of the fit."""

    law: Any
    """Fitted law in its own parameterization; call it on a Design."""
    penalty: Penalty
    output: str
    """The law's fitted output."""
    value: float
    """Weighted sum of the penalties over the runs."""
    gradient_norm: float
    """Norm of the gradient of ``value`` / ``scale`` per e-fold of every coefficient; 0 at an optimum."""
    converged: bool
    starts: int
    """Number of initial guesses at which the objective was computed."""
    polished: int
    """Number of initial guesses from which the search was run to convergence."""
    agreeing: float
    """Share of the ``polished`` initial guesses whose search ends within 0.01 % of the lowest objective."""
    fixed: dict[str, float]
    """Coefficients that were held fixed."""
    unidentified: dict[str, str]
    """Coefficients that the data do not determine, with the reason."""
    condition_number: float
    """Condition number of the normal matrix in the coordinates of the search. If it is above 1e10, rounding hides a
    direction."""
    unidentified_directions: tuple[str, ...]
    """Directions that the table does not determine, as sentences."""
    aicc: float
    """Corrected Akaike information criterion for Gaussian residuals of log loss with a random effect per group;
    infinite if there are too few runs. See ``information_criteria``."""
    bic: float
    metrics: Metrics
    data_hash: str
    seed: int
    versions: dict[str, str]
    noise: float
    """Robust standard deviation of log loss around the fit, corrected for the degrees of freedom."""
    uncertainty: Uncertainty | None = None
    """Covariance, ranges of the fitted runs and omitted rows, for use of the fit without its runs; None if not
    computed."""
    outliers: tuple[Outlier, ...] = ()
    """Outliers, in descending order of the residual."""
    undetermined: tuple[Mapping[str, float], ...] = ()
    """Directions along which no run's prediction changes, as steps of the coefficients
    (``undetermined.directions_of``)."""
    alternatives: tuple[Mapping[str, float], ...] = ()
    """Coefficients of other local optima that fit the runs equally well (``moejax.fit.uncertainty.undetermined``)."""
    is_share: bool = False
    """True if the fitted output is a share of answers, between 0 and 1 in every run."""
    loss_scatter: float = 0.0
    """Robust standard deviation of log loss around the loss law, for a score chained to the loss; 0 for any
    other fit."""
    resamples: Resamples | None = None
    """Bootstrap resamples, from which all intervals of the answers are computed; None without a bootstrap."""
    reading: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Options of ``moejax.read_runs`` with which the table was read, so that commands read it again in the same way."""
    held_out: Any = None
    """``Answers`` with the errors on held-out runs; None if no runs were held out."""

    def __dir__(self) -> list[str]:
        """Return the names that are useful outside this package, for completion in editors."""
        return [*PUBLIC]

    @property
    def fitted(self) -> Mapping[str, tuple[float, float]]:
        """Smallest and largest fitted value of each ``Design`` variable; empty if unknown."""
        return {} if self.uncertainty is None else self.uncertainty.ranges

    @property
    def flops_convention(self) -> str:
        """Convention of the fitted runs' FLOPs (``moejax.laws.conventions.FLOPS``); empty if unknown."""
        return "" if self.uncertainty is None else self.uncertainty.flops_convention

    @property
    def dropped(self) -> tuple[str, ...]:
        """Messages about rows left out of the fit, with the reasons."""
        return () if self.uncertainty is None else self.uncertainty.dropped

    @property
    def free(self) -> int:
        """Number of fitted coefficients."""
        return len({*self.coefficients} - {*self.fixed, *self.without_effect})

    @property
    def without_effect(self) -> frozenset[str]:
        """Coefficients that do not affect the fitted output, such as those of the batch size in a fit of the learning
        rate. They are NaN unless held fixed."""
        return frozenset(without_effect(type(self.law), self.output)) - {*self.fixed}

    @property
    def _degrees_of_freedom(self) -> int:
        return left_by(self.metrics.runs, self.free)

    def noise_at(self, design: Design) -> Any:
        """Return ``noise`` for a design of arrays; a score chained to the loss includes the noise of the loss."""
        if not isinstance(self.law, ChainedLaw):
            return self.noise
        with float64():
            moved = np.asarray(jax.vmap(self.law.elasticity)(design), np.float64)
        return np.hypot(self.noise, moved * self.loss_scatter)

    @property
    def coefficients(self) -> dict[str, float]:
        """Coefficients by name."""
        return {name: float(value) for name, value in coefficients(self.law).items()}

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about the coefficients, the most serious first."""
        said = []
        if not self.converged:
            said.append(
                f"The search did not converge (gradient norm {self.gradient_norm:.2g}), so there are no standard "
                f"errors and no intervals; give more initial guesses ({argument('starts')}), or fix a coefficient "
                f"({argument('fixed')})."
            )
        if self.agreeing < 2 / max(self.polished, 1) and self.polished > 1:
            said.append(
                f"Only one initial guess reached this optimum; try more initial guesses ({argument('starts')})."
            )
        said += [f"The data do not determine {name}: {why}." for name, why in self.unidentified.items()]
        said += self._others_in_words()
        named = " ".join([*said, *self.unidentified_directions])
        said += [*outliers_in_words(self.outliers, self.output, self.metrics.r_squared), *self.unidentified_directions]
        if rest := [name for name in self.not_determined if not re.search(rf"\b{re.escape(name)}\b", named)]:
            lost = "is not determined either" if len(rest) == 1 else "are not determined either"
            said.append(f"{listed(rest)} cannot be separated from undetermined coefficients, and so {lost}.")
        said += filter(None, [self.remedy])
        return (*said, *(() if self.uncertainty is None else self.uncertainty.warnings))

    @property
    def remedy(self) -> str:
        """Advice on ``moejax fit`` options for coefficients that the runs do not determine; empty if there are none."""
        left = " ".join([*self.unidentified, *self.unidentified_directions])
        return how_to_determine(self.law, [name for name in self.coefficients if re.search(rf"\b{name}\b", left)])

    def to_json(self) -> dict[str, Any]:
        """Return plain data, keyed by field; infinities and NaN become null."""
        cls, others = type(self.law), ("law", "penalty", "uncertainty", "held_out")
        return {
            "schema": SCHEMA,
            **{f.name: finite(getattr(self, f.name)) for f in dataclasses.fields(self) if f.name not in others},
            "law": {**stored_law.reference_to(cls), "coefficients": self.coefficients},
            "penalty": {"name": _penalty_name(self.penalty), **dataclasses.asdict(self.penalty)},
            "warnings": list(self.warnings),
            "uncertainty": None if self.uncertainty is None else self.uncertainty.to_json(),
            **({} if self.held_out is None else self.held_out.to_json()),
        }

    def save(self, path: str | Path) -> Path:
        """Write the JSON file that ``load`` reads, and create its folder; an existing fit is replaced.

        Raises:
          UserError: the path is a folder or a file that is not a fit, or its folder cannot be created.
        """
        path = Path(path)
        if path.is_dir():
            raise UserError(f"{path} is a folder; name a file in it, such as {path / 'fit.json'}.")
        if path.exists():
            try:
                read_plain(path)
            except UserError as error:
                raise UserError(f"{path} exists and is not a fit of this version; choose another file.") from error
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"The folder {path.parent} cannot be created ({says('the system', error)}); choose another path."
            ) from error
        write_json(path, self.to_json())
        return path

    @property
    def _title(self) -> str:
        return f"{type(self.law).__name__}, fitted to {counted(self.metrics.runs, 'run')}"

    def glance(self) -> Result:
        """Return the coefficients without standard errors and warnings, which take longer to compute."""
        about = {field.name: field.metadata for field in dataclasses.fields(self.law)}
        columns = [Column("coefficient"), Column("symbol"), Column("value", ".8g"), Column("meaning", words=True)]
        rows = [
            [name, about[name]["symbol"], value, about[name]["meaning"]] for name, value in self.coefficients.items()
        ]
        return Result(
            title=self._title,
            warnings=[] if self.converged else ["The search did not converge."],
            tables=[Table("Coefficients", columns, rows)],
        )

    def summary(self, level: float = 0.9) -> Result:
        """Return the fit, its warnings, and its coefficients with standard errors and intervals at ``level``.

        ``moejax.fit.summary.summary`` adds further results, such as errors on held-out runs and decisions.
        """
        if self.held_out is not None:
            return imported("fit.summary").summary(self, level)
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return Result(
            title=self._title,
            warnings=self.warnings,
            tables=[self._quality(), self.coefficient_table(level)],
            notes=[*self._how_errors(), f"Data {self.data_hash}, seed {self.seed}; {versions}."],
            main="Coefficients",
            for_latex=[self._latex_table(level)],
            data=self.to_json(),
        )

    @property
    def not_determined(self) -> tuple[str, ...]:
        """Coefficients that the runs do not determine: they change along an undetermined direction or between equally
        good laws."""
        moved = {name for names in coefficients_along(self.law, self.undetermined) for name in names}
        return tuple(name for name in self.coefficients if name in moved or name in self._apart)

    def _others_in_words(self) -> list[str]:
        names = [name for name in self.coefficients if name in self._apart]
        if not names:
            return []
        other, most = self.alternatives[0], 4
        theirs, ours = (
            listed(f"{name} {values[name]:.4g}" for name in names[:most]) for values in (other, self.coefficients)
        )
        more = f", and other values of {listed(names[most:])}" if len(names) > most else ""
        return [
            f"Other laws of this form fit the runs equally well: one has {theirs}, where this law has {ours}{more}. "
            f"Numbers on which they differ have no interval. Train runs that distinguish them, or fix a coefficient."
        ]

    @functools.cached_property
    def _apart(self) -> frozenset[str]:
        if not self.alternatives:
            return frozenset()

        different = zip(self.coefficients, self._differ(_values), strict=True)
        return frozenset(name for name, one in different if one and name not in {*self.fixed, *self.without_effect})

    @property
    def without_error(self) -> frozenset[str]:
        """Coefficients without a standard error: fixed and undetermined coefficients, or all if the fit did not
        converge."""
        every = self.coefficients if not self.converged else ()
        return frozenset({*self.fixed, *self.without_effect, *self.unidentified, *self.not_determined, *every})

    def state(self, name: str) -> str:
        """Return a label with the reason why a coefficient has no standard error; empty if it has one."""
        said = {
            NOT_SET: self.unidentified,
            "given": self.fixed,
            NOT_DETERMINED: self.not_determined,
            OF_ANOTHER: self.without_effect,
        }
        return next((word for word, names in said.items() if name in names), "")

    def unknown(
        self, functional: Callable[[Any], Any], count: int, errors: Float[np.ndarray, " answers"] | None = None
    ) -> tuple[str, ...]:
        """Return a reason for each of the ``count`` numbers of a functional (flattened) that the runs do not determine,
        else an empty string.

        All missing standard errors follow this rule: a number has no standard error if the fit did not converge, if the
        number changes along an undetermined direction, or if an equally good law gives another number.

        Args:
          errors: standard errors to compare with, such as from resamples; by default from the fit's covariance.
        """
        if not self.converged:
            return (f"the search did not converge (gradient norm {self.gradient_norm:.2g})",) * count
        said = [""] * count
        if self.undetermined:
            along = coefficients_along(self.law, self.undetermined)
            for number, row in enumerate(moves(self.law, self.undetermined, functional)):
                moved = [name for name, one in zip(along, row, strict=True) if one]
                names = list(dict.fromkeys(name for one in moved for name in one))
                if moved:
                    said[number] = f"the fitted runs do not determine {listed(names)}, on which this depends"
        if self.alternatives and not all(said):
            other = self._differ(functional, errors)
            said = [why or (ALSO_FITS if differs else "") for why, differs in zip(said, other, strict=True)]
        return tuple(said)

    def _differ(self, functional: Callable[[Any], Any], errors: Any = None) -> Any:
        """Return whether each number of a functional differs significantly between equally good laws (``apart``)."""
        if errors is None and self.uncertainty is not None:
            errors = self.uncertainty.spread(self.law, functional).errors
        return apart(self.law, self.alternatives, functional, errors, self.noise)

    def spread(self, functional: Callable[[Any], Any], *, allow_few: bool = False) -> Spread:
        """Return the uncertainty of each number of a functional (flattened) from the fit's covariance. The error is
        NaN, with a reason, if the runs do not determine the number, if there are too few draws, or if there is no
        covariance.

        Args:
          allow_few: True to compute errors even if there are too few draws (``few``); these errors are too small.

        Raises:
          UserError: the fit was made without its uncertainty.
        """
        if self.uncertainty is None:
            raise UserError(NO_COVARIANCE)
        spread = self.uncertainty.spread(self.law, functional)
        few = "" if allow_few else self.few
        return spread.without([why or few for why in self.unknown(functional, len(spread.middle), spread.errors)])

    @property
    def few(self) -> str:
        """Clause stating that there are too few draws (groups or runs) for intervals (``Uncertainty.few``); empty if
        they suffice."""
        return "" if self.uncertainty is None else self.uncertainty.few

    def too_few(self, draws: int, by: str) -> str:
        """Return a clause stating that there are no more draws than coefficients; empty if there are more."""
        if draws > self.free:
            return ""
        return f"{counted(draws, by)} cannot determine the errors of {counted(self.free, 'coefficient')}"

    @property
    def without_intervals(self) -> str:
        """Warning with the remedy if the draws are too few for intervals; empty if they suffice."""
        if self.uncertainty is None or not self.few:
            return ""
        by = self.uncertainty.by
        column = argument("group", "COLUMN")
        apart = f" If runs of a group are independent, name a column that distinguishes them ({column})."
        return (
            f"{self.few}: standard errors of the coefficients are too small, and other numbers have no interval. Train "
            f"more {by}s, or fix coefficients ({argument('fixed')}).{apart if by == 'group' else ''}"
        )

    @functools.cached_property
    def bootstrap(self) -> Any:
        """The ``Bootstrap`` that is stored with the fit, if it suffices for intervals; None otherwise."""
        if self.resamples is None:
            return None
        kept = imported("fit.uncertainty.bootstrap").Bootstrap.of(self)
        return None if kept.few else kept

    def likely(self, bootstrap: Any = None, *, drawn: bool = False) -> Any:
        """Return laws that represent the fit's uncertainty. They give intervals of numbers that a search computes, such
        as optima.

        The laws come from the given bootstrap, else from the stored one, else from the covariance. Return None if the
        fit did not converge or has too few draws for intervals.

        Args:
          bootstrap: a ``Bootstrap`` that takes precedence over the stored one if its draws suffice.
          drawn: True to draw random laws from the covariance; False for one small step along each of its axes. A
            constraint may bind under some of the likely laws only: random laws show this, derivatives do not.
        """
        if not self.converged:
            return None
        if bootstrap is not None and not bootstrap.few:
            return bootstrap
        if self.bootstrap is not None:
            return self.bootstrap
        if self.uncertainty is None or not self.uncertainty.axes or self.few:
            return None
        known = self.uncertainty
        return replace(known.draws(self.law, DRAWS) if drawn else known.stepped(self.law), probes=self.probes)

    @property
    def method(self) -> str:
        """Method of the intervals of coefficients and of the fit's answers, as text after the level."""
        return STANDARD if self.bootstrap is None else self.bootstrap.method

    @property
    def probes(self) -> Probes | None:
        """Perturbed laws that fit equally well; a number that differs between them is not determined. None if the runs
        determine all numbers."""
        known = not (self.undetermined or self.alternatives)
        return None if known else Probes(self.law, self.undetermined, self.alternatives)

    @classmethod
    def load(cls, path: str | Path) -> FitResult:
        """Load a FitResult written by ``save`` or ``moejax fit --out``.

        Raises:
          UserError: the file does not exist or is not a fit, or its law is not one of moejax's.
        """
        path = Path(path)
        plain = read_plain(path)
        with read_by_this_version(path):
            return from_json(plain)

    @property
    def has_covariance(self) -> bool:
        """True if the fit has a covariance, from which standard errors, confidence intervals and prediction intervals
        follow."""
        return self.uncertainty is not None and bool(self.uncertainty.axes)

    @property
    def why_no_covariance(self) -> str:
        """Sentence that explains a missing covariance."""
        why = "" if self.uncertainty is None else self.uncertainty.why_none
        return f"The fit has no standard errors and no intervals: {why}." if why else NO_COVARIANCE

    def conf_int(self, level: float = 0.9) -> DataFrame:
        """Return coefficients with standard errors and intervals: columns ``value``, ``std_err``, ``low``, ``high``.

        Intervals are from the stored bootstrap, or else from standard errors. A fixed or undetermined coefficient has
        NaN errors and intervals.

        Raises:
          UserError: ``level`` is not between 0 and 1, or the fit holds no covariance.
        """
        import pandas as pd

        check_level(level)
        if not self.has_covariance:
            raise UserError(self.why_no_covariance)
        rows = {one.name: (one.value, one.error, one.low, one.high) for one in self.coefficient_rows(level)}
        table = pd.DataFrame.from_dict(rows, orient="index", columns=["value", "std_err", "low", "high"])
        return table.rename_axis("coefficient")

    def prediction_intervals(
        self,
        design: Design,
        level: float = 0.9,
        spread: Callable[[Callable[[Any], Any]], Spread] | None = None,
        *,
        weight: Any = 1.0,
    ) -> PredictionIntervals:
        """Return prediction intervals: each contains the measured loss of a new run with probability ``level``, if the
        law's form holds there.

        The variance of log loss is the sum of two parts: the uncertainty of the coefficients, and the residual variance
        of the fitted runs (lack of fit and seed noise). Student's t accounts for small numbers of runs. Intervals are
        symmetric in the logarithm, or in log odds for a share.

        Args:
          design: fields with one entry per new run.
          spread: function that returns the uncertainty of a functional due to the coefficients, such as
            ``Bootstrap.spread``; by default from the stored bootstrap, or else from the fit's covariance.
          weight: number of runs averaged in each measured number, like the weights of fitted runs.

        Raises:
          UserError: ``level`` is not between 0 and 1, or there is neither a covariance nor ``spread``.
        """
        level = check_level(level)
        count = max(len(np.atleast_1d(value_of(design, name))) for name in type(self.law).inputs)
        new = runs_from(design, np.ones(count))
        predicted = predict(self.law, new, self.output)
        above = (predicted > 0) & ((predicted < 1) | (not self.is_share))
        middle = np.log(np.where(above, predicted, np.nan))

        def log_loss(law: Law) -> Any:
            return jnp.log(outputs(law, new.design, self.output))

        source = self if self.bootstrap is None else self.bootstrap
        by_coefficients = (spread or source.spread)(log_loss)
        range_ = "a share of answers is between 0 and 1" if self.is_share else "predictions must be above 0"
        unknown = tuple(
            why or ("" if there else f"the law predicts {value:.4g} there, but {range_}")
            for why, there, value in zip(by_coefficients.unknown or [""] * count, above, predicted, strict=True)
        )
        if self.is_share:
            predicted = np.where(above, predicted, np.nan)
        by_coefficients = by_coefficients.without(unknown)
        moved, left = np.square(by_coefficients.errors), np.square(self.noise_at(new.design)) / weight
        # Welch-Satterthwaite degrees of freedom of a sum of two estimated variances.
        total = np.maximum(moved + left, 1e-300)
        each = moved**2 / by_coefficients.degrees_of_freedom + left**2 / self._degrees_of_freedom
        degrees_of_freedom = np.maximum(total**2 / np.maximum(each, 1e-300), 1.0)
        reach = scipy.special.stdtrit(degrees_of_freedom, (1 + level) / 2) * np.sqrt(moved + left)
        with np.errstate(over="ignore"):
            # A range may be unbounded.
            middle = np.exp(middle)
            low, high = share_ends(middle, middle * reach) if self.is_share else ends(middle, middle * reach, True)
        ranged = np.isfinite(moved)
        of_all = np.sum((moved + left)[ranged])
        share = math.nan if not ranged.any() else float(np.sum(moved[ranged]) / of_all) if of_all else 0.0
        return PredictionIntervals(low=low, loss=predicted, high=high, from_coefficients=share, unknown=unknown)

    def predict(self, design: Design, level: float = 0.9) -> DataFrame:
        """Return a table of predictions, with a row for each new run.

        Columns: the design's fields; the loss; ``low`` and ``high``, the ends of the prediction interval, which
        contains a share ``level`` of such runs; ``beyond``, the fields outside the fitted range with their factors.

        Args:
          design: fields are numbers, or arrays with an entry per run.

        Raises:
          UserError: the design lacks an input of the law or is invalid, or the fit holds no covariance.
        """
        import pandas as pd

        if not self.has_covariance:
            raise UserError(self.why_no_covariance)
        given = known(design)
        require_inputs(self.law, given)
        columns = dict(zip(given, np.broadcast_arrays(*map(np.atleast_1d, given.values())), strict=True))
        rows = np.stack([*columns.values()], axis=1).astype(np.float64).tolist()
        # These calls also reject invalid designs.
        beyond = [predict_one(self, design_from(dict(zip(columns, row, strict=True)))).extrapolated for row in rows]
        predicted = self.prediction_intervals(design_from(columns), level)
        words = ["; ".join(f"{name} {factor:.3g}×" for name, factor in one.items()) for one in beyond]
        return pd.DataFrame(
            {**columns, self.output: predicted.loss, "low": predicted.low, "high": predicted.high, "beyond": words}
        )

    def coefficient_table(self, level: float = 0.9) -> Table:
        """Return coefficients, with standard errors and intervals if the fit holds a covariance."""
        columns = (
            Column("coefficient"),
            Column("symbol"),
            Column("value", ".8g"),
            Column("std err", ".3g"),
            Column(f"{in_percent(level)} interval, {self.method}", keys=LOW_HIGH),
            Column("", keys=("verdict",)),
            Column("meaning", words=True),
        )
        rows = []
        for one in self.coefficient_rows(level):
            known = math.isfinite(one.error)
            ends = Written((one.low, one.high), f"[{one.low:.4g}, {one.high:.4g}]") if known else None
            verdict = self.state(one.name) or NOT_DETERMINED * one.is_open
            rows.append([one.name, one.symbol, one.value, one.error, ends, verdict, one.meaning])
        return Table("Coefficients", columns, rows, key="coefficients")

    def to_latex(self, level: float = 0.9) -> str:
        """Return coefficients with intervals as a LaTeX tabular for booktabs."""
        return self.summary(level).to_latex()

    def _latex_table(self, level: float) -> Table:
        rows = [
            [one.symbol, one.value, f"[{one.low:.4g}, {one.high:.4g}]" if math.isfinite(one.error) else state]
            for one in self.coefficient_rows(level)
            for state in [self.state(one.name) or None]
        ]
        interval = Column(f"{in_percent(level)} interval, {self.method}")
        columns = (Column("coefficient", symbol=True), Column("value", ".4g"), interval)
        return Table("Coefficients", columns, rows)

    def coefficient_rows(self, level: float) -> list[CoefficientRow]:
        """Return every coefficient with its standard error and interval (``method``); NaN where unknown."""
        about = {field.name: field.metadata for field in dataclasses.fields(self.law)}
        errors, low, high = np.full((3, len(self.coefficients)), math.nan)
        if self.has_covariance:
            spread = self.spread(_values, allow_few=True)
            spread = spread.without([NOT_DETERMINED * (name in self.without_error) for name in self.coefficients])
            errors, (low, high) = spread.errors, spread.ends(level, np.asarray([*keeps_sign(self.law).values()]))
        each = zip(self.coefficients.items(), np.stack([errors, low, high], axis=1).tolist(), strict=True)
        rows = [
            CoefficientRow(name, about[name]["symbol"], about[name]["meaning"], value, *ends)
            for (name, value), ends in each
        ]
        if self.bootstrap is None:
            return rows
        resampled = self.bootstrap.coefficients(level).items()
        ends = {name: {"low": one.low, "high": one.high, "is_open": one.uninformative} for name, one in resampled}
        return [row if row.name in self.without_error else row._replace(**ends[row.name]) for row in rows]

    def _quality(self) -> Table:
        m, unit = self.metrics, ", nats" if self.output == "loss" else ""
        agreeing = f"{round(self.agreeing * self.polished)} of {self.polished} ({self.starts} screened)"
        rows = [
            ["objective (sum)", self.value, ".8g"],
            ["gradient norm", self.gradient_norm, ".2g"],
            ["initial guesses agreeing", self.agreeing, lambda _: agreeing],
            ["condition number", self.condition_number, ".3g"],
            [f"RMSE{unit}", m.rmse, ".5f" if self.output == "loss" else ".4g"],
            [f"MAE{unit}", m.mae, ".5f" if self.output == "loss" else ".4g"],
            [f"RMSE, log {self.output.replace('_', ' ')}", m.rmse_log, ".5f"],
            *([["scatter of the loss law, log loss", self.loss_scatter, ".5f"]] if self.loss_scatter else []),
            ["largest error", m.max_relative_error, percent(3)],
            ["R²", m.r_squared, ".5f"],
            ["Huber, mean", m.huber, ".4g"],
            ["AICc", self.aicc, ".1f"],
            ["BIC", self.bic, ".1f"],
        ]
        cells = [[name, Written(value, Column("", write).written(value))] for name, value, write in rows]
        return Table("Fit", (Column("", keys=("quantity",)), Column("", keys=("value",))), cells, key="fit")

    def _how_errors(self) -> list[str]:
        known, penalty = self.uncertainty, self.penalty
        if known is None:
            return []
        if not self.converged:
            return ["Standard errors: none, because the search did not converge."]
        if not known.axes:
            # A warning already gives the reason.
            return []
        draws = f", {counted(known.draw_count, known.by)}" if known.draw_count else ""
        said = [f"Standard errors: {COVARIANCES[known.covariance]}{draws}."]
        if isinstance(penalty, Huber) and penalty.residual == "log" and self.noise > MEDIANS * penalty.delta:
            wider = argument("delta", f"{EFFICIENT * self.noise:.2g}")
            said.append(
                f"Most residuals exceed Huber's delta of {penalty.delta:g} (the noise is {self.noise:.2g}), so this is "
                f"nearly a median regression. For normal noise, {wider} or "
                f"{argument('penalty', 'squared')} reduces standard errors by about 20 %."
            )
        return said


def load_of_runs(path: str | Path) -> FitResult:
    """Load a fit to runs. Fits of loss curves are refused, because they need a schedule that callers do not have.

    Raises:
      UserError: as in ``FitResult.load``, or the file is a fit of loss curves.
    """
    fit = FitResult.load(path)
    if type(fit.law) in CURVE_LAWS.values():
        raise UserError(
            f"{path} is a fit of loss curves, which needs a schedule; use moejax curves CURVES "
            f"{command('--law', str(path))}, or give a fit of runs from moejax fit here."
        )
    return fit


def read_plain(path: Path) -> dict[str, Any]:
    """Read the plain data of a file written by ``save`` or ``moejax fit --out``, including entries that are not part of
    a fit.

    Raises:
      UserError: the file does not exist or is not a fit.
    """
    try:
        entries = read_json(path, {"schema": int}, remedy=_REMEDY)
    except Missing:
        raise Missing(f"There is no fit {path}; give the file that moejax fit --out or FitResult.save wrote.") from None
    if entries["schema"] != SCHEMA:
        raise UserError(f"{path} has fit schema {entries['schema']}, but this moejax reads schema {SCHEMA}; {_REMEDY}.")
    return entries


def are_runs_of(result: FitResult, runs: Runs) -> bool:
    """Return whether a fit was made to these runs."""
    return runs.data_hash == result.data_hash


def check_runs_of(result: FitResult, runs: Runs) -> None:
    """Raise ``UserError`` if a fit was made to other runs."""
    if not are_runs_of(result, runs):
        raise UserError(
            f"The fit was made to other runs (hash {result.data_hash}; these: {runs.data_hash}). Read the table with "
            f"the options of the fit, such as {argument('best_by')} and {argument('where')}, or fit again."
        )


@contextlib.contextmanager
def read_by_this_version(path: Path) -> Iterator[None]:
    """Convert errors from reading a fit's file into a ``UserError``, since another version may write other entries.

    Raises:
      UserError: an entry is missing or invalid.
    """
    try:
        yield
    except (LookupError, TypeError, AttributeError, ImportError, ValueError, ArithmeticError) as error:
        raise UserError(
            f"{path} holds no fit that this version can read ({told(error).rstrip('.')}); {_REMEDY}."
        ) from error


_REMEDY = "fit again with moejax fit --out or FitResult.save, and do not edit coefficients by hand"


def from_json(plain: Mapping[str, Any]) -> FitResult:
    """Restore a FitResult from ``FitResult.to_json``.

    Raises:
      UserError: an entry has another type, or the law is not one of moejax's; a missing entry raises ``LookupError`` or
        ``TypeError``.
    """
    special = ("law", "penalty", "uncertainty", "held_out")
    hints = {name: hint for name, hint in typing.get_type_hints(FitResult).items() if name not in special}
    fields = {name: restored(hint, plain[name], name) for name, hint in hints.items() if name in plain}
    law, stored = (
        stored_law.law_of(plain["law"]),
        restored(Mapping[str, float], plain["law"]["coefficients"], "coefficients"),
    )
    # Only coefficients without effect on the fitted output may be null; any other missing coefficient is an error.
    without = dict.fromkeys(without_effect(law, fields["output"]), math.nan)
    penalty = dict(plain["penalty"])
    kind = PENALTIES[penalty.pop("name")]
    # Fits of loss curves store errors on their held-out curves under the same name.
    tested = {name: plain[name] for name in HELD_OUT if name in plain and law not in CURVE_LAWS.values()}
    # These three are infinite rather than undefined.
    fields |= {name: math.inf for name in ("condition_number", "aicc", "bic") if plain[name] is None}
    return FitResult(
        **fields,
        law=law(**without | {name: one for name, one in stored.items() if not math.isnan(one)}),
        penalty=build(kind, penalty, "penalty"),
        uncertainty=uncertainties.from_json(plain["uncertainty"], law.inputs) if plain.get("uncertainty") else None,
        held_out=imported("fit.answers").Answers.from_json(tested) if "held_out" in tested else None,
    )


def _values(law: Law) -> list[Any]:
    return [*coefficients(law).values()]


def _penalty_name(penalty: Penalty) -> str:
    return next(name for name, cls in PENALTIES.items() if isinstance(penalty, cls))
