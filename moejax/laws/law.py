"""Define laws and their entries. A law is a frozen pytree of coefficients that maps a Design to a loss. An entry has
the law's name, published constants, decisions and claims; each law's file ends with entries, which ``moejax.laws``
collects.

A law can be fitted (``jax.grad`` with respect to coefficients), optimized over (``jax.grad`` with respect to the
design), bootstrapped (``jax.vmap`` over laws) and plotted. It is written for one point, in plain arithmetic, and never
branches on values. A call only checks that the required inputs are given; ``moejax.laws.predict`` checks values.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeVar, dataclass_transform, runtime_checkable

import jax.numpy as jnp
import numpy as np

from moejax.errors import UserError
from moejax.laws.claim import Claim
from moejax.laws.decision import DecisionRule
from moejax.laws.design import Design, Scalar, known
from moejax.plugins import NAME
from moejax.pytree import pytree
from moejax.wording import listed

Sign = str
"""Sign of a coefficient: ``"+"``, ``"-"`` or ``"any"``."""


@runtime_checkable
class Law(Protocol):
    """A fitted or published scaling law."""

    inputs: ClassVar[tuple[str, ...]]
    """Names of the Design fields that the law reads."""
    outputs: ClassVar[Mapping[str, str]]
    """Units by output name: ``LOSS``, or a unit for each entry of the mapping that the law returns."""
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    def __call__(self, design: Design) -> Any:
        """Return the loss in nats per token at one design point, or a mapping if the law predicts something else."""
        ...


LOSS: Mapping[str, str] = {"loss": "nats per token"}
"""Outputs of a loss law."""


def unit_of(output: str) -> str:
    """Return the unit of an output's predictions and errors, for tables and axes."""
    return "nats/token" if output in LOSS else f"units of {output}"


def with_unit(output: str) -> str:
    """Return an output's axis label, with the unit if the output has one."""
    words = output.replace("_", " ")
    return f"{words}, {unit_of(output)}" if output in LOSS else words


def coefficient(
    meaning: str,
    *,
    symbol: str,
    sign: Sign = "+",
    dimension: Mapping[str, str | tuple[str, ...]] | None = None,
    shift: Mapping[str, str] | None = None,
    log_base: float = math.e,
    is_scale: bool | None = None,
    is_exponent: bool = False,
    output: str | None = None,
) -> Any:
    """Declare a fitted field of a law.

    Args:
      meaning: description with its unit.
      symbol: letter of the coefficient in the paper.
      sign: sign that a fit may give the coefficient.
      dimension: dimension as powers of units, as in physics. In ``A / N^alpha`` the scale A has the dimension
        ``params^alpha``, written ``{"params": "params_exponent"}``. Keys are keys of ``design.KINDS``. Exponents are
        numbers or names of other coefficients, optionally negated; a tuple stands for the sum of its entries.
      shift: amount added to this coefficient if the unit of an input inside a logarithm is multiplied by e. In
        ``E^(delta + gamma·log N)``, the shift of delta is ``{"params": "gamma"}``.
      log_base: base of this logarithm.
      is_scale: True for the scale of a term of the output. The default is True for coefficients with a dimension.
      is_exponent: True for an exponent that does not occur in any ``dimension``.
      output: the only output that depends on this coefficient; None if several outputs may.

    The fitting engine centers the inputs of a law. It uses dimensions and shifts to transform the fitted coefficients
    back to plain units (``in_units``).
    """
    return dataclasses.field(
        metadata={
            "meaning": meaning,
            "symbol": symbol,
            "sign": sign,
            "dimension": dict(dimension or {}),
            "shift": dict(shift or {}),
            "log_base": log_base,
            "is_scale": bool(dimension) if is_scale is None else is_scale,
            "is_exponent": is_exponent,
            "output": output,
        }
    )


def constant(
    meaning: str, *, symbol: str, default: float, dimension: Mapping[str, str | tuple[str, ...]] | None = None
) -> Any:
    """Declare a field of a law that is chosen, not fitted. It may have a dimension but is not a leaf of the pytree."""
    metadata = {"static": True, "meaning": meaning, "symbol": symbol, "dimension": dict(dimension or {})}
    return dataclasses.field(
        default=default,
        metadata={**metadata, "shift": {}, "log_base": math.e, "is_scale": bool(dimension), "is_exponent": False},
    )


_Class = TypeVar("_Class", bound=type)
_OfClass = TypeVar("_OfClass", bound=Law)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(coefficient, constant))
def law(cls: _Class) -> _Class:
    """Decorate a class as a frozen, keyword-only dataclass whose coefficients are the leaves of a pytree.

    Calling the law on a Design without one of its ``inputs`` raises ``UserError``; the message lists the missing
    inputs.
    """
    if "__call__" in vars(cls) and hasattr(cls, "inputs"):
        cls.__call__ = _asking_for_inputs(cls.__call__)
    return pytree(dataclass(frozen=True, kw_only=True)(cls))


def _asking_for_inputs(call: Callable[[Law, Design], Any]) -> Callable[[Law, Design], Any]:
    @functools.wraps(call)
    def checked(self: Law, design: Design) -> Any:
        require_inputs(self, known(design))
        return call(self, design)

    return checked


def require_inputs(law: Law | type[Law], given: Container[str]) -> None:
    """Raise ``UserError`` with the missing inputs if ``given`` lacks an input of the law."""
    missing = [name for name in law.inputs if name not in given]
    if missing:
        cls = law if isinstance(law, type) else type(law)
        raise UserError(f"The law {cls.__name__} reads {listed(law.inputs)}; also give {listed(missing)}.")


