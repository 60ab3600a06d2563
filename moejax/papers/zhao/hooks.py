"""Test two conclusions of Zhao et al. (2025): hooks in G that are proportional (Figure 10), and exponents of 1 (C.3).

The paper fits Eq. 7 at every G and inspects its a, c and h. Here each of the three is a hook with its own coefficients,
e·G + f/G + tau. One regression over all runs gives every hook a standard error. Inferred: alpha and beta are those of
the joint law, and m·S² + n·S is added to each hook if S varies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.optimize
from jaxtyping import Float

from moejax.errors import UserError
from moejax.fit.runs import Runs
from moejax.laws.mixtures.five_factor import FiveFactor
from moejax.papers.zhao.margins import factor_values
from moejax.result import Column, Table

if TYPE_CHECKING:
    import pandas as pd

HOOKS = ("a", "c", "h")
"""Coefficients of Eq. 7 that depend on G, of 1/N^alpha, 1/N_a^alpha and N_a/N."""
PARTS = ("e", "f", "tau")
LEAST_VALUES = 3
"""Minimum number of values of G for a hook, and of S for a parabola."""


@dataclass(frozen=True, kw_only=True)
class Hook:
    """One coefficient of Eq. 7 as e·G + f/G + tau, each a value and a standard error."""

    symbol: str
    coefficients: dict[str, tuple[float, float]]
    apart: float
    """Standard errors between e/f of this hook and of the first one."""

    @property
    def best(self) -> float | None:
        """G at the minimum; None if there is none."""
        (e, _), (f, _) = self.coefficients["e"], self.coefficients["f"]
        return float(np.sqrt(f / e)) if min(e, f) > 0 else None


@dataclass(frozen=True, kw_only=True)
class Hooks:
    """The three hooks, and the free exponents of the term h·N_a^p/N^q."""

    hooks: tuple[Hook, ...]
    exponents: dict[str, tuple[float, float]]
    """Exponents p and q, each a value and a standard error."""
    runs: int

    def frame(self) -> pd.DataFrame:
        """Return a row for every coefficient, with its standard error; the exponents have the symbol h."""
        import pandas as pd

        each = {(one.symbol, part): pair for one in self.hooks for part, pair in one.coefficients.items()}
        each |= {("h", part): pair for part, pair in self.exponents.items()}
        rows = [(*name, *pair) for name, pair in each.items()]
        return pd.DataFrame(rows, columns=["symbol", "coefficient", "value", "standard_error"])

    def table(self) -> Table:
        """Return the hooks, and their agreement with Eqs. 7 and 9."""
        columns = (
            Column("coefficient of Eq. 7"),
            *(Column(part, _with_error, words=True) for part in PARTS),
            Column("best G", ".4g"),
            Column("e/f from that of a, standard errors", ".2f"),
        )
        rows = [[one.symbol, *one.coefficients.values(), one.best, one.apart] for one in self.hooks]
        value, error = self.hooks[-1].coefficients["tau"]
        exponents = " and ".join(f"{name} {_with_error(pair)}" for name, pair in self.exponents.items())
        off = f"{abs(value / error):.2g} standard errors"
        notes = [
            f"Eq. 9 has e and f of all three proportional, and no tau of h, which is {off} from 0.",
            f"Eq. 7 has N_a and N in h·N_a/N without exponents; fitted, those are {exponents} (± standard error).",
        ]
        return Table("Hooks of a, c and h in G (Figure 10)", columns, rows, notes, key="hooks")


def hooks_of(law: FiveFactor, runs: Runs) -> Hooks:
    """Fit the hooks of a, c and h, and the exponents of the term with h, at alpha and beta of a joint law.

    Raises:
      UserError: the runs lack a factor, have fewer than three G, or do not determine every hook.
    """
    known = {name: values[runs.weight > 0] for name, values in factor_values(runs).items()}
    loss, weight = runs.loss[runs.weight > 0], np.sqrt(runs.weight[runs.weight > 0])
    if (several := len(np.unique(known["G"]))) < LEAST_VALUES:
        raise UserError(f"The runs have {several} values of G; a hook needs {LEAST_VALUES}.")

    def residuals(exponents: Any) -> Float[np.ndarray, " runs"]:
        columns = _columns(law, known, *exponents) * weight[:, None]
        return columns @ np.linalg.lstsq(columns, loss * weight, rcond=None)[0] - loss * weight

    columns = _columns(law, known) * weight[:, None]
    scale = np.linalg.norm(columns, axis=0)
    # The exponents are two more free coefficients.
    free = len(loss) - columns.shape[1] - 2
    if free < 1 or np.linalg.matrix_rank(columns / scale) < columns.shape[1]:
        raise UserError("The runs do not set a hook of each of a, c and h: vary N, N_a and G apart from each other.")
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
    """Return the regressors: G, 1/G and 1 (and S² and S if S varies) times each hook's term; then D, then 1."""
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
        # Difference of the cross products e·f of the first hook and this one: 0 if they are proportional, whatever
        # their sign.
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
