"""The IsoFLOP surface of Abnar et al. (2025): loss at one budget as a polynomial in log parameters and log sparsity."""

from __future__ import annotations

from typing import Any, ClassVar

import jax.numpy as jnp
from jax import Array

from moejax.errors import UserError
from moejax.laws.claim import Claim, Partial, Variables, in_float64
from moejax.laws.design import Design, Scalar
from moejax.laws.law import LOSS, LawEntry, coefficient, constant, law
from moejax.laws.search import argmin_between


@law
class IsoflopSurface:
    """L(N, S) = Σ a_i·N̂^i + Σ b_i·Ŝ^i + Σ c_i·(N̂·Ŝ)^i + d, with N̂ = log(N / unit) and Ŝ = -log(1 - S).

    Abnar et al. (2025), Eq. 8, for one training budget C; their best degrees are (2, 2, 2). No constants are published.
    N is ``params_total``, S is ``sparsity``, L is in nats per token.

    The lengths of ``size``, ``sparsity`` and ``interaction`` are the degrees. The document uses unit = 1. Another unit
    changes the set of surfaces that the products (N̂·Ŝ)^i can represent, so the unit is a constant of the law. The law
    is linear in its coefficients, so ``fit_surface`` is least squares. Its optima have closed forms for degrees (2, 2,
    2); other degrees need a numerical search.
    """

    inputs: ClassVar[tuple[str, ...]] = ("params_total", "num_experts", "top_k")
    outputs: ClassVar = LOSS

    size: tuple[Any, ...] = coefficient("coefficients of N̂, N̂², ...", symbol="a_i", sign="any")
    sparsity: tuple[Any, ...] = coefficient("coefficients of Ŝ, Ŝ², ...", symbol="b_i", sign="any")
    interaction: tuple[Any, ...] = coefficient("coefficients of N̂·Ŝ, (N̂·Ŝ)², ...", symbol="c_i", sign="any")
    offset: Scalar = coefficient("constant term, nats per token", symbol="d", sign="any")
    params_unit: float = constant("parameters at which N̂ is 0", symbol="unit", default=1.0, dimension={"params": "1"})

    def __call__(self, design: Design) -> Any:
        degrees = (len(self.size), len(self.sparsity), len(self.interaction))
        weights = (*self.size, *self.sparsity, *self.interaction, self.offset)
        return sum(w * t for w, t in zip(weights, terms(design, degrees, self.params_unit), strict=True))


def terms(design: Design, degrees: tuple[int, int, int], params_unit: Scalar = 1.0) -> list[Any]:
    """Return the regressors of the law's coefficients, in order; the last is 1."""
    size = jnp.log(design.params_total / params_unit)
    sparsity = -jnp.log(1 - design.sparsity)
    bases = zip((size, sparsity, size * sparsity), degrees, strict=True)
    return [*(base**power for base, degree in bases for power in range(1, degree + 1)), jnp.ones_like(size)]


def fit_surface(
    designs: Design, losses: Array, degrees: tuple[int, int, int] = (2, 2, 2), params_unit: float = 1.0
) -> IsoflopSurface:
    """Fit the surface by least squares to runs with the same budget; the law is linear in its coefficients."""
    matrix = jnp.stack(terms(designs, degrees, params_unit), axis=-1)
    scale = jnp.abs(matrix).max(axis=0)
    weights = iter(jnp.linalg.lstsq(matrix / scale, losses)[0] / scale)
    size, sparsity, interaction = (tuple(next(weights) for _ in range(degree)) for degree in degrees)
    return IsoflopSurface(
        size=size, sparsity=sparsity, interaction=interaction, offset=next(weights), params_unit=params_unit
    )


@in_float64
def optimal_params_total(law: IsoflopSurface, sparsity: Scalar) -> Claim:
    """Return the claim for the N that minimizes the loss at one sparsity, for degrees (2, 2, 2).

    Raises:
      UserError: the degrees are not (2, 2, 2).
    """
    _require_quadratic(law)
    logged = -jnp.log(1 - jnp.asarray(sparsity, float))
    vertex = -(law.size[0] + law.interaction[0] * logged) / (2 * (law.size[1] + law.interaction[1] * logged**2))
    return Claim(
        statement="N̂* = -(a_1 + c_1 Ŝ) / (2 (a_2 + c_2 Ŝ²))",
        source="from Abnar et al. 2025, Eq. 8",
        value={"params_total": law.params_unit * jnp.exp(vertex)},
        objective=Partial(_at_sparsity, law, 1 - sparsity),
    )


@in_float64
def optimal_sparsity(law: IsoflopSurface, params_total: Scalar) -> Claim:
    """Return the claim for the share 1-S of active experts that minimizes the loss at one N, for degrees (2, 2, 2).

    Raises:
      UserError: the degrees are not (2, 2, 2).
    """
    _require_quadratic(law)
    logged = jnp.log(params_total / law.params_unit)
    vertex = -(law.sparsity[0] + law.interaction[0] * logged) / (2 * (law.sparsity[1] + law.interaction[1] * logged**2))
    return Claim(
        statement="Ŝ* = -(b_1 + c_1 N̂) / (2 (b_2 + c_2 N̂²))",
        source="from Abnar et al. 2025, Eq. 8",
        value={"active_experts_share": jnp.exp(-vertex)},
        objective=Partial(_at_size, law, params_total),
    )


def best_params_total(law: IsoflopSurface, active_experts_share: Scalar, low: Scalar, high: Scalar) -> tuple[Any, Any]:
    """Return the N between two bounds that minimizes the loss at one share 1-S of active experts, and that loss."""

    def loss(log_total: Scalar) -> Any:
        return _at_sparsity(law, active_experts_share, {"params_total": jnp.exp(log_total)})

    best = argmin_between(loss, jnp.log(low), jnp.log(high))
    return jnp.exp(best), loss(best)


def best_active_experts_share(law: IsoflopSurface, params_total: Scalar, low: Scalar, high: Scalar) -> tuple[Any, Any]:
    """Return the 1-S between two bounds that minimizes the loss at one size, and that loss."""

    def loss(log_share: Scalar) -> Any:
        return _at_size(law, params_total, {"active_experts_share": jnp.exp(log_share)})

    best = argmin_between(loss, jnp.log(low), jnp.log(high))
    return jnp.exp(best), loss(best)


def _require_quadratic(law: IsoflopSurface) -> None:
    degrees = (len(law.size), len(law.sparsity), len(law.interaction))
    if degrees != (2, 2, 2):
        raise UserError(
            f"The surface has degrees {degrees}; only (2, 2, 2) has this closed form. Fit with degrees (2, 2, 2), or "
            f"minimize the law numerically."
        )


def _at_sparsity(law: IsoflopSurface, active_experts_share: Scalar, variables: Variables) -> Any:
    return law(Design(num_experts=1 / active_experts_share, top_k=1.0, **variables))


def _at_size(law: IsoflopSurface, params_total: Scalar, variables: Variables) -> Any:
    return law(Design(params_total=params_total, num_experts=1 / variables["active_experts_share"], top_k=1.0))


ENTRIES = (
    LawEntry(
        name="isoflop_surface",
        law=IsoflopSurface,
        not_searched="it applies to one FLOP budget and is linear in its coefficients, so each budget is fitted by "
        "least squares (moejax.laws.mixtures.isoflop_surface.fit_surface).",
    ),
)
