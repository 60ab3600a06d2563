"""Read the inputs of all figures and sentences of a report: conclusions, run table and training logs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from moejax import run_table
from moejax.fit.runs import SAME, budgets
from moejax.fit.tables.dense_models import EQUAL
from moejax.json_text import finite
from moejax.report.stored_structure import stored_architecture
from moejax.run_table import TABLE
from moejax.stored import foreign_json, read_json
from moejax.study.analysis import best_settings
from moejax.train.directory import metrics

if TYPE_CHECKING:
    from moejax.study.run import Concluded


@dataclass(frozen=True)
class Findings:
    """A study's conclusions with the data behind them."""

    concluded: Concluded
    runs: run_table.DataFrame
    """The run table, one row per model and token budget."""
    logs: dict[str, list[dict[str, Any]]]
    """Lines of every model's training log, keyed by model, in the table's order."""
    next_runs: dict[str, Any] | None = None
    """``next.json`` of ``moejax next``, if the folder contains it."""


def read(concluded: Concluded) -> Findings:
    """Read the findings of a study's folder. Models without a log have no log lines."""
    runs = run_table.read(concluded.folder / TABLE)
    folder = concluded.folder / "models"
    # A report of a table has no training logs, and names that need not be names of folders.
    models = runs["model"].unique() if folder.is_dir() else []
    logs = {name: list(metrics.read(folder / name / "metrics.jsonl")) for name in models}
    proposed = concluded.folder / NEXT
    remedy = "remove it, or write it again with moejax next --out"
    next_runs = read_json(proposed, dict, remedy=remedy) if proposed.exists() else None
    return Findings(concluded, runs, logs, next_runs)


NEXT = "next.json"

BEST_SETTING = (
    *("num_experts", "top_k", "seed", "setting", "best", "tried", "low", "high", "end"),
    *("minimum", "minimum_loss", "no_minimum"),
)
"""Keys of a swept setting's best value in ``report.json``, in addition to those of its run."""


BUDGETS = 24
"""Maximum number of rows in the table of best runs."""


def compute_budgets(runs: run_table.DataFrame) -> np.ndarray | None:
    """Return the index of each run's compute budget if runs share compute budgets rather than token budgets; else None.

    Runs share compute budgets if their FLOPs form clusters that span at most 10 % each, and there are fewer clusters
    than distinct token counts. An example is a comparison of architectures at equal compute, where the largest models
    have the fewest tokens.
    """
    if not {"tokens", "flops"} <= set(runs) or not (runs["flops"] > 0).all():
        return None
    flops = runs["flops"].to_numpy(np.float64)
    number, _ = budgets(flops)
    ends = ((flops[number == n].min(), flops[number == n].max()) for n in range(number.max() + 1))
    # FLOPs without gaps between them are not budgets.
    if number.max() + 1 >= runs["tokens"].nunique() or any(high > SAME * low for low, high in ends):
        return None
    return number


def best_per_budget(runs: run_table.DataFrame) -> run_table.DataFrame:
    """Return the run with the lowest loss at each token budget or compute budget (``compute_budgets``), in ascending
    order.

    If the table has more than ``BUDGETS`` budgets, return the last runs of the loss-compute frontier instead.
    """
    equal = compute_budgets(runs)
    if equal is not None and equal.max() < BUDGETS:
        return runs.loc[runs.groupby(equal)["loss"].idxmin()].sort_values("flops")
    if "tokens" in runs and runs["tokens"].nunique() <= BUDGETS:
        return runs.loc[runs.groupby("tokens")["loss"].idxmin()].sort_values("tokens")
    order = next((name for name in ("flops", "tokens") if name in runs), "loss")
    return frontier(runs, order).tail(BUDGETS)


def swept_by(findings: Findings) -> tuple[str, ...]:
    """Return the names of the settings that a study sweeps (``analysis.best_by``); empty for a table."""
    study = findings.concluded.study
    return study.analysis.best_by if study else ()


def frontier(runs: run_table.DataFrame, order: str) -> run_table.DataFrame:
    """Return the frontier, sorted by the column ``order``: runs whose loss is at most that of every run with a smaller
    value in this column. Of runs with equal values, the one with the lowest loss is kept.
    """
    ordered = runs.sort_values([order, "loss"] if order != "loss" else order).drop_duplicates(order)
    return ordered[ordered["loss"] <= ordered["loss"].cummin()]


