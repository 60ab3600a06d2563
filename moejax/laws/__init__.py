"""Scaling laws as pure functions: one law a file. Import a law from its file; ``LAWS`` finds it by name."""

from moejax.laws import (
    allocation,
    chinchilla,
    dense_to_moe,
    effective_params,
    expert_count,
    fewer_factors,
    five_factor,
    granularity,
    hyperparameters,
    isoflop_surface,
    kaplan,
    leverage,
    loss_compute,
    marginal,
    resources,
    routed,
    sparsity,
)
from moejax.laws.published import Published

LAWS: dict[str, type] = {
    "kaplan": kaplan.Kaplan,
    "chinchilla": chinchilla.Chinchilla,
    "loss_compute": loss_compute.LossCompute,
    "five_factor": five_factor.FiveFactor,
    "four_factor": fewer_factors.FourFactor,
    "three_factor": fewer_factors.ThreeFactor,
    "two_factor": fewer_factors.TwoFactor,
    "marginal_active": marginal.MarginalActive,
    "marginal_experts": marginal.MarginalExperts,
    "marginal_shared": marginal.MarginalShared,
    "sparsity": sparsity.Sparsity,
    "isoflop_surface": isoflop_surface.IsoflopSurface,
    "granularity": granularity.Granularity,
    "expert_count": expert_count.ExpertCount,
    "routed": routed.Routed,
    "dense_to_moe": dense_to_moe.DenseToMoe,
    "effective_params": effective_params.EffectiveParams,
    "leverage": leverage.Leverage,
    "hyperparameters": hyperparameters.Hyperparameters,
    "allocation": allocation.Allocation,
    "resources": resources.Resources,
}
"""Every law by its name."""

PUBLISHED: dict[str, dict[str, Published]] = {
    "kaplan": kaplan.PUBLISHED,
    "chinchilla": chinchilla.PUBLISHED,
    "loss_compute": loss_compute.PUBLISHED,
    "five_factor": five_factor.PUBLISHED,
    "four_factor": {},
    "three_factor": {},
    "two_factor": {},
    "marginal_active": {},
    "marginal_experts": {},
    "marginal_shared": {},
    "sparsity": sparsity.PUBLISHED,
    "isoflop_surface": isoflop_surface.PUBLISHED,
    "granularity": granularity.PUBLISHED,
    "expert_count": expert_count.PUBLISHED,
    "routed": routed.PUBLISHED,
    "dense_to_moe": dense_to_moe.PUBLISHED,
    "effective_params": effective_params.PUBLISHED,
    "leverage": leverage.PUBLISHED,
    "hyperparameters": hyperparameters.PUBLISHED,
    "allocation": allocation.PUBLISHED,
    "resources": resources.PUBLISHED,
}
"""Published constants by law and set; a law's first set is its default."""

ALIASES: dict[str, str] = {
    "hoffmann": "chinchilla",
    "besiroglu": "chinchilla",
    "zhao": "five_factor",
    "abnar": "sparsity",
    "krajewski": "granularity",
    "ludziejewski": "expert_count",
    "clark": "routed",
    "wang": "dense_to_moe",
    "chapter_002": "effective_params",
    "tian": "leverage",
    "li": "resources",
}
"""Laws by the first author of the paper."""
