"""Look up laws and published constants, check designs, and make predictions that report extrapolation.

Laws themselves are pure functions without checks.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np

from moejax.errors import UserError
from moejax.float64 import float64
from moejax.laws import PUBLISHED, law_name
from moejax.laws.dense.chinchilla import FLOPS_PER_PARAM_AND_TOKEN
from moejax.laws.design import COUNTED, FIELDS, POSSIBLE, THOUSAND, WORDS, Design, kind_of, known, value_of
from moejax.laws.law import Law, Published, outputs_of, require_inputs
from moejax.quantities import format
from moejax.result import Column, Result, Shown, Table
from moejax.wording import did_you_mean, listed

POSITIVE = (
    *("params_total", "params_active", "tokens", "unique_tokens", "flops"),
    *("model_dim", "num_layers", "expert_hidden"),
)
"""Fields of a Design that must be positive; the others must be at least 0."""


AS_DENSE = (
    "These constants were fitted only to dense models. They treat an MoE model like a dense model and do not include "
    "the gain from experts."
)
"""Warning that is shown if ``Prediction.as_dense``."""


@dataclass(frozen=True, repr=False)
class Prediction(Shown):
    """The prediction of a law for one design."""

    values: Mapping[str, float]
    """Predictions by the names of the law's ``outputs``."""
    units: Mapping[str, str]
    extrapolated: Mapping[str, float]
    """Variables outside the fitted range, with their ratio to the largest fitted value (above 1) or the smallest (below
    1)."""
    unchecked: tuple[str, ...]
    """Variables not checked against a range, because no range is published or the design lacks them."""
    as_dense: bool = False
    """True if the design is an MoE model and the constants were fitted only to dense models."""
    params_effective: float | None = None
    """Parameters of the dense model with the same loss; None if the law does not define them."""

    def summary(self) -> Result:
        """Return the predicted values, and how far they extrapolate."""
        columns = (Column("output", words=True), Column("value", format), Column("unit", words=True))
        rows = [[name, value, self.units[name]] for name, value in self.values.items()]
        if self.params_effective is not None:
            rows.append(["params_effective", self.params_effective, "parameters of the dense model with this loss"])
        far = beyond_in_words(self.extrapolated)
        notes = [f"Beyond the fitted range: {'; '.join(far)}."] * bool(far) + [AS_DENSE] * self.as_dense
        return Result(tables=[Table("Prediction", columns, rows)], notes=notes)

    @property
    def loss(self) -> float:
        """Return the loss in nats per token.

        Raises:
          UserError: the law predicts something else.
        """
        if "loss" not in self.values:
            raise UserError(f"This law predicts {listed(self.values)}, not a loss; read `values` instead.")
        return self.values["loss"]


def beyond_in_words(factors: Mapping[str, float]) -> list[str]:
    """Return ``Prediction.extrapolated`` as text: ``tokens 4.9× above``, ``flops 2× below``."""
    return [
        f"{name} {factor:.3g}× above"
        if factor > 1
        else f"{name} {1 / factor:.3g}× below"
        if factor > 0
        else f"{name} {'0' if factor == 0 else 'below 0'}"
        for name, factor in factors.items()
    ]


def published(name: str, constants: str | None = None) -> Published:
    """Return a published set of constants of a law; the first set if ``constants`` is None.

    Raises:
      UserError: the law or set is unknown (with similar names), or the law has no published constants.
    """
    law = law_name(name)
    sets = PUBLISHED[law]
    if not sets:
        raise UserError(f"No constants are published for the law '{law}'; fit it to runs first.")
    if constants is None:
        return next(iter(sets.values()))
    if constants not in sets:
        raise UserError(f"The law '{law}' has no set of constants '{constants}'; {did_you_mean(constants, sets)}")
    return sets[constants]