def coefficients(law: Law) -> dict[str, Any]:
    """Return the coefficients of a law by name, in order, without constants."""
    return {f.name: getattr(law, f.name) for f in dataclasses.fields(law) if not f.metadata.get("static")}


def from_law(cls: type[_OfClass], law: Law, **changed: Scalar) -> _OfClass:
    """Return a law of class ``cls`` with the coefficients of ``law`` that have the same names, except the changed
    ones."""
    names = (f.name for f in dataclasses.fields(cls))
    return cls(**{name: changed[name] if name in changed else getattr(law, name) for name in names})


def without_effect(law: type, output: str) -> tuple[str, ...]:
    """Return the coefficients on which one of a law's outputs does not depend."""
    return tuple(f.name for f in dataclasses.fields(law) if f.metadata.get("output") not in (None, output))


def outputs_of(law: Law) -> dict[str, str]:
    """Return the units of a law's outputs, keyed by output; outputs with unfitted (NaN) coefficients are left out."""
    unknown = {name for name, value in coefficients(law).items() if np.any(np.isnan(value))}
    cls = type(law)
    return {name: unit for name, unit in law.outputs.items() if unknown <= {*without_effect(cls, name)}}


def is_power(exponent: str | tuple[str, ...]) -> bool:
    """Return whether a unit's exponent in a dimension is a number rather than a coefficient."""
    powers = (exponent,) if isinstance(exponent, str) else exponent
    return all(power.lstrip("-").replace(".", "", 1).isdigit() for power in powers)


def _log(size: Scalar) -> Any:
    """Return the logarithm, in float64 for a plain number, otherwise in the array's precision."""
    return math.log(size) if isinstance(size, int | float) else jnp.log(size)


def _power(base: Scalar, exponent: Scalar) -> Any:
    """Return ``base ** exponent``, or infinity where Python's power of two floats would raise an error."""
    if not (isinstance(base, int | float) and isinstance(exponent, int | float)):
        return base**exponent
    with np.errstate(over="ignore", divide="ignore"):
        return float(np.power(float(base), float(exponent)))


def in_units(law: Law, units: Mapping[str, Scalar]) -> Any:
    """Return the law for designs in other units: ``in_units(law, u)(design.in_units(d, u)) == law(d)``.

    Args:
      law: a law for designs in plain counts.
      units: sizes of the new units, keyed by kind as in ``design.in_units``; other kinds keep their units.
    """
    values = {f.name: getattr(law, f.name) for f in dataclasses.fields(law)}

    def exponent(text: str) -> Any:
        factor, name = (-1.0, text[1:]) if text.startswith("-") else (1.0, text)
        return factor * (values[name] if name in values else float(name))

    changes = {}
    for f in dataclasses.fields(law):
        value = values[f.name]
        for kind, powers in f.metadata["dimension"].items():
            if kind in units:
                total = sum(exponent(p) for p in ((powers,) if isinstance(powers, str) else powers))
                # The fit reports non-finite values.
                with np.errstate(over="ignore", invalid="ignore"):
                    value = value * _power(units[kind], -total)
        for kind, slope in f.metadata["shift"].items():
            if kind in units:
                value = value + exponent(slope) * (_log(units[kind]) / math.log(f.metadata["log_base"]))
        changes[f.name] = value
    return dataclasses.replace(law, **changes)


PROVENANCE = {
    "verified": "recomputed from the authors' data or configuration, or compared with their printed results",
    "read": "read in the document itself, not recomputed",
    "secondary": "quoted from other documents",
}
"""Kinds of provenance of a set of constants."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """Constants of one law from one document."""

    law: Any
    """Law with these constants."""
    source: str
    """Document, equation or table."""
    provenance: str
    """A key of ``PROVENANCE``."""
    data: str = ""
    """Data on which the loss was measured, as far as stated."""
    fitted: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    """Smallest and largest fitted value of each variable, keyed by its name in ``Design``."""
    dense: bool = False
    """True if the constants were fitted to dense models only and do not model the gain of experts."""
    remark: str = ""
    """Caveats of these constants."""


@dataclass(frozen=True, kw_only=True)
class LawEntry:
    """A law with its names, published constants, decisions and claims."""

    name: str
    law: type
    """Class made by ``moejax.laws.law.law``."""
    aliases: tuple[str, ...] = ()
    """Aliases, usually the paper's first author."""
    published: Mapping[str, Published] = field(default_factory=dict)
    """Published constants by the name of the set; the first is the default."""
    decides: tuple[DecisionRule, ...] = ()
    """Decisions of ``moejax fit --decide``."""
    claims: Mapping[str, Callable[[], Claim]] = field(default_factory=dict)
    """Functions that return claims with published constants, keyed by function name."""
    not_searched: str = ""
    """Reason why the fitting engine does not search for the coefficients, if they are determined otherwise."""

    def __post_init__(self) -> None:
        if not all(hasattr(self.law, name) for name in ("inputs", "outputs", "__dataclass_fields__")):
            raise UserError(f"{self.name} has the law {self.law!r}; give a class decorated with @moejax.laws.law.law.")
        if not isinstance(self.aliases, tuple) or not all(map(NAME.fullmatch, self.aliases)):
            raise UserError(f"The aliases of {self.name} are {self.aliases!r}; give a tuple of lower-case names.")
