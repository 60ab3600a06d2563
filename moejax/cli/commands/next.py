"""Choose the runs that reduce the uncertainty of an answer most per FLOP."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from moejax.cli.options import REQUIRED, argument, option, out
from moejax.cli.out_folder import out_set
from moejax.cli.process import compile_quickly
from moejax.cli.progress import progress
from moejax.cli.shared import (
    FITTING,
    RUNS,
    ArchitectureOptions,
    LawOptions,
    Length,
    Positive,
    SearchOptions,
    Share,
    numbers,
    pairs,
)
from moejax.errors import UserError
from moejax.folder import write_text
from moejax.quantities import ASSUMED_MFU
from moejax.ranges import Reach, RunCount, VocabSize, whole
from moejax.run_sources.source import source
from moejax.say import say
from moejax.stored import write_json
from moejax.wording import listed

if TYPE_CHECKING:
    import numpy as np

    from moejax.architecture import Architecture
    from moejax.experimental_design.candidates import Candidates
    from moejax.experimental_design.experiment_plan import RunBudget
    from moejax.experimental_design.propose import Proposal
    from moejax.fit.tables.read_runs import ReadRuns

EXAMPLE = """\
moejax next runs.parquet --law effective_params --target 'N_act*:flops=1e24,expansion=16' --flops 1e21 --k 8
moejax next runs.csv --law five_factor --target deepseek-v3.1:tokens=14.8T --chip-hours 500 --config tiny.py --out next
moejax next runs.csv --form 'loss = E + A/params_active^a + B/tokens^b' --target a --flops 1e20
moejax next runs.csv --law chinchilla,zhao --target deepseek-v3.1:tokens=14.8T --flops 1e21 --candidates mine.csv"""
TRAINABLE = "possible runs: by default shapes like those in the table"


@dataclass(frozen=True, kw_only=True)
class NextCommand(LawOptions, SearchOptions, ArchitectureOptions, name="next"):
    """Propose the runs to train next: those that reduce an uncertainty most per FLOP. The uncertainty is that of a
    fitted law's answer, or of the choice among several laws.
    """

    ONE_OF = ("law", "form")
    runs: Path | str = argument(RUNS, metavar="RUNS", read=source)
    target: tuple[str, ...] = option(
        REQUIRED,
        "answer whose uncertainty to reduce: a loss, loss:params_active=7B,tokens=2T; a published model's loss, "
        "deepseek-v3.1:tokens=14.8T; an optimum, 'N*:flops=1e25'; a coefficient",
        metavar="ANSWER:NAME=VALUE,…",
    )
    flops: Positive | None = option(None, "total FLOPs of all new runs", metavar="NUMBER", excludes=("chip_hours",))
    chip_hours: Positive | None = option(
        None, "total GPU-hours (chip-hours) of all new runs, on --chip at --mfu", metavar="NUMBER"
    )
    chip: str = option("h100", "chip for --chip-hours: h800, v5p, …", metavar="NAME")
    mfu: Share = option(ASSUMED_MFU, "assumed share of the chip's peak FLOP/s", metavar="SHARE")
    k: RunCount = option(10, "maximum number of new runs", metavar="COUNT")
    candidates: Path | None = option(
        None,
        "table of candidate runs, with the columns that the laws read",
        metavar="TABLE",
        group=TRAINABLE,
        excludes=("arch", "config"),
    )
    reach: Reach = option(
        4.0,
        "maximum total parameters, active parameters and tokens of a run, relative to the table's largest",
        metavar="FACTOR",
        group=TRAINABLE,
    )
    largest: Positive | None = option(None, "maximum FLOPs of one run", metavar="FLOPS", group=TRAINABLE)
    repeats: Annotated[int, whole(1, 1_000)] = option(
        1, "maximum number of times that one run is proposed", metavar="COUNT", group=TRAINABLE
    )
    sequence_length: Length | None = option(
        None,
        "sequence length of the candidate shapes (default: the one of --config, or the table's, or 4096)",
        metavar="TOKENS",
        group=TRAINABLE,
    )
    vocab_size: VocabSize | None = option(
        None,
        "vocabulary size of the candidate shapes (default: from --arch, --config or the table's architectures, or one "
        "that suits the table's smallest model)",
        metavar="TOKENS",
        group=TRAINABLE,
        excludes=("candidates",),
    )
    noise: Share | None = option(
        None, "relative noise of the loss (default: from the fit's residuals)", metavar="SHARE", group=FITTING
    )
    around: str | None = option(
        None,
        "plan around published constants instead of a fit, which suits tables with few runs",
        metavar="SET",
        group=FITTING,
        excludes=("form",),
    )
    modes: bool = option(
        False,
        "plan for every mode of the law's posterior, not only for its best fit; the default if the table has fewer "
        "runs than the law has coefficients",
        group=FITTING,
    )
    out: Path | None = out("write next.json, and study.py that trains the runs", "next.json", "study.py")

    def check(self) -> None:
        if self.flops is None and self.chip_hours is None:
            raise UserError(
                "The budget of the new runs is missing; give --flops or --chip-hours, for all new runs together."
            )

    def prepare(self) -> None:
        """Compile without XLA's fusion emitters, which halves the compile time (``compile_quickly``)."""
        compile_quickly()

    def run(self) -> None:
        from moejax.experimental_design.experiment_plan import RunBudget
        from moejax.experimental_design.propose import inputs_of, propose_for, recipe_of
        from moejax.experimental_design.summary import summary, with_chip_hours
        from moejax.laws.chips import find, flops_per_hour
        from moejax.report import render
        from moejax.train.training import Recipe

        laws, fixed, chip = self._laws(), self.fixed, find(self.chip)
        per_hour = flops_per_hour(chip.flops_per_second, self.mfu)
        flops = self.flops or (self.chip_hours or 0.0) * per_hour
        budget = RunBudget(flops=flops, runs=self.k, repeats=self.repeats, causal=self.flops is None)
        inputs, targets = inputs_of(laws), [_target(text) for text in self.target]
        # A formula names the fitted column itself.
        read = self.read(self.runs, inputs if self.form is None else laws[self.form])
        architecture, length = self.architecture_and_length()
        length = self.sequence_length or length
        recipe = recipe_of(read, Recipe(budgets_tokens=()), length)
        with progress() as show:
            proposal = propose_for(
                targets,
                laws,
                read,
                self._candidates(inputs, read, recipe, budget, architecture, length),
                budget,
                around=self._around(laws),
                noise=self.noise,
                fixed=fixed,
                modes=self.modes,
                progress=show,
                **self.how(),
            )
        if proposal.instead:
            what = ", ".join(self.target)
            say(f"! The fitted law does not determine {what} yet, so the runs are planned for its coefficients.")
        result = with_chip_hours(summary(proposal), proposal, budget, chip, self.mfu)
        if self.best_by:
            assert read.tried_settings is not None
            swept = _swept(self.best_by, laws.values(), read.tried_settings)
            result = replace(result, warnings=[*swept, *result.warnings])
        if self.out:
            self._write(self.out, proposal, result.data, recipe)
        render.show(result, as_json=self.json)

    def _laws(self) -> dict[str, type]:
        from moejax.laws import LAWS, law_name

        if self.form is not None or "," not in str(self.law):
            law = self.law_for(self.runs)
            return {self.form or law_name(str(self.law)): law}
        self.formulas(self.runs, [])
        return {name: LAWS[name] for name in dict.fromkeys(law_name(word) for word in str(self.law).split(","))}

    def _around(self, laws: dict[str, type]) -> dict[str, Any]:
        from moejax.laws.predict import published

        if self.around is None:
            return {}
        if len(laws) > 1:
            raise UserError("--around names constants of a single law; give one law with --law.")
        (name,) = laws
        return {name: published(name, self.around).law}

    def _candidates(
        self,
        inputs: Sequence[str],
        read: ReadRuns,
        recipe: dict[str, Any],
        budget: RunBudget,
        architecture: Architecture | None,
        length: int | None,
    ) -> Candidates:
        from moejax.experimental_design.propose import candidates_like, candidates_of

        most = min(budget.flops, self.largest or budget.flops)
        if self.candidates:
            mapping = pairs(self.map, "--map")
            checks = {"drop_invalid": self.drop_invalid, "trust_units": self.trust_units}
            return candidates_of(self.candidates, inputs, mapping, most, **checks)
        return candidates_like(
            read,
            inputs,
            recipe,
            most_flops=most,
            causal=budget.causal,
            architecture=architecture,
            sequence_length=length,
            vocab_size=self.vocab_size,
            reach=self.reach,
            seed=self.seed,
        )

    def _write(self, folder: Path, proposal: Proposal, data: Any, recipe: dict[str, Any]) -> None:
        from moejax.experimental_design.summary import study_text

        chosen = proposal.candidates.only(proposal.plan.order)
        written = ["next.json"]
        with out_set(folder):
            if chosen.architectures:
                if "warmup_tokens" not in recipe.get("optimizer", {}):
                    warmup = int(min(chosen.design.tokens) // 100)
                    recipe = {**recipe, "optimizer": {**recipe.get("optimizer", {}), "warmup_tokens": warmup}}
                law, what = self.form or self.law, ", ".join(self.target)
                says = f"{len(chosen)} runs that reduce the uncertainty of {what} under {law}."
                text = study_text("next", chosen, recipe, says)
                write_text(folder / "study.py", text)
                written.append("study.py")
            write_json(folder / "next.json", data)
        say(f"Wrote {' and '.join(written)} to {folder}.")
        if not chosen.architectures:
            say(
                "No study.py: rows of --candidates are not architectures; to train them, write a config with their "
                "architectures for moejax study (docs/studies.md)."
            )


def _target(text: str) -> tuple[str, dict[str, float]]:
    what, _, rest = text.partition(":")
    return what, numbers(rest.split(","), "--target") if rest else {}


def _swept(settings: str, laws: Iterable[type], tried: np.ndarray) -> Iterator[str]:
    """Yield a warning if rows of the table are the best runs of sweeps, because their FLOPs count a single run.

    Args:
      tried: number of settings in the sweep of every row.
    """
    import numpy as np

    swept = tried[tried > 1]
    if not len(swept):
        return
    names = listed([name.strip() for name in settings.split(",")])
    own = [name for law in laws for name in law.outputs if name != "loss"]
    what = f"a single run has no best {own[0]}" if own else "at other settings, the loss of a run exceeds the law's"
    is_every = len(swept) == len(tried)
    which = "Every run of the table is" if is_every else f"{len(swept)} of {len(tried)} runs of the table are"
    usual = int(np.median(swept))
    yield (
        f"{which} the best of a sweep over {names}, but the FLOPs here count one run. For new runs, "
        f"sweep {names} too, or set it by its law: {what}. A sweep of {usual} runs, as in the table, costs {usual} "
        "times these FLOPs."
    )