def budget_frontier(runs: run_table.DataFrame) -> run_table.DataFrame:
    """Return the run with the lowest loss of each compute budget, if its loss is at most that of every smaller budget.

    FLOPs of a budget differ slightly, for example after rounding of tokens.
    """
    if runs.empty:
        return runs
    number, _ = budgets(runs["flops"].to_numpy(np.float64))
    return frontier(runs.loc[runs.groupby(number)["loss"].idxmin()], "flops")


def at_largest_budget(table: run_table.DataFrame) -> run_table.DataFrame:
    """Return each model's row with its largest token budget."""
    return table[table["tokens"] == table.groupby("model")["tokens"].transform("max")]


def parts(runs: run_table.DataFrame) -> list[str]:
    """Return the parts of the text that have their own losses; empty for a single source."""
    named = [name.removeprefix("loss_") for name in runs if name.startswith("loss_")]
    return [name for name in named if f"bits_per_byte_{name}" in runs]


def is_mixture(runs: run_table.DataFrame) -> np.ndarray | None:
    """Return a mask of the MoE models; None if undetermined. Runs without an expert count are MoE models if their total
    parameters exceed their active parameters.
    """
    unknown = np.full(len(runs), np.nan)
    experts, total, active = (runs.get(name, unknown) for name in ("num_experts", "params_total", "params_active"))
    mixture = np.where(np.isfinite(experts), np.greater(experts, 1), np.greater(total, EQUAL * np.asarray(active)))
    return mixture if (np.isfinite(experts) | np.isfinite(np.asarray(total) * active)).all() else None


def experts(run: Mapping[str, Any]) -> str:
    """Return a run's experts as text: ``dense``, ``2 of 8``, ``1 of 8 + 1 shared``."""
    number = run.get("num_experts")
    if number is None or number != number:
        return "–"
    if number <= 1:
        return "dense"
    few = run.get("num_shared_experts")
    shared = f" + {few:.3g} shared" if few and few == few else ""
    chosen = run.get("top_k")
    return (
        f"{chosen:.0f} of {number:.0f}{shared}" if chosen is not None and chosen == chosen else f"{number:.0f}{shared}"
    )


def layer_loads(run: Mapping[str, Any]) -> dict[int, list[float]]:
    """Return expert loads on the validation set (1 is balanced), keyed by layer number; empty for a dense model.

    Layer 0 is next to the input, as in ``moejax status --layers``.
    """
    text, architecture = run.get("expert_loads"), stored_architecture(run.get("architecture"))
    if not isinstance(text, str):
        return {}
    loads = foreign_json(text, "The column expert_loads", shape=list[list[float]], remedy="leave such cells empty")
    # Without an architecture, every layer counts as an MoE layer.
    numbers = range(len(loads)) if architecture is None else architecture.without_mtp.routed_layers
    return dict(zip(numbers, loads, strict=False))


def summary(findings: Findings) -> dict[str, Any]:
    """Return the numbers of a report that are not part of the conclusions, keyed by name."""
    runs = findings.runs
    named = ["tokens", "model", "params_active", "params_total", "flops", "loss", "bits_per_byte"]
    columns = [name for name in named if name in runs]
    swept = [*columns, *(name for name in BEST_SETTING if name not in columns)]
    settings = [{name: row.get(name) for name in swept} for row in best_settings(runs, swept_by(findings))]
    corpus = findings.concluded.corpus
    return {
        "runs": len(runs),
        "models": int(runs["model"].nunique()),
        "budgets": int(runs["tokens"].nunique()) if "tokens" in runs else None,
        "sanity_checks_that_hold": sum(check.holds is True for check in findings.concluded.sanity_checks),
        "corpus_documents": corpus.train.documents + corpus.validation.documents if corpus else None,
        "corpus_bytes": corpus.train.bytes + corpus.validation.bytes if corpus else None,
        "best_per_budget": finite(best_per_budget(runs)[columns].to_dict("records")),
        "best_settings": finite(settings),
        "confirmed": [decision.checked.holds for decision in findings.concluded.analysed.decisions],
        "train_seconds": finite(seconds(runs)),
        "versions": versions(runs),
    }


def seconds(runs: run_table.DataFrame) -> float:
    """Return the wall time of all rows in seconds. The time of a trunk counts once per budget, since each row includes
    it."""
    return float(runs["train_seconds"].sum()) if "train_seconds" in runs else float("nan")


def versions(runs: run_table.DataFrame) -> list[dict[str, str]]:
    """Return the software versions used for training, keyed by package; several entries mean that versions changed."""
    texts = runs["versions"].dropna().unique() if "versions" in runs else []
    shape, remedy = dict[str, str], "leave such cells empty"
    return [foreign_json(str(text), "The column versions", shape=shape, remedy=remedy) for text in texts]
