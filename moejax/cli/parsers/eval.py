"""Define the options of ``moejax eval``."""

from __future__ import annotations

import argparse
from importlib.util import find_spec

from moejax.cli.number import SEEDS, whole_number
from moejax.cli.out_folder import local
from moejax.errors import UserError
from moejax.evaluation.suites import SUITES, suite_of

HELP = "Run tasks of lm-evaluation-harness on a trained or converted model (pip install 'moejax[eval]')."
EXAMPLE = """\
  moejax eval runs/mine --tasks lambada_openai,arc_easy
  moejax eval runs/mine/checkpoints/branch-65536 --tasks mine --task-path tasks/      # your own task files
  moejax eval runs/mine --suite tian-2025
  moejax eval mixtral-hf --tasks 'mmlu_*' --num-fewshot 5 --dtype bfloat16 --limit 100"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument(
        "model", metavar="DIR", help="a training's folder, a checkpoint in it, weights, or a Hugging Face checkpoint"
    )
    parser.add_argument("--tasks", default="", metavar="NAME[,…]", help="tasks, groups, tags, or patterns as mmlu_*")
    parser.add_argument(
        "--suite", metavar="NAME", help=f"the tasks, shots and categories of a document: {', '.join(SUITES)}"
    )
    parser.add_argument("--task-path", metavar="FOLDER", help="task files of your own, before the harness's")
    parser.add_argument("--num-fewshot", type=whole_number, metavar="N", help="shots in front (default: the task's)")
    parser.add_argument("--limit", type=whole_number, metavar="N", help="the first documents of each task only")
    parser.add_argument(
        "--max-length",
        type=whole_number,
        metavar="N",
        help="tokens of a text; what goes before is cut off (default: those of the training, or of config.json)",
    )
    parser.add_argument(
        "--max-new-tokens",
        type=whole_number,
        metavar="N",
        help="most tokens of a generated answer, where the task allows as many",
    )
    parser.add_argument(
        "--batch-tokens", type=whole_number, default=8192, metavar="N", help="tokens computed at once (default: 8192)"
    )
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="to compute in")
    parser.add_argument("--tokenizer", metavar="NAME", help="bytes or a tokenizer.json (default: the model's own)")
    parser.add_argument("--seed", type=SEEDS, default=0, help="of tasks that draw their answers (default: 0)")
    parser.add_argument("--samples", action="store_true", help="write every document and answer into the file too")
    parser.set_defaults(out_is_file=True)
    parser.add_argument(
        "--out", type=local, metavar="FILE", help="results as JSON (default: beside DIR, DIR.TASKS.json)"
    )
    parser.add_argument("--json", action="store_true", help="print the file's content on stdout")


def check(arguments: argparse.Namespace) -> None:
    """Raise ``UserError`` if the harness is not installed, no task is given, or tasks and a suite are both given."""
    if arguments.suite is not None:
        suite_of(arguments.suite)
        if arguments.tasks or arguments.num_fewshot is not None:
            raise UserError("--suite has its own tasks and shots; leave --tasks and --num-fewshot out.")
    if find_spec("lm_eval") is None:
        raise UserError("moejax eval needs the package lm-eval, which is not installed; pip install 'moejax[eval]'.")
    if arguments.suite is None and not arguments.tasks.strip(","):
        raise UserError(
            f"--tasks {arguments.tasks!r} names no task; give one or more, as --tasks arc_easy,piqa, or a document's "
            f"by --suite NAME."
        )
    for option, what in (("limit", "document"), ("max_new_tokens", "token")):
        if (value := getattr(arguments, option)) is not None and value < 1:
            raise UserError(f"--{option.replace('_', '-')} is {value}; give at least one {what}.")
