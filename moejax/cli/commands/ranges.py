"""Print ranges of G, S and N_a/N that are nearly optimal, or still pay (Zhao et al.)."""

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
        f"Ranges do not depend on a budget, since tokens add the same loss everywhere. moejax design --law zhao "
        f"--flops {flops} --params-total N gives params_active; then run moejax ranges --params-total N "
        f"--params-active with that number"
    )


Nats = Annotated[float, NumberRange(0, 100, without_low=True, without_high=True)]


@dataclass(frozen=True, kw_only=True)
class RangesCommand(LevelOptions, name="ranges"):
    """Print practical ranges under a five-factor law: active experts G and shared share S within a loss of the best,
    and the active share N_a/N up to which more active parameters pay (Tables 3 and 4, Algorithm 1 of Zhao et al.).
    """

    models: tuple[str, ...] = argument(
        "published models, at their authors' sizes (the nine of Table 3)", metavar="MODEL", default=()
    )
    law: str = option(
        "zhao",
        "a five-factor law, or fit.json of `moejax fit --out`, or its folder",
        metavar="NAME|FIT",
        read=law_or_fit,
    )
    params_total: Annotated[float, NumberRange(1000, 1e18, without_high=True)] | None = option(
        None, "N of your model", metavar="NUMBER", needs=("params_active",), excludes=("models",)
    )
    params_active: Annotated[float, NumberRange(1000, 1e18, without_high=True)] | None = option(
        None, "its N_a", metavar="NUMBER", needs=("params_total",)
    )
    tolerance: Nats = option(0.001, "loss above the best that a range of G or S allows, nats per token", metavar="NATS")
    gain: tuple[Nats, ...] = option(
        (), "minimum gain of one more step of N_a/N, nats per token (0.001 and 0.005)", metavar="NATS"
    )
    step: Annotated[float, NumberRange(0.001, 0.5)] = option(0.01, "step of N_a/N in Algorithm 1", metavar="SHARE")
    active_experts: Annotated[float, NumberRange(0, 1e6, without_low=True, without_high=True)] | None = option(
        None, "G at which N_a/N is asked (the law's best)", metavar="NUMBER"
    )
    shared_share: Annotated[float, NumberRange(0, 1)] | None = option(
        None, "S at which N_a/N is asked (the law's best)", metavar="SHARE"
    )
    flops: float | None = hidden(None, read=_refuse_budget)

    def check(self) -> None:
        total, active = self.params_total, self.params_active
        if total is not None and active is not None and active > total:
            raise UserError(f"--params-active is {active:g}; give at most --params-total, {total:g}.")

    def prepare(self) -> None:
        """Reduce the compile time of the law's formulas, each of which is computed once."""
        compile_quickly(optimised=False)

    def run(self) -> None:
        from moejax.float64 import float64
        from moejax.laws import called
        from moejax.laws.mixtures.five_factor import FiveFactor
        from moejax.papers.zhao.ranges import GAINS, Model, RangeLimits, published_models, ranges
        from moejax.report import render

        name, law, known = named_law(self.law, None)
        if not isinstance(law, FiveFactor):
            raise UserError(
                f"{self.law} is of the law {called(type(law))}, and ranges are those of a five-factor law; give "
                "--law zhao, or the fit that `moejax fit --law zhao --out` or `--recipe zhao` wrote."
            )
        if self.params_total is not None and self.params_active is not None:
            models, sizes = [Model("yours", self.params_total, self.params_active)], ""
        else:
            models = published_models(self.models)
            printed = "as their authors state them" if self.models else "as Table 3 prints them"
            sizes = f"Sizes are {printed}; embeddings are part of some."
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
