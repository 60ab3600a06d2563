"""Build the run row: the results and settings of one trained branch, in the columns of a run table."""

from __future__ import annotations

import contextlib
import json
import math
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

import jax
import numpy as np

import moejax
from moejax.data.corpus import PartRead, Summary, unique_tokens
from moejax.errors import UserError
from moejax.float64 import float64
from moejax.kernels import cpu
from moejax.laws.accounting import design_of, flops_per_token, mtp_params, params, params_active_served
from moejax.laws.design import Design
from moejax.model import transformer
from moejax.plugins import plugin_versions
from moejax.routing.sums import RoutingSums, balance_loss, statistics
from moejax.train.devices import Speed, memory
from moejax.train.directory.attempts import AttemptRecorder, goodput
from moejax.train.directory.metrics import TRUNK, branch_name, number
from moejax.train.evaluation import Evaluated
from moejax.train.host import rounding
from moejax.train.training import Training

OF_THE_CLOCK = ("tokens_per_second", "train_seconds", "mfu", "goodput", "memory_peak_bytes")
"""Columns that differ between training runs with the same numbers."""
MEASURED = (
    *("loss", "bits_per_byte", "train_loss", "unique_tokens", "validation_tokens", "unigram_entropy"),
    *("load_cv", "load_entropy", "dropped_share", "dead_experts", "logit_rms", "balance_loss", "max_violation"),
    "params_active_served",
    *OF_THE_CLOCK,
)
"""Numeric columns whose values only training provides, for a corpus of one source."""


_OF_ACCELERATORS = (
    *(f"jax-{kind}-{part}" for kind in ("cuda12", "cuda13", "rocm7") for part in ("plugin", "pjrt")),
    *(f"nvidia-{part}-cu{cuda}" for part in ("cudnn", "nccl") for cuda in (12, 13)),
    "nvidia-cublas-cu12",
    "nvidia-cublas",
    "libtpu",
)
"""Python packages for accelerators that affect results. Their versions are recorded if they are installed."""


def make_row(
    training: Training,
    budget_tokens: int,
    text: Summary,
    read: Sequence[PartRead],
    evaluated: Evaluated,
    log: Sequence[Mapping[str, Any]],
    attempts: AttemptRecorder,
) -> dict[str, Any]:
    """Return one row of a run table, keyed by column. Parameters are counted on the built model; FLOPs are computed by
    ``moejax.laws.accounting``.

    Args:
      read: number of training tokens and epochs that the branch has read from each data set.
      log: lines of the metrics file.

    Raises:
      UserError: the loss is not finite, so there is no result.
    """
    losses = evaluated.losses()
    if not math.isfinite(losses["loss"] or 0.0):
        raise UserError(
            f"{training.name}: the validation loss at {budget_tokens:,} tokens is {losses['loss']}. Lower "
            "optimizer.learning_rate and train in a new --out."
        )
    counts, modules = transformer.count(training.architecture), transformer.count_mtp(training.architecture)
    branch, start = branch_name(budget_tokens), training.recipe.decay_start(budget_tokens)
    # Skipped steps may have a non-finite loss.
    last = [number(line["loss"]) for line in [line for line in log if line["phase"] == branch][-3:]]
    last = [loss for loss in last if math.isfinite(loss)]
    of_trunk = seconds_until(log, TRUNK, start)
    of_branch = seconds_until(log, branch, training.recipe.steps(budget_tokens), start=start)
    seconds = None if of_trunk is None or of_branch is None else of_trunk + of_branch
    routing = _routing(evaluated.routing)
    row = known_columns(training, budget_tokens) | {
        "params_total": counts.total,
        "params_active": counts.active,
        "params_embedding": counts.embedding,
        "params_mtp": modules.total,
        "params_mtp_active": modules.active,
        "unique_tokens": unique_tokens(read),
        "validation_tokens": evaluated.validation.tokens,
        **losses,
        **evaluated.shares(),
        **({f"epochs_{part.name}": part.epochs for part in read} if training.recipe.data.parts else {}),
        "train_loss": float(np.mean(last)) if last else None,
        **routing,
        "params_active_served": params_active_served(training.architecture, routing["dropped_share"] or 0.0),
    }
    speed = Speed(training).of(row["tokens"], seconds) if seconds else {}
    return row | {
        "tokens_per_second": speed.get("tokens_per_second"),
        "train_seconds": seconds,
        "mfu": speed.get("mfu"),
        "goodput": goodput(attempts.all()),
        "memory_peak_bytes": memory()["memory_peak_bytes"],
        "device": jax.devices()[0].device_kind,
        "num_devices": jax.device_count(),
        "unigram_entropy": text.unigram_entropy,
        "corpus": text.sha256,
        "versions": json.dumps(attempts.versions),
    }


