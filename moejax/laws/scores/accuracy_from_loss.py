"""Task accuracy from the task's loss: the sigmoid of the model ladders, Bhagia et al. (2024)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from moejax.laws.decision import DecisionRule
from moejax.laws.design import Design, Scalar, design_from
from moejax.laws.law import LawEntry, Published, coefficient, law


@law
class AccuracyFromLoss:
    """Acc(L) = b - a·s, with s = sigmoid(k·(L - L_0)).

    Bhagia et al., "Establishing Task Scaling Laws via Compute-Efficient Model Ladders" (2024), the second of its two
    steps. Here a is the amplitude that the sigmoid subtracts (the paper's a is -a).

    L is ``loss`` and Acc is ``accuracy``, the share of correct answers. In the paper L is the task's own loss: bits per
    byte of its correct answers. Other losses of the same runs also work. Accuracies may be in percent, which scales a
    and b. A model with low loss has the accuracy b; an untrained model has b - a. The paper adds an ideal run with loss
    0 and accuracy 1 and requires b <= 1. Add such a row to your table. If the fit gives b above 1, fix it (``--fix
    best_accuracy=1``).
    """

    inputs: ClassVar[tuple[str, ...]] = ("loss",)
    outputs: ClassVar[Mapping[str, str]] = {"accuracy": "share of answers"}

    best_accuracy: Scalar = coefficient("accuracy of a model with low loss", symbol="b", is_scale=True)
    lost_accuracy: Scalar = coefficient("accuracy lost by an untrained model", symbol="a", is_scale=True)
    slope: Scalar = coefficient("steepness per unit of loss", symbol="k", dimension={"loss": "-1"})
    middle_loss: Scalar = coefficient(
        "loss at which half of a is lost", symbol="L_0", dimension={"loss": "1"}, is_scale=False
    )

    def __call__(self, design: Design) -> Any:
        lost = jax.nn.sigmoid(self.slope * (design.loss - self.middle_loss))
        return {"accuracy": self.best_accuracy - self.lost_accuracy * lost}


def loss_for_accuracy(law: AccuracyFromLoss, accuracy: Scalar) -> Any:
    """Return the loss at which the law reaches an accuracy; NaN if no positive loss reaches the accuracy."""
    lost = jnp.asarray((law.best_accuracy - accuracy) / law.lost_accuracy)
    inside = (lost > 0) & (lost < 1)
    loss = law.middle_loss + jax.scipy.special.logit(jnp.where(inside, lost, 0.5)) / law.slope
    return jnp.where(inside & (loss > 0), loss, jnp.nan)


def _never(law: AccuracyFromLoss, accuracy: float) -> str:
    best, worst = float(law.best_accuracy), float(law.best_accuracy - law.lost_accuracy)
    if worst < accuracy < best:
        least = float(law(design_from({"loss": 0.0}))["accuracy"])
        return f"under the fitted law the accuracy is {least:.4g} at a loss of 0, and a loss cannot be below 0"
    return f"under the fitted law the accuracy stays between {worst:.4g} and {best:.4g} at every loss"


REACH_ACCURACY = DecisionRule(
    ("accuracy",),
    {"needed_loss": "L*"},
    lambda law, accuracy: {"needed_loss": loss_for_accuracy(law, accuracy)},
    reason=_never,
)


def _ladder(task: str, law: AccuracyFromLoss, losses: tuple[float, float], remark: str) -> Published:
    return Published(
        law=law,
        source="Bhagia et al. 2024, second step, by the released code on the released runs",
        provenance="verified",
        data=f"{task}, answers ranked; loss in bits per byte of the right answers",
        fitted={"loss": losses},
        remark=f"The loss is not a pretraining loss. Fitted to models of 190M to 1.3B parameters, their checkpoints "
        f"and one artificial point with loss 0. {remark}",
    )


PUBLISHED = {
    "bhagia-2024-hellaswag": _ladder(
        "HellaSwag, 5 shots",
        AccuracyFromLoss(best_accuracy=0.9921035, lost_accuracy=0.7301114, slope=12.74171, middle_loss=0.7667353),
        (0.75944, 1.17681),
        "For a 13B model after 5T tokens, its loss gives 0.842; 0.832 was measured.",
    ),
    "bhagia-2024-mmlu": _ladder(
        "MMLU, 5 shots",
        AccuracyFromLoss(best_accuracy=1.0, lost_accuracy=0.7420642, slope=4.833392, middle_loss=0.6159526),
        (0.98445, 1.85611),
        "For a 13B model after 5T tokens, its loss gives 0.514; 0.516 was measured.",
    ),
    "bhagia-2024-arc-challenge": _ladder(
        "ARC-Challenge, 5 shots",
        AccuracyFromLoss(best_accuracy=1.0, lost_accuracy=0.7776727, slope=5.910607, middle_loss=0.7086407),
        (0.90622, 1.74075),
        "For a 13B model after 5T tokens, its loss gives 0.603; 0.638 was measured.",
    ),
    "bhagia-2024-piqa": _ladder(
        "PIQA, 5 shots",
        AccuracyFromLoss(best_accuracy=1.0, lost_accuracy=0.458563, slope=5.032957, middle_loss=0.9630229),
        (0.99845, 1.51561),
        "For a 13B model after 5T tokens, its loss gives 0.807; 0.830 was measured.",
    ),
}


ENTRIES = (
    LawEntry(
        name="accuracy_from_loss",
        law=AccuracyFromLoss,
        aliases=("bhagia", "olmo_ladder"),
        published=PUBLISHED,
        decides=(REACH_ACCURACY,),
    ),
)
