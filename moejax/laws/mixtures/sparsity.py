"""The law of Abnar et al. (2025): loss from total parameters, tokens and the share of inactive experts."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from moejax.float64 import float64
from moejax.laws.active_params import ActiveParams, AtExpansion, Proportional, convention
from moejax.laws.claim import Claim, Partial, Variables, in_float64
from moejax.laws.decision import DecisionRule
from moejax.laws.dense.chinchilla import FLOPS_PER_PARAM_AND_TOKEN
from moejax.laws.design import Design, Scalar
from moejax.laws.law import LOSS, LawEntry, Published, coefficient, law
from moejax.laws.search import BISECTIONS, argmin_between


@law
class Sparsity:
    """L(N, D, S) = a/N^alpha + b/D^beta + c/(1-S)^lambda + d/((1-S)^delta·N^gamma) + e.

    Abnar et al., "Parameters vs FLOPs: Scaling Laws for Optimal Sparsity for Mixture-of-Experts Language Models"
    (2025), Eq. 6.

    N is ``params_total``, embeddings included; D is ``tokens``; S is ``sparsity``, the share of experts that do not
    serve a token. L is in nats per token. Inputs must have S < 1. The best N at fixed S and the best S at fixed N, both
    with 6·N_a·D = C, have no closed form. They need a convention for N_a(N, S), which the paper does not give;
    ``active_params.py`` has three. The joint optimum of Eq. 2 is degenerate: with the published constants the loss
    falls with S until 1-S is about 1e-13, because delta and gamma are nearly equal. Sparsity is therefore capped, and a
    note reports an optimum at the cap.
    """

    inputs: ClassVar[tuple[str, ...]] = ("params_total", "tokens", "num_experts", "top_k")
    outputs: ClassVar = LOSS

    params_scale: Scalar = coefficient(
        "scale of the parameter term", symbol="a", dimension={"params": "params_exponent"}
    )
    params_exponent: Scalar = coefficient("exponent of total parameters", symbol="alpha")
    tokens_scale: Scalar = coefficient("scale of the data term", symbol="b", dimension={"tokens": "tokens_exponent"})
    tokens_exponent: Scalar = coefficient("exponent of tokens", symbol="beta")
    sparsity_scale: Scalar = coefficient("scale of the sparsity term", symbol="c")
    sparsity_exponent: Scalar = coefficient("exponent of the active share", symbol="lambda", sign="any")
    coupling_scale: Scalar = coefficient(
        "scale of the coupling", symbol="d", dimension={"params": "coupling_params_exponent"}
    )
    coupling_exponent: Scalar = coefficient("exponent of the active share in the coupling", symbol="delta", sign="any")
    coupling_params_exponent: Scalar = coefficient("exponent of total parameters in the coupling", symbol="gamma")
    irreducible: Scalar = coefficient("irreducible loss, nats per token", symbol="e")

    def __call__(self, design: Design) -> Any:
        active = 1 - design.sparsity
        return (
            self.params_scale * design.params_total**-self.params_exponent
            + self.tokens_scale * design.tokens**-self.tokens_exponent
            + self.sparsity_scale * active**-self.sparsity_exponent
            + self.coupling_scale
            * active**-self.coupling_exponent
            * design.params_total**-self.coupling_params_exponent
            + self.irreducible
        )


ABNAR_2025 = Sparsity(
    params_scale=16612.50,
    params_exponent=0.5962,
    tokens_scale=5455.67,
    tokens_exponent=0.3954,
    sparsity_scale=0.4598,
    sparsity_exponent=-0.1666,
    coupling_scale=17.26,
    coupling_exponent=0.1603,
    coupling_params_exponent=0.1595,
    irreducible=0.94,
)
"""Table 3."""

PUBLISHED = {
    "abnar-2025": Published(
        law=ABNAR_2025,
        source="Abnar et al. 2025, Table 3",
        provenance="read",
        data="a subset of RedPajama",
        fitted={"flops": (3e19, 1e21), "sparsity": (0.0, 0.95)},
        remark="Runs at S = 0.98 were held out; R² there was 68 %. The paper states the range of training FLOPs, but "
        "not the ranges of N and D.",
    ),
}

SMALLEST, LARGEST = 1.0, 1e25
"""Bounds of the search for total parameters."""
MOST_SPARSE = 0.999
"""Upper bound of the search for sparsity."""


@jax.jit
def best_params_total(law: Sparsity, flops: Scalar, sparsity: Scalar, active_of: ActiveParams) -> Any:
    """Return N*(C, S), the total parameters that minimize the loss at fixed sparsity."""

    def loss(log_total: Scalar) -> Any:
        return _loss(law, flops, active_of, {"params_total": jnp.exp(log_total), "active_experts_share": 1 - sparsity})

    return jnp.exp(argmin_between(loss, jnp.log(SMALLEST), jnp.log(LARGEST)))


@jax.jit
def best_sparsity(
    law: Sparsity, flops: Scalar, params_total: Scalar, active_of: ActiveParams, *, cap: Scalar = MOST_SPARSE
) -> Any:
    """Return S*(C, N), the sparsity between 0 and ``cap`` that minimizes the loss at fixed size."""

    def loss(log_active: Scalar) -> Any:
        return _loss(law, flops, active_of, {"params_total": params_total, "active_experts_share": jnp.exp(log_active)})

    return 1 - jnp.exp(argmin_between(loss, jnp.log1p(-cap), 0.0))


@jax.jit
def dense_threshold(law: Sparsity, flops: Scalar, active_of: ActiveParams) -> Any:
    """Return the total parameters below which S*(C, N) is 0. There, the loss's slope at S = 0 changes sign."""

    def loss(log_total: Scalar, active: Scalar) -> Any:
        return _loss(law, flops, active_of, {"params_total": jnp.exp(log_total), "active_experts_share": active})

    def halve(_: jax.Array, bracket: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        left, right = bracket
        middle = (left + right) / 2
        dense_is_best = jax.grad(loss, argnums=1)(middle, 1.0) < 0
        return jnp.where(dense_is_best, middle, left), jnp.where(dense_is_best, right, middle)

    ends = jnp.log(jnp.asarray(SMALLEST, float)), jnp.log(jnp.asarray(LARGEST, float))
    return jnp.exp(jax.lax.fori_loop(0, BISECTIONS, halve, ends)[0])


@in_float64
def optimal_params_total(law: Sparsity, flops: Scalar, sparsity: Scalar, active_of: ActiveParams) -> Claim:
    """Return the claim that ``best_params_total`` is optimal."""
    return Claim(
        statement="N*(C, S) = argmin_N L(N, C / (6 N_a(N, S)), S)",
        source="Abnar et al. 2025, Eq. 3 under Eq. 6",
        value={"params_total": best_params_total(law, flops, sparsity, active_of)},
        objective=Partial(_at_sparsity, law, flops, active_of, 1 - sparsity),
    )


@in_float64
def optimal_sparsity(
    law: Sparsity, flops: Scalar, params_total: Scalar, active_of: ActiveParams, *, cap: Scalar = MOST_SPARSE
) -> Claim:
    """Return the claim that ``best_sparsity`` is optimal. Its value is 1-S.

    A note reports an optimum at S = 0 or at ``cap``.
    """
    sparsity = best_sparsity(law, flops, params_total, active_of, cap=cap)
    notes = []
    if sparsity >= cap * (1 - 1e-6):
        notes.append(
            f"The loss still falls at the cap S = {float(cap):g}: under this law no sparsity is too high at this size."
        )
    if sparsity <= 0:
        notes.append("The loss increases with sparsity from S = 0, so the dense model is best at this size and budget.")
    return Claim(
        statement="S*(C, N) = argmin_S L(N, C / (6 N_a(N, S)), S)",
        source="Abnar et al. 2025, Eq. 4 under Eq. 6",
        value={"active_experts_share": 1 - sparsity},
        objective=Partial(_at_size, law, flops, active_of, params_total),
        notes=tuple(notes),
    )


class JointOptimum(NamedTuple):
    """Optimum with capped sparsity, and its interpretation."""

    params_total: float
    sparsity: float
    loss: float
    message: str


def joint_optimum(law: Sparsity, flops: Scalar, active_of: ActiveParams, *, cap: Scalar = MOST_SPARSE) -> JointOptimum:
    """Return the N and S that minimize the loss with S at most ``cap``; without the cap, the optimum of Eq. 2 is
    degenerate."""
    with float64():
        law, flops, active_of = jax.tree.map(lambda x: jnp.asarray(x, float), (law, flops, active_of))
        actives, totals, losses = _losses_by_sparsity(law, flops, active_of, jnp.asarray(1 - cap, float))
        best = int(jnp.argmin(losses))
        message = (
            f"The loss still falls at the cap S = {cap:g}: the law has no joint optimum below the cap, so this "
            f"sparsity is the cap, not an optimum of the law."
            if best == 0
            else f"The loss has its minimum at a sparsity below the cap of {cap:g}."
        )
        return JointOptimum(float(totals[best]), float(1 - actives[best]), float(losses[best]), message)


@jax.jit
def _losses_by_sparsity(law: Sparsity, flops: Scalar, active_of: ActiveParams, least: Scalar) -> tuple[Any, Any, Any]:
    def at(active: Scalar) -> tuple[Any, Any]:
        total = best_params_total(law, flops, 1 - active, active_of)
        return total, _loss(law, flops, active_of, {"params_total": total, "active_experts_share": active})

    actives = jnp.exp(jnp.linspace(jnp.log(least), 0.0, 257))
    return actives, *jax.vmap(at)(actives)


def _loss(law: Sparsity, flops: Scalar, active_of: ActiveParams, variables: Variables) -> Any:
    total, active = variables["params_total"], variables["active_experts_share"]
    tokens = flops / (FLOPS_PER_PARAM_AND_TOKEN * active_of(total, 1 - active))
    return law(Design(params_total=total, tokens=tokens, num_experts=1 / active, top_k=1.0))


def _at_sparsity(
    law: Sparsity, flops: Scalar, active_of: ActiveParams, active_experts_share: Scalar, variables: Variables
) -> Any:
    return _loss(law, flops, active_of, {**variables, "active_experts_share": active_experts_share})


def _at_size(law: Sparsity, flops: Scalar, active_of: ActiveParams, params_total: Scalar, variables: Variables) -> Any:
    return _loss(law, flops, active_of, {**variables, "params_total": params_total})


def _sizes(law: Sparsity, flops: Scalar, sparsity: Scalar, expansion: Scalar | None = None) -> dict[str, Any]:
    active_of = convention() if expansion is None else AtExpansion(expansion)
    total = best_params_total(law, flops, sparsity, active_of)
    tokens = flops / (FLOPS_PER_PARAM_AND_TOKEN * active_of(total, sparsity))
    design = Design(params_total=total, tokens=tokens, num_experts=1 / (1 - sparsity), top_k=1.0)
    return {
        "optimal_params_total": total,
        "optimal_params_active": active_of(total, sparsity),
        "optimal_tokens": tokens,
        "optimal_loss": law(design),
    }


def _sparsity_at_size(law: Sparsity, flops: Scalar, params_total: Scalar) -> dict[str, Any]:
    return {"optimal_sparsity": best_sparsity(law, flops, params_total, convention())}


_SIZES = {
    "optimal_params_total": "N*",
    "optimal_params_active": "N_a*",
    "optimal_tokens": "D*",
    "optimal_loss": "L*",
}
_ASSUMED = f"{convention().meaning}; give the expansion of your models too if it is not 1/(1-S)"

ENTRIES = (
    LawEntry(
        name="sparsity",
        law=Sparsity,
        aliases=("abnar",),
        published=PUBLISHED,
        decides=(
            *(
                DecisionRule(given, _SIZES, _sizes, ends={"optimal_params_total": (SMALLEST, LARGEST)}, assumes=assumed)
                for given, assumed in ((("flops", "sparsity"), _ASSUMED), (("flops", "sparsity", "expansion"), ""))
            ),
            DecisionRule(
                ("flops", "params_total"),
                {"optimal_sparsity": "S*"},
                _sparsity_at_size,
                ends={"optimal_sparsity": (0.0, MOST_SPARSE)},
                assumes=convention().meaning,
            ),
        ),
        claims={
            "optimal_params_total": lambda: optimal_params_total(ABNAR_2025, 1e20, 0.9, Proportional()),
            "optimal_sparsity": lambda: optimal_sparsity(ABNAR_2025, 1e20, 1e9, Proportional()),
        },
    ),
)
