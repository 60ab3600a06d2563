"""How far a law's predictions are from the losses that were measured."""

from __future__ import annotations

import functools
from dataclasses import asdict, dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from moejax.fit.objective import Huber, outputs, penalties_of
from moejax.fit.runs import Runs
from moejax.float64 import float64


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """Errors over some runs, each weighed as in the fit. Losses are in nats per token."""

    runs: int
    mae: float
    """Mean absolute error, nats per token."""
    rmse: float
    """Root of the mean squared error, nats per token."""
    rmse_log: float
    """Root of the mean squared error of log loss: about the relative error; NaN if a prediction is not above 0."""
    r_squared: float
    """Share of the losses' variance that is predicted; NaN if the losses do not vary."""
    max_relative_error: float
    """Largest |predicted - measured| / measured."""
    huber: float = float("nan")
    """Mean of Huber's penalty (delta 1e-3) of log loss: what a fit minimises by default, per run."""


def predict(law: Any, runs: Runs, output: str = "loss") -> Float[np.ndarray, " runs"]:
    """What a law gives every run, in float64."""
    with float64():
        return np.asarray(_predict(output, law, runs.design), np.float64)


@functools.partial(jax.jit, static_argnums=0)
def _predict(output: str, law: Any, design: Any) -> Any:
    return outputs(law, design, output)


def metrics(law: Any, runs: Runs, output: str = "loss") -> Metrics:
    """Errors of a law on the runs whose weight is not 0."""
    kept = runs.weight > 0
    return errors(predict(law, runs, output)[kept], runs.loss[kept], runs.weight[kept])


Each = Float[np.ndarray, " runs"]


def errors(predicted: Each, measured: Each, weight: Each) -> Metrics:
    """Errors of predictions, however they came about."""
    error = predicted - measured
    square = np.average(error**2, weights=weight)
    variance = np.average((measured - np.average(measured, weights=weight)) ** 2, weights=weight)
    with float64():
        penalties = np.asarray(penalties_of(Huber(), predicted, measured))
    with np.errstate(divide="ignore", invalid="ignore"):
        # What is not above 0 has no logarithm, and so no relative error.
        log_errors = np.log(predicted / measured)
    return Metrics(
        runs=len(measured),
        mae=float(np.average(np.abs(error), weights=weight)),
        rmse=float(np.sqrt(square)),
        rmse_log=float(np.sqrt(np.average(log_errors**2, weights=weight))),
        r_squared=float(1 - square / variance) if variance > 0 else float("nan"),
        max_relative_error=float(np.max(np.abs(error) / measured)),
        huber=float(np.average(penalties, weights=weight)),
    )


def plain(record: Any) -> dict[str, float | int | None]:
    """The numbers of a dataclass as plain data; what is not finite is null."""
    return {name: value if np.isfinite(value) else None for name, value in asdict(record).items()}
