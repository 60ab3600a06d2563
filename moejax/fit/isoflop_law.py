"""What a fitted law of size, tokens and sparsity says is optimal at a budget: a third answer beside the other two."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from moejax.fit.bootstrap import Bootstrap
from moejax.fit.isoflop_optimum import SIZE_ENDS, Optimum, end, optimum_of
from moejax.fit.isoflop_runs import Budget
from moejax.laws.design import Design
from moejax.laws.interval import argmin_between
from moejax.laws.sparsity import Sparsity


def best_sizes_by_law(law: Sparsity, resampled: Bootstrap, budget: Budget, level: float = 0.9) -> tuple[Optimum, ...]:
    """N* of Eq. 6 at every sparsity that was trained at several sizes, between the smallest and the largest of them.

    The tokens that a size has at the budget are those of the table: a power of N through the runs of that sparsity. No
    reading of N_a(N, S) is needed, which the document does not give.
    """
    laws = jax.tree.map(lambda one, many: np.concatenate([[one], many]), law, resampled.laws)
    found = []
    for sparsity in budget.levels:
        here = budget.sparsity == sparsity
        logs, tokens = np.log(budget.size[here]), np.log(budget.runs.design.tokens[here])
        if np.ptp(logs) == 0:
            continue
        low, high = logs.min(), logs.max()
        slope, offset = np.polyfit(logs, tokens, 1)
        with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
            best, losses = (np.asarray(one) for one in _lowest(laws, 1 - sparsity, slope, offset, low, high))
        ends = end(best, low, high)
        why = SIZE_ENDS.get(int(ends[0]), "").format(low=np.exp(low), high=np.exp(high))
        held = {"sparsity": sparsity}
        found.append(optimum_of(budget.flops, held, np.exp(best), losses, ends == 0, why, level))
    return tuple(found)


@jax.jit
def _lowest(laws: Any, share: Any, slope: Any, offset: Any, low: Any, high: Any) -> Any:
    """Log size of least loss, and that loss, of many laws."""

    def of(law: Sparsity) -> Any:
        def loss(log_total: Any) -> Any:
            tokens = jnp.exp(offset + slope * log_total)
            return law(Design(params_total=jnp.exp(log_total), tokens=tokens, num_experts=1 / share, top_k=1.0))

        best = argmin_between(loss, low, high)
        return best, loss(best)

    return jax.vmap(of)(laws)