@runtime_checkable
class Ranged(Protocol):
    """A law with its fitted ranges: a published set, or a fit."""

    @property
    def law(self) -> Any:
        """Return the law."""
        ...

    @property
    def fitted(self) -> Mapping[str, tuple[Any, Any]]:
        """Return the smallest and largest value of each variable in the fitted data, keyed by its ``Design`` name."""
        ...


def predict(law: str | Ranged | Law, design: Design | None = None, **fields: float) -> Prediction:
    """Return the prediction of a law for one design, in float64, with the variables in which it extrapolates.

    Args:
      law: a name (with default constants), a published set, a fit, or a law object, whose fitted range is unknown.
      design: the design; or give its fields by name, such as ``params_active=7e9, tokens=2e12``.
      fields: fields of ``Design``.

    Raises:
      UserError: the design is impossible or lacks an input of the law, a field is unknown, or the prediction is
        NaN or infinite.

    Example:
      >>> mj.predict("chinchilla", params_active=7e9, tokens=2e12).loss
    """
    if unknown := [name for name in fields if name not in FIELDS]:
        raise UserError(f"A design has no field {unknown[0]!r}; {did_you_mean(unknown[0], FIELDS)}")
    if design is not None and fields:
        raise UserError(f"Both a design and {listed(fields)} are given; give one of them.")
    asked = Design(**fields) if design is None else design
    if isinstance(law, str):
        law = published(law)
    fitted = law.fitted if isinstance(law, Ranged) else {}
    bare: Any = law.law if isinstance(law, Ranged) else law
    check_design(asked)
    require_inputs(bare, known(asked))
    check_experts(bare, asked)
    # NumPy numbers avoid the compilation of single JAX operations. Non-finite results are reported below.
    with float64(), np.errstate(all="ignore"):
        exact, point = jax.tree.map(lambda x: np.float64(x), (bare, asked))
        outputs: Any = exact(point)
        units = outputs_of(bare)
        values = {name: float(outputs[name] if isinstance(outputs, Mapping) else outputs) for name in units}
        if asked.flops is None and asked.params_active is not None and asked.tokens is not None:
            # Count FLOPs as decisions do; a law that reads FLOPs has required them above.
            spent = FLOPS_PER_PARAM_AND_TOKEN * point.params_active * point.tokens
            asked = point = dataclasses.replace(point, flops=spent)
        ranges = {
            name: bounds for name, bounds in fitted.items() if name not in FIELDS or getattr(asked, name) is not None
        }
        endless = {name: value for name, value in values.items() if not math.isfinite(value)}
        if endless:
            raise UserError(_without_number(bare, asked, endless))
        outside = {name: factor(float(value_of(point, name)), *bounds) for name, bounds in ranges.items()}
    return Prediction(
        values=values,
        units=units,
        extrapolated={name: factor for name, factor in outside.items() if factor != 1},
        unchecked=tuple(name for name in fitted or bare.inputs if name not in ranges),
        as_dense=isinstance(law, Published) and law.dense and _is_mixture(asked),
        params_effective=effective_params(bare, asked),
    )


def effective_params(law: Law, design: Design) -> float | None:
    """Return the parameters of the dense model with the same loss, in float64; None if the law does not define them."""
    if not hasattr(law, "dense_equivalent"):
        return None
    with float64():
        exact, point = jax.tree.map(lambda x: np.float64(x), (law, design))
        return float(exact.dense_equivalent(point))


def _is_mixture(design: Design) -> bool:
    given = known(design)
    active = given.get("params_active")
    return bool(given.get("num_experts", 0) > 0 or (active is not None and given.get("params_total", active) > active))


def check_experts(law: Law, design: Design) -> None:
    """Raise ``UserError`` if the law reads the number of active experts and the design has none."""
    if {"top_k", "num_shared_experts"} <= set(law.inputs) and not design.active_experts > 0:
        raise UserError(
            "top_k and num_shared_experts are both 0, but the law reads the number of active experts, which must be "
            "positive; give an MoE model, or use a law of dense models."
        )


