"""Runs that a known law made, a fit to them and its resamples: made once in a process, by the first test that asks."""

from functools import cache

import numpy as np

from moejax.fit.runs import runs_from
from moejax.fit.search.fit_law import fit_law
from moejax.fit.selection.metrics import predict
from moejax.fit.uncertainty.bootstrap import bootstrap
from moejax.fit.uncertainty.covariance import with_uncertainty
from moejax.laws.design import Design
from moejax.laws.mixtures.effective_params import CHAPTER_002, EffectiveParams


def sweep(law, noise=0.0, count=120, seed=0, doublings=6):
    """Runs of random sizes, total over active parameters 1 to 2^(doublings - 1), with losses of the law and noise."""
    rng = np.random.default_rng(seed)
    active, tokens = np.exp(rng.uniform(np.log([1e7, 1e9]), np.log([1e10, 1e12]), (count, 2))).T
    design = Design(params_active=active, params_total=active * 2.0 ** rng.integers(0, doublings, count), tokens=tokens)
    exact = runs_from(design, np.ones(count))
    return runs_from(design, predict(law, exact) * np.exp(noise * rng.normal(size=count)))


@cache
def known_runs(noise=0.002):
    """120 runs of the chapter's law."""
    return sweep(CHAPTER_002, noise=noise)


@cache
def known_fit():
    """The chapter's law, fitted to them, with its uncertainty."""
    return with_uncertainty(fit_law(EffectiveParams, known_runs()), known_runs())


@cache
def known_resamples():
    """64 resamples of that fit."""
    return bootstrap(known_fit(), known_runs(), 64)
