"""Define named estimands of a fitted law: coefficients, decisions and predictions for a run."""

from __future__ import annotations

import functools
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from moejax.errors import UserError
from moejax.fit.uncertainty.derivatives import Functional
from moejax.laws import DECISIONS, called
from moejax.laws.decision import DecisionRule
from moejax.laws.design import DERIVED, FIELDS, Design, design_from
from moejax.laws.formula_law import FormulaLaw
from moejax.laws.law import Law, require_inputs
from moejax.laws.predict import check_design, check_scale
from moejax.laws.scores.chained_law import ChainedLaw
from moejax.quantities import format
from moejax.wording import did_you_mean, listed, option_hint


@dataclass(frozen=True, kw_only=True)
class Named:
    """A number requested from a law."""

    name: str
    symbol: str
    given: Mapping[str, float]
    """Given quantities; empty for a coefficient."""

    @property
    def label(self) -> str:
        """Name and symbol."""
        return f"{self.name} ({self.symbol})"

    @property
    def where(self) -> str:
        """Given quantities in readable form: ``flops = 1e+24, expansion = 16``."""
        return where_in_words(self.given)

    @property
    def title(self) -> str:
        """Name, symbol and given quantities: ``optimal_tokens (D*) at flops = 1e24``."""
        return f"{self.label} at {self.where}" if self.given else self.label

    @property
    def naming(self) -> dict[str, Any]:
        """The fields of ``Named``, keyed by name, to construct an answer about the same number."""
        return {"name": self.name, "symbol": self.symbol, "given": dict(self.given)}


@dataclass(frozen=True, kw_only=True)
class Estimand(Named):
    """A number of a law, with the function that computes it from any law of the same form."""

    functional: Functional
    rule: DecisionRule | None = None
    """Decision rule that gives the number; None for a coefficient or a prediction."""

    @property
    def magnitude(self) -> Estimand:
        """Absolute value of the estimand, for an estimand that may be negative and then has no logarithm."""
        return replace(self, name=f"|{self.name}|", symbol=f"|{self.symbol}|", functional=SizeOf(self.functional))

    @property
    def is_share(self) -> bool:
        """True if the number is between 0 and 1, like a sparsity or the exponent of the best size."""
        return self.name.startswith("optimal_") and self.name.endswith(("sparsity", "_share", "_exponent"))

    def answers(self, output: str) -> bool:
        """Return whether the number is in the unit of a law's output: a prediction, or the output at a decision."""
        return self.name in (output, f"optimal_{output}")


def where_in_words(given: Mapping[str, float]) -> str:
    """Return given quantities in readable form: ``flops = 1e+24, expansion = 16``."""
    return ", ".join(f"{name} = {format(v) if 1e-3 <= v < 1e15 else f'{v:.4g}'}" for name, v in given.items())


@dataclass(frozen=True)
class CoefficientOf:
    """The functional that returns a coefficient; equal for equal names, so that it is compiled once."""

    name: str

    def __call__(self, law: Law) -> Any:
        return getattr(law, self.name)


@dataclass(frozen=True)
class SizeOf:
    """The absolute value of a functional; equal for equal functionals, so that it is compiled once."""

    functional: Functional

    def __call__(self, law: Law) -> Any:
        return abs(self.functional(law))


def above_0(law: type, estimands: Iterable[Estimand]) -> list[Estimand]:
    """Return the estimands; any that may be negative are replaced by their absolute value, since planning uses
    logarithms."""
    signs = {f.name: f.metadata.get("sign", "+") for f in fields(law)}
    return [one if signs.get(one.name, "+") == "+" else one.magnitude for one in estimands]


def coefficient_estimands(law: type, fixed: Iterable[str] = ()) -> list[Estimand]:
    """Return the fitted coefficients as estimands."""
    return [
        Estimand(name=f.name, symbol=f.metadata["symbol"], given={}, functional=CoefficientOf(f.name))
        for f in fields(law)
        if not f.metadata.get("static") and f.name not in set(fixed)
    ]