def check_design(design: Design) -> None:
    """Raise ``UserError`` if no training run can have this design; the message gives fields, values, rule and
    remedy."""
    given = {name: float(value) for name, value in known(design).items()}
    for name, value in given.items():
        if name not in FIELDS:
            if not math.isfinite(value):
                raise UserError(f"{name} is {value:g}; it must be a finite number.")
        elif not math.isfinite(value) or value < 0 or (value == 0 and name in POSITIVE):
            rule = "positive" if name in POSITIVE else "at least 0"
            raise UserError(f"{name} is {value:g}; it must be finite and {rule}.")
    _require_order(given, "params_active", "params_total", "the total includes the active parameters")
    for count in ("params_active", "params_total"):
        _require_order(
            given, "params_embedding", count, "both counts include the embeddings and other parameters", equal=False
        )
    _require_order(given, "top_k", "num_experts", "sparsity, the share of idle experts, must be in [0, 1)")
    if given.get("num_experts", 0) > 0 and given.get("top_k") == 0:
        raise UserError(
            f"num_experts is {given['num_experts']:g} and top_k is 0, but at least one routed expert must serve a "
            f"token. Raise top_k, or set num_experts to 0 for a dense model."
        )


def check_scale(design: Design) -> None:
    """Raise ``UserError`` if counts are implausible or FLOPs contradict sizes and tokens. Run tables have the same
    check (``moejax.fit.tables.units``)."""
    given = {name: float(value) for name in COUNTED if (value := getattr(design, name)) is not None}
    for name, value in given.items():
        kind = kind_of(name)
        low, high = POSSIBLE[kind]
        if not low <= value <= high:
            limit = f"below {format(low)}" if value < low else f"above {format(high)}"
            raise UserError(
                f"{name} is {value:g}, which is {limit} {WORDS[kind]} and implausible for a training run; give it in "
                f"plain {WORDS[kind]}."
            )
    if {"params_active", "tokens", "flops"} <= set(given):
        ratio = given["flops"] / (FLOPS_PER_PARAM_AND_TOKEN * given["params_active"] * given["tokens"])
        if round(math.log10(ratio) / THOUSAND):
            raise UserError(
                f"flops are {ratio:.3g} times 6 · params_active · tokens: one of the three is in another unit. Correct "
                f"it, or give only two of them."
            )


def _without_number(law: Law, design: Design, endless: Mapping[str, float]) -> str:
    read = ", ".join(f"{name} {float(value_of(design, name)):g}" for name in law.inputs)
    said = ", ".join(f"{name} = {value}" for name, value in endless.items())
    return f"The prediction of {type(law).__name__} is not finite at {read}: {said}. Give plausible sizes and counts."


def _require_order(given: Mapping[str, float], small: str, large: str, why: str, *, equal: bool = True) -> None:
    if small not in given or large not in given:
        return
    if given[small] > given[large] or (given[small] == given[large] and not equal):
        raise UserError(
            f"{small} is {given[small]:g} and {large} is {given[large]:g}; {why}: lower {small} or raise {large}."
        )


def factor(value: float, smallest: float, largest: float) -> float:
    """Return the ratio of a value above ``largest`` or below ``smallest`` to this bound; 1 between the bounds.

    Factors that print as 1 count as 1, because sizes in tables are rounded.
    """
    if value > largest * (1 + PRINTS_AS_ONE):
        return value / largest
    return value / smallest if value < smallest * (1 - PRINTS_AS_ONE) else 1.0


PRINTS_AS_ONE = 0.005
"""Largest relative excess that prints as a factor of 1 with three digits."""


def law_and_constants(text: str, constants: str | None) -> tuple[str, str | None]:
    """Return the name of the law called ``text``, and the constants: by default those of the paper that ``text`` names,
    if any.

    Raises:
      UserError: there is no such law.
    """
    law = law_name(text)
    if constants is None:
        constants = next((key for key in PUBLISHED[law] if key.startswith(text.lower())), None)
    return law, constants
