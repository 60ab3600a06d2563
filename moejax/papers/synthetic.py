"""Synthetic tables for the documents' figures, drawn from their laws with noise: their runs are not public."""

from __future__ import annotations

import dataclasses
from itertools import product

import numpy as np
import pandas as pd

from moejax.laws.chinchilla import HOFFMANN_2022, frontier
from moejax.laws.design import Design
from moejax.laws.fewer_factors import FourFactor, ThreeFactor, TwoFactor
from moejax.laws.five_factor import ZHAO_2025, FiveFactor
from moejax.laws.law import coefficients
from moejax.laws.predict import published
from moejax.papers.zhao_experiments import table_6
from moejax.report.figures.inputs import evaluate, structured
from moejax.report.figures.leverage import leverage
from moejax.report.synthetic import NOISE, rng


def predictions() -> pd.DataFrame:
    """The settings of Zhao's Table 6 with losses of its law plus noise, predicted by two laws: as of a comparison."""
    law = published("five_factor").law
    runs = table_6()
    fields = {name: np.array([getattr(run, name) for run in runs]) for name in ("active", "total", "tokens")}
    sizes = {"params_active": fields["active"], "params_total": fields["total"], "tokens": fields["tokens"]}
    experts, shared = np.array([run.experts for run in runs]), np.array([run.shared for run in runs])
    exact = evaluate(law, **structured(experts, shared, **sizes))
    mean = evaluate(law, **structured(7.0, 0.3, **sizes))
    measured = exact + rng().normal(0.0, NOISE, len(runs))
    return pd.concat(
        pd.DataFrame(
            {
                "law": name,
                "role": np.where([run.validation for run in runs], "held out", "fitted"),
                "tokens": sizes["tokens"],
                "measured_nats_per_token": measured,
                "predicted_nats_per_token": predicted,
            }
        )
        for name, predicted in (("five_factor", exact), ("the same, blind to G and S", mean))
    )


def steps() -> pd.DataFrame:
    """The settings of Zhao's Table 6 with losses of its law plus noise, predicted by Eq. 4, 7, 9 and 11.

    Each is fitted by least squares to the rows that the paper fits, with the exponents, k and h of Table 2.
    """
    law = coefficients(ZHAO_2025)
    runs = [run for run in table_6() if run.index < 268 or run.validation]
    away = np.array([run.validation for run in runs])
    sizes = {
        "params_active": np.array([run.active for run in runs]),
        "params_total": np.array([run.total for run in runs]),
        "tokens": np.array([run.tokens for run in runs]),
    }
    known = structured(np.array([run.experts for run in runs]), np.array([run.shared for run in runs]), **sizes)
    measured = evaluate(ZHAO_2025, **known) + rng().normal(0.0, NOISE, len(runs))
    tables = []
    for name, form in {"Eq. 4": TwoFactor, "Eq. 7": ThreeFactor, "Eq. 9": FourFactor, "Eq. 11": FiveFactor}.items():
        every = [f.name for f in dataclasses.fields(form)]
        held = {n: law[n] for n in every if n in ("params_exponent", "tokens_exponent", "active_coupling")}
        if "share_coupling" in every:
            held["share_coupling"] = law["share_coupling"]
        free = [n for n in every if n not in held]
        # A law is linear in what is free: its columns are the law with one coefficient 1 and the others 0.
        units = [form(**held, **{n: float(n == one) for n in free}) for one in free]
        columns = np.stack([evaluate(unit, **known) for unit in units], axis=1)
        scale = np.abs(columns).max(axis=0)
        weights = np.linalg.lstsq(columns[~away] / scale, measured[~away], rcond=None)[0]
        tables.append(
            pd.DataFrame(
                {
                    "law": name,
                    "role": np.where(away, "held out", "fitted"),
                    "tokens": sizes["tokens"],
                    "measured_nats_per_token": measured,
                    "predicted_nats_per_token": columns / scale @ weights,
                }
            )
        )
    return pd.concat(tables)


