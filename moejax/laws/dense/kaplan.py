"""The dense law of Kaplan et al. (2020): loss from non-embedding parameters and tokens."""

from __future__ import annotations

from typing import Any, ClassVar

from moejax.laws.design import Design, Scalar
from moejax.laws.law import LOSS, LawEntry, Published, coefficient, law


@law
class Kaplan:
    """L(N, D) = ((N_c / N)^(alpha_N / alpha_D) + D_c / D)^alpha_D.

    Kaplan et al., "Scaling Laws for Neural Language Models" (2020), Eq. 1.5 and Table 2.

    N is ``params_active_nonembedding``; D is ``tokens``, the size of a data set on which training was stopped early,
    not the length of one epoch. L is in nats per token and falls to 0: there is no irreducible term. Use it for
    comparison with older work.
    """

    inputs: ClassVar[tuple[str, ...]] = ("params_active", "tokens")
    outputs: ClassVar = LOSS

    params_scale: Scalar = coefficient(
        "parameters at which the loss would be 1", symbol="N_c", dimension={"params": "1"}
    )
    params_exponent: Scalar = coefficient("exponent of parameters", symbol="alpha_N")
    tokens_scale: Scalar = coefficient("tokens at which the loss would be 1", symbol="D_c", dimension={"tokens": "1"})
    tokens_exponent: Scalar = coefficient("exponent of tokens", symbol="alpha_D")

    def __call__(self, design: Design) -> Any:
        params = self.params_scale / design.params_active_nonembedding
        tokens = self.tokens_scale / design.tokens
        return (params ** (self.params_exponent / self.tokens_exponent) + tokens) ** self.tokens_exponent


PUBLISHED = {
    "kaplan-2020": Published(
        law=Kaplan(params_scale=6.4e13, params_exponent=0.076, tokens_scale=1.8e13, tokens_exponent=0.103),
        source="Kaplan et al. 2020, Table 2",
        provenance="secondary",
        data="WebText2, 50,257 tokens of vocabulary",
        fitted={"params_active_nonembedding": (768, 1.5e9), "tokens": (22e6, 23e9)},
        dense=True,
        remark="Hoffmann et al. showed that its learning-rate schedules favored large models over long training.",
    ),
}


ENTRIES = (LawEntry(name="kaplan", law=Kaplan, published=PUBLISHED),)
