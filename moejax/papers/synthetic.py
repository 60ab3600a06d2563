"""Draw synthetic tables for the documents' figures from their laws with noise, since their runs are not public."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from moejax.evaluation.suites import suite_of
from moejax.fit.domains import BY_DOMAIN, ONE_LAW
from moejax.fit.runs import runs_from
from moejax.laws.dense.chinchilla import HOFFMANN_2022, frontier
from moejax.laws.design import Design
from moejax.laws.law import coefficients
from moejax.laws.mixtures.effective_params import CHAPTER_002
from moejax.laws.mixtures.fewer_factors import FourFactor, ThreeFactor, TwoFactor
from moejax.laws.mixtures.five_factor import ZHAO_2025, FiveFactor
from moejax.laws.mixtures.sparsity import ABNAR_2025
from moejax.laws.predict import published
from moejax.papers.chapter_002 import expansion_frontier
from moejax.papers.tian.tables import EXPERTS, GROUPS, TABLE_7, TABLE_9, TASKS
from moejax.papers.zhao.shapes import shape, widths
from moejax.papers.zhao.table_6 import Run, table_6
from moejax.report.figures.figure import evaluate, structured
from moejax.report.figures.leverage import leverage
from moejax.report.synthetic import NOISE, rng
from moejax.report.synthetic import runs as report_runs


def zhao_runs(noise: float = 0.001) -> pd.DataFrame:
    """Return a run table of the settings of Zhao's Table 6: losses of its law plus noise, in nats per token.

    ``is_validation`` marks the rows that the paper holds out, ``is_fitted`` those that it fits. The number and width of
    the routed experts, which Table 6 does not print, are inferred from the sizes.
    """
    runs = table_6()
    known = _known(runs)
    loss = evaluate(ZHAO_2025, **known) + rng().normal(0.0, noise, len(runs))
    marks = {
        "is_validation": [int(run.validation) for run in runs],
        "is_fitted": [int(run.index < 268) for run in runs],
    }
    return pd.DataFrame({**known, **_shapes(runs, known["num_shared_experts"]), "loss": loss, **marks})


def _shapes(runs: list[Run], num_shared: np.ndarray) -> dict[str, list[float]]:
    """Return the model width, expert width and number of routed experts; G experts are as wide as all active ones."""
    found: dict[str, list[float]] = {"model_dim": [], "expert_hidden": [], "num_experts": []}
    for run, shared in zip(runs, num_shared, strict=True):
        name, everything, serving = widths(round(run.total / 1e6), round(run.active / 1e6))
        _, _, hidden, expert = shape(name)
        found["model_dim"].append(hidden)
        found["expert_hidden"].append(expert * serving / run.experts)
        found["num_experts"].append(round(everything * run.experts / serving - float(shared), 9))
    return found


FIELDS = ("top_k", "num_shared_experts", "params_active", "params_total", "tokens")
"""Inputs of a five-factor law in a run table."""


def _known(runs: list[Run]) -> dict[str, np.ndarray]:
    """Return the design fields at settings of Table 6, which prints a third as 0.33."""
    fields = {name: np.array([getattr(run, name) for run in runs]) for name in ("active", "total", "tokens")}
    experts = np.array([run.experts for run in runs])
    shared = np.array([1 / 3 if run.shared == 0.33 else run.shared for run in runs])
    sizes = {"params_active": fields["active"], "params_total": fields["total"], "tokens": fields["tokens"]}
    known = structured(experts, shared, **sizes)
    # Rounding makes 10 - 10·0.2 exactly 8, an integer number of experts.
    return {name: np.round(values, 9) for name, values in known.items()}


def predictions() -> pd.DataFrame:
    """Return predictions of two laws for the settings of Zhao's Table 6, with losses of its law plus noise."""
    table = zhao_runs(NOISE)
    known = {name: table[name].to_numpy(float) for name in FIELDS}
    sizes = {name: known[name] for name in ("params_active", "params_total", "tokens")}
    laws = {
        "five_factor": evaluate(ZHAO_2025, **known),
        "the same, blind to G and S": evaluate(ZHAO_2025, **structured(7.0, 0.3, **sizes)),
    }
    return _predicted(laws, table)


