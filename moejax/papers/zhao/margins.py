"""Fit the marginal coefficients of Zhao et al. (2025): Eqs. 5, 8 and 10 by group, Eq. 7 at each G and S, and hooks in
G.

The paper fits Eq. 7 at every G and inspects its a, c and h as functions of G. Here each of the three is a hook, e·G +
f/G + tau, with its own coefficients. One regression over all runs gives every hook standard errors. They test two
conclusions of the paper: the hooks are proportional (Figure 10), and N_a and N have the exponent 1 in h·N_a/N (C.3).
Inferred: alpha and beta come from the joint law, and each hook also has m·S² + n·S if S varies.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.optimize
from jaxtyping import Float

from moejax.errors import UserError
from moejax.fit.runs import Runs
from moejax.fit.search.fit_law import Progress, fit_law
from moejax.fit.search.starts import Sobol
from moejax.laws.law import coefficients
from moejax.laws.mixtures.fewer_factors import ThreeFactor
from moejax.laws.mixtures.five_factor import FiveFactor
from moejax.laws.mixtures.marginal import (
    MarginalActive,
    MarginalExperts,
    MarginalShared,
    optimal_active,
    optimal_experts,
    optimal_shared,
)
from moejax.result import Column, Table

if TYPE_CHECKING:
    import pandas as pd

INPUTS = FiveFactor.inputs
MARGIN_STARTS = 32
"""Number of initial guesses per margin; few suffice for three or four coefficients, most of which are linear."""


@dataclass(frozen=True)
class Factor:
    """One factor of the paper, with its marginal law and the optimum of this law."""

    name: str
    equation: str
    law: type
    optimum: Callable[[Any], Any]


FACTORS = (
    Factor("N_a", "Eq. 5", MarginalActive, optimal_active),
    Factor("G", "Eq. 8", MarginalExperts, optimal_experts),
    Factor("S", "Eq. 10", MarginalShared, optimal_shared),
)
WITH_GAMMA = "Eq. 5, gamma = alpha"
"""Name, in the coefficient table, of Eq. 5 with the joint law's exponent."""
COLUMNS = {
    "N": "params_total_nonembedding",
    "D": "tokens",
    "N_a": "params_active_nonembedding",
    "G": "active_experts",
    "S": "shared_share",
}
"""Columns of the coefficient table, keyed by the paper's letters."""


@dataclass(frozen=True, kw_only=True)
class Margin:
    """Runs in which only one factor varies, and the law fitted to them."""

    factor: str
    held: dict[str, float]
    """Values of the other factors."""
    runs: int
    coefficients: dict[str, float]
    best: float
    """Value of the factor with the lowest loss under the marginal law."""
    inside: bool
    """True if ``best`` is within the range of the trained values."""
    r_squared: float


@dataclass(frozen=True, kw_only=True)
class AtStructure:
    """Fit of Eq. 7 to the runs of one G and S, with the coefficients that depend on G: a, c and h."""

    active_experts: float
    shared_share: float
    runs: int
    coefficients: dict[str, float]
    r_squared: float


