"""What can be looked at: published laws of the loss, and one's own fits and runs."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moejax import run_table
from moejax.errors import UserError
from moejax.fit.column_names import with_derived
from moejax.fit.fit_result import FitResult, load_of_runs
from moejax.laws import PUBLISHED
from moejax.laws.published import Published
from moejax.report.explorer.state import ExplorerState
from moejax.run_table import DataFrame


@dataclass(frozen=True, kw_only=True)
class AvailableLaw:
    """A law with its coefficients."""

    law: Any
    source: str
    published: Published | None = None
    """None for a fit of one's own."""
    file: str = ""
    """Path of a fit of one's own."""
    fit: FitResult | None = None
    """A fit of one's own, with its ranges and its covariance."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Available:
    """What a page has to show."""

    laws: Mapping[str, AvailableLaw]
    """Laws of the loss, one's own first."""
    leverage: AvailableLaw
    """The law of efficiency leverage: Tian's, or one's own."""
    runs: DataFrame = field(default=None, compare=False)
    """Runs to be shown, if there are any."""
    named: str = ""
    """What was given."""

    @property
    def start(self) -> ExplorerState:
        """The first law; with runs, at the size and budget of the one of most FLOPs."""
        law = next(iter(self.laws))
        if not self.named:
            return ExplorerState()
        largest = ExplorerState(law=law)
        if self.runs is None or not {"params_active", "flops"} <= set(self.runs):
            return largest
        row = self.runs.loc[self.runs["flops"].idxmax()]
        times, unique = float(row.get("expansion", 1.0)), float(row.get("unique_tokens", math.inf))
        return ExplorerState(
            law=law,
            params_active=float(row["params_active"]),
            flops=float(row["flops"]),
            expansion=times if times > 1 else 1.0,
            unique_tokens=unique if unique > 0 else math.inf,
        )


@functools.lru_cache(maxsize=8)
def find_available(source: str = "") -> Available:
    """What is available beside the published laws: nothing, a fit, a table of runs, or a folder of them.

    Raises:
      UserError: there is no such file or folder, or nothing in it that can be shown.
    """
    own, runs = _own(Path(source)) if source else ({}, None)
    published = {
        f"{law}:{name}": AvailableLaw(law=known.law, source=known.source, published=known)
        for law, sets in PUBLISHED.items()
        for name, known in sets.items()
        if "loss" in known.law.outputs
    }
    known = next(iter(PUBLISHED["leverage"].values()))
    leverage = AvailableLaw(law=known.law, source=known.source, published=known)
    for key in [key for key, one in own.items() if "efficiency_leverage" in one.law.outputs]:
        leverage = own.pop(key)
    laws = {key: one for key, one in own.items() if "loss" in one.law.outputs}
    return Available(laws={**laws, **published}, leverage=leverage, runs=runs, named=source)


def _own(source: Path) -> tuple[dict[str, AvailableLaw], DataFrame]:
    if not source.exists():
        raise UserError(f"There is no {source}; give a fit.json, a run table, a folder of them, or nothing at all.")
    if source.is_file():
        if source.name.endswith(run_table.ENDINGS):
            return {}, _runs(source)
        return _fits([source]), None
    files = [*sorted(source.glob("fits/*.json")), *source.glob("fit.json")]
    tables = [path for path in (source / "runs.parquet", source / "runs.csv") if path.exists()]
    if not files and not tables:
        raise UserError(
            f"{source} holds neither fit.json, nor fits/, nor runs.parquet; `moejax fit --out DIR` and `moejax study` "
            f"write such folders."
        )
    return _fits(files), _runs(tables[0]) if tables else None


def _fits(files: list[Path]) -> dict[str, AvailableLaw]:
    found = {}
    for path in files:
        fit = load_of_runs(path)
        name = path.stem if path.stem != "fit" else path.resolve().parent.name
        source = f"your fit {path}, {fit.metrics.runs} runs"
        found[f"fit:{name}"] = AvailableLaw(law=fit.law, source=source, file=str(path), fit=fit, warnings=fit.warnings)
    return found


def _runs(path: Path) -> DataFrame:
    table = with_derived(run_table.check(run_table.read_as_it_is(path), where=str(path)))
    if "loss" not in table or not {"flops", "params_active", "tokens"} & set(table):
        raise UserError(
            f"{path} has no columns loss and flops (or params_active and tokens), so there is nothing to draw; rename "
            f"columns to ours (docs/fitting.md)."
        )
    return table
