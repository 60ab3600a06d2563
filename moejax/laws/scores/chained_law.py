"""Chain a law of scores to a law of the loss, to predict a run's score from its sizes through its loss.

``chained_law(Chinchilla, ErrorFromLoss)`` is a law like any other: it reads parameters and tokens, predicts an error,
has the coefficients of both laws, and makes the decisions of the law of the loss. It propagates the uncertainty of
both.
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
    """Law of the loss, and law of the score."""
    decides: ClassVar[tuple[DecisionRule, ...]]
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    def __call__(self, design: Design) -> Any:
        """Return the score at one design."""
        return self.score_law(design_from({"loss": self.loss_law(design)}))

    @property
    def loss_law(self) -> Any:
        """Return the law of the loss with its coefficients."""
        return from_law(self.links[0], self)

    @property
    def score_law(self) -> Any:
        """Return the law of the score with its coefficients."""
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
    """Return the law that predicts a score by ``score_law`` from the loss predicted by ``loss_law``. Equal pairs give
    the same class.

    Raises:
      UserError: the first predicts no loss, the second reads more than a loss, or both have a coefficient of the same
        name.
    """
    if dict(loss_law.outputs) != LOSS:
        raise UserError(
            f"{loss_law.__name__} predicts {' and '.join(loss_law.outputs)}; a law of scores is chained to one of the "
            f"loss, such as chinchilla."
        )
    if score_law.inputs != ("loss",) or len(score_law.outputs) != 1:
        raise UserError(
            f"{score_law.__name__} reads {', '.join(score_law.inputs)}; what is chained to a law of the loss reads the "
            f"loss alone, as error_from_loss and accuracy_from_loss do."
        )
    of_loss, of_score = ([f for f in dataclasses.fields(one) if f.metadata] for one in (loss_law, score_law))
    if both := {f.name for f in of_loss} & {f.name for f in of_score}:
        raise UserError(
            f"Both laws have a coefficient {min(both)}, of the loss and of the score; call it otherwise in one formula."
        )
    fields = {f.name: _copied(f) for f in of_loss} | {f.name: _copied(f, units=False) for f in of_score}
    outputs = dict(score_law.outputs)
    body = {
        "__doc__": f"{score_law.__name__} of the loss that {loss_law.__name__} gives.",
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
    """Copy the declaration of a coefficient. Units of the loss are dropped, because the chain does not read a loss."""
    metadata = dict(f.metadata) if units else {**f.metadata, "dimension": {}, "shift": {}}
    if f.default is dataclasses.MISSING:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(default=f.default, metadata=metadata)


def _rules(cls: type) -> tuple[DecisionRule, ...]:
    return cls.decides if issubclass(cls, FormulaLaw) else DECISIONS.get(cls, ())


def _through(rule: DecisionRule, score_law: type) -> DecisionRule:
    """Express a decision of the law of the loss in terms of the score, which replaces the loss in answers and
    questions."""
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