def margins_of(
    factor: Factor,
    runs: Runs,
    *,
    fixed: Mapping[str, float] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> list[Margin]:
    """Fit the marginal law of one factor in every group of runs that differ only in this factor.

    A group needs more values of the factor than its law has free coefficients (coefficients not in ``fixed``).

    Raises:
      UserError: the runs lack an input of Eq. 11.
    """
    report = progress or (lambda *_: None)
    known = factor_values(runs)
    varied = known[factor.name]
    others = {name: values for name, values in known.items() if name != factor.name}
    free = len(dataclasses.fields(factor.law)) - len(fixed or {})
    groups = [g for g in _groups(others.values(), runs) if len(np.unique(varied[g])) > free]
    margins = []
    for number, group in enumerate(groups):
        report(f"margins of {factor.name}", number, len(groups))
        fit = fit_law(factor.law, runs.only(group), fixed=fixed, starts=Sobol(MARGIN_STARTS, seed))
        (best,) = (float(value) for value in factor.optimum(fit.law).value.values())
        margins.append(
            Margin(
                factor=factor.name,
                held={name: float(values[group][0]) for name, values in others.items()},
                runs=int(group.sum()),
                coefficients={name: float(value) for name, value in coefficients(fit.law).items()},
                best=best,
                inside=bool(varied[group].min() < best < varied[group].max()),
                r_squared=fit.metrics.r_squared,
            )
        )
    return margins


def with_gamma_of(law: FiveFactor, runs: Runs, *, seed: int = 0, progress: Progress | None = None) -> list[Margin]:
    """Fit Eq. 5 in every group of runs that differ only in N_a, with the joint law's exponent.

    The paper finds that gamma and alpha agree. With a free gamma, the few N_a of a group do not determine iota.
    """
    gamma = {"active_exponent": float(law.params_exponent)}
    return margins_of(FACTORS[0], runs, fixed=gamma, seed=seed, progress=progress)


def at_each_structure(
    law: FiveFactor, runs: Runs, *, seed: int = 0, progress: Progress | None = None
) -> list[AtStructure]:
    """Fit a, c and h of Eq. 7 to the runs of every G and S that determine all three.

    Alpha, b, beta and epsilon are fixed at the values of ``law``: according to the paper they do not depend on G, and
    few G have enough sizes to determine seven coefficients.

    Raises:
      UserError: the runs lack an input of Eq. 11.
    """
    report = progress or (lambda *_: None)
    known = factor_values(runs)
    held = {name: float(getattr(law, name)) for name in HELD}
    free = len(dataclasses.fields(ThreeFactor)) - len(held)
    share = known["N_a"] / known["N"]
    groups = [
        g
        for g in _groups((known["G"], known["S"]), runs)
        if np.ptp(known["N"][g]) > 0 and share[g].max() > APART * share[g].min() and g.sum() > free
    ]
    fits = []
    for number, group in enumerate(groups):
        report("Eq. 7 at each G", number, len(groups))
        fit = fit_law(ThreeFactor, runs.only(group), fixed=held, starts=Sobol(MARGIN_STARTS, seed))
        if fit.unidentified or fit.unidentified_directions:
            continue
        fits.append(
            AtStructure(
                active_experts=float(known["G"][group][0]),
                shared_share=float(known["S"][group][0]),
                runs=int(group.sum()),
                coefficients={name: value for name, value in fit.coefficients.items() if name not in held},
                r_squared=fit.metrics.r_squared,
            )
        )
    return fits


APART = 1.2
"""Minimum ratio of active shares that separates the effects of N_a and N."""
HELD = ("params_exponent", "tokens_scale", "tokens_exponent", "irreducible")
"""Coefficients of Eq. 7 that do not depend on G."""


def coefficient_table(
    margins: Iterable[Margin], active: Iterable[Margin], structures: Iterable[AtStructure]
) -> pd.DataFrame:
    """Return a table with a row per marginal coefficient: its equation, symbol and value, and the fixed factors.

    Columns are ``equation``, ``symbol``, ``value``, ``runs``, ``r_squared``, ``best`` (the varied factor's value with
    the lowest loss) and the columns of ``COLUMNS``, empty for the varied factor. The equation of ``active`` is
    ``WITH_GAMMA``.
    """
    import pandas as pd

    by_name = {factor.name: factor for factor in FACTORS}
    rows: list[dict[str, Any]] = []
    named = [(by_name[one.factor].equation, one) for one in margins] + [(WITH_GAMMA, one) for one in active]
    for equation, one in named:
        about = {"runs": one.runs, "r_squared": one.r_squared, "best": one.best, **one.held}
        rows += _rows(equation, by_name[one.factor].law, one.coefficients, about)
    for one in structures:
        about = {"runs": one.runs, "r_squared": one.r_squared, "G": one.active_experts, "S": one.shared_share}
        rows += _rows("Eq. 7", ThreeFactor, one.coefficients, about)
    columns = ["equation", "symbol", "value", "runs", "r_squared", "best", *COLUMNS]
    return pd.DataFrame(rows, columns=columns).rename(columns=COLUMNS)


def _rows(equation: str, law: type, values: Mapping[str, float], about: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    symbols = {f.name: f.metadata["symbol"] for f in dataclasses.fields(law)}
    for name, value in values.items():
        yield {"equation": equation, "symbol": symbols[name], "value": value, **about}


def _groups(held: Iterable[np.ndarray], runs: Runs) -> list[np.ndarray]:
    """Return masks of the runs with positive weight that agree in the fixed factors."""
    _, label = np.unique(np.stack(list(held)), axis=1, return_inverse=True)
    return [(label.ravel() == number) & (runs.weight > 0) for number in range(label.max() + 1)]


def factor_values(runs: Runs) -> dict[str, np.ndarray]:
    """Return the five factors, keyed by the paper's letters. Ratios are rounded, so that equal ratios compare equal."""
    design = runs.design
    if missing := [name for name in INPUTS if getattr(design, name) is None]:
        raise UserError(
            f"The recipe reads {', '.join(INPUTS)}, but the runs have no {', '.join(missing)}. Name these columns with "
            f"--map OURS=THEIRS, or add them."
        )
    factors = {
        "N": design.params_total_nonembedding,
        "D": design.tokens,
        "N_a": design.params_active_nonembedding,
        "G": np.round(design.active_experts, 9),
        "S": np.round(design.shared_share, 9),
    }
    return {name: np.asarray(values, np.float64) for name, values in factors.items()}


HOOKS = ("a", "c", "h")
"""Coefficients of Eq. 7 that depend on G: the factors of 1/N^alpha, 1/N_a^alpha and N_a/N."""
PARTS = ("e", "f", "tau")
LEAST_VALUES = 3
"""Minimum number of values of G for a hook, and of values of S for a parabola."""


@dataclass(frozen=True, kw_only=True)
class Hook:
    """One coefficient of Eq. 7 as e·G + f/G + tau; e, f and tau are pairs of value and standard error."""

    symbol: str
    coefficients: dict[str, tuple[float, float]]
    apart: float
    """Difference of e/f from the first hook's e/f, in standard errors."""

    @property
    def best(self) -> float | None:
        """G that minimizes this coefficient; None if the coefficient has no minimum."""
        (e, _), (f, _) = self.coefficients["e"], self.coefficients["f"]
        return float(np.sqrt(f / e)) if min(e, f) > 0 else None


@dataclass(frozen=True, kw_only=True)
class Hooks:
    """The three hooks, and the free exponents of the term h·N_a^p/N^q."""

    hooks: tuple[Hook, ...]
    exponents: dict[str, tuple[float, float]]
    """Exponents p and q, each as a pair of value and standard error."""
    runs: int

    def frame(self) -> pd.DataFrame:
        """Return a table with a row per coefficient and its standard error; the exponents have the symbol h."""
        import pandas as pd

        each = {(one.symbol, part): pair for one in self.hooks for part, pair in one.coefficients.items()}
        each |= {("h", part): pair for part, pair in self.exponents.items()}
        rows = [(*name, *pair) for name, pair in each.items()]
        return pd.DataFrame(rows, columns=["symbol", "coefficient", "value", "standard_error"])

    def table(self) -> Table:
        """Return a table of the hooks, with notes on their agreement with Eqs. 7 and 9."""
        columns = (
            Column("coefficient of Eq. 7"),
            *(Column(part, _with_error, words=True) for part in PARTS),
            Column("best G", ".4g"),
            Column("e/f minus e/f of a, standard errors", ".2f"),
        )
        rows = [[one.symbol, *one.coefficients.values(), one.best, one.apart] for one in self.hooks]
        value, error = self.hooks[-1].coefficients["tau"]
        exponents = " and ".join(f"{name} {_with_error(pair)}" for name, pair in self.exponents.items())
        off = f"{abs(value / error):.2g} standard errors"
        notes = [
            f"In Eq. 9, e and f of all three are proportional, and h has no tau; here tau of h is {off} from 0.",
            f"In Eq. 7, N_a and N have the exponent 1 in h·N_a/N; fitted exponents are {exponents} (± standard error).",
        ]
        return Table("Hooks of a, c and h in G (Figure 10)", columns, rows, notes, key="hooks")


def hooks_of(law: FiveFactor, runs: Runs) -> Hooks:
    """Fit the hooks of a, c and h, and the exponents of the h term, with alpha and beta fixed at a joint law's values.

    Raises:
      UserError: the runs lack a factor, have fewer than three G, or do not determine every hook.
    """
    known = {name: values[runs.weight > 0] for name, values in factor_values(runs).items()}
    loss, weight = runs.loss[runs.weight > 0], np.sqrt(runs.weight[runs.weight > 0])
    if (several := len(np.unique(known["G"]))) < LEAST_VALUES:
        raise UserError(
            f"The runs have {several} values of G, but a hook needs at least {LEAST_VALUES}; train other numbers of "
            f"active experts."
        )

    def residuals(exponents: Any) -> Float[np.ndarray, " runs"]:
        columns = _columns(law, known, *exponents) * weight[:, None]
        return columns @ np.linalg.lstsq(columns, loss * weight, rcond=None)[0] - loss * weight

    columns = _columns(law, known) * weight[:, None]
    scale = np.linalg.norm(columns, axis=0)
    # The two exponents are free coefficients, too.
    free = len(loss) - columns.shape[1] - 2
    if free < 1 or np.linalg.matrix_rank(columns / scale) < columns.shape[1]:
        raise UserError("The runs do not determine a, c and h as functions of G; vary N, N_a and G independently.")
    solved, *_ = np.linalg.lstsq(columns / scale, loss * weight, rcond=None)
    left = columns / scale @ solved - loss * weight
    inverse = np.linalg.inv(columns.T @ columns / np.outer(scale, scale))
    covariance = inverse / np.outer(scale, scale) * (left @ left) / (len(loss) - columns.shape[1])
    solution = scipy.optimize.least_squares(residuals, (1.0, 1.0), x_scale=0.1)
    spread = np.linalg.inv(solution.jac.T @ solution.jac) * 2 * solution.cost / free
    exponents = {name: (float(solution.x[i]), float(np.sqrt(spread[i, i]))) for i, name in enumerate("pq")}
    return Hooks(hooks=_hooks(solved / scale, covariance), exponents=exponents, runs=len(loss))


def _columns(
    law: FiveFactor, known: dict[str, np.ndarray], active: float = 1.0, total: float = 1.0
) -> Float[np.ndarray, "runs columns"]:
    """Return the regressors: G, 1/G and 1 (and S² and S if S varies) times each hook's term, then D^-beta and 1."""
    alpha, beta = float(law.params_exponent), float(law.tokens_exponent)
    sizes = (known["N"] ** -alpha, known["N_a"] ** -alpha, known["N_a"] ** active / known["N"] ** total)
    shapes = [known["G"], 1 / known["G"], np.ones_like(known["G"])]
    if len(np.unique(known["S"])) >= LEAST_VALUES:
        shapes += [known["S"] ** 2, known["S"]]
    hooks = [shape * size for size in sizes for shape in shapes]
    return np.stack([*hooks, known["D"] ** -beta, np.ones_like(known["D"])], axis=1)


def _hooks(values: np.ndarray, covariance: np.ndarray) -> tuple[Hook, ...]:
    each = (len(values) - 2) // len(HOOKS)
    errors = np.sqrt(np.diag(covariance))
    hooks = []
    for number, symbol in enumerate(HOOKS):
        e, f = number * each, number * each + 1
        # The difference of the cross products e·f of the first hook and this hook is 0 if they are proportional.
        slope = np.zeros(len(values))
        slope[[0, 1]] += values[f], -values[e]
        slope[[e, f]] += -values[1], values[0]
        difference = values[0] * values[f] - values[1] * values[e]
        pairs = {part: (float(values[e + i]), float(errors[e + i])) for i, part in enumerate(PARTS)}
        apart = 0.0 if number == 0 else float(abs(difference) / np.sqrt(slope @ covariance @ slope))
        hooks.append(Hook(symbol=symbol, coefficients=pairs, apart=apart))
    return tuple(hooks)


def _with_error(pair: tuple[float, float]) -> str:
    value, error = pair
    return f"{value:.4g} ± {error:.2g}"
