"""Learning rate and batch size from training compute, Tian et al. (2025)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from moejax.laws.design import Design, Scalar
from moejax.laws.law import LawEntry, Published, coefficient, law


@law
class Hyperparameters:
    """eta = k_eta·C^p_eta and B = k_B·C^p_B.

    Tian et al. (2025), Eq. 5 (Appendix E.1), for AdamW with a warmup-stable-decay schedule. C is ``flops``; eta is
    ``learning_rate``, the peak, and B is ``batch_tokens``, both at minimum loss.
    """

    inputs: ClassVar[tuple[str, ...]] = ("flops",)
    outputs: ClassVar[Mapping[str, str]] = {"learning_rate": "per step, peak", "batch_tokens": "tokens"}

    learning_rate_scale: Scalar = coefficient(
        "learning rate at one FLOP",
        symbol="k_eta",
        dimension={"flops": "-learning_rate_exponent"},
        output="learning_rate",
    )
    learning_rate_exponent: Scalar = coefficient(
        "exponent of compute, negative", symbol="p_eta", sign="-", output="learning_rate"
    )
    batch_scale: Scalar = coefficient(
        "batch tokens at one FLOP", symbol="k_B", dimension={"flops": "-batch_exponent"}, output="batch_tokens"
    )
    batch_exponent: Scalar = coefficient("exponent of compute", symbol="p_B", output="batch_tokens")

    def __call__(self, design: Design) -> Any:
        return {
            "learning_rate": self.learning_rate_scale * design.flops**self.learning_rate_exponent,
            "batch_tokens": self.batch_scale * design.flops**self.batch_exponent,
        }


PUBLISHED = {
    "tian-2025": Published(
        law=Hyperparameters(
            learning_rate_scale=1.1576, learning_rate_exponent=-0.1529, batch_scale=0.0694, batch_exponent=0.3644
        ),
        source="Tian et al. 2025, Eq. 5",
        provenance="read",
        fitted={"flops": (3e17, 3e20)},
        remark="64 experts, 4 active and 1 shared. It does not reproduce the learning rates and batch sizes of the "
        "paper's Tables 8 and 9; tian-2025-tables does.",
    ),
    "tian-2025-tables": Published(
        law=Hyperparameters(
            learning_rate_scale=0.476279,
            learning_rate_exponent=-0.136402,
            batch_scale=4096 * 1.894657e-5,
            batch_exponent=0.366869,
        ),
        source="least squares in logs through the six rows of Tian et al. 2025, Table 8 (batches of 4096 tokens)",
        provenance="verified",
        fitted={"flops": (2e18, 6e20)},
        remark="Within 0.6 % of every row.",
    ),
    "deepseek-2024": Published(
        law=Hyperparameters(
            learning_rate_scale=0.3118, learning_rate_exponent=-0.1250, batch_scale=0.2920, batch_exponent=0.3271
        ),
        source="DeepSeek-AI 2024, DeepSeek LLM (arXiv:2401.02954)",
        provenance="secondary",
        fitted={"flops": (1e17, 2e19)},
        dense=True,
        remark="Dense models with a step schedule. C counts FLOPs without embeddings and with attention. Fitted "
        "to runs within 0.25 % of the lowest loss, so it is a curve through a wide band.",
    ),
}


ENTRIES = (LawEntry(name="hyperparameters", law=Hyperparameters, published=PUBLISHED),)
