"""Implement ``moejax convert``: convert Hugging Face checkpoints to moejax's weights, and models to such
checkpoints.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from moejax.cli.out_folder import out_folder
from moejax.cli.progress import progress_display
from moejax.errors import UserError
from moejax.huggingface.conversion import from_huggingface, to_huggingface
from moejax.json_text import json_text
from moejax.progress import ProgressCallback
from moejax.quantities import format_bytes
from moejax.say import say
from moejax.train.directory.saved_weights import find_saved_state, is_training, write_saved_weights
from moejax.weights.folder import WEIGHTS, is_weights


def run(arguments: argparse.Namespace) -> int:
    """Convert a model, and print the written files."""
    kind, path = arguments.source or arguments.target
    option = "--from" if arguments.source else "--to"
    out = arguments.out
    if not Path(path).is_dir():
        given = (
            "the folder of a Hugging Face checkpoint, which `hf download NAME --local-dir DIR` fetches"
            if arguments.source
            else "the --out of a training, a checkpoint in it, or a folder of weights"
        )
        raise UserError(f"{option} {kind} {path}: there is no folder {path}. Give {given}.")
    with out_folder(out.absolute().parent, shared=True), progress_display() as update:
        done = _directions()[option, kind](Path(path), out, arguments, update)
    if arguments.json:
        print(json_text({"out": str(out), **done}))
    else:
        _print(out, done)
    return 0


def _directions() -> dict[tuple[str, str], Any]:
    return {("--from", "hf"): _from_hf, ("--to", "hf"): _to_hf, ("--to", "weights"): _to_weights}


def _from_hf(path: Path, out: Path, arguments: argparse.Namespace, update: ProgressCallback) -> dict[str, Any]:
    return _said(from_huggingface(path, out, dtype=arguments.dtype, progress=_shares(update)))


def _to_hf(path: Path, out: Path, arguments: argparse.Namespace, update: ProgressCallback) -> dict[str, Any]:
    options = {"family": arguments.family, "dtype": arguments.dtype, "shard_bytes": arguments.shard_bytes}
    if is_weights(path):
        if arguments.ema:
            raise UserError(f"--ema is of a training, and {path} is a folder of weights; leave it out.")
        return _said(to_huggingface(path, out, **options, progress=_shares(update)))
    if not is_training(path):
        raise UserError(
            f"{path} is neither a folder of weights, as moejax convert --from hf writes, nor in one of a training. "
            f"Give the --out of a training, a checkpoint in it, or a folder of weights."
        )
    saved = find_saved_state(path)
    with tempfile.TemporaryDirectory(dir=out.absolute().parent, prefix=".moejax-") as folder:
        between = Path(folder, "weights")
        write_saved_weights(saved, between, ema=arguments.ema, progress=_shares(update))
        length = saved.training.recipe.data.sequence_length
        done = to_huggingface(between, out, **options, sequence_length=length, progress=_shares(update))
    return {**_said(done), "phase": saved.phase, "step": saved.step}


def _to_weights(path: Path, out: Path, arguments: argparse.Namespace, update: ProgressCallback) -> dict[str, Any]:
    saved = find_saved_state(path)
    files = write_saved_weights(saved, out, ema=arguments.ema, progress=_shares(update))
    return {"bytes": (out / WEIGHTS).stat().st_size, "tokenizer": files, "phase": saved.phase, "step": saved.step}


def _shares(update: ProgressCallback):
    return lambda name, done, total: update(done / max(total, 1), name)


def _said(done: Any) -> dict[str, Any]:
    return {
        "family": done.family,
        "tensors": done.tensors,
        "bytes": done.nbytes,
        "tokenizer": list(done.files),
        "left_out": list(done.left_out),
        "fault_in_training": done.architecture.fault_in_training,
        "remarks": list(done.remarks),
    }


def _print(out: Path, done: dict[str, Any]) -> None:
    if "phase" in done:
        say(f"{done['phase']}, step {done['step']:,}", file=sys.stdout)
    if done.get("left_out"):
        say(
            f"left out, as no part of the model: {len(done['left_out'])} tensors, {done['left_out'][0]} and others",
            file=sys.stdout,
        )
    for remark in done.get("remarks", ()):
        say(remark, file=sys.stdout)
    family = f"{done['family']}, {done['tensors']:,} tensors, " if "family" in done else ""
    say(f"{family}{format_bytes(done['bytes'])}: {out}", file=sys.stdout)
    say(f"tokenizer files: {', '.join(done['tokenizer']) or 'none found'}", file=sys.stdout)
    if fault := done.get("fault_in_training"):
        say(f"! The model cannot be trained further as it is: {fault}", file=sys.stdout)
