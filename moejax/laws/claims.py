"""Every closed form of the library with published constants, ready to be checked."""

from __future__ import annotations

from collections.abc import Callable

from moejax.laws import (
    allocation,
    chinchilla,
    effective_params,
    expert_count,
    five_factor_optima,
    granularity,
    leverage,
    sparsity_optima,
)
from moejax.laws.active_params import Proportional
from moejax.laws.claim import Checked, Claim, check
from moejax.laws.five_factor import ZHAO_2025
from moejax.laws.sparsity import ABNAR_2025

_MIXTURE = five_factor_optima.with_experts(7, 0.31, params_total=1e12, params_active=32e9, tokens=15e12)

CLAIMS: dict[str, Callable[[], Claim]] = {
    "chinchilla.compute_optimal": lambda: chinchilla.compute_optimal(chinchilla.HOFFMANN_2022, 1e24),
    "effective_params.compute_optimal": lambda: effective_params.compute_optimal(
        effective_params.CHAPTER_002, 3.4e24, 18.1
    ),
    "granularity.compute_optimal": lambda: granularity.compute_optimal(
        granularity.PUBLISHED["krajewski-2024"].law, 1e22, 16.0, 43.0
    ),
    "expert_count.compute_optimal": lambda: expert_count.compute_optimal(
        expert_count.PUBLISHED["ludziejewski-2025"].law, 1e22, 32.0
    ),
    "five_factor_optima.optimal_active_experts": lambda: five_factor_optima.optimal_active_experts(ZHAO_2025, _MIXTURE),
    "five_factor_optima.optimal_shared_share": lambda: five_factor_optima.optimal_shared_share(ZHAO_2025, _MIXTURE),
    "five_factor_optima.optimal_active_share": lambda: five_factor_optima.optimal_active_share(
        ZHAO_2025, 671e9, 7.0, 0.31
    ),
    "five_factor_optima.optimal_active_at_compute": lambda: five_factor_optima.optimal_active_at_compute(
        ZHAO_2025, 1e24, 1e12, 7.0, 0.31
    ),
    "sparsity_optima.optimal_params_total": lambda: sparsity_optima.optimal_params_total(
        ABNAR_2025, 1e20, 0.9, Proportional()
    ),
    "sparsity_optima.optimal_sparsity": lambda: sparsity_optima.optimal_sparsity(ABNAR_2025, 1e20, 1e9, Proportional()),
    "leverage.optimal_granularity": lambda: leverage.optimal_granularity(
        leverage.PUBLISHED["tian-2025"].law, 0.031, 1e22
    ),
    "allocation.compute_optimal": lambda: allocation.compute_optimal(allocation.PUBLISHED["tian-2025-moe"].law, 1e22),
}
"""Claims with published constants by module and function; forms without any are claims too, but not here."""


def check_all() -> dict[str, Checked]:
    """Every claim of ``CLAIMS``, checked."""
    return {name: check(make()) for name, make in CLAIMS.items()}
