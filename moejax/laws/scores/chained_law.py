"""Chain a score law to a loss law, to predict a run's score from its size and tokens.

``chained_law(Chinchilla, ErrorFromLoss)`` is an ordinary law: it reads parameters and tokens, predicts an error, has
the coefficients of both laws, and makes the decisions of the loss law. It propagates the uncertainty of both laws.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, ClassVar

import jax

from moejax.errors import UserError
from moejax.laws import DECISIONS
from moejax.laws.decision import DecisionRule
from moejax.laws.design import Design, Scalar, design_from
from moejax.laws.formula_law import FormulaLaw
from moejax.laws.law import LOSS, from_law, law


class ChainedLaw:
    """Base class of chained laws."""

    inputs: ClassVar[tuple[str, ...]]
    outputs: ClassVar[Mapping[str, str]]
    links: ClassVar[tuple[type, type]]
    """Loss law and score law."""
    decides: ClassVar[tuple[DecisionRule, ...]]
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    def __call__(self, design: Design) -> Any:
        """Return the score at one design."""
        return self.score_law(design_from({"loss": self.loss_law(design)}))

    @property
    def loss_law(self) -> Any:
        """Return the loss law with its coefficients."""
        return from_law(self.links[0], self)

    @property
    def score_law(self) -> Any:
        """Return the score law with its coefficients."""
        return from_law(self.links[1], self)

    def score(self, loss: Scalar) -> Any:
        """Return the score at a loss."""
        (output,) = self.outputs
        return self.score_law(design_from({"loss": loss}))[output]

    def elasticity(self, design: Design) -> Any:
        """Return the elasticity of the score with respect to the loss at one design."""
        loss = self.loss_law(design)
        score, slope = jax.value_and_grad(self.score)(loss)
        return slope * loss / score


@functools.cache
def chained_law(loss_law: type, score_law: type) -> type[ChainedLaw]:
    """Return the law that applies ``score_law`` to the loss predicted by ``loss_law``. Equal pairs give the same class.

    Raises:
      UserError: ``loss_law`` predicts no loss, ``score_law`` reads more than a loss, or they share a coefficient name.
    """
    if dict(loss_law.outputs) != LOSS:
        raise UserError(
            f"{loss_law.__name__} predicts {' and '.join(loss_law.outputs)}; chain a score law to a loss law, such as "
            f"chinchilla."
        )
    if score_law.inputs != ("loss",) or len(score_law.outputs) != 1:
        raise UserError(
            f"{score_law.__name__} reads {', '.join(score_law.inputs)}; a law that is chained to a loss law must read "
            f"only the loss, like error_from_loss and accuracy_from_loss."
        )
    of_loss, of_score = ([f for f in dataclasses.fields(one) if f.metadata] for one in (loss_law, score_law))
    if both := {f.name for f in of_loss} & {f.name for f in of_score}:
        raise UserError(
            f"The loss law and the score law both have a coefficient {min(both)}; rename it in one of them."
        )
    fields = {f.name: _copied(f) for f in of_loss} | {f.name: _copied(f, units=False) for f in of_score}
    outputs = dict(score_law.outputs)
    body = {
        "__doc__": f"{score_law.__name__} applied to the loss that {loss_law.__name__} predicts.",
        "__module__": __name__,
        "__annotations__": dict.fromkeys(fields, Any),
        "inputs": loss_law.inputs,
        "outputs": outputs,
        "links": (loss_law, score_law),
        "decides": tuple(_through(rule, score_law) for rule in _rules(loss_law)),
        "__call__": ChainedLaw.__call__,
    }
    return law(type(f"{score_law.__name__} through {loss_law.__name__}", (ChainedLaw,), body | fields))


def _copied(f: dataclasses.Field, units: bool = True) -> Any:
    """Copy the declaration of a coefficient, without loss units if ``units`` is False, because the chain reads no
    loss."""
    metadata = dict(f.metadata) if units else {**f.metadata, "dimension": {}, "shift": {}}
    if f.default is dataclasses.MISSING:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(default=f.default, metadata=metadata)


def _rules(cls: type) -> tuple[DecisionRule, ...]:
    return cls.decides if issubclass(cls, FormulaLaw) else DECISIONS.get(cls, ())


def _through(rule: DecisionRule, score_law: type) -> DecisionRule:
    """Express a decision of the loss law in terms of the score, which replaces the loss in inputs and results."""
    (output,) = score_law.outputs
    best = f"optimal_{output}"
    needed = next((one for one in _rules(score_law) if one.given == (output,) and "needed_loss" in one.gives), None)
    by_score = "loss" in rule.given and needed is not None

    def for_loss(chained: ChainedLaw, given: Mapping[str, float]) -> dict[str, Any]:
        if not by_score or needed is None:
            return dict(given)
        rest = {name: value for name, value in given.items() if name != output}
        return rest | {"loss": needed.decide(chained.score_law, **{output: given[output]})["needed_loss"]}

    def decide(chained: ChainedLaw, **given: float) -> dict[str, Any]:
        decided = dict(rule.decide(chained.loss_law, **for_loss(chained, given)))
        return decided | ({best: chained.score(decided["optimal_loss"])} if "optimal_loss" in rule.gives else {})

    def reason(chained: ChainedLaw, **given: float) -> str:
        wanted = for_loss(chained, given)
        if needed is not None and by_score and not float(wanted["loss"]) > 0:
            return needed.why_none(chained.score_law, given)
        return rule.why_none(chained.loss_law, wanted)

    return DecisionRule(
        tuple(output if by_score and name == "loss" else name for name in rule.given),
        {**rule.gives, **({best: f"{output}*"} if "optimal_loss" in rule.gives else {})},
        decide,
        ends=rule.ends,
        reason=reason,
    )
