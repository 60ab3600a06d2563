"""A study folder as training leaves it, written by code: losses from a known law, nothing trained."""

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
import pandas as pd

from moejax import run_table
from moejax.architecture import Architecture
from moejax.config import dump
from moejax.curves.annealed import AnnealedLoss, AnnealedLosses, LeftOut
from moejax.curves.read_curves import LossCurve
from moejax.data.corpus import read_summary
from moejax.fit.fit_result import FitResult
from moejax.fit.runs import runs_from
from moejax.fit.search.objective import Huber
from moejax.fit.selection.metrics import Metrics, metrics, predict
from moejax.fit.selection.model_selection import ModelSelection
from moejax.fit.uncertainty.bootstrap import Bootstrap
from moejax.float64 import float64
from moejax.laws.accounting import design_of, flops_per_token
from moejax.laws.design import Design
from moejax.laws.mixtures.effective_params import EffectiveParams, dense_slice
from moejax.stored import write_json
from moejax.study.analysis import Analysed, FittedLaw, HeldOutCheck, limits, sanity_checks
from moejax.study.annealed import StudyAnnealed
from moejax.study.compute_optimum import claims, decide
from moejax.study.downstream import DownstreamScores
from moejax.study.run import Concluded, read_study
from moejax.study.study import Analysis, Study
from moejax.train.directory.attempts import ATTEMPTS, Attempt
from moejax.train.directory.identity import TRAINING
from moejax.train.training import DataConfig, Recipe, Training

ENTROPY = 3.2
TRUTH = EffectiveParams(
    irreducible=1.1,
    params_scale=60.0,
    params_exponent=0.4,
    expansion_exponent=0.5,
    tokens_scale=500.0,
    tokens_exponent=0.5,
)
DENSE = dense_slice(TRUTH, 1.0)
BUDGETS = (262_144, 524_288, 1_048_576)


def _architecture(model_dim: int, experts: int = 0, top_k: int = 0, shared: int = 0) -> Architecture:
    return Architecture(
        vocab_size=257,
        model_dim=model_dim,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
        head_dim=16,
        dense_hidden=0 if experts else 2 * model_dim,
        num_experts=experts,
        top_k=top_k,
        num_shared_experts=shared,
        expert_hidden=2 * model_dim // (top_k + shared) if experts else 0,
    )


MODELS = {
    "dense-32": _architecture(32),
    "dense-64": _architecture(64),
    "dense-128": _architecture(128),
    "moe-32": _architecture(32, 8, 2),
    "moe-64": _architecture(64, 8, 1, 1),
    "moe-128": _architecture(128, 4, 1),
}


STUDY = Study(
    name="known-law",
    models=MODELS,
    recipe=Recipe(budgets_tokens=BUDGETS, batch_tokens=4096, data=DataConfig(sequence_length=128)),
    analysis=Analysis(resamples=20, decision_flops=1e13),
)


