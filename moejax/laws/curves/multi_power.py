"""Loss during training under any learning-rate schedule: the multi-power law, Luo et al. (2025)."""

from __future__ import annotations

from typing import Any, ClassVar

import jax.numpy as jnp

from moejax.laws.design import Design, Scalar
from moejax.laws.law import LOSS, LawEntry, Published, coefficient, law


@law
class MultiPower:
    """L(t) = L_0 + A·S_1(t)^-alpha - B·sum_k (eta_(k-1) - eta_k)·(1 - (1 + C·eta_k^-gamma·S_k(t))^-beta).

    Luo et al., "A Multi-Power Law for Loss Curve Prediction Across Learning Rate Schedules" (2025), Eq. 1 to 3.

    S_1 is ``rate_sum``, the sum of learning rates until step t, including the warm-up. The sum over k includes all
    updates; a rise of the rate, as in the warm-up, is a negative drop. eta_(k-1) - eta_k is ``drop``, the decrease of
    the rate at update k; eta_k is ``drop_rate``, and S_k is ``drop_sum``, the sum of rates from update k on. L is in
    nats per token.

    The first two terms are the loss of a constant rate. Each drop of the rate then reduces the loss by up to B times
    the drop; the reduction is faster if the new rate is lower. However, a lower rate slows further progress.
    """

    inputs: ClassVar[tuple[str, ...]] = ("rate_sum", "drop", "drop_rate", "drop_sum")
    outputs: ClassVar = LOSS

    irreducible: Scalar = coefficient("loss after unlimited training, nats per token", symbol="L_0")
    sum_scale: Scalar = coefficient("scale of the power of S_1", symbol="A", dimension={"rate_sum": "sum_exponent"})
    sum_exponent: Scalar = coefficient("exponent of the sum of rates", symbol="alpha")
    drop_scale: Scalar = coefficient("loss reduction per unit of rate drop", symbol="B", dimension={"drop": "-1"})
    drop_speed: Scalar = coefficient(
        "speed of the reduction after a drop",
        symbol="C",
        dimension={"drop_sum": "-1", "drop_rate": "rate_exponent"},
        is_scale=False,
    )
    drop_exponent: Scalar = coefficient("exponent of the remaining reduction after a drop", symbol="beta")
    rate_exponent: Scalar = coefficient("exponent with which a lower rate speeds up the reduction", symbol="gamma")

    def __call__(self, design: Design) -> Any:
        read = design.columns
        # The logarithm keeps the digits of powers of 1 + x for small x.
        age = jnp.log1p(self.drop_speed * read["drop_rate"] ** -self.rate_exponent * read["drop_sum"])
        fallen = jnp.sum(read["drop"] * -jnp.expm1(-self.drop_exponent * age), axis=-1)
        return self.irreducible + self.sum_scale * read["rate_sum"] ** -self.sum_exponent - self.drop_scale * fallen


def _luo(size: str, *values: float) -> Published:
    names = ("irreducible", "sum_scale", "sum_exponent", "drop_scale", "drop_speed", "drop_exponent", "rate_exponent")
    return Published(
        law=MultiPower(**dict(zip(names, values, strict=True))),
        source="Luo et al. 2025 (arXiv:2503.12811), constants of the released code",
        provenance="read",
        data=f"a dense model of {size} parameters: cosine and constant over 24,000 steps, and one drop of the rate",
        fitted={"rate_sum": (0.33, 6.9)},
        remark="Rates per step, peak 3e-4, 2,160 steps of warm-up.",
    )


PUBLISHED = {
    "luo-2025-25m": _luo("25M", 3.04045406, 0.52468604, 0.50786857, 363.78751622, 2.06560812, 0.58279013, 0.64142257),
    "luo-2025-100m": _luo("100M", 2.6514477, 0.60115152, 0.45295811, 437.9464276, 2.13245612, 0.59785199, 0.65523644),
    "luo-2025-400m": _luo("400M", 2.37474466, 0.65421216, 0.42878731, 523.42464371, 2.02462735, 0.59350493, 0.63472457),
}


ENTRIES = (LawEntry(name="multi_power", law=MultiPower, aliases=("luo",), published=PUBLISHED),)
