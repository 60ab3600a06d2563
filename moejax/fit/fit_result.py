"""What a fit found, how far to trust it, and how to get it back from a file."""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moejax.fit.metrics import Metrics
from moejax.fit.objective import PENALTIES, Penalty
from moejax.laws.law import coefficients

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class FitResult:
    """A fitted law and the evidence about the fit."""

    law: Any
    """The law, in its own parameterisation; call it on a Design."""
    penalty: Penalty
    output: str
    """Which of the law's outputs was fitted."""
    value: float
    """Weighted sum of the penalties over the runs."""
    gradient_norm: float
    """Norm of the gradient of ``value`` / ``scale`` per e-fold of every coefficient; 0 at an optimum."""
    converged: bool
    starts: int
    """Starting points whose objective was computed."""
    polished: int
    """Starting points that were followed to their end."""
    agreeing: float
    """Share of the polished whose end is within 0.01 % of the lowest objective."""
    fixed: dict[str, float]
    """Coefficients that were given, not fitted."""
    stuck: dict[str, str]
    """Coefficients that the data did not set, and why."""
    condition_number: float
    """Of the fit's normal matrix in centred coordinates; above 1e10 a direction is lost in rounding."""
    cannot_tell: tuple[str, ...]
    """What the table does not determine, in sentences."""
    aicc: float
    """Akaike's criterion for Gaussian residuals of log loss, corrected for few runs; infinite if there are too few."""
    bic: float
    metrics: Metrics
    data_hash: str
    seed: int
    versions: dict[str, str]

    @property
    def coefficients(self) -> dict[str, float]:
        """Coefficients by name."""
        return {name: float(value) for name, value in coefficients(self.law).items()}

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a reader must know before believing the coefficients, worst first."""
        found = []
        if not self.converged:
            found.append(f"The search did not converge: its gradient norm is {self.gradient_norm:.2g}.")
        if self.agreeing < 2 / max(self.polished, 1) and self.polished > 1:
            found.append("Only one start reached this optimum; add starts before believing it.")
        found += [f"{name} was not set by the data: {why}." for name, why in self.stuck.items()]
        return (*found, *self.cannot_tell)

    def to_json(self) -> dict[str, Any]:
        """As plain data; infinities and NaN are written as null."""
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        cls = type(self.law)
        return {
            "schema": SCHEMA,
            **{name: _plain(value) for name, value in plain.items() if name not in ("law", "penalty")},
            "law": {"module": cls.__module__, "class": cls.__qualname__, "coefficients": self.coefficients},
            "penalty": {"name": _penalty_name(self.penalty), **dataclasses.asdict(self.penalty)},
            "warnings": list(self.warnings),
        }

    def save(self, path: str | Path) -> Path:
        """Write the JSON file that ``load`` reads."""
        path = Path(path)
        path.write_text(json.dumps(self.to_json(), indent=2) + "\n")
        return path

    def summary(self, errors: Mapping[str, float] | None = None, how: str = "") -> str:
        """A page of text: coefficients, errors, and what not to believe.

        Args:
          errors: standard errors of the coefficients, to be shown beside them; ``how`` says in words whose they are.
        """
        errors = errors or {}
        name = type(self.law).__name__
        rule = "=" * 78
        lines = [
            rule,
            f"{name:<38}{'runs':>20} {self.metrics.runs:>18}",
            f"{'objective (sum)':<20}{self.value:>17.8g} {'starts agreeing':>20} {self._agreement():>18}",
            f"{'gradient norm':<20}{self.gradient_norm:>17.2g} {'condition number':>20} {self.condition_number:>18.3g}",
            f"{'RMSE, nats':<20}{self.metrics.rmse:>17.5f} {'MAE, nats':>20} {self.metrics.mae:>18.5f}",
            f"{'RMSE, log loss':<20}{self.metrics.rmse_log:>17.5f} {'largest error, %':>20} "
            f"{100 * self.metrics.max_relative_error:>18.3f}",
            f"{'R²':<20}{self.metrics.r_squared:>17.5f} {'Huber, mean':>20} {self.metrics.huber:>18.4g}",
            f"{'AICc':<20}{self.aicc:>17.1f} {'BIC':>20} {self.bic:>18.1f}",
            "-" * 78,
            f"{'coefficient':<26}{'symbol':>8} {'value':>18}" + (f"{'std err':>13}" if errors else ""),
        ]
        for f in dataclasses.fields(self.law):
            if f.name not in self.coefficients:
                continue
            note = "given" if f.name in self.fixed else ""
            note = "not set by the data" if f.name in self.stuck else note
            error = errors.get(f.name, math.nan)
            shown = (f"{error:>13.3g}" if math.isfinite(error) else f"{'':>13}") if errors else ""
            value = f"{f.name:<26}{f.metadata['symbol']:>8} {self.coefficients[f.name]:>18.8g}"
            lines.append(f"{value}{shown}   {note}".rstrip())
        lines.append(rule)
        lines += [f"! {sentence}" for sentence in self.warnings]
        if how:
            lines.append(how)
        lines.append(f"data {self.data_hash}; {', '.join(f'{k} {v}' for k, v in self.versions.items())}")
        return "\n".join(lines)

    def _agreement(self) -> str:
        return f"{round(self.agreeing * self.polished)} of {self.polished} ({self.starts} screened)"


def load(path: str | Path) -> FitResult:
    """The FitResult that ``save`` wrote; its law is callable.

    Raises:
      ValueError: there is no such file, it holds something else, or its law is not one of moejax's.
    """
    path = Path(path)
    try:
        plain = json.loads(path.read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} holds no fit: {error}") from error
    if not isinstance(plain, dict) or plain.get("schema") != SCHEMA or "law" not in plain:
        raise ValueError(f"{path} holds no fit of schema {SCHEMA}; write one with FitResult.save or moejax fit --out.")
    return from_json(plain)


def from_json(plain: Mapping[str, Any]) -> FitResult:
    """The inverse of ``FitResult.to_json``."""
    module, name = plain["law"]["module"], plain["law"]["class"]
    if not module.startswith("moejax.laws."):
        raise ValueError(f"The fitted law is {module}.{name}; only laws of moejax.laws are loaded from a file.")
    law = getattr(importlib.import_module(module), name)(**plain["law"]["coefficients"])
    penalty = dict(plain["penalty"])
    fields = {f.name: plain[f.name] for f in dataclasses.fields(FitResult) if f.name not in ("law", "penalty")}
    for key in ("condition_number", "aicc", "bic"):
        fields[key] = math.inf if fields[key] is None else fields[key]
    fields["cannot_tell"] = tuple(fields["cannot_tell"])
    fields["metrics"] = _metrics(fields["metrics"])
    return FitResult(law=law, penalty=PENALTIES[penalty.pop("name")](**penalty), **fields)


def _metrics(plain: Mapping[str, Any]) -> Metrics:
    values: dict[str, Any] = {name: math.nan if value is None else value for name, value in plain.items()}
    return Metrics(**values)


def _penalty_name(penalty: Penalty) -> str:
    return next(name for name, cls in PENALTIES.items() if isinstance(penalty, cls))


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {k: _plain(v) for k, v in dataclasses.asdict(value).items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, tuple):
        return list(value)
    return value
