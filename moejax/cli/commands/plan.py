"""Compile a training run for chips that need not be present."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from moejax.cli.options import REQUIRED, option, out
from moejax.cli.out_folder import out_set
from moejax.cli.progress import progress, waiting
from moejax.cli.shared import ConfigOptions, Share
from moejax.errors import UserError
from moejax.folder import atomic_write
from moejax.quantities import ASSUMED_MFU
from moejax.ranges import NotNegative, whole
from moejax.stored import write_json

if TYPE_CHECKING:
    from moejax.plan.plan import Plan
    from moejax.plan.topology import Topology
    from moejax.train.training import Training

COMPILED = 6
"""Default number of candidates that a search compiles."""
EXAMPLE = """\
  moejax plan --config=configs/plans/qwen3_30b_a3b.py --topology v5p:4x4x4
  moejax plan --config=configs/plans/moe_mini.py --topology v5e:16x16 --search
  moejax plan --config=configs/plans/qwen3_30b_a3b.py --topology h100:8x8 --search --price 2.5
  moejax plan --config=configs/plans/qwen3_30b_a3b.py --topology v5p:4x4x4 --estimate   # no compiler of TPUs needed
  moejax plan --config=configs/plans/qwen3_30b_a3b.py --topology v5p:4x4x4 --search --estimate
  moejax plan --config=configs/tiny.py --topology cpu:8 --mesh expert=4,tensor=2 --json"""


@dataclass(frozen=True, kw_only=True)
class PlanCommand(ConfigOptions, name="plan"):
    """Compile a training step for accelerators that need not be present, and report memory, communication, time and
    cost.
    """

    config: str = option(REQUIRED, "config file; --config.a.b=VALUE changes one setting", metavar="FILE.py")
    topology: str = option(
        REQUIRED,
        "v5p:8x8x8, 2xv5p:4x4x4 for two slices, …; h100:8x8 for 8 hosts of 8 GPUs; cpu:8 for this CPU's devices",
        metavar="CHIP:SHAPE",
    )
    mesh: str | None = option(
        None,
        "sizes of the axes data, fsdp, expert and tensor per slice; -1 takes the remaining devices; other axes have "
        "size 1 (if one axis is named, data takes the rest)",
        metavar="AXIS=N,…",
    )
    remat: str | None = option(
        None,
        "recomputation in the backward pass: none, dots, full, or everything except named values, like "
        "attn_out+moe_gate_up",
        metavar="POLICY",
    )
    microbatches: Annotated[int, whole(1, 1_000_000)] | None = option(
        None, "number of microbatches per step (gradient accumulation)", metavar="N"
    )
    estimate: bool = option(
        False,
        "estimate memory and time with formulas, with --search of all candidates; this takes seconds and does not need "
        "the chip's compiler",
        excludes=("compile",),
    )
    search: bool = option(False, "search over meshes, remat policies and microbatches, and rank the candidates")
    compile: Annotated[int, whole(1, 1_000)] | None = option(
        None,
        f"compile at most N candidates of --search (default: {COMPILED}, and more if none of them fits)",
        metavar="N",
        needs=("search",),
    )
    price: NotNegative | None = option(None, "price of one chip for an hour, in any currency", metavar="COST")
    mfu: Share = option(
        ASSUMED_MFU,
        "expected share of the peak FLOP/s, for the expected time of --estimate",
        metavar="SHARE",
        needs=("estimate",),
    )
    out: Path | None = out(
        "write plan.json and, if compiled, the program's text, program.txt", "plan.json", "program.txt"
    )

    def run(self) -> None:
        from moejax.plan import process
        from moejax.plan.analytic_estimate import analytic_estimate
        from moejax.plan.plan import check_plan
        from moejax.plan.search import REMEDY_TRIES, ranked, remedies, search, with_mesh_that_fits
        from moejax.plan.summary import (
            estimate_summary,
            estimated_search_summary,
            search_summary,
            summary,
            too_large,
        )
        from moejax.plan.topology import check_compiler, parse
        from moejax.report import render

        topology = parse(self.topology)
        if self.price is not None and topology.chip is None:
            raise UserError(
                f"--price needs the time of a step, which moejax does not estimate for {topology.name}; leave it "
                "out, or plan for TPUs or GPUs."
            )
        given = self._training()
        training = with_mesh_that_fits(given, topology) if self.search else given
        if self.estimate:
            check_plan(training, topology)
            with out_set(self.out):
                if self.search:
                    candidates, is_config = ranked(training, topology), training is given
                    result = estimated_search_summary(candidates, self.price, self.mfu, is_config=is_config)
                else:
                    estimated = analytic_estimate(training, topology)
                    result = estimate_summary(training, topology, estimated, self.price, self.mfu)
                if self.out is not None:
                    write_json(self.out / "plan.json", result.data)
            render.show(result, as_json=self.json)
            return
        with out_set(self.out):
            if self.search:
                check_compiler(topology)
                with progress() as show:
                    plans = search(training, topology, process.plan, compiled=self.compile or COMPILED, progress=show)
                result = search_summary(plans, self.price)
            else:
                plans = [_plan(training, topology, self.out)]
                result = summary(plans[0], self.price)
            if self.out is not None:
                write_json(self.out / "plan.json", result.data)
        render.show(result, as_json=self.json)
        if not plans[0].fits:
            tries = REMEDY_TRIES if self.compile is None else self.compile - len(plans)
            with progress() as show:
                fitting = remedies(training, topology, process.plan, tries=tries, progress=show)
            raise UserError(too_large(plans[0], fitting))

    def _training(self) -> Training:
        from moejax.cli.config_file import load
        from moejax.plan.topology import slice_mesh
        from moejax.train.training import Training, choose_hyperparameters

        training = choose_hyperparameters(load(Training, self.config, self.overrides)).training
        recipe = training.recipe
        if self.mesh is not None:
            recipe = replace(recipe, mesh=replace(recipe.mesh, **slice_mesh(self.mesh)))
        if self.remat is not None:
            recipe = replace(recipe, runtime=replace(recipe.runtime, remat=self.remat))
        if self.microbatches:
            recipe = replace(recipe, microbatches=self.microbatches)
        return replace(training, recipe=recipe)


def _plan(training: Training, topology: Topology, out: Path | None) -> Plan:
    from moejax.plan import process

    with waiting(f"compiling {training.name} for {topology.name}"):
        if out is None:
            return process.plan(training, topology)
        with tempfile.TemporaryDirectory() as between:
            text = Path(between) / "program.txt"
            plan = process.plan(training, topology, text_to=text)
            # A program that does not fit has no text.
            if text.exists():
                with atomic_write(out / text.name) as partial:
                    shutil.copyfile(text, partial)
            return plan
