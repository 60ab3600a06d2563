"""The dense law of Hoffmann et al. (2022): loss from parameters and tokens."""

from __future__ import annotations

from typing import Any, ClassVar

from moejax.laws.design import Design
from moejax.laws.law import coefficient, law


@law
class Chinchilla:
    """L(N, D) = E + A / N^alpha + B / D^beta.

    Hoffmann et al., "Training Compute-Optimal Large Language Models" (2022), Eq. 2 and Eq. 10.

    N is ``params_active`` (for a dense model, all parameters, embeddings included), D is ``tokens``, L is in nats
    per token.
    """

    inputs: ClassVar[tuple[str, ...]] = ("params_active", "tokens")

    irreducible: Any = coefficient("loss that no model and no data remove, nats per token", symbol="E")
    params_scale: Any = coefficient("scale of the parameter term", symbol="A", dimension={"params": "params_exponent"})
    params_exponent: Any = coefficient("exponent of parameters", symbol="alpha")
    tokens_scale: Any = coefficient("scale of the data term", symbol="B", dimension={"tokens": "tokens_exponent"})
    tokens_exponent: Any = coefficient("exponent of tokens", symbol="beta")

    def __call__(self, design: Design) -> Any:
        return (
            self.irreducible
            + self.params_scale * design.params_active**-self.params_exponent
            + self.tokens_scale * design.tokens**-self.tokens_exponent
        )


HOFFMANN_2022 = Chinchilla(
    irreducible=1.6934, params_scale=406.4, params_exponent=0.3392, tokens_scale=410.7, tokens_exponent=0.2849
)
"""Approach 3, Eq. 10, with the digits of the published source file: nats per token on MassiveText."""
