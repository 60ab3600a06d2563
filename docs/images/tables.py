"""Writes the tables of the gallery that are of the quickstart: its runs, and fits of laws to them.

make quickstart && python docs/images/tables.py runs/quickstart/runs.parquet && make gallery
"""

import sys
import tempfile
from pathlib import Path

import moejax as mj
from moejax import run_table
from moejax.__main__ import main as moejax
from moejax.fit.tables.read_runs import read_runs
from moejax.report.figures import evidence

OUT = Path(__file__).parents[1] / "gallery"
COLUMNS = (
    *("model", "num_layers", "model_dim", "num_experts", "top_k", "num_shared_experts", "expert_hidden"),
    *("params_total", "params_active", "params_embedding", "tokens", "flops", "batch_tokens", "learning_rate"),
    *("loss", "bits_per_byte", "load_cv", "max_violation"),
)
COMPARED = {
    "zhao-5": "effective_params,chinchilla,two_factor",
    "abnar-6": "effective_params,chinchilla,two_factor",
    "fitted-here": "dense_to_moe,two_factor,three_factor",
}
"""Laws whose predictions a figure shows."""
INFLUENCED = "expansion_exponent"
"""The coefficient of ``effective_params`` about which the figure of influence is."""


def main(runs: str) -> None:
    """Write all of them."""
    frame = run_table.read(Path(runs))[list(COLUMNS)]
    frame.to_csv(OUT / "runs.csv", index=False)
    for name, laws in COMPARED.items():
        with tempfile.TemporaryDirectory() as folder:
            moejax(["compare", runs, "--laws", laws, "--hold-out", "tokens", "--out", f"{folder}/out"])
            predicted = run_table.read_as_it_is(Path(folder, "out", "predicted_vs_actual.csv"))
        predicted["tokens"] = frame["tokens"].to_numpy()[predicted["row"].astype(int) - 1]
        predicted.to_csv(OUT / f"{name}.csv", index=False)
    read = read_runs(runs, "effective_params")
    fit = mj.fit(read, "effective_params")
    labels = [f"{model}, {tokens:,.0f} tokens" for model, tokens in zip(frame["model"], frame["tokens"], strict=True)]
    influenced = evidence.coefficients(fit)[INFLUENCED]
    tables = {
        "profile": evidence.profile_table(fit, read.runs),
        "influence": evidence.influence_table(fit, read.runs, INFLUENCED, influenced, labels),
        "starts": evidence.starts_table(fit, read.runs),
    }
    for name, table in tables.items():
        table.to_csv(OUT / f"{name}.csv", index=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
