"""Fit a law's coefficients to a table of runs, with intervals and diagnostics."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moejax.cli.options import argument, flag_of, given, option, out
from moejax.cli.out_folder import out_folder, out_set
from moejax.cli.process import compile_quickly
from moejax.cli.progress import progress
from moejax.cli.shared import (
    RUNS,
    LatexOptions,
    LawOptions,
    LevelOptions,
    Resamples,
    SearchOptions,
    SplitOptions,
    TableOptions,
    numbers,
)
from moejax.errors import UserError
from moejax.run_sources.source import source
from moejax.say import say
from moejax.wording import listed

if TYPE_CHECKING:
    from moejax.fit.answers import Asked
    from moejax.result import Result

EXAMPLE = """\
moejax fit runs.parquet --law effective_params --bootstrap 1000
moejax fit paper.csv --law chinchilla --map params_active=Na --map tokens='step * 520000' --where "seed == 42"
moejax fit runs.csv --law chinchilla --decide flops=1e24 --profile 'N*' --influence 'N*' --bootstrap 1000
moejax fit runs.csv --law chinchilla --fix irreducible=1.6 --hold-out flops --json
moejax fit runs.csv --form 'loss = E + A/N^alpha + B/D^alpha' --bootstrap 1000
moejax fit runs.csv --form 'loss = E + A/N^a + B/D^b' --budget 'C = 6*N*D' --decide flops=1e24 --profile 'N*'
moejax fit sweep.csv --form 'lr = k*N^a*D^b*width^c' --best-by lr
moejax fit scores.csv --law error_from_loss --loss-law chinchilla --predict params_active=7B,tokens=1T
moejax fit runs.csv --law routed --hold-out router_type=S-Base --hold-out num_experts:256 --weight seeds
moejax fit isoflops.csv --recipe isoflop
moejax fit proxies.csv --law effective_params --recipe launch-check --hold-out params_active:1e10 --correct gamma"""
RECIPES = {
    "launch-check": ("law", "hold_out", "pilot", "correct"),
    "domains": ("law", "hold_out", "shares"),
    "isoflop": ("level",),
    "zhao": ("hold_out", "starts", "bootstrap"),
    "tian": ("starts", "level"),
    "abnar": ("hold_out", "starts", "bootstrap", "level"),
}
"""Papers' procedures, each with the options that it uses besides the table's options, ``--seed`` and the output."""
STOPPED = 130
"""Exit status after Ctrl-C, as for every command."""
TRUSTING, ASKING, WHOLE = "trusting", "asking the fitted law", "a whole procedure instead"


@dataclass(frozen=True, kw_only=True)
class FitCommand(LawOptions, SearchOptions, SplitOptions, LevelOptions, LatexOptions, name="fit"):
    """Fit a law to a table of runs."""

    ONE_OF = ("law", "form", "recipe")
    runs: Path | str = argument(RUNS, metavar="RUNS", read=source)
    loss_law: str | None = option(
        None,
        "for a law of scores: the loss law that it depends on, fitted to the same table; predictions and decisions "
        "are then for the score of a run of any size",
        metavar="NAME|FORMULA",
        excludes=("bootstrap", "profile", "influence", "fix", "best_by", "budget"),
    )
    covariance: str = option(
        "sandwich", "estimator of standard errors: sandwich or gauss-newton", metavar="NAME", group=TRUSTING
    )
    bootstrap: Resamples = option(0, "number of bootstrap resamples for intervals", metavar="COUNT", group=TRUSTING)
    by: str = option("group", "resampling unit: group or run", metavar="UNIT", group=TRUSTING)
    decide: tuple[str, ...] = option(
        (),
        "compute the law's optimum for these values, such as flops=1e24 or flops=1e24,expansion=16",
        metavar="NAME=VALUE,…",
        group=ASKING,
    )
    predict: tuple[str, ...] = option(
        (),
        "predict the loss of an untrained run, such as params_active=7B,tokens=1T, with an interval",
        metavar="NAME=VALUE,…",
        group=ASKING,
    )
    profile: tuple[str, ...] = option(
        (),
        "compute a profile-likelihood interval of a coefficient, an optimum (N*, D*, …), or a predicted loss",
        metavar="NAME",
        group=ASKING,
    )
    influence: tuple[str, ...] = option(
        (),
        "find the three most influential runs for this quantity, checked by fitting without them",
        metavar="NAME",
        group=ASKING,
    )
    recipe: str | None = option(
        None,
        f"procedure of a paper: {', '.join(RECIPES)}",
        metavar="NAME",
        group=WHOLE,
        choices=tuple(RECIPES),
        excludes=("form",),
    )
    pilot: Path | None = option(
        None, "first losses of the large training run, for launch-check", metavar="RUNS", group=WHOLE, needs=("recipe",)
    )
    correct: str = option(
        "",
        "coefficient that launch-check refits to the held-out runs alone",
        metavar="NAME",
        group=WHOLE,
        needs=("recipe",),
    )
    shares: str | None = option(
        None,
        "weights of the losses loss_NAME, for domains (default: columns share_NAME)",
        metavar="NAME=SHARE,…",
        group=WHOLE,
        needs=("recipe",),
    )
    out: Path | None = out(
        "write fit.json, summary.txt and predictions.csv", "fit.json", "summary.txt", "predictions.csv", "bootstrap.npz"
    )

    def check(self) -> None:
        if self.recipe is None:
            return
        reads = ("seed", *RECIPES[self.recipe])
        of_table = TableOptions.__dataclass_fields__
        if unread := [
            name for name in given(self) if name not in (*reads, *of_table, "runs", "recipe", "out", "latex")
        ]:
            options, read = ([flag_of(FitCommand, name) for name in names] for names in (unread, reads))
            raise UserError(
                f"--recipe {self.recipe} does not use {listed(options)}; leave that out. Besides the table's options, "
                f"it uses {listed(read)}."
            )
        if "law" in reads and self.law is None:
            raise UserError(f"--recipe {self.recipe} needs a law; give --law NAME (`moejax laws` lists them).")
        if len(self.hold_out) > 1:
            raise UserError(f"--recipe {self.recipe} uses one held-out set; give --hold-out once.")

    def prepare(self) -> None:
        """Compile without LLVM optimization, because compilation dominates, unless the options request a long search or
        many fits.
        """
        compile_quickly(optimized=any((self.recipe, self.starts, self.every_start, self.each)))

    def run(self) -> int:
        if self.recipe is not None:
            return self._follow_recipe()
        return self._fit_one() if self.loss_law is None else self._fit_chained()

    def _fit_one(self) -> int:
        """Read runs, fit one law, resample, test on held-out runs, and print."""
        from moejax.fit.answers import Answers, ReadAs, StandardErrors, answer
        from moejax.fit.search.fit_law import fit_law
        from moejax.fit.selection import held_out_runs, holdout
        from moejax.fit.summary import summary
        from moejax.fit.sweeps.ways_through_sweeps import ways_through_sweeps
        from moejax.fit.tables.read_runs import fitted_column
        from moejax.fit.uncertainty import bootstrap
        from moejax.fit.uncertainty.covariance import with_uncertainty
        from moejax.report.fit_files import write_fit

        law = self.law_for(self.runs)
        read = self.read(self.runs, law)
        options: dict[str, Any] = {**self.how(), "fixed": self.fixed}
        splits = self.splits(read, self.seed)
        asked = self.asked(law, read.runs.output, tuple(self.fixed))
        level, stopped, predicted = self.level, False, None

        def write() -> None:
            """Write the fit and its answers so far, because the next step takes long and may be stopped or fail."""
            if self.out:
                write_fit(self.out, summary(result, level, answers), result, read, predicted)

        with out_folder(self.out), progress() as show:
            result = fit_law(law, read.runs, progress=show, **options)
            how = {"covariance": asked.covariance, "by": self.by}
            result = with_uncertainty(result, read.runs, **how, dropped=read.dropped)
            result = replace(result, reading=read.reading)
            # With predictions.csv, these columns reproduce the reading of the same runs.
            columns = ReadAs(loss=fitted_column(type(result.law), self.loss), group=self.group, weight=self.weight)
            answers = Answers(notes=tuple(read.notes), standard_errors=StandardErrors.of(result, level), read=columns)
            if self.smooth:
                best = replace(self, smooth=False).read(self.runs, law, quiet=True)
                sweeps = ways_through_sweeps(result, read.runs, best.runs, level, how=how, **options)
                answers = replace(answers, sweeps=sweeps)
            write()
            if splits:
                held_out = holdout.hold_out(law, read.runs, splits, progress=show, **options)
                predicted = held_out_runs.held_out_runs(held_out, read.rows, level, **how)
                answers = answers.with_held_out(held_out, predicted)
                write()
            try:
                resampled = None
                if self.bootstrap:
                    resampled = bootstrap.bootstrap(
                        result,
                        read.runs,
                        self.bootstrap,
                        by=self.by,
                        seed=self.seed,
                        progress=show,
                        kept=self.out / "bootstrap.npz" if self.out else None,
                    )
                    result = replace(result, resamples=resampled.kept())
                answers = answer(answers, asked, result, read, resampled, level)
            except KeyboardInterrupt:
                if self.out:
                    raise
                stopped = True
            write()
        if stopped:
            say("", "Stopped; with --out DIR the same command would resume from there.")
        self._show(summary(result, level, answers), has_held_out=predicted is not None)
        return STOPPED if stopped else 0

    def asked(self, law: type, output: str, fixed: Sequence[str] = ()) -> Asked:
        """Return the requested decisions, predictions, profiles and influences."""
        from moejax.fit.answers import asked_of

        return asked_of(
            law,
            output,
            fixed,
            decide=[numbers(text.split(","), "--decide") for text in self.decide],
            predict=[numbers(text.split(","), "--predict") for text in self.predict],
            profile=self.profile,
            influence=self.influence,
            covariance=self.covariance,
            by=self.by,
        )

    def _show(self, summary: Result, *, has_held_out: bool) -> None:
        from moejax.report import render
        from moejax.report.fit_files import written

        if self.out:
            say(written(self.out, has_held_out))
        render.show(summary, as_json=self.json, as_latex=self.latex)

    def _fit_chained(self) -> int:
        """Fit a law of scores and its loss law, chain them, and print."""
        import numpy as np

        from moejax.fit.answers import Answers, ReadAs, answer
        from moejax.fit.chain import fit_chain, with_loss_design
        from moejax.fit.selection import held_out_runs, holdout
        from moejax.fit.summary import summary
        from moejax.laws.scores.chained_law import chained_law
        from moejax.report.fit_files import write_fit

        score_law, loss_law = self.law_for(self.runs), self._loss_law()
        law = chained_law(loss_law, score_law)
        asked = self.asked(law, next(iter(law.outputs)))
        scores = self.read(self.runs, score_law)
        # If --loss names the column of the score, the losses are in the column ``loss``.
        of_losses = replace(self, loss="loss") if self.loss in score_law.outputs else self
        losses = of_losses.read(self.runs, loss_law, quiet=True)
        for note in losses.notes:
            if note not in scores.notes:
                say(note)
        read = replace(scores, runs=with_loss_design(losses.runs, losses.rows, scores.runs, scores.rows))
        how, splits = {"covariance": asked.covariance, "by": self.by}, self.splits(read, self.seed)
        both, options = ((loss_law, losses), (score_law, scores)), self.how()
        with out_folder(self.out), progress() as show:
            fitted = functools.partial(fit_chain, *both, read.runs, how=how, progress=show, **options)
            result, predicted = fitted(np.zeros(len(read.runs), bool)), None
            known = Answers(
                notes=tuple(dict.fromkeys((*scores.notes, *losses.notes))),
                read=ReadAs(loss=result.output, group=self.group, weight=self.weight),
            )
            answers = answer(known, asked, result, read, None, self.level)
            if held_out := holdout.hold_out_of(lambda split: fitted(split.held_out), read.runs, splits, show):
                predicted = held_out_runs.held_out_runs(held_out, read.rows, self.level)
                answers = answers.with_held_out(held_out, predicted)
            said = summary(result, self.level, answers)
            if self.out:
                write_fit(self.out, said, result, read, predicted)
        self._show(said, has_held_out=predicted is not None)
        return 0

    def _loss_law(self) -> type:
        from moejax import run_table
        from moejax.fit.tables.column_names import is_formula, law_of_formula
        from moejax.laws import LAWS, law_name

        assert self.loss_law is not None
        if not is_formula(self.loss_law):
            return LAWS[law_name(self.loss_law)]
        return law_of_formula(
            self.loss_law, run_table.read_as_it_is(self.runs), mapping=self.mapping(self.runs).expressions
        )

    def _follow_recipe(self) -> int:
        from moejax.papers import recipes
        from moejax.report import render

        with progress() as show, out_set(self.out):
            how = recipes.ProcedureSettings(out=self.out, seed=self.seed, level=self.level, progress=show)
            match self.recipe:
                case "launch-check":
                    law = self.law_for(self.runs)
                    pilot = None if self.pilot is None else self.read(self.pilot, law).runs
                    read = self.read(self.runs, law)
                    result = recipes.launch_check(law, read, pilot, self._held_out("params_active"), self.correct, how)
                case "domains":
                    law = self.law_for(self.runs)
                    read = self.read(self.runs, law)
                    result = recipes.domains(law, read, self._shares(), self._held_out("tokens"), how)
                case "zhao":
                    read = self.read(self.runs, recipes.INPUTS["zhao"])
                    held_out, starts = self._held_out("params_total"), self.initial_guesses()
                    result = recipes.zhao(read, held_out, starts, self.bootstrap, how)
                case "tian" if not recipes.is_dense(self.runs, self.mapping(self.runs).expressions):
                    read = self.read(self.runs, recipes.INPUTS["tian"])
                    counts_flops = "flops" not in self.mapping(self.runs).expressions
                    result = recipes.tian(read, self.initial_guesses(), how, counts_flops=counts_flops)
                case "abnar":
                    read = self.read(self.runs, recipes.INPUTS["abnar"])
                    held_out, starts = self._held_out("") or None, self.initial_guesses("abnar")
                    result = recipes.abnar(read, held_out, starts, self.bootstrap, how)
                case _:
                    read = self.read(self.runs, recipes.INPUTS["isoflop"], recipes.ISOFLOP_GROUPS)
                    result = recipes.isoflop(read, how)
        render.show(result, as_json=self.json, as_latex=self.latex)
        return 0

    def _held_out(self, usual: str) -> str:
        return self.hold_out[0] if self.hold_out else usual

    def _shares(self) -> Mapping[str, float] | None:
        if self.shares is None:
            return None
        shares = numbers(self.shares.split(","), "--shares")
        for name, share in shares.items():
            if not 0 < share < math.inf:
                raise UserError(f"--shares gives {name} a share of {share:g}; it must be above 0.")
        return shares
