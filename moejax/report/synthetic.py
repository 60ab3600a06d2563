"""Make synthetic tables from laws and noise, as examples for figures whose runs are not public.

Captions state that the data are synthetic; draw no conclusions from them.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from moejax.fit.runs import Runs, runs_from
from moejax.fit.selection.metrics import predict
from moejax.laws.design import Design
from moejax.laws.law import Law
from moejax.laws.predict import published
from moejax.report.figures.compute import compute_table
from moejax.report.figures.figure import evaluate
from moejax.report.figures.isoflop import isoflop_table, leverage_table

NOISE = 0.004
"""Standard deviation of the noise, nats/token."""


def rng() -> np.random.Generator:
    """Return a random generator with the same seed for every table."""
    return np.random.default_rng(0)


def predictions() -> pd.DataFrame:
    """Return 60 runs with losses from the law ``effective_params`` plus noise, and their predictions by this law and by
    a variant that reads only active parameters.
    """
    law, table = published("effective_params").law, runs(60)
    sizes = {name: table[name].to_numpy(np.float64) for name in ("params_active", "params_total", "tokens")}
    exact = evaluate(law, **sizes)
    blind = evaluate(law, **{**sizes, "params_total": sizes["params_active"]})
    return pd.concat(
        pd.DataFrame(
            {
                "law": name,
                "role": np.where(sizes["tokens"] > np.quantile(sizes["tokens"], 0.8), "held out", "fitted"),
                "tokens": sizes["tokens"],
                "output": "loss",
                "measured": table["loss"],
                "predicted": predicted,
            }
        )
        for name, predicted in (("effective_params", exact), ("the same, blind to expansion", blind))
    )


def held_out() -> pd.DataFrame:
    """Return 16 runs with prediction intervals; one run lies outside its interval."""
    random = rng()
    predicted = np.linspace(2.9, 2.3, 16)
    away = np.clip(random.normal(0.0, 0.55, 16), -0.95, 0.95)
    away[12] = 1.6
    half = np.linspace(0.006, 0.012, 16)
    return pd.DataFrame(
        {
            "split": "tokens ≥ 1e+11",
            "run": [f"model-{number:02d}, 100B tokens" for number in range(16)],
            "output": "loss",
            "level": 0.9,
            "measured": predicted * np.exp(away * half),
            "predicted": predicted,
            "low": predicted * np.exp(-half),
            "high": predicted * np.exp(half),
            "half_ranges": away,
        }
    )


def loads() -> pd.DataFrame:
    """Return loads of 16 experts in six layers, unbalanced at first; one expert of the first layer dies."""
    random, rows = rng(), []
    for layer in range(6):
        begin = np.exp(random.normal(0.0, 0.9, 16))
        for step in range(40):
            spread = np.exp(-step / 9)
            load = begin**spread * np.exp(random.normal(0.0, 0.05, 16))
            load = load / load.mean()
            if layer == 0:
                load[4] *= np.exp(-step / 12)
            rows += [
                {"layer": layer, "expert": e + 1, "tokens": 25e6 * (step + 1), "load": float(load[e])}
                for e in range(16)
            ]
    return pd.DataFrame(rows)


def attempts() -> pd.DataFrame:
    """Return attempts of four training runs on preemptible machines."""
    attempts = (
        ("dense-1b", 0, 30, "interrupted", 40),
        ("dense-1b", 34, 61, "done", 0),
        ("moe-1b-16e2", 0, 30, "interrupted", 12),
        ("moe-1b-16e2", 34, 52, "killed", 95),
        ("moe-1b-16e2", 55, 90, "done", 0),
        ("moe-1b-64e2", 0, 18, "failed", 0),
        ("moe-1b-64e2", 33, 96, "done", 0),
        ("moe-4b-64e4", 0, 30, "interrupted", 33),
        ("moe-4b-64e4", 34, 104, "running", 0),
    )
    rows = [(model, 60.0 * begin, 60.0 * end, outcome, lost) for model, begin, end, outcome, lost in attempts]
    return pd.DataFrame(rows, columns=["model", "start_seconds", "end_seconds", "outcome", "lost_seconds"])


def plans() -> pd.DataFrame:
    """Return memory and step time of three meshes by part."""
    memory = {
        "fsdp 64": {"parameters": 11e9, "optimizer": 33e9, "activations": 26e9, "collectives": 4e9},
        "fsdp 16 × expert 4": {"parameters": 11e9, "optimizer": 33e9, "activations": 17e9, "collectives": 3e9},
        "fsdp 8 × expert 8": {"parameters": 22e9, "optimizer": 66e9, "activations": 12e9, "collectives": 3e9},
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
    """Return two profiles: a closed interval, and an interval that the runs leave open above."""
    value = np.linspace(-3.0, 3.0, 13)
    closed = pd.DataFrame({"estimand": "irreducible", "value": 1.7 + 0.02 * value, "rise": value**2})
    rise = np.where(value < 0, value**2, 2.2 * (1 - np.exp(-value)))
    left_open = pd.DataFrame({"estimand": "params_active at 1e22", "value": 1e9 * np.exp(value), "rise": rise})
    return pd.concat([closed, left_open]).assign(limit=2.706)


def influences() -> pd.DataFrame:
    """Return the influences of 30 runs, two of which dominate."""
    moved = rng().normal(0.0, 2e7, 30)
    moved[[3, 17]] = 3e8, -2e8
    names = [f"model-{i:02d}, 4B tokens" for i in range(30)]
    return pd.DataFrame({"run": names, "estimand": "params_active at 1e22", "estimate": 1.2e9, "if_removed": moved})


def fitted() -> pd.DataFrame:
    """Return runs with losses from Chinchilla's law plus noise, and the law's predictions."""
    random, law = rng(), published("chinchilla").law
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


def budgets() -> pd.DataFrame:
    """Return 100 runs of MoE and dense models, curves of ``effective_params``, and bands that widen beyond the runs."""
    table, law = runs(100), published("effective_params").law
    names = ("params_active", "params_total", "tokens", "flops")
    design = Design(**{name: table[name].to_numpy(np.float64) for name in names})
    drawn = compute_table(law, design, table["loss"].to_numpy(np.float64), flops=1e24)
    reach = 0.004 * (1 + np.log10(np.maximum(drawn["flops"] / table["flops"].max(), 1.0)))
    curve = drawn["kind"] == "best"
    return drawn.assign(
        low=np.where(curve, drawn["loss"] * np.exp(-reach), np.nan),
        high=np.where(curve, drawn["loss"] * np.exp(reach), np.nan),
    )


def isoflops() -> pd.DataFrame:
    """Return runs at four budgets and three expansions, with curves and minima of ``effective_params``."""
    law, runs = _equal_compute()
    return isoflop_table(law, runs)


def leverages() -> pd.DataFrame:
    """Return the efficiency leverage by ``effective_params`` at the expansions of ``isoflops``."""
    law, runs = _equal_compute()
    return leverage_table(law, runs)


def _equal_compute() -> tuple[Law, Runs]:
    law = published("effective_params").law
    flops, expansion, ratio = (
        one.ravel() for one in np.meshgrid([1e19, 1e20, 1e21, 1e22], [1.0, 4.0, 16.0], [0.25, 0.5, 1.0, 2.0, 4.0])
    )
    active = ratio * np.sqrt(flops / 120)
    design = Design(params_active=active, params_total=active * expansion, tokens=flops / (6 * active), flops=flops)
    exact = evaluate(law, params_active=active, params_total=active * expansion, tokens=flops / (6 * active))
    return law, runs_from(design, exact + rng().normal(0, NOISE, len(exact)))


def losses() -> pd.DataFrame:
    """Return two training runs, each with a trunk and two branches whose loss falls as the learning rate decays."""
    random, parts = rng(), []
    for run, floor in (("dense", 2.3), ("mixture", 2.1)):
        for phase, start, end in (("trunk", 0.02, 8.0), ("branch-1", 3.0, 4.0), ("branch-2", 8.0, 10.0)):
            tokens = np.linspace(start, end, 200)
            decay = 0.0 if phase == "trunk" else 0.12 * (tokens - start) / (end - start)
            smoothed = floor + 1.2 * (tokens + 0.1) ** -0.45 - decay
            loss = smoothed + random.normal(0, 0.03, len(tokens))
            where = {"run": run, "phase": phase, "tokens": 1e9 * tokens, "loss": loss, "smoothed": smoothed}
            parts.append(
                pd.DataFrame(where).assign(validation_loss=np.where(np.arange(200) % 40 == 39, smoothed, np.nan))
            )
    return pd.concat(parts, ignore_index=True)


def ends() -> pd.DataFrame:
    """Return the final objectives of 64 searches from different initial guesses; 40 of them reach the same optimum."""
    random = rng()
    away = np.exp(random.uniform(np.log(1e-3), np.log(3.0), 24))
    return pd.DataFrame({"objective": 0.01 * (1 + np.concatenate([np.abs(random.normal(0, 1e-8, 40)), away]))})


def runs(count: int = 500) -> pd.DataFrame:
    """Return a table of ``count`` runs of MoE and dense models, with losses from ``effective_params`` plus noise."""
    random, law = rng(), published("effective_params").law
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