def write_study(folder: Path, study: Study = STUDY, noise: float = 0.003) -> Path:
    """Everything that training writes and that conclusions are drawn from; its budgets must be ``BUDGETS``."""
    draws = np.random.default_rng(0)
    (folder / "data").mkdir(parents=True)
    write_json(folder / "study.json", study.identity())
    write_json(folder / "analysis.json", dump(study.analysis))
    side = {"documents": 3, "bytes": 1000, "tokens": 1003}
    text = {"source": "python_stdlib", "sha256": "0" * 64, "tokenizer": "1" * 64, "vocab_size": 257}
    rest = {"unigram_entropy": ENTROPY, "train": side, "validation": side, "corrupt_records": 0, "corrupt": []}
    write_json(folder / "data" / "corpus.json", text | rest)
    rows = []
    for training in study.trainings():
        name = training.name
        lines = [_line("trunk", step, draws) for step in range(10, 206, 10)]
        (folder / "models" / name).mkdir(parents=True)
        write_json(folder / "models" / name / TRAINING, training.as_json())
        for tokens in BUDGETS:
            lines += [_line(f"branch-{tokens}", tokens // 4096 - back, draws) for back in (8, 4, 0)]
            rows.append(_row(study, training, tokens, float(np.exp(noise * draws.normal())), draws))
            write_json(folder / "models" / name / f"branch-{tokens}.json", rows[-1])
        # Every training was interrupted once.
        attempts = [Attempt(began=0.0, until=60.0, state="interrupted"), Attempt(began=90.0, until=99.0, state="done")]
        write_json(folder / "models" / name / ATTEMPTS, dump(attempts))
        (folder / "models" / name / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run_table.write(rows, folder / run_table.TABLE)
    return folder


def _line(phase: str, step: int, draws: np.random.Generator) -> dict:
    tokens = step * 4096
    loss = 2 + 2 * np.exp(-tokens / 2e5) + 0.02 * draws.normal()
    at = {"phase": phase, "step": step, "steps_done": step, "tokens": tokens, "seconds": 0.1 * step}
    return at | {"learning_rate": 6e-3, "loss": loss}


def _row(study: Study, training: Training, tokens: int, factor: float, draws: np.random.Generator) -> dict:
    architecture = training.architecture
    design = design_of(architecture, tokens)
    loss = float(TRUTH(design)) * factor
    loads = draws.dirichlet(np.full(architecture.num_experts, 9.0), 2) * architecture.num_experts
    routed = {"load_cv": 0.3, "max_violation": 0.6, "load_entropy": 0.95, "dropped_share": 0.0}
    return {
        "study": study.name,
        "model": training.name,
        "group": training.name,
        "seed": 0,
        "architecture": json.dumps(training.as_json()["architecture"]),
        "model_dim": architecture.model_dim,
        "num_layers": 2,
        "num_experts": architecture.num_experts,
        "top_k": architecture.top_k,
        "num_shared_experts": architecture.num_shared_experts,
        "expansion": design.params_total / design.params_active,
        "params_total": design.params_total,
        "params_active": design.params_active,
        "tokens": tokens,
        "flops": tokens * flops_per_token(architecture, 128).training,
        "loss": loss,
        "bits_per_byte": loss / np.log(2),
        **(routed if architecture.is_moe else dict.fromkeys(routed)),
        "tokens_per_second": 1e5,
        "train_seconds": tokens / 1e5,
        "unigram_entropy": ENTROPY,
        "expert_loads": json.dumps(loads.tolist()) if architecture.is_moe else None,
        "fingerprint": training.fingerprint(),
        "versions": json.dumps({"moejax": "0", "jax": "0.10"}),
        "config": json.dumps(training.as_json()),
    }


def conclude_without_fitting(folder: Path, spread: float) -> Concluded:
    """Conclusions as if the known law had been fitted, its resamples apart by ``spread`` e-folds; nothing is fitted."""
    study, runs = read_study(folder), run_table.read(folder / run_table.TABLE)
    design = Design(**{name: runs[name].to_numpy() for name in TRUTH.inputs})
    table = runs_from(design, runs["loss"].to_numpy(), group=list(runs["group"]))
    fitted, decisions = [], []
    for name, law in {"chinchilla": DENSE, "effective_params": TRUTH}.items():
        resampled = _resampled(law, spread)
        with float64():
            low, high = np.quantile(resampled.evaluate(lambda one: jax.vmap(one)(design)), [0.05, 0.95], axis=0)
        found = metrics(law, table)
        fitted.append(
            FittedLaw(
                name=name,
                fit=_fit(law, found),
                intervals=resampled.coefficients(),
                rows=list(range(len(runs))),
                predicted=predict(law, table).tolist(),
                predicted_low=low.tolist(),
                predicted_high=high.tolist(),
                held_out=HeldOutCheck(
                    split="tokens ≥ 1.049e+06",
                    fitted_runs=len(runs) * 2 // 3,
                    held_out_runs=len(runs) // 3,
                    mae=found.mae,
                    max_relative_error=found.max_relative_error,
                    naive_mae=0.4,
                ),
                resamples=len(resampled.values),
            )
        )
        for expansion, claim_of in claims(name, study.analysis.decision_flops, runs["expansion"].tolist()):
            largest = float(runs["flops"].max())
            decided = decide(name, law, resampled, expansion, claim_of, study.analysis.decision_flops, largest)
            decisions.append(decided)
    analysed = Analysed(
        runs=len(runs),
        laws=fitted,
        decisions=decisions,
        selection=_selection(fitted),
        limits=limits(runs, fitted, decisions),
    )
    corpus, checks = read_summary(folder / "data"), sanity_checks(runs.to_dict("records"))
    return Concluded(
        study, folder, corpus, checks, analysed, downstream=_scores(runs), annealed=_annealed(runs, fitted[0].fit)
    )


def _annealed(runs: run_table.DataFrame, fit: FitResult) -> StudyAnnealed:
    """A budget between the trained ones, and every branch, predicted 1 % too high with ranges of 2 % to either side."""

    def predicted(loss: float) -> AnnealedLoss:
        return AnnealedLoss(loss=1.01 * loss, low=0.99 * loss, high=1.03 * loss, standard_error=0.01 * loss)

    steps = np.arange(8, 206, 8)
    models, rows = {}, []
    for name, own in runs.groupby("model", sort=False):
        left_out = [
            LeftOut(
                name=f"{name}/branch-{int(row['tokens'])}",
                end=int(row["tokens"]) // 4096,
                measured=row["loss"],
                predicted=predicted(row["loss"]),
                interpolated=1.02 * row["loss"],
            )
            for row in own.to_dict("records")
        ]
        trunk = LossCurve(name=f"{name}/trunk", rates=np.full(205, 0.01), steps=steps, loss=3.0 - 0.005 * steps)
        models[str(name)] = AnnealedLosses(trunk=trunk, fit=fit, left_out=tuple(left_out))
        found, first = predicted(float(own["loss"].mean())), own.iloc[0].to_dict()
        ranges = {"loss_low": found.low, "loss_high": found.high, "loss_standard_error": found.standard_error}
        middle = {"tokens": 3 * BUDGETS[0], "flops": 3 * first["flops"], "loss": found.loss}
        rows.append({**first, **middle, **ranges, "is_predicted": 1})
    table = pd.concat([runs.assign(is_predicted=0, batch_tokens=4096), pd.DataFrame(rows)], ignore_index=True)
    return StudyAnnealed(table=table, models=models, not_predicted=())


def _scores(runs: run_table.DataFrame) -> DownstreamScores:
    """What the checkpoints scored in one task, whose error follows the loss."""
    sparsity = 1 - runs["top_k"].astype(float) / runs["num_experts"].where(runs["num_experts"] > 0)
    error = 75 * runs["loss"] / runs["loss"].max()
    asked = runs.assign(task="arc_easy", sparsity=sparsity.fillna(0.0), error=error, score=100 - error)
    columns = ["model", "tokens", "loss", "sparsity", "task", "error", "score"]
    return DownstreamScores(scores=asked[columns], links=[], missing=0)


def _selection(fitted):
    """The law of the lowest error, as if nothing stood against it."""
    best = min(fitted, key=lambda law: law.held_out.mae).name
    sentence = f"For extrapolation, trust {best}: it has the lowest error."
    return ModelSelection(
        best=best, tied=(), contenders=(best,), preferred=best, trusted=best, title=best, reasons=(sentence,)
    )


def _resampled(law, spread: float) -> Bootstrap:
    draws = np.random.default_rng(1)
    laws = jax.tree.map(lambda value: value * np.exp(spread * draws.normal(size=40)), law)
    return Bootstrap(laws=laws, values=np.zeros(40), unfinished=0, by="group", draws=40)


def _fit(law, found: Metrics) -> FitResult:
    """A fit with nothing to warn of."""
    return FitResult(
        law=law,
        penalty=Huber(),
        output="loss",
        value=1.0,
        gradient_norm=0.0,
        converged=True,
        starts=4,
        polished=4,
        agreeing=1.0,
        fixed={},
        unidentified={},
        condition_number=30.0,
        unidentified_directions=(),
        aicc=0.0,
        bic=0.0,
        metrics=found,
        data_hash="0" * 16,
        seed=0,
        versions={"moejax": "0"},
        noise=found.rmse_log * np.sqrt(found.runs / max(found.runs - len(dataclasses.fields(law)), 1)),
    )