def known_columns(training: Training, budget_tokens: int) -> dict[str, Any]:
    """Return the values that are known before training, keyed by column, with parameters counted by
    ``moejax.laws.accounting``.
    """
    architecture, recipe = training.architecture, training.recipe
    tokens = recipe.tokens(recipe.steps(budget_tokens))
    design, counts, modules = design_of(architecture, tokens), params(architecture), mtp_params(architecture)
    settings = training.as_json()
    return {
        "model": training.name,
        "group": training.name,
        "seed": training.seed,
        "architecture": json.dumps(settings["architecture"]),
        "vocab_size": architecture.vocab_size,
        "model_dim": architecture.model_dim,
        "num_layers": architecture.num_layers,
        "num_dense_layers": architecture.num_dense_layers if architecture.is_moe else None,
        "num_experts": architecture.num_experts,
        "top_k": architecture.top_k,
        "num_shared_experts": design.num_shared_experts,
        "expert_hidden": architecture.expert_hidden or architecture.dense_hidden,
        **_conventions(design, architecture.is_moe),
        "params_total": counts.total,
        "params_active": counts.active,
        "params_embedding": counts.vocabulary,
        "params_mtp": modules.total,
        "params_mtp_active": modules.active,
        "tokens": tokens,
        "flops": tokens * flops_per_token(architecture, recipe.data.sequence_length).training,
        "batch_tokens": recipe.batch_tokens,
        "sequence_length": recipe.data.sequence_length,
        "learning_rate": recipe.optimizer.learning_rate,
        "weight_decay": recipe.optimizer.weight_decay,
        "schedule": "warmup_stable_decay",
        "warmup_tokens": recipe.tokens(recipe.warmup_steps),
        "decay_tokens": tokens - recipe.tokens(recipe.decay_start(budget_tokens)),
        "fingerprint": training.fingerprint(),
        "config": json.dumps(settings),
    }


def seconds_until(lines: Sequence[Mapping[str, Any]], phase: str, step: int, *, start: int = 0) -> float | None:
    """Return the seconds of training from a phase's ``start`` to a step, interpolated linearly between logged steps;
    None if the log does not reach the step."""
    at = {start: 0.0} | {line["step"]: float(line["seconds"]) for line in lines if line["phase"] == phase}
    if step > max(at):
        return None
    known = sorted(at)
    return float(np.interp(step, known, [at[one] for one in known]))


def versions() -> dict[str, str]:
    """Return the versions of software that affects a training run's numbers, and the properties that affect rounding,
    keyed by name.
    """
    names = ["jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain"]
    if jax.default_backend() == "cpu" and cpu.available():
        names += ["numba"]
    named = {name: metadata.version(name) for name in names}
    for name in _OF_ACCELERATORS if jax.default_backend() != "cpu" else ():
        with contextlib.suppress(metadata.PackageNotFoundError):
            named[name] = metadata.version(name)
    return {
        "moejax": moejax.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        **named,
        **plugin_versions("moejax.routers"),
        **rounding(),
    }


def _conventions(design: Design, is_moe: bool) -> dict[str, float | None]:
    # Expert statistics are None for a dense model.
    everywhere = ("expansion", "granularity", "sparsity")
    of_experts = ("active_experts", "shared_share")
    return {name: float(getattr(design, name)) for name in everywhere} | {
        name: float(getattr(design, name)) if is_moe else None for name in of_experts
    }


def _routing(sums: RoutingSums | None) -> dict[str, Any]:
    names = ("load_cv", "load_entropy", "dropped_share", "dead_experts", "logit_rms", "balance_loss")
    if sums is None:
        return dict.fromkeys((*names, "max_violation", "expert_loads"))
    with float64():
        # Counts of a long validation set are int64.
        every = jax.jit(lambda one: {**statistics(one), "balance_loss": balance_loss(one)})(sums)
        layers = {name: np.asarray(value) for name, value in every.items()}
    counts = np.asarray(sums.counts, np.float64)
    loads = counts * counts.shape[1] / counts.sum(axis=1, keepdims=True)
    return {
        **{name: float(layers[name].mean()) for name in names},
        "max_violation": float(layers["max_violation"].max()),
        "expert_loads": json.dumps(np.round(loads, 5).tolist()),
    }
