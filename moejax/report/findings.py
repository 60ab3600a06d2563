"""What every figure and every line of a report reads: the conclusions, the run table and the training logs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from moejax import run_table
from moejax.study.run import TABLE, Concluded
from moejax.train import metrics


@dataclass(frozen=True)
class Findings:
    """A study's conclusions with the data behind them."""

    concluded: Concluded
    runs: run_table.DataFrame
    """The run table, one row per model and token budget."""
    logs: dict[str, list[dict[str, Any]]]
    """Lines of every model's training log, by model, in the table's order."""


def read(concluded: Concluded) -> Findings:
    """The findings in a study's folder; a model without a log has no lines."""
    runs = run_table.read(concluded.folder / TABLE)
    folder = concluded.folder / "models"
    logs = {name: list(metrics.read(folder / name / "metrics.jsonl")) for name in runs["model"].unique()}
    return Findings(concluded, runs, logs)


def best_per_budget(runs: run_table.DataFrame) -> run_table.DataFrame:
    """The run of least loss at every token budget, budgets ascending."""
    return runs.loc[runs.groupby("tokens")["loss"].idxmin()].sort_values("tokens")


def experts(run: Any) -> str:
    """The feed-forward layers of a run in a few words: ``dense``, ``2 of 8``, ``1 of 8 + 1 shared``."""
    if not run["num_experts"]:
        return "dense"
    shared = f" + {run['num_shared_experts']:.0f} shared" if run["num_shared_experts"] else ""
    return f"{run['top_k']:.0f} of {run['num_experts']:.0f}{shared}"


def layer_loads(run: Any) -> list[list[float]]:
    """Load of every expert of every mixture layer on the validation set, 1 where balanced; empty if dense."""
    text = run.get("expert_loads")
    return json.loads(text) if isinstance(text, str) else []


def summary(found: Findings) -> dict[str, Any]:
    """The few numbers that a report states and that its parts do not hold as such."""
    runs = found.runs
    columns = ["tokens", "model", "params_active", "params_total", "flops", "loss", "bits_per_byte"]
    return {
        "runs": len(runs),
        "models": int(runs["model"].nunique()),
        "budgets": int(runs["tokens"].nunique()),
        "signals_that_hold": sum(signal.holds for signal in found.concluded.signals),
        "corpus_documents": found.concluded.corpus.train.documents + found.concluded.corpus.validation.documents,
        "corpus_bytes": found.concluded.corpus.train.bytes + found.concluded.corpus.validation.bytes,
        "best_per_budget": plain(best_per_budget(runs)[columns].to_dict("records")),
        "confirmed": [decision.checked.holds for decision in found.concluded.analysed.decisions],
        "train_seconds": plain(seconds(runs)),
        "versions": versions(runs),
    }


def seconds(runs: run_table.DataFrame) -> float:
    """Wall time of all trainings, a trunk counted with every budget that leaves it."""
    return float(runs["train_seconds"].sum()) if "train_seconds" in runs else float("nan")


def versions(runs: run_table.DataFrame) -> list[dict[str, str]]:
    """The software that trained the runs; more than one entry if it changed on the way."""
    return [json.loads(text) for text in runs["versions"].dropna().unique()] if "versions" in runs else []


def plain(value: Any) -> Any:
    """The same data as JSON can hold it: NumPy's scalars as Python's, what is not finite as None."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and not np.isfinite(value) else value
