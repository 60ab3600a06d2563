"""Evaluate a model's loss on text, or downstream tasks of lm-evaluation-harness."""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from moejax.cli.options import Command, argument, option, out
from moejax.cli.out_folder import out_file
from moejax.cli.progress import progress_display
from moejax.cli.shared import Seed, settings_of
from moejax.errors import UserError
from moejax.folder import write_json
from moejax.ranges import whole
from moejax.say import say
from moejax.wording import install_command

EXAMPLE = """\
  moejax eval runs/mine --text held-out/ notes.txt                                   # loss and bits per byte
  moejax eval runs/mine --tasks lambada_openai,arc_easy
  moejax eval runs/mine/checkpoints/branch-65536 --tasks mine --task-path tasks/      # your own task files
  moejax eval runs/mine --suite tian-2025
  moejax eval mixtral-hf --tasks 'mmlu_*' --num-fewshot 5 --dtype bfloat16 --limit 100"""

Count = Annotated[int, whole(1, 10**9)]


@dataclass(frozen=True, kw_only=True)
class EvalCommand(Command, name="eval"):
    """Measure a trained or converted model's loss on text, or run tasks of lm-evaluation-harness (pip install
    'moejax[eval]')."""

    ONE_OF = ("tasks", "suite", "text")

    model: str = argument(
        "folder of a training run, a checkpoint in it, weights, or a Hugging Face checkpoint", metavar="DIR"
    )
    text: tuple[str, ...] = option(
        (),
        "print the loss on each file or folder of text; formats: docs/data.md",
        metavar="FILE|DIR",
        nargs="+",
        excludes=("tasks", "suite", "task_path", "num_fewshot", "limit", "max_new_tokens", "seed", "samples"),
    )
    text_field: str = option("text", "field of a record with the text", metavar="NAME", needs=("text",))
    tasks: str = option("", "tasks, groups, tags, or patterns like mmlu_*", metavar="NAME[,…]")
    suite: str | None = option(
        None,
        "a paper's tasks, shots and categories, such as tian-2025",
        metavar="NAME",
        excludes=("tasks", "num_fewshot"),
    )
    task_path: str | None = option(
        None, "folder of your own task files, which take precedence over the harness's tasks", metavar="FOLDER"
    )
    num_fewshot: Annotated[int, whole(0, 10_000)] | None = option(
        None, "number of shots (default: the task's)", metavar="N"
    )
    limit: Count | None = option(None, "evaluate only the first N documents of each task", metavar="N")
    max_length: Count | None = option(
        None,
        "maximum tokens of a text; longer texts of tasks lose their beginning, and --text is cut into rows (default: "
        "the sequence length of the training run or of config.json)",
        metavar="N",
    )
    max_new_tokens: Count | None = option(
        None, "maximum number of tokens of a generated answer, up to the task's own maximum", metavar="N"
    )
    batch_tokens: Count = option(8192, "tokens per batch; for --text, on each device", metavar="N")
    dtype: str | None = option(
        None,
        "data type of the computation (default: float32; for --text, that of the training run)",
        choices=("float32", "bfloat16"),
    )
    tokenizer: str | None = option(None, "bytes or a tokenizer.json (default: the model's own)", metavar="NAME")
    seed: Seed = option(0, "seed of tasks that sample answers", metavar="NUMBER")
    samples: bool = option(False, "also write every document and answer into the file")
    out: Path | None = out("results as JSON (default: for tasks, DIR.TASKS.json next to DIR)", metavar="FILE")

    def check(self) -> None:
        if self.text:
            return
        if find_spec("lm_eval") is None:
            raise UserError(
                f"The tasks of moejax eval need the package lm-eval; run {install_command('eval')}. --text does not."
            )
        if self.suite is None and not self.tasks.strip(","):
            raise UserError(
                f"--tasks {self.tasks!r} names no task; give one or more, like --tasks arc_easy,piqa, or a paper's "
                f"tasks with --suite NAME."
            )

    def run(self) -> None:
        if self.text:
            self._measure_text()
        else:
            self._run_tasks()

    def _measure_text(self) -> None:
        from moejax.evaluation.text_loss import TextSettings, summary, text_losses
        from moejax.report import render

        path = Path(self.model)
        with out_file(self.out) if self.out else nullcontext():
            with progress_display() as update:
                results = text_losses(path, settings_of(TextSettings, self), update)
            if self.out:
                write_json(self.out, results)
        render.show(summary(results, path), as_json=self.json)

    def _run_tasks(self) -> None:
        from moejax.evaluation.load_model import check_model
        from moejax.evaluation.run_tasks import EvaluationSettings, run_tasks, suite_scores, summary
        from moejax.evaluation.suites import suite_of
        from moejax.report import render

        suite = None if self.suite is None else suite_of(self.suite)
        names = [name for name in self.tasks.split(",") if name]
        path, began = Path(self.model), time.monotonic()
        # Check the model first, since loading tasks may take minutes.
        check_model(path)
        out = self.out or _beside(path, names or [str(self.suite)])
        settings = settings_of(EvaluationSettings, self)
        with out_file(out):
            with progress_display() as update:
                results = run_tasks(
                    path, {self.num_fewshot: names} if suite is None else suite.shots(), settings, update
                )
            if suite is not None:
                results["suite"] = suite_scores(str(self.suite), suite, results["results"])
            results["seconds"] = round(time.monotonic() - began, 1)
            write_json(out, results)
        render.show(summary(results, path), as_json=self.json)
        if not self.json:
            say(out, file=sys.stdout)


def _beside(path: Path, names: list[str]) -> Path:
    tasks = "+".join(names).replace("*", "all").replace("/", "-")
    path = path.absolute()
    return path.with_name(f"{path.name}.{tasks[:100]}.json")