def steps() -> pd.DataFrame:
    """Return predictions of Eqs. 4, 7, 9 and 11 for the settings of Zhao's Table 6, with losses of its law plus noise.

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
        # A law is linear in its free coefficients: each column is the law with one of them 1 and the others 0.
        units = [form(**held, **{n: float(n == one) for n in free}) for one in free]
        columns = np.stack([evaluate(unit, **known) for unit in units], axis=1)
        scale = np.abs(columns).max(axis=0)
        weights = np.linalg.lstsq(columns[fitted] / scale, loss[fitted], rcond=None)[0]
        laws[name] = columns / scale @ weights
    return _predicted(laws, table)


def _predicted(laws: dict[str, np.ndarray], table: pd.DataFrame) -> pd.DataFrame:
    """Return the predictions of laws for a run table, as a table of predictions."""
    return pd.concat(
        pd.DataFrame(
            {
                "law": name,
                "role": np.where(table["is_validation"] == 1, "held out", "fitted"),
                "tokens": table["tokens"],
                "output": "loss",
                "measured": table["loss"],
                "predicted": predicted,
            }
        )
        for name, predicted in laws.items()
    )


def tian_runs(noise: float = 0.0005) -> pd.DataFrame:
    """Return a run table of Tian's Tables 8 and 9 and of sweeps as in Appendix E, named in ``experiment``.

    A loss is that of a dense frontier (Hoffmann et al.) at EL·C times noise. It is higher the more learning rate and
    batch differ from Eq. 5, or M from Table 5.
    """
    random, dense = rng(), frontier(HOFFMANN_2022)
    laws = {part: published("allocation", f"tian-2025-{part}").law for part in ("moe", "dense")}
    rate_and_batch = published("hyperparameters").law
    rows: list[dict[str, Any]] = []

    def add(
        experiment: str, experts: int, top_k: int, shared: int, width: int, expert: int, flops: float, **moved: Any
    ) -> None:
        part = "dense" if experts == top_k else "moe"
        best = {name: float(value) for name, value in rate_and_batch(Design(flops=flops)).items()}
        scale = float(laws[part](Design(flops=flops))["flops_per_token"]) * moved.get("scale", 1.0)
        gain = float(leverage(LEVERAGE, (top_k + shared) / (experts + shared), 2 * width / expert, flops))
        far = sum(np.log(factor) ** 2 for factor in moved.values())
        loss = float(dense(Design(flops=(1.0 if part == "dense" else gain) * flops))) * (1 + 0.02 * far)
        rows.append(
            {
                "experiment": experiment,
                "num_experts": experts,
                "top_k": top_k,
                "num_shared_experts": shared,
                "model_dim": width,
                "expert_hidden": expert,
                "flops": flops,
                "tokens": flops / scale,
                "learning_rate": best["learning_rate"] * moved.get("rate", 1.0),
                "batch_tokens": best["batch_tokens"] * moved.get("batch", 1.0),
                "loss": loss * np.exp(random.normal(0.0, noise)),
            }
        )

    for _, width, *_, flops, _, _ in GROUPS:
        for experts in (2, 4, 8, 16, 32, 64, 128, 256):
            add("Table 8", experts, 2, 1, width, width, flops)
        for experts, expert in zip(EXPERTS[1:], TABLE_9[width][1:], strict=True):
            add("Table 9", experts, experts // 32, experts // 64, width, expert, flops)
    for flops, (experts, top_k) in product((3e17, 1e18, 3e18, 1e19, 3e19, 1e20, 3e20), ((64, 4), (5, 5))):
        shared = 1 if experts == 64 else 0
        for rate, batch in product(2.0 ** np.arange(-1, 1.5, 0.5), 2.0 ** np.arange(-1, 2)):
            add("E.1", experts, top_k, shared, 1024, 1024, flops, rate=rate, batch=batch)
        for scale in 2.0 ** np.arange(-2, 3):
            add("E.2", experts, top_k, shared, 1024, 1024, flops, scale=scale)
    return pd.DataFrame(rows)


LEVERAGE = published("leverage").law


def leverages() -> pd.DataFrame:
    """Return noisy leverages of 120 mixtures by their law; those of 6 and more are the validation."""
    random = rng()
    ratio, granularity = np.exp(random.uniform(np.log(0.008), 0, 120)), random.uniform(2, 16, 120)
    exact = leverage(LEVERAGE, ratio, granularity, np.exp(random.uniform(np.log(3e18), np.log(3e20), 120)))
    measured = exact * np.exp(random.normal(0.0, 0.05, 120))
    role = np.where(measured < 6, "fitted", "validation")
    return pd.DataFrame(
        {"role": role, "measured_efficiency_leverage": measured, "predicted_efficiency_leverage": exact}
    )


def loss_curves() -> pd.DataFrame:
    """Return loss-compute curves of a dense group (the frontier of a law) and of mixtures of constant leverage."""
    dense = coefficients(frontier(HOFFMANN_2022))
    rows = []
    for activation, gain in (("dense", 1.0), (3 / 17, 2.0), (3 / 65, 4.0)):
        curve = {name: float(value) for name, value in dense.items()}
        curve["scale"] *= gain ** curve["exponent"]
        ends = {"least_flops": 2e18, "most_flops": 2e20}
        rows.append({"activation": activation, "granularity": 2.0, "budgets": 5, **curve, **ends})
    return pd.DataFrame(rows)


def layers() -> pd.DataFrame:
    """Return sweeps of dense layers and of attention's share at four budgets, which have small effects on the loss."""
    random, dense, rows = rng(), frontier(HOFFMANN_2022), []
    sweeps = {"num_dense_layers": (0, 1, 2, 3), "attention_share": (0.2, 0.28, 0.35, 0.42, 0.5)}
    for (sweep, values), flops in product(sweeps.items(), (6e18, 2e19, 6e19, 2e20)):
        for value in values:
            at = {"num_dense_layers": 0, "attention_share": 0.35} | {sweep: value}
            miss = 0.004 * (at["num_dense_layers"] - np.log10(flops / 6e18)) ** 2 / 4
            miss += 0.2 * (at["attention_share"] - 0.35) ** 2
            loss = float(dense(Design(flops=3 * flops))) + miss + random.normal(0.0, NOISE / 8)
            rows.append({"sweep": sweep, "flops": flops, "loss": loss, **at})
    return pd.DataFrame(rows)


