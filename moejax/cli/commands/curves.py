"""Fit a law to loss curves, and predict annealed losses and the best schedule."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from moejax.cli.options import argument, given, option, out
from moejax.cli.out_folder import out_folder
from moejax.cli.process import compile_quickly
from moejax.cli.progress import progress
from moejax.cli.shared import Length, LevelOptions, Seed, numbers, pairs
from moejax.errors import UserError
from moejax.ranges import whole
from moejax.say import say
from moejax.wording import listed

if TYPE_CHECKING:
    from moejax.curves.read_curves import Curves

EXAMPLE = """\
moejax curves runs/quickstart --only 'small/*'
moejax curves cosine.csv constant.csv wsd.csv --warmup 2000 --hold-out wsd --out curves
moejax curves curves.csv --map step=iteration --map loss=val_loss --law momentum
moejax curves curves.csv --predict steps=48K,decay_share=.2 --predict steps=96K,decay_share=1,decay_shape=cosine
moejax curves curves.csv --best 48K --out curves
moejax curves new.csv --law curves/fit.json --predict steps=96K,decay_share=.2"""
READING, TRUSTING, ASKING = "reading", "trusting", "asking the fitted law"


@dataclass(frozen=True, kw_only=True)
class CurvesCommand(LevelOptions, name="curves"):
    """Fit a law to loss curves. The law predicts the loss under any learning-rate schedule, and the best schedule."""

    curves: tuple[str, ...] = argument(
        "tables (CSV, Parquet, JSON lines) with columns step or tokens, lr, loss and, for several runs, run; "
        "metrics.jsonl of a training run or study, or a folder with such files; also s3://… and gs://…; TensorBoard "
        "folders; MLflow databases and folders",
        metavar="CURVES",
    )
    law: str = option(
        "multi_power",
        "multi_power or momentum; or an existing fit: a folder or fit.json of this command",
        metavar="NAME",
    )
    map: tuple[str, ...] = option(
        (),
        "take moejax's column OURS from the table's column THEIRS, or from arithmetic on the table's columns",
        metavar="OURS=THEIRS",
        group=READING,
    )
    loss: str | None = option(
        None, "column of the losses, such as validation_loss (default: loss)", metavar="COLUMN", group=READING
    )
    where: tuple[str, ...] = option(
        (), "rows to read, such as \"split == 'train'\" (default: all)", metavar="CONDITION", group=READING
    )
    only: tuple[str, ...] = option(
        (), "curves to read, such as 'small/*' (default: all)", metavar="PATTERN", group=READING
    )
    warmup: Annotated[int, whole(0, 1_000_000)] | None = option(
        None, "warm-up steps, if the log does not contain the warm-up", metavar="STEPS", group=READING
    )
    fix: tuple[str, ...] = option((), "hold a coefficient at a value", metavar="NAME=VALUE")
    hold_out: tuple[str, ...] = option((), "curves to predict, but not to fit", metavar="PATTERN", group=TRUSTING)
    blocks: Annotated[int, whole(1, 10**9)] | None = option(
        None,
        "number of segments per curve that the bootstrap resamples, each with at least two points; use 1 if there are "
        "many curves (default: 8)",
        metavar="COUNT",
        group=TRUSTING,
    )
    starts: Annotated[int, whole(1, 1_000_000)] = option(
        128, "number of initial guesses", metavar="COUNT", group=TRUSTING
    )
    seed: Seed = option(0, "seed of the initial guesses", metavar="NUMBER", group=TRUSTING)
    predict: tuple[str, ...] = option(
        (),
        "predict the final loss of a schedule, given by steps, decay_share, decay_shape, final_share, warmup and peak",
        metavar="NAME=VALUE,…",
        group=ASKING,
    )
    best: Length | None = option(
        None, "find the schedule with the lowest loss after this number of steps", metavar="STEPS", group=ASKING
    )
    out: Path | None = out(
        "write fit.json, summary.txt, predictions.csv and a figure",
        "fit.json",
        "summary.txt",
        "predictions.csv",
        "curves.png",
        "curves.svg",
        "curves.csv",
        "schedule.csv",
    )

    def prepare(self) -> None:
        """Compile without XLA's fusion emitters, which halves the compile time (``compile_quickly``)."""
        compile_quickly()

    def run(self) -> None:
        from moejax.curves.loss_curves import fit_curves, held_out_curve
        from moejax.report import render
        from moejax.report.curves import best_for, check_best, last_loss, load_saved, schedule_of, summary, write

        read, fixed, saved = self._read(), numbers(self.fix, "--fix"), load_saved(self.law)
        held_out = read.matching(self.hold_out) if self.hold_out else ()
        if saved is not None:
            if of_fit := {"fix", "blocks", "starts", "seed"} & {*given(self)}:
                raise UserError(
                    f"--{min(of_fit)} changes how a law is fitted, but {self.law} is already fitted; name a law to fit."
                )
            known = {curve.name for curve in read.curves if curve.data_hash in saved.hashes}
            held_out = tuple(name for name in read.names if name in held_out or name not in known)
        fitted, tested = read.without(held_out), read.only(held_out)
        if not fitted.curves and saved is None:
            raise UserError(f"Holding out {listed(held_out)} leaves no curve to fit; hold out fewer.")
        # Settings that a schedule omits are taken from the first curve.
        like = fitted if fitted.curves else read
        schedules = {text: schedule_of(text, pairs(text.split(","), "--predict"), like) for text in self.predict}
        if self.best is not None:
            check_best(self.best, like, fixed if saved is None else saved.fit.coefficients)
        with out_folder(self.out), progress() as show:
            how = {"blocks": self.blocks, "fixed": fixed, "seed": self.seed, "starts": self.starts}
            result = fit_curves(fitted, self.law, **how, progress=show) if saved is None else saved.fit
            tests = [held_out_curve(result, curve, self.level) for curve in tested.curves]
            answers = {text: last_loss(result, rates, self.level) for text, rates in schedules.items()}
            best = best_for(result, like, self.best) if self.best is not None else None
            said = summary(result, like, tests, answers, best, self.level, saved)
            if self.out:
                written = write(self.out, said, result, read, tests, best, self.level)
                say(f"Wrote {listed(written)} to {self.out}.")
        render.show(said, as_json=self.json)

    def _read(self) -> Curves:
        from moejax.curves.read_curves import read_curves
        from moejax.run_sources.source import has_prefix

        for path in self.curves:
            if "://" not in path and not has_prefix(path) and not Path(path.partition("#")[0]).exists():
                raise UserError(f"{path} does not exist; name tables of curves, or folders with metrics.jsonl.")
        read = read_curves(
            list(self.curves),
            mapping=pairs(self.map, "--map"),
            loss=self.loss,
            only=self.only,
            warmup=self.warmup,
            where=self.where,
        )
        for note in read.notes:
            say(note)
        return read
