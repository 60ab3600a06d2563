"""Print nearly optimal ranges of active experts G, shared share S and active share N_a/N (Zhao et al.)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from moejax.cli.options import argument, hidden, option
from moejax.cli.process import compile_quickly
from moejax.cli.shared import LevelOptions, is_fit, law_or_fit, named_law
from moejax.errors import UserError
from moejax.ranges import NumberRange

EXAMPLE = """\
moejax ranges
moejax ranges deepseek-v3.1 kimi-k2 --law zhao/fit.json
moejax ranges --params-total 671B --params-active 37B --tolerance 0.002 --gain 0.001 --gain 0.005"""


def _refuse_budget(flops: str) -> float:
    raise UserError(
        "Ranges do not depend on a budget, since the loss term of tokens is the same for all designs. Run moejax "
        f"design --law zhao --flops {flops} --params-total N to get params_active, and then moejax ranges "
        "--params-total N --params-active with that number"
    )


Nats = Annotated[float, NumberRange(0, 100, without_low=True, without_high=True)]


@dataclass(frozen=True, kw_only=True)
class RangesCommand(LevelOptions, name="ranges"):
    """Print practical ranges under a five-factor law: active experts G and shared share S with a loss near the best,
    and the largest active share N_a/N at which more active parameters pay off (Tables 3 and 4, Algorithm 1 of Zhao et
    al.).
    """

    models: tuple[str, ...] = argument(
        "published models, at their authors' sizes (default: the nine of Table 3)", metavar="MODEL", default=()
    )
    law: str = option(
        "zhao",
        "a five-factor law: a law or paper name (`moejax laws` lists them), or the path of a fit.json or of the "
        "folder that contains it",
        metavar="NAME|FIT",
        read=law_or_fit,
    )
    params_total: Annotated[float, NumberRange(1000, 1e18, without_high=True)] | None = option(
        None, "total parameters N of your model", metavar="NUMBER", needs=("params_active",), excludes=("models",)
    )
    params_active: Annotated[float, NumberRange(1000, 1e18, without_high=True)] | None = option(
        None, "active parameters N_a of your model", metavar="NUMBER", needs=("params_total",)
    )
    tolerance: Nats = option(
        0.001, "maximum increase of the loss within a range of G or S, in nats per token", metavar="NATS"
    )
    gain: tuple[Nats, ...] = option(
        (),
        "minimum decrease of the loss per step of N_a/N, in nats per token (default: 0.001 and 0.005)",
        metavar="NATS",
    )
    step: Annotated[float, NumberRange(0.001, 0.5)] = option(0.01, "step of N_a/N in Algorithm 1", metavar="SHARE")
    active_experts: Annotated[float, NumberRange(0, 1e6, without_low=True, without_high=True)] | None = option(
        None, "G at which N_a/N is computed (default: the law's best)", metavar="NUMBER"
    )
    shared_share: Annotated[float, NumberRange(0, 1)] | None = option(
        None, "S at which N_a/N is computed (default: the law's best)", metavar="SHARE"
    )
    flops: float | None = hidden(None, read=_refuse_budget)

    def check(self) -> None:
        total, active = self.params_total, self.params_active
        if total is not None and active is not None and active > total:
            raise UserError(f"--params-active is {active:g}; give at most --params-total, {total:g}.")

    def prepare(self) -> None:
        """Compile without LLVM optimization: each formula is computed once, so compilation dominates."""
        compile_quickly(optimized=False)

    def run(self) -> None:
        from moejax.float64 import float64
        from moejax.laws import called
        from moejax.laws.mixtures.five_factor import FiveFactor
        from moejax.papers.zhao.ranges import GAINS, Model, RangeLimits, published_models, ranges
        from moejax.report import render

        name, law, known = named_law(self.law, None)
        if not isinstance(law, FiveFactor):
            raise UserError(
                f"{self.law} is a fit of the law {called(type(law))}, but ranges need a five-factor law; give --law "
                "zhao, or a fit by `moejax fit --law zhao --out` or `--recipe zhao`."
            )
        if self.params_total is not None and self.params_active is not None:
            models, sizes = [Model("yours", self.params_total, self.params_active)], ""
        else:
            models = published_models(self.models)
            printed = "as their authors state them" if self.models else "as Table 3 prints them"
            sizes = f"Sizes are {printed}; some include embeddings."
        asked = RangeLimits(
            tolerance=self.tolerance,
            gains=self.gain or GAINS,
            step=self.step,
            active_experts=self.active_experts,
            shared_share=self.shared_share,
            level=self.level,
        )
        with float64():
            result = ranges(law, self.law if is_fit(self.law) else name, models, sizes, known, asked)
        render.show(result, as_json=self.json)