def scores() -> pd.DataFrame:
    """Return losses and scores of two models over training; final scores are near those of Tian's Table 7."""
    random, rows = rng(), []
    tokens = np.linspace(1e11, 1e12, 10)
    for which, model in enumerate(("Dense-6.1B", "MoE-mini")):
        loss = 1.75 + (0.35 + 0.05 * which) * np.exp(-tokens / (3e11 - 3e10 * which))
        for category, tasks in TASKS.items():
            for task, last in zip(tasks, TABLE_7[category][2 + which], strict=True):
                grown = last * (1 - 0.6 * np.exp(-tokens / 2.5e11)) + random.normal(0.0, 0.6, len(tokens))
                rows += [
                    {"model": model, "tokens": t, "task": task, "score": float(score), "loss": float(at)}
                    for t, score, at in zip(tokens, grown, loss, strict=True)
                ]
    return pd.DataFrame(rows)


def sparse_scores() -> pd.DataFrame:
    """Return errors in the tasks of Abnar et al., D.3, for models of four sparsities.

    The error is a sigmoid of the loss of their Eq. 6. It is the same at every sparsity except in reading comprehension,
    where sparser models have larger errors.
    """
    random, rows = rng(), []
    tasks = suite_of("abnar-2025").tasks
    for sparsity, flops, active in product((0.0, 0.5, 0.9, 0.95), (3e19, 1e20, 3e20, 1e21), (2e8, 4e8, 8e8)):
        total, tokens = active / (1 - sparsity), flops / (6 * active)
        design = Design(params_total=total, tokens=tokens, num_experts=1 / (1 - sparsity), top_k=1.0)
        loss = float(ABNAR_2025(design))
        run = {"model": f"S{100 * sparsity:g}-{active / 1e6:g}M", "tokens": tokens, "loss": loss, "sparsity": sparsity}
        for number, one in enumerate(tasks):
            transfer = 0.024 if one.category == "Reading Comprehension" else 0.0
            ceiling, middle = 65 + 2.5 * number, 2.2 + 0.03 * number
            fitted, moved = (
                ceiling / (1 + np.exp(-2.5 * (loss - part * np.log(1 - sparsity) - middle))) for part in (0, transfer)
            )
            error = float(moved + random.normal(0.0, 0.5))
            named = {"task": one.name, "category": one.category, "metric": one.metric}
            rows.append({**run, **named, "error": error, "fitted_error": float(fitted)})
    return pd.DataFrame(rows)


def lengths_of_thought() -> pd.DataFrame:
    """Return accuracies in a task with few-shot answers of varied length, for five dense models and a mixture."""
    random, rows = rng(), []
    sizes = {"0.5B": 0.46e9, "1.8B": 1.8e9, "2.7B of 14B": 2.7e9, "4B": 4e9, "7B": 7.7e9, "14B": 14.2e9}
    for model, active in sizes.items():
        mixture = " of " in model
        slope = 0.11 * (active / 1e9) ** 0.75 * (1.5 if mixture else 1.0)
        for words in (5, 10, 20, 30, 50, 70, 100):
            answered = 4 + 0.75 * words + random.normal(0.0, 2.0)
            score = np.clip(2.0 * (active / 1e9) ** 0.8 + slope * answered + random.normal(0.0, 0.8), 0.0, 100.0)
            one = {"task": f"answers of {words} words", "given_words": words, "answer_words": answered}
            shape = {"params_active": active, "num_experts": 60 if mixture else 0}
            rows.append({"model": model, **shape, **one, "score": float(score)})
    return pd.DataFrame(rows)


