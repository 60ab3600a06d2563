"""What ``import moejax as mj`` offers, for editors and type checkers; it is imported when it is first used."""

from collections.abc import Mapping
from typing import Any

from moejax import laws as laws
from moejax.architecture import Architecture as Architecture
from moejax.design.decide import DesignResult
from moejax.fit.fit_result import FitResult as FitResult
from moejax.fit.loss_curves import fit_curves as fit_curves
from moejax.fit.read_curves import read_curves as read_curves
from moejax.fit.read_runs import read_runs as read_runs
from moejax.laws.design import Design as Design
from moejax.report.render import show as show
from moejax.train.training import Training as Training

__version__: str

def fit(runs: Any, law: Any, *, loss_law: Any = None, **options: Any) -> FitResult:
    """Fit a law, by its name or class, to runs: what ``read_runs`` returns, or a file or DataFrame."""

def design(
    law: Any,
    *,
    hold: Mapping[str, float | int] | None = None,
    like: Architecture | None = None,
    within: float = 0.001,
    level: float = 0.9,
    **at_most: float | int,
) -> DesignResult:
    """The best model under a law, its name, published constants or a fit, within limits such as ``flops=1e24``."""
