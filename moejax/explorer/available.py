"""Collect the content of a page: published laws, a user's fits, and their runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moejax import run_table
from moejax.errors import UserError
from moejax.explorer.knobs import START
from moejax.fit.fit_result import FitResult, load_of_runs
from moejax.fit.tables.column_names import with_derived
from moejax.fit.tables.read_runs import read_runs
from moejax.folder import is_file
from moejax.laws import PUBLISHED
from moejax.laws.law import Published
from moejax.laws.predict import law_and_constants
from moejax.run_table import DataFrame
from moejax.say import say

FITS = ("fit.json", "fit/fit.json")
"""Fits in the working directory that the page shows by default, in order of preference."""
PREDICTIONS = "predictions.csv"
"""Table of the fitted runs next to a fit, as ``moejax fit --out`` writes it."""


@dataclass(frozen=True, kw_only=True)
class AvailableLaw:
    """A law with its coefficients, published or fitted by the user."""

    known: Published | FitResult
    file: str = ""
    """Path of a user's fit; empty for published constants."""

    @property
    def law(self) -> Any:
        """The law."""
        return self.known.law

    @property
    def fit(self) -> FitResult | None:
        """The fit result, or None for published constants."""
        return self.known if isinstance(self.known, FitResult) else None


@dataclass(frozen=True, kw_only=True)
class Available:
    """Laws and runs of a page."""

    laws: Mapping[str, AvailableLaw]
    """Laws, keyed by ``LAW:CONSTANTS`` or ``fit:NAME``; a user's fits come first."""
    law: str = ""
    """Key of the law that the page shows first; empty for the user's first fit."""
    runs: DataFrame | None = field(default=None, compare=False)
    """Runs to draw, if any."""

    @property
    def own(self) -> bool:
        """True if a user's fits are among the laws."""
        return any(law.fit is not None for law in self.laws.values())

    @property
    def start(self) -> dict[str, float]:
        """Initial values, keyed by slider: those of the run with the most FLOPs.

        They are ``START`` if no run has both a size and FLOPs.
        """
        if self.runs is None or not {"params_active", "flops"} <= set(self.runs):
            return dict(START)
        sizes = self.runs[["params_active", "flops"]].replace([math.inf, -math.inf], math.nan).dropna()
        if not len(sizes):
            return dict(START)
        row = self.runs.loc[sizes["flops"].idxmax()]
        expansion, unique = float(row.get("expansion", 1.0)), float(row.get("unique_tokens", math.inf))
        return {
            **START,
            "params_active": float(row["params_active"]),
            "flops": float(row["flops"]),
            "expansion": max(expansion, 1.0) if expansion == expansion else 1.0,
            "expert_expansion": _expert_expansion(row, expansion),
            "unique_tokens": unique if unique > 0 else math.inf,
        }


def _expert_expansion(row: Any, expansion: float) -> float:
    """Return a run's experts per active expert, or its expansion if the table has no expert counts."""
    experts, chosen = (float(row.get(name, math.nan)) for name in ("num_experts", "top_k"))
    ratio = experts / chosen if chosen > 0 else expansion
    return max(ratio, 1.0) if ratio == ratio else 1.0


def find_available(source: str = "", law: str = "") -> Available:
    """Return the published laws and the content of ``source``: a fit, a table of runs, or a folder of these.

    Args:
      law: name of a published law, or file of a fit, that the page shows first.

    Raises:
      UserError: the law, file or folder does not exist, or has no content that the page can show.
    """
    own, runs = _own(Path(source)) if source else ({}, None)
    opened = ""
    if law.endswith(".json"):
        fit, beside = _own(Path(law))
        own, runs, (opened,) = fit | own, beside if runs is None else runs, [*fit]
    elif law:
        name, constants = law_and_constants(law, None)
        opened = f"{name}:{constants or next(iter(PUBLISHED[name]), '')}"
    published = {
        f"{law}:{name}": AvailableLaw(known=known) for law, sets in PUBLISHED.items() for name, known in sets.items()
    }
    return Available(laws={**own, **published}, law=opened, runs=runs)


def default_fit() -> str:
    """Return the fit in the working directory, or an empty string; files that are not fits are skipped with a note."""
    for place in filter(is_file, map(Path, FITS)):
        try:
            load_of_runs(place)
        except UserError as error:
            say(f"Not opened: {error}")
        else:
            return str(place)
    return ""


def _own(source: Path) -> tuple[dict[str, AvailableLaw], DataFrame | None]:
    if not source.exists():
        raise UserError(f"{source} does not exist; give a fit.json, a run table, a folder of these, or no argument.")
    if source.is_file():
        if source.name.endswith(run_table.ENDINGS):
            return {}, _runs(source)
        beside = source.parent / PREDICTIONS
        return _fits([source]), _runs(beside) if beside.exists() else None
    files = [*sorted(source.glob("fits/*.json")), *source.glob("fit.json")]
    tables = [path for path in (source / "runs.parquet", source / "runs.csv", source / PREDICTIONS) if path.exists()]
    if not files and not tables:
        raise UserError(
            f"{source} contains neither fit.json, nor fits/, nor runs.parquet; `moejax fit --out DIR` and `moejax "
            f"study` write such folders."
        )
    return _fits(files), _runs(tables[0]) if tables else None


def _fits(files: list[Path]) -> dict[str, AvailableLaw]:
    fits = {}
    for path in files:
        name = path.stem if path.stem != "fit" else path.resolve().parent.name
        if f"fit:{name}" in fits:
            name = str(path)
        fits[f"fit:{name}"] = AvailableLaw(known=load_of_runs(path), file=str(path))
    return fits


def _runs(path: Path) -> DataFrame:
    """Read the runs of a table like ``moejax fit``; notes on a user's table go to stderr."""
    is_of_fit = path.name == PREDICTIONS
    try:
        read = read_runs(path, (), drop_invalid=True, trust_units=is_of_fit)
    except UserError as error:
        if "--" not in str(error):
            raise
        raise UserError(
            f"{error} moejax explore does not have these options; save them for {path} with moejax fit {path} … "
            f"--save-mapping."
        ) from error
    if read.notes and not is_of_fit:
        say(*read.notes)
    table = with_derived(read.frame)
    if not {"flops", "params_active", "tokens"} & set(table):
        raise UserError(
            f"{path} has neither a column of FLOPs nor columns of active parameters and tokens, so no run can be "
            "drawn; name the columns as in docs/run_tables.md."
        )
    return table