def architectures() -> pd.DataFrame:
    """Return sweeps of A, G and S at four budgets: a dense law's frontier at EL times the budget, plus noise."""
    random, dense = rng(), frontier(HOFFMANN_2022)
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
            gain = float(leverage(LEVERAGE, at["activation_ratio"], at["granularity"], flops))
            gain *= np.exp(-0.6 * (at["shared_share"] - 0.12) ** 2)
            loss = float(dense(Design(flops=gain * flops))) + random.normal(0.0, NOISE / 4)
            rows.append({"sweep": sweep, "flops": flops, "loss": loss, **at})
    return pd.DataFrame(rows)


def balances() -> pd.DataFrame:
    """Return the granularity sweep with two balance weights; the loss of the weak one rises with granularity."""
    usual = architectures().query("sweep == 'granularity'").assign(balance_weight=1.0)
    weak = usual.assign(balance_weight=0.1, loss=usual["loss"] + 0.006 * np.log2(usual["granularity"]) ** 1.5)
    return pd.concat([weak, usual])


def hyperparameters() -> pd.DataFrame:
    """Return a grid of learning rates and batch sizes around the law at 6e19 FLOPs, for three activation ratios."""
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
    """Return the loss by the number of attention heads, for three sizes."""
    random, rows = rng(), []
    for total, middle in ((3e8, 8.0), (1e9, 12.0), (4e9, 16.0)):
        for heads in (2, 4, 8, 16, 32, 64):
            loss = 2.9 - 0.12 * np.log10(total / 3e8) + 0.006 * np.log2(heads / middle) ** 2 + random.normal(0.0, 0.002)
            rows.append({"params_total": total, "num_heads": heads, "loss": loss})
    return pd.DataFrame(rows)


def chapter_002_runs(
    noise: float = 0.001, gamma_of_larger: float = 0.25, betas: Mapping[str, float] | None = None
) -> pd.DataFrame:
    """Return a run table of the chapter's protocol before a launch: losses of its law plus noise, in nats per token.

    ``part`` is "proxy", "held-out" (16B active) or "pilot" (37B of 671B, along its first 100B tokens). Proxies are
    twenty models on 5, 10 and 20 tokens per active parameter; active size and G span a factor of 100.

    Args:
      gamma_of_larger: gamma of all runs but the proxies, since the chapter says that it drops with the active size.
      betas: beta by domain, with equal shares. ``loss_NAME`` and ``share_NAME`` are then columns, and the loss is the
        mean over domains. Every domain's data term equals the law's at a billion tokens.
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
        return table.assign(loss=losses(CHAPTER_002.tokens_exponent))
    found = {f"loss_{name}": losses(beta) for name, beta in betas.items()}
    shares = {f"share_{name}": 1 / len(betas) for name in betas}
    return table.assign(loss=np.mean([*found.values()], axis=0), **found, **shares)


SPENT = (5, 10, 20)
"""Tokens per active parameter of the budgets."""


def expansions() -> pd.DataFrame:
    """Return runs of chapter 002's law with noise, and its grid at the largest of their budgets."""
    runs = report_runs(120)
    design = Design(**{name: runs[name].to_numpy(float) for name in expansion_frontier.INPUTS})
    return expansion_frontier.frontier_table(runs_from(design, runs["loss"].to_numpy(float)), law=CHAPTER_002)


def domains() -> pd.DataFrame:
    """Return losses of two domains of a mixture with different beta and noise, their aggregate, and one law for it."""
    shares, betas, random = {"web": 0.7, "math": 0.3}, {"web": 0.22, "math": 0.4}, rng()
    sizes, tokens = (each.ravel() for each in np.meshgrid(np.geomspace(3e7, 1e9, 5), np.geomspace(1e9, 6.4e10, 7)))
    far = tokens > 2e10
    known = {"params_active": sizes, "tokens": tokens}
    parts = {}
    for name, beta in betas.items():
        law = dataclasses.replace(HOFFMANN_2022, tokens_exponent=beta, tokens_scale=0.5 * 1e9**beta)
        predicted = evaluate(law, **known)
        left = predicted - evaluate(law, params_active=sizes, tokens=np.inf)
        parts[name] = (predicted + random.normal(0.0, NOISE, len(sizes)), predicted, left)
    whole, together = (sum(shares[name] * parts[name][i] for name in shares) for i in (0, 1))
    # A single exponent for the sum of two powers is right in the fitted range, and too high or too low beyond.
    beta = sum(shares[name] * betas[name] for name in shares)
    one = together + sum(shares[name] * (0.5 * (tokens / 1e9) ** -beta - parts[name][2]) for name in shares)
    parts |= {ONE_LAW: (whole, one, np.nan), BY_DOMAIN: (whole, together, np.nan)}
    return pd.concat(
        pd.DataFrame(
            {
                "domain": name,
                "role": np.where(far, "held out", "fitted"),
                "tokens": tokens,
                "measured": measured,
                "predicted": predicted,
                "data_term": left,
            }
        )
        for name, (measured, predicted, left) in parts.items()
    )
