"""Learning rate and batch size from parameters and tokens: Step Law, Li et al. (2025)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from moejax.laws.design import Design, Scalar
from moejax.laws.law import LawEntry, Published, coefficient, law


@law
class StepLaw:
    """eta = k_eta·N^p_N·D^p_D and B = k_B·D^p_B.

    Li et al., "Predictable Scale: Part I, Step Law" (2025), for AdamW with a final learning rate of 1e-5, independent
    of its peak.

    N is ``params_total_nonembedding`` and D is ``tokens``; eta is ``learning_rate``, the peak, and B is
    ``batch_tokens``, both at minimum loss. For an MoE model, N counts all parameters. In the 16 released MoE sweeps,
    the best learning rate is then 1.2 times the law's, with a scatter of a factor 1.4. With active parameters as N, it
    would be 0.4 times the law's, with a scatter of a factor 2.

    Write any other product of powers as a formula, such as ``learning_rate = k*N^a*D^b*model_dim^c``.
    """

    inputs: ClassVar[tuple[str, ...]] = ("params_total", "tokens")
    outputs: ClassVar[Mapping[str, str]] = {"learning_rate": "per step, peak", "batch_tokens": "tokens"}

    learning_rate_scale: Scalar = coefficient(
        "learning rate at one parameter and one token",
        symbol="k_eta",
        dimension={"params": "-params_exponent", "tokens": "-tokens_exponent"},
        output="learning_rate",
    )
    params_exponent: Scalar = coefficient(
        "exponent of parameters, negative", symbol="p_N", sign="-", output="learning_rate"
    )
    tokens_exponent: Scalar = coefficient(
        "exponent of tokens in the learning rate", symbol="p_D", sign="any", output="learning_rate"
    )
    batch_scale: Scalar = coefficient(
        "batch tokens at one token", symbol="k_B", dimension={"tokens": "-batch_exponent"}, output="batch_tokens"
    )
    batch_exponent: Scalar = coefficient("exponent of tokens in the batch", symbol="p_B", output="batch_tokens")

    def __call__(self, design: Design) -> Any:
        params, tokens = design.params_total_nonembedding, design.tokens
        return {
            "learning_rate": self.learning_rate_scale * params**self.params_exponent * tokens**self.tokens_exponent,
            "batch_tokens": self.batch_scale * tokens**self.batch_exponent,
        }


PUBLISHED = {
    "step-law-2025": Published(
        law=StepLaw(
            learning_rate_scale=1.79,
            params_exponent=-0.713,
            tokens_exponent=0.307,
            batch_scale=0.58,
            batch_exponent=0.571,
        ),
        source="Li et al. 2025 (arXiv:2503.04715), as in its abstract and tool",
        provenance="verified",
        data="best of sweeps of 1,911 released dense runs",
        fitted={"params_total_nonembedding": (214.7e6, 1.074e9), "tokens": (4e9, 100e9)},
        dense=True,
        remark="In the order of the coefficients, the means of the 1,000 released resamples are 1.797, -0.7129, "
        "0.3075, 0.5807 and 0.5709; the 90 % intervals of the exponents are [-0.764, -0.664], [0.277, 0.340] and "
        "[0.539, 0.601]. The ranges cover the released sweeps. In the 17 released dense sweeps with more than 20 runs, "
        "the best learning rate is 1.2 times the law's, with a scatter of a factor 1.25.",
    ),
}


ENTRIES = (LawEntry(name="step_law", law=StepLaw, published=PUBLISHED),)
