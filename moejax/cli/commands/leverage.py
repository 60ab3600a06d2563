"""Compute the FLOPs ratio of two model families at equal loss."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from moejax.cli.options import argument, option
from moejax.cli.process import compile_quickly
from moejax.cli.shared import BootstrapOptions, Seed, law_or_fit, named_law, numbers
from moejax.errors import UserError

if TYPE_CHECKING:
    from moejax.fit.runs import Runs

EXAMPLE = """\
moejax leverage 'runs.parquet:num_experts>0' 'runs.parquet:num_experts==0'
moejax leverage mixtures.csv dense.csv --flops 1e22 --json
moejax leverage 'runs.csv:variant==1' 'runs.csv:variant==0' --fix irreducible=1.6 --fix exponent=-0.094
moejax leverage expansion=16 expansion=1 --law effective_params --flops 1e24
moejax leverage V=1 V=0 --law runs/fit/fit.json --flops 1e21
moejax leverage kimi-k2 glm-4.5 --law zhao --flops 1e24
moejax leverage expansion=16 expansion=1 --law runs/fit/fit.json --runs runs.csv --bootstrap 200 --flops 1e21"""


@dataclass(frozen=True, kw_only=True)
class LeverageCommand(BootstrapOptions, name="leverage"):
    """Compute the efficiency leverage of A over B with an interval: the FLOPs that B needs to reach A's loss, divided
    by A's FLOPs.
    """

    a: str = argument(
        "a table of runs, or RUNS:CONDITION for some of its rows; with --law, a published model, or fixed quantities "
        "of a model family, NAME=VALUE,…",
        metavar="A",
    )
    b: str = argument("what A is compared with, in the same form", metavar="B")
    law: str | None = option(
        None,
        "a loss law: a law or paper name (`moejax laws` lists them), or the path of a fit.json or of the folder that "
        "contains it",
        metavar="NAME|FIT",
        read=law_or_fit,
        excludes=("fix",),
        needs=("flops",),
    )
    flops: tuple[float, ...] = option((), "A's budget in FLOPs (default for tables: A's budgets)", metavar="NUMBER")
    fix: tuple[str, ...] = option(
        (), "hold irreducible or exponent of both tables' loss-compute curves fixed", metavar="NAME=VALUE"
    )
    seed: Seed = option(0, "seed of initial guesses and resamples", metavar="NUMBER")

    def prepare(self) -> None:
        """Compile without LLVM optimization: these programs run for about a second, so compilation dominates."""
        compile_quickly(optimized=False)

    def run(self) -> None:
        from moejax.laws.design import Design
        from moejax.laws.formula_law import FormulaLaw
        from moejax.laws.predict import check_scale
        from moejax.report import render
        from moejax.report.leverage import leverage_of_tables, leverage_under_formula, leverage_under_law

        for flops in self.flops:
            check_scale(Design(flops=flops))
        if self.law is None:
            fixed = numbers(self.fix, "--fix")
            a, b = (self._runs(text) for text in (self.a, self.b))
            result = leverage_of_tables(a, b, self.flops or None, fixed=fixed, level=self.level, seed=self.seed)
        else:
            name, law, known = named_law(self.law, None)
            if isinstance(law, FormulaLaw):
                if self.runs:
                    raise UserError(
                        "For a formula, the intervals come from the fit; leave out --runs, and run moejax fit with "
                        "--bootstrap."
                    )
                given = (numbers(self.a.split(","), self.a), numbers(self.b.split(","), self.b))
                result = leverage_under_formula(known, given, self.flops, self.level)
            else:
                a, b = (numbers(text.split(","), text) if "=" in text else None for text in (self.a, self.b))
                result = leverage_under_law(
                    name,
                    law,
                    known,
                    (self.a, self.b),
                    (a, b),
                    self.flops,
                    resampled=self.resamples_of(known) if self.runs else None,
                    level=self.level,
                )
        render.show(replace(result, families=(self.a, self.b)), as_json=self.json)

    def _runs(self, text: str) -> Runs:
        from moejax.fit.sweeps.budget_losses import MIXTURES, SIZES
        from moejax.run_sources.source import has_prefix, with_condition

        path, condition = with_condition(text)
        if not has_prefix(path) and "://" not in str(path) and not Path(str(path).partition("#")[0]).exists():
            raise UserError(f"The table {path} does not exist. Give tables of runs, or a --law for {text}.")
        family = replace(self, where=(*self.where, *([condition] if condition else [])))
        return family.read(path, ("flops",), (*SIZES, *MIXTURES)).runs
