"""Made-up tables, drawn from laws with noise: what a figure looks like where the runs behind it are not public.

A picture of one says so in its caption. They are examples of form, and nothing may be concluded from them.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from moejax.fit.metrics import predict
from moejax.fit.runs import runs_from
from moejax.laws.chinchilla import HOFFMANN_2022, frontier
from moejax.laws.design import Design
from moejax.laws.door import published
from moejax.report.figures.subject import evaluate, structured
from moejax.report.figures.tian_leverage import leverage
from moejax.reproduce.zhao_experiments import table_6

NOISE = 0.004
"""Spread of the made-up losses, nats/token."""


def _random() -> np.random.Generator:
    return np.random.default_rng(0)


def predictions() -> pd.DataFrame:
    """The settings of Zhao's Table 6 with losses of its law plus noise, predicted by two laws: as of a comparison."""
    law = published("five_factor").law
    runs = table_6()
    fields = {name: np.array([getattr(run, name) for run in runs]) for name in ("active", "total", "tokens")}
    sizes = {"params_active": fields["active"], "params_total": fields["total"], "tokens": fields["tokens"]}
    experts, shared = np.array([run.experts for run in runs]), np.array([run.shared for run in runs])
    exact = evaluate(law, **structured(experts, shared, **sizes))
    mean = evaluate(law, **structured(7.0, 0.3, **sizes))
    measured = exact + _random().normal(0.0, NOISE, len(runs))
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


def leverages() -> pd.DataFrame:
    """Leverage of 120 mixtures, by its law and with noise; those above 6 are the validation."""
    random, law = _random(), published("leverage").law
    ratio, granularity = np.exp(random.uniform(np.log(0.008), 0, 120)), random.uniform(2, 16, 120)
    exact = leverage(law, ratio, granularity, np.exp(random.uniform(np.log(3e18), np.log(3e20), 120)))
    measured = exact * np.exp(random.normal(0.0, 0.05, 120))
    role = np.where(measured < 6, "fitted", "validation")
    return pd.DataFrame(
        {"role": role, "measured_efficiency_leverage": measured, "predicted_efficiency_leverage": exact}
    )


def architectures() -> pd.DataFrame:
    """Sweeps of A, G and S at four budgets: a dense law's frontier at EL times the budget, plus noise."""
    random, law, dense = _random(), published("leverage").law, frontier(HOFFMANN_2022)
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
    random, law, flops = _random(), published("hyperparameters").law, 6e19
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
    random, rows = _random(), []
    for total, middle in ((3e8, 8.0), (1e9, 12.0), (4e9, 16.0)):
        for heads in (2, 4, 8, 16, 32, 64):
            loss = 2.9 - 0.12 * np.log10(total / 3e8) + 0.006 * np.log2(heads / middle) ** 2 + random.normal(0.0, 0.002)
            rows.append({"params_total": total, "num_heads": heads, "loss": loss})
    return pd.DataFrame(rows)


def loads() -> pd.DataFrame:
    """Loads of 16 experts in six layers, unbalanced at first; one expert of the first layer is given up."""
    random, rows = _random(), []
    for layer in range(1, 7):
        begin = np.exp(random.normal(0.0, 0.9, 16))
        for step in range(40):
            spread = np.exp(-step / 9)
            load = begin**spread * np.exp(random.normal(0.0, 0.05, 16))
            load = load / load.mean()
            if layer == 1:
                load[4] *= np.exp(-step / 12)
            rows += [
                {"layer": layer, "expert": e + 1, "tokens": 25e6 * (step + 1), "load": float(load[e])}
                for e in range(16)
            ]
    return pd.DataFrame(rows)


def attempts() -> pd.DataFrame:
    """Four trainings on machines that are taken away."""
    rows: list[dict[str, Any]] = []
    plan = {
        "dense-1b": [(0, 30, "interrupted", 40), (34, 61, "done", 0)],
        "moe-1b-16e2": [(0, 30, "interrupted", 12), (34, 52, "killed", 95), (55, 90, "done", 0)],
        "moe-1b-64e2": [(0, 18, "failed", 0), (33, 96, "done", 0)],
        "moe-4b-64e4": [(0, 30, "interrupted", 33), (34, 104, "running", 0)],
    }
    for model, tries in plan.items():
        for begin, end, outcome, lost in tries:
            rows.append(
                {
                    "model": model,
                    "start_seconds": 60.0 * begin,
                    "end_seconds": 60.0 * end,
                    "outcome": outcome,
                    "lost_seconds": lost,
                }
            )
    return pd.DataFrame(rows)


