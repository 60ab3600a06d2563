"""Compare laws on a table of runs."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from moejax.cli.options import argument, flag_of, given, option, out
from moejax.cli.out_folder import out_set
from moejax.cli.process import compile_quickly
from moejax.cli.progress import progress
from moejax.cli.shared import (
    FORM,
    FORMULA,
    RUNS,
    LatexOptions,
    ObjectiveOptions,
    SignOptions,
    SplitOptions,
    TableOptions,
    numbers,
)
from moejax.errors import UserError
from moejax.run_sources.source import named, source
from moejax.say import say
from moejax.wording import listed, told

if TYPE_CHECKING:
    from moejax.fit.tables.read_runs import ReadRuns
    from moejax.laws.formula_law import FormulaLaw

EXAMPLE = """\
moejax compare runs.parquet --hold-out flops
moejax compare runs.csv --hold-out flops --decide flops=1e22,expansion=16
moejax compare runs.csv --hold-out flops --fix irreducible=1.6 --penalty squared
moejax compare runs.csv --laws chinchilla --form 'loss = E + A/N^alpha + B/D^alpha' --form 'loss = E + A/(N*D)^alpha'
moejax compare runs.csv --laws chinchilla,effective_params,zhao --folds 5 --json"""


@dataclass(frozen=True, kw_only=True)
class CompareCommand(SignOptions, ObjectiveOptions, SplitOptions, LatexOptions, name="compare"):
    """Fit every law that the table's columns allow, and test all laws on the same held-out runs (by default, the runs
    with the most tokens).
    """

    runs: Path | str = argument(RUNS, metavar="RUNS", read=source)
    laws: str = option(
        "", "names of laws, separated by commas, or all (default: all; with --form: none)", metavar="NAMES"
    )
    form: tuple[str, ...] = option((), FORM, metavar="FORMULA", group=FORMULA)
    decide: tuple[str, ...] = option(
        (),
        "compute the optimum for these values under each tied law, such as flops=1e24,expansion=16",
        metavar="NAME=VALUE,…",
    )
    verbose: bool = option(False, "give the reason for each law that is left out")
    out: Path | None = out(
        "write compare.json, compare.md and the figure", "compare.json", "compare.md", "predicted_vs_actual.csv"
    )

    def prepare(self) -> None:
        """Compile without LLVM optimization, because compilation dominates. With ``--each``, which runs many fits,
        optimize.
        """
        compile_quickly(optimized=self.each is not None)

    def run(self) -> None:
        from moejax.fit.selection.comparison import compare, of_the_loss
        from moejax.fit.selection.decisions import with_decisions
        from moejax.fit.uncertainty.estimands import NoDecision, given_to_each
        from moejax.laws import LAWS, law_name
        from moejax.report import render
        from moejax.report.comparison import write_comparison

        formulas = self.formulas(self.runs, self.form)
        asked = self.laws or ("" if formulas else "all")
        names = [] if asked in ("", "all") else [law_name(name) for name in asked.split(",")]
        laws = (of_the_loss(LAWS, names) if asked else {}) | formulas
        read = self._read_for(formulas)
        usual = not (self.hold_out or self.each or self.folds)
        splits = (replace(self, hold_out=("tokens",)) if usual else self).splits(read, self.seed)
        asked_for = [numbers(text.split(","), "--decide") for text in self.decide]
        for values in asked_for:
            given_to_each(laws, values)
        how = {"penalty": self.objective(), "fixed": self.fixed, "seed": self.seed}
        with progress() as show:
            comparison = compare(laws, read.runs, splits, **how, progress=show)
            decisions, warnings = [], []
            for values in asked_for:
                try:
                    decisions.append(comparison.decide(**values))
                except NoDecision as why:
                    # The comparison is the main result.
                    warnings.append(told(why))
        title = f"Laws compared on {named(self.runs)}"
        if self.out:
            with out_set(self.out):
                result = with_decisions(comparison.summary(title, verbose=True), decisions)
                written = write_comparison(self.out, comparison, read, result)
            say(f"Wrote {', '.join(written)} to {self.out}.")
        result = with_decisions(comparison.summary(title, self.verbose), decisions)
        steps = comparison.next_steps(self.next_command, decided=bool(decisions))
        result = replace(result, warnings=warnings, notes=steps)
        render.show(result, as_json=self.json, as_latex=self.latex)

    def _read_for(self, formulas: Mapping[str, type[FormulaLaw]]) -> ReadRuns:
        from moejax.laws.design import FIELDS

        targets = list(dict.fromkeys(target for law in formulas.values() for target in law.outputs))
        if len(targets) > 1:
            raise UserError(f"The formulas predict {listed(targets)}; give formulas of a single target.")
        own = dict.fromkeys(name for law in formulas.values() for name in law.inputs if name not in FIELDS)
        if targets in ([], ["loss"]):
            return self.read(self.runs, tuple(own))
        read = replace(self, loss=targets[0]).read(self.runs, tuple(own))
        return replace(read, runs=replace(read.runs, output=targets[0]))

    def next_command(self, law: str) -> str:
        """Return the command that fits a law to the same rows in the same way."""
        by_formula = law in self.form
        words = ["moejax", "fit", str(self.runs), "--form" if by_formula else "--law", law]
        signs = ("positive", "negative", "either") if by_formula else ()
        # The saved mapping is found beside the table.
        saved = ("map", "group", "trust_units") if self.save_mapping is not None else ()
        kept = (*signs, *TableOptions.__dataclass_fields__, "fix", "penalty", "residual", "delta")
        for name in kept:
            if name not in given(self) or name in ("json", "save_mapping", *saved):
                continue
            value, flag = getattr(self, name), flag_of(CompareCommand, name)
            if isinstance(value, tuple):
                words += [word for one in value for word in (flag, str(one))]
            else:
                words += [flag] if value is True else [flag, str(value)]
        return shlex.join([*words, "--bootstrap", "200", "--out", "fit"])
