"""Generate a synthetic run table for chapter 002's protocol: losses by its law, with noise."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from itertools import product

import numpy as np
import pandas as pd

from moejax.laws.mixtures.effective_params import CHAPTER_002
from moejax.report.figures.figure import evaluate
from moejax.report.synthetic import rng

SPENT = (5, 10, 20)
"""Tokens per active parameter of the budgets."""


def chapter_002_runs(
    noise: float = 0.001, gamma_of_larger: float = 0.25, betas: Mapping[str, float] | None = None
) -> pd.DataFrame:
    """Return a run table for the chapter's pre-launch protocol: losses by its law plus noise, in nats per token.

    ``part`` is "proxy", "held-out" (16B active) or "pilot" (37B of 671B, along its first 100B tokens). Proxies are
    twenty models, trained on 5, 10 and 20 tokens per active parameter; active size and G span a factor of 100.

    Args:
      gamma_of_larger: gamma of all runs except the proxies, because gamma falls with active size according to the
        chapter.
      betas: beta by domain, with equal shares. The table then has columns ``loss_NAME`` and ``share_NAME``, and the
        loss is the mean over domains. Every domain's data term equals the law's data term at a billion tokens.
    """
    sizes = [(own, g, tokens * own) for own, g, tokens in product(np.geomspace(4e7, 4e9, 5), (1, 4, 20, 100), SPENT)]
    sizes += [(16e9, 14.0, tokens * 16e9) for tokens in SPENT]
    sizes += [(37e9, 18.1, tokens) for tokens in np.geomspace(1e10, 1e11, 6)]
    active, expansion, tokens = np.array(sizes).T
    known = {"params_active": active, "params_total": active * expansion, "tokens": tokens}
    part = np.repeat(["proxy", "held-out", "pilot"], [60, 3, 6])
    random = rng()

    def losses(beta: float) -> np.ndarray:
        scale = CHAPTER_002.tokens_scale * 1e9 ** (beta - CHAPTER_002.tokens_exponent)
        near = dataclasses.replace(CHAPTER_002, tokens_exponent=beta, tokens_scale=scale)
        far = dataclasses.replace(near, expansion_exponent=gamma_of_larger)
        exact = np.where(part == "proxy", evaluate(near, **known), evaluate(far, **known))
        return exact + random.normal(0.0, noise, len(exact))

    table = pd.DataFrame({"part": part, **known, "flops": 6 * active * tokens})
    if betas is None:
        return table.assign(loss=losses(float(CHAPTER_002.tokens_exponent)))
    by_domain = {f"loss_{name}": losses(beta) for name, beta in betas.items()}
    shares = {f"share_{name}": 1 / len(betas) for name in betas}
    return table.assign(loss=np.mean([*by_domain.values()], axis=0), **by_domain, **shares)