def plans() -> pd.DataFrame:
    """Memory and step time of three meshes, part by part."""
    memory = {
        "fsdp 64": {"parameters": 11e9, "optimiser": 33e9, "activations": 26e9, "collectives": 4e9},
        "fsdp 16 × expert 4": {"parameters": 11e9, "optimiser": 33e9, "activations": 17e9, "collectives": 3e9},
        "fsdp 8 × expert 8": {"parameters": 22e9, "optimiser": 66e9, "activations": 12e9, "collectives": 3e9},
    }
    time = {
        "fsdp 64": {"compute": 0.31, "all-gather": 0.21, "all-to-all": 0.0},
        "fsdp 16 × expert 4": {"compute": 0.31, "all-gather": 0.06, "all-to-all": 0.07},
        "fsdp 8 × expert 8": {"compute": 0.31, "all-gather": 0.03, "all-to-all": 0.11},
    }
    return pd.DataFrame(
        [
            {"plan": plan, "quantity": quantity, "part": part, "value": value, "limit": limit}
            for quantity, every, limit in (("bytes", memory, 95e9), ("seconds", time, np.nan))
            for plan, parts in every.items()
            for part, value in parts.items()
        ]
    )


def profiles() -> pd.DataFrame:
    """Two profiles: one that closes on both sides, one that the runs leave open above."""
    value = np.linspace(-3.0, 3.0, 13)
    closed = pd.DataFrame({"answer": "irreducible", "value": 1.7 + 0.02 * value, "rise": value**2})
    rise = np.where(value < 0, value**2, 2.2 * (1 - np.exp(-value)))
    left_open = pd.DataFrame({"answer": "params_active at 1e22", "value": 1e9 * np.exp(value), "rise": rise})
    return pd.concat([closed, left_open]).assign(limit=2.706)


def influences() -> pd.DataFrame:
    """Thirty runs, of which two decide."""
    moved = _random().normal(0.0, 2e7, 30)
    moved[[3, 17]] = 3e8, -2e8
    names = [f"model-{i:02d}, 4B tokens" for i in range(30)]
    return pd.DataFrame({"run": names, "answer": "params_active at 1e22", "answer_value": 1.2e9, "if_removed": moved})


def fitted() -> pd.DataFrame:
    """Runs of made-up sizes by Chinchilla's law, with noise, and what the law says of them."""
    random, law = _random(), published("chinchilla").law
    active, tokens = np.exp(random.uniform(np.log([1e8, 2e9]), np.log([1e10, 4e11]), (40, 2))).T
    predicted = np.asarray(law(Design(params_active=active, tokens=tokens)), np.float64)
    return pd.DataFrame(
        {
            "law": "Chinchilla",
            "output": "loss",
            "measured": predicted * np.exp(random.normal(0, 0.004, 40)),
            "predicted": predicted,
            "params_active": active,
            "tokens": tokens,
        }
    )


def ends() -> pd.DataFrame:
    """Sixty-four starts of which forty agree."""
    random = _random()
    away = np.exp(random.uniform(np.log(1e-3), np.log(3.0), 24))
    return pd.DataFrame({"objective": 0.01 * (1 + np.concatenate([np.abs(random.normal(0, 1e-8, 40)), away]))})


def runs(count: int = 500) -> pd.DataFrame:
    """A run table of any size: mixtures and dense models by chapter 002's law, plus noise."""
    random, law = _random(), published("effective_params").law
    models = max(1, count // 4)
    active = np.exp(random.uniform(np.log(3e7), np.log(3e9), models)).round()
    experts = random.choice([0, 8, 16, 64, 256], models)
    top_k = np.where(experts > 0, 2, 0)
    share = np.where(experts > 0, 0.6, 0.0)
    total = (active * (1 - share + share * np.where(experts > 0, experts / 2, 1))).round()
    number = np.arange(count) % models
    tokens = (active[number] * 2.0 ** (2 + np.arange(count) // models)).round()
    design = Design(params_active=active[number], params_total=total[number], tokens=tokens)
    loss = predict(law, runs_from(design, np.ones(count))) + random.normal(0.0, NOISE, count)
    return pd.DataFrame(
        {
            "model": [f"model-{i:04d}" for i in number],
            "group": [f"model-{i:04d}" for i in number],
            "params_active": active[number],
            "params_total": total[number],
            "tokens": tokens,
            "flops": 6 * active[number] * tokens,
            "num_experts": experts[number],
            "top_k": top_k[number],
            "num_shared_experts": 0,
            "expansion": total[number] / active[number],
            "sparsity": np.where(experts[number] > 0, 1 - 2 / np.maximum(experts[number], 2), 0.0),
            "loss": loss,
        }
    )
