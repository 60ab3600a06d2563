"""Convert Hugging Face checkpoints to moejax weights, and models to Hugging Face checkpoints."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from moejax.cli.options import Command, hidden, option, out
from moejax.cli.out_folder import out_folder
from moejax.cli.progress import progress
from moejax.cli.shared import LAW, is_fit, law_or_fit
from moejax.errors import UserError
from moejax.folder import check_new_folder
from moejax.json_text import json_text
from moejax.quantities import format_bytes
from moejax.ranges import whole
from moejax.say import StageCallback, say

if TYPE_CHECKING:
    from moejax.train.directory.saved_weights import SavedState

EXAMPLE = """\
  moejax convert --from hf Mixtral-8x7B-v0.1 --out weights/mixtral
  moejax convert --to hf weights/mixtral --dtype bfloat16 --out mixtral-hf
  moejax convert --to hf runs/mine --out mine-hf                               # the longest budget of a run
  moejax convert --to hf runs/mine/checkpoints/branch-65536 --out mine-hf-65536
  moejax convert --to weights runs/mine --out weights/mine                     # for load_weights in Python"""


@dataclass(frozen=True, kw_only=True)
class ConvertCommand(Command, name="convert"):
    """Convert a Hugging Face checkpoint to moejax weights, or a moejax model to a Hugging Face checkpoint."""

    ONE_OF = ("source", "target")
    source: tuple[str, str] | None = option(
        None,
        "a checkpoint folder to read",
        flag="from",
        metavar=("hf", "PATH"),
        excludes=("target", "law", "ema"),
    )
    target: tuple[str, str] | None = option(
        None,
        "format to write, and the folder to read (weights, a training run, or a checkpoint in it); hf writes a "
        "checkpoint for a class of transformers or, if no class fits, with custom code (hf:moejax); hf:FAMILY, such as "
        "hf:mixtral, writes one for that family",
        flag="to",
        metavar=("hf[:FAMILY]|weights", "PATH"),
    )
    out: Path = out("new folder, which appears when it is complete", required=True)
    ema: bool = option(False, "convert the moving average of the parameters (of a run with recipe.ema_decay)")
    dtype: str | None = option(
        None, "type of the weights (default: as stored)", choices=("float32", "bfloat16", "float16")
    )
    law: str | None = option(
        None,
        f"with --to hf and a training run: write the loss that this law predicts into the model card; {LAW}",
        metavar="NAME|FIT",
        read=law_or_fit,
    )
    shard_bytes: Annotated[int, whole(1, 10**18)] = option(
        5_000_000_000, "with --to hf: maximum file size in bytes; a larger tensor gets its own file", metavar="N"
    )
    family: str | None = hidden(None)
    """Earlier spelling of ``--to hf:FAMILY``."""

    def check(self) -> None:
        kind, family, path = self._direction
        option, known = ("--from", ("hf",)) if self.source else ("--to", ("hf", "weights"))
        if kind not in known or (family and (self.source or kind != "hf")):
            given = f"{kind}:{family}" if family else kind
            raise UserError(f"Unknown format {option} {given}. Write {option} {' or '.join(known)}, and a PATH.")
        if kind == "weights" and (self.dtype or self.law):
            raise UserError("--to weights keeps the run's parameter type; use --dtype and --law only with --to hf.")
        check_new_folder(self.out)
        if not Path(path).is_dir():
            given = (
                "the folder of a Hugging Face checkpoint, which `hf download NAME --local-dir DIR` fetches"
                if self.source
                else "the --out of a training run, a checkpoint in it, or a folder of weights"
            )
            raise UserError(f"{option} {kind} {path}: the folder {path} does not exist. Give {given}.")

    @property
    def _direction(self) -> tuple[str, str, str]:
        """Return the format, the family after the colon, and the path."""
        direction = self.source or self.target
        assert direction is not None, "one is required"
        kind, _, family = direction[0].partition(":")
        return kind, family or self.family or "", direction[1]

    def run(self) -> None:
        from moejax.huggingface.conversion import from_huggingface

        kind, family, path = self._direction
        with out_folder(self.out.absolute().parent, shared=True), progress() as show:
            if self.source:
                done = from_huggingface(Path(path), self.out, dtype=self.dtype, progress=show).to_json()
            elif kind == "hf":
                done = self._to_huggingface(Path(path), family or None, show)
            else:
                done = self._to_weights(Path(path), show)
        if self.json:
            print(json_text({"out": str(self.out), **done}))
        else:
            _print(self.out, done)

    def _to_huggingface(self, path: Path, family: str | None, show: StageCallback) -> dict[str, Any]:
        from moejax.huggingface.conversion import to_huggingface
        from moejax.huggingface.model_card import Trained
        from moejax.train.directory.saved_weights import find_saved_state, is_training, write_saved_weights
        from moejax.weights.folder import is_weights

        options = {"family": family, "dtype": self.dtype, "shard_bytes": self.shard_bytes, "progress": show}
        if is_weights(path):
            if option := "--ema" if self.ema else "--law" if self.law else "":
                raise UserError(f"{option} needs a training run, and {path} is a folder of weights; leave it out.")
            return to_huggingface(path, self.out, **options).to_json()
        if not is_training(path):
            raise UserError(
                f"{path} is neither a folder of weights, like those that moejax convert --from hf writes, nor a "
                "training run. Give the --out of a training run, a checkpoint in it, or a folder of weights."
            )
        saved = find_saved_state(path)
        predicted = self._predicted(saved)
        settings = saved.trained_with.as_json()
        trained = Trained(settings, saved.step, saved.tokens, saved.row, self.ema, predicted, saved.changes)
        with tempfile.TemporaryDirectory(dir=self.out.absolute().parent, prefix=".moejax-") as folder:
            between = Path(folder, "weights")
            write_saved_weights(saved, between, ema=self.ema, progress=show)
            length = saved.training.recipe.data.sequence_length
            done = to_huggingface(between, self.out, **options, sequence_length=length, trained=trained)
        return {**done.to_json(), "phase": saved.phase, "step": saved.step}

    def _predicted(self, saved: SavedState) -> str:
        if self.law is None:
            return ""
        from moejax.experimental_design.candidates import REACH
        from moejax.laws.accounting import design_of
        from moejax.laws.predict import beyond_in_words
        from moejax.report.laws import ask, ask_fit

        training = saved.training
        design = design_of(training.architecture, saved.tokens, training.recipe.data.sequence_length)
        answer = ask_fit(self.law, design) if is_fit(self.law) else ask(self.law, None, design)
        if (loss := answer.values.get("loss")) is None:
            raise UserError(f"--law {self.law} predicts {', '.join(answer.values)}; give a law of the loss.")
        source = Path(answer.source).name if is_fit(self.law) else answer.source
        far = beyond_in_words(answer.extrapolated)
        if any(not 1 / REACH <= times <= REACH for times in answer.extrapolated.values()):
            say(
                f"moejax: the model card has no loss predicted by {answer.law}, because the model is more than "
                f"{REACH:g}× beyond the law's fitted range: {', '.join(far)}."
            )
            return ""
        beyond = ", beyond its fitted range" if far else ""
        return f"{loss:.4f} nats/token by {answer.law} ({source}){beyond}"

    def _to_weights(self, path: Path, show: StageCallback) -> dict[str, Any]:
        from moejax.train.directory.saved_weights import find_saved_state, write_saved_weights
        from moejax.weights.folder import WEIGHTS

        saved = find_saved_state(path)
        files = write_saved_weights(saved, self.out, ema=self.ema, progress=show)
        size = (self.out / WEIGHTS).stat().st_size
        return {"bytes": size, "tokenizer": files, "phase": saved.phase, "step": saved.step}


def _print(out: Path, done: dict[str, Any]) -> None:
    lines = []
    if "phase" in done:
        lines.append(f"{done['phase']}, step {done['step']:,}")
    if left_out := done.get("left_out"):
        lines.append(f"left out, because the model does not use them: {len(left_out)} tensors, such as {left_out[0]}")
    family = f"{done['family']}, {done['tensors']:,} tensors, " if "family" in done else ""
    lines += [*done.get("remarks", ()), f"{family}{format_bytes(done['bytes'])}: {out}"]
    lines.append(f"tokenizer files: {', '.join(done['tokenizer']) or 'none found'}")
    if fault := done.get("fault_in_training"):
        lines.append(f"! The model cannot be trained further: {fault}")
    say(*lines, file=sys.stdout)
