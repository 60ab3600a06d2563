"""Choose an architecture for a budget under a law, with shadow prices of all constraints."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from moejax.cli.options import REQUIRED, hidden, option, out
from moejax.cli.out_folder import out_set
from moejax.cli.process import compile_quickly
from moejax.cli.progress import progress
from moejax.cli.shared import (
    LAW,
    SEQUENCE_LENGTH,
    ArchitectureOptions,
    BootstrapOptions,
    ConventionOptions,
    LatexOptions,
    Length,
    Positive,
    Share,
    law_or_fit,
    named_law,
    numbers,
    pairs,
)
from moejax.errors import UserError
from moejax.folder import atomic_write, write_json, write_text, written_in
from moejax.quantities import ASSUMED_MFU, parse
from moejax.ranges import NotNegative, whole
from moejax.say import say
from moejax.wording import command

if TYPE_CHECKING:
    from moejax.design.constraint import Constraint
    from moejax.design.decide import DesignResult
    from moejax.design.measures import CostAssumptions
    from moejax.design.problem import Problem
    from moejax.plan.topology import Topology
    from moejax.result import Result

EXAMPLE = """\
moejax design --law zhao --flops 1e24 --topology h100:64x8
moejax design --law all --flops 1e24 --params-total 1T
moejax design --law effective_params --flops 1e22 --hold expansion=16 --arch qwen3-30b-a3b --out designed
moejax design --law zhao --target-loss 2.0 --minimize lifetime_flops --served-tokens 10T --params-total 1T
moejax design --law runs/fit/fit.json --runs runs.csv --bootstrap 200 --flops 1e21 --params-total 30B
moejax design --law chinchilla --sweep flops=1e20:1e26 --out frontier
moejax design --law data_constrained --flops 1e22 --unique-tokens 25B
moejax design --law leverage --flops 1e22 --sweep expert_expansion=2:128 --sweep granularity=1:32 --out landscape"""
AT_MOST, ALSO, COUNTING, AROUND = "at most", "also", "counting", "around the optimum"
SHAPE = "the shape: dimensions that the law does not use are taken from --arch or --config"
MEASURES = (
    "flops",
    "params_total",
    "params_active",
    "tokens",
    "unique_tokens",
    "inference_flops",
    "lifetime_flops",
    "kv_bytes",
    "chip_hours",
)
"""Measures with an option for their maximum."""


@dataclass(frozen=True, kw_only=True)
class DesignCommand(ArchitectureOptions, BootstrapOptions, ConventionOptions, LatexOptions, name="design"):
    """Choose sizes, shape and tokens for a budget. Report the shadow price of every constraint (the change of the
    optimum when its bound grows), and the flat region (the range in which a quantity may vary while the loss stays near
    the optimum).
    """

    law: str = option(REQUIRED, f"{LAW}; all: every published law", metavar="NAME|FIT|all", read=law_or_fit)
    constants: str | None = option(None, "a published set of constants (default: the law's first)", metavar="SET")
    minimize: str = option(
        "loss", "measure to minimize: loss or, with --target-loss, flops, lifetime_flops, …", metavar="MEASURE"
    )
    minimise: str | None = hidden(None)
    """Earlier spelling of ``--minimize``."""
    flops: float | None = option(None, "training FLOPs", metavar="NUMBER", group=AT_MOST)
    params_total: float | None = option(None, "all parameters", metavar="NUMBER", group=AT_MOST)
    params_active: float | None = option(None, "active parameters per token", metavar="NUMBER", group=AT_MOST)
    tokens: float | None = option(None, "training tokens", metavar="NUMBER", group=AT_MOST)
    unique_tokens: float | None = option(
        None,
        "number of unique tokens; more training tokens repeat them, if the law models repetition",
        metavar="NUMBER",
        group=AT_MOST,
    )
    inference_flops: float | None = option(None, "FLOPs to serve one token", metavar="NUMBER", group=AT_MOST)
    lifetime_flops: float | None = option(
        None, "FLOPs to train and to serve --served-tokens", metavar="NUMBER", group=AT_MOST
    )
    kv_bytes: float | None = option(
        None, "bytes of the key-value cache at --context (with --shape)", metavar="NUMBER", group=AT_MOST
    )
    chip_hours: float | None = option(None, "chip-hours of training", metavar="NUMBER", group=AT_MOST)
    target_loss: float | None = option(None, "loss to reach, if --minimize is not loss", metavar="NATS", group=AT_MOST)
    topology: str | None = option(
        None,
        "chips to train on, such as h100:64x8 (64 hosts of 8 GPUs) or v5p:8x8x8; the model fits in their memory by the "
        "estimates of `moejax plan`, and config.py has the mesh, remat policy and microbatches",
        metavar="CHIP:SHAPE",
        group=AT_MOST,
        excludes=("chips", "memory", "chip_flops"),
    )
    memory: float | None = option(
        None,
        "memory of one chip, for parameters and optimizer state only, such as 80G",
        metavar="BYTES",
        group=AT_MOST,
        needs=("chips",),
    )
    days: float | None = option(None, "days of training on all chips", metavar="NUMBER", group=AT_MOST)
    chips: Annotated[int, whole(1, 10**9)] | None = option(
        None, "number of chips, for --memory and --days", metavar="COUNT", group=AT_MOST
    )
    hold: tuple[str, ...] = option(
        (),
        "fix a variable, given by its name or by its letter in the law's paper, such as sparsity=0.9 or S=0.9",
        metavar="NAME=VALUE",
        group=ALSO,
    )
    range: tuple[str, ...] = option((), "bounds of a variable", metavar="NAME=LOW:HIGH", group=ALSO)
    convention: str | None = option(
        None,
        "convention for a shape's FLOPs: exact, exact-causal, 6-params-active, tian, abnar, … (default: "
        "6-params-active if the FLOPs of a fit's runs are 6·N·D, else exact)",
        metavar="NAME",
        group=COUNTING,
    )
    sequence_length: Length | None = option(
        None, "sequence length of training (default: the config's, or 4096)", metavar="TOKENS", group=COUNTING
    )
    context: Length = option(32_768, "tokens in the key-value cache, for --kv-bytes", metavar="TOKENS", group=COUNTING)
    served_tokens: NotNegative = option(0.0, "tokens served, for --lifetime-flops", metavar="NUMBER", group=COUNTING)
    chip_flops: Positive = option(989e12, "peak FLOP/s of one chip", metavar="NUMBER", group=COUNTING)
    mfu: Share = option(ASSUMED_MFU, "assumed share of the peak FLOP/s", metavar="SHARE", group=COUNTING)
    shape: bool = option(False, "search over shapes with exact counts, instead of over sizes first", group=SHAPE)
    exact_shape: bool = option(
        False,
        "also try the integers nearest to the optimum, instead of only hardware-friendly multiples",
        group=SHAPE,
    )
    within: Positive = option(
        0.001, "maximum increase of the loss within the flat region", metavar="NATS", group=AROUND
    )
    sweep: tuple[str, ...] = option(
        (),
        "compute the frontier along a constraint, with a figure in --out; if given twice, a landscape over two "
        "variables",
        metavar="NAME=LOW:HIGH",
        group=AROUND,
    )
    out: Path | None = out(
        "write design.json, config.py to train it, and the figure of loss against compute",
        *("design.json", "config.py", "frontier.png", "landscape.png"),
        *(f"loss-vs-compute.{suffix}" for suffix in ("png", "pdf", "csv")),
    )

    def check(self) -> None:
        if self.law == "all" and (self.sweep or self.constants or self.runs):
            raise UserError("--sweep, --constants and --runs need a single law; name it with --law instead of all.")
        if len(self.sweep) > 2:
            raise UserError(
                f"--sweep was given {len(self.sweep)} times; give it once for a frontier, twice for a landscape."
            )
        if self.topology and (self.law == "all" or self.sweep):
            raise UserError(
                "--topology designs one model under a single law; name the law and leave out --sweep, or give --chips "
                "and --memory."
            )
        if self.days is not None and not (self.chips or self.topology):
            raise UserError("--days needs --topology or --chips; give one of them.")

    def prepare(self) -> None:
        """Compile without LLVM optimization: these programs run for about a second, so compilation dominates."""
        compile_quickly(optimized=False)

    def run(self) -> None:
        from moejax.report import render

        with out_set(self.out):
            if self.law == "all":
                result = self._all_laws()
            else:
                result = [self._one_law, self._frontier, self._landscape][len(self.sweep)]()
            if self.out:
                write_json(self.out / "design.json", result.data)
        if self.out:
            say(f"Wrote {', '.join(written_in(self.out))} to {self.out}.")
        render.show(result, as_json=self.json, as_latex=self.latex)

    @functools.cached_property
    def _topology(self) -> Topology | None:
        from moejax.plan.topology import parse

        return None if self.topology is None else parse(self.topology)

    def _one_law(self) -> Result:
        from moejax.design.decide import decide, on_chips
        from moejax.design.summary import summary, with_chips
        from moejax.fit.fit_result import FitResult
        from moejax.plan.design_that_fits import design_that_fits

        name, law, known = named_law(self.law, self.constants)
        like, resampled = self.architecture(), self.resamples_of(known) if self.runs else None

        def designed(*more: Constraint) -> DesignResult:
            return decide(
                self._problem(law, (*constraints, *more), known),
                like=like,
                within=self.within,
                known=known,
                exact=self.exact_shape,
                resampled=resampled,
                level=self.level,
            )

        constraints = self._constraints(least=0 if self.topology else 1)
        if self._topology is None:
            decision = designed()
        else:
            with progress() as show:
                decision = design_that_fits(designed, self._topology, show)
        problem = decision.optimum.problem
        if self.out and decision.built is not None:
            write_text(self.out / "config.py", decision.config())
            topology = self.topology or "CHIP:SHAPE"
            plan = command("moejax", "plan", f"--config={self.out}/config.py", "--topology", topology, "--search")
            say(f"To plan its training, run {plan}")
        if self.out:
            # The import of figures is slow, and few designs are drawn.
            from moejax.report.designs import draw_compute

            read = None
            if self.runs and isinstance(known, FitResult):
                read = self.read(self.runs, type(law), usual=known.reading, quiet=True)
            draw_compute(self.out, decision, known, read, Path(self.law), self.level)
        result = self._with_assumptions(summary(name, decision), {type(law).__name__: problem})
        if isinstance(known, FitResult):
            # The import takes time, and published laws do not need it.
            from moejax.fit.summary import without_intervals

            result = replace(result, warnings=[*without_intervals(known, decision.intervals), *result.warnings])
        if decision.built is not None:
            # The import takes time, and designs without a model do not need it.
            from moejax.huggingface.conversion import exports_as

            said = exports_as(decision.built.architecture)
            result = replace(result, notes=[*result.notes, said], data=result.data | {"exports_as": said})
        if self.chips:
            result = with_chips(result, on_chips(decision, self.chips), problem.assumptions)
        return result

    def _all_laws(self) -> Result:
        from moejax.design.decide import beyond, side_by_side
        from moejax.design.summary import laws_summary
        from moejax.laws import LAWS, PUBLISHED

        first = {name: next(iter(PUBLISHED[name].values())) for name in LAWS if PUBLISHED[name]}
        judged = {name: known.law for name, known in first.items() if "loss" in known.law.outputs}
        constraints = self._constraints()
        optima = side_by_side(judged, constraints, self._problem)
        decided = {name: one for name, one in optima.items() if not isinstance(one, str)}
        if not decided:
            raise UserError(
                f"No law has an optimum for these options; change a constraint, or give one law. "
                f"{'; '.join(f'{name}: {why}' for name, why in optima.items())}"
            )
        outside = {name: beyond(first[name], one) for name, one in decided.items()}
        problems = {name: one.problem for name, one in decided.items()}
        return self._with_assumptions(laws_summary(optima, constraints, outside), problems)

    def _frontier(self) -> Result:
        from moejax.design.constraint import Constraint
        from moejax.design.decide import beyond
        from moejax.design.frontier import frontier
        from moejax.design.summary import sweep_summary, with_extrapolation

        name, low, high = _range(self.sweep[0], "--sweep")
        label, law, known = named_law(self.law, self.constants)
        # Keep the upper bound as a constraint, because the problem chooses the swept quantity.
        others = (one for one in self._constraints(least=0) if one.name != name)
        problem = self._problem(law, (*others, Constraint(name=name, high=high)), known)
        rows = frontier(problem, name, low, high)
        if self.out:
            # The import of figures is slow, and few designs are drawn.
            from moejax.report.figures.optima import draw_frontier

            self._draw("frontier.png", lambda partial: draw_frontier(rows, name, label, partial))
        far = beyond(known, *(one.best for one in rows))
        result = with_extrapolation(sweep_summary(label, name, rows), "The best designs lie", far)
        return self._with_assumptions(result, {type(law).__name__: problem})

    def _landscape(self) -> Result:
        from moejax.design.decide import beyond
        from moejax.design.frontier import landscape
        from moejax.design.summary import landscape_summary, with_extrapolation

        first, second = (_range(text, "--sweep") for text in self.sweep)
        label, law, known = named_law(self.law, self.constants)
        problem = self._problem(law, self._constraints(least=0), known)
        optima = landscape(problem, first, second)
        if self.out:
            # The import of figures is slow, and few designs are drawn.
            from moejax.report.figures.optima import draw_landscape

            self._draw("landscape.png", lambda partial: draw_landscape(optima, label, partial))
        far = beyond(known, *itertools.chain.from_iterable(optima.optima))
        result = with_extrapolation(landscape_summary(label, optima), "The designs lie", far)
        return self._with_assumptions(result, {type(law).__name__: problem})

    def _draw(self, name: str, draw: Callable[[Path], None]) -> None:
        assert self.out is not None
        with atomic_write(self.out / name) as partial:
            draw(partial)

    def _with_assumptions(self, result: Result, problems: dict[str, Any]) -> Result:
        from moejax.design.summary import with_assumptions

        return with_assumptions(result, problems, self.unique_tokens)

    def _problem(self, law: Any, constraints: Sequence[Constraint], known: object = None) -> Problem:
        from moejax.design.decide import of_shapes
        from moejax.design.problem import of_sizes
        from moejax.laws.active_params import convention

        problem = of_sizes(
            law,
            constraints,
            active_params=convention(self.active_convention),
            goal=self.minimise or self.minimize,
            assumptions=self._assumptions(known),
        )
        return of_shapes(problem, self.architecture()) if self.shape else problem

    def _assumptions(self, known: object) -> CostAssumptions:
        from moejax.design.measures import CostAssumptions, checked_convention

        return CostAssumptions(
            convention=checked_convention(self.convention, known),
            sequence_length=self.sequence_length or self.architecture_and_length()[1] or SEQUENCE_LENGTH,
            context=self.context,
            served_tokens=self.served_tokens,
            chip_flops=self._topology.known_chip.flops_per_second if self._topology else self.chip_flops,
            mfu=self.mfu,
        )

    def _constraints(self, *, least: int = 1) -> tuple[Constraint, ...]:
        from moejax.design.constraint import Constraint, bounded, held

        chips = self._topology.chips if self._topology else self.chips or 0
        maxima = {name: getattr(self, name) for name in MEASURES} | {"loss": self.target_loss}
        constraints = [Constraint(name=name, high=value) for name, value in maxima.items() if value is not None]
        if self.memory is not None:
            constraints.append(Constraint(name="memory_bytes", high=self.memory * chips))
        if self.days is not None:
            constraints.append(Constraint(name="chip_hours", high=self.days * 24 * chips))
        for name, value in numbers(self.hold, "--hold").items():
            constraints += held({name.replace("-", "_"): value})
        for text in self.range:
            name, low, high = _range(text, "--range", equal=True)
            constraints += bounded({name: (low, high)})
        if len(constraints) < least:
            raise UserError(
                "Nothing constrains the design; give a budget, such as --flops 1e24 or --chips 512 --days 30."
            )
        return tuple(constraints)


def _range(text: str, option: str, *, equal: bool = False) -> tuple[str, float, float]:
    ((name, values),) = pairs([text], option).items()
    low, colon, high = values.partition(":")
    if not colon:
        raise UserError(f"{option} {text!r} has no bounds; write {option} NAME=LOW:HIGH.")
    bounds = parse(low), parse(high)
    if not (bounds[0] < bounds[1] or (equal and bounds[0] == bounds[1])):
        raise UserError(f"{option} {text!r} has bounds {low} and {high}; give the smaller bound first.")
    return name.replace("-", "_"), *bounds
