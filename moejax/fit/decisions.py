"""What a fitted law decides, by name: optimal sizes for a budget, what a loss costs, leverage over dense models.

Each is a function of the law alone once the settings are given, so that it can be resampled, profiled and
differentiated like a coefficient. Letters are those of the law's own paper.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from moejax.laws import (
    chinchilla,
    dense_to_moe,
    effective_params,
    expert_count,
    five_factor_optima,
    leverage,
    marginal,
    sparsity_optima,
)
from moejax.laws.active_params import convention
from moejax.laws.chinchilla import FLOPS_PER_PARAM_AND_TOKEN, Chinchilla, frontier
from moejax.laws.claim import Claim
from moejax.laws.dense_to_moe import DenseToMoe
from moejax.laws.design import Design
from moejax.laws.effective_params import EffectiveParams
from moejax.laws.expert_count import ExpertCount
from moejax.laws.fewer_factors import FourFactor
from moejax.laws.five_factor import FiveFactor
from moejax.laws.granularity import Granularity
from moejax.laws.granularity import compute_optimal as compute_optimal_at_granularity
from moejax.laws.leverage import Leverage
from moejax.laws.loss_compute import LossCompute, flops_for_loss
from moejax.laws.marginal import MarginalActive, MarginalExperts, MarginalShared
from moejax.laws.routed import Routed
from moejax.laws.sparsity import Sparsity


@dataclass(frozen=True)
class Rule:
    """What a law answers where some quantities are given."""

    given: tuple[str, ...]
    """In the words of a Design; ``flops`` are 6 · active parameters · tokens, ``loss`` is nats per token."""
    gives: Mapping[str, str]
    """Names of the answers, with their letters."""
    answers: Callable[..., Mapping[str, Any]]
    """``answers(law, **given)``: the answers by name."""


def _claimed(given: tuple[str, ...], letters: Mapping[str, str], claim_of: Callable[..., Claim]) -> Rule:
    """The optimum of a claim, with the loss there if it has a letter."""

    def answers(law: Any, **given: float) -> dict[str, Any]:
        claim = claim_of(law, **given)
        loss = {"loss": claim.objective(claim.value)} if "loss" in letters else {}
        return {f"optimal_{name}": value for name, value in {**claim.value, **loss}.items() if name in letters}

    return Rule(given, {f"optimal_{name}": letter for name, letter in letters.items()}, answers)


SPLIT = {"params_active": "N_act*", "tokens": "D*", "loss": "L*"}


def _cost(given: tuple[str, ...], frontier_of: Callable[..., LossCompute]) -> Rule:
    """The least FLOPs that reach a loss."""
    return Rule(
        ("loss", *given),
        {"optimal_flops": "C*"},
        lambda law, loss, **given: {"optimal_flops": flops_for_loss(frontier_of(law, **given), loss)},
    )


def _dense_at_one(experts: str, claim_of: Callable[..., Claim], form: Callable[..., Chinchilla]) -> tuple[Rule, ...]:
    """The rules of a law that has Chinchilla's form at every value of ``experts``, and is the dense law at 1."""

    def leverage_of(law: Any, flops: float, **given: float) -> dict[str, Any]:
        loss = frontier(form(law, given[experts]))(Design(flops=flops))
        return {"efficiency_leverage": flops_for_loss(frontier(form(law, 1.0)), loss) / flops}

    return (
        _claimed(("flops", experts), SPLIT, claim_of),
        # FLOPs of the dense model per FLOP of the mixture at equal loss, each at its own best split.
        Rule(("flops", experts), {"efficiency_leverage": "EL"}, leverage_of),
        _cost((experts,), lambda law, **given: frontier(form(law, given[experts]))),
    )


def _abnars_sizes(law: Sparsity, flops: float, sparsity: float) -> dict[str, Any]:
    """Sizes at one sparsity, by the default active-parameter convention."""
    reading = convention()
    total = sparsity_optima.best_params_total(law, flops, sparsity, reading)
    tokens = flops / (FLOPS_PER_PARAM_AND_TOKEN * reading(total, sparsity))
    design = Design(params_total=total, tokens=tokens, num_experts=1 / (1 - sparsity), top_k=1.0)
    return {
        "optimal_params_total": total,
        "optimal_params_active": reading(total, sparsity),
        "optimal_tokens": tokens,
        "optimal_loss": law(design),
    }


