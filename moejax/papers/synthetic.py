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
from moejax.papers.zhao_experiments import Run, table_6
from moejax.report.figures.inputs import evaluate, structured
from moejax.report.figures.leverage import leverage
from moejax.report.synthetic import NOISE, rng


def zhao_runs(noise: float = 0.001) -> pd.DataFrame:
    """A run table of the settings of Zhao's Table 6: losses of its law plus noise, in nats per token.

    ``is_validation`` marks the rows that the paper keeps from its fit, ``is_fitted`` those that it fits.
    """
    runs = table_6()
    known = _known(runs)
    loss = evaluate(ZHAO_2025, **known) + rng().normal(0.0, noise, len(runs))
    marks = {
        "is_validation": [int(run.validation) for run in runs],
        "is_fitted": [int(run.index < 268) for run in runs],
    }
    return pd.DataFrame({**known, "loss": loss, **marks})


FIELDS = ("top_k", "num_shared_experts", "params_active", "params_total", "tokens")
"""What a five-factor law reads of a run table."""


def _known(runs: list[Run]) -> dict[str, np.ndarray]:
    """Fields of designs at settings of Table 6, which prints a third as 0.33."""
    fields = {name: np.array([getattr(run, name) for run in runs]) for name in ("active", "total", "tokens")}
    experts = np.array([run.experts for run in runs])
    shared = np.array([1 / 3 if run.shared == 0.33 else run.shared for run in runs])
    sizes = {"params_active": fields["active"], "params_total": fields["total"], "tokens": fields["tokens"]}
    known = structured(experts, shared, **sizes)
    # 10 - 10·0.2 is 8, and so a whole number of experts.
    return {name: np.round(values, 9) for name, values in known.items()}


def predictions() -> pd.DataFrame:
    """The settings of Zhao's Table 6 with losses of its law plus noise, predicted by two laws: as of a comparison."""
    table = zhao_runs(NOISE)
    known = {name: table[name].to_numpy(float) for name in FIELDS}
    sizes = {name: known[name] for name in ("params_active", "params_total", "tokens")}
    laws = {
        "five_factor": evaluate(ZHAO_2025, **known),
        "the same, blind to G and S": evaluate(ZHAO_2025, **structured(7.0, 0.3, **sizes)),
    }
    return _predicted(laws, table)


def steps() -> pd.DataFrame:
    """The settings of Zhao's Table 6 with losses of its law plus noise, predicted by Eq. 4, 7, 9 and 11.

    Each is fitted by least squares to the rows that the paper fits, with the exponents, k and h of Table 2.
    """
    law, table = coefficients(ZHAO_2025), zhao_runs(NOISE)
    table = table.loc[(table["is_fitted"] == 1) | (table["is_validation"] == 1)]
    known = {name: table[name].to_numpy(float) for name in FIELDS}
    fitted, loss = table["is_fitted"].to_numpy() == 1, table["loss"].to_numpy(float)
    laws = {}
    for name, form in {"Eq. 4": TwoFactor, "Eq. 7": ThreeFactor, "Eq. 9": FourFactor, "Eq. 11": FiveFactor}.items():
        every = [f.name for f in dataclasses.fields(form)]
        given = ("params_exponent", "tokens_exponent", "active_coupling", "share_coupling")
        held = {n: law[n] for n in every if n in given}
        free = [n for n in every if n not in held]
        # A law is linear in what is free: its columns are the law with one coefficient 1 and the others 0.
        units = [form(**held, **{n: float(n == one) for n in free}) for one in free]
        columns = np.stack([evaluate(unit, **known) for unit in units], axis=1)
        scale = np.abs(columns).max(axis=0)
        weights = np.linalg.lstsq(columns[fitted] / scale, loss[fitted], rcond=None)[0]
        laws[name] = columns / scale @ weights
    return _predicted(laws, table)


def _predicted(laws: dict[str, np.ndarray], table: pd.DataFrame) -> pd.DataFrame:
    """What laws predict for a run table, as a table of predictions."""
    return pd.concat(
        pd.DataFrame(
            {
                "law": name,
                "role": np.where(table["is_validation"] == 1, "held out", "fitted"),
                "tokens": table["tokens"],
                "measured_nats_per_token": table["loss"],
                "predicted_nats_per_token": predicted,
            }
        )
        for name, predicted in laws.items()
    )


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
