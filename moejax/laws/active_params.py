"""How many parameters serve a token in a model of N parameters at sparsity S.

Abnar et al. (2025) need N_a(N, S) for every compute-optimal statement and do not give it. Three readings, each a
frozen pytree ``reading(params_total, sparsity) -> params_active``; at S = 0 all give N.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Proportional:
    """N_a = (1-S)·N: everything is an expert."""

    def __call__(self, params_total: Any, sparsity: Any) -> Any:
        return (1 - sparsity) * params_total


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class BackboneByActive:
    """Parameters outside the experts are ``ratio`` times those of the experts that serve a token.

    What holds when experts are added to a fixed backbone: with X expert parameters, N = X + ratio·(1-S)·X.
    """

    ratio: Any

    def __call__(self, params_total: Any, sparsity: Any) -> Any:
        active = 1 - sparsity
        return params_total * (1 + self.ratio) * active / (1 + self.ratio * active)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class BackboneByTotal:
    """Parameters outside the experts are a fixed ``share`` of all: N_a = (share + (1-share)·(1-S))·N.

    At high S (beyond 0.95 for a share of 5 %, 0.75 for 25 %) this reading reverses the document's trends: N_a* no
    longer falls with S, because the backbone dominates.
    """

    share: Any

    def __call__(self, params_total: Any, sparsity: Any) -> Any:
        return params_total * (self.share + (1 - self.share) * (1 - sparsity))


ACTIVE_PARAMS = {
    "proportional": Proportional(),
    "backbone_by_active": BackboneByActive(ratio=0.5),
    "backbone_by_total": BackboneByTotal(share=0.05),
}
"""The readings by name, with example values of what the document leaves open."""
