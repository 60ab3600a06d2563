"""Define the options of ``moejax predict``."""

from __future__ import annotations

import argparse

from moejax.cli.number import number
from moejax.cli.parsers.options import (
    add_active_convention,
    add_architecture_arguments,
    add_repeated,
    add_sequence_length,
)
from moejax.cli.process import compile_quickly
from moejax.cli.validation import law_or_fit
from moejax.errors import UserError

HELP = "Predict what published laws say of a model and a number of training tokens, and how far they extrapolate."
EXAMPLE = "  moejax predict --law all --arch deepseek-v3.1 --tokens 14.8T"
DESIGN_OPTIONS = {
    "params_total": "all parameters, embeddings included",
    "params_active": "parameters that serve one token, embeddings included",
    "params_embedding": "parameters of embedding and unembedding, part of both (0 if not given)",
    "tokens": "training tokens",
    "unique_tokens": "different tokens there are to train on; beyond them tokens are repeated",
    "flops": "training FLOPs, forward and backward",
    "num_experts": "routed experts per mixture layer, 0 if dense",
    "top_k": "routed experts that serve one token",
    "num_shared_experts": "experts that serve every token, by the width of a routed one",
    "model_dim": "width of the residual stream",
    "num_layers": "layers",
    "expert_hidden": "width of one routed expert, of the feed-forward if dense",
}
"""Fields of a Design as options, which laws read."""
WHOLE = ("num_experts", "top_k", "model_dim", "num_layers", "expert_hidden")
"""Fields that are whole numbers in a model. Laws may be evaluated between them, as by the explorer's sliders. Shared
experts are counted by the width of a routed one.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument(
        "--law",
        required=True,
        type=law_or_fit,
        metavar="NAME|FIT|all",
        help="a law or its paper (see `moejax laws`), or fit.json of `moejax fit --out`, or its folder",
    )
    parser.add_argument("--constants", metavar="SET", help="a published set of constants (the law's first)")
    add_architecture_arguments(parser, required=False)
    add_sequence_length(parser, "for the FLOPs of --arch or --config")
    design = parser.add_argument_group("the design", "what is given here comes before what --arch or --config imply")
    for name, meaning in DESIGN_OPTIONS.items():
        design.add_argument(f"--{name.replace('_', '-')}", type=number, metavar="NUMBER", help=meaning)
    design.add_argument(
        "--loss", type=number, metavar="NUMBER", help="the loss, nats per token, for what laws of scores say of it"
    )
    add_active_convention(design)
    add_repeated(design, "--column", "NAME=VALUE", "another column that a fitted formula reads; may be repeated")
    parser.add_argument("--json", action="store_true", help="print machine-readable numbers")


def check(arguments: argparse.Namespace) -> None:
    """Raise ``UserError`` if a set of constants is given for all laws or for a fit."""
    if arguments.law == "all" and arguments.constants is not None:
        raise UserError("--constants names a set of one law; name that law with --law instead of all.")
    if arguments.column and not is_fit(arguments.law):
        raise UserError("--column is read by fitted formulas alone; give --law FIT, or leave it out.")
    if is_fit(arguments.law) and arguments.constants is not None:
        raise UserError(f"--constants names a published set, and {arguments.law} is a fit with constants of its own.")


def prepare(arguments: argparse.Namespace) -> None:
    """Reduce the compile time of the laws' formulas, each of which is computed once."""
    if not is_fit(arguments.law):
        compile_quickly(optimised=False)


def command(arguments: argparse.Namespace) -> str:
    """Return the name of the implementing module in ``moejax.cli.commands``."""
    return "predict_fit" if is_fit(arguments.law) else "predict"


def is_fit(law: str) -> bool:
    """Return whether ``--law`` names the file of a fit."""
    return law.endswith(".json")
