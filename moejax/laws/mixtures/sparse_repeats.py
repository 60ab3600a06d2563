"""The law of repeated tokens in sparse models, Wu et al. (2026): Muennighoff's law with scales that depend on
density."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import jax.numpy as jnp

from moejax.laws.claim import Claim, Partial, Variables
from moejax.laws.decision import SPLIT, optimum
from moejax.laws.dense.chinchilla import optimal_split, training_flops
from moejax.laws.dense.data_constrained import DataConstrained
from moejax.laws.design import Design, Scalar
from moejax.laws.law import LOSS, LawEntry, Published, coefficient, law

LEAST, LEAST_SCALE = 1e-8, 1e-12
"""Lower bounds for sparsity and decays, and for the factor Q, as in the released code, because powers of 0 have no
slope."""


@law
class SparseRepeats:
    """L = Q·A/(U_N + U_N·r_N·(1 - exp(-R_N/r_N)))^alpha + B/(U_D + U_D·r_D·(1 - exp(-R_D/r_D)))^alpha + E,
    with Q = max(s^epsilon + P·z^mu, 1e-12), r_N = max(d_N·(1 + lambda_N·z + sigma_N·z²), 1e-8),
    r_D = max(d_D·(1 + lambda_D·z + sigma_D·z²), 1e-8), R_N = N/U_N - 1, R_D = D/U_D - 1, U_N = min(N, M),
    M = (Q·A/B)^(1/alpha)·U_D, s = N/T and z = max(1 - s, 1e-8).

    Wu et al., "When Data Is Scarce: Scaling Sparse Language Models with Repeated Training" (2026), as in the released
    code (boqian333/sparse-dc-scaling, fitting/fitting.ipynb); the paper's text was not consulted.

    N is ``params_active``, in the paper the nonzero weights of a sparse network; T is ``params_total``, D is
    ``tokens``, of which U_D is ``unique_tokens_seen``. d_N, d_D, lambda_N, sigma_N, lambda_D and sigma_D are R_n*,
    R_d*, lambda_2, sigma_2, lambda_1 and sigma_1 in the paper. L is in nats per token.

    At a fixed density s, it is the law of Muennighoff et al. (``at_density``) with one exponent for parameters and
    tokens. It was fitted to networks in which single weights are 0; the set of these weights changes during training.
    An MoE model instead skips whole experts, which differ by token. Fit the law to MoE models before using it for
    decisions about them.
    """

    inputs: ClassVar[tuple[str, ...]] = ("params_active", "params_total", "tokens", "unique_tokens")
    outputs: ClassVar = LOSS

    irreducible: Scalar = coefficient("irreducible loss, nats per token", symbol="E")
    params_scale: Scalar = coefficient("scale of the parameter term", symbol="A", dimension={"params": "exponent"})
    exponent: Scalar = coefficient("exponent of parameters and of tokens", symbol="alpha")
    density_exponent: Scalar = coefficient("exponent of the density", symbol="epsilon", sign="any")
    sparse_scale: Scalar = coefficient("relative change of the parameter term with sparsity", symbol="P", sign="any")
    sparse_exponent: Scalar = coefficient("exponent of the sparsity", symbol="mu")
    tokens_scale: Scalar = coefficient("scale of the data term", symbol="B", dimension={"tokens": "exponent"})
    params_decay: Scalar = coefficient(
        "R_N of a dense model at which a parameter is worth 1/e of one at R_N = 0", symbol="d_N"
    )
    params_decay_slope: Scalar = coefficient("relative change of d_N with sparsity", symbol="lambda_N", sign="any")
    params_decay_square: Scalar = coefficient(
        "relative change of d_N with squared sparsity", symbol="sigma_N", sign="any"
    )
    tokens_decay: Scalar = coefficient(
        "R_D of a dense model at which a token is worth 1/e of a new token", symbol="d_D"
    )
    tokens_decay_slope: Scalar = coefficient("relative change of d_D with sparsity", symbol="lambda_D", sign="any")
    tokens_decay_square: Scalar = coefficient(
        "relative change of d_D with squared sparsity", symbol="sigma_D", sign="any"
    )

    def at_density(self, density: Scalar) -> DataConstrained:
        """Return the law at a fixed share of active parameters."""
        sparse = jnp.maximum(1 - density, LEAST)
        scale = density**self.density_exponent + self.sparse_scale * sparse**self.sparse_exponent
        params = 1 + self.params_decay_slope * sparse + self.params_decay_square * sparse**2
        tokens = 1 + self.tokens_decay_slope * sparse + self.tokens_decay_square * sparse**2
        return DataConstrained(
            irreducible=self.irreducible,
            params_scale=self.params_scale * jnp.maximum(scale, LEAST_SCALE),
            params_exponent=self.exponent,
            params_decay=jnp.maximum(self.params_decay * params, LEAST),
            tokens_scale=self.tokens_scale,
            tokens_exponent=self.exponent,
            tokens_decay=jnp.maximum(self.tokens_decay * tokens, LEAST),
        )

    def __call__(self, design: Design) -> Any:
        return self.at_density(1 / design.expansion)(design)


def compute_optimal(law: SparseRepeats, flops: Scalar, expansion: Scalar) -> Claim:
    """Return the claim for the ``params_active`` and ``tokens`` that minimize the loss at given 6·N·D and density,
    without repetition."""
    return Claim(
        statement="N* = (Q A/B)^(1/(2 alpha)) (C/6)^(1/2), D* = C/(6 N*)",
        source="Wu et al. 2026, optimal_N and optimal_D of the released code",
        value=optimal_split(law.at_density(1 / expansion).unrepeated, flops),
        objective=Partial(_loss, law, expansion),
        held=Partial(training_flops),
    )


def _loss(law: SparseRepeats, expansion: Scalar, variables: Variables) -> Any:
    active, tokens = variables["params_active"], variables["tokens"]
    return law(Design(params_active=active, params_total=active * expansion, tokens=tokens, unique_tokens=tokens))


PUBLISHED = {
    "wu-2026": Published(
        law=SparseRepeats(
            irreducible=math.exp(0.8535501324918354),
            params_scale=math.exp(5.240737178917673),
            exponent=0.3268217718148829,
            density_exponent=-0.009680437509279435,
            sparse_scale=-0.2728893199074849,
            sparse_exponent=0.8466179337054532,
            tokens_scale=math.exp(6.103030891809012),
            params_decay=11.087637121468322,
            params_decay_slope=1.9039562899771467,
            params_decay_square=-2.79909312658146,
            tokens_decay=4.404748822323469,
            tokens_decay_slope=1.8213812238803706,
            tokens_decay_square=-1.3653091691735397,
        ),
        source="Wu et al. 2026, output of the released code (fitting/fitting.ipynb)",
        provenance="verified",
        data="C4's validation set; LLaMA-like models trained with dynamic sparsity (random growth)",
        fitted={"expansion": (1, 16), "epochs": (1, 16)},
        remark="Fitted to 500 runs in stages: dense, sparse, repeated, both. Models have up to 1.99B weights, of which "
        "at least 1/16 are active; repeated data have up to 2.6B different tokens. The predictions for the eleven "
        "held-out runs, of up to 7.68B weights, equal the printed ones; their errors are at most 1.4 %.",
    ),
}


ENTRIES = (
    LawEntry(
        name="sparse_repeats",
        law=SparseRepeats,
        aliases=("wu",),
        published=PUBLISHED,
        decides=(optimum(compute_optimal, given=("flops", "expansion"), gives=SPLIT),),
        claims={"compute_optimal": lambda: compute_optimal(PUBLISHED["wu-2026"].law, 1e20, 4.0)},
    ),
)
