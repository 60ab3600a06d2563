"""Loss curves that a known law made: a constant rate, a cosine and one drop of the rate, and others to predict."""

from typing import Any

import numpy as np
import pandas as pd

from moejax.curves.read_curves import Curves, LossCurve, columns_at
from moejax.fit.runs import runs_from
from moejax.fit.selection.metrics import predict
from moejax.laws.curves.multi_power import MultiPower
from moejax.laws.design import Design

STEPS, WARMUP, PEAK = 4000, 200, 1e-3
TRUTH = MultiPower(
    irreducible=2.6,
    sum_scale=0.6,
    sum_exponent=0.45,
    drop_scale=150.0,
    drop_speed=2.0,
    drop_exponent=0.6,
    rate_exponent=0.6,
)


def rates(kind, steps=STEPS):
    """A schedule by its name."""
    at = np.arange(steps) / steps
    shares = {
        "constant": np.ones(steps),
        "cosine": 0.1 + 0.45 * (1 + np.cos(np.pi * at)),
        # Where a step is logged: a table of logged rates tells no jump between two.
        "drop": np.where(np.arange(steps) < steps // 2 + 39, 1.0, 0.3),
        "wsd": np.clip((1 - at) / 0.2, 0.01, 1.0),
        "late_drop": np.where(at < 0.7, 1.0, 0.1),
    }
    return PEAK * np.minimum(np.arange(1, steps + 1) / WARMUP, 1.0) * shares[kind]


def curve(kind, law: Any = TRUTH, *, noise=0.0, along=0.0, seed=0, every=40, steps=STEPS):
    """A curve of the law with noise of log loss that is alike at neighbors: an AR(1) process."""
    every_rate, at = rates(kind, steps), np.arange(WARMUP + every, steps + 1, every)
    exact = predict(law, runs_from(Design(columns=columns_at(every_rate, at)), np.ones(len(at))))
    random, off = np.random.default_rng(seed), []
    for own in noise * np.sqrt(1 - along**2) * random.normal(size=len(at)):
        off.append(own + along * (off[-1] if off else random.normal() * noise))
    return LossCurve(name=kind, rates=every_rate, steps=at, loss=exact * np.exp(off))


def curves(kinds=("constant", "cosine", "drop"), seed=0, **options):
    """Several of them."""
    return Curves(curves=tuple(curve(kind, seed=97 * seed + i, **options) for i, kind in enumerate(kinds)))


def table(read):
    """Curves as a table with a column that names the run."""
    return pd.concat(
        [
            pd.DataFrame({"run": c.name, "step": c.steps, "lr": c.rates[c.steps - 1], "loss": c.loss})
            for c in read.curves
        ],
        ignore_index=True,
    )
