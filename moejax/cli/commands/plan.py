"""Implement ``moejax plan``: compile a training for chips that need not be present."""

from __future__ import annotations

import argparse
import re
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from moejax.cli.commands.config import load
from moejax.cli.out_folder import out_set
from moejax.cli.parsers.plan import COMPILED
from moejax.cli.progress import progress, waiting
from moejax.config import unknown
from moejax.errors import UserError
from moejax.folder import atomic_write
from moejax.plan import process
from moejax.plan.plan import Plan
from moejax.plan.search import remedies, search
from moejax.plan.summary import search_summary, summary
from moejax.plan.topology import Topology, check_compiler, parse
from moejax.quantities import format_bytes
from moejax.report import render
from moejax.sharding import MESH_AXES
from moejax.stored import write_json
from moejax.train.auto import choose_hyperparameters
from moejax.train.training import Training


def run(arguments: argparse.Namespace) -> int:
    """Make a plan and print it."""
    topology = parse(arguments.topology)
    if arguments.price is not None and topology.chip is None:
        raise UserError(
            f"--price is of a chip and hour, and nobody states how long a step takes on {topology.name}; leave it out, "
            f"or plan for TPUs or GPUs."
        )
    training = _training(arguments)
    out = arguments.out
    with out_set(out):
        if arguments.search:
            check_compiler(topology)
            plans = _search(training, topology, arguments.compile or COMPILED)
        else:
            plans = [_plan(training, topology, out)]
        found = search_summary(plans, arguments.price) if arguments.search else summary(plans[0], arguments.price)
        if out is not None:
            write_json(out / "plan.json", found.data)
    render.show(found, as_json=arguments.json)
    if not plans[0].fits:
        raise UserError(_too_large(plans[0], training, topology))
    return 0


def _training(arguments: argparse.Namespace) -> Training:
    training = choose_hyperparameters(load(Training, arguments.config, arguments.overrides)).training
    recipe = training.recipe
    if arguments.mesh is not None:
        recipe = replace(recipe, mesh=replace(recipe.mesh, **_slice_mesh(arguments.mesh)))
    if arguments.remat is not None:
        recipe = replace(recipe, runtime=replace(recipe.runtime, remat=arguments.remat))
    if arguments.microbatches:
        recipe = replace(recipe, microbatches=arguments.microbatches)
    return replace(training, recipe=recipe)


def _slice_mesh(text: str) -> dict[str, int]:
    """Return the sizes of all axes of a slice's mesh from the named ones."""
    sizes: dict[str, int] = {}
    for word in text.split(","):
        axis, _, size = word.strip().partition("=")
        if axis not in MESH_AXES:
            raise UserError(unknown(f"--mesh axis {axis!r}", axis, MESH_AXES))
        if not re.fullmatch("-?[0-9]{1,9}", size):
            raise UserError(
                f"--mesh {word.strip()!r} has no size; write it as {axis}=8, or {axis}=-1 for what is left."
            )
        if axis in sizes:
            raise UserError(f"--mesh {text!r} names {axis} twice; give each axis one size.")
        sizes[axis] = int(size)
    # Unnamed axes have size 1. ``data`` takes the rest if no named axis does.
    data = 1 if -1 in sizes.values() or len(sizes) > 1 else -1
    return {**dict.fromkeys(MESH_AXES, 1), "data": data, **sizes}


def _plan(training: Training, topology: Topology, out: Path | None) -> Plan:
    with waiting(f"compiling {training.name} for {topology.name}"):
        if out is None:
            return process.plan(training, topology)
        with tempfile.TemporaryDirectory() as between:
            text = Path(between) / "program.txt"
            found = process.plan(training, topology, text_to=text)
            # A program that does not fit has no text.
            if text.exists():
                with atomic_write(out / text.name) as partial:
                    shutil.copyfile(text, partial)
            return found


def _search(training: Training, topology: Topology, compiled: int) -> list[Plan]:
    with progress() as show:
        return search(training, topology, process.plan, compiled=compiled, progress=show)


def _too_large(plan: Plan, training: Training, topology: Topology) -> str:
    with progress() as show:
        found = remedies(training, topology, process.plan, progress=show)
    memory = plan.memory
    over = f"{format_bytes(-memory.left, 3)} more than the {format_bytes(memory.limit, 3)} of a chip"
    parts = (
        f"parameters {format_bytes(memory.parameters, 3)}, optimiser {format_bytes(memory.optimizer_state, 3)}, "
        f"gradients, activations and buffers {format_bytes(memory.temporaries, 3)}"
    )
    what = f"{plan.name} does not fit {plan.topology}: it needs {over} ({parts})."
    if memory.left >= 0:
        what = f"{plan.name} does not fit {plan.topology}: {plan.does_not_fit}. {parts.capitalize()}."
    if not found:
        return f"{what} Nothing that was tried does; use more or larger chips, or a smaller batch."
    lines = [f"  {words}   {format_bytes(p.memory.total, 3)} a chip{_at(p)}" for words, p in found]
    return f"{what} These were tried and fit:\n" + "\n".join(lines)


def _at(plan: Plan) -> str:
    return f", {plan.mfu:.0%} MFU by the roofline" if plan.roofline else ""
