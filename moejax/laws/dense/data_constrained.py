"""The law of repeated tokens, Muennighoff et al. (2023): Chinchilla's, with diminishing value of repetitions."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import jax.numpy as jnp

from moejax.laws.dense.chinchilla import Chinchilla, optimal_params
from moejax.laws.design import Design, Scalar
from moejax.laws.law import LOSS, LawEntry, Published, coefficient, from_law, law


@law
class DataConstrained:
    """L = A/(U_N + U_N·r_N·(1 - exp(-R_N/r_N)))^alpha + B/(U_D + U_D·r_D·(1 - exp(-R_D/r_D)))^beta + E,
    with R_N = N/U_N - 1, R_D = D/U_D - 1, U_N = min(N, M) and M = (alpha·A/(beta·B))^(1/alpha)·U_D^(beta/alpha).

    Muennighoff et al., "Scaling Data-Constrained Language Models" (2023), with U_N as in the code released with it.

    N is ``params_active`` (for a dense model, all parameters) and D is ``tokens``. U_D is ``unique_tokens_seen``, the
    number of different tokens among D, so R_D + 1 is the number of epochs. M is the compute-optimal size for U_D tokens
    under Hoffmann's law; a larger model has R_N·U_N excess parameters. The paper writes R_D* and R_N* for r_D and r_N.
    L is in nats per token.

    Without repeated tokens and with N at most M, this is Chinchilla's law (``unrepeated``). The first repetitions are
    worth nearly as much as new tokens.
    """

    inputs: ClassVar[tuple[str, ...]] = ("params_active", "tokens", "unique_tokens")
    outputs: ClassVar = LOSS

    irreducible: Scalar = coefficient("irreducible loss, nats per token", symbol="E")
    params_scale: Scalar = coefficient(
        "scale of the parameter term", symbol="A", dimension={"params": "params_exponent"}
    )
    params_exponent: Scalar = coefficient("exponent of parameters", symbol="alpha")
    params_decay: Scalar = coefficient("R_N at which a parameter is worth 1/e of one at R_N = 0", symbol="r_N")
    tokens_scale: Scalar = coefficient("scale of the data term", symbol="B", dimension={"tokens": "tokens_exponent"})
    tokens_exponent: Scalar = coefficient("exponent of tokens", symbol="beta")
    tokens_decay: Scalar = coefficient("R_D at which a token is worth 1/e of a new token", symbol="r_D")

    @property
    def unrepeated(self) -> Chinchilla:
        """Return the law for tokens without repetition."""
        return from_law(Chinchilla, self)

    def effective(self, design: Design) -> Design:
        """Return the parameters and unrepeated tokens with the same loss under Chinchilla's law."""
        unique = design.unique_tokens_seen
        enough = jnp.minimum(design.params_active, optimal_params(self.unrepeated, unique))
        return Design(
            params_active=_worth(enough, design.params_active, self.params_decay),
            tokens=_worth(unique, design.tokens, self.tokens_decay),
        )

    def __call__(self, design: Design) -> Any:
        return self.unrepeated(self.effective(design))


def _worth(first: Scalar, all_of_them: Scalar, decay: Scalar) -> Any:
    """Return the number of new units that are worth as much as all units; the value of repetitions decays
    exponentially."""
    return first * (1 - decay * jnp.expm1((1 - all_of_them / first) / decay))


PUBLISHED = {
    "muennighoff-2023": Published(
        law=DataConstrained(
            irreducible=math.exp(0.6254804),
            params_scale=math.exp(6.255414),
            params_exponent=0.3526596,
            params_decay=5.309743,
            tokens_scale=math.exp(7.3049974),
            tokens_exponent=0.3526596,
            tokens_decay=15.387756,
        ),
        source="Muennighoff et al. 2023, constants of the code released with it (huggingface/datablations)",
        provenance="verified",
        data="C4, up to 9,000 epochs",
        fitted={
            "params_active": (7.1e6, 8.67e9),
            "tokens": (0.1e9, 900e9),
            "unique_tokens": (0.1e9, 178e9),
            "epochs": (1, 9000),
        },
        dense=True,
        remark="The fit's objective on the 182 released losses equals the printed one. The losses hardly determine the "
        "decays: r_D = 95 with r_N = 1.7 fits slightly better. The median error is 7.3 %: as the authors "
        "advise, use the law to compare designs, not to predict losses.",
    ),
}


ENTRIES = (LawEntry(name="data_constrained", law=DataConstrained, aliases=("muennighoff",), published=PUBLISHED),)
