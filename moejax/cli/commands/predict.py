"""Predict the loss of a model by published laws or a fit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from moejax.cli.options import REQUIRED, option
from moejax.cli.process import compile_quickly
from moejax.cli.shared import (
    LAW,
    SEQUENCE_LENGTH,
    ArchitectureOptions,
    ConventionOptions,
    Length,
    is_fit,
    law_or_fit,
    numbers,
)
from moejax.errors import UserError
from moejax.quantities import format
from moejax.say import say

if TYPE_CHECKING:
    from moejax.laws.design import Design

EXAMPLE = "  moejax predict --law all --arch deepseek-v3.1 --tokens 14.8T"
DESIGN = "the design: values given here take precedence over those of --arch or --config"
DESIGN_OPTIONS = (
    "params_total",
    "params_active",
    "params_embedding",
    "tokens",
    "unique_tokens",
    "flops",
    "num_experts",
    "top_k",
    "num_shared_experts",
    "model_dim",
    "num_layers",
    "expert_hidden",
)
"""Fields of ``Design`` that have their own option."""
WHOLE = ("num_experts", "top_k", "model_dim", "num_layers", "expert_hidden")
"""Fields that are whole numbers in a model, although laws accept values in between. Shared experts are counted in
widths of a routed expert and may be fractional.
"""
Number = float | None


@dataclass(frozen=True, kw_only=True)
class PredictCommand(ArchitectureOptions, ConventionOptions, name="predict"):
    """Predict the loss and other outputs of published laws, or of a fit, for a model and its training tokens, and show
    how far the predictions extrapolate.
    """

    law: str = option(REQUIRED, f"{LAW}; all: every published law", metavar="NAME|FIT|all", read=law_or_fit)
    constants: str | None = option(None, "a published set of constants (default: the law's first)", metavar="SET")
    sequence_length: Length | None = option(
        None, "sequence length, for the FLOPs of --arch or --config (default: the config's, or 4096)", metavar="TOKENS"
    )
    params_total: Number = option(None, "total parameters, embeddings included", metavar="NUMBER", group=DESIGN)
    params_active: Number = option(
        None, "active parameters per token, embeddings included", metavar="NUMBER", group=DESIGN
    )
    params_embedding: Number = option(
        None,
        "embedding and unembedding parameters, included in both counts (default: 0)",
        metavar="NUMBER",
        group=DESIGN,
    )
    tokens: Number = option(None, "training tokens", metavar="NUMBER", group=DESIGN)
    unique_tokens: Number = option(
        None, "unique training tokens; more training tokens repeat them", metavar="NUMBER", group=DESIGN
    )
    flops: Number = option(None, "training FLOPs, forward and backward", metavar="NUMBER", group=DESIGN)
    num_experts: Number = option(None, "routed experts per MoE layer, 0 if dense", metavar="NUMBER", group=DESIGN)
    top_k: Number = option(None, "routed experts per token", metavar="NUMBER", group=DESIGN)
    num_shared_experts: Number = option(
        None, "shared experts, in widths of a routed expert", metavar="NUMBER", group=DESIGN
    )
    model_dim: Number = option(None, "width of the residual stream", metavar="NUMBER", group=DESIGN)
    num_layers: Number = option(None, "layers", metavar="NUMBER", group=DESIGN)
    expert_hidden: Number = option(
        None, "width of a routed expert, or of the feed-forward layer if dense", metavar="NUMBER", group=DESIGN
    )
    loss: Number = option(None, "loss in nats per token, for laws of scores", metavar="NUMBER", group=DESIGN)
    column: tuple[str, ...] = option(
        (), "value of a further column that a fitted formula reads", metavar="NAME=VALUE", group=DESIGN
    )

    def check(self) -> None:
        if self.law == "all" and self.constants is not None:
            raise UserError("--constants names constants of a single law; name that law with --law instead of all.")
        if self.column and not is_fit(self.law):
            raise UserError("--column applies only to fitted formulas; give --law FIT, or leave it out.")
        if is_fit(self.law) and self.constants is not None:
            raise UserError(
                f"--constants names a published set, but {self.law} is a fit with its own constants; leave it out."
            )

    def prepare(self) -> None:
        """Compile without LLVM optimization: each formula is computed once, so compilation dominates."""
        if not is_fit(self.law):
            compile_quickly(optimized=False)

    def run(self) -> None:
        from moejax.laws.predict import check_design, check_scale
        from moejax.report import render
        from moejax.report.laws import ask, ask_all, ask_fit, summary

        design = self.design()
        check_design(design)
        check_scale(design)
        unasked: dict[str, str] = {}
        if self.law == "all":
            answers, unasked = ask_all(design)
        else:
            answers = [ask_fit(self.law, design) if is_fit(self.law) else ask(self.law, self.constants, design)]
        render.show(summary(design, answers, unasked, self._assumed(), self._as_counted()), as_json=self.json)
        if not self.json:
            for law, why in unasked.items():
                say(f"not evaluated: {law}: {why}")

    def design(self) -> Design:
        """Return the design that the options describe."""
        from moejax.laws.accounting import design_of, flops_per_token
        from moejax.laws.design import Design

        typed = {name: value for name in DESIGN_OPTIONS if (value := getattr(self, name)) is not None}
        columns = numbers(self.column, "--column")
        if own := next((name for name in columns if name in (*DESIGN_OPTIONS, "loss")), ""):
            raise UserError(f"--column {own}=… has its own option; give --{own.replace('_', '-')}.")
        columns |= {} if self.loss is None else {"loss": self.loss}
        architecture, length = self.architecture_and_length()
        if architecture is None:
            return self._by_convention(Design(**typed, columns=columns or None))
        implied = replace(design_of(architecture, self.tokens), **typed, columns=columns or None)
        if implied.flops is None and implied.tokens is not None:
            per_token = flops_per_token(architecture, self.sequence_length or length or SEQUENCE_LENGTH).training
            return replace(implied, flops=float(per_token * implied.tokens))
        return implied

    def _as_counted(self) -> Design | None:
        from moejax.laws.budget.peak_rate import counted

        architecture, length = self.architecture_and_length()
        if architecture is None or self.tokens is None or self.flops is not None:
            return None
        return counted(architecture, self.tokens, self.sequence_length or length or SEQUENCE_LENGTH)

    def _by_convention(self, design: Design) -> Design:
        """Return the design with active parameters that follow the given convention, and tokens that follow from its
        FLOPs.
        """
        from moejax.laws.active_params import convention
        from moejax.laws.dense.chinchilla import FLOPS_PER_PARAM_AND_TOKEN

        if self.active_convention is None:
            return design
        taken = convention(self.active_convention)
        lacking = [field for field in ("params_total", "num_experts", "top_k") if getattr(design, field) is None]
        if lacking or design.params_active is not None:
            what = "params_active is given" if not lacking else f"these are missing: {', '.join(lacking)}"
            raise UserError(
                "--active-convention computes active parameters from --params-total, --num-experts and --top-k, but "
                f"{what}. Leave out --active-convention, or give only these three."
            )
        design = replace(design, params_active=float(taken(design.params_total, float(design.sparsity))))
        if design.tokens is None and design.flops is not None:
            return replace(design, tokens=design.flops / (FLOPS_PER_PARAM_AND_TOKEN * design.params_active))
        return design

    def _assumed(self) -> str:
        from moejax.laws.active_params import convention, sentence

        said = [] if self.active_convention is None else [sentence(convention(self.active_convention))]
        given = {name: getattr(self, name) for name in WHOLE}
        broken = [f"{name} {format(value)}" for name, value in given.items() if value is not None and value % 1]
        if broken:
            said.append(f"No model has {' or '.join(broken)}; the law interpolates between models.")
        return " ".join(said)