def leverages() -> pd.DataFrame:
    """Leverage of 120 mixtures, by its law and with noise; those above 6 are the validation."""
    random, law = rng(), published("leverage").law
    ratio, granularity = np.exp(random.uniform(np.log(0.008), 0, 120)), random.uniform(2, 16, 120)
    exact = leverage(law, ratio, granularity, np.exp(random.uniform(np.log(3e18), np.log(3e20), 120)))
    measured = exact * np.exp(random.normal(0.0, 0.05, 120))
    role = np.where(measured < 6, "fitted", "validation")
    return pd.DataFrame(
        {"role": role, "measured_efficiency_leverage": measured, "predicted_efficiency_leverage": exact}
    )


def architectures() -> pd.DataFrame:
    """Sweeps of A, G and S at four budgets: a dense law's frontier at EL times the budget, plus noise."""
    random, law, dense = rng(), published("leverage").law, frontier(HOFFMANN_2022)
    base = {"activation_ratio": 3 / 65, "granularity": 2.0, "shared_share": 1 / 3}
    sweeps = {
        "activation_ratio": [3 / (e + 1) for e in (2, 4, 8, 16, 32, 64, 128, 256)],
        "granularity": [2.0, 4.0, 6.0, 8.0, 12.0, 16.0],
        "shared_share": [0.0, 1 / 12, 1 / 3, 1 / 2, 2 / 3, 5 / 6],
    }
    rows = []
    for (sweep, values), flops in product(sweeps.items(), (6e18, 2e19, 6e19, 2e20)):
        for value in values:
            at = base | {sweep: value}
            gain = float(leverage(law, at["activation_ratio"], at["granularity"], flops))
            gain *= np.exp(-0.6 * (at["shared_share"] - 0.12) ** 2)
            loss = float(dense(Design(flops=gain * flops))) + random.normal(0.0, NOISE / 4)
            rows.append({"sweep": sweep, "flops": flops, "loss": loss, **at})
    return pd.DataFrame(rows)


def balances() -> pd.DataFrame:
    """The granularity sweep twice; the weak balance costs what grows with granularity."""
    usual = architectures().query("sweep == 'granularity'").assign(balance_weight=1.0)
    weak = usual.assign(balance_weight=0.1, loss=usual["loss"] + 0.006 * np.log2(usual["granularity"]) ** 1.5)
    return pd.concat([weak, usual])


def hyperparameters() -> pd.DataFrame:
    """A grid of learning rates and batches around the law at 6e19 FLOPs, for three activation ratios."""
    random, law, flops = rng(), published("hyperparameters").law, 6e19
    best = [float(evaluate(law, name, flops=flops)) for name in ("learning_rate", "batch_tokens")]
    rows = []
    for ratio, i, j in product((3 / 17, 3 / 65, 3 / 257), range(-3, 4), range(-3, 4)):
        loss = 2.6 + 0.15 * ratio + 0.006 * (i**2 + 0.6 * j**2 - 0.6 * i * j) * 0.8 + abs(random.normal(0.0, 0.001))
        rate, batch = best[0] * 2.0 ** (i / 1.5), best[1] * 2.0**j
        rows.append(
            {"activation_ratio": ratio, "flops": flops, "learning_rate": rate, "batch_tokens": batch, "loss": loss}
        )
    return pd.DataFrame(rows)


def heads() -> pd.DataFrame:
    """Loss against the number of attention heads, for three sizes."""
    random, rows = rng(), []
    for total, middle in ((3e8, 8.0), (1e9, 12.0), (4e9, 16.0)):
        for heads in (2, 4, 8, 16, 32, 64):
            loss = 2.9 - 0.12 * np.log10(total / 3e8) + 0.006 * np.log2(heads / middle) ** 2 + random.normal(0.0, 0.002)
            rows.append({"params_total": total, "num_heads": heads, "loss": loss})
    return pd.DataFrame(rows)