class NoDecision(UserError):
    """A law has no decision at the given quantities."""


def decision_estimands(law: type, given: Mapping[str, float] | None = None) -> list[Estimand]:
    """Return a law's decisions at given quantities; without quantities, the decisions that need none.

    Raises:
      UserError: a quantity is invalid.
      NoDecision: the quantities determine no decision. The message lists the quantities to give.
    """
    given = _determined(law, given or {})
    _check(given)
    rules = [rule for rule in rules_of(law) if set(rule.given) <= set(given) and (rule.given or not given)]
    unused = [name for name in given if not any(name in rule.given for rule in rules)]
    if given and (unused or not rules):
        wanting = [rule for rule in rules_of(law) if set(given) < set(rule.given)]
        said = f"{called(law)} has no decision for {', '.join(unused or given)}"
        if wanting:
            said += f" without {also_needed(wanting[0], given)}; give it too, or let moejax design choose it"
        raise NoDecision(f"{said}. {what_is_decided(law)}")
    # A number is decided by the rule that uses the most quantities.
    deciding = {name: rule for rule in sorted(rules, key=lambda one: len(one.given)) for name in rule.gives}
    return [_estimand(rule, name, given) for rule in rules for name in rule.gives if deciding[name] is rule]


def given_to_each(laws: Mapping[str, type], given: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Return, for each law, the given quantities that its decisions need, so that laws with different decisions can be
    compared at the same quantities.

    Raises:
      NoDecision: no law has a decision for a quantity.
    """
    _check(given)
    rules = {name: [*rules_of(law)] for name, law in laws.items()}
    known = {
        name: {part for rule in own for one in rule.given for part in (one, *DERIVED.get(one, ()))}
        for name, own in rules.items()
    }
    if unused := [name for name in given if not any(name in own for own in known.values())]:
        names = sorted({name for own in rules.values() for rule in own for name in rule.given})
        need = f"the laws' decisions need some of {listed(names)}" if names else "no law here has decisions"
        raise NoDecision(f"No law has a decision for {listed(unused)}; {need}.")
    return {name: {one: value for one, value in given.items() if one in own} for name, own in known.items()}


def _determined(law: type, given: Mapping[str, float]) -> dict[str, float]:
    """Return ``given`` with the ratios that a law's decisions need in place of the fields that determine them, as
    ``Design`` computes them from a table's columns.

    Raises:
      NoDecision: only some of these fields are given.
    """
    _check(given)
    direct = {name for rule in rules_of(law) for name in rule.given}
    for ratio in sorted({name for name in direct & DERIVED.keys() if name not in given}):
        parts = [name for name in DERIVED[ratio] if name in given and name not in direct]
        missing = [name for name in DERIVED[ratio] if name not in given]
        if parts and not missing:
            rest = {name: value for name, value in given.items() if name not in parts}
            given = {**rest, ratio: float(getattr(design_from(given), ratio))}
        elif parts:
            raise NoDecision(
                f"{called(law)} reads {ratio}, which {listed(parts)} alone {'do' if len(parts) > 1 else 'does'} not "
                f"determine; give {listed(missing)} too, or {ratio} instead."
            )
    return dict(given)


def rules_of(law: type) -> tuple[DecisionRule, ...]:
    """Return the decision rules of a law, from the catalogue or from a formula's budget."""
    return law.decides if issubclass(law, (FormulaLaw, ChainedLaw)) else DECISIONS.get(law, ())


def prediction_estimand(law: Law | type, given: Mapping[str, float], output: str | None = None) -> Estimand:
    """Return the estimand of a law's prediction for one run with the given quantities.

    Args:
      output: output of the law; by default the first output.

    Raises:
      UserError: a quantity is not a ``Design`` field or is invalid, or an input of the law is missing.
    """
    names = dict.fromkeys((*law.inputs, *FIELDS))
    if unknown := [name for name in given if name not in names]:
        raise UserError(f"A design has no {unknown[0]}; give one of its fields: {', '.join(names)}.")
    require_inputs(law, given)
    design = design_from(given)
    check_design(design)
    check_scale(design)
    asked: str = output or next(iter(law.outputs))
    return Estimand(
        name=asked,
        symbol=LETTERS.get(asked, asked),
        given=given,
        functional=functools.partial(_predicted, design, asked),
    )


LETTERS = {"loss": "L", "efficiency_leverage": "EL"}
"""Symbols of laws' outputs."""


def find(name: str, estimands: Sequence[Estimand], law: type) -> list[Estimand]:
    """Return the estimands with this name or symbol, one per set of given quantities.

    Raises:
      UserError: no estimand has this name. The message lists known names and further decisions.
    """
    if named := [one for one in estimands if name in (one.name, one.symbol)]:
        return named
    known = dict.fromkeys(name for one in estimands for name in (one.symbol, one.name))
    raise UserError(
        f"{called(law)} has no coefficient or decision {name}; {did_you_mean(name, known)} {what_is_decided(law)}"
    )


def also_needed(rule: DecisionRule, given: Container[str]) -> str:
    """Return the quantities that a rule still needs, with their inputs: ``expansion (of params_total and …)``."""
    missing = [name for name in rule.given if name not in given]
    return listed(f"{name} (of {listed(DERIVED[name])})" if name in DERIVED else name for name in missing)


def _with_given(names: Sequence[str]) -> str:
    """Return how a user gives the quantities of a decision."""
    given = [f"{name}=…" for name in names]
    return option_hint(f"with --decide {','.join(given)}") or f"with moejax.decide(fit, {', '.join(given)})"


def what_is_decided(law: type) -> str:
    """Return a sentence with a law's decisions and the quantities that each needs."""
    parts: dict[str, list[str]] = {}
    for rule in rules_of(law):
        where = _with_given(rule.given) if rule.given else "without given quantities"
        parts.setdefault(where, []).extend(f"{name} ({letter})" for name, letter in rule.gives.items())
    if not parts:
        judged = any(name in law.outputs for name in LETTERS)
        design = option_hint("moejax design --law FIT") or "moejax.design"
        search = f", or search for an optimum with {design}" if judged else ""
        return f"{called(law)} has no decisions; predict a run{option_hint(' (--predict)')}{search}."
    return (
        f"{called(law)} has these decisions: "
        + "; ".join(f"{where}: {', '.join(names)}" for where, names in parts.items())
        + "."
    )


def _estimand(rule: DecisionRule, name: str, given: Mapping[str, float]) -> Estimand:
    used = {key: given[key] for key in rule.given}
    return Estimand(
        name=name,
        symbol=rule.gives[name],
        given=used,
        functional=functools.partial(_decided, rule, tuple(used.items()), name),
        rule=rule,
    )


def _decided(rule: DecisionRule, given: Iterable[tuple[str, float]], name: str, law: Law) -> Any:
    return rule.decide(law, **dict(given))[name]


def _predicted(design: Design, output: str, law: Law) -> Any:
    outputs = law(design)
    return outputs[output] if isinstance(outputs, dict) else outputs


def _check(given: Mapping[str, float]) -> None:
    for name, value in given.items():
        if not (np.isfinite(value) and value > 0):
            raise UserError(f"{name} is {value:g}; give a positive number.")
    if not given.get("sparsity", 0.0) < 1:
        raise UserError(f"sparsity is {given['sparsity']:g}; a sparsity must be below 1.")
    for name, ratio in AT_LEAST_1.items():
        if not given.get(name, 1.0) >= 1:
            raise UserError(f"{name} is {given[name]:g}; {ratio} must be at least 1.")


AT_LEAST_1 = {"expansion": "total parameters / active parameters", "expert_expansion": "num_experts / top_k"}
"""Ratios that are at least 1, with their definition."""
