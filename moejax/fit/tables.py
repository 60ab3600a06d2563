"""A fit as tables: intervals and predictions for a notebook, coefficients for a paper."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from moejax.errors import UserError
from moejax.fit.fit_result import NO_COVARIANCE
from moejax.fit.intervals import keeps_sign
from moejax.fit.prediction import predict_runs
from moejax.laws.design import design_from, known
from moejax.laws.law import coefficients, require_inputs
from moejax.laws.predict import predict as predict_one

if TYPE_CHECKING:
    from moejax.fit.fit_result import FitResult

GREEK = re.compile("alpha|beta|gamma|delta|epsilon|zeta|eta|iota|kappa|lambda|mu|nu|xi|rho|sigma|tau|phi|chi|psi|omega")


def conf_int(result: FitResult, level: float = 0.9) -> pd.DataFrame:
    """Every coefficient with the interval that its standard error and Student's t give; one that was given, or that
    the runs do not determine, has none (NaN).

    Raises:
      UserError: ``level`` is not between 0 and 1, or the fit holds no covariance.
    """
    spread = result.spread(lambda law: [*coefficients(law).values()])
    spread = spread.without([name in result.without_error for name in result.coefficients])
    low, high = spread.ends(level, np.asarray([*keeps_sign(result.law).values()]))
    columns = {"value": spread.middle, "std_err": spread.errors, "low": low, "high": high}
    return pd.DataFrame(columns, index=pd.Index([*result.coefficients], name="coefficient"))


def predict(result: FitResult, design: Any, level: float = 0.9) -> pd.DataFrame:
    """What the law gives for new runs, the range that so large a share of such runs falls in, and how far each lies
    beyond the fitted runs.

    Args:
      design: a Design, whose fields are numbers or arrays with an entry per run.

    Raises:
      UserError: the design lacks what the law reads or cannot be, or the fit holds no covariance.
    """
    if result.uncertainty is None or not result.uncertainty.axes:
        raise UserError(NO_COVARIANCE)
    given = known(design)
    require_inputs(result.law, given)
    columns = dict(zip(given, np.broadcast_arrays(*map(np.atleast_1d, given.values())), strict=True))
    each = [
        design_from(dict(zip(columns, row, strict=True)))
        for row in np.stack([*columns.values()], axis=1).astype(np.float64).tolist()
    ]
    # They also refuse what cannot be.
    beyond = [predict_one(result, one).extrapolated for one in each]
    predicted = predict_runs(result, None, None, design_from(columns), level)
    words = ["; ".join(f"{name} {factor:.3g}×" for name, factor in one.items()) for one in beyond]
    return pd.DataFrame(
        {**columns, result.output: predicted.loss, "low": predicted.low, "high": predicted.high, "beyond": words}
    )


def to_latex(result: FitResult, level: float = 0.9) -> str:
    """Coefficients with their intervals as a tabular of LaTeX, for booktabs."""
    name = type(result.law).__name__
    try:
        intervals = conf_int(result, level)
    except ValueError:
        intervals = None
    lines = [
        f"% {name}, {result.metrics.runs} runs, data {result.data_hash}; needs \\usepackage{{booktabs}}",
        r"\begin{tabular}{lrr}",
        r"\toprule",
        rf"coefficient & value & {100 * level:g}\,\% interval \\",
        r"\midrule",
    ]
    for f in dataclasses.fields(result.law):
        if f.name not in result.coefficients:
            continue
        interval = result.state(f.name) or "--"
        if intervals is not None and np.isfinite(intervals.loc[f.name, "std_err"]):
            interval = f"$[{_number(intervals.loc[f.name, 'low'])},\\ {_number(intervals.loc[f.name, 'high'])}]$"
        lines.append(rf"${_symbol(f.metadata['symbol'])}$ & ${_number(result.coefficients[f.name])}$ & {interval} \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def _symbol(symbol: str) -> str:
    """A letter with what stands below it: ``alpha_N`` is ``\\alpha_{N}``."""
    letter, _, below = symbol.partition("_")
    letter, below = (rf"\{one}" if GREEK.fullmatch(one) else one for one in (letter, below))
    return f"{letter}_{{{below}}}" if below else letter


def _number(value: Any) -> str:
    """Four digits: ``1.234 \\times 10^{5}``."""
    return re.sub(r"e([+-])0*(\d+)", lambda e: rf" \times 10^{{{e[1].strip('+')}{e[2]}}}", f"{float(value):.4g}")
