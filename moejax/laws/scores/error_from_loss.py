"""Task error from the pretraining loss: the exponential of Gadre et al. (2024)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import jax.numpy as jnp

from moejax.laws.decision import DecisionRule
from moejax.laws.design import Design, Scalar
from moejax.laws.law import LawEntry, Published, coefficient, law


@law
class ErrorFromLoss:
    """Err(L) = epsilon - k·exp(-gamma·L).

    Gadre et al., "Language models scale reliably with over-training and on downstream tasks" (2024), Eq. 5.

    L is ``loss``, of pretraining or of a validation set, in nats per token, and Err is ``error``, the share of wrong
    answers, averaged over tasks. Epsilon is the error of an untrained model. The form has no floor; for a task with
    errors that no model avoids, use ``accuracy_from_loss``. Errors may also be in percent, which scales epsilon and k.
    """

    inputs: ClassVar[tuple[str, ...]] = ("loss",)
    outputs: ClassVar[Mapping[str, str]] = {"error": "share of answers"}

    chance_error: Scalar = coefficient("error of an untrained model", symbol="epsilon", is_scale=True)
    gain_scale: Scalar = coefficient("reduction of this error at a loss of 0", symbol="k", is_scale=True)
    gain_rate: Scalar = coefficient(
        "decay rate of the reduction with the loss", symbol="gamma", dimension={"loss": "-1"}
    )

    def __call__(self, design: Design) -> Any:
        return {"error": self.chance_error - self.gain_scale * jnp.exp(-self.gain_rate * design.loss)}


def loss_for_error(law: ErrorFromLoss, error: Scalar) -> Any:
    """Return the loss at which the law reaches an error; NaN if no positive loss reaches the error."""
    gain = jnp.asarray(law.chance_error - error)
    inside = (gain > 0) & (gain < law.gain_scale)
    return jnp.where(inside, jnp.log(law.gain_scale / jnp.where(inside, gain, 1.0)) / law.gain_rate, jnp.nan)


def _never(law: ErrorFromLoss, error: float) -> str:
    least, most = float(law.chance_error - law.gain_scale), float(law.chance_error)
    if error >= most:
        return f"under the fitted law the error stays below {most:.4g} at every loss"
    return f"under the fitted law the error is {least:.4g} at a loss of 0, and a loss cannot be below 0"


REACH_ERROR = DecisionRule(
    ("error",), {"needed_loss": "L*"}, lambda law, error: {"needed_loss": loss_for_error(law, error)}, reason=_never
)


def _gadre(data: str, law: ErrorFromLoss, losses: tuple[float, float], remark: str) -> Published:
    return Published(
        law=law,
        source="Gadre et al. 2024, Eq. 5, by the released code on the released runs",
        provenance="verified",
        data=f"models trained on {data}; loss on C4's validation set, error averaged over 17 tasks",
        fitted={"loss": losses},
        remark=remark,
    )


PUBLISHED = {
    "gadre-2024-c4": _gadre(
        "C4",
        ErrorFromLoss(chance_error=0.8497420, gain_scale=2.0789072, gain_rate=0.7561209),
        (2.6569, 5.2207),
        "Six runs and three coefficients. In each of the 17 tasks, a model of 154M parameters is 10 points better "
        "than chance.",
    ),
    "gadre-2024-redpajama": _gadre(
        "RedPajama",
        ErrorFromLoss(chance_error=0.8569919, gain_scale=2.2064901, gain_rate=0.7145906),
        (2.7688, 5.3870),
        "Fitted to runs with less than 1/20 of their compute, it missed the error of a 6.9B model by 0.05 %, and of a "
        "1.4B model trained on 900B tokens by 3.6 %.",
    ),
    "gadre-2024-refinedweb": _gadre(
        "RefinedWeb",
        ErrorFromLoss(chance_error=0.8652795, gain_scale=2.2148148, gain_rate=0.7070485),
        (2.7634, 5.2719),
        "Six runs and three coefficients.",
    ),
}


ENTRIES = (LawEntry(name="error_from_loss", law=ErrorFromLoss, published=PUBLISHED, decides=(REACH_ERROR,)),)