def _krajewskis_sizes(law: Granularity, flops: float, granularity: float, expansion: float) -> Claim:
    # The paper's G is twice a Design's granularity.
    return compute_optimal_at_granularity(law, flops, 2 * granularity, expansion)


def _zhaos_structure(law: FiveFactor) -> dict[str, Any]:
    return {
        "active_experts": five_factor_optima.best_active_experts(law),
        "shared_share": five_factor_optima.best_shared_share(law),
    }


def _zhaos_share(law: FiveFactor, params_total: float) -> Claim:
    return five_factor_optima.optimal_active_share(law, params_total, **_zhaos_structure(law))


def _zhaos_sizes(law: FiveFactor, flops: float, params_total: float) -> Claim:
    # The paper counts C = N_a·D, without the factor 6.
    spent = flops / FLOPS_PER_PARAM_AND_TOKEN
    return five_factor_optima.optimal_active_at_compute(law, spent, params_total, **_zhaos_structure(law))


RULES: dict[type, tuple[Rule, ...]] = {
    Chinchilla: (
        _claimed(("flops",), {**SPLIT, "params_active": "N*"}, chinchilla.compute_optimal),
        _cost((), frontier),
    ),
    LossCompute: (_cost((), lambda law: law),),
    EffectiveParams: _dense_at_one("expansion", effective_params.compute_optimal, effective_params.dense_slice),
    ExpertCount: _dense_at_one("num_experts", expert_count.compute_optimal, ExpertCount.at_experts),
    DenseToMoe: _dense_at_one("num_experts", dense_to_moe.compute_optimal, DenseToMoe.at_experts),
    Granularity: (
        _claimed(
            ("flops", "granularity", "expansion"),
            SPLIT,
            _krajewskis_sizes,
        ),
    ),
    Sparsity: (
        Rule(
            ("flops", "sparsity"),
            {
                "optimal_params_total": "N*",
                "optimal_params_active": "N_a*",
                "optimal_tokens": "D*",
                "optimal_loss": "L*",
            },
            _abnars_sizes,
        ),
        Rule(
            ("flops", "params_total"),
            {"optimal_sparsity": "S*"},
            lambda law, flops, params_total: {
                "optimal_sparsity": sparsity_optima.best_sparsity(law, flops, params_total, convention())
            },
        ),
    ),
    FiveFactor: (
        Rule(
            (),
            {"optimal_active_experts": "G*", "optimal_shared_share": "S*"},
            lambda law: {f"optimal_{name}": value for name, value in _zhaos_structure(law).items()},
        ),
        _claimed(("params_total",), {"active_share": "r_a*"}, _zhaos_share),
        _claimed(("flops", "params_total"), {**SPLIT, "params_active": "N_a*"}, _zhaos_sizes),
    ),
    FourFactor: (
        Rule(
            (),
            {"optimal_active_experts": "G*"},
            lambda law: {"optimal_active_experts": five_factor_optima.best_active_experts(law.as_five_factor)},
        ),
    ),
    MarginalActive: (_claimed((), {"params_active": "N_a*"}, marginal.optimal_active),),
    MarginalExperts: (_claimed((), {"active_experts": "G*"}, marginal.optimal_experts),),
    MarginalShared: (_claimed((), {"shared_share": "S*"}, marginal.optimal_shared),),
    # The best granularity depends on neither the activation ratio nor the FLOPs: any will do.
    Leverage: (_claimed((), {"granularity": "G*"}, lambda law: leverage.optimal_granularity(law, 0.1, 1e20)),),
    Routed: (
        Rule(
            ("params_active", "num_experts"),
            {"effective_params": "N_eff"},
            lambda law, params_active, num_experts: {
                "effective_params": law.effective_params(params_active, num_experts)
            },
        ),
    ),
}
"""Rules by law; a law that is not here decides nothing by itself."""
